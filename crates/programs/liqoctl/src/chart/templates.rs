//! The templates of the chart, one for each file of manifests.

use std::collections::BTreeMap;

use kube::{ResourceExt as _, api::DynamicObject};
use serde_json::{Map, Value, json};

use crate::{
    install::is_needed,
    manifests::{self, AUTO_PEERING, INSTALLED_BY, MANAGER, RESOLVER, is_admission_policy, kind},
    output,
    settings::{InstallSettings, InstallValues, InstalledState, table},
};

use super::{comment, slots::TemplateSlots};

/// The file with only the namespace of the release, which Helm creates.
const NAMESPACE_FILE: &str = "namespace.yaml";
/// Only the chart has it, if a value says so.
const NETWORK_POLICY: &str = include_str!("network-policy.yaml");
/// Sets whatever adds an object or a field.
const EVERYTHING: [&str; 14] = [
    "controllerManager.replicas=2",
    "controllerManager.config.resourcePluginAddress=plugin:1",
    "discovery.autoPeering=LAN",
    "discovery.lan.enabled=true",
    "discovery.lan.interfaces=eth0",
    "network.podCIDRs=10.0.0.0/8",
    "network.serviceCIDRs=10.0.0.0/8",
    "network.externalCIDRs=10.0.0.0/8",
    "network.reservedCIDRs=10.0.0.0/8",
    "network.peerCIDRs=10.0.0.0/8",
    "network.gateways.nodeSelector=a=b",
    "network.gateways.addresses=a:1",
    "network.gateways.tlsAddresses=a:1",
    "network.mtu=1400",
];
/// Empties all of that.
const NOTHING: [&str; 13] = [
    "controllerManager.replicas=1",
    "controllerManager.config.resourcePluginAddress=",
    "discovery.autoPeering=",
    "discovery.lan.enabled=true",
    "discovery.lan.interfaces=",
    "network.podCIDRs=",
    "network.serviceCIDRs=",
    "network.externalCIDRs=",
    "network.reservedCIDRs=",
    "network.peerCIDRs=",
    "network.gateways.nodeSelector=",
    "network.gateways.addresses=",
    "network.gateways.tlsAddresses=",
];
/// Objects that are there only with some values: a setting without them, and the condition for
/// them.
const CONDITIONS: [(&str, &str); 2] = [
    (
        "controllerManager.replicas=1",
        "gt (int .Values.controllerManager.replicas) 1",
    ),
    ("discovery.autoPeering=", ".Values.discovery.autoPeering"),
];
/// Lines of a map's entry, if the value is not empty.
const LABELS: &str = "{{- with .Values.extraLabels }}\n{{- toYaml . | nindent $I }}\n{{- end }}";
const ANNOTATIONS: &str =
    "{{- with .Values.extraAnnotations }}\nannotations:\n{{- toYaml . | nindent $N }}\n{{- end }}";
const SERVICE_ANNOTATIONS: &str = "{{- with merge (dict) .Values.authentication.service.annotations .Values.extraAnnotations }}\nannotations:\n\
                                   {{- toYaml . | nindent $N }}\n{{- end }}";
const NODE_PORT: &str = "{{- if ne (toString .Values.authentication.service.nodePort) \"\" }}\n\
                         nodePort: {{ int .Values.authentication.service.nodePort }}\n{{- end }}";
const AVOIDED: &str = "{{- range $key, $value := .Values.controllerManager.avoidNodes }}\n- key: {{ toJson $key }}\n  operator: NotIn\n  \
                       values: [{{ toJson $value }}]\n{{- end }}";
const PULL_SECRETS: &str = "{{- with .Values.imagePullSecrets }}\nimagePullSecrets:\n{{- range . }}\n\
                            - name: {{ if kindIs \"map\" . }}{{ toJson .name }}{{ else }}{{ toJson . }}{{ end }}\n{{- end }}\n{{- end }}";
const THRESHOLD: &str = "{{- if ne (toString .Values.controllerManager.config.offerUpdateThresholdPercentage) \"\" }}\n\
                         offerUpdateThresholdPercentage: {{ int .Values.controllerManager.config.offerUpdateThresholdPercentage }}\n{{- end }}";

