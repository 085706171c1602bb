//! Rules for names in Kubernetes. Names that a peer gives become parts of request paths here, so
//! they are checked first.

/// Maximum length of a DNS subdomain.
pub(crate) const MAX_SUBDOMAIN_LEN: usize = 253;

/// Whether this is a DNS label, as the name of a namespace must be (RFC 1123).
pub(crate) fn is_label(name: &str) -> bool {
    name.len() <= 63 && is_label_of_any_length(name)
}

/// Whether this is a DNS subdomain, as the names of most objects must be: labels with dots between
/// them, at most 253 characters; a label may be longer than 63 here, as in Kubernetes.
pub(crate) fn is_subdomain(name: &str) -> bool {
    name.len() <= MAX_SUBDOMAIN_LEN && name.split('.').all(is_label_of_any_length)
}

fn is_label_of_any_length(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Whether this is a name that DNS can answer: labels of at most 63 characters, together at most
/// 253.
pub(crate) fn is_dns_name(name: &str) -> bool {
    is_subdomain(name) && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_out_of_its_path() {
        for name in [
            "", ".", "..", "../x", "a/b", "a%2fb", "a?b", "a b", "A", "-a", "a-", "a..b", ".a",
            "a\n",
        ] {
            assert!(!is_label(name) && !is_subdomain(name), "{name:?}");
        }
        assert!(
            is_label("demo-1")
                && is_subdomain("demo-1")
                && is_subdomain("kube-root-ca.crt")
                && !is_label("kube-root-ca.crt")
        );
        let long = [&"a".repeat(63), "b"].join(".");
        assert!(
            is_dns_name(&long)
                && !is_dns_name(&"a".repeat(64))
                && !is_dns_name("")
                && !is_dns_name("a.b.")
        );
        assert!(
            !is_label(&"a".repeat(64))
                && is_subdomain(&"a".repeat(253))
                && !is_subdomain(&"a".repeat(254))
        );
    }
}
