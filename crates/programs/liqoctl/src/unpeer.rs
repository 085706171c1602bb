//! `liqoctl unpeer`: stops borrowing from a cluster, even if that cluster is gone.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{anyhow, bail};
use clap::Args;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
};
use liqo_api::policies::{PolicyPeer, policies_of_peer};
use liqo_api::{
    CallReason, ClusterId, ForeignCluster, PeeringIntent, links, provider_namespace,
    tenant_namespace,
};
use serde::Serialize;
use serde_json::json;

use crate::{
    cluster::{Cluster, ExplainFailure as _, is_absent},
    evict::{
        self,
        cordon::{UncordonWhen, with_cordon},
    },
    lists, output,
    progress::StepProgress,
    token,
    wait::{PollResult, until},
};

/// Options of `unpeer`.
#[derive(Clone, Debug, Args)]
pub struct UnpeerOptions {
    /// Name or ID of the peer
    pub name: String,
    /// Also take back what the peer borrows from this cluster
    #[arg(long)]
    pub incoming: bool,
    /// Delete the pods that run there at once, instead of evicting them as disruption budgets allow
    #[arg(long)]
    pub now: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// How long to wait until the pods have left, and then until the peering is ended
    #[arg(long, default_value = "5m", value_parser = token::parse_duration, value_name = "DURATION")]
    pub timeout: Duration,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnpeerResult {
    /// Name of the `ForeignCluster`.
    pub name: String,
    /// Whether the peer still borrows from this cluster.
    pub still_lending: bool,
    /// Whether the provider did not answer when the command began, so it may not know.
    pub was_silent: bool,
}

/// The peer of this name or ID.
pub async fn peer_by_name(cluster: &Cluster, name: &str) -> anyhow::Result<ForeignCluster> {
    find_in(lists::list_peers(cluster).await?, name)
}

/// An ID never counts as a name: a cluster chooses its own name, and could choose another cluster's
/// ID.
fn find_in(all: Vec<ForeignCluster>, name: &str) -> anyhow::Result<ForeignCluster> {
    let names: Vec<_> = all.iter().map(kube::ResourceExt::name_any).collect();
    let is_id = name.parse::<ClusterId>().is_ok();
    let found = all.into_iter().find(|foreign| {
        if is_id {
            foreign.spec.cluster_id.as_str() == name
        } else {
            foreign.name_any() == name
        }
    });
    match found {
        Some(foreign) => Ok(foreign),
        None if names.is_empty() => bail!("there is no peer {name}: this cluster has no peers"),
        None if is_id => bail!(
            "there is no peer with the ID {name}: the peers are called {}",
            names.join(", ")
        ),
        None => bail!(
            "there is no peer {name}: {}",
            output::existing_names(&names)
        ),
    }
}

/// Whether this peer borrows, or may borrow, from this cluster. A tenancy that is ending does not
/// count.
pub fn lends_to(foreign: &ForeignCluster) -> bool {
    let ending = foreign.metadata.deletion_timestamp.is_some()
        || foreign
            .condition(links::CONSUMER_AUTHORIZED)
            .is_some_and(|condition| condition.status == "False");
    !ending
        && foreign
            .status
            .as_ref()
            .is_some_and(|status| status.tenant_namespace.is_some())
}

/// Ends the peering and waits until this cluster has nothing left of it.
pub async fn end_peering(
    cluster: &Cluster,
    foreign: &ForeignCluster,
    options: &UnpeerOptions,
    progress: &StepProgress,
) -> anyhow::Result<UnpeerResult> {
    let api: Api<ForeignCluster> = Api::all(cluster.client.clone());
    let name = foreign.name_any();
    let still_lending = lends_to(foreign) && !options.incoming;
    // Discovery would create the object again, and the policy the peering.
    let automatic = foreign
        .status
        .as_ref()
        .is_some_and(|status| status.automatic_outgoing_peering);
    let by_policy = automatic || (options.incoming && needs_no_token(cluster, foreign).await?);
    let end = end_borrowing(
        &api,
        &name,
        KeepReasons {
            still_lending,
            by_policy,
            incoming: options.incoming,
        },
    );
    if options.now {
        end.await?;
    } else {
        evict_pods(cluster, foreign, options.timeout, progress, end).await?;
    }
    let step = format!("Ending the peering with {name}");
    let what = format!("the peering with {name} is ended");
    let ended = until(
        &what,
        options.timeout,
        |text| progress.message(&step, text),
        || check_leftovers(cluster, foreign, still_lending, by_policy),
    );
    progress.run_step(&step, ended).await?;
    Ok(UnpeerResult {
        name,
        still_lending,
        was_silent: was_silent(foreign),
    })
}

/// Whether this cluster borrowed from the provider, and nothing of it answered when this was read.
fn was_silent(foreign: &ForeignCluster) -> bool {
    let has_access = foreign
        .status
        .as_ref()
        .is_some_and(|status| status.remote_tenant_namespace.is_some());
    let reason = foreign
        .condition(links::PEER_REACHABLE)
        .map(|condition| condition.reason.as_str());
    has_access && reason == Some(CallReason::Unreachable.as_str())
}

/// Whether a policy lets this peer borrow again without a token.
async fn needs_no_token(cluster: &Cluster, foreign: &ForeignCluster) -> anyhow::Result<bool> {
    let policies = lists::list_peering_policies(cluster).await?;
    let policies: Vec<_> = policies.into_iter().map(Arc::new).collect();
    let peer = PolicyPeer::new(&foreign.spec.cluster_id, Some(foreign));
    Ok(policies_of_peer(&policies, &peer)
        .first()
        .is_some_and(|policy| !policy.spec.provide.token_required))
}

/// Reasons why the `ForeignCluster` stays after the peering has ended.
#[derive(Clone, Copy)]
struct KeepReasons {
    /// The peer still borrows from this cluster.
    still_lending: bool,
    /// A policy started the peering, and would start it again.
    by_policy: bool,
    /// The user ends both directions.
    incoming: bool,
}

/// Tells the controllers that this cluster borrows no more.
async fn end_borrowing(
    api: &Api<ForeignCluster>,
    name: &str,
    keep: KeepReasons,
) -> anyhow::Result<()> {
    if keep.still_lending || keep.by_policy {
        let mut change =
            json!({ "spec": { "outgoingPeering": PeeringIntent::No, "tokenSecretName": null } });
        if keep.incoming {
            change["spec"]["incomingPeering"] = json!(PeeringIntent::No);
        }
        api.patch(name, &PatchParams::default(), &Patch::Merge(&change))
            .await
            .doing(format!("change ForeignCluster {name}"))?;
        return Ok(());
    }
    match api.delete(name, &DeleteParams::background()).await {
        Err(error) if is_absent(&error) => Ok(()),
        deleted => deleted
            .doing(format!("delete ForeignCluster {name}"))
            .map(drop),
    }
}

/// The question to ask first.
pub async fn question_before_unpeer(
    cluster: &Cluster,
    foreign: &ForeignCluster,
    options: &UnpeerOptions,
) -> anyhow::Result<String> {
    let name = foreign.name_any();
    let mut text = format!("This gives back what is borrowed from {name}");
    if options.incoming && lends_to(foreign) {
        text += ", and takes back what it borrows from this cluster";
    }
    let nodes = virtual_nodes_of(cluster, &foreign.spec.cluster_id).await?;
    let (answering, silent) = partition_by_answer(nodes, &evict::answering_nodes(cluster).await?);
    let (answering, silent) = (
        count_pods(cluster, &answering).await?,
        count_pods(cluster, &silent).await?,
    );
    Ok(text + &how_pods_end(answering, silent, options.now) + ". Continue?")
}

/// The end of a sentence: how the pods of a provider end, by whether it answers.
fn how_pods_end(answering: usize, silent: usize, now: bool) -> String {
    let deleted = describe_deleted_pods(answering + silent).unwrap_or_default();
    match (answering, silent) {
        (0, 0) => String::new(),
        _ if now => format!("{deleted} at once"),
        (_, 0) => format!("{deleted}, as disruption budgets allow"),
        (0, _) => format!("{deleted} at once, because the peer does not answer"),
        _ => format!(
            "{deleted}: {answering} as disruption budgets allow, and {silent} at once, on nodes that are not ready"
        ),
    }
}

/// Evicts the pods that run at a peer and then runs `end`, while its virtual nodes take no new
/// ones. Pods at a peer that does not answer stay: they are deleted with their node.
async fn evict_pods(
    cluster: &Cluster,
    foreign: &ForeignCluster,
    timeout: Duration,
    progress: &StepProgress,
    end: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let (name, nodes) = (
        foreign.name_any(),
        virtual_nodes_of(cluster, &foreign.spec.cluster_id).await?,
    );
    let (nodes, _) = partition_by_answer(nodes, &evict::answering_nodes(cluster).await?);
    let leaving = || evict::pods_to_evict(cluster, None, &nodes);
    if leaving().await?.is_empty() {
        return end.await;
    }
    let step = format!("Evicting the pods that run at {name}");
    let evicted_and_ended = Box::pin(async {
        evict::evict_until_gone(cluster, &step, timeout, progress, leaving).await?;
        // If this fails, the peering goes on, so the nodes must take pods again.
        end.await
    });
    with_cordon(cluster, &nodes, UncordonWhen::OnFailure, evicted_and_ended).await.map_err(|error| {
        anyhow!("{error:#}. The peering goes on. Run the command again, or with --now, which deletes the remaining pods at once")
    })
}

/// The nodes whose cluster answers, and the others.
fn partition_by_answer(
    nodes: BTreeSet<String>,
    answering: &BTreeSet<String>,
) -> (BTreeSet<String>, BTreeSet<String>) {
    nodes.into_iter().partition(|node| answering.contains(node))
}

/// The names of the virtual nodes of a provider.
pub async fn virtual_nodes_of(
    cluster: &Cluster,
    provider: &ClusterId,
) -> anyhow::Result<BTreeSet<String>> {
    let nodes = lists::list_virtual_nodes(cluster, Some(provider)).await?;
    Ok(nodes
        .into_iter()
        .filter_map(|node| node.status?.node_name)
        .collect())
}

/// The end of a sentence: how many pods end with the virtual nodes of a provider; empty if none
/// does.
pub async fn describe_lost_pods(
    cluster: &Cluster,
    provider: &ClusterId,
) -> anyhow::Result<Option<String>> {
    Ok(describe_deleted_pods(
        count_pods(cluster, &virtual_nodes_of(cluster, provider).await?).await?,
    ))
}

fn describe_deleted_pods(pods: usize) -> Option<String> {
    match pods {
        0 => None,
        1 => Some("; the pod that runs there is deleted".to_owned()),
        _ => Some(format!("; {pods} pods that run there are deleted")),
    }
}

/// Number of unfinished pods on these nodes.
async fn count_pods(cluster: &Cluster, nodes: &BTreeSet<String>) -> anyhow::Result<usize> {
    let mut pods = 0;
    for node in nodes {
        pods += lists::list_pod_metadata_on_node(cluster, None, node)
            .await?
            .len();
    }
    Ok(pods)
}

/// Finds what is left of a peering.
async fn check_leftovers(
    cluster: &Cluster,
    foreign: &ForeignCluster,
    still_lending: bool,
    by_policy: bool,
) -> anyhow::Result<PollResult<()>> {
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let id = &foreign.spec.cluster_id;
    let mut names = vec![provider_namespace(id)];
    if !still_lending {
        names.push(tenant_namespace(id));
    }
    if !still_lending && !by_policy {
        let api: Api<ForeignCluster> = Api::all(cluster.client.clone());
        let object = api
            .get_metadata_opt(&foreign.name_any())
            .await
            .doing("read the ForeignCluster")?;
        if object.is_some_and(|object| object.metadata.uid == foreign.metadata.uid) {
            return Ok(PollResult::NotYet(
                "pods, virtual nodes and rights are being removed".to_owned(),
            ));
        }
    }
    for name in names {
        if namespaces
            .get_metadata_opt(&name)
            .await
            .doing(format!("read namespace {name}"))?
            .is_some()
        {
            return Ok(PollResult::NotYet(format!(
                "namespace {name} is being removed"
            )));
        }
    }
    Ok(PollResult::Done(()))
}

/// The result as text for people.
pub fn render_unpeer_result(unpeered: &UnpeerResult) -> String {
    let name = &unpeered.name;
    let ended = if unpeered.still_lending {
        format!(
            "This cluster does not borrow from {name} any more. {name} still borrows from this cluster; `liqoctl unpeer {name} --incoming` ends that, too."
        )
    } else {
        format!("The peering with {name} is ended.")
    };
    if unpeered.was_silent {
        format!(
            "{ended}\nNote: {name} did not answer, so it may not know. It keeps what this cluster had there until that expires (after a \
             day by default). Whoever deletes the ForeignCluster of this cluster there ends it at once."
        )
    } else {
        ended
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Method, Request, Response};
    use kube::{Client, client::Body};
    use parking_lot::Mutex;
    use serde_json::Value;

    use super::*;
    use crate::cluster::ClusterAccess;

    /// A cluster with a pod on node `milan`.
    #[derive(Default)]
    struct State {
        /// The budget allows the eviction.
        may_evict: bool,
        evicted: bool,
        /// How often the nodes were listed. The provider answers only at the first time.
        node_lists: u32,
        cordons: Vec<bool>,
        /// The annotations of the node.
        annotations: Value,
    }

    /// Its API server. It refuses to delete the `ForeignCluster`.
    fn server(state: Arc<Mutex<State>>, milan: ClusterId) -> Cluster {
        let service = tower::service_fn(move |request: Request<Body>| {
            let (state, milan) = (state.clone(), milan.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let (code, answer) = answer(
                    &mut state.lock(),
                    &parts.method,
                    parts.uri.path(),
                    &body,
                    &milan,
                );
                let answer = Body::from(serde_json::to_vec(&answer).unwrap());
                Ok::<_, kube::Error>(Response::builder().status(code).body(answer).unwrap())
            }
        });
        let client = Client::new(service, "default");
        Cluster {
            client,
            access: ClusterAccess::default(),
            context: "rome".into(),
            server: "https://rome".into(),
        }
    }

    fn answer(
        state: &mut State,
        method: &Method,
        path: &str,
        body: &[u8],
        milan: &ClusterId,
    ) -> (u16, Value) {
        let list = |items: Vec<Value>| {
            (
                200,
                json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": items }),
            )
        };
        let refused = |code: u16| {
            (
                code,
                json!({ "kind": "Status", "status": "Failure", "message": "no", "code": code }),
            )
        };
        let node = |reachable: &str| {
            let conditions = json!([{ "type": "Ready", "status": "True" }, { "type": "PeerReachable", "status": reachable }]);
            json!({ "metadata": { "name": "milan" }, "status": { "conditions": conditions } })
        };
        match (method, path.rsplit('/').next().unwrap_or_default()) {
            (&Method::GET, "virtualnodes") => {
                let spec = json!({ "clusterID": milan, "clusterName": "milan", "pool": "default", "resources": {} });
                list(vec![
                    json!({ "metadata": { "name": "default" }, "spec": spec, "status": { "nodeName": "milan" } }),
                ])
            }
            (&Method::GET, "nodes") => {
                state.node_lists += 1;
                list(vec![node(if state.node_lists == 1 {
                    "True"
                } else {
                    "False"
                })])
            }
            (&Method::GET, "milan") => {
                let mut node = node("True");
                node["metadata"]["annotations"] = state.annotations.clone();
                node["spec"] = json!({ "unschedulable": state.cordons.last() });
                (200, node)
            }
            (&Method::PATCH, "milan") => {
                let change: Value = serde_json::from_slice(body).unwrap();
                state
                    .cordons
                    .push(change["spec"]["unschedulable"] == json!(true));
                state.annotations = change["metadata"]["annotations"].clone();
                (200, node("True"))
            }
            (&Method::GET, "pods") if state.evicted => list(Vec::new()),
            (&Method::GET, "pods") => list(vec![
                json!({ "metadata": { "name": "web", "namespace": "demo", "uid": "w" } }),
            ]),
            (&Method::POST, "eviction") if state.may_evict => {
                state.evicted = true;
                (201, json!({ "kind": "Status", "status": "Success" }))
            }
            (&Method::POST, "eviction") => refused(429),
            _ => refused(403),
        }
    }

    async fn failure(state: &Arc<Mutex<State>>) -> String {
        let foreign = known("milan", 1);
        let cluster = server(state.clone(), foreign.spec.cluster_id.clone());
        let options = UnpeerOptions {
            name: "milan".to_owned(),
            incoming: false,
            now: false,
            yes: true,
            timeout: Duration::from_secs(1),
        };
        format!(
            "{:#}",
            end_peering(&cluster, &foreign, &options, &StepProgress::silent())
                .await
                .unwrap_err()
        )
    }

    #[tokio::test]
    async fn a_provider_that_falls_silent_meanwhile_does_not_make_pods_end_against_their_budget() {
        let state = Arc::<Mutex<State>>::default();
        let text = failure(&state).await;
        assert!(
            text.contains("demo/web waits") && text.contains("--now"),
            "{text}"
        );
        let state = state.lock();
        assert_eq!(
            (state.evicted, state.cordons.as_slice()),
            (false, &[true, false][..])
        );
    }

    #[tokio::test]
    async fn the_nodes_are_uncordoned_if_the_peering_cannot_be_ended() {
        let state = Arc::new(Mutex::new(State {
            may_evict: true,
            ..State::default()
        }));
        let text = failure(&state).await;
        assert!(
            text.contains("cannot delete ForeignCluster milan: no")
                && text.contains("The peering goes on"),
            "{text}"
        );
        let state = state.lock();
        assert_eq!(
            (state.evicted, state.cordons.as_slice()),
            (true, &[true, false][..])
        );
    }

    #[test]
    fn a_provider_that_did_not_answer_may_not_know() {
        let mut foreign = known("milan", 1);
        let note_with = |foreign: &ForeignCluster| {
            render_unpeer_result(&UnpeerResult {
                name: "milan".into(),
                still_lending: false,
                was_silent: was_silent(foreign),
            })
        };
        assert_eq!(note_with(&foreign), "The peering with milan is ended.");
        let conditions = |reason: &str| {
            json!({ "remoteTenantNamespace": "liqo-tenant-rome", "conditions": [{ "type": "PeerReachable", "status": "False", "reason": reason, "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z" }] })
        };
        foreign.status = serde_json::from_value(conditions("ManagerSilent")).unwrap();
        assert_eq!(
            note_with(&foreign),
            "The peering with milan is ended.",
            "its API server answers"
        );
        foreign.status = serde_json::from_value(conditions("Unreachable")).unwrap();
        assert!(note_with(&foreign).contains("Note: milan did not answer, so it may not know."));
    }

    #[test]
    fn the_question_says_which_pods_end_at_once() {
        assert_eq!(how_pods_end(0, 0, false), "");
        assert_eq!(
            how_pods_end(2, 0, false),
            "; 2 pods that run there are deleted, as disruption budgets allow"
        );
        assert_eq!(
            how_pods_end(2, 1, true),
            "; 3 pods that run there are deleted at once"
        );
        let silent =
            "; the pod that runs there is deleted at once, because the peer does not answer";
        assert_eq!(how_pods_end(0, 1, false), silent);
        let some = "; 3 pods that run there are deleted: 2 as disruption budgets allow, and 1 at once, on nodes that are not ready";
        assert_eq!(how_pods_end(2, 1, false), some);
    }

    fn known(name: &str, seed: u8) -> ForeignCluster {
        let id = ClusterId::of_public_key(&[seed; 32]);
        serde_json::from_value(json!({ "metadata": { "name": name }, "spec": { "clusterID": id } }))
            .unwrap()
    }

    #[test]
    fn a_peer_is_found_by_its_name_and_by_its_id() {
        let all = vec![known("rome", 1), known("turin", 2)];
        let turin = ClusterId::of_public_key(&[2; 32]);
        assert_eq!(find_in(all.clone(), "rome").unwrap().name_any(), "rome");
        assert_eq!(
            find_in(all.clone(), turin.as_str()).unwrap().name_any(),
            "turin"
        );
        assert!(
            find_in(all, "milan")
                .unwrap_err()
                .to_string()
                .contains("rome, turin")
        );
    }

    #[test]
    fn a_peer_that_calls_itself_by_the_id_of_another_is_not_taken_for_it() {
        let turin = ClusterId::of_public_key(&[2; 32]);
        let impostor = known(turin.as_str(), 3);
        let found = find_in(vec![impostor.clone(), known("turin", 2)], turin.as_str()).unwrap();
        assert_eq!(found.spec.cluster_id, turin);
        // The same if the other cluster is unknown.
        assert!(find_in(vec![impostor], turin.as_str()).is_err());
    }
}
