//! Calls to Services while their pods are replaced, are not ready, end, or leave the Service.
//!
//! ```text
//!   at each side, home and peer:
//!     client      calls the Services of both sides
//!     rolling     a rolling update, during short calls
//!     flapping    fails its readiness probe, during a long answer
//!     scaled      to zero and back, during a long answer
//!     moved       loses the label that its Service selects, during a long answer
//!   coloured      a Service that selects the rolling pods of one side, then of the other, during short calls
//! ```

use std::{fmt::Write as _, sync::Arc, time::Duration};

use anyhow::{Result, bail, ensure};
use futures::future::try_join_all;
use kube::ResourceExt as _;
use liqo_tests::{Cluster, World, eventually};
use serde_json::{Value, json};

use crate::network::{ABROAD, AT_HOME, connected, exec, ip, servers};

const NAMESPACE: &str = "calls";
const SIDES: [(&str, (&str, &str)); 2] = [("home", AT_HOME), ("peer", ABROAD)];
/// The Services with long answers, one at each side.
const LONG: [&str; 3] = ["flapping", "scaled", "moved"];
/// Numbers of a long answer. There are at most five a second.
const NUMBERS: usize = 100;
/// A pod that ends serves until all clusters know that.
const SECONDS_BEFORE_STOP: u32 = 8;
/// The same, until its long answers are over. Process 1, the server, has the word in its own
/// script.
const ANSWERS: &str = "while cat /proc/[2-9]*/cmdline /proc/[1-9][0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -q '[c]ount'; do sleep 1; done";
const TIMEOUT: Duration = Duration::from_mins(1);

/// The Deployment of a side, and the Service for it.
fn objects(name: &str, (side, label): (&str, (&str, &str))) -> Result<String> {
    let full = format!("{name}-{side}");
    let mut deployment: Value = serde_json::from_str(&servers(
        NAMESPACE,
        &full,
        name,
        if name == "rolling" { 2 } else { 1 },
        label,
    ))?;
    let pod = &mut deployment["spec"]["template"]["spec"];
    let probe = match name {
        "flapping" => json!({ "exec": { "command": ["test", "!", "-e", "/tmp/paused"] } }),
        _ => json!({ "tcpSocket": { "port": 8080 } }),
    };
    pod["containers"][0]["readinessProbe"] = probe;
    pod["containers"][0]["readinessProbe"]["periodSeconds"] = 1.into();
    pod["containers"][0]["readinessProbe"]["failureThreshold"] = 1.into();
    pod["containers"][0]["lifecycle"] = json!({ "preStop": { "exec": { "command": ["sh", "-c", format!("sleep {SECONDS_BEFORE_STOP}; {ANSWERS}")] } } });
    pod["terminationGracePeriodSeconds"] = 120.into();
    // The label by which the Service selects, which a pod can lose.
    deployment["spec"]["template"]["metadata"]["labels"]["called"] = full.as_str().into();
    Ok(format!(
        "{deployment}\n---\n{}\n",
        service(&full, &json!({ "called": full }))
    ))
}

fn service(name: &str, selector: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "selector": selector, "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] } })
}

/// A Service whose only address is written by hand, as databases do for their primary.
fn by_hand(name: &str, address: &str) -> String {
    let mut service = service(name, &Value::Null);
    service["spec"]
        .as_object_mut()
        .map(|spec| spec.remove("selector"));
    let endpoints = json!({ "apiVersion": "v1", "kind": "Endpoints", "metadata": { "name": name, "namespace": NAMESPACE },
        "subsets": [{ "addresses": [{ "ip": address }], "ports": [{ "name": "http", "port": 8080 }] }] });
    format!("{service}\n---\n{endpoints}\n")
}

/// A pod at each side that calls.
struct Clients<'a> {
    rome: &'a Cluster,
    /// The side and the name of each.
    pods: Vec<(&'static str, String)>,
}

impl Clients<'_> {
    /// Runs this in both at the same time, and returns what each prints.
    async fn run(&self, line: &str) -> Result<Vec<(&'static str, String)>> {
        let run = |(side, pod): &(&'static str, String)| {
            let (side, pod) = (*side, pod.clone());
            async move { anyhow::Ok((side, exec(self.rome, NAMESPACE, &pod, line).await?)) }
        };
        try_join_all(self.pods.iter().map(run)).await
    }

    /// Waits until both get an answer from each of these Services.
    async fn reach(&self, services: &[String]) -> Result<()> {
        let mut line = String::new();
        for service in services {
            write!(line, "timeout 5 wget -qO /dev/null http://{service} && ")?;
        }
        eventually(
            &format!("both sides reach {services:?}"),
            TIMEOUT,
            || async {
                self.run(&format!("{line}true")).await?;
                Ok(Some(()))
            },
        )
        .await
    }
}

