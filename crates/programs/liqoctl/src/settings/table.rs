//! Every key of `--set`, of values files and of the chart, and what becomes of it. The keys of the
//! Go implementation of Liqo, 0.6 to 1.2, are among them.

use super::{
    API_SERVER_ADDRESS, API_SERVER_CA, AUTHENTICATION_ADDRESS, AVOID_NODES, CLUSTER_LABELS,
    CLUSTER_NAME, CREDENTIAL_LIFETIME, FABRIC_IMAGE, IMAGE, KEY_DIRECTORY, LEND_WITHOUT,
    PERCENTAGE, PLUGIN_ADDRESS, PLUGIN_GENERATION, REPLICAS, THRESHOLD, discovery, network,
};

mod liqo;

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingRow {
    pub key: &'static str,
    pub kind: ValueKind,
    /// The value in the chart's values.yaml, as JSON; empty for a key that is not there.
    pub default: &'static str,
    pub class: SettingClass,
    /// The effect of the value; for keys of other versions, the replacement or an explanation.
    pub text: &'static str,
}

/// The effect that a key has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingClass {
    /// A setting of `liqoctl install` and of the chart.
    Setting,
    /// Only an argument of `liqoctl install`.
    CommandLine,
    /// Only a value of the chart.
    Chart,
    /// Another name of this key.
    Mapped(&'static str, ValueConversion),
    /// Accepted without effect.
    Noted,
    /// Refused when it is set to anything that means something.
    Refused(RefusalCondition),
}

/// How a value of a mapped key becomes one of its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueConversion {
    Same,
    /// One text becomes a list.
    ToList,
    /// Counts only if it is true.
    IfTrue,
    /// The target gets this value, in JSON, if the value is false.
    IfFalse(&'static str),
}

/// The values for which a key is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCondition {
    /// A text, a number or true, or a map or list that contains one.
    Set,
    False,
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// A text that matches a regular expression; empty for any text.
    Text(&'static str),
    Bool,
    Integer(i64, i64),
    /// A whole number in this range, or nothing.
    OptionalInteger(i64, i64),
    OneOf(&'static [&'static str]),
    /// A list of texts that match a regular expression.
    Texts(&'static str),
    /// Texts by name.
    Labels,
    List,
    Map,
    Anything,
}

pub(super) const ADMISSION_POLICIES: &str = "admissionPolicies.enabled";
pub(super) const GLOBAL_REGISTRY: &str = "global.imageRegistry";

const PREFIX: &str = "^[0-9a-fA-F.:]+/[0-9]{1,3}$";
const ADDRESS_AND_PORT: &str = "^[^/ ]+:[0-9]{1,5}$";
const URL: &str = "^((https://)?[^/@?# ]+/*)?$";

const fn row(
    key: &'static str,
    kind: ValueKind,
    default: &'static str,
    class: SettingClass,
    text: &'static str,
) -> SettingRow {
    SettingRow {
        key,
        kind,
        default,
        class,
        text,
    }
}

const fn setting(
    key: &'static str,
    kind: ValueKind,
    default: &'static str,
    text: &'static str,
) -> SettingRow {
    row(key, kind, default, SettingClass::Setting, text)
}

const fn chart(
    key: &'static str,
    kind: ValueKind,
    default: &'static str,
    text: &'static str,
) -> SettingRow {
    row(key, kind, default, SettingClass::Chart, text)
}

