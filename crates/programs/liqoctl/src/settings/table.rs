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
pub struct Row {
    pub key: &'static str,
    pub kind: Kind,
    /// The value in the chart's values.yaml, as JSON; empty for a key that is not there.
    pub default: &'static str,
    pub class: Class,
    /// What the value does; for keys of other versions, what to know or to do instead.
    pub text: &'static str,
}

/// What becomes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A setting of `liqoctl install` and of the chart.
    Setting,
    /// Only an argument of `liqoctl install`.
    CommandLine,
    /// Only a value of the chart.
    Chart,
    /// Another name of this key.
    Mapped(&'static str, Convert),
    /// Accepted without effect.
    Noted,
    /// Refused when it is set to anything that means something.
    Refused(When),
}

/// How a value of a mapped key becomes one of its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convert {
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
pub enum When {
    /// A text, a number or true, or a map or list that contains one.
    Set,
    False,
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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
    kind: Kind,
    default: &'static str,
    class: Class,
    text: &'static str,
) -> Row {
    Row {
        key,
        kind,
        default,
        class,
        text,
    }
}

const fn setting(key: &'static str, kind: Kind, default: &'static str, text: &'static str) -> Row {
    row(key, kind, default, Class::Setting, text)
}

const fn chart(key: &'static str, kind: Kind, default: &'static str, text: &'static str) -> Row {
    row(key, kind, default, Class::Chart, text)
}

