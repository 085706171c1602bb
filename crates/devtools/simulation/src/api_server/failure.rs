//! What an API server answers when it refuses a request.

use http::StatusCode;
use serde_json::{Value, json};

use super::kinds::Kind;

/// A refusal, as a `Status` says it.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    pub code: StatusCode,
    pub reason: &'static str,
    pub message: String,
    pub details: Option<Value>,
}

impl Failure {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>, details: Option<Value>) -> Self {
        Self { code, reason, message: message.into(), details }
    }

    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        status["code"] = json!(self.code.as_u16());
        status
    }

    pub fn not_found(kind: &Kind, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", kind.requested_resource());
        let mut about = details(kind, name);
        if kind.is_converted() {
            about["group"] = json!(kind.group);
        }
        Self::new(StatusCode::NOT_FOUND, "NotFound", message, Some(about))
    }

    pub fn no_such_resource() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(StatusCode::NOT_FOUND, "NotFound", message, Some(json!({})))
    }

    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized", None)
    }

    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message, Some(json!({})))
    }

    pub fn already_exists(kind: &Kind, name: &str, is_ending: bool) -> Self {
        let ending = if is_ending { "object is being deleted: " } else { "" };
        let message = format!("{ending}{} \"{name}\" already exists", kind.requested_resource());
        let mut about = details(kind, name);
        if kind.is_converted() {
            about["group"] = json!(kind.group);
        }
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message, Some(about))
    }

    /// A precondition of a deletion does not hold. The kind stands where a resource is expected, as in a real API server.
    pub fn precondition(kind: &Kind, name: &str, why: &str) -> Self {
        let mut failure = Self::conflict(kind, name, "");
        failure.message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.qualified_kind());
        if let Some(details) = &mut failure.details {
            details["kind"] = json!(kind.kind);
        }
        failure
    }

    pub fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.resource());
        Self::new(StatusCode::CONFLICT, "Conflict", message, Some(details(kind, name)))
    }

    /// The object changed since the version that the request names.
    pub fn was_changed(kind: &Kind, name: &str) -> Self {
        Self::conflict(kind, name, "the object has been modified; please apply your changes to the latest version and try again")
    }

    /// Managers of fields that differ from what is applied, with the fields.
    pub fn apply_conflict(conflicts: &[(String, String)]) -> Self {
        let cause = |(manager, field): &(String, String)| json!({ "reason": "FieldManagerConflict", "message": format!("conflict with {manager}"), "field": field });
        let causes: Vec<Value> = conflicts.iter().map(cause).collect();
        let number = conflicts.len();
        let message = if let [(manager, field)] = conflicts {
            format!("Apply failed with 1 conflict: conflict with {manager}: {field}")
        } else {
            let mut managers: Vec<&str> = conflicts.iter().map(|(manager, _)| manager.as_str()).collect();
            managers.dedup();
            let part = |manager: &&str| {
                let fields = conflicts.iter().filter(|(of, _)| of == manager).map(|(_, field)| format!("- {field}"));
                format!("conflicts with {manager}:\n{}", fields.collect::<Vec<_>>().join("\n"))
            };
            let parts: Vec<String> = managers.iter().map(part).collect();
            format!("Apply failed with {number} conflicts: {}", parts.join("\n"))
        };
        Self::new(StatusCode::CONFLICT, "Conflict", message, Some(json!({ "causes": causes })))
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message, None)
    }

    /// Fields with the reason, the message of the field, and the field.
    pub fn invalid(kind: &Kind, name: &str, causes: &[(&'static str, String, String)]) -> Self {
        let texts: Vec<String> = causes
            .iter()
            .map(|(_, message, field)| if field.is_empty() { message.clone() } else { format!("{field}: {message}") })
            .collect();
        let mut known = std::collections::BTreeSet::new();
        let texts: Vec<String> = texts.into_iter().filter(|text| known.insert(text.clone())).collect();
        let all = if let [one] = texts.as_slice() { one.clone() } else { format!("[{}]", texts.join(", ")) };
        let message = format!("{} \"{name}\" is invalid: {all}", kind.qualified_kind());
        let causes: Vec<Value> = causes
            .iter()
            .map(|(reason, message, field)| json!({ "reason": reason, "message": message, "field": field }))
            .collect();
        let mut about = json!({});
        if !name.is_empty() {
            about["name"] = json!(name);
        }
        if !kind.home_group().is_empty() {
            about["group"] = json!(kind.home_group());
        }
        about["kind"] = json!(kind.kind);
        about["causes"] = json!(causes);
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message, Some(about))
    }

    pub fn forbidden(kind: &Kind, name: &str, why: &str) -> Self {
        let name_part = if name.is_empty() { String::new() } else { format!(" \"{name}\"") };
        let message = format!("{}{name_part} is forbidden: {why}", kind.resource());
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message, Some(details(kind, name)))
    }

    /// A user has no right to do this. Nothing is converted yet, so the resource is that of the request.
    pub fn no_right(kind: &Kind, name: &str, why: &str) -> Self {
        let mut failure = Self::forbidden(kind, name, why);
        if kind.is_converted() {
            failure.message = failure.message.replacen(&kind.plural, &kind.requested_resource(), 1);
            failure.details.get_or_insert_with(|| json!({}))["group"] = json!(kind.group);
        }
        failure
    }

    /// The request names no path of this server.
    pub fn no_such_page() -> Self {
        Self::new(StatusCode::NOT_FOUND, "", "404 page not found\n", None)
    }

    pub fn is_page(&self) -> bool {
        self.code == StatusCode::NOT_FOUND && self.reason.is_empty()
    }

    /// An update that has to name a version names none.
    pub fn lacks_version(kind: &Kind, name: &str) -> Self {
        let field = "metadata.resourceVersion";
        let message = "Invalid value: 0: must be specified for an update".to_owned();
        let mut failure = Self::invalid(kind, name, &[("FieldValueInvalid", message, field.to_owned())]);
        // The resource stands where a kind is expected, as in a real API server.
        failure.message = failure.message.replacen(&kind.qualified_kind(), &kind.resource(), 1);
        failure.details.get_or_insert_with(|| json!({}))["kind"] = json!(kind.plural);
        failure
    }

    /// Something that is not stored is invalid. The message names no kind if the real one does not.
    pub fn invalid_review(kind: &str, group: &str, cause: (&'static str, String, String)) -> Self {
        let (reason, message, field) = cause;
        let text = format!("{kind}.{group} \"\" is invalid: {field}: {message}");
        let mut about = json!({ "group": group });
        if !kind.is_empty() {
            about["kind"] = json!(kind);
        }
        about["causes"] = json!([{ "reason": reason, "message": message, "field": field }]);
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", text, Some(about))
    }

    /// No format that the request accepts is one of the server's.
    pub fn not_acceptable(is_custom: bool) -> Self {
        let formats = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
        let (message, about) = if is_custom {
            (format!("only the following media types are accepted: {formats}"), None)
        } else {
            (format!("406: Not Acceptable\n\nAvailable representations: {formats}"), Some(json!({})))
        };
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message, about)
    }

    pub fn expired(message: &str) -> Self {
        Self::new(StatusCode::GONE, "Expired", message, None)
    }

    pub fn unsupported_media_type(accepted: &str) -> Self {
        let message = format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message, None)
    }

    /// A kind of Kubernetes has no such patches.
    pub fn unsupported_patch() -> Self {
        let (reason, message) = ("UnsupportedMediaType", "415: Unsupported Media Type");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, reason, message, Some(json!({})))
    }

    pub fn too_many_requests(message: &str, retry_after_seconds: u32, causes: &Value) -> Self {
        let details = json!({ "causes": causes, "retryAfterSeconds": retry_after_seconds });
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message, Some(details))
    }

    /// The options of a request are wrong: fields, each with its reason.
    pub fn invalid_options(kind: &str, causes: &[String]) -> Self {
        let of_field = |cause: &String| {
            let (field, message) = cause.split_once(": ").unwrap_or_default();
            let reason = match message.split(':').next() {
                Some("Forbidden") => "FieldValueForbidden",
                Some("Required value") => "FieldValueRequired",
                Some("Unsupported value") => "FieldValueNotSupported",
                _ => "FieldValueInvalid",
            };
            json!({ "reason": reason, "message": message, "field": field })
        };
        let all = match causes {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let causes: Vec<Value> = causes.iter().map(of_field).collect();
        let about = json!({ "group": "meta.k8s.io", "kind": kind, "causes": causes });
        let text = format!("{kind}.meta.k8s.io \"\" is invalid: {all}");
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", text, Some(about))
    }

    /// What a patch makes of an object is no object of its kind. `patched` is the result, or the patch.
    pub fn unfit_result(patched: &str, why: &str) -> Self {
        let message = format!("Invalid value: {patched:?}: {why}");
        let text = format!(" \"\" is invalid: patch: {message}");
        let causes = json!([{ "reason": "FieldValueInvalid", "message": message, "field": "patch" }]);
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", text, Some(json!({ "causes": causes })))
    }

    /// An error without a reason.
    /// A webhook refused the request, with this `Status`.
    pub fn denied(webhook: &str, status: &Value) -> Self {
        let why = status["message"].as_str().unwrap_or("without explanation");
        let code = status["code"].as_u64().and_then(|code| StatusCode::from_u16(code.try_into().ok()?).ok());
        let message = format!("admission webhook \"{webhook}\" denied the request: {why}");
        Self::new(code.unwrap_or(StatusCode::FORBIDDEN), "Forbidden", message, None)
    }

    /// A webhook that must answer does not.
    pub fn no_webhook(webhook: &str, why: &str) -> Self {
        let message = format!("Internal error occurred: failed calling webhook \"{webhook}\": {why}");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message, None)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message, None)
    }

    /// A JSON patch that cannot be applied.
    pub fn unfit_patch() -> Self {
        let message = "the server rejected our request due to an error in our request";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message, Some(json!({})))
    }

    /// The same message, as an error of the server.
    pub fn into_internal(self) -> Self {
        Self::internal(self.message)
    }

    pub fn with_causes(mut self, causes: Value) -> Self {
        self.details.get_or_insert_with(|| json!({}))["causes"] = causes;
        self
    }
}

fn details(kind: &Kind, name: &str) -> Value {
    let mut about = json!({});
    if !name.is_empty() {
        about["name"] = json!(name);
    }
    if !kind.home_group().is_empty() {
        about["group"] = json!(kind.home_group());
    }
    about["kind"] = json!(kind.plural);
    about
}
