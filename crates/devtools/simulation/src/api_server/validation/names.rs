//! What names may look like, and the texts for those that don't: each function returns what is wrong.

const SUBDOMAIN: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const QUALIFIED: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

pub type Problems = Vec<String>;

fn too_long(value: &str, most: usize) -> Option<String> {
    (value.len() > most).then(|| format!("must be no more than {most} characters"))
}

fn explain(rule: &str, examples: &[&str], pattern: &str) -> String {
    let examples: Vec<_> = examples.iter().map(|example| format!("'{example}', ")).collect();
    format!("{rule} (e.g. {}regex used for validation is '{pattern}')", examples.join(" or "))
}

/// Whether a text is of one kind of characters and begins and ends with another.
fn is_shaped(value: &str, inner: fn(u8) -> bool, first: fn(u8) -> bool, last: fn(u8) -> bool) -> bool {
    let bytes = value.as_bytes();
    let (begin, end) = (bytes.first().copied(), bytes.last().copied());
    bytes.iter().all(|byte| inner(*byte)) && begin.is_some_and(first) && end.is_some_and(last)
}

fn lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn lower_or_dash(byte: u8) -> bool {
    lower(byte) || byte == b'-'
}

fn word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
}

fn word_or_sign(byte: u8) -> bool {
    word(byte) || b"-_.".contains(&byte)
}

fn is_label(value: &str) -> bool {
    is_shaped(value, lower_or_dash, lower, lower)
}

fn is_subdomain(value: &str) -> bool {
    value.split('.').all(is_label)
}

pub fn subdomain(value: &str) -> Problems {
    let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
                and must start and end with an alphanumeric character";
    let shape = (!is_subdomain(value)).then(|| explain(rule, &["example.com"], SUBDOMAIN));
    too_long(value, 253).into_iter().chain(shape).collect()
}

pub fn wildcard_subdomain(value: &str) -> Problems {
    let rule = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of \
                lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character";
    let pattern = format!("\\*\\.{SUBDOMAIN}");
    let shape = (!value.strip_prefix("*.").is_some_and(is_subdomain)).then(|| explain(rule, &["*.example.com"], &pattern));
    too_long(value, 253).into_iter().chain(shape).collect()
}

pub fn label(value: &str) -> Problems {
    let rule = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', \
                and must start and end with an alphanumeric character";
    let shape = match (is_label(value), is_subdomain(value)) {
        (true, _) => None,
        (_, true) => Some("must not contain dots".to_owned()),
        _ => Some(explain(rule, &["my-name", "123-abc"], LABEL)),
    };
    too_long(value, 63).into_iter().chain(shape).collect()
}

pub fn label_1035(value: &str) -> Problems {
    let rule = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', \
                start with an alphabetic character, and end with an alphanumeric character";
    let fits = is_shaped(value, lower_or_dash, |byte| byte.is_ascii_lowercase(), lower);
    let shape = (!fits).then(|| explain(rule, &["my-name", "abc-123"], "[a-z]([-a-z0-9]*[a-z0-9])?"));
    too_long(value, 63).into_iter().chain(shape).collect()
}