/// Keys of `liqoctl install`; all but two are values of the chart, too.
static SETTINGS: &[Row] = &[
    setting(
        CLUSTER_NAME,
        Kind::Text("^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$"),
        "\"\"",
        "Required. The name that peers see: at most 63 lower-case letters, digits and dashes.",
    ),
    setting(
        CLUSTER_LABELS,
        Kind::Labels,
        "{}",
        "Labels on the virtual nodes that represent this cluster at its peers.",
    ),
    setting(
        API_SERVER_ADDRESS,
        Kind::Text(URL),
        "\"\"",
        "URL of the API server that consumers use. Empty: Liqo detects it.",
    ),
    setting(
        API_SERVER_CA,
        Kind::Text(""),
        "\"\"",
        "CA certificates of the API server in PEM. Empty: Liqo detects them.",
    ),
    setting(
        AUTHENTICATION_ADDRESS,
        Kind::Text(URL),
        "\"\"",
        "URL of the auth endpoint that peers use, such as https://203.0.113.5:30443. Empty: Liqo detects it.",
    ),
    setting(
        PERCENTAGE,
        Kind::Integer(0, 100),
        "90",
        "Percentage of the free resources that is lent. Liqo 0.10 lent 30.",
    ),
    setting(
        THRESHOLD,
        Kind::OptionalInteger(0, 100),
        "\"\"",
        "By how many percent an offer must differ before Liqo writes it again. Empty: 5, or 0 with a plugin.",
    ),
    setting(
        PLUGIN_ADDRESS,
        Kind::Text("^([^/: ]+:[0-9]{1,5})?$"),
        "\"\"",
        "host:port of a resource plugin that decides how much is offered. Empty: none.",
    ),
    setting(
        PLUGIN_GENERATION,
        Kind::OneOf(&["p1", "p2", "p3"]),
        "\"p3\"",
        "Protocol generation of the plugin: p1, p2 or p3.",
    ),
    setting(
        REPLICAS,
        Kind::Integer(1, 9),
        "1",
        "Replicas of the manager and of the resolver. With two or more there are PodDisruptionBudgets. Unlike liqoctl, Helm \
         does not look at the nodes: set 2 where two nodes can run one.",
    ),
    setting(
        AVOID_NODES,
        Kind::Labels,
        "{}",
        "Liqo runs on no node with one of these labels. It never runs on virtual nodes.",
    ),
    row(
        IMAGE,
        Kind::Text(""),
        "",
        Class::CommandLine,
        "The image of the manager and of the resolver, in one text.",
    ),
    row(
        FABRIC_IMAGE,
        Kind::Text(""),
        "",
        Class::CommandLine,
        "The image of the fabric, in one text.",
    ),
    setting(
        "controllerManager.image.registry",
        Kind::Text(""),
        "\"localhost\"",
        "Registry of the manager's image.",
    ),
    setting(
        "controllerManager.image.repository",
        Kind::Text(""),
        "\"liqo/controller-manager\"",
        "Name of the manager's image there.",
    ),
    setting(
        "controllerManager.image.tag",
        Kind::Text(""),
        "\"\"",
        "Tag of the manager's image. Empty: this version of Liqo.",
    ),
    setting(
        "controllerManager.image.digest",
        Kind::Text("^(sha256:[0-9a-f]{64})?$"),
        "\"\"",
        "Digest of the manager's image, such as sha256:...; it takes the place of the tag.",
    ),
    setting(
        "fabric.image.registry",
        Kind::Text(""),
        "\"localhost\"",
        "Registry of the fabric's image.",
    ),
    setting(
        "fabric.image.repository",
        Kind::Text(""),
        "\"liqo/fabric\"",
        "Name of the fabric's image there.",
    ),
    setting(
        "fabric.image.tag",
        Kind::Text(""),
        "\"\"",
        "Tag of the fabric's image. Empty: this version of Liqo.",
    ),
    setting(
        "fabric.image.digest",
        Kind::Text("^(sha256:[0-9a-f]{64})?$"),
        "\"\"",
        "Digest of the fabric's image; it takes the place of the tag.",
    ),
    setting(
        GLOBAL_REGISTRY,
        Kind::Text(""),
        "\"\"",
        "Registry of all images. Empty: that of each image.",
    ),
    setting(
        KEY_DIRECTORY,
        Kind::Text("^/.+$"),
        "\"/var/lib/liqo\"",
        "Directory on each node in which it stores the key of its gateway. At another place the gateways create new keys.",
    ),
    setting(
        LEND_WITHOUT,
        Kind::Bool,
        "false",
        "Whether to lend although the pod network does not enforce NetworkPolicies.",
    ),
    setting(
        discovery::LAN,
        Kind::Bool,
        "false",
        "Whether the cluster announces itself on the local network, and looks for others there.",
    ),
    setting(
        discovery::INTERFACES,
        Kind::Texts("^[^/ ]{1,15}$"),
        "[]",
        "Network interfaces of the nodes for that, such as eth0. Empty: all except those of pods, containers and tunnels.",
    ),
    setting(
        discovery::AUTO_PEERING,
        Kind::Texts("^(LAN|DNS)$"),
        "[]",
        "LAN, DNS or both: peerings with clusters that were found this way start automatically, and need no token.",
    ),
    setting(
        CREDENTIAL_LIFETIME,
        Kind::Integer(600, 86_400),
        "3600",
        "Lifetime of the credentials of consumers, in seconds. The next one that is issued has it.",
    ),
    setting(
        network::ENABLED,
        Kind::Bool,
        "true",
        "Whether this cluster connects to the networks of its peers.",
    ),
    setting(
        network::POD_CIDRS,
        Kind::Texts(PREFIX),
        "[]",
        "Prefixes of this cluster's pods. Empty: Liqo detects them.",
    ),
    setting(
        network::SERVICE_CIDRS,
        Kind::Texts(PREFIX),
        "[]",
        "Prefixes of this cluster's Services. Empty: Liqo detects them.",
    ),
    setting(
        network::EXTERNAL_CIDRS,
        Kind::Texts(PREFIX),
        "[\"10.70.0.0/24\"]",
        "Prefixes of the addresses under which peers see nodes: at most one of each family.",
    ),
    setting(
        network::RESERVED_CIDRS,
        Kind::Texts(PREFIX),
        "[]",
        "Prefixes that are in use around this cluster. Liqo maps no peer there.",
    ),
    setting(
        network::PEER_CIDRS,
        Kind::Texts(PREFIX),
        "[\"10.64.0.0/10\",\"100.64.0.0/10\"]",
        "Prefixes of the addresses under which this cluster sees its peers.",
    ),
    setting(
        network::MTU,
        Kind::Integer(1280, 8900),
        "1420",
        "The largest packet inside tunnels, in bytes. Lower it if the path between the clusters carries less than 1500.",
    ),
    setting(
        network::API_THROUGH_TUNNEL,
        Kind::Bool,
        "false",
        "Whether peers may call the auth endpoint and the API server through the tunnel.",
    ),
    setting(
        network::REPLICAS,
        Kind::Integer(1, 7),
        "2",
        "How many nodes are gateways.",
    ),
    setting(
        network::PORT,
        Kind::Integer(1, 65_535),
        "51840",
        "UDP port of the tunnel.",
    ),
    setting(
        network::NODE_SELECTOR,
        Kind::Labels,
        "{}",
        "Only nodes with these labels become gateways.",
    ),
    setting(
        network::ADDRESSES,
        Kind::Texts(ADDRESS_AND_PORT),
        "[]",
        "address:port where peers reach the gateways through a load balancer. Empty: the addresses of the gateways' nodes.",
    ),
    setting(
        network::TLS_PORT,
        Kind::Integer(0, 65_535),
        "443",
        "TCP port on which gateways accept connections where UDP does not pass; 0 for none.",
    ),
    setting(
        network::TLS_ADDRESSES,
        Kind::Texts(ADDRESS_AND_PORT),
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
static CHART: &[Row] = &[
    chart(
        ADMISSION_POLICIES,
        Kind::Bool,
        "true",
        "Whether to install the ValidatingAdmissionPolicies. Without them nothing limits the manager to Liqo's own namespaces. Kubernetes \
         1.29 does not have them: there you must say false.",
    ),
    chart(
        "networkPolicies.enabled",
        Kind::Bool,
        "false",
        "Whether a NetworkPolicy closes all ports of the manager but those that it needs. These are open for everybody: the API server and \
         peers have no address that a policy could select. Off, because nothing else listens there; for clusters that ask for a policy.",
    ),
    chart(
        "imagePullPolicy",
        Kind::OneOf(&["Always", "IfNotPresent", "Never"]),
        "\"IfNotPresent\"",
        "When the nodes pull the images.",
    ),
    chart(
        "imagePullSecrets",
        Kind::List,
        "[]",
        "Names of Secrets in namespaces liqo and liqo-fabric with the credentials of registries.",
    ),
    chart(
        "extraLabels",
        Kind::Labels,
        "{}",
        "Labels on every object of this chart.",
    ),
    chart(
        "extraAnnotations",
        Kind::Labels,
        "{}",
        "Annotations on every object of this chart.",
    ),
    chart(
        "common.nodeSelector",
        Kind::Labels,
        "{}",
        "Nodes of the manager and of the resolver, where these have no selector of their own.",
    ),
    chart(
        "common.tolerations",
        Kind::List,
        "[]",
        "Tolerations of all pods that have none of their own.",
    ),
    chart(
        "common.affinity",
        Kind::Map,
        "{}",
        "Affinity of the manager and of the resolver, where these have none of their own.",
    ),
    chart(
        "controllerManager.nodeSelector",
        Kind::Labels,
        "{}",
        "Nodes of the manager. Empty: those of common.",
    ),
    chart(
        "controllerManager.tolerations",
        Kind::List,
        "[]",
        MORE_TOLERATIONS,
    ),
    chart("controllerManager.affinity", Kind::Map, "{}", AFFINITY),
    chart(
        "controllerManager.priorityClassName",
        Kind::Text(""),
        "\"system-cluster-critical\"",
        CRITICAL_PODS,
    ),
    chart(
        "controllerManager.resources",
        Kind::Map,
        r#"{"limits":{"memory":"512Mi"},"requests":{"cpu":"50m","memory":"64Mi"}}"#,
        "Requests and limits of the manager.",
    ),
    chart(
        "controllerManager.podLabels",
        Kind::Labels,
        "{}",
        "More labels on the manager's pods.",
    ),
    chart(
        "controllerManager.podAnnotations",
        Kind::Labels,
        "{}",
        "Annotations on the manager's pods.",
    ),
    chart("controllerManager.extraEnv", Kind::List, "[]", ENVIRONMENT),
    chart(
        "dns.nodeSelector",
        Kind::Labels,
        "{}",
        "Nodes of the resolver for remote pods. Empty: those of common.",
    ),
    chart("dns.tolerations", Kind::List, "[]", MORE_TOLERATIONS),
    chart("dns.affinity", Kind::Map, "{}", AFFINITY),
    chart(
        "dns.priorityClassName",
        Kind::Text(""),
        "\"system-cluster-critical\"",
        CRITICAL_PODS,
    ),
    chart(
        "dns.resources",
        Kind::Map,
        r#"{"limits":{"memory":"256Mi"},"requests":{"cpu":"10m","memory":"32Mi"}}"#,
        "Requests and limits of the resolver.",
    ),
    chart(
        "dns.podLabels",
        Kind::Labels,
        "{}",
        "More labels on the resolver's pods.",
    ),
    chart(
        "dns.podAnnotations",
        Kind::Labels,
        "{}",
        "Annotations on the resolver's pods.",
    ),
    chart("dns.extraEnv", Kind::List, "[]", ENVIRONMENT),
    chart(
        "fabric.nodeSelector",
        Kind::Labels,
        "{}",
        "Nodes of the fabric. Pods on other nodes do not reach peers.",
    ),
    chart(
        "fabric.tolerations",
        Kind::List,
        "[]",
        "More tolerations of the fabric, which tolerates every taint that only keeps pods away.",
    ),
    chart("fabric.affinity", Kind::Map, "{}", AFFINITY),
    chart(
        "fabric.priorityClassName",
        Kind::Text(""),
        "\"system-node-critical\"",
        CRITICAL_PODS,
    ),
    chart(
        "fabric.resources",
        Kind::Map,
        r#"{"limits":{"memory":"768Mi"},"requests":{"cpu":"20m","memory":"32Mi"}}"#,
        "Requests and limits of the fabric on each node.",
    ),
    chart(
        "fabric.podLabels",
        Kind::Labels,
        "{}",
        "More labels on the fabric's pods.",
    ),
    chart(
        "fabric.podAnnotations",
        Kind::Labels,
        "{}",
        "Annotations on the fabric's pods.",
    ),
    chart("fabric.extraEnv", Kind::List, "[]", ENVIRONMENT),
    chart(
        "authentication.service.type",
        Kind::OneOf(&["NodePort", "LoadBalancer", "ClusterIP"]),
        "\"NodePort\"",
        "Type of Service liqo-auth, by which peers reach the auth endpoint.",
    ),
    chart(
        "authentication.service.annotations",
        Kind::Labels,
        "{}",
        "Annotations on Service liqo-auth, for example for a cloud's load balancer.",
    ),
    chart(
        "authentication.service.nodePort",
        Kind::OptionalInteger(1, 65_535),
        "\"\"",
        "Port of the nodes for Service liqo-auth. Empty: Kubernetes chooses one.",
    ),
];

/// All keys.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    SETTINGS.iter().chain(CHART).chain(liqo::KEYS)
}

/// The keys of the Go implementation that are not keys of this one.
pub fn keys_of_liqo() -> impl Iterator<Item = &'static Row> {
    liqo::KEYS.iter()
}

