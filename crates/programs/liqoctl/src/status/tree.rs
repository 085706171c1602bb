//! The status as a tree for people.

use liqo_api::{
    CallReason, Exposed, NETWORK_POLICIES_ENFORCED, OfferPhase, TetheringState, Transport, links,
};

use super::{
    BorrowingSummary, LendingSummary, LinkSummary, NetworkSummary, OfferSummary,
    OffloadedNamespaceSummary, PeerSummary, StatusReport, ThisCluster, TunnelPath,
    VirtualNodeSummary, WorkingMode,
};
use crate::{
    branch::Branch,
    finding::CheckVerdict,
    kept_addresses::KeepableRanges,
    output::{Paint, strip_control_characters},
};

pub fn render_status(status: &StatusReport, paint: Paint) -> String {
    let Some(cluster) = &status.cluster else {
        return render_namespaces_alone(&status.namespaces, paint);
    };
    let mut root = own_cluster_branch(cluster, paint);
    if cluster.installed {
        if status.peers.is_empty() {
            root.children.push(Branch::leaf(paint.faint(
                "no peers: `liqoctl peer --remote-kubeconfig FILE` borrows from another cluster",
            )));
        }
        root.children
            .extend(status.peers.iter().map(|one| peer_branch(one, paint)));
        if !status.namespaces.is_empty() {
            let children = status
                .namespaces
                .iter()
                .map(|one| namespace_branch(one, paint))
                .collect();
            root.children.push(Branch {
                text: paint.strong("offloaded namespaces"),
                children,
            });
        }
    }
    let mut out = String::new();
    root.draw("", &mut out);
    out
}

/// The offloaded namespaces for a user who may see nothing else.
fn render_namespaces_alone(namespaces: &[OffloadedNamespaceSummary], paint: Paint) -> String {
    let mut out = String::new();
    for namespace in namespaces {
        namespace_branch(namespace, paint).draw("", &mut out);
    }
    if namespaces.is_empty() {
        out.push_str("The namespace is not offloaded.\n");
    }
    out.push_str("You may not see the rest, which is about the whole cluster.\n");
    out
}

fn own_cluster_branch(cluster: &ThisCluster, paint: Paint) -> Branch {
    let mut text = paint.strong(&cluster.name);
    let Some(id) = &cluster.cluster_id else {
        let text = if cluster.installed {
            format!("{text} (Liqo has not started yet)")
        } else {
            format!("{text} (Liqo is not installed: `liqoctl install`)")
        };
        return Branch::leaf(text);
    };
    text += &paint.faint(&format!(
        " (ID {id}, Liqo {})",
        cluster
            .version
            .as_deref()
            .unwrap_or("of an unknown version")
    ));
    let manager = cluster.manager;
    let works = manager.available >= manager.wanted && manager.available > 0;
    let replicas = format!(
        "{} controller manager: {} of {} replicas available",
        condition_mark(Some(works), paint),
        manager.available,
        manager.wanted
    );
    let note = cluster
        .replicas_note
        .iter()
        .map(|note| Branch::leaf(paint.unsure(note)));
    let mut children = vec![Branch {
        text: replicas,
        children: note.collect(),
    }];
    children.extend(
        cluster
            .conditions
            .iter()
            .map(|condition| own_condition_branch(condition, cluster.isolation, paint)),
    );
    children.extend(
        cluster
            .mode
            .iter()
            .filter_map(|mode| working_mode(mode, paint)),
    );
    if let (Some(auth), Some(api)) = (&cluster.auth_url, &cluster.api_server_url) {
        children.push(Branch::leaf(
            paint.faint(&format!("peers reach it at {auth} and {api}")),
        ));
    }
    Branch { text, children }
}

/// The working mode, unless the cluster is autonomous and nobody wants it to be tethered.
fn working_mode(mode: &WorkingMode, paint: Paint) -> Option<Branch> {
    let peer = mode.peer.as_ref()?;
    let what = match mode.state {
        TetheringState::Autonomous => {
            format!(
                "{} not tethered to {peer}",
                condition_mark(Some(false), paint)
            )
        }
        TetheringState::Tethering => format!("{} tethering to {peer}", condition_mark(None, paint)),
        TetheringState::Tethered => format!(
            "{} tethered to {peer}",
            condition_mark(Some(mode.deadline.is_none()), paint)
        ),
        TetheringState::Releasing => {
            format!(
                "{} taking back control from {peer}",
                condition_mark(None, paint)
            )
        }
    };
    let until = mode
        .deadline
        .as_ref()
        .map(|deadline| format!(" (until {:.0})", deadline.0))
        .unwrap_or_default();
    Some(Branch::leaf(format!(
        "{what}: {}: {}{until}",
        mode.reason,
        strip_control_characters(&mode.message)
    )))
}

