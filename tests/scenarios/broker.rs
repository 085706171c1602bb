//! A broker: milan lends to rome what it borrows from turin. Rome knows only milan.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use liqo_signing::{ClusterIdentity, sign_in};
use liqo_tests::{Cluster, Fixture, Output, World, eventually};
use serde_json::{Value, json};

use crate::{
    jobs::job,
    network::{ABROAD, AT_HOME, ask, connected, endpoint, exec, ip, seen, servers, service},
    pods::{deployment, node_of},
    policies::{allocatable, apply_policy, offer},
};

const TIMEOUT: Duration = Duration::from_mins(1);
/// The notice with which milan ends to be a broker.
const NOTICE_SECONDS: u8 = 5;
pub const NAMESPACE: &str = "chain";
/// Deployment and Service of the plugin.
const PLUGIN: &str = "liqo-broker-plugin";
/// The service account that reads the catalog.
const READER: &str = "catalog-reader";
const ORIGINAL_OFFLOADING: &str = "
apiVersion: offloading.liqo.io/v1alpha1
kind: NamespaceOffloading
metadata:
    name: offloading
    namespace: liqo
spec:
    namespaceMappingStrategy: DefaultName
    podOffloadingStrategy: Local
    clusterSelector:
        nodeSelectorTerms:
        - matchExpressions:
            - key: liqo.io/type
              operator: In
              values:
              - virtual-node
";

/// Milan borrows from turin, and lends to rome only what it borrows.
pub static FIXTURE: Fixture = Fixture {
    name: "milan is a broker",
    set_up: |world| Box::pin(async { broker_by(world, &json!({ "offers": {} })).await }),
    take_down: |world| Box::pin(no_broker(world)),
};

/// Peers milan with turin, and lets milan lend to rome from this source.
async fn broker_by(world: &World, source: &Value) -> Result<()> {
    let (rome, milan, turin) = (&world.rome, &world.milan, &world.turin);
    milan.peer_with(turin).await?;
    let peers = json!({ "clusterIDs": [rome.cluster_id().await?] });
    let provide = json!({ "percentage": 100, "noticeSeconds": 4, "source": source });
    apply_policy(
        milan,
        "broker",
        json!({ "priority": 10, "peers": peers, "provide": provide }),
    )
    .await?;
    eventually(
        "milan offers what turin offers, and rome's node has it",
        TIMEOUT,
        || async {
            let offer = offer(milan, rome).await?.context("there is no offer")?.spec;
            ensure!(offer.hops == 2 && offer.path.len() == 2, "{offer:#?}");
            let (there, here) = (
                allocatable(milan, "turin").await?.get("cpu"),
                allocatable(rome, "milan").await?.get("cpu"),
            );
            Ok((offer.resource_quota.hard.get("cpu") == there && here == there).then_some(()))
        },
    )
    .await
}

pub async fn no_broker(world: &World) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    milan
        .kubectl(&["delete", "peeringpolicy", "broker"])
        .await?;
    eventually("milan lends its own nodes again", TIMEOUT, || async {
        let offer = offer(milan, rome).await?.context("there is no offer")?.spec;
        Ok((offer.hops == 1 && offer.node_selector.is_none()).then_some(()))
    })
    .await?;
    milan.liqoctl(&["unpeer", "turin", "--yes"]).await.map(drop)
}

/// Waits until the mapped namespace of a namespace is ready at a provider.
pub async fn mapped(consumer: &Cluster, namespace: &str, provider: &Cluster) -> Result<String> {
    consumer
        .wait_for(
            &["-n", namespace, "namespaceoffloading/offloading"],
            "condition=Ready",
            90,
        )
        .await?;
    consumer.remote_namespace(namespace, provider).await
}

/// Offloads a namespace of rome, and creates two pods `app=web` in it. Returns the names of its
/// remote namespaces at milan and at turin.
pub async fn two_pods_behind_the_broker(
    world: &World,
    namespace: &str,
) -> Result<(String, String)> {
    let (rome, milan, turin) = (&world.rome, &world.milan, &world.turin);
    rome.offloaded_namespace(namespace, "Remote").await?;
    rome.apply(&deployment(namespace, "web", 2)).await?;
    let at_milan = mapped(rome, namespace, milan).await?;
    let at_turin = mapped(milan, &at_milan, turin).await?;
    Ok((at_milan, at_turin))
}

fn nodes(pods: &[Pod]) -> Vec<&str> {
    pods.iter().map(node_of).collect()
}

