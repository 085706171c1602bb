//! Keeps new pods off nodes while pods leave them.
//!
//! Several commands may need the same node at the same time. Each adds its mark to an annotation of
//! the Node; the last one uncordons the node. A node that is cordoned without a mark was cordoned
//! by somebody else, and stays so.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::anyhow;
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use liqo_api::annotations::CORDONED_BY;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::CONCURRENCY;
use crate::{
    cluster::{Cluster, ExplainFailure as _, is_absent},
    interrupts::{Interrupts, exit_when_interrupted},
};

/// Maximum time in which the command tries to uncordon the nodes.
const UNCORDON_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum duration of one of these requests.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay before a request that failed is sent again.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum delay after which a cordon whose answer was lost still takes effect.
const LATE_CORDON: Duration = Duration::from_secs(5);
/// Maximum number of times that a node is read again because somebody else changed it meanwhile.
const MAX_CONFLICTS: usize = 10;

/// The case in which the nodes are uncordoned again. One that was cordoned before stays so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UncordonWhen {
    Always,
    /// If the work failed, or the user interrupted it.
    OnFailure,
}

/// The nodes that the command cordoned, and whether the API server confirmed that. Otherwise it may
/// happen later.
type CordonedNodes = Mutex<BTreeMap<String, bool>>;

/// Cordons nodes and runs `work`, until it is done or the user interrupts it. Then uncordons the
/// nodes.
pub async fn with_cordon<T>(
    cluster: &Cluster,
    nodes: &BTreeSet<String>,
    uncordon: UncordonWhen,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let mut interrupts = Interrupts::listen()?;
    let outcome = cordon_while(cluster, nodes, uncordon, work, interrupts.next()).await;
    exit_when_interrupted();
    outcome
}

