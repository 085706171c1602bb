//! Ingresses and load balancers at the provider: only what its policy allows, with the provider's
//! classes.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use liqo_tests::{Cluster, World, eventually};
use serde_json::{Value, json};

use crate::{
    policies::apply_policy,
    services::{gone, prefixes},
};

const TIMEOUT: Duration = Duration::from_secs(40);

/// Waits until an object exists and passes a check, and returns it.
async fn becomes(
    cluster: &Cluster,
    what: &str,
    target: &[&str],
    check: impl Fn(&Value) -> bool,
) -> Result<Value> {
    eventually(&format!("{what} at {}", cluster.name), TIMEOUT, || async {
        let found = cluster
            .object(target)
            .await?
            .with_context(|| format!("there is no {target:?}"))?;
        ensure!(check(&found), "{found:#}");
        Ok(Some(found))
    })
    .await
}

/// Waits until an event about an object contains these words.
async fn event_says(cluster: &Cluster, object: &str, words: &str) -> Result<()> {
    eventually(
        &format!("an event of {object} says {words:?}"),
        TIMEOUT,
        || async {
            let about = format!("involvedObject.name={object},reason=NotReflected");
            let events = cluster
                .items(&["-n", "front", "events", "--field-selector", &about])
                .await?;
            let found = events.iter().any(|event| {
                event["message"]
                    .as_str()
                    .is_some_and(|message| message.contains(words))
            });
            ensure!(found, "{events:#?}");
            Ok(Some(()))
        },
    )
    .await
}

fn front() -> [Value; 4] {
    let rule = |host: &str| {
        json!({ "host": host, "http": { "paths": [{ "path": "/", "pathType": "Prefix",
            "backend": { "service": { "name": "web", "port": { "number": 80 } } } }] } })
    };
    [
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web", "namespace": "front" },
            "spec": { "type": "LoadBalancer", "loadBalancerClass": "home.test/lb", "selector": { "app": "web" }, "ports": [{ "port": 80 }],
                "externalIPs": ["192.0.2.1"], "externalTrafficPolicy": "Local", "loadBalancerSourceRanges": ["198.51.100.0/24"] } }),
        json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "ports": [{ "port": 80 }],
            "metadata": { "name": "web-by-hand", "namespace": "front", "labels": { "kubernetes.io/service-name": "web" } },
            "endpoints": [{ "addresses": ["10.244.0.99"], "conditions": { "ready": true } }] }),
        json!({ "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": { "name": "cert", "namespace": "front" },
            "stringData": { "tls.crt": "certificate", "tls.key": "key" } }),
        json!({ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": { "name": "shop", "namespace": "front",
                "annotations": { "example.test/size": "1m", "example.test/server-snippet": "evil" } },
            "spec": { "ingressClassName": "home-class", "rules": [rule("shop.rome.test"), rule("bank.test")],
                "tls": [{ "hosts": ["shop.rome.test"], "secretName": "cert" }] } }),
    ]
}