pub async fn a_deployment_runs_at_a_provider_of_the_provider(world: Arc<World>) -> Result<()> {
    let (rome, milan, turin) = (&world.rome, &world.milan, &world.turin);
    let (at_milan, at_turin) = two_pods_behind_the_broker(&world, NAMESPACE).await?;

    let here = rome.ready_pods(NAMESPACE, "app=web", 2).await?;
    let between = milan.ready_pods(&at_milan, "app=web", 2).await?;
    let there = turin.ready_pods(&at_turin, "app=web", 2).await?;
    ensure!(
        nodes(&here) == ["milan"; 2],
        "at home they are on {:?}",
        nodes(&here)
    );
    ensure!(
        nodes(&between) == ["turin"; 2],
        "at the broker they are on {:?}",
        nodes(&between)
    );
    ensure!(
        nodes(&there).iter().all(|node| node.starts_with("turin-")),
        "they run on {:?}",
        nodes(&there)
    );
    rome.wait_for(
        &["-n", NAMESPACE, "deployment/web"],
        "condition=Available",
        30,
    )
    .await?;

    // Logs and commands go through both kubelet APIs.
    ensure!(
        rome.kubectl(&["-n", NAMESPACE, "logs", "deployment/web"])
            .await?
            .contains("started"),
        "there is no log"
    );
    let said = rome
        .kubectl(&[
            "-n",
            NAMESPACE,
            "exec",
            "deployment/web",
            "--",
            "sh",
            "-c",
            "echo hello; hostname",
        ])
        .await?;
    ensure!(said.starts_with("hello\nweb-"), "exec printed {said:?}");
    let failed = rome
        .try_kubectl(&[
            "-n",
            NAMESPACE,
            "exec",
            "deployment/web",
            "--",
            "sh",
            "-c",
            "exit 7",
        ])
        .await?;
    ensure!(
        !failed.success && failed.stderr.contains("exit code 7"),
        "{failed:?}"
    );

    // A container that ends is restarted by turin, and rome counts it.
    let name = here[0].name_any();
    // The command may end with its container.
    rome.try_kubectl(&["-n", NAMESPACE, "exec", &name, "--", "kill", "1"])
        .await?;
    eventually("rome counts a restart", TIMEOUT, || async {
        let status = rome
            .api::<Pod>(NAMESPACE)
            .get(&name)
            .await?
            .status
            .unwrap_or_default();
        let restarts: i32 = status
            .container_statuses
            .iter()
            .flatten()
            .map(|one| one.restart_count)
            .sum();
        Ok((restarts > 0).then_some(()))
    })
    .await?;

    writes_of_a_pod(
        &world,
        &[(rome, NAMESPACE), (milan, &at_milan), (turin, &at_turin)],
    )
    .await?;
    rome.delete_namespace(NAMESPACE).await?;
    eventually(
        "the namespaces are gone everywhere",
        Duration::from_mins(2),
        || async {
            let left = [
                milan.object(&["namespace", &at_milan]).await?,
                turin.object(&["namespace", &at_turin]).await?,
            ];
            Ok(left.iter().all(Option::is_none).then_some(()))
        },
    )
    .await
}

/// Prints Liqo's writes for each pod in each cluster of a chain, when a Deployment of two pods
/// grows to six. Then one pod is left.
async fn writes_of_a_pod(world: &World, chain: &[(&Cluster, &str)]) -> Result<()> {
    let scaled = async |replicas: usize| {
        let (home, namespace) = chain[0];
        home.kubectl(&[
            "-n",
            namespace,
            "scale",
            "deployment/web",
            &format!("--replicas={replicas}"),
        ])
        .await?;
        for (cluster, namespace) in chain {
            cluster.ready_pods(namespace, "app=web", replicas).await?;
        }
        anyhow::Ok(())
    };
    let all: Vec<_> = chain.iter().map(|(cluster, _)| *cluster).collect();
    world.quiet(&all).await?;
    let before = all
        .iter()
        .map(|cluster| cluster.audit_length())
        .collect::<Result<Vec<_>>>()?;
    scaled(6).await?;
    world.quiet(&all).await?;
    for (cluster, before) in all.iter().zip(before) {
        let writes = f64::from(u32::try_from(cluster.liqo_writes(before)?.len())?) / 4.0;
        println!(
            "writes in {} for each pod behind a broker: {writes:.1}",
            cluster.name
        );
    }
    scaled(1).await
}

