//! Changes of one field of an object.

use liqo_quantity::Quantity;
use serde_json::{Map, Value, json};

/// Sets a field that is missing.
pub fn or(object: &mut Value, field: &str, default: impl Into<Value>) {
    if let Some(fields) = object.as_object_mut()
        && fields.get(field).is_none_or(Value::is_null)
    {
        fields.insert(field.to_owned(), default.into());
    }
}

/// Sets a field that is missing or an empty text.
pub fn or_text(object: &mut Value, field: &str, default: &str) {
    if object[field] == "" {
        object[field] = Value::Null;
    }
    or(object, field, default);
}

/// Changes a field that is there.
pub fn in_field(object: &mut Value, field: &str, change: impl FnOnce(&mut Value)) {
    if let Some(value) = object.get_mut(field).filter(|value| !value.is_null()) {
        change(value);
    }
}

/// Changes every item of a list.
pub fn each(object: &mut Value, field: &str, change: impl FnMut(&mut Value)) {
    if let Some(items) = object.get_mut(field).and_then(Value::as_array_mut) {
        items.iter_mut().for_each(change);
    }
}

pub fn remove(object: &mut Value, field: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove(field);
    }
}

/// Gives a field the value that it has in another object.
pub fn keep(from: &Value, object: &mut Value, field: &str) {
    match from.get(field) {
        Some(value) => object[field] = value.clone(),
        None => remove(object, field),
    }
}

/// Adds the entries of one map to another that does not have them.
pub fn copy_missing(object: &mut Value, from: &str, to: &str) {
    let Some(entries) = object.get(from).and_then(Value::as_object).cloned() else {
        return;
    };
    or(object, to, Map::new());
    for (key, value) in entries {
        or(&mut object[to], &key, value);
    }
}

/// Quantities of resources are at least thousandths.
pub fn round_up(amounts: &mut Value) {
    const NANOS: i128 = 1_000_000;
    for amount in amounts
        .as_object_mut()
        .into_iter()
        .flat_map(Map::values_mut)
    {
        let Some(quantity) = amount
            .as_str()
            .and_then(|text| text.parse::<Quantity>().ok())
        else {
            continue;
        };
        if quantity.nanos() % NANOS != 0 {
            let nanos = quantity.nanos().div_euclid(NANOS) * NANOS + NANOS;
            *amount = Quantity::from_nanos(nanos, quantity.format())
                .to_string()
                .into();
        }
    }
}

/// Of two fields, one has the first item of the other; where both differ, the single one wins.
pub fn first_of_many(
    object: &mut Value,
    one: &str,
    many: &str,
    to_item: impl Fn(&Value) -> Value,
    to_one: impl Fn(&Value) -> Option<Value>,
) {
    let first = object[many].get(0).and_then(to_one);
    match object
        .get(one)
        .filter(|single| single.as_str().is_some_and(|text| !text.is_empty()))
    {
        Some(single) if first.as_ref() != Some(single) => object[many] = json!([to_item(single)]),
        None if first.is_some() => object[one] = first.into(),
        _ => {
            if object[many].is_null() {
                remove(object, many);
            }
        }
    }
}
