//! Advice for failures.

use liqo_api::TunnelReason;
use liqo_network_probe::{ProblemKind, QuestionKind};

use super::{
    judge::{AnswerFault, FailedQuestion},
    plan::{PlannedQuestion, TargetKind},
    setup::{AskerKind, NetworkTestSetup, ReportedTunnel},
};

/// Advice for this failure. `passes` returns whether a question got the right answer.
pub fn advice_for_failure(
    setup: &NetworkTestSetup,
    failure: &FailedQuestion,
    passes: impl Fn(&dyn Fn(&PlannedQuestion) -> bool) -> bool,
) -> String {
    let ask = failure.ask;
    let (from, to) = (ask.path.from.0, ask.path.to.0);
    let is_near = from == to;
    if let Some(broken) = [from, to]
        .into_iter()
        .filter(|_| !is_near)
        .find_map(|cluster| broken_tunnel(setup, cluster))
    {
        return broken;
    }
    let small_passes = passes(&|other: &PlannedQuestion| {
        other.asker == ask.asker
            && other.path == ask.path
            && other.question.to == ask.question.to
            && other.question.what == QuestionKind::Tcp
    });
    match &failure.fault {
        AnswerFault::NotAsked(_) if from == 0 => {
            "the API server must reach the kubelet of that node: see whether `kubectl exec` into the pod works".to_owned()
        }
        AnswerFault::NotAsked(_) => "the API server must reach the controller manager, which serves virtual nodes, and the controller manager must reach \
             the API server of the other cluster: see whether `kubectl exec` into the pod works, and `liqoctl status`"
            .to_owned(),
        AnswerFault::Late => "the pod was still waiting for other answers: see what else failed first, then allow more time (`--timeout`) or fewer nodes \
             (`--nodes`)"
            .to_owned(),
        AnswerFault::Skipped => "see the failure of the transfer that did not arrive".to_owned(),
        AnswerFault::WrongPod { .. } => "two pods have the same address: something outside of Liqo uses an address that peers are mapped to; add it to \
             network.reservedCIDRs (`kubectl -n liqo get tunnelendpoints` shows the mapped prefixes)"
            .to_owned(),
        AnswerFault::WrongSource { .. } if is_near => {
            "this cluster's own network translates the source address: pods should reach pods without translation".to_owned()
        }
        AnswerFault::WrongSource { .. } => "something translates the source address before the gateway does: exclude the prefixes that peers are mapped to from \
             masquerading (by the CNI, or by firewalls on nodes)"
            .to_owned(),
        AnswerFault::WrongAddresses { .. } if from == 0 => {
            "the local EndpointSlices are not complete: `kubectl get endpointslices`, and see whether all pods are ready".to_owned()
        }
        AnswerFault::WrongAddresses { .. } => "the EndpointSlices there differ from the local ones: look for events with the reason NotReflected on the Service, and \
             read the log of the controller manager"
            .to_owned(),
        AnswerFault::Vanish { passes, .. } => too_long(setup, from, to, Some(*passes)),
        AnswerFault::Problem(problem) => match problem.kind {
            ProblemKind::UnknownName if from == 0 => "the name server of the cluster (kube-dns) does not answer the pod, or does not know the Service".to_owned(),
            ProblemKind::UnknownName => "the Service was not reflected to that cluster (look for events with the reason NotReflected on it), or its name \
                 server does not answer pods of that namespace"
                .to_owned(),
            _ if small_passes && matches!(ask.question.what, QuestionKind::Bulk { .. } | QuestionKind::Path { .. }) => too_long(setup, from, to, None),
            _ if small_passes && matches!(ask.question.what, QuestionKind::Udp { bytes } if bytes > 0) => {
                "fragmented datagrams do not pass: something on the path drops fragments".to_owned()
            }
            _ if small_passes && matches!(ask.question.what, QuestionKind::Udp { .. }) => {
                "TCP passes and UDP does not: look for NetworkPolicies and firewalls between the pods that name protocols".to_owned()
            }
            ProblemKind::Refused => "something else has that address, or kube-proxy knows no endpoint: `kubectl get endpointslices`".to_owned(),
            ProblemKind::Unreachable => format!(
                "that node has no route: `curl localhost:9479/readyz` on {}, and `kubectl -n liqo get leases -l liqo.io/gateway=true`",
                setup.probers[ask.asker].node
            ),
            ProblemKind::NoAnswer | ProblemKind::Broken => advice_for_silence(setup, ask, &passes),
        },
    }
}