/// Creates a Service with a server at rome and one at turin, and waits until both have addresses at
/// rome.
pub async fn near_and_far(world: &World) -> Result<(Pod, Pod)> {
    let rome = &world.rome;
    rome.offloaded_namespace(NAMESPACE, "LocalAndRemote")
        .await?;
    rome.apply(&service(NAMESPACE, "web")).await?;
    rome.apply(&servers(NAMESPACE, "near", "web", 1, AT_HOME))
        .await?;
    rome.apply(&servers(NAMESPACE, "far", "web", 1, ABROAD))
        .await?;
    let near = rome
        .ready_pods(NAMESPACE, "server=near", 1)
        .await?
        .remove(0);
    let far = eventually(
        "the pod at turin has an address at rome",
        TIMEOUT,
        || async {
            let far = rome.ready_pods(NAMESPACE, "server=far", 1).await?.remove(0);
            Ok(ip(&far).is_ok().then_some(far))
        },
    )
    .await?;
    Ok((near, far))
}

pub async fn a_pod_behind_a_broker_and_its_home_reach_each_other_and_see_who_calls(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan, turin) = (&world.rome, &world.milan, &world.turin);
    connected(rome, milan).await?;
    connected(milan, turin).await?;
    // A namespace of rome that another scenario ended may still be offloaded to turin.
    world.ended_namespaces_are_gone().await?;
    eventually(
        "rome does not see turin while none of its pods can be there",
        TIMEOUT,
        || async {
            let behind = endpoint(rome, milan).await?.spec.behind;
            ensure!(behind.is_empty(), "{behind:?}");
            Ok(Some(()))
        },
    )
    .await?;
    let (near, far) = near_and_far(&world).await?;
    let at_milan = mapped(rome, NAMESPACE, milan).await?;
    let at_turin = mapped(milan, &at_milan, turin).await?;

    // Each cluster translates by prefixes, and knows the address of the next one alone.
    let of_far = ip(&turin.api::<Pod>(&at_turin).get(&far.name_any()).await?)?;
    let far_at_milan = seen(&endpoint(turin, milan).await?, &of_far)?;
    ensure!(
        ip(&milan.api::<Pod>(&at_milan).get(&far.name_any()).await?)? == far_at_milan,
        "milan sees another address"
    );
    let far_at_rome = seen(&endpoint(milan, rome).await?, &far_at_milan)?;
    ensure!(
        ip(&far)? == far_at_rome,
        "rome has {}, not {far_at_rome}",
        ip(&far)?
    );
    let near_at_milan = seen(&endpoint(rome, milan).await?, &ip(&near)?)?;
    let near_at_turin = seen(&endpoint(milan, turin).await?, &near_at_milan)?;
    let calls = [
        (&near, &far, &far_at_rome, &near_at_turin),
        (&far, &near, &near_at_turin, &far_at_rome),
    ];
    for (caller, called, address, source) in calls {
        let name = caller.name_any();
        let answer = ask(rome, NAMESPACE, &name, address, "").await?;
        ensure!(
            answer == called.name_any(),
            "{answer:?} is not {}",
            called.name_any()
        );
        let seen_as = ask(rome, NAMESPACE, &name, address, "cgi-bin/who").await?;
        ensure!(
            seen_as == *source,
            "{name} is seen as {seen_as}, not as {source}"
        );
        let large = exec(
            rome,
            NAMESPACE,
            &name,
            &format!("timeout 150 wget -qO- http://{address}:8080/large | md5sum"),
        )
        .await?;
        let sent = exec(rome, NAMESPACE, &called.name_any(), "md5sum < /tmp/w/large").await?;
        ensure!(large == sent, "a large answer arrives damaged");
    }
    // The Service of rome has both pods as endpoints, on both sides.
    for (caller, name) in [(&near, "web.chain"), (&far, "web")] {
        eventually(&format!("both answer {} for {name}", caller.name_any()), TIMEOUT, || async {
            let line = format!("i=0; while [ $i -lt 20 ]; do timeout 3 wget -qO- http://{name}; i=$((i+1)); done");
            let answers = exec(rome, NAMESPACE, &caller.name_any(), &line).await?;
            ensure!([&near, &far].iter().all(|pod| answers.contains(&pod.name_any())), "{answers}");
            Ok(Some(()))
        })
        .await?;
    }
    rome.end_namespace(NAMESPACE).await?;
    eventually(
        "rome and turin no longer see each other",
        TIMEOUT,
        || async {
            let left = [endpoint(rome, milan).await?, endpoint(turin, milan).await?];
            Ok(left
                .iter()
                .all(|endpoint| endpoint.spec.behind.is_empty())
                .then_some(()))
        },
    )
    .await
}