/// Keys of `liqoctl install`; all but two are values of the chart, too.
static SETTINGS: &[SettingRow] = &[
    setting(
        CLUSTER_NAME,
        ValueKind::Text("^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$"),
        "\"\"",
        "Required. The name that peers see: at most 63 lower-case letters, digits and dashes.",
    ),
    setting(
        CLUSTER_LABELS,
        ValueKind::Labels,
        "{}",
        "Labels on the virtual nodes that represent this cluster at its peers.",
    ),
    setting(
        API_SERVER_ADDRESS,
        ValueKind::Text(URL),
        "\"\"",
        "URL of the API server that consumers use. Empty: Liqo detects it.",
    ),
    setting(
        API_SERVER_CA,
        ValueKind::Text(""),
        "\"\"",
        "CA certificates of the API server in PEM. Empty: Liqo detects them.",
    ),
    setting(
        AUTHENTICATION_ADDRESS,
        ValueKind::Text(URL),
        "\"\"",
        "URL of the auth endpoint that peers use, such as https://203.0.113.5:30443. Empty: Liqo detects it.",
    ),
    setting(
        PERCENTAGE,
        ValueKind::Integer(0, 100),
        "90",
        "Percentage of the free resources that is lent. Liqo 0.10 lent 30.",
    ),
    setting(
        THRESHOLD,
        ValueKind::OptionalInteger(0, 100),
        "\"\"",
        "By how many percent an offer must differ before Liqo writes it again. Empty: 5, or 0 with a plugin.",
    ),
    setting(
        PLUGIN_ADDRESS,
        ValueKind::Text("^([^/: ]+:[0-9]{1,5})?$"),
        "\"\"",
        "host:port of a resource plugin that decides how much is offered. Empty: none.",
    ),
    setting(
        PLUGIN_GENERATION,
        ValueKind::OneOf(&["p1", "p2", "p3"]),
        "\"p3\"",
        "Protocol generation of the plugin: p1, p2 or p3.",
    ),
    setting(
        REPLICAS,
        ValueKind::Integer(1, 9),
        "1",
        "Replicas of the manager and of the resolver. With two or more there are PodDisruptionBudgets. Unlike liqoctl, Helm \
         does not look at the nodes: set 2 where two nodes can run one.",
    ),
    setting(
        AVOID_NODES,
        ValueKind::Labels,
        "{}",
        "Liqo runs on no node with one of these labels. It never runs on virtual nodes.",
    ),
    row(
        IMAGE,
        ValueKind::Text(""),
        "",
        SettingClass::CommandLine,
        "The image of the manager and of the resolver, in one text.",
    ),
    row(
        FABRIC_IMAGE,
        ValueKind::Text(""),
        "",
        SettingClass::CommandLine,
        "The image of the fabric, in one text.",
    ),
    setting(
        "controllerManager.image.registry",
        ValueKind::Text(""),
        "\"localhost\"",
        "Registry of the manager's image.",
    ),
    setting(
        "controllerManager.image.repository",
        ValueKind::Text(""),
        "\"liqo/controller-manager\"",
        "Name of the manager's image there.",
    ),
    setting(
        "controllerManager.image.tag",
        ValueKind::Text(""),
        "\"\"",
        "Tag of the manager's image. Empty: this version of Liqo.",
    ),
    setting(
        "controllerManager.image.digest",
        ValueKind::Text("^(sha256:[0-9a-f]{64})?$"),
        "\"\"",
        "Digest of the manager's image, such as sha256:...; it takes the place of the tag.",
    ),
    setting(
        "fabric.image.registry",
        ValueKind::Text(""),
        "\"localhost\"",
        "Registry of the fabric's image.",
    ),
    setting(
        "fabric.image.repository",
        ValueKind::Text(""),
        "\"liqo/fabric\"",
        "Name of the fabric's image there.",
    ),
    setting(
        "fabric.image.tag",
        ValueKind::Text(""),
        "\"\"",
        "Tag of the fabric's image. Empty: this version of Liqo.",
    ),
    setting(
        "fabric.image.digest",
        ValueKind::Text("^(sha256:[0-9a-f]{64})?$"),
        "\"\"",
        "Digest of the fabric's image; it takes the place of the tag.",
    ),
    setting(
        GLOBAL_REGISTRY,
        ValueKind::Text(""),
        "\"\"",
        "Registry of all images. Empty: that of each image.",
    ),
    setting(
        KEY_DIRECTORY,
        ValueKind::Text("^/.+$"),
        "\"/var/lib/liqo\"",
        "Directory on each node in which it stores the key of its gateway. At another place the gateways create new keys.",
    ),
    setting(
        LEND_WITHOUT,
        ValueKind::Bool,
        "false",
        "Whether to lend although the pod network does not enforce NetworkPolicies.",
    ),
    setting(
        discovery::LAN,
        ValueKind::Bool,
        "false",
        "Whether the cluster announces itself on the local network, and looks for others there.",
    ),
    setting(
        discovery::INTERFACES,
        ValueKind::Texts("^[^/ ]{1,15}$"),
        "[]",
        "Network interfaces of the nodes for that, such as eth0. Empty: all except those of pods, containers and tunnels.",
    ),
    setting(
        discovery::AUTO_PEERING,
        ValueKind::Texts("^(LAN|DNS)$"),
        "[]",
        "LAN, DNS or both: peerings with clusters that were found this way start automatically, and need no token.",
    ),
    setting(
        CREDENTIAL_LIFETIME,
        ValueKind::Integer(600, 86_400),
        "3600",
        "Lifetime of the credentials of consumers, in seconds. The next one that is issued has it.",
    ),
    setting(
        network::ENABLED,
        ValueKind::Bool,
        "true",
        "Whether this cluster connects to the networks of its peers.",
    ),
    setting(
        network::POD_CIDRS,
        ValueKind::Texts(PREFIX),
        "[]",
        "Prefixes of this cluster's pods. Empty: Liqo detects them.",
    ),
    setting(
        network::SERVICE_CIDRS,
        ValueKind::Texts(PREFIX),
        "[]",
        "Prefixes of this cluster's Services. Empty: Liqo detects them.",
    ),
    setting(
        network::EXTERNAL_CIDRS,
        ValueKind::Texts(PREFIX),
        "[\"10.70.0.0/24\"]",
        "Prefixes of the addresses under which peers see nodes: at most one of each family.",
    ),
    setting(
        network::RESERVED_CIDRS,
        ValueKind::Texts(PREFIX),
        "[]",
        "Prefixes that are in use around this cluster. Liqo maps no peer there.",
    ),
    setting(
        network::PEER_CIDRS,
        ValueKind::Texts(PREFIX),
        "[\"10.64.0.0/10\",\"100.64.0.0/10\"]",
        "Prefixes of the addresses under which this cluster sees its peers.",
    ),
    setting(
        network::MTU,
        ValueKind::Integer(1280, 8900),
        "1420",
        "The largest packet inside tunnels, in bytes. Lower it if the path between the clusters carries less than 1500.",
    ),
    setting(
        network::API_THROUGH_TUNNEL,
        ValueKind::Bool,
        "false",
        "Whether peers may call the auth endpoint and the API server through the tunnel.",
    ),
    setting(
        network::REPLICAS,
        ValueKind::Integer(1, 7),
        "2",
        "How many nodes are gateways.",
    ),
    setting(
        network::PORT,
        ValueKind::Integer(1, 65_535),
        "51840",
        "UDP port of the tunnel.",
    ),
    setting(
        network::NODE_SELECTOR,
        ValueKind::Labels,
        "{}",
        "Only nodes with these labels become gateways.",
    ),
    setting(
        network::ADDRESSES,
        ValueKind::Texts(ADDRESS_AND_PORT),
        "[]",
        "address:port where peers reach the gateways through a load balancer. Empty: the addresses of the gateways' nodes.",
    ),
    setting(
        network::TLS_PORT,
        ValueKind::Integer(0, 65_535),
        "443",
        "TCP port on which gateways accept connections where UDP does not pass; 0 for none.",
    ),
    setting(
        network::TLS_ADDRESSES,
        ValueKind::Texts(ADDRESS_AND_PORT),
        "[]",
        "address:port where peers reach that TCP port.",
    ),
];