/// A set of values, and what differs in it from another one.
struct ComparedValues {
    everything: InstallValues,
    nothing: InstallValues,
    defaults: InstallValues,
}

fn values_with_settings(settings: &[&str]) -> anyhow::Result<InstallValues> {
    Ok(InstallValues::resolve(
        &InstallSettings::parse(settings)?,
        &InstalledState::default(),
        "x",
    ))
}

/// The templates with objects, and those with parts of them: path and content.
pub fn template_files() -> anyhow::Result<BTreeMap<String, String>> {
    let renderings = ComparedValues {
        everything: values_with_settings(&EVERYTHING)?,
        nothing: values_with_settings(&NOTHING)?,
        defaults: values_with_settings(&[])?,
    };
    let without: Vec<(InstallValues, &str)> = CONDITIONS
        .iter()
        .map(|(setting, condition)| {
            Ok((
                values_with_settings(&[&EVERYTHING[..], &[*setting]].concat())?,
                *condition,
            ))
        })
        .collect::<anyhow::Result<_>>()?;
    let mut parts = comment();
    let mut files = BTreeMap::new();
    for (file, objects) in manifests::render_files(&renderings.everything)? {
        if file == NAMESPACE_FILE {
            continue;
        }
        let mut text = format!("{}{{{{- include \"liqo.check\" . }}}}\n", comment());
        for object in objects {
            let missing = without
                .iter()
                .find(|(values, _)| !is_needed(&object, values))
                .map(|(_, condition)| *condition);
            let condition = if is_admission_policy(&object) {
                Some(".Values.admissionPolicies.enabled")
            } else {
                missing
            };
            let document = format!(
                "---\n{}",
                object_template(&object, &renderings, &mut parts)?
            );
            text += &condition.map_or(document.clone(), |condition| {
                format!("{{{{- if {condition} }}}}\n{document}{{{{- end }}}}\n")
            });
        }
        files.insert(format!("templates/{file}"), text);
    }
    let policy: DynamicObject = serde_saphyr::from_str(NETWORK_POLICY)?;
    let policy = object_template(&policy, &renderings, &mut parts)?;
    let text = format!(
        "{}{{{{- include \"liqo.check\" . }}}}\n{{{{- if .Values.networkPolicies.enabled }}}}\n---\n{policy}{{{{- end }}}}\n",
        comment()
    );
    files.insert("templates/network-policy.yaml".into(), text);
    files.insert("templates/_parts.tpl".into(), parts);
    Ok(files)
}

/// One object. What several objects use, or what is compared with its default, goes to `parts`.
fn object_template(
    object: &DynamicObject,
    renderings: &ComparedValues,
    parts: &mut String,
) -> anyhow::Result<String> {
    let mut slots = TemplateSlots::default();
    let mut value = serde_json::to_value(object)?;
    value["metadata"]["labels"][INSTALLED_BY.0] = slots.slot_for_json(".Release.Service");
    slots.add_map_lines(&mut value["metadata"]["labels"], LABELS);
    let is_auth = kind(object) == "Service" && object.name_any() == liqo_api::AUTH_SERVICE;
    slots.add_map_lines(
        &mut value["metadata"],
        if is_auth {
            SERVICE_ANNOTATIONS
        } else {
            ANNOTATIONS
        },
    );
    match (kind(object), object.name_any().as_str()) {
        ("Service", _) if is_auth => {
            value["spec"]["type"] = slots.slot_for_json(".Values.authentication.service.type");
            slots.add_map_lines(&mut value["spec"]["ports"][0], NODE_PORT);
        }
        ("ClusterConfig", _) => {
            templatize_configuration(&mut value["spec"], renderings, &mut slots, parts)?;
        }
        ("PeeringPolicy", AUTO_PEERING) => {
            value["spec"]["peers"]["discoveredBy"] =
                slots.slot_for_json(".Values.discovery.autoPeering");
        }
        ("PeeringPolicy", _) => {
            templatize_default_policy(&mut value["spec"], renderings, &mut slots)?;
        }
        ("Deployment", MANAGER) => {
            templatize_workload("controllerManager", &mut value, &mut slots, parts)?;
        }
        ("Deployment", RESOLVER) => templatize_workload("dns", &mut value, &mut slots, parts)?,
        ("DaemonSet", _) => templatize_workload("fabric", &mut value, &mut slots, parts)?,
        _ => {}
    }
    if kind(object) == "Deployment" && object.name_any() == MANAGER {
        lease_seconds(&mut value, renderings, &mut slots)?;
    }
    Ok(slots.fill_tokens(&output::to_yaml(&value)?))
}

