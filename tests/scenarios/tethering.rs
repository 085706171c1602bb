//! Tethered: rome, a laptop, hands itself over to milan, the office, and gets control back.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{Api, api::PostParams};
use liqo_tests::{Cluster, Fixture, World, eventually, is_ready, still};
use serde_json::json;

use crate::{
    dual_stack::{both_answer, by_family, cluster_ips, has_endpoints},
    pods::{deployment, name_of, node_of},
    policies::{allocatable, apply_policy},
};

const TIMEOUT: Duration = Duration::from_mins(2);
const NAMESPACE: &str = "laptop";
const BREAK_GLASS: [&str; 3] = [
    "--as=kubernetes-admin",
    "--as-group=liqo:break-glass",
    "--as-group=system:masters",
];

/// Milan borrows from rome, as rome does from milan, and lets rome be tethered to it.
pub static FIXTURE: Fixture = Fixture {
    name: "rome can be tethered to milan",
    set_up: |world| Box::pin(ready_to_tether(world)),
    take_down: |world| Box::pin(as_before(world)),
};

async fn ready_to_tether(world: &World) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    milan
        .liqoctl(&[
            "peer",
            "--remote-kubeconfig",
            &rome.kubeconfig.display().to_string(),
        ])
        .await?;
    milan
        .wait_for(&["node/rome"], "condition=Ready", 90)
        .await?;
    let peers = json!({ "clusterIDs": [rome.cluster_id().await?] });
    let provide = json!({ "percentage": 100, "noticeSeconds": 20, "tethering": true });
    apply_policy(
        milan,
        "laptops",
        json!({ "priority": 10, "peers": peers, "provide": provide }),
    )
    .await?;
    let peers = json!({ "clusterIDs": [milan.cluster_id().await?] });
    let provide = json!({ "percentage": 10, "noticeSeconds": 20 });
    apply_policy(
        rome,
        "office",
        json!({ "priority": 10, "peers": peers, "provide": provide }),
    )
    .await
}

async fn as_before(world: &World) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    milan.liqoctl(&["unpeer", "rome", "--yes"]).await?;
    milan
        .kubectl(&["delete", "peeringpolicy", "laptops"])
        .await?;
    rome.kubectl(&["delete", "peeringpolicy", "office"])
        .await
        .map(drop)
}

/// Gives control back to rome, and removes the setting of its mode.
async fn autonomous_again(rome: &Cluster) -> Result<()> {
    rome.liqoctl(&["untether", "--timeout", "5m"]).await?;
    rome.kubectl(&[
        "patch",
        "clusterconfig",
        "liqo",
        "--type=merge",
        "-p",
        r#"{"spec":{"tethering":null}}"#,
    ])
    .await
    .map(drop)
}

