//! Values files, as `helm` reads them: maps of YAML whose paths are the keys of the table.

use std::{fs, path::Path};

use serde_json::{Map, Value};

use super::{
    CLUSTER_NAME, FABRIC_IMAGE, IMAGE, SettingError, SettingInput,
    table::{self, SettingRow, ValueKind},
};

/// The values of a file, by their keys. Values that say nothing, such as `null`, are left out.
pub(super) fn read_values_file(
    file: &Path,
    origin: &str,
) -> Result<Vec<SettingInput>, SettingError> {
    let text = fs::read_to_string(file).map_err(|error| SettingError::File(error.to_string()))?;
    parse_values(&text, origin)
}

fn parse_values(text: &str, origin: &str) -> Result<Vec<SettingInput>, SettingError> {
    let value: Value =
        serde_saphyr::from_str(text).map_err(|error| SettingError::File(error.to_string()))?;
    let mut inputs = Vec::new();
    match &value {
        Value::Null => {}
        Value::Object(map) => collect_inputs("", map, origin, &mut inputs)?,
        _ => return Err(SettingError::File("it must be a map".to_owned())),
    }
    Ok(inputs)
}

fn collect_inputs(
    path: &str,
    map: &Map<String, Value>,
    origin: &str,
    inputs: &mut Vec<SettingInput>,
) -> Result<(), SettingError> {
    for (name, value) in map {
        let key = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        // Helm passes `global` to every chart, and what is in it may be for others.
        let is_for_others = path == "global" && table::find(&key).is_none();
        match value {
            _ if is_for_others => {}
            Value::Null if table::find(&key).is_some() || table::has_parts(&key) => {}
            Value::Object(inner) if table::has_parts(&key) => {
                collect_inputs(&key, inner, origin, inputs)?;
            }
            value => {
                let row = table::find(&key).ok_or_else(|| unknown_key_error(&key))?;
                let is_opaque = matches!(
                    row.kind,
                    ValueKind::Anything | ValueKind::Map | ValueKind::List
                ) || !row.is_for_install();
                let value = if is_opaque && !is_scalar_list(value) {
                    opaque_value_text(value)
                } else {
                    value_as_text(&key, value)?
                };
                if !(value.is_empty() && is_unset_when_empty(row)) {
                    inputs.push(SettingInput {
                        origin: origin.to_owned(),
                        key,
                        value,
                    });
                }
            }
        }
    }
    Ok(())
}

/// Whether an empty text is the default, and no value that could be set.
fn is_unset_when_empty(row: &SettingRow) -> bool {
    matches!(row.kind, ValueKind::OptionalInteger(..))
        || [CLUSTER_NAME, IMAGE, FABRIC_IMAGE].contains(&row.key)
}

fn unknown_key_error(key: &str) -> SettingError {
    let problem = "it must be a map of keys, not a value";
    if table::has_parts(key) {
        SettingError::Shape {
            key: key.to_owned(),
            problem,
        }
    } else {
        SettingError::Key {
            key: key.to_owned(),
        }
    }
}

fn is_scalar_list(value: &Value) -> bool {
    value.as_array().is_some_and(|items| {
        items
            .iter()
            .all(|item| !item.is_object() && !item.is_array())
    })
}

/// The value of a key that has no text form; empty if it sets nothing.
fn opaque_value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(_) => value.to_string(),
        other if sets_nothing(other) => String::new(),
        other => other.to_string(),
    }
}

fn sets_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) | Value::Number(_) => false,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.iter().all(sets_nothing),
        Value::Object(map) => map.values().all(sets_nothing),
    }
}

/// A value as `--set` takes it: `a,b` for a list, `a=b,c=d` for a map.
fn value_as_text(key: &str, value: &Value) -> Result<String, SettingError> {
    let problem = "it must be a text, a number, true or false, or a list or a map of these";
    let wrong = SettingError::Shape {
        key: key.to_owned(),
        problem,
    };
    match value {
        Value::Array(items) => {
            let items: Option<Vec<String>> = items.iter().map(scalar_as_text).collect();
            Ok(items.ok_or(wrong)?.join(","))
        }
        Value::Object(map) => {
            let pairs: Option<Vec<String>> = map
                .iter()
                .map(|(name, value)| Some(format!("{name}={}", scalar_as_text(value)?)))
                .collect();
            Ok(pairs.ok_or(wrong)?.join(","))
        }
        one => scalar_as_text(one).ok_or(wrong),
    }
}

