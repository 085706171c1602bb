//! Finds obstacles in this cluster to tethering it to a peer. The peer itself reports the obstacles
//! on its side.

use std::collections::BTreeMap;

use liqo_api::{ClusterId, Provide, TetheringReason};

use super::machine::LocalObstacle;

/// The sharing of this cluster with others.
#[derive(Clone, Debug, Default)]
pub struct LocalSharing<'a> {
    /// The names of the clusters that this one knows.
    pub names: BTreeMap<&'a ClusterId, String>,
    /// The clusters to which this one offers something.
    pub lends_to: Vec<&'a ClusterId>,
    /// The clusters of which this one has virtual nodes.
    pub borrows_from: Vec<&'a ClusterId>,
    /// The clusters that are tethered to this one, or that it lets do so.
    pub tethers: Vec<&'a ClusterId>,
    /// The `provide` of the policy that applies to the peer.
    pub provide: Option<&'a Provide>,
}

/// The first thing that is in the way, with what to do about it.
pub fn first_obstacle(peer: &ClusterId, sharing: &LocalSharing) -> Option<LocalObstacle> {
    let Some(name) = sharing.names.get(peer) else {
        return Some(LocalObstacle::new(
            TetheringReason::UnknownPeer,
            format!("this cluster knows no cluster {peer}; `liqoctl peer` makes it known"),
        ));
    };
    if let Some(others) = sharing.names_of_others(&sharing.tethers, None) {
        let message = format!(
            "{others} is tethered to this cluster, and a cluster that controls others is controlled by nobody"
        );
        return Some(LocalObstacle::new(TetheringReason::TethersOthers, message));
    }
    if let Some(others) = sharing.names_of_others(&sharing.lends_to, Some(peer)) {
        let message = format!(
            "this cluster also offers resources to {others}; end that with `liqoctl refuse` first"
        );
        return Some(LocalObstacle::new(TetheringReason::LendsToOthers, message));
    }
    if let Some(others) = sharing.names_of_others(&sharing.borrows_from, Some(peer)) {
        let message = format!(
            "this cluster also borrows from {others}; end that with `liqoctl unpeer` first"
        );
        return Some(LocalObstacle::new(
            TetheringReason::BorrowsFromOthers,
            message,
        ));
    }
    if !sharing.borrows_from.contains(&peer) {
        let message = format!(
            "this cluster has no virtual node of {name}, through which its pods would go there: `liqoctl peer`"
        );
        return Some(LocalObstacle::new(TetheringReason::NotBorrowing, message));
    }
    if !sharing.lends_to.contains(&peer) {
        let message = format!(
            "{name} does not borrow from this cluster; run `liqoctl peer` there, with this cluster as the remote one"
        );
        return Some(LocalObstacle::new(TetheringReason::NotLending, message));
    }
    if sharing
        .provide
        .is_some_and(|provide| provide.contract.is_some())
    {
        let message = format!(
            "the PeeringPolicy for {name} requires a contract (provide.contract), and everything that this cluster has cannot be under one"
        );
        return Some(LocalObstacle::new(
            TetheringReason::ContractRequired,
            message,
        ));
    }
    None
}

impl LocalObstacle {
    fn new(reason: TetheringReason, message: String) -> Self {
        Self { reason, message }
    }
}

/// Maximum number of clusters that a message names.
const MAX_NAMED: usize = 3;

impl LocalSharing<'_> {
    /// The names of these clusters, without one.
    fn names_of_others(
        &self,
        clusters: &[&ClusterId],
        except: Option<&ClusterId>,
    ) -> Option<String> {
        let others: Vec<&&ClusterId> = clusters
            .iter()
            .filter(|cluster| Some(**cluster) != except)
            .collect();
        let named: Vec<String> = others
            .iter()
            .take(MAX_NAMED)
            .map(|cluster| {
                let name = self.names.get(**cluster).cloned();
                name.unwrap_or_else(|| cluster.to_string())
            })
            .collect();
        let more = others.len() - named.len();
        let rest = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        (!named.is_empty()).then(|| named.join(", ") + &rest)
    }
}