pub async fn a_pod_behind_a_broker_reads_its_configuration_and_what_it_is_at_home(
    world: Arc<World>,
) -> Result<()> {
    const NAMESPACE: &str = "chain-reader";
    let rome = &world.rome;
    rome.offloaded_namespace(NAMESPACE, "Remote").await?;
    rome.kubectl(&[
        "-n",
        NAMESPACE,
        "create",
        "configmap",
        "settings",
        "--from-literal=colour=red",
    ])
    .await?;
    rome.kubectl(&[
        "-n",
        NAMESPACE,
        "create",
        "secret",
        "generic",
        "login",
        "--from-literal=password=secret",
    ])
    .await?;
    let variable = |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let file =
        |path: &str, field: &str| json!({ "path": path, "fieldRef": { "fieldPath": field } });
    let files = json!([
        file("namespace", "metadata.namespace"),
        file("labels", "metadata.labels")
    ]);
    let object = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "reader", "namespace": NAMESPACE, "labels": { "app": "reader" } },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "volumes": [{ "name": "info", "downwardAPI": { "items": files } }, { "name": "settings", "configMap": { "name": "settings" } }],
            "containers": [{
                "name": "main",
                "image": "localhost/busybox:1",
                "command": ["sh", "-c", "trap exit TERM; sleep 3600 & wait"],
                "env": [variable("NAMESPACE", "metadata.namespace"), variable("ID", "metadata.uid"), variable("NODE", "spec.nodeName"),
                    { "name": "PASSWORD", "valueFrom": { "secretKeyRef": { "name": "login", "key": "password" } } }],
                "volumeMounts": [{ "name": "info", "mountPath": "/info" }, { "name": "settings", "mountPath": "/settings" }],
                "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
            }],
        },
    });
    rome.apply(&object.to_string()).await?;
    let pod = rome.ready_pods(NAMESPACE, "app=reader", 1).await?.remove(0);
    let line = "echo $NAMESPACE $ID $NODE $PASSWORD; cat /info/namespace; echo; cat /info/labels; echo; cat /settings/colour";
    let read = rome
        .kubectl(&["-n", NAMESPACE, "exec", "reader", "--", "sh", "-c", line])
        .await?;
    let wanted = format!(
        "{NAMESPACE} {} milan secret\n{NAMESPACE}\napp=\"reader\"\nred",
        pod.uid().unwrap_or_default()
    );
    ensure!(read == wanted, "it reads {read}");
    rome.end_namespace(NAMESPACE).await
}

pub async fn nobody_is_offered_what_comes_from_itself(world: Arc<World>) -> Result<()> {
    let (rome, milan, turin) = (&world.rome, &world.milan, &world.turin);
    // Turin borrows from the broker, too. All that the broker has comes from turin.
    let peers = json!({ "clusterIDs": [turin.cluster_id().await?] });
    apply_policy(
        milan,
        "back",
        json!({ "priority": 10, "peers": peers, "provide": { "source": { "offers": {} } } }),
    )
    .await?;
    // It never gets a node.
    turin
        .liqoctl(&[
            "peer",
            "--remote-kubeconfig",
            &milan.kubeconfig.display().to_string(),
            "--no-wait",
        ])
        .await?;
    let tenant = liqo_api::tenant_namespace(&turin.cluster_id().await?.parse()?);
    eventually(
        "the request is answered with NothingFree",
        TIMEOUT,
        || async {
            let request = milan
                .object(&["-n", &tenant, "resourcerequest", liqo_api::RESOURCE_REQUEST])
                .await?;
            let request = request.context("there is no request")?;
            let found = request["status"]["conditions"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|one| one["reason"] == "NothingFree");
            ensure!(found, "{}", request["status"]);
            Ok(Some(()))
        },
    )
    .await?;
    ensure!(
        offer(milan, turin).await?.is_none(),
        "turin is offered its own resources"
    );

    // Rome's policy accepts only what milan owns.
    let owned = json!({ "priority": 10, "peers": { "clusterIDs": [milan.cluster_id().await?] }, "consume": { "maxHops": 1 } });
    apply_policy(rome, "owned", owned).await?;
    eventually("rome refuses the offer, and says why", TIMEOUT, || async {
        let status = offer(milan, rome)
            .await?
            .and_then(|offer| offer.status)
            .context("no answer")?;
        let message = status.message.unwrap_or_default();
        ensure!(message.contains("come through 2 clusters"), "{message}");
        Ok(Some(()))
    })
    .await?;
    eventually("rome's node is gone", TIMEOUT, || async {
        Ok(rome
            .object(&["node", "milan"])
            .await?
            .is_none()
            .then_some(()))
    })
    .await?;
    rome.kubectl(&["delete", "peeringpolicy", "owned"]).await?;
    eventually("rome has the node again", TIMEOUT, || async {
        Ok(rome.object(&["node", "milan"]).await?.map(drop))
    })
    .await?;
    rome.wait_for(&["node/milan"], "condition=Ready", 60)
        .await?;
    turin.liqoctl(&["unpeer", "milan", "--yes"]).await?;
    milan
        .kubectl(&["delete", "peeringpolicy", "back"])
        .await
        .map(drop)
}

