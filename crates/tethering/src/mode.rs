//! The controller of the mode: collects facts, calls `decide::machine`, and is the only writer of
//! `status.tethering` of the `ClusterConfig`.

use std::{sync::Arc, time::Duration};

use jiff::SignedDuration;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use liqo_api::{
    CLUSTER_CONFIG, ClusterConfig, ClusterId, ForeignCluster, Key, Provide, TetheringState,
    TetheringStatus, links, policies::PolicyPeer,
};
use liqo_controller_runtime::{
    Requeue, foreign_clusters, policies,
    writes::{StepContext as _, StepError},
};
use serde_json::json;

use crate::{
    Error,
    cluster::{COUNT_INTERVAL, ClusterCaches},
    decide::{
        machine::{MachineFacts, PeerAnswer, PeerContact, due_in, next_status, subject_peer},
        obstacles::{LocalSharing, first_obstacle},
    },
};

/// The field manager of the status.
const FIELD_MANAGER: &str = "liqo-tethering";

/// Runs until the context stops.
pub async fn run_controller(cluster: Arc<ClusterCaches>) {
    let (stop, queue) = (cluster.context.stop.clone(), cluster.mode_queue.clone());
    let mut config = cluster.context.config.clone();
    queue.add(());
    let follow_config = async {
        while config.changed().await.is_ok() {
            queue.add(());
        }
        std::future::pending::<()>().await;
    };
    let controller = cluster.clone();
    let work = cluster.mode_queue.run("tethering", 1, stop, move |()| {
        let cluster = controller.clone();
        async move { reconcile_mode(&cluster).await }
    });
    tokio::select! {
        biased;
        () = work => {}
        () = follow_config => {}
    }
}

async fn reconcile_mode(cluster: &ClusterCaches) -> Result<Requeue, Error> {
    let config = cluster.context.config();
    let status = config
        .status
        .as_ref()
        .and_then(|status| status.tethering.as_ref());
    let wish = config.spec.tethering.cluster_id.as_ref();
    let Some(peer) = subject_peer(status, wish).cloned() else {
        // Nobody asks for anything, and nothing is left.
        if status.is_none_or(|status| status.cluster_id.is_none()) {
            return Ok(Requeue::OnChange);
        }
        return write_next_state(cluster, &config, status, &facts_without_peer(&config)).await;
    };
    let facts = read_facts(cluster, &config, status, &peer).await?;
    write_next_state(cluster, &config, status, &facts).await
}

/// Writes the next state, and says when to look again.
async fn write_next_state(
    cluster: &ClusterCaches,
    config: &ClusterConfig,
    status: Option<&TetheringStatus>,
    facts: &MachineFacts,
) -> Result<Requeue, Error> {
    let now = cluster.context.now();
    let wanted = next_status(status, facts, now);
    if let Some(wanted) = &wanted {
        write_status(cluster, config, wanted).await?;
        let before = status.map(|status| status.state).unwrap_or_default();
        if before != wanted.state {
            tracing::info!(?before, now = ?wanted.state, reason = wanted.reason, message = wanted.message, "working mode changed");
        }
    }
    let Some(current) = wanted.as_ref().or(status) else {
        return Ok(Requeue::OnChange);
    };
    let due = due_in(current, now).map(|due| Duration::try_from(due).unwrap_or_default());
    let counts = (current.state == TetheringState::Releasing).then_some(COUNT_INTERVAL);
    Ok(due
        .into_iter()
        .chain(counts)
        .min()
        .map_or(Requeue::OnChange, Requeue::After))
}

/// Only over the version that was read: a former leader that stalled must not write.
async fn write_status(
    cluster: &ClusterCaches,
    config: &ClusterConfig,
    wanted: &TetheringStatus,
) -> Result<(), StepError> {
    let api: Api<ClusterConfig> = Api::all(cluster.context.client.clone());
    let body = json!({
        "metadata": { "resourceVersion": config.metadata.resource_version },
        "status": { "tethering": {
            "state": wanted.state, "clusterID": wanted.cluster_id, "since": wanted.since, "deadline": wanted.deadline,
            "reason": wanted.reason, "message": wanted.message,
        } },
    });
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let written = api
        .patch_status(CLUSTER_CONFIG, &params, &Patch::Merge(&body))
        .await;
    written.map(drop).step(
        "write the working mode of",
        "ClusterConfig",
        Key::of_object(config),
    )
}

/// The facts if there is no peer.
fn facts_without_peer(config: &ClusterConfig) -> MachineFacts {
    MachineFacts {
        wish: config.spec.tethering.cluster_id.clone(),
        release_after: SignedDuration::from_secs(
            config.spec.tethering.release_after_seconds.into(),
        ),
        peer: String::new(),
        obstacle: None,
        answer: PeerAnswer::NotAsked,
        contact: PeerContact::Unknown,
        borrows_here: false,
        missing: None,
        notice: SignedDuration::from_secs(Provide::default().notice_seconds.into()),
        away: 0,
        guests: 0,
    }
}

