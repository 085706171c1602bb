//! Objects from JSON.

use serde::de::DeserializeOwned;
use serde_json::Value;

pub fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}