fn condition_mark(holds: Option<bool>, paint: Paint) -> String {
    match holds {
        Some(true) => paint.good("✓"),
        Some(false) => paint.bad("✗"),
        None => paint.unsure("?"),
    }
}

fn link_branch(link: &LinkSummary, paint: Paint) -> Branch {
    let holds = match link.status.as_str() {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    };
    marked_link_branch(link, &condition_mark(holds, paint), paint)
}

/// The link with this mark; and why, if it does not hold.
fn marked_link_branch(link: &LinkSummary, mark: &str, paint: Paint) -> Branch {
    let mut text = format!("{mark} {}", link.name);
    if link.status != "True" {
        text = format!(
            "{text}: {}: {} {}",
            link.reason,
            strip_control_characters(&link.message),
            paint.faint(&format!("(since {})", link.since))
        );
    }
    Branch::leaf(text)
}

/// A condition of this cluster. Where nobody borrows, it is no fault that nothing isolates pods of
/// consumers.
fn own_condition_branch(link: &LinkSummary, isolation: CheckVerdict, paint: Paint) -> Branch {
    if link.name != NETWORK_POLICIES_ENFORCED || link.status != "False" {
        return link_branch(link, paint);
    }
    if isolation == CheckVerdict::Ok {
        return Branch::leaf(paint.faint(&format!(
            "- {}: {}: this matters once this cluster lends",
            link.name, link.reason
        )));
    }
    marked_link_branch(link, &isolation.mark(paint), paint)
}

fn peer_branch(peer: &PeerSummary, paint: Paint) -> Branch {
    let mut text = paint.strong(&peer.name) + &paint.faint(&format!(" (ID {})", peer.cluster_id));
    if peer.ending {
        text += &paint.unsure(" is ending");
    }
    let mut children = Vec::new();
    children.extend(
        peer.borrowing
            .as_ref()
            .map(|one| borrowing_branch(&peer.name, one, paint)),
    );
    children.extend(
        peer.lending
            .as_ref()
            .map(|one| lending_branch(&peer.name, one, paint)),
    );
    children.extend(
        peer.network
            .as_ref()
            .map(|one| network_branch(&peer.name, one, paint)),
    );
    if children.is_empty() {
        children.push(Branch::leaf(paint.faint("no peering")));
    }
    Branch { text, children }
}

fn borrowing_branch(name: &str, borrowing: &BorrowingSummary, paint: Paint) -> Branch {
    let mut children: Vec<_> = borrowing
        .links
        .iter()
        .map(|one| link_branch(one, paint))
        .collect();
    if children.is_empty() {
        children.push(Branch::leaf(format!(
            "{} nothing has happened yet",
            condition_mark(None, paint)
        )));
    }
    children.extend(
        borrowing
            .tunnel
            .as_ref()
            .map(|through| Branch::leaf(through_tunnel(through, &borrowing.links, paint))),
    );
    children.extend(
        borrowing
            .pool_for_each_node
            .as_ref()
            .map(|answer| link_branch(answer, paint)),
    );
    if borrowing.network_only {
        children.push(Branch::leaf(
            paint.faint("requests no resources, only the network"),
        ));
    }
    // A node is shown below its offer, or alone if the offer is gone.
    children.extend(borrowing.offers.iter().map(|one| {
        let mut branch = offer_branch(one, Some(name), paint);
        branch.children.extend(
            borrowing
                .nodes
                .iter()
                .filter(|node| node.pool == one.pool)
                .map(|one| node_branch(one, paint)),
        );
        branch
    }));
    children.extend(
        borrowing
            .nodes
            .iter()
            .filter(|one| borrowing.offers.iter().all(|offer| offer.pool != one.pool))
            .map(|one| node_branch(one, paint)),
    );
    Branch {
        text: format!("borrowed from {name}"),
        children,
    }
}

