//! What names look like.

/// The form of a name.
#[derive(Clone, Copy)]
pub struct NameRule {
    is_valid: fn(&str) -> bool,
    max_len: usize,
    pub text: &'static str,
}

impl NameRule {
    pub fn fits(self, name: &str) -> bool {
        name.len() <= self.max_len && (self.is_valid)(name)
    }
}

pub const SUBDOMAIN: NameRule = NameRule {
    is_valid: is_subdomain,
    max_len: 253,
    text: "must be a lowercase DNS subdomain",
};
pub const LABEL: NameRule = NameRule {
    is_valid: is_label,
    max_len: 63,
    text: "must be a lowercase DNS label",
};
pub const SERVICE: NameRule = NameRule {
    is_valid: is_service,
    max_len: 63,
    text: "must be a lowercase DNS label that begins with a letter",
};
/// A name in the path of a request.
pub const PATH_SEGMENT: NameRule = NameRule {
    is_valid: is_path_segment,
    max_len: usize::MAX,
    text: "must be one step of a path",
};
/// The key of a label, or the name of a finalizer.
pub const QUALIFIED: NameRule = NameRule {
    is_valid: is_qualified,
    max_len: usize::MAX,
    text: "must be a name, with an optional domain before it",
};
pub const ANNOTATION: NameRule = NameRule {
    is_valid: |key| is_qualified(&key.to_lowercase()),
    ..QUALIFIED
};
pub const LABEL_VALUE: NameRule = NameRule {
    is_valid: |value| value.is_empty() || is_word(value),
    max_len: 63,
    text: "must be empty or the value of a label",
};
/// A key of a config map or secret.
pub const CONFIG_KEY: NameRule = NameRule {
    is_valid: is_config_key,
    max_len: 253,
    text: "must be a valid key",
};

/// Whether a text has only these characters, and begins and ends with those.
fn is_shaped(
    text: &str,
    inside: fn(u8) -> bool,
    first: fn(u8) -> bool,
    last: fn(u8) -> bool,
) -> bool {
    let bytes = text.as_bytes();
    let ends = bytes.first().is_some_and(|byte| first(*byte))
        && bytes.last().is_some_and(|byte| last(*byte));
    ends && bytes.iter().all(|byte| inside(*byte))
}

fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn is_lower_or_dash(byte: u8) -> bool {
    is_lower(byte) || byte == b'-'
}

fn is_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
}

fn is_word_character(byte: u8) -> bool {
    is_alphanumeric(byte) || b"-_.".contains(&byte)
}

fn is_label(name: &str) -> bool {
    is_shaped(name, is_lower_or_dash, is_lower, is_lower)
}

fn is_service(name: &str) -> bool {
    is_shaped(
        name,
        is_lower_or_dash,
        |byte| byte.is_ascii_lowercase(),
        is_lower,
    )
}

fn is_subdomain(name: &str) -> bool {
    name.split('.').all(is_label)
}

fn is_word(name: &str) -> bool {
    is_shaped(name, is_word_character, is_alphanumeric, is_alphanumeric)
}

fn is_qualified(name: &str) -> bool {
    let (domain, name) = name
        .split_once('/')
        .map_or((None, name), |(domain, name)| (Some(domain), name));
    domain.is_none_or(|domain| SUBDOMAIN.fits(domain)) && name.len() <= 63 && is_word(name)
}

fn is_config_key(key: &str) -> bool {
    !key.is_empty() && key != "." && !key.starts_with("..") && key.bytes().all(is_word_character)
}

fn is_path_segment(name: &str) -> bool {
    !matches!(name, "." | "..") && !name.contains(['/', '%'])
}

/// A name with this prefix, which may end with a dash: characters follow it.
pub fn generated(prefix: &str) -> String {
    match prefix.len() {
        length if length > 1 && prefix.ends_with('-') && prefix.is_char_boundary(length - 2) => {
            format!("{}a", &prefix[..length - 2])
        }
        _ => prefix.to_owned(),
    }
}
