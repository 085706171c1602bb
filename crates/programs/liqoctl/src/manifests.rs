//! The objects of an installation: the files of `deploy/liqo`, which this program contains, with
//! the settings filled in.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{NodeSelectorTerm, PodSpec},
};
use kube::{ResourceExt as _, api::DynamicObject};
use liqo_api::{NetworkSettings, isolation::LEND_WITHOUT_NETWORK_POLICIES};
use liqo_controller_runtime::leader::LeaseTiming;
use serde_json::{Value, json};

use crate::settings::{InstallSettings, InstallValues, InstalledState};

/// On every object that `liqoctl install` creates; `uninstall` selects by it.
pub const INSTALLED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "liqoctl");

/// Namespace that Liqo runs in.
pub use liqo_api::SYSTEM_NAMESPACE as NAMESPACE;

/// Name of the Deployment, its `ServiceAccount` and its roles.
pub const MANAGER: &str = liqo_api::CONTROLLER_MANAGER;

/// Prints the log of the manager that leads; the others only wait and serve the webhook.
pub const LEADER_LOG: &str = "kubectl -n liqo logs -l liqo.io/leader=true --tail=1000";

/// Prints the logs of all replicas of the manager.
pub const MANAGER_LOGS: &str =
    "kubectl -n liqo logs -l app.kubernetes.io/name=liqo-controller-manager --prefix --tail=1000";
/// Name of the Deployment, the Service and the account of the resolver for remote pods.
pub use liqo_api::RESOLVER;

/// Name of the `DaemonSet` of the agent on each node, its `ServiceAccount` and its roles.
pub const FABRIC: &str = "liqo-fabric";

/// Name of the policy for peers with which peerings are automatic.
pub const AUTO_PEERING: &str = "auto-peering";

/// Namespace of the agent on each node.
pub use liqo_api::FABRIC_NAMESPACE;

const FILES: [(&str, &str); 16] = [
    (
        "namespace.yaml",
        include_str!("../../../../deploy/liqo/namespace.yaml"),
    ),
    (
        "rbac-bound.yaml",
        include_str!("../../../../deploy/liqo/rbac-bound.yaml"),
    ),
    (
        "rbac-manager.yaml",
        include_str!("../../../../deploy/liqo/rbac-manager.yaml"),
    ),
    (
        "rbac-fabric.yaml",
        include_str!("../../../../deploy/liqo/rbac-fabric.yaml"),
    ),
    (
        "rbac-users.yaml",
        include_str!("../../../../deploy/liqo/rbac-users.yaml"),
    ),
    (
        "admission-policies.yaml",
        include_str!("../../../../deploy/liqo/admission-policies.yaml"),
    ),
    (
        "flow-control.yaml",
        include_str!("../../../../deploy/liqo/flow-control.yaml"),
    ),
    (
        "services.yaml",
        include_str!("../../../../deploy/liqo/services.yaml"),
    ),
    (
        "webhook.yaml",
        include_str!("../../../../deploy/liqo/webhook.yaml"),
    ),
    (
        "clusterconfig.yaml",
        include_str!("../../../../deploy/liqo/clusterconfig.yaml"),
    ),
    (
        "discovery.yaml",
        include_str!("../../../../deploy/liqo/discovery.yaml"),
    ),
    (
        "policy.yaml",
        include_str!("../../../../deploy/liqo/policy.yaml"),
    ),
    (
        "fabric.yaml",
        include_str!("../../../../deploy/liqo/fabric.yaml"),
    ),
    (
        "disruption-budget.yaml",
        include_str!("../../../../deploy/liqo/disruption-budget.yaml"),
    ),
    ("dns.yaml", include_str!("../../../../deploy/liqo/dns.yaml")),
    (
        "deployment.yaml",
        include_str!("../../../../deploy/liqo/deployment.yaml"),
    ),
];

/// A file that this program contains is not valid.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("deploy/liqo/{file} in this program is not valid: {reason}")]
    File { file: &'static str, reason: String },
    /// A custom resource definition cannot be converted to JSON.
    #[error("the definition of a kind in this program is not valid: {0}")]
    Definition(#[source] serde_json::Error),
}

/// JSON pointer to the node affinity of Liqo's pods, in the Deployment and in the `DaemonSet`.
pub(crate) const NODE_EXPRESSIONS: &str = "/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchExpressions";

/// The volume of the `DaemonSet` for the keys of gateways.
pub(crate) const KEYS: &str = "keys";

/// The labels of the nodes that an installed manager avoids, in addition to virtual nodes.
pub fn avoided_nodes(deployment: &Deployment) -> BTreeMap<String, String> {
    required_node_term(deployment)
        .and_then(|term| term.match_expressions.as_ref())
        .into_iter()
        .flatten()
        .filter(|one| one.operator == "NotIn" && one.key != liqo_api::labels::TYPE)
        .filter_map(|one| Some((one.key.clone(), one.values.as_ref()?.first()?.clone())))
        .collect()
}

/// The first term that a node of the pods of a Deployment must match.
fn required_node_term(deployment: &Deployment) -> Option<&NodeSelectorTerm> {
    let spec = deployment.spec.as_ref()?.template.spec.as_ref()?;
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    required.node_selector_terms.first()
}

/// The directory of the nodes for the keys of gateways, in the pods of an installed `DaemonSet`.
pub fn key_directory(pod: &PodSpec) -> Option<String> {
    let volume = pod
        .volumes
        .as_ref()?
        .iter()
        .find(|volume| volume.name == KEYS)?;
    Some(volume.host_path.as_ref()?.path.clone())
}

/// All objects in the order of creation: custom resource definitions first, the Deployment last.
pub fn render_manifests(values: &InstallValues) -> Result<Vec<DynamicObject>, ManifestError> {
    let mut objects = custom_resource_definitions()?;
    objects.extend(
        render_files(values)?
            .into_iter()
            .flat_map(|(_, objects)| objects),
    );
    // A namespace comes before everything in it; otherwise the order stays.
    objects.sort_by_key(|object| kind(object) != "Namespace");
    Ok(objects)
}

/// The objects of each file, without the custom resource definitions.
pub fn render_files(
    values: &InstallValues,
) -> Result<Vec<(&'static str, Vec<DynamicObject>)>, ManifestError> {
    FILES
        .into_iter()
        .map(|(file, text)| Ok((file, render_file(file, text, values)?)))
        .collect()
}

fn render_file(
    file: &'static str,
    text: &str,
    values: &InstallValues,
) -> Result<Vec<DynamicObject>, ManifestError> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(|error| broken_file(file, &error))?;
    let mut objects = Vec::new();
    for mut document in documents {
        fill_document(&mut document, values);
        let mut object =
            serde_json::from_value(document).map_err(|error| broken_file(file, &error))?;
        label_as_installed(&mut object);
        objects.push(object);
    }
    Ok(objects)
}