/// A gateway that this cluster hears is no proof that the gateway hears this cluster: only answers
/// of the peer are.
fn through_tunnel(through: &TunnelPath, links: &[LinkSummary], paint: Paint) -> String {
    let reachable = links.iter().find(|link| link.name == links::PEER_REACHABLE);
    match &through.gateway {
        Some(gateway)
            if reachable.is_some_and(|link| link.reason == CallReason::Unreachable.as_str()) =>
        {
            paint.unsure(&format!(
                "called through its tunnel: gateway {} is heard, and the peer does not answer",
                strip_control_characters(gateway)
            ))
        }
        Some(gateway) => paint.faint(&format!(
            "reached through its tunnel, gateway {}",
            strip_control_characters(gateway)
        )),
        None if reachable.is_some_and(|link| link.status == "True") => {
            paint.faint("reached through its tunnel")
        }
        None => paint.unsure("called through its tunnel, where no gateway answers now"),
    }
}

fn lending_branch(name: &str, lending: &LendingSummary, paint: Paint) -> Branch {
    let mut children: Vec<_> = lending
        .links
        .iter()
        .map(|one| link_branch(one, paint))
        .collect();
    children.extend(
        lending
            .offers
            .iter()
            .map(|one| offer_branch(one, None, paint)),
    );
    let answered = lending
        .links
        .iter()
        .any(|link| link.name == links::RESOURCES_OFFERED);
    if lending.tenant_namespace.is_some() && !answered {
        children.push(Branch::leaf(paint.faint("it requests no resources")));
    }
    children.push(Branch::leaf(count_of(
        lending.pods,
        "of its pods runs here",
        "of its pods run here",
    )));
    Branch {
        text: format!("lent to {name}"),
        children,
    }
}

fn network_branch(name: &str, network: &NetworkSummary, paint: Paint) -> Branch {
    let mut children: Vec<_> = network
        .links
        .iter()
        .map(|one| link_branch(one, paint))
        .collect();
    let (own, others): (Vec<_>, Vec<_>) = network
        .prefixes
        .iter()
        .partition(|(there, _)| !network.behind.contains_key(*there));
    let seen: Vec<String> = own
        .into_iter()
        .chain(others)
        .map(|(there, here)| {
            let owner = network.behind.get(there).and_then(|way| way.first());
            let behind = owner
                .map(|owner| format!(" (cluster {} behind it)", owner.short_id()))
                .unwrap_or_default();
            if there == here {
                format!("{there}{behind} keeps its addresses here")
            } else {
                format!("{there}{behind} is mapped here to {here}")
            }
        })
        .collect();
    if !seen.is_empty() {
        children.push(Branch::leaf(format!("its {}", seen.join(", "))));
    }
    let waiting = network.waiting.iter().map(|(there, later)| {
        format!("{there} is mapped to {later} when no pod of either cluster runs at the other")
    });
    children.extend(waiting.map(|text| Branch::leaf(paint.unsure(&text))));
    children.extend(addresses_that_could_stay(name, &network.keepable, paint));
    children.extend(network.gateways.iter().map(|gateway| {
        let (node, ends) = (
            strip_control_characters(&gateway.node),
            strip_control_characters(&gateway.endpoints.join(", ")),
        );
        let over = match gateway.transport {
            Some(Transport::Tls) => paint.unsure(" over TLS, because UDP does not pass"),
            _ => String::new(),
        };
        let latency = gateway
            .latency_microseconds
            .map(|time| format!(", {}.{} ms", time / 1000, time % 1000 / 100));
        let lost = gateway
            .loss_percent
            .filter(|loss| *loss > 0)
            .map(|loss| paint.unsure(&format!(", {loss} % lost")));
        let quality = latency.unwrap_or_default() + &lost.unwrap_or_default();
        let direct = gateway
            .direct
            .iter()
            .map(|id| Branch::leaf(format!("directly to cluster {} behind it", id.short_id())));
        let text = if gateway.connected {
            format!("tunnel from node {node} to {ends}{over}{quality}")
        } else {
            paint.unsure(&format!("no tunnel from node {node}"))
        };
        Branch {
            text,
            children: direct.collect(),
        }
    }));
    Branch {
        text: format!("network to {name}"),
        children,
    }
}

