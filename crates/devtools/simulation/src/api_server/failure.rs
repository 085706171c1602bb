//! What an API server answers when it refuses a request.

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::{
    cause::{Cause, CauseKind},
    kinds::Kind,
};

/// A refusal, as a `Status` says it. Clients read its code, its reason and its causes; most
/// messages are our own.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    pub code: StatusCode,
    pub reason: &'static str,
    pub message: String,
    details: Map<String, Value>,
}

impl Failure {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: Map::new(),
        }
    }

    /// A refusal about one object.
    fn about(code: StatusCode, reason: &'static str, kind: &Kind, name: &str, why: &str) -> Self {
        let quoted = if name.is_empty() {
            String::new()
        } else {
            format!(" \"{name}\"")
        };
        let group = if kind.group.is_empty() {
            String::new()
        } else {
            format!(".{}", kind.group)
        };
        let mut failure = Self::new(
            code,
            reason,
            format!("{}{group}{quoted} {why}", kind.plural),
        );
        if !name.is_empty() {
            failure.details.insert("name".to_owned(), json!(name));
        }
        if !kind.group.is_empty() {
            failure
                .details
                .insert("group".to_owned(), json!(kind.group));
        }
        failure
            .details
            .insert("kind".to_owned(), json!(kind.plural));
        failure
    }

    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code.as_u16(),
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if !self.details.is_empty() {
            status["details"] = json!(self.details);
        }
        status
    }

    pub fn not_found(kind: &Kind, name: &str) -> Self {
        Self::about(StatusCode::NOT_FOUND, "NotFound", kind, name, "not found")
    }

    pub fn no_such_resource() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            "the server could not find the requested resource",
        )
    }

    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    pub fn already_exists(kind: &Kind, name: &str, is_ending: bool) -> Self {
        let why = if is_ending {
            "already exists, and is being deleted"
        } else {
            "already exists"
        };
        Self::about(StatusCode::CONFLICT, "AlreadyExists", kind, name, why)
    }

    pub fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        Self::about(
            StatusCode::CONFLICT,
            "Conflict",
            kind,
            name,
            &format!("cannot be changed: {why}"),
        )
    }

    /// The object changed since the version that the request names.
    pub fn was_changed(kind: &Kind, name: &str) -> Self {
        Self::conflict(
            kind,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// Managers of fields that differ from what is applied, with the fields.
    pub fn apply_conflict(conflicts: &[(String, String)]) -> Self {
        let cause = |(manager, field): &(String, String)| json!({ "reason": "FieldManagerConflict", "message": format!("conflict with {manager}"), "field": field });
        let texts: Vec<String> = conflicts
            .iter()
            .map(|(manager, field)| format!("{manager} owns {field}"))
            .collect();
        let message = format!("Apply failed with conflicts: {}", texts.join(", "));
        Self::new(StatusCode::CONFLICT, "Conflict", message)
            .with_causes(&conflicts.iter().map(cause).collect::<Vec<_>>())
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub fn invalid(kind: &Kind, name: &str, causes: &[Cause]) -> Self {
        let texts: Vec<String> = causes.iter().map(ToString::to_string).collect();
        let why = format!("is invalid: {}", texts.join(", "));
        let mut failure = Self::about(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid",
            kind,
            name,
            &why,
        );
        failure.details.insert("kind".to_owned(), json!(kind.kind));
        failure.with_causes(&as_json(causes))
    }

    pub fn forbidden(kind: &Kind, name: &str, why: &str) -> Self {
        Self::about(
            StatusCode::FORBIDDEN,
            "Forbidden",
            kind,
            name,
            &format!("is forbidden: {why}"),
        )
    }

    /// The request names no path of this server.
    pub fn no_such_page() -> Self {
        Self::new(StatusCode::NOT_FOUND, "", "404 page not found\n")
    }

    pub fn is_page(&self) -> bool {
        self.code == StatusCode::NOT_FOUND && self.reason.is_empty()
    }

    /// An update that has to name a version names none.
    pub fn lacks_version(kind: &Kind, name: &str) -> Self {
        Self::invalid(
            kind,
            name,
            &[Cause::invalid(
                "metadata.resourceVersion",
                "must be specified for an update",
            )],
        )
    }

    pub fn expired(message: &str) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    pub fn unsupported_media_type() -> Self {
        let message = "the body of the request was in an unknown format";
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            message,
        )
    }

    pub fn too_many_requests(message: &str, retry_after_seconds: u32, causes: &[Value]) -> Self {
        let mut failure = Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
            .with_causes(causes);
        failure
            .details
            .insert("retryAfterSeconds".to_owned(), json!(retry_after_seconds));
        failure
    }

    /// The options of a request are wrong.
    pub fn invalid_options(causes: &[Cause]) -> Self {
        let texts: Vec<String> = causes.iter().map(ToString::to_string).collect();
        let message = format!(
            "the options of the request are invalid: {}",
            texts.join(", ")
        );
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
            .with_causes(&as_json(causes))
    }

    /// The patched object is no object of its kind.
    pub fn unfit_result(why: &str) -> Self {
        Self::invalid_options(&[Cause::plain(CauseKind::Invalid, "patch", why)])
    }

    /// A webhook refused the request, with this `Status`.
    pub fn denied(webhook: &str, status: &Value) -> Self {
        let why = status["message"].as_str().unwrap_or("without explanation");
        let code = status["code"]
            .as_u64()
            .and_then(|code| StatusCode::from_u16(code.try_into().ok()?).ok());
        let message = format!("admission webhook \"{webhook}\" denied the request: {why}");
        Self::new(code.unwrap_or(StatusCode::FORBIDDEN), "Forbidden", message)
    }

    /// A webhook that must answer does not.
    pub fn no_webhook(webhook: &str, why: &str) -> Self {
        let message =
            format!("Internal error occurred: failed calling webhook \"{webhook}\": {why}");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// An error without a reason.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    /// A JSON patch that cannot be applied.
    pub fn unfit_patch() -> Self {
        let message = "the server rejected our request due to an error in our request";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
    }

    pub fn with_causes(mut self, causes: &[Value]) -> Self {
        self.details.insert("causes".to_owned(), json!(causes));
        self
    }
}

fn as_json(causes: &[Cause]) -> Vec<Value> {
    let one = |cause: &Cause| json!({ "reason": cause.kind.reason(), "message": cause.message, "field": cause.field });
    causes.iter().map(one).collect()
}