const AFFINITY: &str = "Affinity of these pods. podAffinity and podAntiAffinity take the place of Liqo's own; Liqo's rule against virtual \
                        nodes is added to every term of nodeAffinity.";
const CRITICAL_PODS: &str = "PriorityClass of these pods.";
const ENVIRONMENT: &str = "More environment variables, such as {name: RUST_LOG, value: debug}.";
const MORE_TOLERATIONS: &str = "Tolerations of these pods. Empty: those of common.";

/// Values that only the chart has.
static CHART: &[SettingRow] = &[
    chart(
        ADMISSION_POLICIES,
        ValueKind::Bool,
        "true",
        "Whether to install the ValidatingAdmissionPolicies. Without them nothing limits the manager to Liqo's own namespaces. Kubernetes \
         1.29 does not have them: there you must say false.",
    ),
    chart(
        "networkPolicies.enabled",
        ValueKind::Bool,
        "false",
        "Whether a NetworkPolicy closes all ports of the manager but those that it needs. These are open for everybody: the API server and \
         peers have no address that a policy could select. Off, because nothing else listens there; for clusters that ask for a policy.",
    ),
    chart(
        "imagePullPolicy",
        ValueKind::OneOf(&["Always", "IfNotPresent", "Never"]),
        "\"IfNotPresent\"",
        "When the nodes pull the images.",
    ),
    chart(
        "imagePullSecrets",
        ValueKind::List,
        "[]",
        "Names of Secrets in namespaces liqo and liqo-fabric with the credentials of registries.",
    ),
    chart(
        "extraLabels",
        ValueKind::Labels,
        "{}",
        "Labels on every object of this chart.",
    ),
    chart(
        "extraAnnotations",
        ValueKind::Labels,
        "{}",
        "Annotations on every object of this chart.",
    ),
    chart(
        "common.nodeSelector",
        ValueKind::Labels,
        "{}",
        "Nodes of the manager and of the resolver, where these have no selector of their own.",
    ),
    chart(
        "common.tolerations",
        ValueKind::List,
        "[]",
        "Tolerations of all pods that have none of their own.",
    ),
    chart(
        "common.affinity",
        ValueKind::Map,
        "{}",
        "Affinity of the manager and of the resolver, where these have none of their own.",
    ),
    chart(
        "controllerManager.nodeSelector",
        ValueKind::Labels,
        "{}",
        "Nodes of the manager. Empty: those of common.",
    ),
    chart(
        "controllerManager.tolerations",
        ValueKind::List,
        "[]",
        MORE_TOLERATIONS,
    ),
    chart("controllerManager.affinity", ValueKind::Map, "{}", AFFINITY),
    chart(
        "controllerManager.priorityClassName",
        ValueKind::Text(""),
        "\"system-cluster-critical\"",
        CRITICAL_PODS,
    ),
    chart(
        "controllerManager.resources",
        ValueKind::Map,
        r#"{"limits":{"memory":"512Mi"},"requests":{"cpu":"50m","memory":"64Mi"}}"#,
        "Requests and limits of the manager.",
    ),
    chart(
        "controllerManager.podLabels",
        ValueKind::Labels,
        "{}",
        "More labels on the manager's pods.",
    ),
    chart(
        "controllerManager.podAnnotations",
        ValueKind::Labels,
        "{}",
        "Annotations on the manager's pods.",
    ),
    chart(
        "controllerManager.extraEnv",
        ValueKind::List,
        "[]",
        ENVIRONMENT,
    ),
    chart(
        "dns.nodeSelector",
        ValueKind::Labels,
        "{}",
        "Nodes of the resolver for remote pods. Empty: those of common.",
    ),
    chart("dns.tolerations", ValueKind::List, "[]", MORE_TOLERATIONS),
    chart("dns.affinity", ValueKind::Map, "{}", AFFINITY),
    chart(
        "dns.priorityClassName",
        ValueKind::Text(""),
        "\"system-cluster-critical\"",
        CRITICAL_PODS,
    ),
    chart(
        "dns.resources",
        ValueKind::Map,
        r#"{"limits":{"memory":"256Mi"},"requests":{"cpu":"10m","memory":"32Mi"}}"#,
        "Requests and limits of the resolver.",
    ),
    chart(
        "dns.podLabels",
        ValueKind::Labels,
        "{}",
        "More labels on the resolver's pods.",
    ),
    chart(
        "dns.podAnnotations",
        ValueKind::Labels,
        "{}",
        "Annotations on the resolver's pods.",
    ),
    chart("dns.extraEnv", ValueKind::List, "[]", ENVIRONMENT),
    chart(
        "fabric.nodeSelector",
        ValueKind::Labels,
        "{}",
        "Nodes of the fabric. Pods on other nodes do not reach peers.",
    ),
    chart(
        "fabric.tolerations",
        ValueKind::List,
        "[]",
        "More tolerations of the fabric, which tolerates every taint that only keeps pods away.",
    ),
    chart("fabric.affinity", ValueKind::Map, "{}", AFFINITY),
    chart(
        "fabric.priorityClassName",
        ValueKind::Text(""),
        "\"system-node-critical\"",
        CRITICAL_PODS,
    ),
    chart(
        "fabric.resources",
        ValueKind::Map,
        r#"{"limits":{"memory":"768Mi"},"requests":{"cpu":"20m","memory":"32Mi"}}"#,
        "Requests and limits of the fabric on each node.",
    ),
    chart(
        "fabric.podLabels",
        ValueKind::Labels,
        "{}",
        "More labels on the fabric's pods.",
    ),
    chart(
        "fabric.podAnnotations",
        ValueKind::Labels,
        "{}",
        "Annotations on the fabric's pods.",
    ),
    chart("fabric.extraEnv", ValueKind::List, "[]", ENVIRONMENT),
    chart(
        "authentication.service.type",
        ValueKind::OneOf(&["NodePort", "LoadBalancer", "ClusterIP"]),
        "\"NodePort\"",
        "Type of Service liqo-auth, by which peers reach the auth endpoint.",
    ),
    chart(
        "authentication.service.annotations",
        ValueKind::Labels,
        "{}",
        "Annotations on Service liqo-auth, for example for a cloud's load balancer.",
    ),
    chart(
        "authentication.service.nodePort",
        ValueKind::OptionalInteger(1, 65_535),
        "\"\"",
        "Port of the nodes for Service liqo-auth. Empty: Kubernetes chooses one.",
    ),
];

