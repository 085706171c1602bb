//! The nodes: Liqo's agent on each, and the parts of Kubernetes that the network depends on.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use liqo_api::isolation::{self, Lending};

use super::{count_of, first_few, unread_finding, workloads};
use crate::{
    cluster::full_name,
    doctor::{Check, CheckFinding},
    finding::CheckVerdict,
    inspect::{ClusterFacts, container_statuses, is_fabric},
    manifests::avoided_nodes,
    readiness,
};

pub fn check_nodes(facts: &ClusterFacts) -> Vec<CheckFinding> {
    let mut found = vec![check_ready_nodes(facts)];
    if !matches!(facts.liqo.config, Ok(None)) {
        found.extend(check_fabric_agents(facts));
    }
    found.extend([
        kube_proxy(facts),
        check_cni(facts),
        network_policies(facts),
        check_dns(facts),
    ]);
    found
}

fn check_ready_nodes(facts: &ClusterFacts) -> CheckFinding {
    let check = Check::NodesReady;
    let nodes = match facts.real_nodes() {
        Ok(nodes) => nodes,
        Err(why) => return unread_finding(check, &why),
    };
    let down: Vec<String> = nodes
        .iter()
        .filter(|node| !readiness::node(node))
        .map(|node| node.name_any())
        .collect();
    if down.is_empty() {
        return CheckFinding::ok(check, format!("{} Ready", count_of(nodes.len(), "node")));
    }
    let what = format!("not Ready: {}", first_few(&down));
    let advice = "`kubectl describe node NODE` says why; nothing reaches its pods, and it cannot be a gateway";
    if down.len() == nodes.len() {
        CheckFinding::fail(check, what, advice)
    } else {
        CheckFinding::warn(check, what, advice)
    }
}

/// The nodes on which Liqo's agent should run: real nodes without those that Liqo has to avoid.
pub fn with_fabric(facts: &ClusterFacts) -> Result<Vec<&Node>, String> {
    let avoided = facts
        .liqo
        .manager
        .as_ref()
        .map_err(Clone::clone)?
        .as_ref()
        .map(avoided_nodes)
        .unwrap_or_default();
    let mut nodes = facts.real_nodes()?;
    nodes.retain(|node| {
        avoided
            .iter()
            .all(|(key, value)| node.labels().get(key) != Some(value))
    });
    Ok(nodes)
}

fn check_fabric_agents(facts: &ClusterFacts) -> Vec<CheckFinding> {
    let check = Check::Fabric;
    let (nodes, pods) = match (with_fabric(facts), &facts.pods) {
        (Ok(nodes), Ok(pods)) => (nodes, pods),
        (Err(why), _) => return vec![unread_finding(check, &why)],
        (_, Err(why)) => return vec![unread_finding(check, why)],
    };
    let by_node: BTreeMap<&str, &Pod> = pods
        .iter()
        .filter(|pod| is_fabric(pod))
        .filter_map(|pod| Some((pod.spec.as_ref()?.node_name.as_deref()?, pod)))
        .collect();
    let (mut well, mut found) = (0, Vec::new());
    for node in nodes {
        let name = node.name_any();
        match by_node.get(name.as_str()) {
            Some(pod) if readiness::pod(pod) => well += 1,
            _ if !readiness::node(node) => found.push(CheckFinding::skipped(check, format!("node {name} is not Ready: the state of its pods is not known"))),
            Some(pod) => found.push(unhealthy_agent(check, &name, pod, facts)),
            None => found.push(CheckFinding::fail(
                check,
                format!("liqo-fabric does not run on node {name}: its pods reach no peer"),
                "`kubectl -n liqo-fabric describe daemonset liqo-fabric` says why there is no pod: a taint that evicts pods, a quota, or admission",
            )),
        }
    }
    if well > 0 {
        found.insert(
            0,
            CheckFinding::ok(
                check,
                format!("liqo-fabric is ready on {}", count_of(well, "node")),
            ),
        );
    }
    found
}