fn scalar_as_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use crate::settings::{InstallSettings, InstallValues, InstalledState};

    use super::*;

    fn taken(text: &str) -> Result<InstallSettings, SettingError> {
        InstallSettings::from_inputs(
            parse_values(text, "rome.yaml:").map_err(|error| error.with_origin("rome.yaml:"))?,
        )
    }

    fn refused(text: &str) -> String {
        taken(text).unwrap_err().to_string()
    }

    #[test]
    fn a_file_sets_what_set_would() {
        let text = "discovery:\n  config: { clusterName: rome, clusterLabels: { region: eu } }\n  autoPeering: [LAN, DNS]\n\
                    network: { mtu: 1380, podCIDRs: [10.1.0.0/16], gateways: null }\ncontrollerManager: { image: example.org/m:7 }\n";
        let set = [
            "discovery.config.clusterName=rome",
            "discovery.config.clusterLabels=region=eu",
            "discovery.autoPeering=LAN,DNS",
            "network.mtu=1380",
            "network.podCIDRs=10.1.0.0/16",
            "controllerManager.image=example.org/m:7",
        ];
        assert_eq!(taken(text).unwrap(), InstallSettings::parse(&set).unwrap());
        assert_eq!(taken("# nothing\n").unwrap(), InstallSettings::default());
        let empty = "discovery: { config: { clusterName: '' } }\ncontrollerManager: { config: { offerUpdateThresholdPercentage: '' } }\n";
        assert_eq!(taken(empty).unwrap(), InstallSettings::default());
    }

    #[test]
    fn an_image_has_parts_and_a_digest_takes_the_place_of_a_tag() {
        let images = |text: &str| {
            let values =
                InstallValues::resolve(&taken(text).unwrap(), &InstalledState::default(), "x");
            (values.image, values.fabric_image)
        };
        let version = env!("CARGO_PKG_VERSION");
        let (manager, fabric) = images(
            "global: { imageRegistry: example.org, other: [1] }\nfabric: { image: { tag: 7, digest: '' } }\n",
        );
        assert_eq!(
            manager,
            format!("example.org/liqo/controller-manager:{version}")
        );
        assert_eq!(fabric, "example.org/liqo/fabric:7");
        let digest = "sha256:00";
        let (manager, _) = images(&format!(
            "controllerManager: {{ image: {{ registry: '', tag: x, digest: '{digest}' }} }}\n"
        ));
        assert_eq!(manager, format!("liqo/controller-manager@{digest}"));
    }

    #[test]
    fn a_typo_is_refused_with_the_file_the_key_and_the_nearest_one() {
        let text = refused("network: { mtuu: 1400 }");
        assert!(
            text.starts_with("rome.yaml: network.mtuu: unknown key; did you mean network.mtu?"),
            "{text}"
        );
        let text = refused("controllerManager: { tolerationz: [] }");
        assert!(
            text.contains("did you mean controllerManager.tolerations?"),
            "{text}"
        );
        assert!(refused("network: 7").contains("network: it must be a map of keys"));
        assert!(
            refused("network: { mtu: { a: b } }")
                .contains("network.mtu=a=b: it must be a whole number")
        );
        assert!(
            refused("network: { podCIDRs: [[1]] }").contains("network.podCIDRs: it must be a text")
        );
        assert!(refused("- a").contains("it must be a map"));
        assert!(
            InstallSettings::from_files_and_arguments::<&str>(
                &[PathBuf::from("/does/not/exist")],
                &[]
            )
            .unwrap_err()
            .to_string()
            .contains("/does/not/exist: ")
        );
    }

    #[test]
    fn keys_of_liqo_are_taken_over_noted_or_refused() {
        let settings = taken(
            "networkConfig: { mtu: 1340 }\nipam: { podCIDR: 10.1.0.0/16, externalCIDR: '' }\ntelemetry: { enabled: true, a: { b: 1 } }\n\
             discovery: { config: { incomingPeeringEnabled: false, enableDiscovery: false } }\nawsConfig: { region: '', useExistingSecret: false }\n\
             nameOverride: ''\nauth: { config: { enableAuthentication: true } }\ncontrollerManager: { tolerations: [{ key: a }] }\n",
        )
        .unwrap();
        let values = InstallValues::resolve(&settings, &InstalledState::default(), "x");
        assert_eq!(
            (
                values.network.mtu,
                values.network.pod_cidrs.len(),
                values.policy.provide.percentage
            ),
            (1340, 1, 0)
        );
        assert!(values.discovery.is_default());
        let notes = settings.notes.join("\n");
        for note in [
            "networkConfig.mtu is network.mtu here",
            "telemetry has no effect",
            "controllerManager.tolerations is a value of the Helm chart",
        ] {
            assert!(notes.contains(note), "{notes}");
        }
        assert!(!notes.contains("externalCIDR"), "{notes}");
        for (text, sentence) in [
            (
                "awsConfig: { region: eu }",
                "awsConfig: consumers get certificates",
            ),
            ("fullnameOverride: x", "refer to Liqo's objects by name"),
            (
                "auth: { config: { enableAuthentication: false } }",
                "always needs a token",
            ),
            (
                "openshiftConfig: { enabled: true }",
                "SecurityContextConstraints",
            ),
        ] {
            assert!(refused(text).contains(sentence), "{text}");
        }
    }

    #[test]
    fn a_keys_own_name_takes_precedence_over_its_other_name_and_set_over_files() {
        let settings = taken("network: { mtu: 1400 }\nnetworking: { mtu: 1300 }\n").unwrap();
        assert_eq!(
            InstallValues::resolve(&settings, &InstalledState::default(), "x")
                .network
                .mtu,
            1400
        );
    }
}
