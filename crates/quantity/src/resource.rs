//! Names of resources: which are valid, and the unit of each.

use std::str::FromStr;

use crate::quantity::NANOS;
use crate::{ParseQuantityError, Quantity};

/// Maximum length of the name of a resource in bytes: a domain, a slash and a name.
pub const MAX_RESOURCE_NAME_LEN: usize = 317;

/// The smallest step of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Thousandths: cpu.
    Milli,
    /// Bytes: memory, storage, ephemeral-storage.
    Bytes,
    /// Indivisible pages of this many bytes: hugepages-*.
    Pages(u64),
    /// Indivisible things: pods, GPUs, everything else.
    Whole,
}

impl Unit {
    /// The step in nano-units; never zero.
    pub(crate) fn step(self) -> i128 {
        match self {
            Self::Milli => NANOS / 1000,
            Self::Bytes | Self::Whole => NANOS,
            Self::Pages(bytes) => i128::from(bytes.max(1)) * NANOS,
        }
    }

    /// Whether a share must not become zero by rounding.
    pub(crate) fn is_indivisible(self) -> bool {
        matches!(self, Self::Pages(_) | Self::Whole)
    }

    fn describe(self) -> String {
        match self {
            Self::Milli => "thousandths (1m)".to_owned(),
            Self::Bytes => "whole bytes".to_owned(),
            Self::Pages(bytes) => {
                format!(
                    "pages of {}",
                    Quantity::from_bytes(i64::try_from(bytes).unwrap_or(i64::MAX))
                )
            }
            Self::Whole => "whole units".to_owned(),
        }
    }
}

/// The unit of the resource with this name. Unknown names have whole units, as Kubernetes requires
/// for extended resources.
pub fn unit_of(resource: &str) -> Unit {
    match resource {
        "cpu" => Unit::Milli,
        "memory" | "storage" | "ephemeral-storage" => Unit::Bytes,
        _ => page_size(resource).map_or(Unit::Whole, Unit::Pages),
    }
}

/// The page size in the name `hugepages-<size>`.
fn page_size(resource: &str) -> Option<u64> {
    let size: Quantity = resource.strip_prefix("hugepages-")?.parse().ok()?;
    u64::try_from(size.value()).ok().filter(|bytes| *bytes > 0)
}

/// Why `name=quantity` is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResourceArgumentError {
    /// There is no equals sign.
    #[error("{0:?} is not of the form name=quantity, as in nvidia.com/gpu=1")]
    Form(String),
    /// Kubernetes would refuse the name.
    #[error(
        "{0:?} is not the name of a resource: use cpu, memory, pods, storage, ephemeral-storage, hugepages-<size>, or domain/name as in nvidia.com/gpu"
    )]
    Name(String),
    /// The quantity can't be parsed.
    #[error("the quantity of {name}: {source}")]
    Quantity {
        /// The resource.
        name: String,
        /// The reason.
        source: ParseQuantityError,
    },
    /// The quantity is negative.
    #[error("the quantity of {name} is {quantity}; it can't be negative")]
    Negative {
        /// The resource.
        name: String,
        /// The quantity given.
        quantity: Quantity,
    },
    /// The quantity is finer than the resource's unit.
    #[error(
        "the quantity of {name} is {quantity}, but {name} is counted in {unit}; nearest below is {nearest}"
    )]
    Unit {
        /// The resource.
        name: String,
        /// The quantity given.
        quantity: Quantity,
        /// The resource's unit, in words.
        unit: String,
        /// The next smaller valid quantity.
        nearest: Quantity,
    },
}

/// A valid amount of one resource, as users type it: `nvidia.com/gpu=1`.
///
/// The name is valid, and the quantity is a multiple of the resource's unit and not negative.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceArgument {
    name: String,
    quantity: Quantity,
}

impl ResourceArgument {
    /// Checks a name and a quantity that came separately, as in `--cpu 2`.
    pub fn new(name: &str, quantity: &str) -> Result<Self, ResourceArgumentError> {
        if !is_resource_name(name) {
            return Err(ResourceArgumentError::Name(name.to_owned()));
        }
        let name = name.to_owned();
        let quantity: Quantity = match quantity.parse() {
            Ok(quantity) => quantity,
            Err(source) => return Err(ResourceArgumentError::Quantity { name, source }),
        };
        if quantity.is_negative() {
            return Err(ResourceArgumentError::Negative { name, quantity });
        }
        let unit = unit_of(&name);
        let nearest = quantity.round_down(unit);
        if nearest != quantity {
            return Err(ResourceArgumentError::Unit {
                name,
                quantity,
                unit: unit.describe(),
                nearest,
            });
        }
        Ok(Self { name, quantity })
    }

    /// The resource's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The amount.
    pub fn quantity(&self) -> Quantity {
        self.quantity
    }

