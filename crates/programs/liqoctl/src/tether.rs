//! `liqoctl tether` and `liqoctl untether`: let a peer control this cluster, or end that.
//!
//! The commands only write into the spec of the `ClusterConfig` which peer should control it. The
//! controllers do the rest, and report their progress in its status.

use std::time::Duration;

use anyhow::bail;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use liqo_api::{
    CLUSTER_CONFIG, ClusterConfig, ClusterId, ForeignCluster, Key, NamespaceOffloading,
    TetheringReason, TetheringState, TetheringStatus, departure::DepartureCause, is_final_phase,
    labels,
};
use serde::Serialize;
use serde_json::json;

use crate::{
    cluster::{Cluster, ExplainFailure as _},
    lists::{self, NodeSelection},
    progress::StepProgress,
    wait::{self, PollResult, final_error},
};

/// The working mode that a command led to.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TetheringResult {
    pub state: TetheringState,
    /// Name of the peer that the command is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
}

/// Tethers this cluster to a peer. If this cluster or the peer refuses, the wish is taken back, so
/// that nothing happens later by itself. Waits if there is a `timeout`.
pub async fn tether(
    cluster: &Cluster,
    foreign: &ForeignCluster,
    timeout: Option<Duration>,
    progress: &StepProgress,
) -> anyhow::Result<TetheringResult> {
    let config = installed_configuration(cluster).await?;
    let (peer, id) = (foreign.name_any(), &foreign.spec.cluster_id);
    if let (state, Some(other)) = config.tethering()
        && state != TetheringState::Autonomous
        && other != id
    {
        bail!(
            "this cluster is {state:?} with {other} already; end that with `liqoctl untether` first"
        );
    }
    if let Some(TetheringStatus {
        state: TetheringState::Releasing,
        deadline,
        ..
    }) = tethering_status(&config)
    {
        let until = deadline
            .as_ref()
            .map(|deadline| format!(", at the latest at {}", deadline.0))
            .unwrap_or_default();
        bail!(
            "this cluster takes back control: try again when `liqoctl status` says that it is autonomous{until}"
        );
    }
    // A former refusal would be taken for the answer.
    if config.tethering().0 == TetheringState::Autonomous && tethering_status(&config).is_some() {
        write_tethered_peer(cluster, None).await?;
        wait::until(
            "the former attempt is forgotten",
            timeout.map_or(UNTIL_FORGOTTEN, |timeout| timeout.max(UNTIL_FORGOTTEN)),
            |_| {},
            || async {
                let config = installed_configuration(cluster).await?;
                let is_forgotten = config.tethering().1.is_none();
                Ok(if is_forgotten {
                    PollResult::Done(())
                } else {
                    PollResult::NotYet("the manager does not answer".to_owned())
                })
            },
        )
        .await?;
    }
    write_tethered_peer(cluster, Some(id)).await?;
    let Some(timeout) = timeout else {
        return Ok(TetheringResult {
            state: config.tethering().0,
            peer: Some(peer),
        });
    };
    let step = format!("Tethering this cluster to {peer}");
    let tethering = wait::until(
        "the peer controls this cluster",
        timeout,
        |missing| progress.message(&step, missing),
        || async {
            match result_of_attempt(
                tethering_status(&installed_configuration(cluster).await?),
                id,
            ) {
                Ok(poll) => Ok(poll),
                Err(why) => Err(final_error(why)),
            }
        },
    );
    match progress.run_step(&step, tethering).await {
        Ok(state) => Ok(TetheringResult {
            state,
            peer: Some(peer),
        }),
        Err(error) => {
            write_tethered_peer(cluster, None).await?;
            Err(error.context(format!("this cluster is not tethered to {peer}")))
        }
    }
}