fn unhealthy_agent(check: Check, node: &str, pod: &Pod, facts: &ClusterFacts) -> CheckFinding {
    let name = full_name(pod);
    if let Some((why, advice)) = workloads::why_not_starting(pod, facts) {
        return CheckFinding::fail(check, format!("node {node}: {why}"), advice);
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return CheckFinding::warn(
            check,
            format!("node {node}: {name} is ending"),
            "another one replaces it: check again in a minute",
        );
    }
    if container_statuses(pod).all(|status| {
        status
            .state
            .as_ref()
            .is_none_or(|state| state.running.is_none())
    }) {
        return CheckFinding::warn(
            check,
            format!("node {node}: {name} is starting"),
            "check again in a minute; `kubectl -n liqo-fabric describe pod POD` says what it waits for",
        );
    }
    let complaint = facts
        .diagnostics
        .not_ready
        .get(&name)
        .map_or("it does not say why", String::as_str);
    CheckFinding::fail(
        check,
        format!("node {node}: {name} runs and is not ready: {complaint}"),
        "what it names is missing on the node: a kernel module (VXLAN, nftables, tun), or a port that another process uses; `kubectl -n liqo-fabric logs POD` has more",
    )
}

fn kube_proxy(facts: &ClusterFacts) -> CheckFinding {
    let check = Check::KubeProxy;
    let components = &facts.components;
    if let Ok(Some(value)) = &components.cilium_replaces_kube_proxy
        && ["true", "strict", "partial"].contains(&value.as_str())
    {
        let what = format!(
            "Cilium replaces kube-proxy (kube-proxy-replacement: {value}), which was not tested with Liqo's network"
        );
        return CheckFinding::warn(
            check,
            what,
            "eBPF handles Services before routes and nftables: `liqoctl test network` shows whether pods reach Services with endpoints at peers",
        );
    }
    if let Ok(Some(text)) = &components.kube_proxy {
        // An empty mode is kube-proxy's default.
        return match value_of(text, "mode").unwrap_or_default().as_str() {
            "" => CheckFinding::ok(check, "kube-proxy, in its default mode: iptables"),
            mode @ ("iptables" | "nftables") => {
                CheckFinding::ok(check, format!("kube-proxy, in mode {mode}"))
            }
            mode => CheckFinding::warn(
                check,
                format!("kube-proxy is in mode {mode}, which was not tested with Liqo's network"),
                "`liqoctl test network` shows whether pods reach Services with endpoints at peers; iptables and nftables are known to work",
            ),
        };
    }
    if let Err(why) = &components.kube_proxy {
        return unread_finding(check, why);
    }
    CheckFinding::unknown(
        check,
        "no ConfigMap kube-system/kube-proxy: it runs as a separate program, or something replaces it",
    )
}

/// The value of a key at the start of a line of simple YAML.
fn value_of(text: &str, key: &str) -> Option<String> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    Some(value.trim().trim_matches('"').to_owned())
}

/// A known CNI plugin.
struct CniPlugin {
    /// Prefix of the name of its `DaemonSet`.
    daemon_set: &'static str,
    name: &'static str,
}

const PLUGINS: [CniPlugin; 11] = [
    CniPlugin {
        daemon_set: "kindnet",
        name: "kindnet",
    },
    CniPlugin {
        daemon_set: "kube-flannel",
        name: "flannel",
    },
    CniPlugin {
        daemon_set: "canal",
        name: "canal",
    },
    CniPlugin {
        daemon_set: "calico-node",
        name: "Calico",
    },
    CniPlugin {
        daemon_set: "cilium",
        name: "Cilium",
    },
    CniPlugin {
        daemon_set: "antrea-agent",
        name: "Antrea",
    },
    CniPlugin {
        daemon_set: "kube-router",
        name: "kube-router",
    },
    CniPlugin {
        daemon_set: "weave-net",
        name: "Weave Net",
    },
    CniPlugin {
        daemon_set: "ovnkube-node",
        name: "OVN-Kubernetes",
    },
    CniPlugin {
        daemon_set: "aws-node",
        name: "Amazon VPC CNI",
    },
    CniPlugin {
        daemon_set: "azure-cni",
        name: "Azure CNI",
    },
];