    /// Name and amount.
    pub fn into_parts(self) -> (String, Quantity) {
        (self.name, self.quantity)
    }
}

impl FromStr for ResourceArgument {
    type Err = ResourceArgumentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, quantity) = text
            .split_once('=')
            .ok_or_else(|| ResourceArgumentError::Form(text.to_owned()))?;
        Self::new(name, quantity)
    }
}

/// Whether a container or a node may have a resource with this name: a native one, or an extended
/// one with a domain.
pub(crate) fn is_resource_name(name: &str) -> bool {
    match name.split_once('/') {
        None => {
            matches!(
                name,
                "cpu" | "memory" | "pods" | "storage" | "ephemeral-storage"
            ) || page_size(name).is_some()
        }
        Some((domain, name)) => is_dns_subdomain(domain) && is_qualified(name),
    }
}

fn is_dns_subdomain(domain: &str) -> bool {
    domain.len() <= 253 && domain.split('.').all(is_dns_label)
}

fn is_dns_label(label: &str) -> bool {
    (1..=63).contains(&label.len())
        && label
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !label.starts_with('-')
        && !label.ends_with('-')
}

fn is_qualified(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && !name.starts_with(['-', '_', '.'])
        && !name.ends_with(['-', '_', '.'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argument(text: &str) -> Result<ResourceArgument, ResourceArgumentError> {
        text.parse()
    }

    #[test]
    fn every_resource_has_a_unit() {
        assert_eq!(unit_of("cpu"), Unit::Milli);
        assert_eq!(unit_of("memory"), Unit::Bytes);
        assert_eq!(unit_of("ephemeral-storage"), Unit::Bytes);
        assert_eq!(unit_of("storage"), Unit::Bytes);
        assert_eq!(unit_of("hugepages-2Mi"), Unit::Pages(2 << 20));
        assert_eq!(unit_of("hugepages-nonsense"), Unit::Whole);
        assert_eq!(unit_of("hugepages-0"), Unit::Whole);
        assert_eq!(unit_of("pods"), Unit::Whole);
        assert_eq!(unit_of("nvidia.com/gpu"), Unit::Whole);
    }

    #[test]
    fn valid_arguments_are_parsed() {
        for (text, name, quantity) in [
            ("cpu=1500m", "cpu", "1500m"),
            ("memory=1.5Gi", "memory", "1536Mi"),
            ("nvidia.com/gpu=1", "nvidia.com/gpu", "1"),
            ("example.com/A_b.c-d=0", "example.com/A_b.c-d", "0"),
            ("hugepages-2Mi=4Mi", "hugepages-2Mi", "4Mi"),
        ] {
            let (read, amount) = argument(text).unwrap().into_parts();
            assert_eq!(
                (read.as_str(), amount.to_string().as_str()),
                (name, quantity)
            );
        }
    }

    #[test]
    fn invalid_arguments_are_refused_with_the_reason() {
        use ResourceArgumentError as E;
        type Expected = fn(&E) -> bool;
        let refused: [(&str, Expected); 16] = [
            ("", |e| matches!(e, E::Form(_))),
            ("cpu", |e| matches!(e, E::Form(_))),
            ("=1", |e| matches!(e, E::Name(_))),
            ("gpu=1", |e| matches!(e, E::Name(_))),
            ("CPU=1", |e| matches!(e, E::Name(_))),
            ("hugepages-=1", |e| matches!(e, E::Name(_))),
            ("/gpu=1", |e| matches!(e, E::Name(_))),
            ("nvidia.com/=1", |e| matches!(e, E::Name(_))),
            ("-a.com/gpu=1", |e| matches!(e, E::Name(_))),
            ("a..com/gpu=1", |e| matches!(e, E::Name(_))),
            ("a.com/b/c=1", |e| matches!(e, E::Name(_))),
            ("cpu=", |e| matches!(e, E::Quantity { .. })),
            ("cpu=1=2", |e| matches!(e, E::Quantity { .. })),
            ("cpu=-1", |e| matches!(e, E::Negative { .. })),
            ("nvidia.com/gpu=500m", |e| matches!(e, E::Unit { .. })),
            ("hugepages-2Mi=3Mi", |e| matches!(e, E::Unit { .. })),
        ];
        for (text, expected) in refused {
            let error = argument(text).unwrap_err();
            assert!(expected(&error), "{text:?}: {error:?}");
        }
    }

    #[test]
    fn a_refused_unit_names_the_next_smaller_quantity() {
        assert_eq!(
            argument("memory=400m").unwrap_err().to_string(),
            "the quantity of memory is 400m, but memory is counted in whole bytes; nearest below is 0"
        );
        assert!(
            argument("hugepages-2Mi=5Mi")
                .unwrap_err()
                .to_string()
                .ends_with("counted in pages of 2Mi; nearest below is 4Mi")
        );
    }
}