/// Ends tethering, and waits until the cluster is autonomous if there is a `timeout`.
pub async fn untether(
    cluster: &Cluster,
    timeout: Option<Duration>,
    progress: &StepProgress,
) -> anyhow::Result<TetheringResult> {
    let config = installed_configuration(cluster).await?;
    write_tethered_peer(cluster, None).await?;
    let Some(timeout) = timeout else {
        return Ok(TetheringResult {
            state: config.tethering().0,
            peer: None,
        });
    };
    let step = "Taking back control";
    let releasing = wait::wait_until_every(
        HOMECOMING_INTERVAL,
        "this cluster is autonomous",
        timeout,
        |missing| progress.message(step, missing),
        || async {
            let config = installed_configuration(cluster).await?;
            let state = config.tethering().0;
            if state == TetheringState::Autonomous {
                return Ok(PollResult::Done(state));
            }
            let pods = pods_away_in_words(&pods_to_bring_home(cluster).await);
            Ok(PollResult::NotYet(
                tethering_status(&config)
                    .map(|status| reason_still_tethered(status, &pods))
                    .unwrap_or_default(),
            ))
        },
    );
    Ok(TetheringResult {
        state: progress.run_step(step, releasing).await?,
        peer: None,
    })
}

/// Interval between two looks at the pods that come home.
const HOMECOMING_INTERVAL: Duration = Duration::from_secs(2);

/// The pods that have to come home; none if they cannot be listed.
async fn pods_to_bring_home(cluster: &Cluster) -> Vec<String> {
    let of_the_mode = ListParams::default().labels(labels::TETHERED);
    let offloadings = Api::<NamespaceOffloading>::all(cluster.client.clone())
        .list_metadata(&of_the_mode)
        .await;
    let namespaces: Vec<String> = offloadings
        .map(|all| {
            all.items
                .iter()
                .filter_map(ResourceExt::namespace)
                .collect()
        })
        .unwrap_or_default();
    let nodes = lists::list_nodes(cluster, NodeSelection::Virtual).await;
    let pods = Api::<Pod>::all(cluster.client.clone())
        .list(&ListParams::default().fields("spec.nodeName!="))
        .await;
    let (Ok(nodes), Ok(pods)) = (nodes, pods) else {
        return Vec::new();
    };
    let nodes: Vec<String> = nodes.iter().map(ResourceExt::name_any).collect();
    pods.items
        .iter()
        .filter(|pod| has_to_come_home(pod, &namespaces, &nodes))
        .map(|pod| Key::of_object(pod).to_string())
        .collect()
}

fn has_to_come_home(pod: &Pod, namespaces: &[String], nodes: &[String]) -> bool {
    let has_ended = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .is_some_and(is_final_phase);
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let controller = pod
        .owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true));
    let comes_home =
        DepartureCause::ControlIsBack.takes_pods_of(controller.map(|owner| owner.kind.as_str()));
    let is_of_the_mode = pod
        .namespace()
        .is_some_and(|namespace| namespaces.contains(&namespace));
    !has_ended
        && comes_home
        && is_of_the_mode
        && node.is_some_and(|node| nodes.iter().any(|one| one == node))
}

/// Number of pods that are named.
const MAX_NAMED: usize = 3;

/// The pods that have not come home, in words.
fn pods_away_in_words(pods: &[String]) -> String {
    let rest = match pods.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        rest => format!(" and {rest} more"),
    };
    let named = pods
        .iter()
        .take(MAX_NAMED)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    if pods.is_empty() {
        String::new()
    } else {
        format!("; still there: {named}{rest}")
    }
}

/// Reason why `untether` still waits.
fn reason_still_tethered(status: &TetheringStatus, pods: &str) -> String {
    let until = status
        .deadline
        .as_ref()
        .map(|deadline| format!("; over at {} at the latest", deadline.0))
        .unwrap_or_default();
    format!("{}{pods}{until}", status.message)
}

/// Time limit until the manager forgets a former attempt, unless the user waits longer.
const UNTIL_FORGOTTEN: Duration = Duration::from_secs(30);

