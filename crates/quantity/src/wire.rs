//! Quantities in JSON and in the schemas of our kinds.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::Quantity;

/// The grammar of quantities, so that an API server refuses what [`Quantity`] can't parse,
/// including exponents beyond 64 bits. It has no minus, because no amount in Liqo's kinds can be
/// negative.
const PATTERN: &str =
    r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,18})?$";

/// Always a string, in canonical form.
impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A string or, as Kubernetes allows, a number.
impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QuantityVisitor)
    }
}

struct QuantityVisitor;

impl Visitor<'_> for QuantityVisitor {
    type Value = Quantity;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity as in \"1500m\" or \"4Gi\", or a number")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
        // Kubernetes also accepts white space here and nowhere else.
        text.trim().parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Quantity, E> {
        Ok(Quantity::from_units(number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Quantity, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Quantity, E> {
        // The shortest text of this number is what the author wrote, not the binary approximation.
        self.visit_str(&number.to_string())
    }
}

/// An integer or a string that matches the grammar. `x-kubernetes-int-or-string` implies an `anyOf`
/// of the two types. The schema does not contain one, because the generator would move its `type`
/// to a place where Kubernetes forbids it.
impl JsonSchema for Quantity {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true, "pattern": PATTERN, "minimum": 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_str, to_string};

    #[test]
    fn strings_and_numbers_are_read_and_strings_are_written() {
        for (json, written) in [
            (r#""1.5Gi""#, r#""1536Mi""#),
            (r#"" 1 ""#, r#""1""#),
            ("3", r#""3""#),
            ("-3", r#""-3""#),
            ("0.5", r#""500m""#),
            ("0.1", r#""100m""#),
            ("18446744073709551615", r#""18446744073709551615""#),
            ("1e3", r#""1k""#),
        ] {
            assert_eq!(
                to_string(&from_str::<Quantity>(json).unwrap()).unwrap(),
                written,
                "{json}"
            );
        }
    }

    #[test]
    fn other_json_is_refused() {
        for json in ["null", "true", "[]", "{}", r#""""#, r#""--1""#, r#""1 Gi""#] {
            assert!(from_str::<Quantity>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn the_schema_allows_an_integer_or_a_string() {
        let schema = SchemaGenerator::default().subschema_for::<Quantity>();
        assert_eq!(schema.get("x-kubernetes-int-or-string"), Some(&true.into()));
        assert_eq!(schema.get("type"), None);
    }

    #[test]
    fn the_schema_refuses_negative_amounts() {
        let schema = SchemaGenerator::default().subschema_for::<Quantity>();
        assert_eq!(schema.get("minimum"), Some(&0.into()));
        assert!(
            schema
                .get("pattern")
                .unwrap()
                .as_str()
                .unwrap()
                .starts_with(r"^\+?([0-9]"),
            "the only sign is a plus"
        );
    }
}