#[cfg(test)]
mod tests {
    use liqo_api::ProvideContract;

    use super::*;

    fn cluster(number: u8) -> ClusterId {
        ClusterId::of_public_key(&[number; 32])
    }

    /// Why rome is not tethered to milan.
    fn refusal(
        change: impl FnOnce(&mut LocalSharing<'static>),
    ) -> Option<(TetheringReason, String)> {
        let leaked = |number| -> &'static ClusterId { Box::leak(Box::new(cluster(number))) };
        let (milan, turin, genoa) = (leaked(1), leaked(2), leaked(3));
        let mut sharing = LocalSharing {
            names: [
                (milan, "milan".to_owned()),
                (turin, "turin".to_owned()),
                (genoa, "genoa".to_owned()),
            ]
            .into(),
            lends_to: vec![milan],
            borrows_from: vec![milan],
            ..LocalSharing::default()
        };
        change(&mut sharing);
        first_obstacle(milan, &sharing).map(|obstacle| (obstacle.reason, obstacle.message))
    }

    fn reason(change: impl FnOnce(&mut LocalSharing<'static>)) -> Option<TetheringReason> {
        refusal(change).map(|(reason, _)| reason)
    }

    fn other(sharing: &LocalSharing<'static>) -> &'static ClusterId {
        sharing
            .names
            .iter()
            .find(|(_, name)| *name == "turin")
            .map(|(id, _)| *id)
            .unwrap()
    }

    #[test]
    fn with_one_peering_in_each_direction_nothing_is_in_the_way() {
        assert_eq!(refusal(|_| ()), None);
    }

    #[test]
    fn each_refusal_has_its_reason() {
        assert_eq!(
            reason(|sharing| sharing.names.clear()),
            Some(TetheringReason::UnknownPeer)
        );
        assert_eq!(
            reason(|sharing| sharing.lends_to.clear()),
            Some(TetheringReason::NotLending)
        );
        assert_eq!(
            reason(|sharing| sharing.borrows_from.clear()),
            Some(TetheringReason::NotBorrowing)
        );
        assert_eq!(
            reason(|sharing| sharing.lends_to.push(other(sharing))),
            Some(TetheringReason::LendsToOthers)
        );
        assert_eq!(
            reason(|sharing| sharing.borrows_from.push(other(sharing))),
            Some(TetheringReason::BorrowsFromOthers)
        );
        assert_eq!(
            reason(|sharing| sharing.tethers.push(other(sharing))),
            Some(TetheringReason::TethersOthers)
        );
        let contract = Provide {
            contract: Some(ProvideContract::default()),
            ..Provide::default()
        };
        let contract: &'static Provide = Box::leak(Box::new(contract));
        assert_eq!(
            reason(|sharing| sharing.provide = Some(contract)),
            Some(TetheringReason::ContractRequired)
        );
    }

    #[test]
    fn two_clusters_are_not_tethered_to_each_other() {
        let milan = |sharing: &LocalSharing<'static>| sharing.lends_to[0];
        assert_eq!(
            reason(|sharing| sharing.tethers.push(milan(sharing))),
            Some(TetheringReason::TethersOthers)
        );
    }

    #[test]
    fn a_refusal_names_the_others_and_not_all_of_many() {
        let (_, message) = refusal(|sharing| sharing.lends_to.push(other(sharing))).unwrap();
        assert!(message.contains("offers resources to turin;"), "{message}");
        let many = |sharing: &mut LocalSharing<'static>| {
            sharing.borrows_from.extend(
                (10..20)
                    .map(|number| -> &'static ClusterId { Box::leak(Box::new(cluster(number))) }),
            );
        };
        assert!(refusal(many).unwrap().1.contains(" and 7 more;"));
    }
}