/// The result of an attempt with this peer, as the status says; the error is why it failed.
fn result_of_attempt(
    status: Option<&TetheringStatus>,
    peer: &ClusterId,
) -> Result<PollResult<TetheringState>, String> {
    let Some(status) = status.filter(|status| status.cluster_id.as_ref() == Some(peer)) else {
        return Ok(PollResult::NotYet(
            "the manager has not seen it yet".to_owned(),
        ));
    };
    let reason = TetheringReason::parse(&status.reason);
    // A silent peer is asked as soon as it answers: just after the peering nobody knows yet whether
    // it does.
    let waits = matches!(
        reason,
        Some(TetheringReason::NotWanted | TetheringReason::Waiting | TetheringReason::PeerSilent)
    );
    match status.state {
        TetheringState::Tethered => Ok(PollResult::Done(TetheringState::Tethered)),
        TetheringState::Tethering => Ok(PollResult::NotYet(status.message.clone())),
        TetheringState::Autonomous if waits => Ok(PollResult::NotYet(status.message.clone())),
        TetheringState::Autonomous | TetheringState::Releasing => {
            Err(format!("{}: {}", status.reason, status.message))
        }
    }
}

fn tethering_status(config: &ClusterConfig) -> Option<&TetheringStatus> {
    config.status.as_ref()?.tethering.as_ref()
}

/// The peer that controls this cluster, by its name or ID, if one does or is about to.
pub async fn controlling_peer(cluster: &Cluster) -> anyhow::Result<Option<(ClusterId, String)>> {
    let config = cluster.visible_configuration().await?.unwrap_or_default();
    let (TetheringState::Tethering | TetheringState::Tethered, Some(peer)) = config.tethering()
    else {
        return Ok(None);
    };
    let peers = lists::list_peers(cluster).await?;
    let known = peers.iter().find(|one| one.spec.cluster_id == *peer);
    Ok(Some((
        peer.clone(),
        known.map_or_else(|| peer.to_string(), ResourceExt::name_any),
    )))
}

/// Takes the wish to be tethered back, and waits until no peer controls this cluster. Pods may
/// still come home then.
pub async fn withdraw_tethering(cluster: &Cluster, timeout: Duration) -> anyhow::Result<()> {
    let Some((_, peer)) = controlling_peer(cluster).await? else {
        return Ok(());
    };
    write_tethered_peer(cluster, None).await?;
    let missing = format!("{peer} controls it still");
    wait::until(
        "this cluster is not tethered any more",
        timeout,
        |_| {},
        || async {
            Ok(if controlling_peer(cluster).await?.is_none() {
                PollResult::Done(())
            } else {
                PollResult::NotYet(missing.clone())
            })
        },
    )
    .await
}

/// An error if another peer than this one controls this cluster, which then borrows from and lends
/// to nobody else.
pub async fn refuse_other_peers(
    cluster: &Cluster,
    wanted: Option<&ClusterId>,
) -> anyhow::Result<()> {
    match controlling_peer(cluster).await? {
        Some((id, peer)) if Some(&id) != wanted => {
            bail!(
                "this cluster is tethered to {peer}, and peers with no other cluster meanwhile: end that with `liqoctl untether` first"
            )
        }
        _ => Ok(()),
    }
}

/// An error if a peer controls this cluster, whose pods are then where the peer puts them.
pub async fn refuse_while_tethered(cluster: &Cluster) -> anyhow::Result<()> {
    match controlling_peer(cluster).await? {
        Some((_, peer)) => bail!(refusal_while_tethered(&peer)),
        None => Ok(()),
    }
}

/// Reason why something has to wait as long as this peer controls the cluster.
pub fn refusal_while_tethered(peer: &str) -> String {
    format!(
        "this cluster is tethered to {peer}, which decides where its pods run: end that with `liqoctl untether` first"
    )
}

async fn installed_configuration(cluster: &Cluster) -> anyhow::Result<ClusterConfig> {
    let Some(config) = cluster.read_configuration().await? else {
        bail!("Liqo is not installed in this cluster: run `liqoctl install`")
    };
    Ok(config)
}

