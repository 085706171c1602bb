//! `liqoctl broker`: lends on what this cluster borrows, shows who uses what of it, and ends it.
//!
//! ```text
//!   enable   policies, peers, offers ──▶ change::enabling ──▶ one PeeringPolicy with `provide.source.offers`
//!   disable  policies, peers         ──▶ change::endings  ──▶ that policy goes, or loses `provide.source.offers`
//!   status   all of it, pods, nodes  ──▶ status, warnings ──▶ tree
//! ```
//!
//! Which node is in which pool is the controllers' own decision, as for `liqoctl policy explain`.

pub mod change;
mod status;
#[cfg(test)]
mod tests;
mod text;
mod tree;
mod warnings;

use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use liqo_api::{ForeignCluster, PeeringPolicy, PeeringPolicySpec, ResourceOffer};
use serde_json::json;

pub use change::{Customers, EnablePlan, MarginChange, PolicyDisablePlan, RequestedPolicyChange};
pub use status::{BrokerStatus, CustomerPod, customer_pods, peer_name};
pub use text::{render_disabled, render_enabled, render_planned_changes, render_planned_endings};
pub use tree::{abbreviated_names, render_broker_status};

use crate::{
    apply::FIELD_MANAGER,
    cluster::{Cluster, ExplainFailure as _},
    lists, policy,
};

/// How often a write is tried while the manager writes the status.
const ATTEMPTS: u32 = 5;

/// What this cluster borrows, to whom it lends it on, and who uses it.
pub async fn collect_status(cluster: &Cluster) -> anyhow::Result<BrokerStatus> {
    let own = cluster.require_installed().await?;
    let nodes = lists::list_virtual_nodes(cluster, None).await?;
    let lists = policy::collect_offer_inputs(cluster).await?;
    Ok(status_with_warnings(&status::BrokerFacts::new(
        &own.config.spec.cluster_name,
        &own.id,
        lists,
        &nodes,
        jiff::Timestamp::now(),
    )))
}

/// The status with warnings.
fn status_with_warnings(facts: &status::BrokerFacts) -> BrokerStatus {
    let status = status::status_without_warnings(facts);
    let warnings = if status.broker {
        warnings::warnings_for_status(&status, facts)
    } else {
        Vec::new()
    };
    BrokerStatus { warnings, ..status }
}

/// The objects that `enable` and `disable` look at.
struct BrokerObjects {
    policies: Vec<PeeringPolicy>,
    peers: Vec<ForeignCluster>,
    offers: Vec<ResourceOffer>,
}

impl BrokerObjects {
    async fn list_from_cluster(cluster: &Cluster) -> anyhow::Result<Self> {
        let (policies, peers, offers) = tokio::join!(
            lists::list_peering_policies(cluster),
            lists::list_peers(cluster),
            lists::list_resource_offers(cluster)
        );
        Ok(Self {
            policies: policies?,
            peers: peers?,
            offers: offers?,
        })
    }

    fn as_view(&self) -> change::BrokerObjectsView<'_> {
        change::BrokerObjectsView {
            policies: &self.policies,
            peers: &self.peers,
            offers: &self.offers,
        }
    }
}

/// What `enable` would write.
pub async fn plan_enabling(
    cluster: &Cluster,
    wanted: &RequestedPolicyChange,
) -> anyhow::Result<EnablePlan> {
    Ok(change::plan_policy_change(
        wanted,
        BrokerObjects::list_from_cluster(cluster).await?.as_view(),
    )?)
}

/// The policy as `enable` writes it.
pub fn planned_policy(plan: &EnablePlan) -> PeeringPolicy {
    let mut policy = PeeringPolicy::new(&plan.policy, plan.spec.clone());
    if plan.creates {
        policy.annotations_mut().insert(
            change::CREATED_BY_ANNOTATION.to_owned(),
            change::CREATED_BY.to_owned(),
        );
    }
    policy
}