/// State and reason of the working mode.
async fn mode(cluster: &Cluster) -> Result<(String, String)> {
    let config = cluster
        .object(&["clusterconfig", "liqo"])
        .await?
        .context("Liqo is not installed")?;
    let text = |field: &str| {
        config["status"]["tethering"][field]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    Ok((text("state"), text("reason")))
}

async fn state(cluster: &Cluster) -> Result<String> {
    Ok(mode(cluster).await?.0)
}

async fn reaches(cluster: &Cluster, wanted: &str) -> Result<()> {
    eventually(
        &format!("{} is {wanted}", cluster.name),
        TIMEOUT,
        || async {
            let now = mode(cluster).await?;
            if now.0 == wanted {
                Ok(Some(()))
            } else {
                bail!("it is {now:?}")
            }
        },
    )
    .await
}

/// From then on the peer's node takes no pods, and the silence has a deadline.
async fn silence_is_noticed(rome: &Cluster) -> Result<()> {
    eventually("the silence is noticed", TIMEOUT, || async {
        Ok((mode(rome).await? == ("Tethered".to_owned(), "PeerSilent".to_owned())).then_some(()))
    })
    .await
}

/// A command that has to fail because the cluster is tethered; with the break-glass group it
/// succeeds.
async fn only_in_an_emergency(cluster: &Cluster, command: &[&str]) -> Result<()> {
    let refused = cluster.try_kubectl(command).await?;
    ensure!(!refused.success, "{command:?} succeeded");
    let said = &refused.stderr;
    ensure!(
        said.contains("is tethered to")
            && said.contains("liqoctl untether")
            && said.contains("liqo:break-glass"),
        "{said}"
    );
    cluster
        .kubectl(&[command, &BREAK_GLASS].concat())
        .await
        .map(drop)
}

/// Creates a namespace and a pod without a pause, as programs do.
async fn the_first_pod_goes_to_the_peer(rome: &Cluster, namespace: &str) -> Result<()> {
    let new: Namespace = serde_json::from_value(json!({ "metadata": { "name": namespace } }))?;
    let container =
        json!({ "name": "main", "image": "localhost/busybox:1", "command": ["sleep", "600"] });
    let pod: Pod = serde_json::from_value(
        json!({ "metadata": { "name": "first" }, "spec": { "containers": [container] } }),
    )?;
    Api::<Namespace>::all(rome.client.clone())
        .create(&PostParams::default(), &new)
        .await?;
    rome.api::<Pod>(namespace)
        .create(&PostParams::default(), &pod)
        .await?;
    eventually("the first pod is on the node of milan", TIMEOUT, || async {
        Ok((node_of(&rome.api::<Pod>(namespace).get("first").await?) == "milan").then_some(()))
    })
    .await?;
    rome.end_namespace(namespace).await
}

pub async fn a_laptop_hands_itself_over_to_the_office_and_gets_control_back(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.kubectl(&["create", "namespace", NAMESPACE]).await?;
    rome.apply(&deployment(NAMESPACE, "before", 1)).await?;
    let before = rome.ready_pods(NAMESPACE, "app=before", 1).await?[0]
        .metadata
        .uid
        .clone();
    let lent = allocatable(milan, "rome").await?.get("cpu");

    let begun = Instant::now();
    rome.liqoctl(&["tether", "milan", "--timeout", "3m"])
        .await?;
    println!("tethering took {:.1} s", begun.elapsed().as_secs_f64());
    ensure!(
        rome.liqoctl(&["status"])
            .await?
            .contains("tethered to milan"),
        "the status does not say it"
    );
    eventually("milan has all of rome", TIMEOUT, || async {
        Ok((allocatable(milan, "rome").await?.get("cpu") > lent).then_some(()))
    })
    .await?;
    rome.wait_for(
        &["-n", NAMESPACE, "namespaceoffloading/offloading"],
        "condition=Ready",
        90,
    )
    .await?;

    // What users start runs where milan's scheduler puts it.
    rome.apply(&deployment(NAMESPACE, "web", 2)).await?;
    let pods = rome.ready_pods(NAMESPACE, "app=web", 2).await?;
    ensure!(
        pods.iter().all(|pod| node_of(pod) == "milan"),
        "not all pods are on the node of milan"
    );
    let said = rome
        .kubectl(&[
            "-n",
            NAMESPACE,
            "exec",
            name_of(&pods[0]),
            "--",
            "echo",
            "from",
            "home",
        ])
        .await?;
    ensure!(said.trim() == "from home", "{said}");
    rome.kubectl(&["-n", NAMESPACE, "logs", name_of(&pods[0])])
        .await?;
    ensure!(
        rome.ready_pods(NAMESPACE, "app=before", 1).await?[0]
            .metadata
            .uid
            == before,
        "a pod that ran before was replaced"
    );

    for number in 0..5 {
        the_first_pod_goes_to_the_peer(rome, &format!("{NAMESPACE}-{number}")).await?;
    }

    // A cluster that controls another one is controlled by nobody.
    refused(milan, "rome", "TethersOthers").await?;

    come_back_to_the_laptop(&world, name_of(&pods[0])).await?;
    the_admin_cannot_schedule_around_it(rome).await?;

    is_refused_in_default(rome, "late").await?;

    let begun = Instant::now();
    rome.liqoctl(&["untether", "--timeout", "5m"]).await?;
    println!("the release took {:.1} s", begun.elapsed().as_secs_f64());
    runs_after_its_refusal(rome, "late").await?;
    for (app, count) in [("web", 2), ("back", 2), ("before", 1)] {
        let pods = rome
            .ready_pods(NAMESPACE, &format!("app={app}"), count)
            .await?;
        ensure!(
            pods.iter().all(|pod| node_of(pod).starts_with("rome")),
            "pods of {app} are not at home"
        );
        ensure!(
            app != "before" || pods[0].metadata.uid == before,
            "a pod that ran here all the time was replaced"
        );
    }
    eventually("the namespace is nobody's but rome's", TIMEOUT, || async {
        Ok(rome
            .object(&["-n", NAMESPACE, "namespaceoffloading", "offloading"])
            .await?
            .is_none()
            .then_some(()))
    })
    .await?;
    rome.kubectl(&["cordon", "rome-1"]).await?;
    rome.kubectl(&["uncordon", "rome-1"]).await?;
    rome.end_namespace(NAMESPACE).await?;
    autonomous_again(rome).await
}

/// Pods in namespace `default` are refused while a cluster is tethered, and so their controller
/// tries less and less often.
async fn is_refused_in_default(rome: &Cluster, app: &str) -> Result<()> {
    rome.apply(&deployment("default", app, 1)).await?;
    eventually("the pod of the Deployment is refused", TIMEOUT, || async {
        let events = rome
            .kubectl(&[
                "-n",
                "default",
                "get",
                "events",
                "--field-selector",
                "reason=FailedCreate",
            ])
            .await?;
        Ok(events.contains(&format!("{app}-")).then_some(()))
    })
    .await
}

/// The manager has woken the controller of this Deployment.
async fn runs_after_its_refusal(rome: &Cluster, app: &str) -> Result<()> {
    let label = format!("app={app}");
    let woken = [
        "-n",
        "default",
        "get",
        "replicaset",
        "-l",
        &label,
        "-o",
        "jsonpath={..liqo\\.io/woken-at}",
    ];
    eventually("the controller is woken", TIMEOUT, || async {
        let at = rome.kubectl(&woken).await?;
        Ok((!at.is_empty()).then_some(()))
    })
    .await?;
    rome.ready_pods("default", &label, 1).await?;
    rome.kubectl(&["-n", "default", "delete", "deployment", app, "--now"])
        .await
        .map(drop)
}

/// Where milan has no other node for them, pods of rome run on rome, as milan's pods. Their Service
/// has them as its endpoints here and there, for a pod that runs on rome as rome's own, for
/// `at_milan`, which runs at milan, and for one of themselves.
async fn come_back_to_the_laptop(world: &World, at_milan: &str) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    milan
        .kubectl(&["cordon", "-l", "liqo.io/type!=virtual-node"])
        .await?;
    let script = "mkdir /tmp/w; hostname > /tmp/w/index.html; httpd -p 8080 -h /tmp/w; trap exit TERM; sleep 3600 & wait";
    rome.apply(
        &deployment(NAMESPACE, "back", 2)
            .replace("echo started; trap exit TERM; sleep 3600 & wait", script),
    )
    .await?;
    let ports = json!([{ "port": 80, "targetPort": 8080 }]);
    let spec = json!({ "selector": { "app": "back" }, "ports": ports, "ipFamilyPolicy": "PreferDualStack" });
    let metadata = json!({ "name": "back", "namespace": NAMESPACE });
    rome.apply(
        &json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec })
            .to_string(),
    )
    .await?;
    let back = rome.ready_pods(NAMESPACE, "app=back", 2).await?;
    milan
        .kubectl(&["uncordon", "-l", "liqo.io/type!=virtual-node"])
        .await?;
    ensure!(
        back.iter().all(|pod| node_of(pod) == "milan"),
        "not all of them are milan's"
    );
    let namespace_at_milan = rome.remote_namespace(NAMESPACE, milan).await?;
    let there = milan.ready_pods(&namespace_at_milan, "app=back", 2).await?;
    ensure!(
        there.iter().all(|pod| node_of(pod) == "rome"),
        "at milan they are on {}",
        node_of(&there[0])
    );
    rome.kubectl(&["-n", NAMESPACE, "logs", name_of(&back[0])])
        .await?;

    let ips = |pods: &[Pod]| -> Vec<String> {
        let statuses = pods.iter().filter_map(|pod| pod.status.as_ref());
        statuses
            .flat_map(|status| status.pod_ips.iter().flatten())
            .map(|one| one.ip.clone())
            .collect()
    };
    let on_rome = rome
        .ready_pods(
            &milan.remote_namespace(&namespace_at_milan, rome).await?,
            "app=back",
            2,
        )
        .await?;
    let (here, seen_at_milan) = (by_family(&ips(&on_rome)), by_family(&ips(&there)));
    has_endpoints(rome, NAMESPACE, "back", &here).await?;
    has_endpoints(milan, &namespace_at_milan, "back", &seen_at_milan).await?;
    let addresses = cluster_ips(rome, NAMESPACE, "back").await?;
    ensure!(
        addresses.len() == here.len(),
        "the Service has {addresses:?}, and its endpoints {here:?}"
    );
    let before = rome.ready_pods(NAMESPACE, "app=before", 1).await?;
    let servers = [name_of(&back[0]), name_of(&back[1])];
    both_answer(world, NAMESPACE, name_of(&before[0]), &addresses, servers).await?;
    for caller in [name_of(&before[0]), at_milan, servers[0]] {
        both_answer(world, NAMESPACE, caller, &["back".to_owned()], servers).await?;
    }
    let events = rome.kubectl(&["-n", NAMESPACE, "get", "events"]).await?;
    ensure!(!events.contains("AddressRefused"), "{events}");
    Ok(())
}

