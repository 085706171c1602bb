//! Reasons to refuse an object.

use std::fmt;

/// One entry of `status.details.causes`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cause {
    /// Such as `spec.containers[0].image`; `<nil>` for the whole object.
    pub field: String,
    pub kind: CauseKind,
    pub message: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CauseKind {
    Invalid,
    TypeInvalid,
    Required,
    NotSupported,
    NotFound,
    TooLong,
    TooMany,
    Duplicate,
    Forbidden,
}

impl CauseKind {
    /// The `reason` of a cause.
    pub fn reason(self) -> &'static str {
        match self {
            CauseKind::Invalid => "FieldValueInvalid",
            CauseKind::TypeInvalid => "FieldValueTypeInvalid",
            CauseKind::Required => "FieldValueRequired",
            CauseKind::NotSupported => "FieldValueNotSupported",
            CauseKind::NotFound => "FieldValueNotFound",
            CauseKind::TooLong => "FieldValueTooLong",
            CauseKind::TooMany => "FieldValueTooMany",
            CauseKind::Duplicate => "FieldValueDuplicate",
            CauseKind::Forbidden => "FieldValueForbidden",
        }
    }

    /// The beginning of a message.
    pub fn title(self) -> &'static str {
        match self {
            CauseKind::Invalid | CauseKind::TypeInvalid => "Invalid value",
            CauseKind::Required => "Required value",
            CauseKind::NotSupported => "Unsupported value",
            CauseKind::NotFound => "Not found",
            CauseKind::TooLong => "Too long",
            CauseKind::TooMany => "Too many",
            CauseKind::Duplicate => "Duplicate value",
            CauseKind::Forbidden => "Forbidden",
        }
    }
}

impl Cause {
    /// With a message that shows no value.
    pub fn plain(kind: CauseKind, field: impl Into<String>, detail: &str) -> Self {
        let title = kind.title();
        let message = if detail.is_empty() {
            title.to_owned()
        } else {
            format!("{title}: {detail}")
        };
        Self {
            field: field.into(),
            kind,
            message,
        }
    }

    pub fn invalid(field: impl Into<String>, detail: &str) -> Self {
        Self::plain(CauseKind::Invalid, field, detail)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.field, self.message)
    }
}
