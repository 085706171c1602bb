//! What to do about what does not work.

use liqo_probe::{ProblemKind, What};

use super::{
    judge::{Failure, Trouble},
    plan::{Ask, To},
    scene::{From, Scene, Tunnel},
};

/// What to do about this failure. `passes` says of a question whether it was answered as it should.
pub fn advice(scene: &Scene, failure: &Failure, passes: impl Fn(&dyn Fn(&Ask) -> bool) -> bool) -> String {
    let ask = failure.ask;
    let (from, to) = (ask.way.from.0, ask.way.to.0);
    let is_near = from == to;
    if let Some(broken) = [from, to].into_iter().filter(|_| !is_near).find_map(|cluster| broken_tunnel(scene, cluster)) {
        return broken;
    }
    let same_target = |what: fn(&What) -> bool| {
        passes(&|other: &Ask| {
            other.asker == ask.asker && other.way == ask.way && other.question.to == ask.question.to && what(&other.question.what)
        })
    };
    let small_passes = same_target(|what| *what == What::Tcp);
    match &failure.trouble {
        Trouble::NotAsked(_) if from == 0 => {
            "the API server must reach the kubelet of that node: see whether `kubectl exec` into the pod works".to_owned()
        }
        Trouble::NotAsked(_) => "the API server must reach the controller manager, which answers for virtual nodes, and that one the API server of the \
             other cluster: see whether `kubectl exec` into the pod works, and `liqoctl status`"
            .to_owned(),
        Trouble::Late => "the asker waited for answers to other questions: see what else failed first, then give it more time (`--timeout`) or fewer nodes \
             (`--nodes`)"
            .to_owned(),
        Trouble::Spared => "see what is said of the one that did not arrive".to_owned(),
        Trouble::WrongPod { .. } => "one address means two pods: something that is not Liqo's uses an address where peers appear; name it in \
             network.reservedCIDRs (`kubectl -n liqo get tunnelendpoints` shows what is where)"
            .to_owned(),
        Trouble::WrongSource { .. } if is_near => {
            "this cluster's own network hides who talks: pods should reach pods without translation of the source".to_owned()
        }
        Trouble::WrongSource { .. } => "something translates the source before the gateway does: except the prefixes where peers appear from \
             masquerading (of the CNI, or of firewalls on nodes)"
            .to_owned(),
        Trouble::WrongAddresses { .. } if from == 0 => {
            "the EndpointSlices of home are not complete: `kubectl get endpointslices`, and see whether all pods are ready".to_owned()
        }
        Trouble::WrongAddresses { .. } => "the EndpointSlices there are not those of home: look for events with the reason NotReflected on the Service, and \
             at the log of the controller manager"
            .to_owned(),
        Trouble::Vanish { passes, .. } => too_long(scene, from, to, Some(*passes)),
        Trouble::Problem(problem) => match problem.kind {
            ProblemKind::UnknownName if from == 0 => "the name server of the cluster (kube-dns) does not answer the asker, or does not know the Service".to_owned(),
            ProblemKind::UnknownName => "the Service was not reflected to that cluster (look for events with the reason NotReflected on it), or its name \
                 server does not answer pods of that namespace"
                .to_owned(),
            _ if small_passes && matches!(ask.question.what, What::Bulk { .. } | What::Path { .. }) => too_long(scene, from, to, None),
            _ if small_passes && matches!(ask.question.what, What::Udp { bytes } if bytes > 0) => {
                "datagrams in pieces do not pass: something on the way drops fragments".to_owned()
            }
            _ if small_passes && matches!(ask.question.what, What::Udp { .. }) => {
                "TCP passes and UDP does not: look for NetworkPolicies and firewalls between the pods that name protocols".to_owned()
            }
            ProblemKind::Refused => "somebody else has that address, or kube-proxy knows no endpoint: `kubectl get endpointslices`".to_owned(),
            ProblemKind::Unreachable => format!(
                "there is no way from that node: `curl localhost:9479/readyz` on {}, and `kubectl -n liqo get leases -l liqo.io/gateway=true`",
                scene.parties[ask.asker].node
            ),
            ProblemKind::NoAnswer | ProblemKind::Broken => silence(scene, ask, &passes),
        },
    }
}

