//! How an API server calls a webhook: whoever makes the API server says it, because it depends on
//! the network.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

/// A call to one webhook.
#[derive(Debug, Clone, PartialEq)]
pub struct WebhookCall {
    pub namespace: String,
    pub service: String,
    pub port: u16,
    pub path: String,
    /// The CA of its certificate, as PEM.
    pub ca: String,
    /// An `AdmissionReview`.
    pub review: Value,
}

/// Calls webhooks. The answer is an `AdmissionReview`, or why there is none.
pub type Webhooks =
    Arc<dyn Fn(WebhookCall) -> BoxFuture<'static, Result<Value, String>> + Send + Sync>;