pub async fn commands_make_a_broker_show_it_and_end_it(world: Arc<World>) -> Result<()> {
    let (rome, milan, turin) = (&world.rome, &world.milan, &world.turin);
    let said = milan.liqoctl(&["broker", "status"]).await?;
    ensure!(
        said.contains("milan is no broker") && said.contains("`liqoctl broker enable`"),
        "{said}"
    );
    milan.peer_with(turin).await?;

    // Nothing is written before somebody agrees, and nothing twice.
    let customer = rome.cluster_id().await?;
    let planned = enable(&world, &["--dry-run"]).await?;
    ensure!(
        planned
            .stdout
            .contains("Policy broker is new: a copy of default, with"),
        "{planned:?}"
    );
    let refused = enable(&world, &[]).await?;
    ensure!(
        !refused.success && refused.stderr.contains("--yes"),
        "{refused:?}"
    );
    ensure!(
        milan.object(&["peeringpolicy", "broker"]).await?.is_none(),
        "the policy was written"
    );
    let enabled = enable(&world, &["--yes"]).await?;
    ensure!(
        enabled.success && enabled.stdout.contains("under policy broker"),
        "{enabled:?}"
    );
    let again = enable(&world, &[]).await?;
    ensure!(
        again.success && again.stdout.contains("nothing was changed"),
        "{again:?}"
    );
    milan
        .liqoctl(&[
            "broker",
            "enable",
            "--margin",
            "10",
            "--currency",
            "EUR",
            "--yes",
        ])
        .await?;
    let policy = milan
        .object(&["peeringpolicy", "broker"])
        .await?
        .context("there is no policy")?;
    let expected = json!({ "margin": { "currency": "EUR", "percent": 10 } });
    ensure!(
        policy["spec"]["provide"]["source"]["offers"] == expected,
        "{policy:#}"
    );
    ensure!(
        policy["spec"]["peers"]["clusterIDs"] == json!([customer]),
        "{policy:#}"
    );
    let unknown = milan
        .try_liqoctl(&["broker", "enable", "--peers", "nobody", "--yes"])
        .await?;
    ensure!(
        !unknown.success && unknown.stderr.contains("there is no peer nobody"),
        "{unknown:?}"
    );

    offers_show_the_path(&world).await?;
    rome.offloaded_namespace(NAMESPACE, "Remote").await?;
    rome.apply(&deployment(NAMESPACE, "web", 1)).await?;
    rome.ready_pods(NAMESPACE, "app=web", 1).await?;
    let status: Value =
        serde_json::from_str(&milan.liqoctl(&["broker", "status", "-o", "json"]).await?)?;
    let (lent, borrowed) = (
        &status["customers"][0]["offers"][0],
        &status["providers"][0]["offers"][0],
    );
    ensure!(
        status["customers"][0]["clusterID"] == json!(customer) && lent["pods"] == 1,
        "{status:#}"
    );
    ensure!(
        lent["from"][0]["cluster"] == "turin" && lent["from"][0]["pods"] == 1,
        "{status:#}"
    );
    ensure!(
        borrowed["node"] == "turin" && borrowed["lentIn"] == json!(["broker/default"]),
        "{status:#}"
    );
    ensure!(
        status["policies"][0]["margin"]["percent"] == 10,
        "{status:#}"
    );
    let tree = milan.liqoctl(&["broker", "status"]).await?;
    ensure!(
        tree.contains("from turin (node turin): 1 pod: cpu=") && tree.contains("margin 10 % (EUR)"),
        "{tree}"
    );

    // A node without new pods is not lent on, and that is said.
    let before = allocatable(rome, "milan").await?.get("cpu");
    milan.kubectl(&["cordon", "turin"]).await?;
    let begun = Instant::now();
    eventually("rome's node shrinks", TIMEOUT, || async {
        let is_less = match rome.object(&["node", "milan"]).await? {
            Some(_) => allocatable(rome, "milan").await?.get("cpu") < before,
            None => true,
        };
        Ok(is_less.then_some(()))
    })
    .await?;
    println!(
        "a withdrawal reaches the customer's node after {:.1} s",
        begun.elapsed().as_secs_f64()
    );
    eventually("the broker is warned", TIMEOUT, || async {
        let tree = milan.liqoctl(&["broker", "status"]).await?;
        Ok(tree
            .contains("node turin of turin is cordoned, so nothing of it is lent on")
            .then_some(()))
    })
    .await?;
    milan.kubectl(&["uncordon", "turin"]).await?;

    end_broker(&world).await?;
    milan.liqoctl(&["unpeer", "turin", "--yes"]).await.map(drop)
}

