//! What the chart does before it renders anything: what it refuses, and keys of other versions.

use std::fmt::Write as _;

use crate::{
    manifests::NAMESPACE,
    preflight::POLICIES_SINCE,
    settings::table::{self, RefusalCondition, SettingClass, SettingRow, ValueConversion},
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
pub fn rules_template() -> String {
    let mut text = String::from("\n{{- define \"liqo.check\" -}}\n");
    for ChartRequirement {
        broken_if,
        sentence,
    } in requirements()
    {
        let _ = writeln!(
            text,
            "{{{{- if {broken_if} }}}}{{{{ fail {} }}}}{{{{ end }}}}",
            literal(&sentence)
        );
    }
    for row in table::keys_of_liqo() {
        let refused = refusal_condition(row).into_iter();
        text.extend(refused.chain(mapping_template(row)).map(|line| line + "\n"));
    }
    text += "{{- end }}\n\n{{- define \"liqo.notes\" -}}\n";
    for row in table::keys_of_liqo().filter(|row| !matches!(row.class, SettingClass::Refused(_))) {
        let condition = mapped_value(row).map_or_else(
            || format!("not (kindIs \"invalid\" {})", value_of(row.key)),
            |mapped| mapped.condition,
        );
        let _ = writeln!(
            text,
            "{{{{- if {condition} }}}}\n- {}.\n{{{{- end }}}}",
            row.note_for_user()
        );
    }
    text + "{{- end }}\n"
}

struct ChartRequirement {
    /// The chart fails under this condition.
    broken_if: String,
    sentence: String,
}

fn requirements() -> Vec<ChartRequirement> {
    vec![
        ChartRequirement {
            broken_if: format!("ne .Release.Namespace {NAMESPACE:?}"),
            sentence: format!(
                "Liqo runs in namespace {NAMESPACE}: policies, roles and peers know it by this name. Add --namespace {NAMESPACE} --create-namespace"
            ),
        },
        ChartRequirement {
            broken_if: "not (or .Values.discovery.config.clusterName (.Values.discovery.config).clusterID)".to_owned(),
            sentence: "discovery.config.clusterName is empty: it is the name that peers see, for example --set discovery.config.clusterName=rome".to_owned(),
        },
        ChartRequirement {
            broken_if: format!(
                "and .Values.admissionPolicies.enabled (semverCompare \"<1.{POLICIES_SINCE}.0-0\" .Capabilities.KubeVersion.Version)"
            ),
            sentence: format!(
                "Kubernetes before 1.{POLICIES_SINCE} has no ValidatingAdmissionPolicies: there, nothing limits Liqo's manager to Liqo's own namespaces. Accept it with --set admissionPolicies.enabled=false"
            ),
        },
    ]
}

fn literal(sentence: &str) -> String {
    format!("{sentence:?}")
}

fn refusal_condition(row: &SettingRow) -> Option<String> {
    let SettingClass::Refused(when) = row.class else {
        return None;
    };
    let value = value_of(row.key);
    let condition = match when {
        RefusalCondition::False => format!("eq (toString {value}) \"false\""),
        RefusalCondition::Set => format!(
            "and (include \"liqo.sets\" (dict \"value\" {value})) (ne (toString {value}) \"false\")"
        ),
    };
    Some(format!(
        "{{{{- if {condition} }}}}{{{{ fail {} }}}}{{{{ end }}}}",
        literal(&row.note_for_user())
    ))
}

/// The value of a mapped key, as expressions of Helm.
struct MappedValue {
    /// When it counts.
    condition: String,
    /// Its form for the target.
    value: String,
}

fn mapped_value(row: &SettingRow) -> Option<MappedValue> {
    let SettingClass::Mapped(_, convert) = row.class else {
        return None;
    };
    let value = value_of(row.key);
    let sets = format!("include \"liqo.sets\" (dict \"value\" {value})");
    let (condition, value) = match convert {
        ValueConversion::Same => (sets, value),
        ValueConversion::ToList => (sets, format!("(list {value})")),
        ValueConversion::IfTrue => (format!("eq (toString {value}) \"true\""), "true".to_owned()),
        ValueConversion::IfFalse(other) => {
            (format!("eq (toString {value}) \"false\""), other.to_owned())
        }
    };
    Some(MappedValue { condition, value })
}

/// Sets the key of this version, if it has its default.
fn mapping_template(row: &SettingRow) -> Option<String> {
    let SettingClass::Mapped(target, _) = row.class else {
        return None;
    };
    let MappedValue { condition, value } = mapped_value(row)?;
    let default = table::find(target)?.default;
    let (map, name) = target
        .rsplit_once('.')
        .map_or((".Values".to_owned(), target), |(map, name)| {
            (format!(".Values.{map}"), name)
        });
    Some(format!(
        "{{{{- if and ({condition}) (eq (toJson .Values.{target}) `{default}`) }}}}{{{{ $_ := set {map} {name:?} {value} }}}}{{{{ end }}}}"
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