/// The failure of the tunnel between home and this cluster, with advice; nothing if there is none.
fn broken_tunnel(setup: &NetworkTestSetup, cluster: usize) -> Option<String> {
    let ReportedTunnel {
        works: false,
        reason,
        message,
        ..
    } = setup.clusters[cluster].tunnel.as_ref()?
    else {
        return None;
    };
    let peer = setup.cluster_name(cluster);
    let next = match TunnelReason::parse(reason) {
        Some(TunnelReason::NoAnswer) => {
            "let UDP pass between the gateways (port 51840 by default), in at least one direction"
        }
        Some(TunnelReason::NoEndpoint) => {
            "the peer's gateway has to connect, so it must reach the gateway here over UDP"
        }
        Some(TunnelReason::NoGateway | TunnelReason::NoGatewayAtPeer) => {
            "see the DaemonSet liqo-fabric in both clusters"
        }
        Some(TunnelReason::NotPossible) => {
            "set network.reservedCIDRs or network.peerCIDRs so that no prefix is in use twice"
        }
        Some(
            TunnelReason::Connecting | TunnelReason::Connected | TunnelReason::ConnectedOverTls,
        )
        | None => "wait a minute, and see `liqoctl status`",
    };
    Some(format!(
        "the tunnel to {peer} does not work ({reason}: {message}): {next}"
    ))
}

fn too_long(setup: &NetworkTestSetup, from: usize, to: usize, passes: Option<u16>) -> String {
    let mtu = [from, to]
        .into_iter()
        .filter_map(|cluster| setup.clusters[cluster].tunnel.as_ref())
        .map(|tunnel| tunnel.mtu)
        .min();
    let now = mtu.map(|mtu| format!(" (now {mtu})")).unwrap_or_default();
    let value = passes.map_or("LESS".to_owned(), |passes| passes.to_string());
    format!(
        "small packets pass and large ones do not: let ICMP \"fragmentation needed\" pass between gateways and nodes, or set a smaller MTU{now}: \
         `liqoctl install --set network.mtu={value}`"
    )
}

/// Advice if nobody answers although the tunnels work: other answers show where the packets are
/// lost.
fn advice_for_silence(
    setup: &NetworkTestSetup,
    ask: &PlannedQuestion,
    passes: &impl Fn(&dyn Fn(&PlannedQuestion) -> bool) -> bool,
) -> String {
    let (from, to) = (ask.path.from.0, ask.path.to.0);
    let asker = &setup.probers[ask.asker];
    if ask.path.to.1 != TargetKind::Pod
        && passes(&|other: &PlannedQuestion| {
            other.asker == ask.asker && other.path.to == (to, TargetKind::Pod)
        })
    {
        return "the pods answer and their Service does not: check kube-proxy (or what replaces it) on that node, and `kubectl get endpointslices`".to_owned();
    }
    if from == to {
        return "this is within one cluster: check its CNI, and NetworkPolicies".to_owned();
    }
    let gateways = setup
        .clusters
        .iter()
        .find_map(|cluster| cluster.tunnel.as_ref()?.gateway.clone());
    let elsewhere = passes(&|other: &PlannedQuestion| {
        setup.probers[other.asker].node != asker.node
            && other.path.from == ask.path.from
            && other.path.to == ask.path.to
    });
    if from == 0
        && elsewhere
        && let Some(gateways) =
            gateways.filter(|gateways| gateways.split(", ").all(|gateway| gateway != asker.node))
    {
        return format!(
            "other nodes can connect: let UDP 6472 pass between node {} and the gateways ({gateways})",
            asker.node
        );
    }
    let home = setup.cluster_name(0);
    if from != 0 && to != 0 {
        return format!(
            "both tunnels of {home} work: see what {home}'s gateway drops (`nft list table ip liqo` and `liqo_guard` there, counters), and whether a NetworkPolicy in {} blocks it",
            setup.cluster_name(to)
        );
    }
    let kind = if asker.kind == AskerKind::Node {
        " (nodes are seen as addresses of network.externalCIDRs)"
    } else {
        ""
    };
    format!(
        "the tunnel works: a NetworkPolicy or a firewall in {} blocks it{kind}, or UDP 6472 between the gateway there and the pod's node is blocked; the counters of `nft list table ip liqo` on both gateways show where packets are dropped",
        setup.cluster_name(to)
    )
}