fn broken_file(file: &'static str, error: &dyn std::error::Error) -> ManifestError {
    ManifestError::File {
        file,
        reason: error.to_string(),
    }
}

/// All objects with default settings. Roles do not depend on settings.
pub fn with_defaults() -> Result<Vec<DynamicObject>, ManifestError> {
    render_manifests(&InstallValues::resolve(
        &InstallSettings::default(),
        &InstalledState::default(),
        "",
    ))
}

/// The custom resource definitions, with the label of installed objects.
pub fn custom_resource_definitions() -> Result<Vec<DynamicObject>, ManifestError> {
    let converted: Result<Vec<DynamicObject>, _> = liqo_api::custom_resource_definitions()
        .into_iter()
        .map(|definition| serde_json::to_value(definition).and_then(serde_json::from_value))
        .collect();
    let mut definitions = converted.map_err(ManifestError::Definition)?;
    definitions.iter_mut().for_each(label_as_installed);
    Ok(definitions)
}

fn label_as_installed(object: &mut DynamicObject) {
    let labels = object.labels_mut();
    labels.insert(INSTALLED_BY.0.to_owned(), INSTALLED_BY.1.to_owned());
    labels.insert("app.kubernetes.io/part-of".to_owned(), "liqo".to_owned());
}

/// Whether an object is an admission policy or its binding.
pub fn is_admission_policy(object: &DynamicObject) -> bool {
    kind(object).starts_with("ValidatingAdmissionPolicy")
}

pub fn kind(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("", |types| &types.kind)
}

/// The API group of an object.
pub fn group(object: &DynamicObject) -> &str {
    object
        .types
        .as_ref()
        .and_then(|types| types.api_version.split_once('/'))
        .map_or("", |(group, _)| group)
}

fn fill_document(document: &mut Value, values: &InstallValues) {
    match document["kind"].as_str() {
        Some("ClusterConfig") => document["spec"] = cluster_config_spec(values),
        Some("PeeringPolicy") if document["metadata"]["name"] == AUTO_PEERING => {
            document["spec"] = json!(values.auto_peering);
        }
        Some("PeeringPolicy") => document["spec"] = json!(values.policy),
        Some(workload @ ("Deployment" | "DaemonSet")) => {
            // The resolver has the manager's image.
            let is_deployment = workload == "Deployment";
            let image = if is_deployment {
                &values.image
            } else {
                &values.fabric_image
            };
            let is_manager = document["metadata"]["name"] == MANAGER;
            let container = &mut document["spec"]["template"]["spec"]["containers"][0];
            container["image"] = json!(image);
            if is_manager {
                // A variable, because an image of an older version, which a user chose, would not
                // start with an unknown argument.
                if let Some(variables) = container["env"].as_array_mut() {
                    let timing = if values.replicas > 1 {
                        LeaseTiming::WITH_STANDBY
                    } else {
                        LeaseTiming::ALONE
                    };
                    variables.push(json!({ "name": "LEASE_SECONDS", "value": timing.lease_seconds().to_string() }));
                }
            }
            if is_deployment {
                document["spec"]["replicas"] = json!(values.replicas);
            }
            let volumes = document
                .pointer_mut("/spec/template/spec/volumes")
                .and_then(Value::as_array_mut);
            if let Some(keys) = volumes
                .into_iter()
                .flatten()
                .find(|volume| volume["name"] == KEYS)
            {
                keys["hostPath"]["path"] = json!(values.key_directory);
            }
            let avoided = values
                .avoid_nodes
                .iter()
                .map(|(key, value)| json!({ "key": key, "operator": "NotIn", "values": [value] }));
            if let Some(expressions) = document
                .pointer_mut(NODE_EXPRESSIONS)
                .and_then(Value::as_array_mut)
            {
                expressions.extend(avoided);
            }
        }
        _ => {}
    }
}