pub async fn ingresses_and_load_balancers_have_classes_that_the_provider_allows(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    prefixes(&world).await?;
    rome.offloaded_namespace("front", "Local").await?;
    let remote = rome.remote_namespace("front", milan).await?;
    for object in front() {
        rome.apply(&object.to_string()).await?;
    }
    let (service, ingress) = (
        ["-n", remote.as_str(), "service", "web"],
        ["-n", remote.as_str(), "ingress", "shop"],
    );

    // By default nothing is exposed.
    let inside = becomes(
        milan,
        "Service web of type ClusterIP",
        &service,
        |replica| replica["spec"]["type"] == "ClusterIP",
    )
    .await?;
    event_says(rome, "shop", "KindNotAllowed").await?;
    ensure!(
        milan.object(&ingress).await?.is_none(),
        "an Ingress nobody allowed"
    );
    let tenant = format!("liqo-tenant-{}", rome.cluster_id().await?);
    let secrets = milan
        .kubectl(&[
            "-n",
            &tenant,
            "get",
            "secrets",
            "-l",
            "liqo.io/home-namespace=front",
            "-o",
            "name",
        ])
        .await?;
    ensure!(
        secrets.trim().is_empty(),
        "a key was sent to a provider that does not need it: {secrets}"
    );

    let usage = json!({ "ingressClasses": ["public", "inside"], "ingressHosts": ["*.rome.test"], "ingressAnnotations": ["example.test/size"],
        "loadBalancerClasses": ["milan.test/edge"] });
    let policy = |usage: Value| async move {
        let id = rome.cluster_id().await?;
        apply_policy(milan, "front", json!({ "priority": 50, "peers": { "clusterIDs": [id] }, "provide": { "usage": usage } }))
            .await
    };
    policy(usage.clone()).await?;
    let balanced = becomes(
        milan,
        "Service web with a load balancer",
        &service,
        |replica| replica["spec"]["type"] == "LoadBalancer",
    )
    .await?;
    let spec = &balanced["spec"];
    ensure!(spec["loadBalancerClass"] == "milan.test/edge", "{spec:#}");
    ensure!(
        spec["loadBalancerSourceRanges"] == json!(["198.51.100.0/24"]),
        "{spec:#}"
    );
    ensure!(
        spec["clusterIP"] == inside["spec"]["clusterIP"]
            && spec["externalTrafficPolicy"] == "Cluster",
        "{spec:#}"
    );
    ensure!(
        spec.get("externalIPs").is_none() && spec.get("selector").is_none(),
        "{spec:#}"
    );
    let shop = becomes(milan, "Ingress shop", &ingress, |replica| {
        replica["spec"]["ingressClassName"] == "public"
    })
    .await?;
    let rules = shop["spec"]["rules"].as_array().context("no rules")?;
    ensure!(
        rules.len() == 1 && rules[0]["host"] == "shop.rome.test",
        "{rules:#?}"
    );
    let annotations = &shop["metadata"]["annotations"];
    ensure!(
        annotations["example.test/size"] == "1m"
            && annotations.get("example.test/server-snippet").is_none(),
        "{annotations:#}"
    );
    event_says(rome, "shop", "HostNotAllowed").await?;
    let certificate = eventually("the certificate is at milan", TIMEOUT, || {
        milan.replica(&remote, "secrets", "cert")
    })
    .await?;
    ensure!(
        certificate["type"] == "kubernetes.io/tls",
        "{}",
        certificate["type"]
    );
    ensure!(
        shop["spec"]["tls"][0]["secretName"] == certificate["metadata"]["name"],
        "{:#}",
        shop["spec"]["tls"]
    );

    // The addresses are shown in the consumer cluster, without writing to the objects there.
    let status = json!({ "status": { "loadBalancer": { "ingress": [{ "ip": "203.0.113.7" }] } } })
        .to_string();
    milan
        .kubectl(&[
            "-n",
            &remote,
            "patch",
            "service",
            "web",
            "--subresource=status",
            "--type=merge",
            "-p",
            &status,
        ])
        .await?;
    let shown = |offloading: &Value| {
        let exposed = offloading["status"]["remoteNamespaces"][0]["exposed"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        exposed.contains(&json!({ "kind": "Service", "name": "web", "class": "milan.test/edge", "addresses": ["203.0.113.7"] }))
    };
    becomes(
        rome,
        "the address of web",
        &["-n", "front", "namespaceoffloading", "offloading"],
        shown,
    )
    .await?;
    let tree = rome.liqoctl(&["status"]).await?;
    ensure!(
        tree.contains("Service web of class milan.test/edge at 203.0.113.7"),
        "{tree}"
    );

    // The user asks for a class. Changes are applied.
    rome.kubectl(&[
        "-n",
        "front",
        "annotate",
        "ingress",
        "shop",
        "liqo.io/remote-class=inside",
    ])
    .await?;
    becomes(milan, "the class that was asked for", &ingress, |replica| {
        replica["spec"]["ingressClassName"] == "inside"
    })
    .await?;
    milan
        .kubectl(&[
            "-n",
            &remote,
            "patch",
            "service",
            "web",
            "-p",
            r#"{"spec":{"externalIPs":["192.0.2.9"]}}"#,
        ])
        .await?;

    // The API server sets the default class of the cluster.
    milan
        .apply(
            &json!({ "apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "spec": { "controller": "milan.test/nobody" },
                "metadata": { "name": "milans", "annotations": { "ingressclass.kubernetes.io/is-default-class": "true" } } })
            .to_string(),
        )
        .await?;
    let mut default = usage;
    default["ingressClasses"] = json!([""]);
    policy(default).await?;
    becomes(
        milan,
        "fields that somebody added are removed",
        &service,
        |replica| replica["spec"].get("externalIPs").is_none(),
    )
    .await?;
    becomes(milan, "the default class", &ingress, |replica| {
        replica["spec"]["ingressClassName"] == "milans"
    })
    .await?;
    world.quiet(&[rome, milan]).await?;

    lists_choose_what_is_reflected(rome, milan, &remote).await?;

    // When the policy is gone, what it allowed goes.
    milan.kubectl(&["delete", "peeringpolicy", "front"]).await?;
    milan.kubectl(&["delete", "ingressclass", "milans"]).await?;
    gone(milan, &remote, "ingress", "shop").await?;
    eventually("the certificate is gone", TIMEOUT, || async {
        Ok(milan
            .replica(&remote, "secrets", "cert")
            .await?
            .is_none()
            .then_some(()))
    })
    .await?;
    becomes(
        milan,
        "Service web of type ClusterIP again",
        &service,
        |replica| replica["spec"]["type"] == "ClusterIP",
    )
    .await?;
    rome.end_namespace("front").await
}

/// Checks the annotations, and both kinds of lists of the namespace.
async fn lists_choose_what_is_reflected(
    rome: &Cluster,
    milan: &Cluster,
    remote: &str,
) -> Result<()> {
    let list = |list: &'static str| async move {
        let patch = json!({ "spec": { "reflection": list } }).to_string();
        rome.kubectl(&[
            "-n",
            "front",
            "patch",
            "namespaceoffloading",
            "offloading",
            "--type=merge",
            "-p",
            &patch,
        ])
        .await
    };
    list("AllowList").await?;
    gone(milan, remote, "service", "web").await?;
    gone(milan, remote, "ingress", "shop").await?;
    for kind in ["service/web", "ingress/shop"] {
        rome.kubectl(&["-n", "front", "annotate", kind, "liqo.io/reflection=allow"])
            .await?;
    }
    becomes(
        milan,
        "what is allowed",
        &["-n", remote, "ingress", "shop"],
        |replica| !replica["spec"]["rules"].is_null(),
    )
    .await?;
    let slice = ["-n", remote, "endpointslice", "web-by-hand"];
    becomes(
        milan,
        "the endpoints of what is allowed",
        &slice,
        |replica| replica["endpoints"][0]["addresses"][0].is_string(),
    )
    .await?;
    rome.kubectl(&[
        "-n",
        "front",
        "annotate",
        "--overwrite",
        "ingress/shop",
        "liqo.io/reflection=deny",
    ])
    .await?;
    gone(milan, remote, "ingress", "shop").await?;
    list("DenyList").await?;
    rome.kubectl(&[
        "-n",
        "front",
        "annotate",
        "service/web",
        "ingress/shop",
        "liqo.io/reflection-",
    ])
    .await?;
    becomes(
        milan,
        "what is not denied",
        &["-n", remote, "ingress", "shop"],
        |replica| !replica["spec"]["rules"].is_null(),
    )
    .await
    .map(drop)
}
