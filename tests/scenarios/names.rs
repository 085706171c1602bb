//! Names of Services, as remote pods resolve them.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use liqo_tests::{World, eventually};
use serde_json::{Value, json};

use crate::network::{ABROAD, connected, exec, servers, service};

/// The domain of rome, from which remote pods come. Milan has the usual one.
pub const ROMES_DOMAIN: &str = "rome.example";

pub async fn a_remote_pod_resolves_names_as_at_home(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    connected(rome, milan).await?;
    for namespace in ["names", "names-too"] {
        rome.offloaded_namespace(namespace, "Remote").await?;
        rome.apply(&service(namespace, "web")).await?;
    }
    rome.apply(&servers("names", "far", "web", 1, ABROAD))
        .await?;
    // A pod with a name of its own, behind a headless Service.
    let mut too: Value = serde_json::from_str(&servers("names-too", "far-too", "web", 1, ABROAD))?;
    too["spec"]["template"]["spec"]["hostname"] = "web-0".into();
    too["spec"]["template"]["spec"]["subdomain"] = "members".into();
    rome.apply(&too.to_string()).await?;
    let headless = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "members", "namespace": "names-too" },
        "spec": { "clusterIP": "None", "selector": { "app": "web" }, "ports": [{ "port": 8080 }] } });
    rome.apply(&headless.to_string()).await?;
    // The second stands for the first one, the last one for a host that no DNS knows.
    let full = |name: &str| format!("{name}.svc.{ROMES_DOMAIN}");
    for (name, target) in [
        ("alias", full("web.names-too")),
        ("alias-2", full("alias.names")),
        ("nobody", "nobody.invalid".to_owned()),
    ] {
        let external = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": "names" },
            "spec": { "type": "ExternalName", "externalName": target } });
        rome.apply(&external.to_string()).await?;
    }
    let far = rome
        .ready_pods("names", "server=far", 1)
        .await?
        .remove(0)
        .name_any();
    rome.ready_pods("names-too", "server=far-too", 1).await?;

    let resolver = milan
        .object(&["-n", "liqo", "service", "liqo-dns"])
        .await?
        .context("there is no Service liqo-dns")?;
    let address = resolver["spec"]["clusterIP"]
        .as_str()
        .context("Service liqo-dns has no address")?;
    let file = exec(rome, "names", &far, "cat /etc/resolv.conf").await?;
    let search = format!(
        "search {} svc.{ROMES_DOMAIN} {ROMES_DOMAIN}\n",
        full("names")
    );
    let wanted = [
        search,
        format!("nameserver {address}"),
        "ndots:5".to_owned(),
    ];
    ensure!(wanted.iter().all(|text| file.contains(text)), "{file}");

    let there = rome.remote_namespace("names-too", milan).await?;
    ensure!(
        there != "names-too",
        "the namespace has its own name at milan"
    );
    let cases: [(&str, &str); 12] = [
        ("web", far.as_str()),
        ("web.names", &far),
        ("web.names-too", "web-0"),
        ("web.names-too.svc", "web-0"),
        (&full("web.names-too"), "web-0"),
        ("web-0.members.names-too:8080", "web-0"),
        (
            &format!("{}:8080", full("web-0.members.names-too")),
            "web-0",
        ),
        // In the domain of milan, too.
        ("web.names-too.svc.cluster.local", "web-0"),
        (&format!("web.{there}.svc.cluster.local"), "web-0"),
        ("alias", "web-0"),
        ("alias.names", "web-0"),
        (&full("alias-2.names"), "web-0"),
    ];
    for (name, answers) in cases {
        eventually(
            &format!("{answers} answers for {name}"),
            Duration::from_mins(1),
            || async {
                let answer = exec(
                    rome,
                    "names",
                    &far,
                    &format!("timeout 10 wget -qO- http://{name}"),
                )
                .await?;
                ensure!(answer.contains(answers), "{answer}");
                Ok(Some(()))
            },
        )
        .await?;
    }
    eventually(
        "the name that nobody has is an alias all the same",
        Duration::from_secs(30),
        || async {
            let found = exec(
                rome,
                "names",
                &far,
                &format!("nslookup -type=cname {}; true", full("nobody.names")),
            )
            .await?;
            ensure!(found.contains("nobody.invalid"), "{found}");
            Ok(Some(()))
        },
    )
    .await?;
    // What stands for another name is no such Service at milan, whose Ingresses would reach any
    // host through it.
    let mapped = rome.remote_namespace("names", milan).await?;
    let alias = milan
        .object(&["-n", &mapped, "service", "alias"])
        .await?
        .context("Service alias is not reflected")?;
    ensure!(
        alias["spec"]["type"] == "ClusterIP" && alias["spec"]["clusterIP"] == "None",
        "{alias}"
    );
    // The answer has the name that was asked.
    let name = full("web.names-too");
    let found = exec(rome, "names", &far, &format!("nslookup {name}; true")).await?;
    ensure!(found.contains(&name) && !found.contains(&there), "{found}");
    // Names and addresses in milan's own namespaces have no names, whatever asks for them.
    let dns = milan
        .object(&["-n", "kube-system", "service", "kube-dns"])
        .await?
        .context("there is no Service kube-dns")?;
    let address = dns["spec"]["clusterIP"]
        .as_str()
        .context("kube-dns has no address")?;
    for name in ["kube-dns.kube-system.svc.cluster.local", address] {
        let found = exec(rome, "names", &far, &format!("nslookup {name}; true")).await?;
        ensure!(found.contains("NXDOMAIN"), "{found}");
    }
    // In the domain of rome, milan has nothing else, and no question leaves milan: its DNS would
    // refuse names outside its own domain.
    for name in [
        full("kube-dns.kube-system"),
        format!("x.{ROMES_DOMAIN}"),
        format!("api.example.org.{ROMES_DOMAIN}"),
    ] {
        let found = exec(rome, "names", &far, &format!("nslookup {name}; true")).await?;
        ensure!(found.contains("NXDOMAIN"), "{found}");
    }
    rome.end_namespace("names").await?;
    rome.end_namespace("names-too").await
}