/// The default policy: with a plugin, or without.
fn templatize_default_policy(
    spec: &mut Value,
    renderings: &ComparedValues,
    slots: &mut TemplateSlots,
) -> anyhow::Result<()> {
    let without = json!(renderings.nothing.policy);
    let provide = &mut spec["provide"];
    provide["percentage"] = slots.slot_for_json(&manager_config("resourceSharingPercentage"));
    let plugin = &mut provide["source"]["plugin"];
    plugin["address"] = slots.slot_for_json(&manager_config("resourcePluginAddress"));
    plugin["generation"] = slots.slot_for_json(&format!(
        "upper {}",
        manager_config("resourcePluginGeneration")
    ));
    let source = provide
        .as_object_mut()
        .and_then(|provide| provide.remove("source"))
        .unwrap_or_default();
    let with = slots.fill_tokens(&serde_json::to_string(&source)?);
    let otherwise = without
        .pointer("/provide/source")
        .map(|source| format!("{{{{- else }}}}\nsource: {source}\n"))
        .unwrap_or_default();
    let address = manager_config("resourcePluginAddress");
    slots.add_map_lines(
        provide,
        &format!(
            "{{{{- if {address} }}}}\nsource: {}\n{otherwise}{{{{- end }}}}",
            with.trim_end()
        ),
    );
    slots.add_map_lines(provide, THRESHOLD);
    Ok(())
}

fn manager_config(key: &str) -> String {
    format!(".Values.controllerManager.config.{key}")
}

/// The spec of the `ClusterConfig`. Parts that have their defaults stay away, as with
/// `liqoctl install`.
fn templatize_configuration(
    spec: &mut Value,
    renderings: &ComparedValues,
    slots: &mut TemplateSlots,
    parts: &mut String,
) -> anyhow::Result<()> {
    *spec = json!({ "clusterName": slots.slot_for_json(".Values.discovery.config.clusterName") });
    for (part, full, empty, default) in [
        (
            "network",
            json!(renderings.everything.network),
            json!(renderings.nothing.network),
            json!(renderings.defaults.network),
        ),
        (
            "discovery",
            json!(renderings.everything.discovery),
            json!(renderings.nothing.discovery),
            json!(renderings.defaults.discovery),
        ),
    ] {
        let mut own = TemplateSlots::default();
        let text = own_part(part, full, &empty, &mut own)?;
        parts.push_str(&named_template(part, &text));
        let differs = format!("ne (include \"liqo.{part}\" . | fromYaml | toJson) `{default}`");
        slots.add_map_lines(
            spec,
            &format!("{{{{- if {differs} }}}}\n{part}:\n{{{{- include \"liqo.{part}\" . | nindent $N }}}}\n{{{{- end }}}}"),
        );
    }
    slots.add_map_lines(
        spec,
        "{{- with .Values.discovery.config.clusterLabels }}\nclusterLabels:\n{{- toYaml . | nindent $N }}\n{{- end }}",
    );
    slots.add_map_lines(
        spec,
        "{{- with .Values.apiServer }}\n{{- if or .address .ca }}\napiServer:\n{{- with .address }}\n  address: {{ include \"liqo.url\" . | toJson }}\n\
         {{- end }}\n{{- with .ca }}\n  ca: {{ toJson . }}\n{{- end }}\n{{- end }}\n{{- end }}",
    );
    slots.add_map_lines(
        spec,
        "{{- with .Values.authentication.address }}\nauthentication:\n  address: {{ include \"liqo.url\" . | toJson }}\n{{- end }}",
    );
    slots.add_map_lines(spec, "{{- if .Values.lendWithoutNetworkPolicies }}\nlendWithoutNetworkPolicies: true\n{{- end }}");
    let default = table::find("peering.credentialLifetimeSeconds").map_or("", |row| row.default);
    let lifetime = "int .Values.peering.credentialLifetimeSeconds";
    slots.add_map_lines(
        spec,
        &format!(
            "{{{{- if ne ({lifetime}) {default} }}}}\npeering:\n  credentialLifetimeSeconds: {{{{ {lifetime} }}}}\n{{{{- end }}}}"
        ),
    );
    Ok(())
}