/// The plugins in the cluster. The first provides the pod network; others may only enforce
/// `NetworkPolicies`.
fn detected_plugins(facts: &ClusterFacts) -> Result<Vec<&'static CniPlugin>, &String> {
    let sets = facts.components.daemon_sets.as_ref()?;
    Ok(PLUGINS
        .iter()
        .filter(|plugin| {
            sets.iter()
                .any(|set| set.name_any().starts_with(plugin.daemon_set))
        })
        .collect())
}

fn check_cni(facts: &ClusterFacts) -> CheckFinding {
    match detected_plugins(facts).as_deref() {
        Err(why) => unread_finding(Check::Cni, why),
        Ok([plugin, ..]) => CheckFinding::ok(Check::Cni, plugin.name),
        Ok([]) => CheckFinding::unknown(Check::Cni, "no known DaemonSet provides the pod network"),
    }
}

/// Judges what the manager found. The same rule decides whether something is offered.
fn network_policies(facts: &ClusterFacts) -> CheckFinding {
    let check = Check::NetworkPolicies;
    let config = match &facts.liqo.config {
        Ok(Some(config)) => config,
        Ok(None) => {
            return CheckFinding::unknown(check, "the manager tests it when Liqo is installed");
        }
        Err(why) => return unread_finding(check, why),
    };
    let what = isolation::describe_lending(
        isolation::are_policies_enforced(config),
        config.spec.lend_without_network_policies,
    );
    let lending = Lending::of_config(config);
    if matches!(lending, Lending::Isolated | Lending::Untested) {
        return CheckFinding::new(check, isolation_verdict(lending, false), what);
    }
    let is_provider = match facts.liqo.is_provider() {
        Ok(is_provider) => is_provider,
        Err(why) => return unread_finding(check, why),
    };
    match isolation_verdict(lending, is_provider) {
        CheckVerdict::Fail => CheckFinding::fail(
            check,
            what,
            format!("{ENFORCE}; or allow it, after reading {RISK}"),
        ),
        CheckVerdict::Warn => CheckFinding::warn(check, what, ENFORCE),
        verdict => CheckFinding::new(
            check,
            verdict,
            format!("{what}. This matters once this cluster lends"),
        ),
    }
}

/// How bad it is if the pod network does not enforce `NetworkPolicies`: nothing isolates pods of
/// consumers then, so it depends on whether there are any. `status` has the same verdict.
pub fn isolation_verdict(lending: Lending, is_provider: bool) -> CheckVerdict {
    match (lending, is_provider) {
        (Lending::Untested, _) => CheckVerdict::Unknown,
        (Lending::Refused, true) => CheckVerdict::Fail,
        (Lending::Allowed, true) => CheckVerdict::Warn,
        (Lending::Isolated, _) | (_, false) => CheckVerdict::Ok,
    }
}

/// Advice how to isolate pods of consumers.
const ENFORCE: &str = "add something that enforces them, for example kube-router's policy controller or Calico; the manager tests it within a minute";
/// The section of the docs about the risks without isolation.
const RISK: &str = "docs/how-to/require-enforced-networkpolicies.md";