async fn the_admin_cannot_schedule_around_it(rome: &Cluster) -> Result<()> {
    // `kubectl cordon` prints the refusal, but its exit code is 0.
    for unschedulable in ["true", "false"] {
        let change = format!(r#"{{"spec":{{"unschedulable":{unschedulable}}}}}"#);
        only_in_an_emergency(rome, &["patch", "node", "rome-1", "-p", &change]).await?;
    }
    only_in_an_emergency(
        rome,
        &["-n", NAMESPACE, "create", "quota", "none", "--hard=pods=0"],
    )
    .await?;
    only_in_an_emergency(rome, &["-n", NAMESPACE, "delete", "quota", "none"]).await?;
    let tenant = rome
        .kubectl(&[
            "get",
            "namespace",
            "-l",
            "liqo.io/namespace-kind=tenant",
            "-o",
            "name",
        ])
        .await?;
    let tenant = tenant.trim();
    only_in_an_emergency(rome, &["delete", tenant, "--dry-run=server"]).await?;
    only_in_an_emergency(rome, &["annotate", tenant, "note=mine"]).await?;
    only_in_an_emergency(rome, &["annotate", tenant, "note-"]).await?;
    // Pods are not taken from the peer one by one either.
    let offloading = [
        "-n",
        NAMESPACE,
        "delete",
        "namespaceoffloading",
        "offloading",
        "--dry-run=server",
    ];
    only_in_an_emergency(rome, &offloading).await?;
    let strategy = r#"{"spec":{"podOffloadingStrategy":"Local"}}"#;
    let change = [
        "-n",
        NAMESPACE,
        "patch",
        "namespaceoffloading",
        "offloading",
        "--type=merge",
        "--dry-run=server",
        "-p",
        strategy,
    ];
    only_in_an_emergency(rome, &change).await?;
    for command in [
        &["unoffload", "namespace", NAMESPACE, "--yes"][..],
        &["unpeer", "milan", "--yes"],
        &["uninstall", "--yes"],
    ] {
        let refused = rome.try_liqoctl(command).await?;
        ensure!(
            !refused.success && refused.stderr.contains("`liqoctl untether`"),
            "{command:?}: {}",
            refused.stderr
        );
    }
    rome.kubectl(&["annotate", "namespace", NAMESPACE, "note=mine"])
        .await?;
    let on_a_node = r#"{"spec":{"nodeName":"rome-1"}}"#;
    let run = [
        "-n",
        NAMESPACE,
        "run",
        "mine",
        "--image=localhost/busybox:1",
        "--restart=Never",
    ];
    let overrides = format!("--overrides={on_a_node}");
    only_in_an_emergency(rome, &[&run[..], &[overrides.as_str()]].concat()).await?;
    rome.kubectl(&["-n", NAMESPACE, "delete", "pod", "mine", "--now"])
        .await?;
    let refused = rome
        .try_kubectl(&[
            "-n",
            "default",
            "run",
            "mine",
            "--image=localhost/busybox:1",
        ])
        .await?;
    ensure!(
        !refused.success && refused.stderr.contains("is tethered to"),
        "{}",
        refused.stderr
    );
    // System pods are none of the peer's business.
    rome.kubectl(&[
        "-n",
        "kube-system",
        "run",
        "probe",
        "--image=localhost/busybox:1",
        "--restart=Never",
    ])
    .await?;
    rome.kubectl(&["-n", "kube-system", "delete", "pod", "probe", "--now"])
        .await
        .map(drop)
}

pub async fn a_short_cut_changes_nothing_and_a_long_one_brings_control_back(
    world: Arc<World>,
) -> Result<()> {
    const NAMESPACE: &str = "silent-office";
    let rome = &world.rome;
    let release_after = async |seconds: u32| {
        let patch =
            json!({ "spec": { "tethering": { "releaseAfterSeconds": seconds } } }).to_string();
        rome.kubectl(&[
            "patch",
            "clusterconfig",
            "liqo",
            "--type=merge",
            "-p",
            &patch,
        ])
        .await
    };
    release_after(240).await?;
    rome.kubectl(&["create", "namespace", NAMESPACE]).await?;
    rome.liqoctl(&["tether", "milan", "--timeout", "3m"])
        .await?;
    rome.wait_for(
        &["-n", NAMESPACE, "namespaceoffloading/offloading"],
        "condition=Ready",
        90,
    )
    .await?;
    let db = runs_on_rome_as_milans(&world, NAMESPACE).await?;

    world.cut("milan").await?;
    silence_is_noticed(rome).await?;
    still(
        "it stays tethered",
        Duration::from_secs(10),
        "Tethered".to_owned(),
        || state(rome),
    )
    .await?;
    world.heal("milan").await?;
    eventually("the silence is over", TIMEOUT, || async {
        Ok((mode(rome).await? == ("Tethered".to_owned(), "Granted".to_owned())).then_some(()))
    })
    .await?;

    ensure!(
        rome.ready_pods(NAMESPACE, "app=db", 1).await?[0]
            .metadata
            .uid
            == db,
        "the pod was replaced"
    );

    release_after(60).await?;
    is_refused_in_default(rome, "early").await?;
    world.cut("milan").await?;
    silence_is_noticed(rome).await?;
    // Nobody gives them a node.
    rome.apply(&deployment(NAMESPACE, "eager", 2)).await?;
    eventually("control is back", TIMEOUT, || async {
        Ok((state(rome).await? != "Tethered").then_some(()))
    })
    .await?;
    rome.restart_manager().await?;
    rome.apply(&deployment(NAMESPACE, "web", 1)).await?;
    let pods = rome.ready_pods(NAMESPACE, "app=web", 1).await?;
    ensure!(
        node_of(&pods[0]).starts_with("rome"),
        "it is on {}",
        node_of(&pods[0])
    );
    let eager = rome.ready_pods(NAMESPACE, "app=eager", 2).await?;
    ensure!(
        eager.iter().all(|pod| node_of(pod).starts_with("rome")),
        "pods of the silent minute are not at home"
    );
    runs_after_its_refusal(rome, "early").await?;
    reaches(rome, "Autonomous").await?;
    // What milan ran here is gone, and milan need not say so.
    eventually("the StatefulSet goes on here", TIMEOUT, || async {
        let pods = rome.ready_pods(NAMESPACE, "app=db", 1).await?;
        let is_home = pods[0].metadata.uid != db && node_of(&pods[0]).starts_with("rome");
        if is_home {
            Ok(Some(()))
        } else {
            bail!("it is on {}", node_of(&pods[0]))
        }
    })
    .await?;
    world.heal("milan").await?;
    // The user still wants it.
    reaches(rome, "Tethered").await?;
    rome.wait_for(
        &["-n", NAMESPACE, "namespaceoffloading/offloading"],
        "condition=Ready",
        90,
    )
    .await?;
    comes_home_without_a_network(&world, NAMESPACE).await?;
    rome.end_namespace(NAMESPACE).await?;
    autonomous_again(rome).await
}

/// The user does not wait until the silence is long enough. Milan, which is not heard, runs the
/// pods that come home.
async fn comes_home_without_a_network(world: &World, namespace: &str) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    milan.kubectl(&["cordon", "rome"]).await?;
    rome.apply(&deployment(namespace, "far", 2)).await?;
    rome.ready_pods(namespace, "app=far", 2).await?;
    milan.kubectl(&["uncordon", "rome"]).await?;
    let there = milan
        .ready_pods(
            &rome.remote_namespace(namespace, milan).await?,
            "app=far",
            2,
        )
        .await?;
    ensure!(
        there.iter().all(|pod| node_of(pod).starts_with("milan")),
        "at milan it is on {}",
        node_of(&there[0])
    );
    world.cut("milan").await?;
    rome.liqoctl(&["untether", "--timeout", "5m"]).await?;
    eventually("both pods are at home", TIMEOUT, || async {
        let pods = rome.pods(namespace, "app=far").await?;
        // The former ones end when milan is heard.
        let home = pods
            .iter()
            .filter(|pod| is_ready(pod) && node_of(pod).starts_with("rome"))
            .count();
        if home == 2 {
            Ok(Some(()))
        } else {
            bail!("{home} of {} are", pods.len())
        }
    })
    .await?;
    world.heal("milan").await
}