fn named_template(name: &str, text: &str) -> String {
    format!("\n{{{{- define \"liqo.{name}\" -}}}}\n{text}{{{{- end }}}}\n")
}

fn own_part(
    part: &str,
    mut full: Value,
    empty: &Value,
    slots: &mut TemplateSlots,
) -> anyhow::Result<String> {
    templatize_matching_fields(part, &mut full, empty, slots);
    Ok(slots.fill_tokens(&output::to_yaml(&full)?))
}

/// Puts the values of the chart in the places of an object's fields, which have the same names.
/// Fields that `empty` does not have are left out while their values are empty.
fn templatize_matching_fields(
    path: &str,
    object: &mut Value,
    empty: &Value,
    slots: &mut TemplateSlots,
) {
    let fields: Vec<String> = object
        .as_object()
        .map(|fields| fields.keys().cloned().collect())
        .unwrap_or_default();
    for field in fields {
        let key = format!("{path}.{field}");
        if table::find(&key).is_none() {
            templatize_matching_fields(&key, &mut object[&field], &empty[&field], slots);
        } else if empty.get(&field).is_some() {
            object[&field] = slots.slot_for_json(&format!(".Values.{key}"));
        } else {
            object
                .as_object_mut()
                .and_then(|fields| fields.remove(&field));
            slots.add_map_lines(
                object,
                &format!(
                    "{{{{- with .Values.{key} }}}}\n{field}: {{{{ toJson . }}}}\n{{{{- end }}}}"
                ),
            );
        }
    }
}

/// The variable with the duration of the Lease: it depends on whether there are several replicas.
fn lease_seconds(
    value: &mut Value,
    renderings: &ComparedValues,
    slots: &mut TemplateSlots,
) -> anyhow::Result<()> {
    let files = manifests::render_files(&renderings.nothing)?;
    let alone = files
        .iter()
        .flat_map(|(_, objects)| objects)
        .find(|object| kind(object) == "Deployment" && object.name_any() == MANAGER)
        .map(|object| object.data.clone())
        .unwrap_or_default();
    let path = "/spec/template/spec/containers/0/env";
    let alone = alone
        .pointer(path)
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    for variable in value
        .pointer_mut(path)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let other = alone
            .iter()
            .find(|other| other["name"] == variable["name"])
            .map(|other| other["value"].clone());
        let Some(other) = other.filter(|other| *other != variable["value"]) else {
            continue;
        };
        let condition = CONDITIONS[0].1;
        variable["value"] = slots.slot_for_json(&format!(
            "ternary {} {other} ({condition})",
            variable["value"]
        ));
    }
    Ok(())
}