fn check_dns(facts: &ClusterFacts) -> CheckFinding {
    let check = Check::Dns;
    let slices = match &facts.components.dns {
        Ok(slices) => slices,
        Err(why) => return unread_finding(check, why),
    };
    if slices.is_empty() {
        return CheckFinding::unknown(
            check,
            "there is no Service kube-system/kube-dns: something else resolves names",
        );
    }
    let domain = cluster_domain(facts)
        .map(|domain| format!(", cluster domain {domain}"))
        .unwrap_or_default();
    match super::cluster::ready_endpoints(slices, "kube-dns") {
        0 => CheckFinding::fail(
            check,
            "kube-dns has no ready endpoint: pods cannot resolve names",
            "`kubectl -n kube-system describe pods -l k8s-app=kube-dns`",
        ),
        number => CheckFinding::ok(
            check,
            format!("kube-dns has {}{domain}", count_of(number, "endpoint")),
        ),
    }
}

/// The cluster domain, if the Corefile contains it.
pub fn cluster_domain(facts: &ClusterFacts) -> Option<String> {
    let text = facts.components.corefile.as_ref().ok()?.as_ref()?;
    let zones = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("kubernetes "))?;
    zones
        .split_whitespace()
        .find(|zone| !zone.contains(".arpa") && *zone != "{")
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::inspect::fixtures::{condition, fabric_pod, facts, of, slice};

    fn second_node(ready: &str) -> Node {
        of(
            json!({ "metadata": { "name": "rome-2" }, "status": { "conditions": [{ "type": "Ready", "status": ready }] } }),
        )
    }

    #[test]
    fn nodes_that_are_down_are_named() {
        let mut facts = facts();
        assert_eq!(check_ready_nodes(&facts).verdict, CheckVerdict::Ok);
        facts.nodes.as_mut().unwrap().push(second_node("Unknown"));
        assert_eq!(check_ready_nodes(&facts).verdict, CheckVerdict::Warn);
        assert!(check_ready_nodes(&facts).what.contains("rome-2"));
        facts.nodes = Ok(vec![second_node("False")]);
        assert_eq!(check_ready_nodes(&facts).verdict, CheckVerdict::Fail);
    }

    #[test]
    fn a_node_without_the_fabric_is_named() {
        let mut facts = facts();
        assert_eq!(check_fabric_agents(&facts)[0].verdict, CheckVerdict::Ok);
        facts.nodes.as_mut().unwrap().push(second_node("True"));
        let found = check_fabric_agents(&facts);
        assert_eq!((found.len(), found[1].verdict), (2, CheckVerdict::Fail));
        assert!(found[1].what.contains("does not run on node rome-2"));
        facts.nodes.as_mut().unwrap()[1] = second_node("False");
        assert_eq!(
            check_fabric_agents(&facts)[1].verdict,
            CheckVerdict::Skipped,
            "that follows from the node"
        );
    }

    #[test]
    fn a_fabric_that_is_not_ready_says_what_is_missing() {
        let mut facts = facts();
        let pod = fabric_pod("False");
        facts
            .diagnostics
            .not_ready
            .insert(full_name(&pod), "no nftables".to_owned());
        facts.pods = Ok(vec![pod]);
        let found = check_fabric_agents(&facts);
        assert_eq!(found[0].verdict, CheckVerdict::Fail);
        assert!(found[0].what.contains("no nftables"), "{}", found[0].what);
    }

    #[test]
    fn nodes_that_liqo_is_to_avoid_need_no_fabric() {
        let mut facts = facts();
        let mut fake = second_node("True");
        fake.labels_mut()
            .insert("type".to_owned(), "fake".to_owned());
        facts.nodes.as_mut().unwrap().push(fake);
        let expressions = json!([{ "key": "type", "operator": "NotIn", "values": ["fake"] }]);
        let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{ "matchExpressions": expressions }] } } });
        facts.liqo.manager = Ok(Some(of(
            json!({ "spec": { "selector": {}, "template": { "spec": { "affinity": affinity, "containers": [] } } } }),
        )));
        assert_eq!(check_fabric_agents(&facts).len(), 1);
        facts.liqo.manager = Err("cannot read the Deployment".to_owned());
        assert_eq!(
            check_fabric_agents(&facts),
            [CheckFinding::unknown(
                Check::Fabric,
                "cannot read the Deployment"
            )]
        );
    }

    #[test]
    fn the_mode_of_kube_proxy_is_known_or_not() {
        let mut facts = facts();
        let mut verdict = |text: Option<&str>| {
            facts.components.kube_proxy = Ok(text.map(str::to_owned));
            kube_proxy(&facts).verdict
        };
        assert_eq!(verdict(None), CheckVerdict::Unknown);
        for mode in [
            "mode: \"\"",
            "mode: nftables",
            "kind: KubeProxyConfiguration",
        ] {
            assert_eq!(verdict(Some(mode)), CheckVerdict::Ok, "{mode}");
        }
        assert_eq!(verdict(Some("mode: ipvs\n")), CheckVerdict::Warn);
        facts.components.cilium_replaces_kube_proxy = Ok(Some("true".to_owned()));
        assert!(kube_proxy(&facts).what.contains("Cilium"));
    }

    #[test]
    fn the_network_of_pods_is_known_by_its_daemon_set() {
        let mut facts = facts();
        assert_eq!(check_cni(&facts).verdict, CheckVerdict::Unknown);
        let mut with = |names: &[&str]| {
            facts.components.daemon_sets = Ok(names
                .iter()
                .map(|name| of(json!({ "metadata": { "name": name } })))
                .collect());
            check_cni(&facts).what
        };
        assert_eq!(with(&["calico-node"]), "Calico");
        assert_eq!(
            with(&["kube-flannel-ds", "kube-router"]),
            "flannel",
            "the other one only enforces NetworkPolicies"
        );
    }

    #[test]
    fn the_doctor_says_what_the_manager_found_about_network_policies_and_what_follows() {
        let mut facts = facts();
        assert_eq!(
            network_policies(&facts).verdict,
            CheckVerdict::Unknown,
            "not tested yet"
        );
        let mut with = |status: &str, allowed: bool, lends: bool| {
            let config = facts.liqo.config.as_mut().unwrap().as_mut().unwrap();
            config.spec.lend_without_network_policies = allowed;
            config.status.as_mut().unwrap().conditions = vec![condition(
                liqo_api::NETWORK_POLICIES_ENFORCED,
                status,
                "Any",
            )];
            facts.liqo.peers.as_mut().unwrap()[0]
                .status
                .as_mut()
                .unwrap()
                .tenant_namespace = lends.then(|| "t".to_owned());
            network_policies(&facts)
        };
        assert_eq!(with("True", false, true).verdict, CheckVerdict::Ok);
        assert_eq!(with("True", true, true).verdict, CheckVerdict::Ok);
        assert_eq!(with("False", true, true).verdict, CheckVerdict::Warn);
        assert_eq!(
            with("False", false, false).verdict,
            CheckVerdict::Ok,
            "nobody wants to borrow"
        );
        assert_eq!(with("Unknown", false, true).verdict, CheckVerdict::Unknown);
        let refused = with("False", false, true);
        assert_eq!(refused.verdict, CheckVerdict::Fail);
        assert!(
            refused
                .what
                .contains("--set lendWithoutNetworkPolicies=true"),
            "{}",
            refused.what
        );
        facts.liqo.config = Err("cannot read ClusterConfig".to_owned());
        assert_eq!(network_policies(&facts).verdict, CheckVerdict::Unknown);
    }

    #[test]
    fn names_are_answered_or_not() {
        let mut facts = facts();
        assert!(
            check_dns(&facts)
                .what
                .ends_with("cluster domain cluster.local"),
            "{}",
            check_dns(&facts).what
        );
        facts.components.dns = Ok(vec![slice("kube-dns", false)]);
        assert_eq!(check_dns(&facts).verdict, CheckVerdict::Fail);
        facts.components.dns = Ok(Vec::new());
        assert_eq!(check_dns(&facts).verdict, CheckVerdict::Unknown);
    }
}
