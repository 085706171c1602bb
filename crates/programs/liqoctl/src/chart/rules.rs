//! What the chart does before it renders anything: what it refuses, and keys of other versions.

use std::fmt::Write as _;

use crate::{
    manifests::NAMESPACE,
    preflight::POLICIES_SINCE,
    settings::table::{self, Class, Convert, Row, When},
};

/// The expression for a value that may be absent, as may be the maps around it.
pub fn value_of(key: &str) -> String {
    key.split('.')
        .fold(String::new(), |path, part| match path.as_str() {
            "" if part.contains('-') => format!("(index .Values {part:?})"),
            "" => format!(".Values.{part}"),
            path => format!("({path}).{part}"),
        })
}

/// The named templates `liqo.check`, which every file includes first, and `liqo.notes`.
pub fn template() -> String {
    let mut text = String::from("\n{{- define \"liqo.check\" -}}\n");
    for (condition, sentence) in requirements() {
        let _ = writeln!(
            text,
            "{{{{- if {condition} }}}}{{{{ fail {} }}}}{{{{ end }}}}",
            literal(&sentence)
        );
    }
    for row in table::keys_of_liqo() {
        let refused = refused(row).into_iter();
        text.extend(refused.chain(mapped(row)).map(|line| line + "\n"));
    }
    text += "{{- end }}\n\n{{- define \"liqo.notes\" -}}\n";
    for row in table::keys_of_liqo().filter(|row| !matches!(row.class, Class::Refused(_))) {
        let is_there = || format!("not (kindIs \"invalid\" {})", value_of(row.key));
        let condition = mapping(row).map_or_else(is_there, |(condition, _)| condition);
        let _ = writeln!(
            text,
            "{{{{- if {condition} }}}}\n- {}.\n{{{{- end }}}}",
            row.note()
        );
    }
    text + "{{- end }}\n"
}

/// When the chart fails, and with which sentence.
fn requirements() -> Vec<(String, String)> {
    vec![
        (
            format!("ne .Release.Namespace {NAMESPACE:?}"),
            format!(
                "Liqo runs in namespace {NAMESPACE}: policies, roles and peers know it by this name. Add --namespace {NAMESPACE} --create-namespace"
            ),
        ),
        (
            "not (or .Values.discovery.config.clusterName (.Values.discovery.config).clusterID)".to_owned(),
            "discovery.config.clusterName is empty: it is the name that peers see, for example --set discovery.config.clusterName=rome".to_owned(),
        ),
        (
            format!(
                "and .Values.admissionPolicies.enabled (semverCompare \"<1.{POLICIES_SINCE}.0-0\" .Capabilities.KubeVersion.Version)"
            ),
            format!(
                "Kubernetes before 1.{POLICIES_SINCE} has no ValidatingAdmissionPolicies: there, nothing limits Liqo's manager to Liqo's own namespaces. Accept it with --set admissionPolicies.enabled=false"
            ),
        ),
    ]
}

fn literal(sentence: &str) -> String {
    format!("{sentence:?}")
}

fn refused(row: &Row) -> Option<String> {
    let Class::Refused(when) = row.class else {
        return None;
    };
    let value = value_of(row.key);
    let condition = match when {
        When::False => format!("eq (toString {value}) \"false\""),
        When::Set => format!(
            "and (include \"liqo.sets\" (dict \"value\" {value})) (ne (toString {value}) \"false\")"
        ),
    };
    Some(format!(
        "{{{{- if {condition} }}}}{{{{ fail {} }}}}{{{{ end }}}}",
        literal(&row.note())
    ))
}

/// When the value of a mapped key counts, and what it is for its target.
fn mapping(row: &Row) -> Option<(String, String)> {
    let Class::Mapped(_, convert) = row.class else {
        return None;
    };
    let value = value_of(row.key);
    let sets = format!("include \"liqo.sets\" (dict \"value\" {value})");
    Some(match convert {
        Convert::Same => (sets, value),
        Convert::ToList => (sets, format!("(list {value})")),
        Convert::IfTrue => (format!("eq (toString {value}) \"true\""), "true".to_owned()),
        Convert::IfFalse(other) => (format!("eq (toString {value}) \"false\""), other.to_owned()),
    })
}

/// Sets the key of this version, if it has its default.
fn mapped(row: &Row) -> Option<String> {
    let Class::Mapped(target, _) = row.class else {
        return None;
    };
    let (condition, new) = mapping(row)?;
    let default = table::find(target)?.default;
    let (map, name) = target
        .rsplit_once('.')
        .map_or((".Values".to_owned(), target), |(map, name)| {
            (format!(".Values.{map}"), name)
        });
    Some(format!(
        "{{{{- if and ({condition}) (eq (toJson .Values.{target}) `{default}`) }}}}{{{{ $_ := set {map} {name:?} {new} }}}}{{{{ end }}}}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_may_be_absent_are_read_without_an_error() {
        assert_eq!(value_of("tag"), ".Values.tag");
        assert_eq!(value_of("ipam.podCIDR"), "(.Values.ipam).podCIDR");
        assert_eq!(
            value_of("gateway.config.portOverride"),
            "((.Values.gateway).config).portOverride"
        );
        assert_eq!(value_of("liqo-crds"), "(index .Values \"liqo-crds\")");
    }
}