fn addresses_that_could_stay(name: &str, keepable: &KeepableRanges, paint: Paint) -> Vec<Branch> {
    let lines = keepable
        .sentences(name)
        .into_iter()
        .map(|line| Branch::leaf(paint.faint(&line)))
        .collect();
    match keepable.summary() {
        Some(summary) => vec![Branch {
            text: paint.faint(summary),
            children: lines,
        }],
        None => lines,
    }
}

/// An offer from `provider`, or one that this cluster makes.
fn offer_branch(offer: &OfferSummary, provider: Option<&str>, paint: Paint) -> Branch {
    let phase = format!("{:?}", offer.phase);
    let phase = match offer.phase {
        OfferPhase::Accepted => paint.good(&phase),
        OfferPhase::Refused => paint.bad(&phase),
        OfferPhase::Pending | OfferPhase::ManualActionRequired => paint.unsure(&phase),
    };
    let why = match (offer.phase, provider) {
        (OfferPhase::Accepted, _) => None,
        (OfferPhase::ManualActionRequired, Some(name)) => Some(format!(
            "you have to decide: `liqoctl offer accept {name} {}`",
            strip_control_characters(&offer.pool)
        )),
        (OfferPhase::ManualActionRequired, None) => Some("the consumer has to decide".to_owned()),
        _ => offer.message.as_deref().map(strip_control_characters),
    };
    let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
    let mut branch = Branch::leaf(format!(
        "offer {}: {phase}{why}: {}",
        strip_control_characters(&offer.pool),
        offer.resources.rounded()
    ));
    let times = [
        offer.withdrawal_timestamp.as_ref().map(|at| format!("withdrawn: ends at {at}, its pods move away until then")),
        offer
            .reclaim_timestamp
            .as_ref()
            .map(|at| format!("more is used than offered: from {at} on, the provider ends pods beyond the offer")),
        offer
            .drain_timestamp
            .as_ref()
            .map(|at| format!("the pool has other nodes now: from {at} on, the provider ends pods on the former ones")),
    ];
    if offer.phase == OfferPhase::Accepted && offer.resources.is_zero() {
        let who = provider.map_or_else(|| "we offer".to_owned(), |name| format!("{name} offers"));
        branch
            .children
            .push(Branch::leaf(paint.unsure(&format!("{who} nothing now"))));
    }
    branch.children.extend(
        times
            .into_iter()
            .flatten()
            .map(|text| Branch::leaf(paint.unsure(&text))),
    );
    branch
}

fn node_branch(node: &VirtualNodeSummary, paint: Paint) -> Branch {
    let name = node.node.as_deref().unwrap_or("(not named yet)");
    let ready = if node.ready { "Ready" } else { "not Ready" };
    let text = format!(
        "{} node {name}: {ready}: {}; {}",
        condition_mark(Some(node.ready), paint),
        node.resources.rounded(),
        count_of(node.pods, "pod", "pods")
    );
    let mut branch = Branch::leaf(text);
    if !node.used.is_zero() {
        branch
            .children
            .push(Branch::leaf(format!("used: {}", node.used.rounded())));
        branch
            .children
            .push(Branch::leaf(format!("free: {}", node.free.rounded())));
    }
    branch
}

fn namespace_branch(namespace: &OffloadedNamespaceSummary, paint: Paint) -> Branch {
    let mut children: Vec<_> = namespace
        .ready
        .iter()
        .filter(|ready| ready.status != "True")
        .map(|ready| link_branch(ready, paint))
        .collect();
    children.extend(namespace.remote.iter().map(|remote| {
        let why = remote
            .message
            .as_ref()
            .filter(|_| !remote.ready)
            .map(|why| format!(": {}", strip_control_characters(why)))
            .unwrap_or_default();
        let text = format!(
            "{} {} in {}{why}",
            condition_mark(Some(remote.ready), paint),
            remote.namespace,
            remote.cluster
        );
        Branch {
            text,
            children: remote.exposed.iter().map(exposed_branch).collect(),
        }
    }));
    if children.is_empty() {
        children.push(Branch::leaf(paint.faint("exists in no other cluster yet")));
    }
    let preference = namespace
        .placement
        .as_ref()
        .map(|placement| format!(", {:?}", placement.strategy))
        .unwrap_or_default();
    Branch {
        text: format!(
            "{} ({:?}{preference})",
            namespace.namespace, namespace.pod_offloading_strategy
        ),
        children,
    }
}