/// The row of a key: of itself, or of a map that accepts everything inside of it.
pub fn find(key: &str) -> Option<&'static Row> {
    let within = |row: &Row| {
        row.kind == Kind::Anything
            && key
                .strip_prefix(row.key)
                .is_some_and(|rest| rest.starts_with('.'))
    };
    rows()
        .find(|row| row.key == key)
        .or_else(|| rows().find(|row| within(row)))
}

/// Whether other keys are inside of this one.
pub fn has_parts(key: &str) -> bool {
    rows().any(|row| {
        row.key
            .strip_prefix(key)
            .is_some_and(|rest| rest.starts_with('.'))
    })
}

impl Row {
    /// Whether the chart has a default for it.
    pub fn is_in_chart(&self) -> bool {
        matches!(self.class, Class::Setting | Class::Chart)
    }

    /// Whether `liqoctl install` has this setting.
    pub fn is_for_install(&self) -> bool {
        matches!(self.class, Class::Setting | Class::CommandLine)
    }

    /// One sentence for the user about a key of the Go implementation.
    pub fn note(&self) -> String {
        let (key, text) = (self.key, self.text);
        match self.class {
            Class::Mapped(target, _) if text.is_empty() => format!("{key} is {target} here"),
            Class::Mapped(target, _) => format!("{key} is {target} here: {text}"),
            Class::Noted => format!("{key} has no effect: {text}"),
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
            if let Class::Mapped(target, _) = row.class {
                assert!(
                    find(target).is_some_and(Row::is_in_chart),
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
                matches!(row.class, Class::Mapped(..)) || !row.text.is_empty(),
                "{}",
                row.key
            );
        }
    }
}