fn cluster_config_spec(values: &InstallValues) -> Value {
    let mut spec = json!({
        "clusterName": values.cluster_name,
    });
    if !values.cluster_labels.is_empty() {
        spec["clusterLabels"] = json!(values.cluster_labels);
    }
    if let Some(address) = &values.api_server_address {
        spec["apiServer"]["address"] = json!(address);
    }
    if let Some(ca) = &values.api_server_ca {
        spec["apiServer"]["ca"] = json!(ca);
    }
    if let Some(address) = &values.authentication_address {
        spec["authentication"]["address"] = json!(address);
    }
    // Fields that nobody set stay empty, so that a later version can change the default.
    if values.network != NetworkSettings::default() {
        spec["network"] = json!(values.network);
    }
    if !values.discovery.is_default() {
        spec["discovery"] = json!(values.discovery);
    }
    if values.lend_without_network_policies {
        spec[LEND_WITHOUT_NETWORK_POLICIES] = json!(true);
    }
    if let Some(seconds) = values.credential_lifetime_seconds {
        spec["peering"]["credentialLifetimeSeconds"] = json!(seconds);
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered() -> Vec<DynamicObject> {
        render_manifests(&InstallValues::resolve(
            &InstallSettings::default(),
            &InstalledState::default(),
            "rome",
        ))
        .unwrap()
    }

    fn rules(object: &DynamicObject) -> Vec<Value> {
        object.data["rules"].as_array().cloned().unwrap_or_default()
    }

    fn role(name: &str) -> DynamicObject {
        rendered()
            .into_iter()
            .find(|object| kind(object) == "ClusterRole" && object.name_any() == name)
            .unwrap()
    }

    fn lists(rule: &Value, field: &str, item: &str) -> bool {
        rule[field]
            .as_array()
            .is_some_and(|items| items.iter().any(|one| one == item))
    }

    #[test]
    fn no_right_has_a_wildcard() {
        let roles: Vec<_> = rendered()
            .into_iter()
            .filter(|object| kind(object).ends_with("Role"))
            .collect();
        assert!(roles.len() >= 8, "only {} roles", roles.len());
        for role in roles {
            let text = role.data["rules"].to_string();
            assert!(
                !text.contains('*'),
                "{} has a wildcard: {text}",
                role.name_any()
            );
        }
    }

    #[test]
    fn the_manager_reads_secrets_and_configmaps_of_no_namespace_but_where_a_role_is_bound() {
        for rule in rules(&role(MANAGER)) {
            for resource in [
                "secrets",
                "configmaps",
                "serviceaccounts",
                "serviceaccounts/token",
                "pods/exec",
                "pods/log",
            ] {
                assert!(!lists(&rule, "resources", resource), "{rule}");
            }
            assert!(
                !lists(&rule, "verbs", "escalate") && !lists(&rule, "verbs", "impersonate"),
                "{rule}"
            );
        }
    }

    #[test]
    fn what_the_manager_may_bind_and_approve_is_named() {
        let rules = rules(&role(MANAGER));
        let bound = rules
            .iter()
            .find(|rule| lists(rule, "verbs", "bind"))
            .unwrap();
        for name in [
            liqo_api::roles::TENANT,
            liqo_api::roles::TENANT_POD_ACCESS,
            liqo_api::roles::OFFLOADED_NAMESPACE,
            liqo_api::roles::OWN_NAMESPACE,
        ] {
            assert!(lists(bound, "resourceNames", name), "{name}");
            role(name);
        }
        assert_eq!(bound["resourceNames"].as_array().unwrap().len(), 4);
        let approved = rules
            .iter()
            .find(|rule| lists(rule, "verbs", "approve"))
            .unwrap();
        assert_eq!(
            approved["resourceNames"],
            json!(["kubernetes.io/kubelet-serving"])
        );
    }

    #[test]
    fn the_manager_looks_only_into_namespaces_that_a_user_offloaded() {
        let objects = rendered();
        let find = |of_kind: &str| {
            let named = |object: &&DynamicObject| {
                kind(object) == of_kind && object.name_any() == "liqo-manager-offloaded"
            };
            objects.iter().find(named).unwrap().data["spec"].clone()
        };
        let (policy, binding) = (
            find("ValidatingAdmissionPolicy"),
            find("ValidatingAdmissionPolicyBinding"),
        );
        assert_eq!(
            policy["paramKind"],
            json!({ "apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading" })
        );
        // No namespace: the one of the request.
        assert_eq!(
            binding["paramRef"],
            json!({ "name": liqo_api::NAMESPACE_OFFLOADING, "parameterNotFoundAction": "Deny" })
        );
        // Without the object, requests of others are refused, too, so nothing wider may match.
        let rules = &policy["matchConstraints"]["resourceRules"];
        assert_eq!(rules.as_array().map(Vec::len), Some(1));
        assert_eq!(rules[0]["resourceNames"], json!(["liqo-manager"]));
        assert_eq!(rules[0]["resources"], json!(["rolebindings"]));
        // It creates that object itself only while a person tethers the cluster, which it cannot
        // do.
        let (policy, binding) = (
            admission_policy("liqo-manager-tethering"),
            find_binding("liqo-manager-tethering"),
        );
        assert_eq!(
            policy["paramKind"],
            json!({ "apiVersion": "config.liqo.io/v1alpha1", "kind": "ClusterConfig" })
        );
        assert_eq!(
            policy["matchConstraints"]["resourceRules"][0]["resources"],
            json!(["namespaceoffloadings"])
        );
        let allowed = policy["validations"][0]["expression"].as_str().unwrap();
        assert!(
            allowed.starts_with("params.?spec.?tethering.?clusterID"),
            "{allowed}"
        );
        // A brokered namespace has the label of all of Liqo's objects.
        let writes = variable(&admission_policy("liqo-manager-writes"), "offloading");
        for expression in [allowed, &writes] {
            assert!(
                expression.contains(&format!("'{}'", liqo_api::labels::TETHERED)),
                "{expression}"
            );
        }
        assert_eq!(
            binding["paramRef"],
            json!({ "name": liqo_api::CLUSTER_CONFIG, "parameterNotFoundAction": "Deny" })
        );
        for rule in self::rules(&role(MANAGER))
            .iter()
            .filter(|rule| lists(rule, "resources", "clusterconfigs"))
        {
            assert!(
                !["create", "update", "patch", "delete"]
                    .iter()
                    .any(|verb| lists(rule, "verbs", verb)),
                "{rule}"
            );
        }
    }

    #[test]
    fn while_the_cluster_is_tethered_everybody_but_the_system_and_the_break_glass_group_is_restrained()
     {
        let (policy, binding) = (
            admission_policy("liqo-tethered"),
            find_binding("liqo-tethered"),
        );
        let defaults = liqo_api::TetheringSettings::default();
        let conditions = policy["matchConditions"].to_string();
        let state = json!(liqo_api::TetheringState::Tethered);
        assert!(
            conditions.contains(&format!("== '{}'", state.as_str().unwrap())),
            "{conditions}"
        );
        assert!(
            conditions.contains(&defaults.break_glass_group),
            "{conditions}"
        );
        // Without the ClusterConfig there is no mode.
        assert_eq!(
            binding["paramRef"],
            json!({ "name": liqo_api::CLUSTER_CONFIG, "parameterNotFoundAction": "Allow" })
        );
        let pods = variable(&policy, "goesToPeer");
        let required = format!(
            "one.key == '{}' && one.operator == 'In'",
            liqo_api::labels::TYPE
        );
        assert!(
            pods.contains(&required) && pods.contains(liqo_api::labels::TYPE_VIRTUAL_NODE),
            "{pods}"
        );
        for validation in policy["validations"].as_array().unwrap() {
            assert!(
                validation["messageExpression"]
                    .as_str()
                    .unwrap()
                    .contains("variables.wayOut"),
                "{validation}"
            );
        }
        // The end of a namespace of the peer ends its pods. Other namespaces may be created and
        // changed.
        let rules = policy["matchConstraints"]["resourceRules"]
            .as_array()
            .unwrap();
        let of_namespaces: Vec<_> = rules
            .iter()
            .filter(|rule| lists(rule, "resources", "namespaces"))
            .collect();
        assert_eq!(of_namespaces.len(), 1);
        assert_eq!(of_namespaces[0]["operations"], json!(["UPDATE", "DELETE"]));
        assert!(
            variable(&policy, "labelsOfNamespace")
                .starts_with("request.resource.resource == 'namespaces' ? oldObject")
        );
        assert!(variable(&policy, "isOfPeer").contains("variables.labelsOfNamespace"));
        assert!(
            variable(&policy, "isSystem")
                .starts_with("variables.user in params.?spec.?tethering.?systemUsers.orValue([])")
        );
        let way_out = variable(&policy, "wayOut");
        assert!(
            way_out.contains("tethered to") && way_out.contains("liqoctl untether"),
            "{way_out}"
        );
    }

    #[test]
    fn consumers_create_only_secrets_that_are_reflected_and_only_as_large_ones() {
        let named = |object: &&DynamicObject| {
            kind(object) == "ValidatingAdmissionPolicy"
                && object.name_any() == "liqo-consumer-writes"
        };
        let spec = rendered().iter().find(named).unwrap().data["spec"].clone();
        let account =
            liqo_api::consumer_service_account(&liqo_api::ClusterId::of_public_key(&[1; 32]));
        let condition = spec["matchConditions"][0]["expression"].as_str().unwrap();
        let prefix = condition.split('\'').nth(1).unwrap();
        assert!(
            format!("system:serviceaccount:{NAMESPACE}:{account}").starts_with(prefix),
            "{prefix}"
        );
        let expressions: Vec<&str> = spec["validations"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|one| one["expression"].as_str())
            .collect();
        let types: Vec<&str> = expressions[0]
            .split('\'')
            .filter(|word| word.contains('/') || *word == "Opaque")
            .collect();
        // The first one is the default.
        assert_eq!(
            types[1..],
            liqo_offloading_rules::replica::kind::SECRET_TYPES
        );
        let limit: usize = expressions[1].rsplit(' ').next().unwrap().parse().unwrap();
        let in_base64 = liqo_api::record_text::MAX_SECRET_LEN.div_ceil(3) * 4;
        assert!(limit >= in_base64 && limit <= in_base64 + 2048, "{limit}");
    }

    /// The scenario `a_consumer_cannot_exhaust_the_memory_of_its_provider` runs these rules.
    #[test]
    fn consumers_get_tokens_for_this_api_server_only() {
        let rules = admission_policy("liqo-consumer-token-lifetime")["validations"].to_string();
        let of_this_server =
            "all(audience, audience in params.?status.?tokenAudiences.orValue([]))";
        assert!(rules.contains(of_this_server), "{rules}");
    }

    #[test]
    fn managed_fields_of_consumers_are_bounded_in_every_kind() {
        let policy = admission_policy("liqo-consumer-writes");
        let written = variable(&policy, "managedFields");
        assert!(
            !written.contains("request.resource"),
            "whatever the kind: {written}"
        );
        let rules = policy["validations"].to_string();
        assert!(
            rules.contains("one[a][b][c][d][e][f].size() == 0")
                && rules.contains("? 262144 : 32768"),
            "{rules}"
        );
    }

    #[test]
    fn consumers_have_few_seats_and_no_program_of_liqo_waits_behind_them() {
        let objects = rendered();
        let find = |wanted: &str, name: &str| {
            let found = objects
                .iter()
                .find(|object| kind(object) == wanted && object.name_any() == name);
            found.unwrap_or_else(|| panic!("no {wanted} {name}")).data["spec"].clone()
        };
        let (programs, consumers) = (
            find("FlowSchema", "liqo-programs"),
            find("FlowSchema", "liqo-consumers"),
        );
        assert!(programs["matchingPrecedence"].as_u64() < consumers["matchingPrecedence"].as_u64());
        assert_eq!(consumers["distinguisherMethod"]["type"], json!("ByUser"));
        let level = find(
            "PriorityLevelConfiguration",
            consumers["priorityLevelConfiguration"]["name"]
                .as_str()
                .unwrap(),
        );
        assert_eq!(level["limited"]["nominalConcurrencyShares"], json!(1));
        assert_eq!(level["limited"]["borrowingLimitPercent"], json!(0));
        let subjects = |schema: &Value| -> Vec<Value> {
            schema["rules"][0]["subjects"]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one["serviceAccount"].clone())
                .collect()
        };
        assert_eq!(
            subjects(&consumers),
            [json!({ "name": "*", "namespace": NAMESPACE })]
        );
        let accounts = objects
            .iter()
            .filter(|object| kind(object) == "ServiceAccount");
        for account in accounts.filter(|account| account.namespace().as_deref() == Some(NAMESPACE))
        {
            assert!(
                subjects(&programs)
                    .contains(&json!({ "name": account.name_any(), "namespace": NAMESPACE })),
                "{account:?}"
            );
        }
    }

    fn admission_policy(name: &str) -> Value {
        let named = |object: &&DynamicObject| {
            kind(object) == "ValidatingAdmissionPolicy" && object.name_any() == name
        };
        rendered().iter().find(named).unwrap().data["spec"].clone()
    }

    fn find_binding(name: &str) -> Value {
        let named = |object: &&DynamicObject| {
            kind(object) == "ValidatingAdmissionPolicyBinding" && object.name_any() == name
        };
        rendered().iter().find(named).unwrap().data["spec"].clone()
    }

    fn variable(policy: &Value, name: &str) -> String {
        let mut all = policy["variables"].as_array().unwrap().iter();
        all.find(|variable| variable["name"] == name).unwrap()["expression"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    #[test]
    fn in_system_namespaces_the_manager_touches_only_pods_that_tolerate_virtual_nodes() {
        let policy = admission_policy("liqo-manager-writes");
        let system = variable(&policy, "isSystemNamespace");
        for prefix in ["'kube-'", "'openshift-'", "'liqo'"] {
            assert!(system.contains(prefix), "{system}");
        }
        assert!(variable(&policy, "mayBeOffloaded").ends_with("!variables.isSystemNamespace"));
        let touched = variable(&policy, "homePod");
        let (in_system, elsewhere) = touched.split_once(" : ").unwrap();
        let toleration =
            liqo_offloading_rules::pod::scheduling::tolerations_with_ours(&json!({})).remove(0);
        assert!(
            in_system.starts_with("variables.isSystemNamespace ?")
                && in_system.contains("oldObject.spec.?tolerations")
        );
        assert!(
            in_system.contains(toleration["key"].as_str().unwrap()),
            "{in_system}"
        );
        // An eviction does not show the pod.
        assert!(
            !in_system.contains("pods/eviction") && elsewhere.contains("pods/eviction"),
            "{touched}"
        );
    }

    #[test]
    fn the_manager_approves_only_certificate_requests_of_its_own() {
        let policy = admission_policy("liqo-manager-certificates");
        let rule = &policy["matchConstraints"]["resourceRules"][0];
        assert_eq!(
            rule["resources"],
            json!(["certificatesigningrequests", "certificatesigningrequests/*"])
        );
        assert_eq!(rule["operations"], json!(["CREATE", "UPDATE", "DELETE"]));
        let account = format!("'system:serviceaccount:{NAMESPACE}:{MANAGER}'");
        assert!(
            policy["matchConditions"][0]["expression"]
                .as_str()
                .unwrap()
                .ends_with(&account)
        );
        let validations = policy["validations"].to_string();
        assert!(
            validations
                .contains("oldObject.spec.?username.orValue('') == request.userInfo.username"),
            "{validations}"
        );
        assert!(
            validations.contains("kubernetes.io/kubelet-serving"),
            "{validations}"
        );
    }

    #[test]
    fn the_program_on_a_node_writes_only_gateway_leases_and_small_reports() {
        let leases = admission_policy("liqo-fabric-leases")["validations"].to_string();
        let last = liqo_network_model::gateways::MAX_GATEWAYS - 1;
        assert_eq!(
            liqo_api::gateway_lease(last),
            format!("liqo-gateway-{last}")
        );
        assert!(
            leases.contains(&format!("matches('^liqo-gateway-[0-{last}]$')")),
            "{leases}"
        );
        let reports = admission_policy("liqo-fabric-reports");
        assert_eq!(
            reports["matchConstraints"]["resourceRules"][0]["resources"],
            json!(["tunnelendpoints/status"])
        );
        assert!(
            reports["validations"]
                .to_string()
                .contains("variables.gateways.size() <= 32")
        );
    }

    #[test]
    fn the_program_on_a_node_reports_for_its_own_node_alone() {
        let reports = admission_policy("liqo-fabric-reports");
        assert!(variable(&reports, "nodes").contains("'authentication.kubernetes.io/node-name'"));
        assert_eq!(
            variable(&reports, "gateways"),
            "object.?status.?gateways.orValue([])"
        );
        assert_eq!(
            variable(&reports, "before"),
            "oldObject.?status.?gateways.orValue([])"
        );
        let validations = reports["validations"].to_string();
        for rule in [
            "variables.gateways.all(one, one.node in variables.nodes || one in variables.before)",
            "== variables.gateways.exists(gateway, gateway.?connected.orValue(false))",
        ] {
            assert!(validations.contains(rule), "{validations}");
        }
        // The names of fields are those that gateways write.
        let report = liqo_api::GatewayStatus {
            transport: Some(liqo_api::Transport::Tls),
            node: "n1".to_owned(),
            connected: true,
            ..liqo_api::GatewayStatus::default()
        };
        assert_eq!(
            json!(report),
            json!({ "node": "n1", "connected": true, "transport": "TLS" })
        );
    }

    #[test]
    fn of_a_users_pod_the_manager_changes_only_the_toleration_for_virtual_nodes_and_its_eviction() {
        let named = |object: &&DynamicObject| {
            kind(object) == "ValidatingAdmissionPolicy"
                && object.name_any() == "liqo-manager-writes"
        };
        let policy = rendered().iter().find(named).unwrap().data["spec"].clone();
        let mut variables = policy["variables"].as_array().unwrap().iter();
        let allowed = variables
            .find(|variable| variable["name"] == "toleration")
            .unwrap()["expression"]
            .as_str()
            .unwrap();
        let ours =
            liqo_offloading_rules::pod::scheduling::tolerations_with_ours(&json!({})).remove(0);
        assert_eq!(ours.as_object().map(serde_json::Map::len), Some(3));
        let word = |field: &str| ours[field].as_str().unwrap();
        // Exactly one more, and those before it unchanged: a test of single fields would let others
        // through.
        let others = "one, one.?key.orValue('') != '' && !(one.key in variables.unanswered)";
        let exact = format!(
            "(oldObject.spec.?nodeName.orValue('') == '' \
             ? variables.tolerationsAfter == variables.tolerationsBefore + [{{'key': '{}', 'operator': '{}', 'effect': '{}'}}] \
             || (variables.isReleased && variables.tolerationsAfter == variables.tolerationsBefore) \
             : variables.tolerationsAfter.filter({others}) == variables.tolerationsBefore.filter({others}))",
            word("key"),
            word("operator"),
            word("effect")
        );
        assert!(allowed.contains(&exact), "{allowed}");
        assert_eq!(allowed.matches("tolerations").count(), 6, "{allowed}");
    }

    #[test]
    fn of_the_gates_of_a_users_pod_the_manager_removes_only_its_own() {
        let policy = admission_policy("liqo-manager-writes");
        let (released, changed) = (
            variable(&policy, "isReleased"),
            variable(&policy, "toleration"),
        );
        let gate = liqo_api::pods::OFFLOADING_GATE;
        let expected = format!(
            "variables.gatesBefore.exists(one, one.name == '{gate}') \
             && variables.gatesAfter == variables.gatesBefore.filter(one, one.name != '{gate}')"
        );
        assert_eq!(released, expected);
        for guarded in [
            "object.spec.?affinity.orValue({}) == oldObject",
            "variables.gatesAfter == variables.gatesBefore)",
        ] {
            assert!(
                changed.contains(&format!("&& (variables.isReleased || {guarded}")),
                "{changed}"
            );
        }
    }

    #[test]
    fn a_consumer_never_writes_what_the_provider_says() {
        let writes = |rule: &Value| {
            ["create", "update", "patch", "delete"]
                .iter()
                .any(|verb| lists(rule, "verbs", verb))
        };
        for rule in rules(&role(liqo_api::roles::TENANT)) {
            for resource in rule["resources"].as_array().unwrap() {
                let resource = resource.as_str().unwrap();
                let allowed = match resource {
                    "resourceoffers/status"
                    | "contracts/status"
                    | "receipts/status"
                    | "resourcerequests"
                    | "namespacemaps"
                    | "networkconfigs"
                    | "shadowpods"
                    | "reflectedobjects"
                    | "secrets" => true,
                    "leases" => rule["resourceNames"] == json!([liqo_api::leases::CONSUMER]),
                    _ => false,
                };
                assert!(!writes(&rule) || allowed, "{rule}");
            }
        }
        for rule in rules(&role(liqo_api::roles::TENANT_POD_ACCESS)) {
            // What is said about pods, and what they use.
            let read_in_bulk = [
                (json!([""]), json!(["events"]), json!(["list", "watch"])),
                (json!(["metrics.k8s.io"]), json!(["pods"]), json!(["list"])),
            ];
            if let Some((.., verbs)) = read_in_bulk.iter().find(|(groups, resources, _)| {
                rule["apiGroups"] == *groups && rule["resources"] == *resources
            }) {
                assert_eq!(rule["verbs"], *verbs, "{rule}");
                continue;
            }
            assert!(
                !lists(&rule, "verbs", "list")
                    && !lists(&rule, "verbs", "watch")
                    && !lists(&rule, "verbs", "delete"),
                "{rule}"
            );
        }
    }

    #[test]
    fn every_kind_of_liqo_is_in_the_managers_role() {
        let text = role(MANAGER).data["rules"].to_string();
        for definition in liqo_api::custom_resource_definitions() {
            assert!(
                text.contains(&format!("{:?}", definition.spec.names.plural)),
                "{}",
                definition.spec.names.plural
            );
        }
    }

    #[test]
    fn the_pods_run_without_privileges_and_never_on_a_virtual_node() {
        let deployments: Vec<_> = rendered()
            .into_iter()
            .filter(|object| kind(object) == "Deployment")
            .collect();
        assert_eq!(
            deployments
                .iter()
                .map(DynamicObject::name_any)
                .collect::<Vec<_>>(),
            [RESOLVER, MANAGER]
        );
        for deployment in deployments {
            let pod = &deployment.data["spec"]["template"]["spec"];
            let container = &pod["containers"][0];
            assert_eq!(pod["securityContext"]["runAsNonRoot"], json!(true));
            assert_eq!(
                pod["securityContext"]["seccompProfile"]["type"],
                json!("RuntimeDefault")
            );
            assert_eq!(
                container["securityContext"]["readOnlyRootFilesystem"],
                json!(true)
            );
            assert_eq!(
                container["securityContext"]["capabilities"]["drop"],
                json!(["ALL"])
            );
            let term = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
                ["nodeSelectorTerms"][0];
            assert_eq!(
                term["matchExpressions"][0]["key"],
                json!(liqo_api::labels::TYPE)
            );
            assert_eq!(term["matchExpressions"][0]["operator"], json!("NotIn"));
        }
    }

    #[test]
    fn the_resolver_only_reads_what_names_come_from_and_answers_at_the_port_that_policies_open() {
        let objects = rendered();
        let of = |wanted: &str| {
            objects
                .iter()
                .find(|object| kind(object) == wanted && object.name_any() == RESOLVER)
                .unwrap()
        };
        let read = |group: &str, resources: &[&str]| json!({ "apiGroups": [group], "resources": resources, "verbs": ["list", "watch"] });
        let read = json!([
            read("", &["namespaces", "pods", "services"]),
            read("virtualkubelet.liqo.io", &["namespacemaps"])
        ]);
        assert_eq!(of("ClusterRole").data["rules"], read);
        let ports = |object: &str, pointer: &str, field: &str| -> Vec<Value> {
            let ports = of(object)
                .data
                .pointer(pointer)
                .and_then(Value::as_array)
                .unwrap()
                .clone();
            let is_for_questions =
                |port: &&Value| port["name"] != "metrics" && port["name"] != "closed";
            ports
                .iter()
                .filter(is_for_questions)
                .map(|port| json!([port["protocol"], port[field]]))
                .collect()
        };
        let port = liqo_api::RESOLVER_PORT;
        let listening = ports(
            "Deployment",
            "/spec/template/spec/containers/0/ports",
            "containerPort",
        );
        assert_eq!(listening, [json!(["UDP", port]), json!(["TCP", port])]);
        assert_eq!(
            ports("Service", "/spec/ports", "port"),
            [json!(["UDP", 53]), json!(["TCP", 53])]
        );
        let labels = json!({ "app.kubernetes.io/name": RESOLVER });
        assert_eq!(of("Service").data["spec"]["selector"], labels);
        assert_eq!(
            of("PodDisruptionBudget").data["spec"]["selector"]["matchLabels"],
            labels
        );
    }

    #[test]
    fn an_update_never_stops_the_last_replica_and_a_full_cluster_keeps_liqo() {
        let objects = rendered();
        let spec = |wanted: &str| {
            let is_wanted =
                |object: &&DynamicObject| kind(object) == wanted && object.name_any() != RESOLVER;
            &objects.iter().find(is_wanted).unwrap().data["spec"]
        };
        let (deployment, set) = (spec("Deployment"), spec("DaemonSet"));
        assert_eq!(
            deployment["strategy"]["rollingUpdate"],
            json!({ "maxSurge": 1, "maxUnavailable": 0 })
        );
        assert_eq!(
            deployment["template"]["spec"]["priorityClassName"],
            json!("system-cluster-critical")
        );
        assert_eq!(
            set["template"]["spec"]["priorityClassName"],
            json!("system-node-critical")
        );
        // Only preferred: where there is one node, all replicas run there.
        let apart = &deployment["template"]["spec"]["affinity"]["podAntiAffinity"];
        let term = &apart["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"];
        assert_eq!(term["topologyKey"], json!("kubernetes.io/hostname"));
        assert_eq!(term["labelSelector"], deployment["selector"]);
        assert_eq!(
            spec("PodDisruptionBudget")["selector"],
            deployment["selector"]
        );
    }

    #[test]
    fn the_log_of_the_leader_is_selected_by_the_labels_of_its_pod() {
        assert!(LEADER_LOG.contains(&format!("-l {}=true ", liqo_api::labels::LEADER)));
        assert!(MANAGER_LOGS.contains(&format!("-l app.kubernetes.io/name={MANAGER} ")));
    }

    #[test]
    fn the_program_on_each_node_has_two_capabilities_and_never_runs_on_a_virtual_node() {
        let set = rendered()
            .into_iter()
            .find(|object| kind(object) == "DaemonSet")
            .unwrap();
        assert_eq!(set.namespace().as_deref(), Some(FABRIC_NAMESPACE));
        let pod = &set.data["spec"]["template"]["spec"];
        let context = &pod["containers"][0]["securityContext"];
        assert_eq!(
            context["capabilities"],
            json!({ "drop": ["ALL"], "add": ["NET_ADMIN", "NET_BIND_SERVICE"] })
        );
        assert_eq!(
            (&context["readOnlyRootFilesystem"], &context["privileged"]),
            (&json!(true), &Value::Null)
        );
        let term = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            ["nodeSelectorTerms"][0];
        assert_eq!(
            term["matchExpressions"][0]["key"],
            json!(liqo_api::labels::TYPE)
        );
        // The taint of virtual nodes evicts pods.
        let tolerates = |one: &Value| {
            one["key"].is_null()
                && one["effect"] != "NoSchedule"
                && one["effect"] != "PreferNoSchedule"
        };
        assert!(
            !pod["tolerations"].as_array().unwrap().iter().any(tolerates),
            "{}",
            pod["tolerations"]
        );
    }

    #[test]
    fn settings_reach_the_objects() {
        let settings = InstallSettings::parse(&[
            "discovery.config.clusterName=milan",
            "discovery.config.clusterLabels=region=eu",
            "authentication.address=https://203.0.113.5:30443",
            "controllerManager.config.resourceSharingPercentage=30",
            "controllerManager.replicas=2",
            "controllerManager.avoidNodes=kwok.x-k8s.io/node=fake,spot=",
            "controllerManager.image=example.org/manager:7",
            "fabric.image=example.org/fabric:7",
            "fabric.keyDirectory=/opt/liqo",
            "network.mtu=1380",
            "discovery.lan.enabled=true",
            "discovery.autoPeering=LAN",
            "lendWithoutNetworkPolicies=true",
            "peering.credentialLifetimeSeconds=7200",
        ])
        .unwrap();
        let objects = render_manifests(&InstallValues::resolve(
            &settings,
            &InstalledState::default(),
            "x",
        ))
        .unwrap();
        let of = |wanted: &str| {
            objects
                .iter()
                .rfind(|object| kind(object) == wanted)
                .unwrap()
        };
        let spec: liqo_api::ClusterConfigSpec =
            serde_json::from_value(of("ClusterConfig").data["spec"].clone()).unwrap();
        assert_eq!(
            (
                spec.cluster_name.as_str(),
                spec.cluster_labels["region"].as_str()
            ),
            ("milan", "eu")
        );
        assert_eq!(
            spec.authentication.address.as_deref(),
            Some("https://203.0.113.5:30443")
        );
        assert_eq!((spec.network.mtu, spec.network.enabled), (1380, true));
        assert_eq!(
            (
                spec.peering.credential_lifetime_seconds,
                spec.peering.consumer_expiry_seconds
            ),
            (7200, 86_400)
        );
        let fabric = &of("DaemonSet").data["spec"]["template"]["spec"];
        assert_eq!(
            fabric["containers"][0]["image"],
            json!("example.org/fabric:7")
        );
        let pod: PodSpec = serde_json::from_value(fabric.clone()).unwrap();
        assert_eq!(key_directory(&pod).as_deref(), Some("/opt/liqo"));
        assert!(
            fabric["affinity"]
                .to_string()
                .contains("kwok.x-k8s.io/node")
        );
        assert_eq!(
            of("PeeringPolicy").data["spec"]["provide"]["percentage"],
            json!(30)
        );
        assert!(spec.discovery.lan.enabled && spec.lend_without_network_policies);
        let named = objects
            .iter()
            .find(|object| kind(object) == "PeeringPolicy" && object.name_any() == AUTO_PEERING);
        assert_eq!(
            named.unwrap().data["spec"]["consume"]["automatic"],
            json!(true)
        );
        assert_eq!(of("Deployment").data["spec"]["replicas"], json!(2));
        let variables = &of("Deployment").data["spec"]["template"]["spec"]["containers"][0]["env"];
        assert!(
            variables
                .as_array()
                .unwrap()
                .contains(&json!({ "name": "LEASE_SECONDS", "value": "7" })),
            "{variables}"
        );
        let deployment: Deployment = serde_json::from_value(json!(of("Deployment"))).unwrap();
        let avoided = [("kwok.x-k8s.io/node", "fake"), ("spot", "")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(avoided_nodes(&deployment), BTreeMap::from(avoided));
        for deployment in objects.iter().filter(|object| kind(object) == "Deployment") {
            let pod = &deployment.data["spec"]["template"]["spec"];
            assert_eq!(
                pod["containers"][0]["image"],
                json!("example.org/manager:7")
            );
            assert!(pod["affinity"].to_string().contains("kwok.x-k8s.io/node"));
        }
    }

    #[test]
    fn a_policy_closes_only_the_port_of_the_resolver_that_shows_whether_policies_are_enforced() {
        let objects = rendered();
        let find = |wanted: &str| {
            objects
                .iter()
                .find(|object| kind(object) == wanted && object.name_any() == RESOLVER)
                .unwrap()
        };
        let (policy, deployment) = (
            &find("NetworkPolicy").data["spec"],
            &find("Deployment").data["spec"],
        );
        assert_eq!(policy["podSelector"], deployment["selector"]);
        assert_eq!(policy["policyTypes"], json!(["Ingress"]));
        assert!(
            policy["ingress"]
                .as_array()
                .is_some_and(|rules| rules.len() == 1 && rules[0]["from"].is_null())
        );
        let port = |port: &Value, number: &str| {
            (
                port["protocol"].as_str().unwrap_or("TCP").to_owned(),
                port[number].as_u64(),
            )
        };
        let open: Vec<_> = policy["ingress"][0]["ports"]
            .as_array()
            .unwrap()
            .iter()
            .map(|open| port(open, "port"))
            .collect();
        let listening = deployment["template"]["spec"]["containers"][0]["ports"]
            .as_array()
            .unwrap();
        let closed: Vec<_> = listening
            .iter()
            .map(|port_of| port(port_of, "containerPort"))
            .filter(|port| !open.contains(port))
            .collect();
        assert_eq!(
            closed,
            [("TCP".to_owned(), Some(u64::from(liqo_api::CLOSED_PORT)))]
        );
        assert!(
            open.contains(&("TCP".to_owned(), Some(u64::from(liqo_api::RESOLVER_PORT)))),
            "{open:?}"
        );
    }

    #[test]
    fn what_others_need_is_made_first() {
        let objects = rendered();
        let position = |wanted: &str| {
            objects
                .iter()
                .position(|object| kind(object) == wanted)
                .unwrap()
        };
        assert_eq!(position("Namespace"), 0);
        assert!(position("CustomResourceDefinition") < position("ClusterConfig"));
        assert!(position("ClusterRole") < position("ClusterRoleBinding"));
        assert_eq!(
            objects
                .last()
                .map(|object| (kind(object), object.name_any())),
            Some(("Deployment", MANAGER.to_owned()))
        );
        assert!(position("Deployment") > position("DaemonSet"));
    }
}