fn of_both_sides(names: &[&str]) -> Vec<String> {
    SIDES
        .iter()
        .flat_map(|(side, _)| names.iter().map(move |name| format!("{name}-{side}")))
        .collect()
}

/// Waits until the endpoints of a Service at both sides, as home sees them, pass a check.
async fn endpoints(
    rome: &Cluster,
    name: &str,
    what: &str,
    check: impl Fn(&[Value]) -> bool,
) -> Result<()> {
    for service in of_both_sides(&[name]) {
        eventually(
            &format!("the endpoints of {service} {what}"),
            TIMEOUT,
            || async {
                let label = format!("kubernetes.io/service-name={service}");
                let slices = rome
                    .items(&["-n", NAMESPACE, "endpointslices", "-l", &label])
                    .await?;
                let found: Vec<Value> = slices
                    .iter()
                    .flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default())
                    .collect();
                ensure!(check(&found), "{found:?}");
                Ok(Some(()))
            },
        )
        .await?;
    }
    Ok(())
}

/// Waits until each Deployment of this name has so many pods, all of them ready.
async fn settled(rome: &Cluster, name: &str, count: usize) -> Result<()> {
    for deployment in of_both_sides(&[name]) {
        rome.ready_pods(NAMESPACE, &format!("server={deployment}"), count)
            .await?;
    }
    Ok(())
}

async fn all(rome: &Cluster, names: &[&str], command: impl Fn(&str) -> Vec<String>) -> Result<()> {
    for name in of_both_sides(names) {
        let command: Vec<String> = ["-n", NAMESPACE]
            .map(str::to_owned)
            .into_iter()
            .chain(command(&name))
            .collect();
        rome.kubectl(&command.iter().map(String::as_str).collect::<Vec<_>>())
            .await?;
    }
    Ok(())
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// Waits until pods whose names begin so answer both clients for a Service.
async fn answered(clients: &Clients<'_>, service: &str, beginning: &str) -> Result<()> {
    eventually(
        &format!("{beginning} answers for {service}"),
        TIMEOUT,
        || async {
            for (from, answer) in clients
                .run(&format!("timeout 5 wget -qO- http://{service}"))
                .await?
            {
                ensure!(
                    answer.starts_with(beginning),
                    "the client at {from} hears {answer:?}"
                );
            }
            Ok(Some(()))
        },
    )
    .await
}

/// Creates clients and servers at both sides, and waits until all of them reach each other.
async fn begin(world: &World) -> Result<Clients<'_>> {
    let rome = &world.rome;
    connected(rome, &world.milan).await?;
    rome.offloaded_namespace(NAMESPACE, "LocalAndRemote")
        .await?;
    for side in SIDES {
        for name in ["rolling"].into_iter().chain(LONG) {
            rome.apply(&objects(name, side)?).await?;
        }
        rome.apply(&servers(
            NAMESPACE,
            &format!("client-{}", side.0),
            "client",
            1,
            side.1,
        ))
        .await?;
    }
    rome.apply(&service("both", &json!({ "app": "rolling" })).to_string())
        .await?;
    rome.apply(&service("coloured", &json!({ "called": "rolling-home" })).to_string())
        .await?;
    let mut clients = Clients {
        rome,
        pods: Vec::new(),
    };
    for (side, _) in SIDES {
        let pod = rome
            .ready_pods(NAMESPACE, &format!("server=client-{side}"), 1)
            .await?
            .remove(0);
        clients.pods.push((side, pod.name_any()));
    }
    settled(rome, "rolling", 2).await?;
    let called = of_both_sides(&["rolling", "flapping", "scaled", "moved"])
        .into_iter()
        .chain(["coloured".to_owned()]);
    clients.reach(&called.collect::<Vec<_>>()).await?;
    // A Service of both sides has its usual name at both.
    for name in ["both", "both.calls"] {
        let line = format!("for i in $(seq 20); do timeout 5 wget -qO- http://{name}; done");
        eventually(
            &format!("pods of both sides answer for {name}"),
            TIMEOUT,
            || async {
                for (from, answers) in clients.run(&line).await? {
                    let is_heard = SIDES
                        .iter()
                        .all(|(side, _)| answers.contains(&format!("rolling-{side}-")));
                    ensure!(is_heard, "the client at {from} hears {answers:?}");
                }
                Ok(Some(()))
            },
        )
        .await?;
    }
    Ok(clients)
}