/// Milan is no broker any more. Rome's pods leave turin within the notice: the pool has its name
/// still, and other nodes.
async fn end_broker(world: &World) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let at_milan = rome.remote_namespace(NAMESPACE, milan).await?;
    let set = deployment(NAMESPACE, "db", 1).replace("kind: Deployment", "kind: StatefulSet");
    rome.apply(&set.replace("spec:\n  replicas", "spec:\n  serviceName: db\n  replicas"))
        .await?;
    rome.apply(
        &job(NAMESPACE, "work", "trap exit TERM; sleep 3600 & wait")
            .replace("backoffLimit: 0", "backoffLimit: 3"),
    )
    .await?;
    for app in ["app=db", "app=work"] {
        rome.ready_pods(NAMESPACE, app, 1).await?;
    }
    let notice =
        |seconds: Value| json!({ "spec": { "provide": { "noticeSeconds": seconds } } }).to_string();
    milan
        .kubectl(&[
            "patch",
            "peeringpolicy",
            "default",
            "--type=merge",
            "-p",
            &notice(json!(NOTICE_SECONDS)),
        ])
        .await?;
    let said = milan.liqoctl(&["broker", "disable", "--yes"]).await?;
    ensure!(
        said.contains("lends nothing on any more under broker"),
        "{said}"
    );
    ensure!(
        milan.object(&["peeringpolicy", "broker"]).await?.is_none(),
        "the policy still exists"
    );
    let said = milan.liqoctl(&["broker", "disable"]).await?;
    ensure!(said.contains("nothing was changed"), "{said}");
    eventually("milan is no broker any more", TIMEOUT, || async {
        Ok(milan
            .liqoctl(&["broker", "status"])
            .await?
            .contains("milan is no broker")
            .then_some(()))
    })
    .await?;
    rome.wait_for(&["node/milan"], "condition=Ready", 60)
        .await?;
    let begun = Instant::now();
    eventually("the customer's pods have left turin", TIMEOUT, || async {
        let mut pods = milan.pods(&at_milan, "app in (web,db,work)").await?;
        pods.retain(|pod| {
            pod.status
                .as_ref()
                .is_some_and(|status| status.phase.as_deref() == Some("Running"))
        });
        let all = nodes(&pods);
        if all.len() == 3 && all.iter().all(|node| node.starts_with("milan-")) {
            Ok(Some(()))
        } else {
            bail!("{all:?}")
        }
    })
    .await?;
    println!(
        "a Deployment's, a StatefulSet's and a Job's pod left the nodes of the former broker {:.1} s after the end, with a notice of {NOTICE_SECONDS} s",
        begun.elapsed().as_secs_f64()
    );
    rome.wait_for(
        &["-n", NAMESPACE, "deployment/web"],
        "condition=Available",
        60,
    )
    .await?;
    milan
        .kubectl(&[
            "patch",
            "peeringpolicy",
            "default",
            "--type=merge",
            "-p",
            &notice(Value::Null),
        ])
        .await?;
    rome.delete_namespace(NAMESPACE).await?;
    eventually(
        "the namespace is gone at the former broker",
        Duration::from_mins(2),
        || async {
            Ok(milan
                .object(&["namespace", &at_milan])
                .await?
                .is_none()
                .then_some(()))
        },
    )
    .await
}