/// Creates a `StatefulSet` whose pod milan runs on rome. Returns the UID of the pod.
async fn runs_on_rome_as_milans(world: &World, namespace: &str) -> Result<Option<String>> {
    let (rome, milan) = (&world.rome, &world.milan);
    milan
        .kubectl(&["cordon", "-l", "liqo.io/type!=virtual-node"])
        .await?;
    let manifest = deployment(namespace, "db", 1).replace("kind: Deployment", "kind: StatefulSet");
    rome.apply(&manifest.replace("spec:\n  replicas", "spec:\n  serviceName: db\n  replicas"))
        .await?;
    let db = rome.ready_pods(namespace, "app=db", 1).await?;
    milan
        .kubectl(&["uncordon", "-l", "liqo.io/type!=virtual-node"])
        .await?;
    let there = milan
        .ready_pods(&rome.remote_namespace(namespace, milan).await?, "app=db", 1)
        .await?;
    ensure!(
        node_of(&there[0]) == "rome",
        "at milan it is on {}",
        node_of(&there[0])
    );
    Ok(db[0].metadata.uid.clone())
}

/// The ID of the container of the manager, if that is ready.
async fn running_manager(cluster: &Cluster) -> Result<Option<String>> {
    let pods = cluster
        .pods("liqo", "app.kubernetes.io/name=liqo-controller-manager")
        .await?;
    let statuses = pods
        .into_iter()
        .filter_map(|pod| pod.status?.container_statuses)
        .flatten();
    Ok(statuses
        .filter(|status| status.ready)
        .find_map(|status| status.container_id))
}