async fn write_tethered_peer(cluster: &Cluster, peer: Option<&ClusterId>) -> anyhow::Result<()> {
    let api: Api<ClusterConfig> = Api::all(cluster.client.clone());
    let change = json!({ "spec": { "tethering": { "clusterID": peer } } });
    let written = api
        .patch(
            CLUSTER_CONFIG,
            &PatchParams::default(),
            &Patch::Merge(&change),
        )
        .await;
    written.doing(format!("change ClusterConfig {CLUSTER_CONFIG}"))?;
    Ok(())
}

/// The result as text for people.
pub fn render_tethering_result(outcome: &TetheringResult) -> String {
    match (outcome.state, &outcome.peer) {
        (TetheringState::Tethered, Some(peer)) => format!("This cluster is tethered to {peer}."),
        (_, Some(peer)) => {
            format!("This cluster is to be tethered to {peer}; `liqoctl status` shows when it is.")
        }
        (TetheringState::Autonomous, None) => "This cluster is autonomous.".to_owned(),
        (_, None) => {
            "This cluster takes back control; `liqoctl status` shows when that is over.".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use liqo_api::Time;

    use super::*;

    fn status(state: TetheringState, reason: TetheringReason) -> TetheringStatus {
        TetheringStatus {
            state,
            cluster_id: Some(ClusterId::of_public_key(&[1; 32])),
            since: Time(jiff::Timestamp::UNIX_EPOCH),
            deadline: None,
            reason: reason.into(),
            message: "because".into(),
        }
    }

    fn told(state: TetheringState, reason: TetheringReason) -> Result<bool, String> {
        let peer = ClusterId::of_public_key(&[1; 32]);
        result_of_attempt(Some(&status(state, reason)), &peer)
            .map(|poll| matches!(poll, PollResult::Done(_)))
    }

    #[test]
    fn an_attempt_ends_with_control_or_with_a_reason() {
        assert_eq!(
            told(TetheringState::Tethering, TetheringReason::Waiting),
            Ok(false)
        );
        assert_eq!(
            told(TetheringState::Tethered, TetheringReason::Granted),
            Ok(true)
        );
        assert_eq!(
            told(TetheringState::Autonomous, TetheringReason::Waiting),
            Ok(false)
        );
        assert_eq!(
            told(TetheringState::Autonomous, TetheringReason::PeerSilent),
            Ok(false)
        );
        assert_eq!(
            told(TetheringState::Autonomous, TetheringReason::LendsToOthers),
            Err("LendsToOthers: because".into())
        );
        assert_eq!(
            told(TetheringState::Releasing, TetheringReason::RefusedByPeer),
            Err("RefusedByPeer: because".into())
        );
    }

    #[test]
    fn whoever_waits_for_control_reads_for_what_and_until_when() {
        let mut status = status(TetheringState::Releasing, TetheringReason::Untethered);
        status.deadline = Some(Time("2026-01-01T00:05:00Z".parse().unwrap()));
        let pods: Vec<String> = ["demo/a", "demo/b", "demo/c", "demo/d", "demo/e"]
            .map(str::to_owned)
            .to_vec();
        let said = reason_still_tethered(&status, &pods_away_in_words(&pods));
        assert_eq!(
            said,
            "because; still there: demo/a, demo/b, demo/c and 2 more; over at 2026-01-01T00:05:00Z at the latest"
        );
        assert_eq!(
            reason_still_tethered(
                &TetheringStatus {
                    deadline: None,
                    ..status
                },
                &pods_away_in_words(&[])
            ),
            "because"
        );
    }

    #[test]
    fn what_is_about_another_peer_says_nothing() {
        let other = ClusterId::of_public_key(&[2; 32]);
        let about_one = status(TetheringState::Tethered, TetheringReason::Granted);
        assert!(matches!(
            result_of_attempt(Some(&about_one), &other),
            Ok(PollResult::NotYet(_))
        ));
        assert!(matches!(
            result_of_attempt(None, &other),
            Ok(PollResult::NotYet(_))
        ));
    }
}