/// Writes the policy. Fails if somebody changed its spec after it was read.
pub async fn enable_lending_on(cluster: &Cluster, plan: &EnablePlan) -> anyhow::Result<()> {
    let api: Api<PeeringPolicy> = Api::all(cluster.client.clone());
    let name = &plan.policy;
    if plan.creates {
        let parameters = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        return api
            .create(&parameters, &planned_policy(plan))
            .await
            .map(drop)
            .doing(format!("create policy {name}"));
    }
    let spec = change::merge_patch(&plan.before, &plan.spec);
    while_unchanged(
        &api,
        (name, &plan.before),
        plan.resource_version.as_ref(),
        async |version| merge_policy_spec(&api, name, version, &spec).await,
    )
    .await
    .doing(format!("change policy {name}"))
}

async fn merge_policy_spec(
    api: &Api<PeeringPolicy>,
    name: &str,
    version: Option<String>,
    spec: &serde_json::Value,
) -> kube::Result<()> {
    let parameters = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let change = json!({ "metadata": { "resourceVersion": version }, "spec": spec });
    api.patch(name, &parameters, &Patch::Merge(change))
        .await
        .map(drop)
}

/// Writes a policy for which a plan was made when its spec was `before`. The manager may write its
/// status meanwhile, which also changes its version; then this tries again with the new one.
async fn while_unchanged(
    api: &Api<PeeringPolicy>,
    (name, before): (&str, &PeeringPolicySpec),
    version: Option<&String>,
    write: impl AsyncFn(Option<String>) -> kube::Result<()>,
) -> kube::Result<()> {
    let mut version = version.cloned();
    for _ in 1..ATTEMPTS {
        match write(version.clone()).await {
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            done => return done,
        }
        let live = api.get(name).await?;
        if live.spec != *before {
            break;
        }
        version = live.resource_version();
    }
    write(version).await
}

/// The plan of `disable`.
#[derive(Clone, Debug)]
pub struct PlannedEndings {
    pub endings: Vec<PolicyDisablePlan>,
    /// The policies by whose plugins this cluster lends on, which `disable` does not change.
    pub by_plugins: Vec<String>,
}

/// Plans `disable` for all policies that lend on, or for one.
pub async fn plan_endings(cluster: &Cluster, only: Option<&str>) -> anyhow::Result<PlannedEndings> {
    let lists = BrokerObjects::list_from_cluster(cluster).await?;
    Ok(PlannedEndings {
        endings: change::plan_policy_disabling(only, lists.as_view())?,
        by_plugins: change::by_plugins(lists.as_view()),
    })
}

/// Ends what was planned. Fails if somebody changed the spec of a policy after it was read.
pub async fn disable_lending_on(
    cluster: &Cluster,
    endings: &[PolicyDisablePlan],
) -> anyhow::Result<()> {
    let api: Api<PeeringPolicy> = Api::all(cluster.client.clone());
    for ending in endings {
        let (policy, version) = (&ending.policy, ending.resource_version.as_ref());
        let what = if ending.deletes { "delete" } else { "change" };
        while_unchanged(&api, (policy, &ending.before), version, async |version| {
            end_lending_on(&api, ending, version).await
        })
        .await
        .doing(format!("{what} policy {policy}"))?;
    }
    Ok(())
}

/// Fails if the policy is not this version any more.
async fn end_lending_on(
    api: &Api<PeeringPolicy>,
    ending: &PolicyDisablePlan,
    version: Option<String>,
) -> kube::Result<()> {
    if !ending.deletes {
        let spec = json!({ "provide": { "source": { "offers": null } } });
        return merge_policy_spec(api, &ending.policy, version, &spec).await;
    }
    let unchanged = Preconditions {
        resource_version: version,
        uid: None,
    };
    let parameters = DeleteParams {
        preconditions: Some(unchanged),
        ..DeleteParams::default()
    };
    api.delete(&ending.policy, &parameters).await.map(drop)
}