/// Runs `broker enable` at milan, for rome.
async fn enable(world: &World, more: &[&str]) -> Result<Output> {
    let customer = world.rome.cluster_id().await?;
    world
        .milan
        .try_liqoctl(&[&["broker", "enable", "--peers", customer.as_str()], more].concat())
        .await
}

/// Rome sees that milan's offer comes from turin, which rome does not know.
async fn offers_show_the_path(world: &World) -> Result<()> {
    let (rome, milan, turin) = (&world.rome, &world.milan, &world.turin);
    let path = json!([milan.cluster_id().await?, turin.cluster_id().await?]);
    eventually("the offer comes through two clusters", TIMEOUT, || async {
        let offers: Value = serde_json::from_str(
            &rome
                .liqoctl(&["offer", "list", "milan", "-o", "json"])
                .await?,
        )?;
        ensure!(
            offers[0]["hops"] == 2 && offers[0]["path"] == path,
            "{offers:#}"
        );
        Ok(Some(()))
    })
    .await?;
    let behind: liqo_api::ClusterId = turin.cluster_id().await?.parse()?;
    let table = rome.liqoctl(&["offer", "list"]).await?;
    ensure!(
        table.contains("HOPS") && table.contains(&format!("2 via {}", behind.short_id())),
        "{table}"
    );
    let table = milan.liqoctl(&["offer", "list", "--made"]).await?;
    ensure!(table.contains("2 via turin"), "{table}");
    Ok(())
}

/// The answer of the catalog to this `Authorization` header, or the status of its refusal.
async fn catalog(address: &str, authorization: &str) -> Result<Result<Value, u16>> {
    let mut config = kube::Config::new(format!("https://{address}").parse()?);
    // Nobody has signed the certificate of the catalog.
    config.accept_invalid_certs = true;
    let request = http::Request::get("/catalog/v1/offers?capacity=cpu=1&sort=latency");
    let request = request
        .header("authorization", authorization)
        .body(kube::client::Body::empty())?;
    let answer = kube::Client::try_from(config)?.send(request).await?;
    let status = answer.status().as_u16();
    let body = answer.into_body().collect_bytes().await?;
    Ok(if status == 200 {
        Ok(serde_json::from_slice(&body)?)
    } else {
        Err(status)
    })
}

/// Address and port at which this machine reaches the catalog of milan.
async fn catalog_address(milan: &Cluster) -> Result<String> {
    let node_port = json!({ "spec": { "type": "NodePort" } }).to_string();
    milan
        .kubectl(&[
            "-n",
            "liqo",
            "patch",
            "service",
            PLUGIN,
            "--type=merge",
            "-p",
            &node_port,
        ])
        .await?;
    let path = "jsonpath={.spec.ports[?(@.name==\"catalog\")].nodePort}";
    let port = milan
        .kubectl(&["-n", "liqo", "get", "service", PLUGIN, "-o", path])
        .await?;
    let path = "jsonpath={.status.addresses[?(@.type==\"InternalIP\")].address}";
    let addresses = milan
        .kubectl(&["get", "node", "milan-1", "-o", path])
        .await?;
    // The first one is of IPv4.
    let address = addresses
        .split_whitespace()
        .next()
        .context("the node has no address")?;
    Ok(format!("{address}:{port}"))
}

/// The customer reads the catalog by its identity, and no other cluster does. At the broker nobody
/// needs to know where it is.
async fn only_a_customer_signs_in(world: &World, address: &str) -> Result<()> {
    let (rome, milan, turin) = (&world.rome, &world.milan, &world.turin);
    let (url, broker) = (format!("https://{address}"), milan.cluster_id().await?);
    let arguments = [
        "catalog",
        &broker,
        "--url",
        &url,
        "--insecure-skip-tls-verify",
    ];
    let offers: Value = serde_json::from_str(
        &rome
            .liqoctl(&[&arguments[..], &["-o", "json"]].concat())
            .await?,
    )?;
    ensure!(
        offers[0]["name"] == "turin" && offers[0]["accepted"] == true,
        "{offers:#}"
    );
    let refusal = rome.try_liqoctl(&["catalog", "--url", &url]).await?;
    ensure!(
        !refusal.success && refusal.stderr.contains("--ca-file"),
        "{refusal:?}"
    );
    let refusal = turin.try_liqoctl(&arguments).await?;
    ensure!(
        !refusal.success && refusal.stderr.contains("does not borrow from this cluster"),
        "a provider: {refusal:?}"
    );
    let stranger = sign_in::authorization_header(
        &ClusterIdentity::generate()?,
        &broker.parse()?,
        SystemTime::now(),
    )?;
    let refusal = catalog(address, &stranger).await?.err();
    ensure!(refusal == Some(403), "a stranger: {refusal:?}");
    let table = milan
        .liqoctl(&["catalog", "--accepted", "--max-hops", "1"])
        .await?;
    ensure!(
        table.starts_with("PROVIDER") && table.contains("turin"),
        "{table}"
    );
    Ok(())
}