/// A Deployment or a `DaemonSet`: its image, where it runs, and with which resources.
fn templatize_workload(
    component: &str,
    value: &mut Value,
    slots: &mut TemplateSlots,
    parts: &mut String,
) -> anyhow::Result<()> {
    if value["kind"] == "Deployment" {
        value["spec"]["replicas"] = slots.slot_for_json(".Values.controllerManager.replicas");
    }
    let template = &mut value["spec"]["template"];
    let (labels, annotations) = (
        value_of_component(component, "podLabels"),
        value_of_component(component, "podAnnotations"),
    );
    let ours = template["metadata"]["labels"]
        .as_object()
        .map(keys)
        .unwrap_or_default();
    slots.add_map_lines(
        &mut template["metadata"]["labels"],
        &format!(
            "{{{{- with omit {labels} {ours} }}}}\n{{{{- toYaml . | nindent $I }}}}\n{{{{- end }}}}"
        ),
    );
    slots.add_map_lines(
        &mut template["metadata"],
        &format!("{{{{- with {annotations} }}}}\nannotations:\n{{{{- toYaml . | nindent $N }}}}\n{{{{- end }}}}"),
    );
    let pod = &mut template["spec"];
    pod["priorityClassName"] =
        slots.slot_for_json(&value_of_component(component, "priorityClassName"));
    slots.add_map_lines(pod, PULL_SECRETS);
    slots.add_map_lines(
        pod,
        &format!(
            "{{{{- with {} }}}}\nnodeSelector:\n{{{{- toYaml . | nindent $N }}}}\n{{{{- end }}}}",
            chosen_value(component, "nodeSelector")
        ),
    );
    let tolerations = format!(
        "{{{{- with default .Values.common.tolerations {} }}}}\n",
        value_of_component(component, "tolerations")
    );
    if pod["tolerations"].is_array() {
        slots.add_list_lines(
            &mut pod["tolerations"],
            &format!("{tolerations}{{{{- toYaml . | nindent $I }}}}\n{{{{- end }}}}"),
        );
    } else {
        slots.add_map_lines(
            pod,
            &format!("{tolerations}tolerations:\n{{{{- toYaml . | nindent $I }}}}\n{{{{- end }}}}"),
        );
    }
    templatize_affinity(
        component,
        pod,
        &chosen_value(component, "affinity"),
        slots,
        parts,
    )?;
    let volumes = pod
        .get_mut("volumes")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten();
    for volume in volumes.filter(|volume| volume["name"] == manifests::KEYS) {
        volume["hostPath"]["path"] = slots.slot_for_json(".Values.fabric.keyDirectory");
    }
    let image = if component == "fabric" {
        "fabric"
    } else {
        "controllerManager"
    };
    let container = &mut pod["containers"][0];
    container["image"] = slots.slot_for_json(&format!(
        "include \"liqo.image\" (dict \"image\" .Values.{image}.image \"root\" .)"
    ));
    container["imagePullPolicy"] = slots.slot_for_json(".Values.imagePullPolicy");
    slots.add_list_lines(
        &mut container["env"],
        &format!(
            "{{{{- with {} }}}}\n{{{{- toYaml . | nindent $I }}}}\n{{{{- end }}}}",
            value_of_component(component, "extraEnv")
        ),
    );
    container
        .as_object_mut()
        .and_then(|container| container.remove("resources"));
    slots.add_map_lines(
        container,
        &format!(
            "{{{{- with {} }}}}\nresources:\n{{{{- toYaml . | nindent $N }}}}\n{{{{- end }}}}",
            value_of_component(component, "resources")
        ),
    );
    Ok(())
}

fn value_of_component(component: &str, key: &str) -> String {
    format!(".Values.{component}.{key}")
}

/// The fabric must run wherever pods talk to peers, so the common selector is not for it.
fn chosen_value(component: &str, key: &str) -> String {
    let own = value_of_component(component, key);
    if component == "fabric" {
        own
    } else {
        format!("(default .Values.common.{key} {own})")
    }
}

fn keys(map: &Map<String, Value>) -> String {
    map.keys()
        .map(|key| format!("{key:?}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Liqo's own affinity becomes a named template, to which `liqo.affinity` adds the one that a user
/// chose.
fn templatize_affinity(
    component: &str,
    pod: &mut Value,
    chosen: &str,
    slots: &mut TemplateSlots,
    parts: &mut String,
) -> anyhow::Result<()> {
    let mut affinity = pod
        .as_object_mut()
        .and_then(|pod| pod.remove("affinity"))
        .unwrap_or_default();
    let mut own = TemplateSlots::default();
    let expressions =
        manifests::NODE_EXPRESSIONS.trim_start_matches("/spec/template/spec/affinity");
    if let Some(expressions) = affinity.pointer_mut(expressions) {
        own.add_list_lines(expressions, AVOIDED);
    }
    let text = own.fill_tokens(&output::to_yaml(&affinity)?);
    parts.push_str(&named_template(&format!("affinity.{component}"), &text));
    let both =
        format!("dict \"own\" (include \"liqo.affinity.{component}\" .) \"chosen\" {chosen}");
    slots.add_map_lines(
        pod,
        &format!("affinity:\n{{{{- include \"liqo.affinity\" ({both}) | nindent $N }}}}"),
    );
    Ok(())
}
