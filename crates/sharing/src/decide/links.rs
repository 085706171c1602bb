//! What sharing says about a peer: its links of the chain on the `ForeignCluster`.

use liqo_api::{Condition, ForeignCluster, links};
use liqo_kit::conditions::Wanted;

/// The links of the consumer side.
const CONSUMER: [&str; 2] = [links::RESOURCES_REQUESTED, links::OFFER_ACCEPTED];

/// What each side found out about a peer since this process started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    /// By the consumer side; nothing until it knows.
    pub consumer: Option<Vec<Wanted>>,
    /// By the provider side; nothing until it knows. No link in it: the peer is no consumer of ours.
    pub provider: Option<Option<Wanted>>,
}

/// The conditions that are to stand. What a side does not know yet stays as it is; what no longer applies is left out.
pub fn wanted(foreign_cluster: &ForeignCluster, said: &Said) -> Vec<Wanted> {
    let standing = |kind: &'static str| foreign_cluster.condition(kind).map(|condition| keep(kind, condition));
    let mut wanted = Vec::new();
    if foreign_cluster.wants_resources() {
        match &said.consumer {
            Some(links) => wanted.extend(links.iter().cloned()),
            None => wanted.extend(CONSUMER.into_iter().filter_map(standing)),
        }
    }
    match &said.provider {
        Some(link) => wanted.extend(link.clone()),
        None => wanted.extend(standing(links::RESOURCES_OFFERED)),
    }
    wanted
}

fn keep(kind: &'static str, condition: &Condition) -> Wanted {
    let (reason, message) = (condition.reason.clone(), condition.message.clone());
    match condition.status.as_str() {
        "True" => Wanted::yes(kind, reason, message),
        "False" => Wanted::no(kind, reason, message),
        _ => Wanted::unknown(kind, reason, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::cluster;
    use jiff::Timestamp;
    use liqo_api::{ForeignClusterSpec, ForeignClusterStatus, Wish};
    use liqo_kit::conditions::decide;

    fn peer(outgoing: Wish, standing: &[Wanted]) -> ForeignCluster {
        let spec = ForeignClusterSpec {
            cluster_id: cluster(1),
            cluster_name: None,
            auth_url: None,
            tunnel: Vec::new(),
            outgoing_peering: outgoing,
            incoming_peering: Wish::Auto,
            request: liqo_api::RequestedResources::default(),
            offers: std::collections::BTreeMap::new(),
            network: Wish::Auto,
            token_secret_name: None,
        };
        let mut peer = ForeignCluster::new("peer", spec);
        let conditions = decide(&[], standing, Timestamp::UNIX_EPOCH).unwrap_or_default();
        peer.status = Some(ForeignClusterStatus { conditions, ..ForeignClusterStatus::default() });
        peer
    }

    fn accepted() -> Wanted {
        Wanted::yes(links::OFFER_ACCEPTED, "Accepted", "pool default accepted")
    }

    fn offered() -> Wanted {
        Wanted::yes(links::RESOURCES_OFFERED, "Offered", "pool default is offered")
    }

    #[test]
    fn after_a_restart_what_stands_is_kept_until_more_is_known() {
        let peer = peer(Wish::Yes, &[accepted(), offered()]);
        assert_eq!(wanted(&peer, &Said::default()), [accepted(), offered()]);
    }

    #[test]
    fn each_side_speaks_for_itself() {
        let peer = peer(Wish::Yes, &[accepted()]);
        let said = Said { consumer: None, provider: Some(Some(offered())) };
        assert_eq!(wanted(&peer, &said), [accepted(), offered()]);
        let said = Said { consumer: Some(Vec::new()), provider: None };
        assert_eq!(wanted(&peer, &said), []);
    }

    #[test]
    fn a_peer_that_is_not_wanted_any_more_has_no_consumer_links() {
        let peer = peer(Wish::No, &[accepted(), offered()]);
        assert_eq!(wanted(&peer, &Said { consumer: Some(vec![accepted()]), provider: None }), [offered()]);
    }

    #[test]
    fn a_peer_that_is_wanted_for_the_network_alone_has_no_consumer_links() {
        let mut peer = peer(Wish::Yes, &[accepted(), offered()]);
        peer.spec.request.network_only = true;
        assert_eq!(wanted(&peer, &Said { consumer: Some(vec![accepted()]), provider: None }), [offered()]);
    }

    #[test]
    fn a_peer_that_is_no_consumer_any_more_has_no_provider_link() {
        let peer = peer(Wish::Yes, &[accepted(), offered()]);
        assert_eq!(wanted(&peer, &Said { consumer: None, provider: Some(None) }), [accepted()]);
    }
}