pub async fn a_broker_by_its_plugin_lends_the_sum_and_its_catalog_needs_a_token(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan, turin) = (&world.rome, &world.milan, &world.turin);
    world.load_plugin("broker", "broker", milan).await?;
    milan
        .kubectl(&["apply", "-f", &world.manifests("broker"), "-n", "liqo"])
        .await?;
    milan
        .kubectl(&[
            "-n",
            "liqo",
            "rollout",
            "status",
            &format!("deployment/{PLUGIN}"),
            "--timeout=90s",
        ])
        .await?;
    let source = json!({ "plugin": { "address": format!("{PLUGIN}.liqo:7000") } });
    broker_by(&world, &source).await?;

    // The pods go on, as without the plugin.
    rome.offloaded_namespace(NAMESPACE, "Remote").await?;
    rome.apply(&deployment(NAMESPACE, "web", 1)).await?;
    let at_milan = mapped(rome, NAMESPACE, milan).await?;
    rome.ready_pods(NAMESPACE, "app=web", 1).await?;
    let between = milan.ready_pods(&at_milan, "app=web", 1).await?;
    ensure!(
        nodes(&between) == ["turin"],
        "at the broker it is on {:?}",
        nodes(&between)
    );
    rome.end_namespace(NAMESPACE).await?;

    let address = catalog_address(milan).await?;
    milan
        .kubectl(&["-n", "default", "create", "serviceaccount", READER])
        .await?;
    let for_everything = milan
        .kubectl(&["-n", "default", "create", "token", READER])
        .await?;
    let token = milan
        .kubectl(&[
            "-n",
            "default",
            "create",
            "token",
            READER,
            "--audience",
            "liqo-broker-catalog",
        ])
        .await?;
    let [for_everything, token] = [for_everything, token].map(|token| format!("Bearer {token}"));
    let mut refusals = Vec::new();
    for authorization in ["", "Bearer x", &for_everything, &token] {
        refusals.extend(catalog(&address, authorization).await?.err());
    }
    ensure!(
        refusals == [401, 401, 401, 403],
        "without the right: {refusals:?}"
    );
    let (right, reader) = (
        "--clusterrole=liqo-broker-catalog-reader",
        format!("--serviceaccount=default:{READER}"),
    );
    milan
        .kubectl(&["create", "clusterrolebinding", READER, right, &reader])
        .await?;
    eventually("the reader sees turin's offer", TIMEOUT, || async {
        let Ok(page) = catalog(&address, &token).await? else {
            return Ok(None);
        };
        let offer = &page["offers"][0];
        ensure!(
            page["total"] == 1 && offer["clusterID"] == turin.cluster_id().await?.as_str(),
            "{page:#}"
        );
        ensure!(
            offer["accepted"] == true && offer["hops"] == 1 && offer["name"] == "turin",
            "{page:#}"
        );
        Ok(Some(()))
    })
    .await?;
    let refusal = catalog(&address, &for_everything).await?.err();
    ensure!(
        refusal == Some(401),
        "a token for the API server, of a user with the right: {refusal:?}"
    );
    only_a_customer_signs_in(&world, &address).await?;
    milan
        .kubectl(&["delete", "clusterrolebinding", READER])
        .await?;
    milan
        .kubectl(&["-n", "default", "delete", "serviceaccount", READER])
        .await?;

    // What the documents of the original broker create in Liqo's namespace is accepted, and has
    // nothing to do.
    milan.apply(ORIGINAL_OFFLOADING).await?;
    milan
        .wait_for(
            &["-n", "liqo", "namespaceoffloading/offloading"],
            "condition=Ready",
            30,
        )
        .await?;
    milan
        .kubectl(&["-n", "liqo", "delete", "namespaceoffloading", "offloading"])
        .await?;
    no_broker(&world).await?;
    milan
        .kubectl(&["delete", "-f", &world.manifests("broker"), "-n", "liqo"])
        .await
        .map(drop)
}