/// All keys.
pub fn rows() -> impl Iterator<Item = &'static SettingRow> {
    SETTINGS.iter().chain(CHART).chain(liqo::KEYS)
}

/// The keys of the Go implementation that are not keys of this one.
pub fn keys_of_liqo() -> impl Iterator<Item = &'static SettingRow> {
    liqo::KEYS.iter()
}

/// The row of a key: of itself, or of a map that accepts everything inside of it.
pub fn find(key: &str) -> Option<&'static SettingRow> {
    rows().find(|row| row.key == key).or_else(|| {
        rows().find(|row| {
            row.kind == ValueKind::Anything
                && key
                    .strip_prefix(row.key)
                    .is_some_and(|rest| rest.starts_with('.'))
        })
    })
}

/// Whether other keys are inside of this one.
pub fn has_parts(key: &str) -> bool {
    rows().any(|row| {
        row.key
            .strip_prefix(key)
            .is_some_and(|rest| rest.starts_with('.'))
    })
}

impl SettingRow {
    /// Whether the chart has a default for it.
    pub fn is_in_chart(&self) -> bool {
        matches!(self.class, SettingClass::Setting | SettingClass::Chart)
    }

    /// Whether `liqoctl install` has this setting.
    pub fn is_for_install(&self) -> bool {
        matches!(
            self.class,
            SettingClass::Setting | SettingClass::CommandLine
        )
    }