/// The key of a label, of an annotation in lower case, the name of a finalizer or of a resource.
pub fn qualified_name(value: &str) -> Problems {
    let rule = "must consist of alphanumeric characters, '-', '_' or '.', \
                and must start and end with an alphanumeric character";
    let shape = explain(rule, &["MyName", "my.name", "123-abc"], QUALIFIED);
    let parts: Vec<_> = value.split('/').collect();
    let (prefix, name) = match parts[..] {
        [name] => (None, name),
        [prefix, name] => (Some(prefix), name),
        _ => {
            return vec![format!(
                "a qualified name {shape} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    let mut problems: Problems = match prefix {
        Some("") => vec!["prefix part must be non-empty".to_owned()],
        Some(prefix) => subdomain(prefix).into_iter().map(|problem| format!("prefix part {problem}")).collect(),
        None => Vec::new(),
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    }
    problems.extend(too_long(name, 63).map(|problem| format!("name part {problem}")));
    if !is_shaped(name, word_or_sign, word, word) {
        problems.push(format!("name part {shape}"));
    }
    problems
}

pub fn label_value(value: &str) -> Problems {
    let rule = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
                and must start and end with an alphanumeric character";
    let fits = value.is_empty() || is_shaped(value, word_or_sign, word, word);
    let pattern = format!("({QUALIFIED})?");
    let shape = (!fits).then(|| explain(rule, &["MyValue", "my_value", "12345"], &pattern));
    too_long(value, 63).into_iter().chain(shape).collect()
}

/// A key of a config map or secret.
pub fn config_key(value: &str) -> Problems {
    let rule = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
    let fits = !value.is_empty() && value.bytes().all(word_or_sign);
    let shape = (!fits).then(|| explain(rule, &["key.name", "KEY_NAME", "key-name"], "[-._a-zA-Z0-9]+"));
    let parent = match value {
        "." => Some("must not be '.'"),
        ".." => Some("must not be '..'"),
        _ if value.starts_with("..") => Some("must not start with '..'"),
        _ => None,
    };
    too_long(value, 253).into_iter().chain(shape).chain(parent.map(str::to_owned)).collect()
}

/// The name of an environment variable.
pub fn variable(value: &str) -> Problems {
    let rule = "a valid environment variable name must consist only of printable ASCII characters other than '='";
    let empty = value.is_empty().then(|| "environment variable name must be non-empty".to_owned());
    let fits = value.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=');
    empty.into_iter().chain((!fits).then(|| rule.to_owned())).collect()
}

/// The name of a port of a container.
pub fn port_name(value: &str) -> Problems {
    let mut problems: Problems = too_long(value, 15).into_iter().collect();
    let rules = [
        (
            !value.is_empty() && value.bytes().all(lower_or_dash),
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
        ),
        (value.bytes().any(|byte| byte.is_ascii_lowercase()), "must contain at least one letter (a-z)"),
        (!value.contains("--"), "must not contain consecutive hyphens"),
        (!value.starts_with('-') && !value.ends_with('-'), "must not begin or end with a hyphen"),
    ];
    problems.extend(rules.iter().filter(|(holds, _)| !holds).map(|(_, problem)| (*problem).to_owned()));
    problems
}

/// A name in the path of a request.
pub fn path_segment(value: &str) -> Problems {
    if matches!(value, "." | "..") {
        return vec![format!("may not be '{value}'")];
    }
    ['/', '%'].iter().filter(|sign| value.contains(**sign)).map(|sign| format!("may not contain '{sign}'")).collect()
}

/// What a drawn suffix makes valid: a prefix may end with a dash.
pub fn mask_trailing_dash(prefix: &str) -> String {
    match prefix.len() {
        length if length > 1 && prefix.ends_with('-') && prefix.is_char_boundary(length - 2) => {
            format!("{}a", &prefix[..length - 2])
        }
        _ => prefix.to_owned(),
    }
}

/// The name of a header of HTTP.
pub fn header(value: &str) -> Problems {
    let fits = !value.is_empty() && value.bytes().all(|byte| word(byte) || byte == b'-');
    let rule = "a valid HTTP header must consist of alphanumeric characters or '-'";
    (!fits).then(|| explain(rule, &["X-Header-Name"], "[-A-Za-z0-9]+")).into_iter().collect()
}

/// A domain whose labels may have underscores.
pub fn relaxed_subdomain(value: &str) -> Problems {
    let label = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
    let fits = value.split('.').all(|part| {
        let rest = part.strip_prefix('_').unwrap_or(part);
        is_shaped(rest, |byte| lower_or_dash(byte) || byte == b'_', lower, lower)
    });
    let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', \
                and must start and end with an alphanumeric character";
    let shape = (!fits).then(|| explain(rule, &["example.com"], &format!("{label}(\\.{label})*")));
    too_long(value, 253).into_iter().chain(shape).collect()
}

/// A share such as `25%`.
pub fn percent(value: &str) -> Problems {
    let fits =
        value.strip_suffix('%').is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()));
    let rule = "a valid percent string must be a numeric string followed by an ending '%'";
    (!fits).then(|| explain(rule, &["1%", "93%"], "[0-9]+%")).into_iter().collect()
}