pub async fn a_power_cut_in_any_state_ends_in_the_state_that_was_wanted(
    world: Arc<World>,
) -> Result<()> {
    const NAMESPACE: &str = "cut-laptop";
    let (rome, milan) = (&world.rome, &world.milan);
    let wishes = async |peer: Option<&str>| {
        let wish = json!({ "spec": { "tethering": { "clusterID": peer } } }).to_string();
        rome.kubectl(&[
            "patch",
            "clusterconfig",
            "liqo",
            "--type=merge",
            "-p",
            &wish,
        ])
        .await
    };
    let has_begun = async |new: [&str; 2]| {
        eventually(&format!("rome is {new:?}"), TIMEOUT, || async {
            let now = state(rome).await?;
            Ok(new
                .contains(&now.as_str())
                .then(|| println!("the power is cut while rome is {now}")))
        })
        .await
    };
    rome.kubectl(&["create", "namespace", NAMESPACE]).await?;
    rome.apply(&deployment(NAMESPACE, "before", 1)).await?;
    let before = rome.ready_pods(NAMESPACE, "app=before", 1).await?[0]
        .metadata
        .uid
        .clone();

    // While it is about to be tethered.
    wishes(Some(&milan.cluster_id().await?)).await?;
    has_begun(["Tethering", "Tethered"]).await?;
    world.power_cut(rome).await?;
    reaches(rome, "Tethered").await?;
    rome.wait_for(
        &["-n", NAMESPACE, "namespaceoffloading/offloading"],
        "condition=Ready",
        90,
    )
    .await?;
    rome.apply(&deployment(NAMESPACE, "web", 1)).await?;
    let web = rome.ready_pods(NAMESPACE, "app=web", 1).await?;
    ensure!(node_of(&web[0]) == "milan", "it is on {}", node_of(&web[0]));

    // While it is tethered. When the Lease of the former manager is over, after 15 seconds, the
    // next one decides.
    let former = running_manager(rome).await?;
    world.power_cut(rome).await?;
    eventually("another manager runs", TIMEOUT, || async {
        let manager = running_manager(rome).await?;
        Ok((manager.is_some() && manager != former).then_some(()))
    })
    .await?;
    still(
        "it stays tethered",
        Duration::from_secs(20),
        "Tethered".to_owned(),
        || state(rome),
    )
    .await?;
    ensure!(
        rome.ready_pods(NAMESPACE, "app=web", 1).await?[0]
            .metadata
            .uid
            == web[0].metadata.uid,
        "a pod was replaced"
    );

    // While it gets control back.
    wishes(None).await?;
    has_begun(["Releasing", "Autonomous"]).await?;
    world.power_cut(rome).await?;
    reaches(rome, "Autonomous").await?;
    eventually("the pod comes home", TIMEOUT, || async {
        let web = rome.ready_pods(NAMESPACE, "app=web", 1).await?;
        ensure!(
            node_of(&web[0]).starts_with("rome"),
            "it is on {}",
            node_of(&web[0])
        );
        Ok(Some(()))
    })
    .await?;
    let same = rome.ready_pods(NAMESPACE, "app=before", 1).await?[0]
        .metadata
        .uid
        == before;
    ensure!(same, "a pod that ran here all the time was replaced");
    rome.end_namespace(NAMESPACE).await?;
    autonomous_again(rome).await?;
    world.admission_policies_work(rome).await
}