fn exposed_branch(exposed: &Exposed) -> Branch {
    let Exposed {
        kind,
        name,
        exposure,
    } = exposed;
    let class = if exposure.class.is_empty() {
        String::new()
    } else {
        format!(" of class {}", strip_control_characters(&exposure.class))
    };
    let addresses: Vec<String> = exposure
        .addresses
        .iter()
        .map(|address| strip_control_characters(address))
        .collect();
    let at = if addresses.is_empty() {
        "has no address yet".to_owned()
    } else {
        format!("at {}", addresses.join(", "))
    };
    Branch::leaf(format!(
        "{} {}{class} {at}",
        strip_control_characters(kind),
        strip_control_characters(name)
    ))
}

fn count_of(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use liqo_api::{
        ClusterId, Exposure, GatewayStatus, PlacementStrategy, PodOffloadingStrategy, PodPlacement,
        Quantity, ResourceList,
    };

    use super::*;
    use crate::status::{RemoteNamespaceSummary, ReplicaCounts, TunnelPath};

    fn link(name: &str, status: &str) -> LinkSummary {
        LinkSummary {
            name: name.into(),
            status: status.into(),
            reason: "Reason".into(),
            message: "what is the case".into(),
            since: "2026-01-01T00:00:00Z".into(),
        }
    }

    fn resources() -> ResourceList {
        let quantity = |text: &str| text.parse::<Quantity>().unwrap();
        [("cpu", quantity("2")), ("memory", quantity("4Gi"))]
            .into_iter()
            .collect()
    }

    fn offer(phase: OfferPhase) -> OfferSummary {
        OfferSummary {
            pool: "default".into(),
            phase,
            message: Some("why".into()),
            resources: resources(),
            withdrawal_timestamp: None,
            reclaim_timestamp: None,
            drain_timestamp: None,
        }
    }

    fn milan() -> PeerSummary {
        PeerSummary {
            name: "milan".into(),
            cluster_id: ClusterId::of_public_key(&[2; 32]),
            borrowing: Some(BorrowingSummary {
                network_only: false,
                pool_for_each_node: None,
                tunnel: Some(TunnelPath {
                    gateway: Some("203.0.113.9:51840".into()),
                }),
                links: vec![
                    link("IdentityVerified", "True"),
                    link("Authenticated", "True"),
                    link("PeerReachable", "False"),
                ],
                offers: vec![offer(OfferPhase::Accepted)],
                nodes: vec![VirtualNodeSummary {
                    pool: "default".into(),
                    node: Some("milan".into()),
                    ready: false,
                    resources: resources(),
                    used: [
                        ("cpu", "500m".parse().unwrap()),
                        ("memory", "1234567Ki".parse().unwrap()),
                    ]
                    .into(),
                    free: [
                        ("cpu", "1500m".parse().unwrap()),
                        ("memory", "2959737Ki".parse().unwrap()),
                    ]
                    .into(),
                    pods: 1,
                }],
            }),
            network: Some(NetworkSummary {
                links: vec![
                    link("NetworkAgreed", "True"),
                    link("TunnelConnected", "Unknown"),
                ],
                prefixes: [
                    ("10.244.0.0/16", "10.65.0.0/16"),
                    ("10.81.0.0/16", "10.67.0.0/16"),
                ]
                .map(|(there, here)| (there.parse().unwrap(), here.parse().unwrap()))
                .into(),
                keepable: KeepableRanges {
                    could_keep: ["10.244.0.0/16".parse().unwrap()].into(),
                    peer_could_keep: ["10.245.0.0/16".parse().unwrap()].into(),
                    ..KeepableRanges::default()
                },
                waiting: [].into(),
                behind: [(
                    "10.81.0.0/16".parse().unwrap(),
                    vec!["q".repeat(32).parse().unwrap()],
                )]
                .into(),
                gateways: vec![
                    GatewayStatus {
                        node: "rome-1".into(),
                        connected: true,
                        transport: Some(Transport::Udp),
                        endpoints: vec!["203.0.113.9:51840".into(), "203.0.113.10:51840".into()],
                        latency_microseconds: Some(12_300),
                        loss_percent: Some(5),
                        direct: ["q".repeat(32).parse().unwrap()].into(),
                    },
                    GatewayStatus {
                        node: "rome-2".into(),
                        ..GatewayStatus::default()
                    },
                ],
            }),
            lending: Some(LendingSummary {
                tenant_namespace: Some("liqo-tenant-x".into()),
                links: vec![
                    link("ConsumerAuthorized", "True"),
                    link("ConsumerReachable", "Unknown"),
                ],
                offers: vec![offer(OfferPhase::Refused)],
                pods: 3,
            }),
            ending: false,
        }
    }

    fn example() -> StatusReport {
        StatusReport {
            cluster: Some(ThisCluster {
                name: "rome".into(),
                installed: true,
                cluster_id: Some(ClusterId::of_public_key(&[1; 32])),
                version: Some("0.1.0".into()),
                auth_url: Some("https://203.0.113.5:30443".into()),
                api_server_url: Some("https://203.0.113.5:6443".into()),
                conditions: vec![link("AddressesKnown", "True")],
                isolation: CheckVerdict::Unknown,
                mode: None,
                manager: ReplicaCounts {
                    available: 1,
                    wanted: 1,
                },
                replicas_note: Some("one replica".into()),
            }),
            peers: vec![
                milan(),
                PeerSummary {
                    name: "turin".into(),
                    cluster_id: ClusterId::of_public_key(&[3; 32]),
                    borrowing: None,
                    lending: None,
                    network: None,
                    ending: true,
                },
            ],
            namespaces: vec![OffloadedNamespaceSummary {
                namespace: "demo".into(),
                pod_offloading_strategy: PodOffloadingStrategy::LocalAndRemote,
                placement: Some(PodPlacement {
                    strategy: PlacementStrategy::Cheapest,
                    ..PodPlacement::default()
                }),
                ready: Some(link("Ready", "False")),
                remote: vec![RemoteNamespaceSummary {
                    cluster: "milan".into(),
                    namespace: "demo-rome-abcdef".into(),
                    ready: false,
                    message: Some("name \u{1b}taken".into()),
                    exposed: vec![Exposed {
                        kind: "Ingress".into(),
                        name: "shop".into(),
                        exposure: Exposure {
                            class: "public".into(),
                            addresses: vec!["203.0.113.7".into()],
                        },
                    }],
                }],
            }],
        }
    }

    #[test]
    fn a_gateway_is_named_as_the_way_only_while_the_peer_answers() {
        let text = |gateway: Option<&str>, status: &str, reason: &str| {
            let reachable = LinkSummary {
                reason: reason.into(),
                ..link("PeerReachable", status)
            };
            through_tunnel(
                &TunnelPath {
                    gateway: gateway.map(str::to_owned),
                },
                &[reachable],
                Paint::off(),
            )
        };
        let gateway = Some("203.0.113.9:51840");
        assert_eq!(
            text(gateway, "True", "Reachable"),
            "reached through its tunnel, gateway 203.0.113.9:51840"
        );
        let unanswered = text(gateway, "False", "Unreachable");
        assert_eq!(
            unanswered,
            "called through its tunnel: gateway 203.0.113.9:51840 is heard, and the peer does not answer"
        );
        assert_eq!(
            text(None, "True", "Reachable"),
            "reached through its tunnel",
            "the gateway is not known yet"
        );
        assert!(text(None, "False", "Unreachable").ends_with("where no gateway answers now"));
    }

    #[test]
    fn the_tree_shows_every_link_and_why_one_does_not_hold() {
        let (rome, milan, turin) = (
            ClusterId::of_public_key(&[1; 32]),
            ClusterId::of_public_key(&[2; 32]),
            ClusterId::of_public_key(&[3; 32]),
        );
        let expected = format!(
            "\
rome (ID {rome}, Liqo 0.1.0)
├─ ✓ controller manager: 1 of 1 replicas available
│  └─ one replica
├─ ✓ AddressesKnown
├─ peers reach it at https://203.0.113.5:30443 and https://203.0.113.5:6443
├─ milan (ID {milan})
│  ├─ borrowed from milan
│  │  ├─ ✓ IdentityVerified
│  │  ├─ ✓ Authenticated
│  │  ├─ ✗ PeerReachable: Reason: what is the case (since 2026-01-01T00:00:00Z)
│  │  ├─ reached through its tunnel, gateway 203.0.113.9:51840
│  │  └─ offer default: Accepted: cpu=2, memory=4Gi
│  │     └─ ✗ node milan: not Ready: cpu=2, memory=4Gi; 1 pod
│  │        ├─ used: cpu=500m, memory=1.2Gi
│  │        └─ free: cpu=1500m, memory=2.8Gi
│  ├─ lent to milan
│  │  ├─ ✓ ConsumerAuthorized
│  │  ├─ ? ConsumerReachable: Reason: what is the case (since 2026-01-01T00:00:00Z)
│  │  ├─ offer default: Refused (why): cpu=2, memory=4Gi
│  │  ├─ it requests no resources
│  │  └─ 3 of its pods run here
│  └─ network to milan
│     ├─ ✓ NetworkAgreed
│     ├─ ? TunnelConnected: Reason: what is the case (since 2026-01-01T00:00:00Z)
│     ├─ its 10.244.0.0/16 is mapped here to 10.65.0.0/16, 10.81.0.0/16 (cluster qqqqqq behind it) is mapped here to 10.67.0.0/16
│     ├─ both clusters could keep each other's addresses, so that a pod has one address everywhere
│     │  ├─ addresses of 10.244.0.0/16 could stay as they are here, if you know these ranges: \
             spec.network.keptCIDRs: [\"10.244.0.0/16\"] in the policy for milan
│     │  └─ addresses of this cluster's 10.245.0.0/16 could stay as they are in milan, unless something else there has them: \
             there, spec.network.keptCIDRs: [\"10.245.0.0/16\"] in the policy for this cluster
│     ├─ tunnel from node rome-1 to 203.0.113.9:51840, 203.0.113.10:51840, 12.3 ms, 5 % lost
│     │  └─ directly to cluster qqqqqq behind it
│     └─ no tunnel from node rome-2
├─ turin (ID {turin}) is ending
│  └─ no peering
└─ offloaded namespaces
   └─ demo (LocalAndRemote, Cheapest)
      ├─ ✗ Ready: Reason: what is the case (since 2026-01-01T00:00:00Z)
      └─ ✗ demo-rome-abcdef in milan: name taken
         └─ Ingress shop of class public at 203.0.113.7
"
        );
        assert_eq!(render_status(&example(), Paint::off()), expected);
    }

    #[test]
    fn every_pool_has_its_node_its_times_and_what_is_to_be_done() {
        let offer = |pool: &str, phase| OfferSummary {
            pool: pool.into(),
            phase,
            message: Some("the policy wants a person".into()),
            resources: resources(),
            withdrawal_timestamp: None,
            reclaim_timestamp: None,
            drain_timestamp: None,
        };
        let at = || Some("2026-01-01T00:05:00Z".to_owned());
        let node = |pool: &str| VirtualNodeSummary {
            pool: pool.into(),
            node: Some(format!("milan-{pool}")),
            ready: true,
            resources: resources(),
            used: ResourceList::new(),
            free: resources(),
            pods: 2,
        };
        let borrowing = BorrowingSummary {
            network_only: true,
            pool_for_each_node: Some(link("PoolForEachNode", "False")),
            tunnel: None,
            links: Vec::new(),
            offers: vec![
                OfferSummary {
                    withdrawal_timestamp: at(),
                    ..offer("bulk", OfferPhase::Accepted)
                },
                offer("gold", OfferPhase::ManualActionRequired),
                offer("zone-a", OfferPhase::Accepted),
                OfferSummary {
                    resources: ResourceList::new(),
                    ..offer("zone-b", OfferPhase::Accepted)
                },
            ],
            nodes: vec![node("bulk"), node("gone"), node("zone-a")],
        };
        let lending = LendingSummary {
            tenant_namespace: None,
            links: Vec::new(),
            offers: vec![
                offer("default", OfferPhase::ManualActionRequired),
                OfferSummary {
                    resources: ResourceList::new(),
                    ..offer("dry", OfferPhase::Accepted)
                },
                OfferSummary {
                    reclaim_timestamp: at(),
                    ..offer("gpu", OfferPhase::Accepted)
                },
            ],
            pods: 1,
        };
        let mut out = String::new();
        for branch in [
            super::borrowing_branch("milan", &borrowing, Paint::off()),
            super::lending_branch("milan", &lending, Paint::off()),
        ] {
            branch.draw("", &mut out);
        }
        let expected = "\
borrowed from milan
├─ ? nothing has happened yet
├─ ✗ PoolForEachNode: Reason: what is the case (since 2026-01-01T00:00:00Z)
├─ requests no resources, only the network
├─ offer bulk: Accepted: cpu=2, memory=4Gi
│  ├─ withdrawn: ends at 2026-01-01T00:05:00Z, its pods move away until then
│  └─ ✓ node milan-bulk: Ready: cpu=2, memory=4Gi; 2 pods
├─ offer gold: ManualActionRequired (you have to decide: `liqoctl offer accept milan gold`): cpu=2, memory=4Gi
├─ offer zone-a: Accepted: cpu=2, memory=4Gi
│  └─ ✓ node milan-zone-a: Ready: cpu=2, memory=4Gi; 2 pods
├─ offer zone-b: Accepted: nothing
│  └─ milan offers nothing now
└─ ✓ node milan-gone: Ready: cpu=2, memory=4Gi; 2 pods
lent to milan
├─ offer default: ManualActionRequired (the consumer has to decide): cpu=2, memory=4Gi
├─ offer dry: Accepted: nothing
│  └─ we offer nothing now
├─ offer gpu: Accepted: cpu=2, memory=4Gi
│  └─ more is used than offered: from 2026-01-01T00:05:00Z on, the provider ends pods beyond the offer
└─ 1 of its pods runs here
";
        assert_eq!(out, expected);
    }

    #[test]
    fn a_cluster_without_liqo_says_what_to_do() {
        let mut status = example();
        let cluster = status.cluster.as_mut().unwrap();
        cluster.installed = false;
        cluster.cluster_id = None;
        status.peers.clear();
        assert!(render_status(&status, Paint::off()).contains("`liqoctl install`"));
    }

    #[test]
    fn a_network_without_isolation_is_a_fault_only_where_somebody_borrows() {
        let line = |isolation| {
            let condition = link(NETWORK_POLICIES_ENFORCED, "False");
            own_condition_branch(&condition, isolation, Paint::off()).text
        };
        assert_eq!(
            line(CheckVerdict::Ok),
            "- NetworkPoliciesEnforced: Reason: this matters once this cluster lends"
        );
        let fault =
            "NetworkPoliciesEnforced: Reason: what is the case (since 2026-01-01T00:00:00Z)";
        assert_eq!(line(CheckVerdict::Fail), format!("✗ {fault}"));
        assert_eq!(line(CheckVerdict::Warn), format!("! {fault}"));
        let other = link("AddressesKnown", "False");
        let other = own_condition_branch(&other, CheckVerdict::Ok, Paint::off());
        assert!(
            other.text.starts_with("✗ AddressesKnown: "),
            "{}",
            other.text
        );
    }

    #[test]
    fn a_user_who_may_see_her_namespace_alone_is_told_so() {
        let mut status = example();
        status.cluster = None;
        status.peers.clear();
        let text = render_status(&status, Paint::off());
        assert!(
            text.starts_with("demo (LocalAndRemote, Cheapest)\n├─ ✗ Ready: "),
            "{text}"
        );
        assert!(
            text.ends_with("\nYou may not see the rest, which is about the whole cluster.\n"),
            "{text}"
        );
        status.namespaces.clear();
        let text = render_status(&status, Paint::off());
        assert!(
            text.starts_with("The namespace is not offloaded.\n"),
            "{text}"
        );
    }

    #[test]
    fn programs_get_the_same_in_json() {
        let json = serde_json::to_value(example()).unwrap();
        assert_eq!(json["peers"][0]["borrowing"]["links"][2]["status"], "False");
        assert_eq!(
            json["peers"][0]["borrowing"]["nodes"][0]["resources"]["cpu"],
            "2"
        );
        assert!(json["cluster"]["clusterID"].is_string());
    }
}