    /// One sentence for the user about a key of the Go implementation.
    pub fn note_for_user(&self) -> String {
        let (key, text) = (self.key, self.text);
        match self.class {
            SettingClass::Mapped(target, _) if text.is_empty() => format!("{key} is {target} here"),
            SettingClass::Mapped(target, _) => format!("{key} is {target} here: {text}"),
            SettingClass::Noted => format!("{key} has no effect: {text}"),
            _ => format!("{key}: {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_key_is_there_once_and_only_images_are_a_text_and_a_map() {
        let keys: BTreeSet<&str> = rows().map(|row| row.key).collect();
        assert_eq!(keys.len(), rows().count());
        let both: Vec<&str> = keys.iter().copied().filter(|key| has_parts(key)).collect();
        assert_eq!(both, [IMAGE, FABRIC_IMAGE]);
    }

    #[test]
    fn what_has_another_name_here_exists_and_defaults_are_json() {
        for row in rows() {
            if let SettingClass::Mapped(target, _) = row.class {
                assert!(
                    find(target).is_some_and(SettingRow::is_in_chart),
                    "{} -> {target}",
                    row.key
                );
            }
            assert_eq!(row.is_in_chart(), !row.default.is_empty(), "{}", row.key);
            assert!(
                row.default.is_empty()
                    || serde_json::from_str::<serde_json::Value>(row.default).is_ok(),
                "{}",
                row.key
            );
            assert!(
                matches!(row.class, SettingClass::Mapped(..)) || !row.text.is_empty(),
                "{}",
                row.key
            );
        }
    }
}