/// `liqoctl tether` fails with this reason, and nothing remains of the attempt.
async fn refused(rome: &Cluster, peer: &str, reason: &str) -> Result<()> {
    let refused = rome
        .try_liqoctl(&["tether", peer, "--timeout", "3m"])
        .await?;
    ensure!(
        !refused.success && refused.stderr.contains(reason),
        "{} {}",
        refused.stdout,
        refused.stderr
    );
    let config = rome
        .object(&["clusterconfig", "liqo"])
        .await?
        .unwrap_or_default();
    ensure!(
        config["spec"]["tethering"]["clusterID"].is_null(),
        "the wish is still there: {config:#}"
    );
    reaches(rome, "Autonomous").await
}

/// Unit tests go through all reasons (`obstacles.rs` of the crate `liqo-tethering`).
pub async fn a_refusal_shows_its_reason_and_leaves_nothing(world: Arc<World>) -> Result<()> {
    let (rome, turin, milan) = (&world.rome, &world.turin, &world.milan);
    let lets_tether = async |is_allowed: bool| {
        let patch = json!({ "spec": { "provide": { "tethering": is_allowed } } }).to_string();
        milan
            .kubectl(&[
                "patch",
                "peeringpolicy",
                "laptops",
                "--type=merge",
                "-p",
                &patch,
            ])
            .await
    };
    lets_tether(false).await?;
    refused(rome, "milan", "RefusedByPeer").await?;
    lets_tether(true).await?;

    turin
        .liqoctl(&[
            "peer",
            "--remote-kubeconfig",
            &rome.kubeconfig.display().to_string(),
        ])
        .await?;
    turin
        .wait_for(&["node/rome"], "condition=Ready", 90)
        .await?;
    refused(rome, "milan", "LendsToOthers").await?;
    turin.liqoctl(&["unpeer", "rome", "--yes"]).await.map(drop)
}
