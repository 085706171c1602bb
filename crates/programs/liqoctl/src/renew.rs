//! `liqoctl renew gateway-keys`: gateways generate new WireGuard keys, without breaking
//! connections.
//!
//! The command writes a time into the `ClusterConfig`: keys generated before it are too old.
//! Gateways do the rest, and publish in their Leases the keys by which peers know them.

use std::{collections::BTreeMap, time::Duration};

use anyhow::bail;
use jiff::{Timestamp, ToSpan as _};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use liqo_api::{CLUSTER_CONFIG, ClusterConfig, Time, annotations};
use serde::Serialize;
use serde_json::json;

use crate::{
    cluster::{Cluster, ExplainFailure as _},
    lists, output,
    progress::StepProgress,
    wait::{self, PollResult},
};

/// A gateway that has a new key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RenewedGateway {
    pub node: String,
    /// The key that it had.
    pub former_key: String,
    /// The key that it has.
    pub key: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RenewalResult {
    /// Gateways renew keys that are older.
    pub keys_not_before: Time,
    /// The gateways with new keys, if the command waited for them.
    pub gateways: Vec<RenewedGateway>,
    /// Peers that may lose the connection to this cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<&'static str>,
}

/// Consumers that do not get updates on gateways keep the keys that `generate peer-command`
/// printed.
const LOCKED_OUT: &str = "consumers that use the tunnel know its gateways by their keys. Consumers that have no network with this cluster, or \
     that are down now, lose access when the former key becomes invalid, in 24 hours or at the next renewal: peer them again with a new \
     `liqoctl generate peer-command --through-tunnel`. Commands that were printed before and not used yet become invalid, too";

/// Makes all gateways renew their keys. Waits for them if there is a `timeout`.
pub async fn gateway_keys(
    cluster: &Cluster,
    timeout: Option<Duration>,
    progress: &StepProgress,
) -> anyhow::Result<RenewalResult> {
    let Some(config) = cluster.read_configuration().await? else {
        bail!("Liqo is not installed in this cluster: run `liqoctl install`")
    };
    if !config.spec.network.enabled {
        bail!(
            "the network is switched off in this cluster (network.enabled), so there are no gateways"
        );
    }
    let before = keys_by_node(cluster).await?;
    let now = Timestamp::now();
    let last = config
        .spec
        .network
        .gateways
        .keys_not_before
        .map(|last| last.0);
    // Times have whole seconds, and two calls within one second must still be two renewals.
    let moment = last
        .and_then(|last| last.checked_add(1.second()).ok())
        .filter(|next| *next > now)
        .unwrap_or(now);
    let keys_not_before = Time(moment);
    let api: Api<ClusterConfig> = Api::all(cluster.client.clone());
    let change =
        json!({ "spec": { "network": { "gateways": { "keysNotBefore": keys_not_before } } } });
    let written = api
        .patch(
            CLUSTER_CONFIG,
            &PatchParams::default(),
            &Patch::Merge(&change),
        )
        .await;
    written.doing(format!("change ClusterConfig {CLUSTER_CONFIG}"))?;
    let warning = config.spec.network.api_through_tunnel.then_some(LOCKED_OUT);
    let Some(timeout) = timeout else {
        return Ok(RenewalResult {
            keys_not_before,
            gateways: Vec::new(),
            warning,
        });
    };
    let step = "Waiting for new keys of the gateways";
    let renewing = wait::until(
        "every gateway has a new key",
        timeout,
        |missing| progress.message(step, missing),
        || async {
            let (renewed, missing) = compare_keys(&before, &keys_by_node(cluster).await?);
            Ok(if missing.is_empty() {
                PollResult::Done(renewed)
            } else {
                PollResult::NotYet(format!("still with the former key: {}", missing.join(", ")))
            })
        },
    );
    let gateways = progress.run_step(step, renewing).await?;
    Ok(RenewalResult {
        keys_not_before,
        gateways,
        warning,
    })
}

/// The keys of gateways by node.
async fn keys_by_node(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, String>> {
    let mut keys = BTreeMap::new();
    for lease in lists::list_gateway_leases(cluster).await? {
        let key = lease.annotations().get(annotations::GATEWAY_KEY).cloned();
        let holder = lease.spec.and_then(|spec| spec.holder_identity);
        if let (Some(holder), Some(key)) = (holder.filter(|holder| !holder.is_empty()), key) {
            keys.insert(holder, key);
        }
    }
    Ok(keys)
}

/// The gateways with new keys, and those that still have their old key. Gateways that are gone do
/// not count.
fn compare_keys(
    before: &BTreeMap<String, String>,
    now: &BTreeMap<String, String>,
) -> (Vec<RenewedGateway>, Vec<String>) {
    let (mut renewed, mut missing) = (Vec::new(), Vec::new());
    for (node, former) in before {
        match now.get(node) {
            Some(key) if key == former => missing.push(node.clone()),
            Some(key) => renewed.push(RenewedGateway {
                node: node.clone(),
                former_key: former.clone(),
                key: key.clone(),
            }),
            None => {}
        }
    }
    (renewed, missing)
}

/// The result as text for people.
pub fn render_renewal_result(outcome: &RenewalResult) -> String {
    let rows = outcome
        .gateways
        .iter()
        .map(|one| vec![one.node.clone(), one.former_key.clone(), one.key.clone()]);
    let done = if outcome.gateways.is_empty() {
        format!(
            "Gateways renew keys that are older than {}.",
            outcome.keys_not_before.0
        )
    } else {
        output::format_table(&["GATEWAY", "FORMER KEY", "KEY"], rows)
    };
    outcome.warning.map_or_else(
        || done.clone(),
        |warning| format!("{done}\nNote: {warning}."),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_that_has_its_former_key_is_waited_for_and_one_that_is_gone_is_not() {
        let keys = |all: &[(&str, &str)]| {
            all.iter()
                .map(|(node, key)| ((*node).to_owned(), (*key).to_owned()))
                .collect()
        };
        let (renewed, missing) = compare_keys(
            &keys(&[("a", "1"), ("b", "2"), ("c", "3")]),
            &keys(&[("a", "4"), ("b", "2"), ("d", "5")]),
        );
        assert_eq!(
            renewed,
            [RenewedGateway {
                node: "a".to_owned(),
                former_key: "1".to_owned(),
                key: "4".to_owned()
            }]
        );
        assert_eq!(missing, ["b"]);
    }

    #[test]
    fn who_may_be_locked_out_is_said() {
        let mut outcome = RenewalResult {
            keys_not_before: Time(Timestamp::UNIX_EPOCH),
            gateways: Vec::new(),
            warning: None,
        };
        assert!(!render_renewal_result(&outcome).contains("Note"));
        outcome.warning = Some(LOCKED_OUT);
        assert!(render_renewal_result(&outcome).contains("peer them again"));
    }
}