/// What keeps the tunnel between home and this cluster from working.
fn broken_tunnel(scene: &Scene, cluster: usize) -> Option<String> {
    let Tunnel { works: false, reason, message, .. } = scene.clusters[cluster].tunnel.as_ref()? else { return None };
    let peer = &scene.clusters[cluster].name;
    let next = match reason.as_str() {
        "NoAnswer" => "let UDP of gateways pass (port 51840 unless set otherwise), in at least one direction",
        "NoEndpoint" => "the peer's gateway has to begin, so UDP to the gateway here must pass",
        "NoGateway" => "see the DaemonSet liqo-fabric in both clusters",
        "NotPossible" => "set network.reservedCIDRs or network.peerCIDRs so that nothing is in use twice",
        _ => "wait a little, and see `liqoctl status`",
    };
    Some(format!("the tunnel to {peer} does not work ({reason}: {message}): {next}"))
}

fn too_long(scene: &Scene, from: usize, to: usize, passes: Option<u16>) -> String {
    let mtu = [from, to].into_iter().filter_map(|cluster| scene.clusters[cluster].tunnel.as_ref()).map(|tunnel| tunnel.mtu).min();
    let now = mtu.map(|mtu| format!(" (now {mtu})")).unwrap_or_default();
    let value = passes.map_or("LESS".to_owned(), |passes| passes.to_string());
    format!(
        "small packets pass and large ones do not: let ICMP \"fragmentation needed\" pass between gateways and nodes, or set what fits{now}: \
         `liqoctl install --set network.mtu={value}`"
    )
}

/// Nobody answers though the tunnels work: who else is heard tells where it ends.
fn silence(scene: &Scene, ask: &Ask, passes: &impl Fn(&dyn Fn(&Ask) -> bool) -> bool) -> String {
    let (from, to) = (ask.way.from.0, ask.way.to.0);
    let asker = &scene.parties[ask.asker];
    let place = |cluster: usize| &scene.clusters[cluster].name;
    if ask.way.to.1 != To::Pod && passes(&|other: &Ask| other.asker == ask.asker && other.way.to == (to, To::Pod)) {
        return "the pods answer and their Service does not: kube-proxy (or what stands for it) on that node, and `kubectl get endpointslices`".to_owned();
    }
    if from == to {
        return "that is within one cluster: its CNI, or a NetworkPolicy".to_owned();
    }
    let gateways = scene.clusters.iter().find_map(|cluster| cluster.tunnel.as_ref()?.gateway.clone());
    let elsewhere = passes(&|other: &Ask| {
        scene.parties[other.asker].node != asker.node && other.way.from == ask.way.from && other.way.to == ask.way.to
    });
    if from == 0
        && elsewhere
        && let Some(gateways) = gateways.filter(|gateways| gateways.split(", ").all(|gateway| gateway != asker.node))
    {
        return format!("other nodes get through: let UDP 6472 pass between node {} and the gateways ({gateways})", asker.node);
    }
    let home = place(0);
    if from != 0 && to != 0 {
        return format!(
            "both tunnels of {home} work: see what {home}'s gateway drops (`nft list table ip liqo` and `liqo_guard` there, counters), and whether a NetworkPolicy in {} keeps it out",
            place(to)
        );
    }
    let kind = if asker.kind == From::Node { " (nodes are seen as addresses of network.externalCIDRs)" } else { "" };
    format!(
        "the tunnel works: a NetworkPolicy or a firewall in {} keeps it out{kind}, or UDP 6472 between the gateway there and the pod's node is blocked; the counters of `nft list table ip liqo` on both gateways tell where packets end",
        place(to)
    )
}