/// Does with the pods of both sides what must lose no call, while the clients call.
async fn change(rome: &Cluster, clients: &Clients<'_>) -> Result<()> {
    all(rome, &["rolling"], |name| {
        words(&format!("rollout restart deployment/{name}"))
    })
    .await?;
    for (side, _) in SIDES.iter().rev() {
        let selector =
            json!({ "spec": { "selector": { "called": format!("rolling-{side}") } } }).to_string();
        rome.kubectl(&[
            "-n", NAMESPACE, "patch", "service", "coloured", "-p", &selector,
        ])
        .await?;
        answered(clients, "coloured", &format!("rolling-{side}-")).await?;
    }
    all(rome, &["flapping"], |name| {
        words(&format!("exec deployment/{name} -- touch /tmp/paused"))
    })
    .await?;
    all(rome, &["moved"], |name| {
        words(&format!("label pods -l server={name} called-"))
    })
    .await?;
    all(rome, &["scaled"], |name| {
        words(&format!("scale deployment/{name} --replicas=0"))
    })
    .await?;
    let has_condition = |all: &[Value], condition: &str, value: bool| {
        !all.is_empty()
            && all
                .iter()
                .all(|endpoint| endpoint["conditions"][condition] == value)
    };
    endpoints(rome, "flapping", "are not ready", |all| {
        has_condition(all, "ready", false)
    })
    .await?;
    endpoints(rome, "moved", "are gone", <[Value]>::is_empty).await?;
    endpoints(rome, "scaled", "terminate", |all| {
        has_condition(all, "terminating", true)
    })
    .await?;
    // Kubernetes sends new connections to pods that terminate if there are no others.
    clients.reach(&of_both_sides(&["scaled"])).await?;
    all(rome, &["scaled"], |name| {
        words(&format!("scale deployment/{name} --replicas=1"))
    })
    .await?;
    // No Service selects this pod any more.
    let primary = rome
        .ready_pods(NAMESPACE, "server=moved-home", 1)
        .await?
        .remove(0);
    rome.apply(&by_hand("primary", &ip(&primary)?)).await?;
    rome.apply(&by_hand("stray", "10.244.255.254")).await?;
    clients.reach(&["primary".to_owned()]).await?;
    all(rome, &["flapping"], |name| {
        words(&format!("exec deployment/{name} -- rm /tmp/paused"))
    })
    .await?;
    all(rome, &["rolling"], |name| {
        words(&format!("rollout status deployment/{name} --timeout=120s"))
    })
    .await?;
    // The last pods that terminate are gone, too.
    settled(rome, "rolling", 2).await?;
    clients.reach(&of_both_sides(&["flapping", "scaled"])).await
}

pub async fn no_call_is_lost_while_pods_are_replaced_fail_probes_end_or_leave_their_service(
    world: Arc<World>,
) -> Result<()> {
    let rome = &world.rome;
    let clients = begin(&world).await?;
    let targets = of_both_sides(&LONG).join(" ");
    let short = "for t in rolling-home rolling-peer coloured; do (made=0; lost=0; while [ ! -e /tmp/stop ]; do made=$((made+1)); \
                 timeout 8 wget -qO /dev/null http://$t || lost=$((lost+1)); sleep 0.2; done; echo $t $made $lost) & done; wait";
    let long = format!(
        "for t in {targets}; do (timeout 120 wget -qO /tmp/$t http://$t/cgi-bin/count?{NUMBERS}; \
         echo $t {NUMBERS} $(({NUMBERS} - $(wc -l < /tmp/$t)))) & done; wait"
    );
    let changes = async {
        let is_flowing = format!("for t in {targets}; do [ -s /tmp/$t ] || exit 1; done");
        eventually("all long answers have begun", TIMEOUT, || async {
            clients.run(&is_flowing).await.map(Some)
        })
        .await?;
        change(rome, &clients).await?;
        clients.run("touch /tmp/stop").await
    };
    let (short, long, _) = tokio::try_join!(clients.run(short), clients.run(&long), changes)?;
    let mut lost = 0;
    for (what, said) in [("calls", short), ("numbers of an answer", long)] {
        for (from, line) in said
            .iter()
            .flat_map(|(from, said)| said.lines().map(move |line| (from, line)))
        {
            let [to, all, missing] = line.split(' ').collect::<Vec<_>>()[..] else {
                bail!("{line:?}")
            };
            println!("from {from} to {to}: {all} {what}, {missing} lost");
            lost += missing.parse::<usize>()?;
        }
    }
    ensure!(lost == 0, "{lost} calls or numbers were lost");
    eventually(
        "an event says that no pod has the stray address",
        TIMEOUT,
        || async {
            let events = rome
                .items(&[
                    "-n",
                    NAMESPACE,
                    "events",
                    "--field-selector",
                    "reason=NoPodAtAddress",
                ])
                .await?;
            let about: Vec<&Value> = events
                .iter()
                .map(|event| &event["involvedObject"]["name"])
                .collect();
            ensure!(about == [&json!("stray")], "{events:#?}");
            Ok(Some(()))
        },
    )
    .await?;
    rome.end_namespace(NAMESPACE).await
}
