//! What kube-apiserver says about values that it refuses.

use serde_json::Value;

use crate::api_server::cause::{Cause, CauseKind};

impl CauseKind {
    /// Rules are not checked on an object with such a cause.
    pub fn hinders_rules(self) -> bool {
        !matches!(self, CauseKind::Invalid | CauseKind::Duplicate)
    }
}

impl Cause {
    /// Without a path it concerns the whole object.
    pub fn new(path: &str, kind: CauseKind, value: Option<&Value>, detail: &str) -> Self {
        let field = if path.is_empty() { "<nil>" } else { path };
        let mut message = kind.title().to_owned();
        for part in value
            .map(Value::to_string)
            .into_iter()
            .chain((!detail.is_empty()).then(|| detail.to_owned()))
        {
            message.push_str(": ");
            message.push_str(&part);
        }
        Cause {
            field: field.to_owned(),
            kind,
            message,
        }
    }
}