async fn cordon_while<T>(
    cluster: &Cluster,
    nodes: &BTreeSet<String>,
    uncordon: UncordonWhen,
    work: impl Future<Output = anyhow::Result<T>>,
    interrupted: impl Future<Output = ()>,
) -> anyhow::Result<T> {
    let api: Api<Node> = Api::all(cluster.client.clone());
    let mark = format!(
        "{}-{}",
        std::process::id(),
        Timestamp::now().as_nanosecond()
    );
    let cordoned = CordonedNodes::default();
    let work = Box::pin(async {
        for node in nodes {
            cordon(&api, node, &mark, &cordoned).await?;
        }
        work.await
    });
    let outcome = tokio::select! {
        done = work => done,
        () = interrupted => Err(anyhow!("interrupted")),
    };
    if outcome.is_ok() && uncordon == UncordonWhen::OnFailure {
        return outcome;
    }
    // A second Ctrl-C ends this, too.
    let others = Mutex::new(BTreeMap::new());
    tokio::select! {
        () = uncordon_all(&api, &mark, &cordoned, &others) => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    for (node, marks) in others.into_inner() {
        eprintln!("{}", stays_cordoned(&node, &marks, &cluster.access.flags()));
    }
    let left: Vec<String> = cordoned.into_inner().into_keys().collect();
    if left.is_empty() {
        return outcome;
    }
    let stays = format!(
        "cannot uncordon nodes: run `kubectl{} uncordon {}`",
        cluster.access.flags(),
        left.join(" ")
    );
    match outcome {
        Ok(_) => Err(anyhow!(stays)),
        Err(error) => Err(anyhow!("{error:#}; besides, {stays}")),
    }
}

/// Cordons a node and adds it to `cordoned`, unless somebody else cordoned it, or it is gone.
async fn cordon(
    api: &Api<Node>,
    node: &str,
    mark: &str,
    cordoned: &CordonedNodes,
) -> anyhow::Result<()> {
    for _ in 0..MAX_CONFLICTS {
        let Some(live) = api.get_opt(node).await.doing(format!("read Node {node}"))? else {
            return Ok(());
        };
        let Some(change) = with_mark(&live, mark) else {
            return Ok(());
        };
        // Before the request: an interruption may come while it is on its way.
        cordoned.lock().insert(node.to_owned(), false);
        let answer = patch(api, node, &change).await;
        match &answer {
            Ok(()) => {
                cordoned.lock().insert(node.to_owned(), true);
            }
            // After a refusal it is not cordoned. After other errors it may be.
            Err(kube::Error::Api(status)) if status.code < 500 => {
                cordoned.lock().remove(node);
            }
            Err(_) => {}
        }
        match answer {
            Err(error) if is_absent(&error) => return Ok(()),
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            answer => return answer.doing(format!("cordon Node {node}")),
        }
    }
    Err(anyhow!(
        "cannot cordon Node {node}: others change it all the time; run the command again"
    ))
}

/// Removes the mark from these nodes, uncordons those without another one, and removes them from
/// the set. Repeats requests that fail, for some time. Adds the marks of nodes that other commands
/// keep cordoned to `others`.
async fn uncordon_all(
    api: &Api<Node>,
    mark: &str,
    cordoned: &CordonedNodes,
    others: &Mutex<BTreeMap<String, BTreeSet<String>>>,
) {
    let begun = Instant::now();
    loop {
        let nodes = cordoned.lock().clone();
        let requests = futures::stream::iter(nodes).for_each_concurrent(
            CONCURRENCY,
            |(node, is_confirmed)| async move {
                let is_done = match timeout(REQUEST_TIMEOUT, uncordon(api, &node, mark)).await {
                    Ok(Ok(Some(left))) => {
                        if !left.is_empty() {
                            others.lock().insert(node.clone(), left);
                        }
                        true
                    }
                    Ok(Ok(None)) => is_confirmed || begun.elapsed() >= LATE_CORDON,
                    Ok(Err(error)) => is_absent(&error),
                    Err(_) => false,
                };
                if is_done {
                    cordoned.lock().remove(&node);
                }
            },
        );
        requests.await;
        if cordoned.lock().is_empty() || begun.elapsed() >= UNCORDON_TIMEOUT {
            return;
        }
        sleep(RETRY_DELAY).await;
    }
}

/// Removes the mark from a node, and uncordons it if no other one is left. Returns those that are
/// left; `None` if the node does not have the mark.
async fn uncordon(
    api: &Api<Node>,
    node: &str,
    mark: &str,
) -> kube::Result<Option<BTreeSet<String>>> {
    let live = api.get(node).await?;
    let Some(change) = without_mark(&live, mark) else {
        return Ok(None);
    };
    patch(api, node, &change).await?;
    Ok(Some(
        marks(&live)
            .into_iter()
            .filter(|left| *left != mark)
            .map(str::to_owned)
            .collect(),
    ))
}

/// Explains why a node stays cordoned, and what to do if none of the other commands runs any more.
fn stays_cordoned(node: &str, marks: &BTreeSet<String>, flags: &str) -> String {
    let marks = marks
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    format!(
        "Node {node} stays cordoned for other commands ({marks}); the last one uncordons it. If they were killed: \
         `kubectl{flags} uncordon {node}`"
    )
}

async fn patch(api: &Api<Node>, node: &str, change: &Value) -> kube::Result<()> {
    api.patch_metadata(node, &PatchParams::default(), &Patch::Merge(change))
        .await
        .map(drop)
}

/// The change that cordons a node with this mark; `None` if somebody else cordoned it.
fn with_mark(node: &Node, mark: &str) -> Option<Value> {
    let mut marks = marks(node);
    if is_cordoned(node) && marks.is_empty() {
        return None;
    }
    marks.insert(mark);
    Some(marks_patch(node, &marks))
}

/// The change that removes this mark from a node, and uncordons it if no other one is left; `None`
/// if the node does not have the mark.
fn without_mark(node: &Node, mark: &str) -> Option<Value> {
    let mut marks = marks(node);
    marks.remove(mark).then(|| marks_patch(node, &marks))
}

/// The commands that keep a node cordoned. The marks on a node that is not cordoned mean nothing: a
/// person uncordoned it.
fn marks(node: &Node) -> BTreeSet<&str> {
    let marks = node
        .annotations()
        .get(CORDONED_BY)
        .filter(|_| is_cordoned(node));
    marks
        .into_iter()
        .flat_map(|marks| marks.split(','))
        .filter(|mark| !mark.is_empty())
        .collect()
}

fn is_cordoned(node: &Node) -> bool {
    node.spec
        .as_ref()
        .is_some_and(|spec| spec.unschedulable == Some(true))
}

/// Sets the marks, if the node is still as it was read.
fn marks_patch(node: &Node, marks: &BTreeSet<&str>) -> Value {
    let joined = marks.iter().copied().collect::<Vec<_>>().join(",");
    let (annotation, unschedulable) = if marks.is_empty() {
        (Value::Null, Value::Null)
    } else {
        (json!(joined), json!(true))
    };
    json!({
        "metadata": { "resourceVersion": node.metadata.resource_version, "annotations": { CORDONED_BY: annotation } },
        "spec": { "unschedulable": unschedulable },
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use anyhow::bail;
    use http::{Method, Request, Response};
    use kube::{Client, client::Body};

    use super::*;
    use crate::cluster::ClusterAccess;

    type Nodes = Arc<Mutex<BTreeMap<String, bool>>>;

    /// An API server that only knows these nodes. It answers changes with these codes, one after
    /// another, and then accepts them. It makes a change that it answered with 504 a little later.
    fn server(nodes: &[(&str, bool)], codes: &[u16]) -> (Cluster, Nodes) {
        let nodes: Nodes = Arc::new(Mutex::new(
            nodes
                .iter()
                .map(|(name, cordoned)| ((*name).to_owned(), *cordoned))
                .collect(),
        ));
        let (known, codes) = (nodes.clone(), Arc::new(Mutex::new(codes.to_vec())));
        let marks: Arc<Mutex<BTreeMap<String, Value>>> = Arc::default();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (known, codes, marks) = (known.clone(), codes.clone(), marks.clone());
            async move {
                let (parts, body) = request.into_parts();
                let name = parts
                    .uri
                    .path()
                    .rsplit('/')
                    .next()
                    .unwrap_or_default()
                    .to_owned();
                let mut code = if known.lock().contains_key(&name) {
                    200
                } else {
                    404
                };
                if parts.method == Method::PATCH {
                    let change: Value =
                        serde_json::from_slice(&body.collect_bytes().await?).unwrap();
                    let mut codes = codes.lock();
                    if !codes.is_empty() {
                        code = codes.remove(0);
                    }
                    let (node, known, marks) = (name.clone(), known.clone(), marks.clone());
                    let apply = move || {
                        known
                            .lock()
                            .insert(node.clone(), change["spec"]["unschedulable"] == json!(true));
                        marks
                            .lock()
                            .insert(node, change["metadata"]["annotations"].clone());
                    };
                    if code == 200 {
                        apply();
                    } else if code == 504 {
                        tokio::spawn(async move {
                            sleep(RETRY_DELAY + RETRY_DELAY / 2).await;
                            apply();
                        });
                    }
                }
                let answer = if code == 200 {
                    let spec = json!({ "unschedulable": known.lock()[&name] });
                    let marks = marks
                        .lock()
                        .get(&name)
                        .filter(|marks| marks[CORDONED_BY].is_string())
                        .cloned();
                    let metadata =
                        json!({ "name": name, "annotations": marks.unwrap_or_else(|| json!({})) });
                    json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec })
                } else {
                    let reason = if code == 404 { "NotFound" } else { "Other" };
                    json!({ "kind": "Status", "status": "Failure", "message": "no", "reason": reason, "code": code })
                };
                let body = Body::from(serde_json::to_vec(&answer).unwrap());
                Ok::<_, kube::Error>(Response::builder().status(code).body(body).unwrap())
            }
        });
        let client = Client::new(service, "default");
        (
            Cluster {
                client,
                access: ClusterAccess::default(),
                context: "rome".into(),
                server: "https://rome".into(),
            },
            nodes,
        )
    }

    #[tokio::test]
    async fn nodes_are_uncordoned_again_except_those_that_were_cordoned_before() {
        let before = [("milan", false), ("turin", true)];
        let (cluster, nodes) = server(&before, &[]);
        let all: BTreeSet<String> = ["gone", "milan", "turin"].map(str::to_owned).into();
        let cordoned = async { Ok(nodes.lock().values().all(|cordoned| *cordoned)) };
        assert!(
            with_cordon(&cluster, &all, UncordonWhen::Always, cordoned)
                .await
                .unwrap()
        );
        let as_before: BTreeMap<String, bool> = before
            .map(|(name, cordoned)| (name.to_owned(), cordoned))
            .into();
        assert_eq!(*nodes.lock(), as_before);

        let failed = async { bail!("timed out") };
        assert!(
            with_cordon::<()>(&cluster, &all, UncordonWhen::OnFailure, failed)
                .await
                .is_err()
        );
        assert_eq!(*nodes.lock(), as_before);

        with_cordon(&cluster, &all, UncordonWhen::OnFailure, async { Ok(()) })
            .await
            .unwrap();
        assert!(nodes.lock()["milan"], "the virtual node goes next");
    }

    #[tokio::test]
    async fn a_node_is_uncordoned_after_an_interruption_and_although_a_request_fails() {
        let (cluster, nodes) = server(&[("milan", false)], &[200, 503]);
        let milan: BTreeSet<String> = ["milan".to_owned()].into();
        let (started, interrupted) = tokio::sync::oneshot::channel();
        let work = async {
            assert!(nodes.lock()["milan"]);
            started.send(()).unwrap();
            std::future::pending().await
        };
        let interrupted = async { interrupted.await.unwrap() };
        let error =
            cordon_while::<()>(&cluster, &milan, UncordonWhen::OnFailure, work, interrupted)
                .await
                .unwrap_err();
        assert_eq!(error.to_string(), "interrupted");
        assert!(!nodes.lock()["milan"]);
    }

    #[tokio::test]
    async fn the_last_one_of_two_commands_at_once_uncordons_the_node() {
        let (cluster, nodes) = server(&[("milan", false)], &[]);
        let milan: BTreeSet<String> = ["milan".to_owned()].into();
        let cordoned = || nodes.lock()["milan"];
        let command = |work| {
            cordon_while(
                &cluster,
                &milan,
                UncordonWhen::Always,
                work,
                std::future::pending(),
            )
        };
        let (second_began, wait_for_second) = tokio::sync::oneshot::channel();
        let (first_ended, wait_for_first) = tokio::sync::oneshot::channel();
        let first = async {
            command(Box::pin(async { wait_for_second.await.map_err(Into::into) }) as Work<'_>)
                .await
                .unwrap();
            first_ended.send(cordoned()).unwrap();
        };
        let second = command(Box::pin(async {
            second_began.send(()).unwrap();
            anyhow::ensure!(
                wait_for_first.await?,
                "the first command uncordoned the node"
            );
            Ok(())
        }));
        let ((), second) = tokio::join!(first, second);
        second.unwrap();
        assert!(!cordoned());
    }

    #[tokio::test]
    async fn a_cordon_that_takes_effect_after_its_answer_was_lost_is_removed_too() {
        let (cluster, nodes) = server(&[("milan", false)], &[504]);
        let milan: BTreeSet<String> = ["milan".to_owned()].into();
        with_cordon(&cluster, &milan, UncordonWhen::Always, async { Ok(()) })
            .await
            .unwrap_err();
        sleep(RETRY_DELAY * 2).await;
        assert!(!nodes.lock()["milan"]);
    }

    #[tokio::test]
    async fn a_command_says_which_others_keep_the_node_cordoned_after_it() {
        let (cluster, _) = server(&[("milan", false)], &[]);
        let api: Api<Node> = Api::all(cluster.client);
        let cordoned = CordonedNodes::default();
        for mark in ["killed", "ours"] {
            cordon(&api, "milan", mark, &cordoned).await.unwrap();
        }
        let left = uncordon(&api, "milan", "ours").await.unwrap().unwrap();
        assert_eq!(
            stays_cordoned("milan", &left, " --context rome"),
            "Node milan stays cordoned for other commands (killed); the last one uncordons it. If they were killed: \
             `kubectl --context rome uncordon milan`"
        );
        assert_eq!(uncordon(&api, "milan", "ours").await.unwrap(), None);
        assert_eq!(
            uncordon(&api, "milan", "killed").await.unwrap(),
            Some(BTreeSet::new())
        );
    }

    type Work<'a> = std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>> + 'a>>;

    #[test]
    fn marks_on_a_node_that_a_person_uncordoned_mean_nothing() {
        let node = |cordoned: bool, marks: Option<&str>| -> Node {
            let metadata = json!({ "name": "milan", "resourceVersion": "7", "annotations": { CORDONED_BY: marks } });
            let mut node: Value =
                json!({ "metadata": metadata, "spec": { "unschedulable": cordoned } });
            if marks.is_none() {
                node["metadata"]["annotations"] = json!({});
            }
            serde_json::from_value(node).unwrap()
        };
        let marks = |change: Option<Value>| {
            change.map(|change| change["metadata"]["annotations"][CORDONED_BY].clone())
        };
        assert_eq!(
            marks(with_mark(&node(false, Some("a,b")), "c")),
            Some(json!("c"))
        );
        assert_eq!(
            marks(with_mark(&node(true, Some("a,b")), "c")),
            Some(json!("a,b,c"))
        );
        assert_eq!(
            with_mark(&node(true, None), "c"),
            None,
            "somebody else cordoned it"
        );
        assert_eq!(
            marks(without_mark(&node(true, Some("a,c")), "c")),
            Some(json!("a"))
        );
        let last = without_mark(&node(true, Some("c")), "c").unwrap();
        assert_eq!(
            (
                &last["spec"]["unschedulable"],
                &last["metadata"]["resourceVersion"]
            ),
            (&Value::Null, &json!("7"))
        );
        assert_eq!(without_mark(&node(false, Some("c")), "c"), None);
    }

    #[tokio::test]
    async fn a_cordon_that_is_refused_leaves_nothing_to_uncordon() {
        let (cluster, _) = server(&[("milan", false)], &[403; 99]);
        let milan: BTreeSet<String> = ["milan".to_owned()].into();
        let error = with_cordon(&cluster, &milan, UncordonWhen::Always, async { Ok(()) })
            .await
            .unwrap_err();
        assert_eq!(format!("{error:#}"), "cannot cordon Node milan: no");
    }
}
