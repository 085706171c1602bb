//! What a server answered.

use http::HeaderMap;
use serde_json::{Value, json};

/// Status code, headers and body as one JSON value, and the body's text.
#[derive(Clone, Debug)]
pub struct Answer {
    pub value: Value,
}

impl Answer {
    pub fn code(&self) -> u64 {
        self.value["code"].as_u64().unwrap_or_default()
    }

    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.code())
    }

    pub fn json(&self) -> Option<&Value> {
        Some(&self.value["body"]).filter(|body| body.is_object())
    }

    pub fn new(code: u16, headers: &HeaderMap, body: &Value) -> Self {
        let text =
            |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let content_type = headers.get("content-type").map(text).unwrap_or_default();
        let value = json!({ "code": code, "contentType": content_type, "body": body });
        Self { value }
    }
}