async fn read_facts(
    cluster: &ClusterCaches,
    config: &ClusterConfig,
    status: Option<&TetheringStatus>,
    peer: &ClusterId,
) -> Result<MachineFacts, StepError> {
    let known = foreign_clusters::by_peer(&cluster.foreign_clusters);
    let of_peer = known.get(peer).map(|known| &**known);
    let policy = policies::effective_policy(&cluster.policies, &PolicyPeer::new(peer, of_peer));
    let offers: Vec<_> = cluster
        .offers
        .all()
        .into_iter()
        .map(|(_, offer)| offer)
        .collect();
    let (nodes, borrowers) = (cluster.virtual_nodes.all(), cluster.borrowers.all());
    let mut sharing = LocalSharing {
        names: known
            .iter()
            .map(|(id, known)| (id, known.display_name()))
            .collect(),
        lends_to: offers.iter().map(|offer| &offer.consumer).collect(),
        borrows_from: nodes
            .iter()
            .map(|(_, provider)| provider.as_ref())
            .collect(),
        tethers: borrowers
            .iter()
            .filter(|(_, one)| one.granted)
            .map(|(_, one)| &one.consumer)
            .collect(),
        provide: policy.as_ref().map(|policy| &policy.spec.provide),
    };
    for clusters in [
        &mut sharing.lends_to,
        &mut sharing.borrows_from,
        &mut sharing.tethers,
    ] {
        clusters.sort_unstable();
        clusters.dedup();
    }
    // Not by the offers: on the way from one set of pools to another there may be none for a
    // moment.
    let borrows_here = borrowers.iter().any(|(_, one)| one.consumer == *peer);
    let name = of_peer.map_or_else(|| peer.to_string(), ForeignCluster::display_name);
    let asks = config.tethers_to(peer);
    let is_releasing = status.is_some_and(|status| status.state == TetheringState::Releasing);
    let away = if is_releasing {
        cluster.pods_away().await?
    } else {
        0
    };
    let guests = usize::from(is_releasing && cluster.has_remote_pods(peer).await?);
    let missing = missing_peer_message(
        of_peer,
        &name,
        offers
            .iter()
            .any(|offer| offer.consumer == *peer && offer.accepted),
    );
    let seconds = policy
        .as_ref()
        .map_or(Provide::default().notice_seconds, |policy| {
            policy.spec.provide.notice_seconds
        });
    Ok(MachineFacts {
        obstacle: first_obstacle(peer, &sharing),
        answer: of_peer.map_or(PeerAnswer::NotAsked, |known| peer_answer(known, asks)),
        contact: of_peer.map_or(PeerContact::Unknown, |known| {
            peer_contact(known, borrows_here)
        }),
        borrows_here,
        missing,
        notice: SignedDuration::from_secs(seconds.into()),
        away,
        guests,
        peer: name,
        ..facts_without_peer(config)
    })
}

fn peer_answer(known: &ForeignCluster, asks: bool) -> PeerAnswer {
    let Some(condition) = known.condition(links::TETHERING_GRANTED) else {
        return if asks {
            PeerAnswer::Waiting
        } else {
            PeerAnswer::NotAsked
        };
    };
    match condition.status.as_str() {
        "True" => PeerAnswer::Granted,
        "False" => PeerAnswer::Refused(condition.message.clone()),
        _ => PeerAnswer::Waiting,
    }
}

/// As a provider the peer answers, and as a consumer it renews its Lease. A peer that unpeered has
/// no Lease any more, but still answers.
fn peer_contact(known: &ForeignCluster, borrows_here: bool) -> PeerContact {
    let kinds: &[&str] = if borrows_here {
        &[links::PEER_REACHABLE, links::CONSUMER_REACHABLE]
    } else {
        &[links::PEER_REACHABLE]
    };
    let statuses: Vec<Option<&str>> = kinds
        .iter()
        .map(|kind| Some(known.condition(kind)?.status.as_str()))
        .collect();
    if statuses.iter().all(|status| *status == Some("True")) {
        PeerContact::Heard
    } else if statuses.contains(&Some("False")) {
        PeerContact::Silent
    } else {
        PeerContact::Unknown
    }
}

fn missing_peer_message(
    known: Option<&ForeignCluster>,
    name: &str,
    is_accepted: bool,
) -> Option<String> {
    let nodes_ready = known.and_then(|known| known.condition(links::VIRTUAL_NODES_READY));
    if nodes_ready.is_none_or(|condition| condition.status != "True") {
        return Some(format!(
            "the virtual node of {name} in this cluster to be Ready"
        ));
    }
    (!is_accepted).then(|| format!("{name} to accept the offer of this cluster"))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn known(conditions: &[(&str, &str)]) -> ForeignCluster {
        let condition = |(kind, status): &(&str, &str)| -> Value {
            json!({ "type": kind, "status": status, "reason": "Reason", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z" })
        };
        let conditions: Vec<Value> = conditions.iter().map(condition).collect();
        let known = json!({ "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ForeignCluster", "metadata": { "name": "milan" },
            "spec": { "clusterID": ClusterId::of_public_key(&[1; 32]) }, "status": { "conditions": conditions } });
        serde_json::from_value(known).unwrap()
    }

    #[test]
    fn a_peer_is_heard_in_each_direction_that_exists() {
        let answers = |status| (links::PEER_REACHABLE, status);
        let renews = |status| (links::CONSUMER_REACHABLE, status);
        assert_eq!(
            peer_contact(&known(&[answers("True"), renews("True")]), true),
            PeerContact::Heard
        );
        assert_eq!(
            peer_contact(&known(&[answers("True"), renews("False")]), true),
            PeerContact::Silent
        );
        assert_eq!(
            peer_contact(&known(&[answers("False"), renews("True")]), true),
            PeerContact::Silent
        );
        assert_eq!(
            peer_contact(&known(&[answers("True")]), true),
            PeerContact::Unknown
        );
        assert_eq!(
            peer_contact(&known(&[answers("True")]), false),
            PeerContact::Heard,
            "it unpeered"
        );
        assert_eq!(
            peer_contact(&known(&[answers("False")]), false),
            PeerContact::Silent
        );
    }
}
