//! Pods that keep their addresses in both clusters: programs whose members tell each other their
//! own addresses span clusters.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use liqo_tests::{Cluster, World, eventually};
use serde_json::json;

use crate::{
    broker::{self, near_and_far},
    direct_path::{allow_all, direct},
    network::{ask, connected, endpoint, exec, ip},
};

/// 10.245.0.0/16 and `fd00:10:245::/48`.
pub const TURINS_POD_OCTET: u8 = 245;
const NAMESPACE: &str = "members";
/// Members in each of the two clusters.
const MEMBERS: usize = 3;

/// A member serves what it knows, tells its address to all that it knows, and learns what they
/// know, in each family apart. It finds the first one by the name of a Service.
const MEMBER: &str = r#"
host() { case $1 in *:*) echo "[$1]";; *) echo "$1";; esac; }
mkdir -p /tmp/www/cgi-bin
cat > /tmp/www/cgi-bin/join <<'END'
#!/bin/sh
echo; echo
case $QUERY_STRING in *:*) known=/tmp/known6;; *) known=/tmp/known4;; esac
grep -qxF "$QUERY_STRING" $known || echo "$QUERY_STRING" >> $known
cat $known
END
chmod +x /tmp/www/cgi-bin/join
talk() {
  own=$(echo "$ADDRESSES" | tr , '\n' | grep "$1" | head -1)
  echo "$own" > $2
  while true; do
    first=$(nslookup member.members.svc.cluster.local | awk '/^Name/ { named = 1 } named && /^Address/ { print $NF }' | grep "$1")
    for other in $first $(cat $2); do
      for one in $(timeout 1 wget -qO- "http://$(host $other):8080/cgi-bin/join?$own"); do
        grep -qxF "$one" $2 || echo "$one" >> $2
      done
    done
    sleep 1
  done
}
talk '[.]' /tmp/known4 &
talk : /tmp/known6 &
exec httpd -f -p '[::]:8080' -h /tmp/www
"#;

fn members(name: &str, node: &str) -> String {
    let addresses = json!({ "name": "ADDRESSES", "valueFrom": { "fieldRef": { "fieldPath": "status.podIPs" } } });
    let member = json!({ "name": "member", "image": "localhost/busybox:1", "command": ["sh", "-c", MEMBER], "env": [addresses] });
    let labels = json!({ "app": "member", "at": name });
    let pod = json!({
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": { "kubernetes.io/hostname": node },
        "containers": [member],
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "replicas": MEMBERS, "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": pod },
        },
    });
    deployment.to_string()
}

fn addresses(pod: &Pod) -> BTreeSet<String> {
    let status = pod.status.clone().unwrap_or_default();
    status
        .pod_ips
        .unwrap_or_default()
        .into_iter()
        .map(|one| one.ip)
        .collect()
}

/// Waits until each member knows the addresses of all, as its own interface and home's API server
/// say.
async fn know_each_other(rome: &Cluster) -> Result<()> {
    eventually(
        "each member knows the addresses of all",
        Duration::from_secs(90),
        || async {
            let pods = rome
                .ready_pods(NAMESPACE, "app=member", 2 * MEMBERS)
                .await?;
            let all: BTreeSet<String> = pods.iter().flat_map(addresses).collect();
            ensure!(all.len() == 4 * MEMBERS, "{all:?}");
            for pod in &pods {
                let said = exec(
                    rome,
                    NAMESPACE,
                    &pod.name_any(),
                    "echo $ADDRESSES; cat /tmp/known4 /tmp/known6",
                )
                .await?;
                let (own, known) = said.split_once('\n').unwrap_or_default();
                let own: BTreeSet<String> = own.split(',').map(str::to_owned).collect();
                ensure!(
                    own == addresses(pod),
                    "{} has {own:?}, and home says {:?}",
                    pod.name_any(),
                    addresses(pod)
                );
                let missing: Vec<&String> = all
                    .iter()
                    .filter(|address| !known.lines().any(|line| line == *address))
                    .collect();
                ensure!(
                    missing.is_empty(),
                    "{} does not know {missing:?}",
                    pod.name_any()
                );
            }
            Ok(Some(()))
        },
    )
    .await
}

/// Names the ranges of the pods of the other cluster in the policy, or none.
async fn keep(cluster: &Cluster, octet: Option<u8>) -> Result<()> {
    let ranges = octet.map(|octet| {
        [
            format!("10.{octet}.0.0/16"),
            format!("fd00:10:{octet}::/48"),
        ]
    });
    let patch = json!({ "spec": { "network": { "keptCIDRs": ranges } } }).to_string();
    cluster
        .kubectl(&[
            "patch",
            "peeringpolicy",
            "default",
            "--type=merge",
            "-p",
            &patch,
        ])
        .await
        .map(drop)
}

pub async fn members_of_one_application_know_each_other_by_their_own_addresses(
    world: Arc<World>,
) -> Result<()> {
    let (rome, turin) = (&world.rome, &world.turin);
    rome.peer_with(turin).await?;
    connected(rome, turin).await?;
    let status = rome.liqoctl(&["status"]).await?;
    ensure!(
        status.contains("both clusters could keep each other's addresses"),
        "{status}"
    );
    ensure!(
        status.contains("addresses of 10.245.0.0/16, fd00:10:245::/48 could stay"),
        "{status}"
    );
    ensure!(
        status.contains(r#"there, spec.network.keptCIDRs: ["10.244.0.0/16", "fd00:10:244::/48"]"#),
        "{status}"
    );

    keep(rome, Some(TURINS_POD_OCTET)).await?;
    keep(turin, Some(244)).await?;
    eventually(
        "both keep the addresses of the other",
        Duration::from_mins(1),
        || async {
            let endpoint = endpoint(rome, turin).await?.spec;
            let same = |maps: &std::collections::BTreeMap<_, _>| {
                maps.iter().filter(|(own, other)| own == other).count()
            };
            ensure!(
                (same(&endpoint.imported), same(&endpoint.exported)) == (2, 2),
                "{endpoint:?}"
            );
            Ok(Some(()))
        },
    )
    .await?;
    rome.offloaded_namespace(NAMESPACE, "LocalAndRemote")
        .await?;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "member", "namespace": NAMESPACE },
        "spec": {
            "clusterIP": "None", "ipFamilyPolicy": "PreferDualStack", "publishNotReadyAddresses": true,
            "selector": { "app": "member" }, "ports": [{ "name": "http", "port": 8080 }],
        },
    });
    rome.apply(&service.to_string()).await?;
    rome.apply(&members("near", "rome-1")).await?;
    rome.apply(&members("far", "turin")).await?;
    know_each_other(rome).await?;
    let before: BTreeSet<String> = rome
        .pods(NAMESPACE, "app=member")
        .await?
        .iter()
        .flat_map(addresses)
        .collect();
    let far = rome
        .ready_pods(NAMESPACE, "at=far", MEMBERS)
        .await?
        .remove(0);
    rome.kubectl(&["-n", NAMESPACE, "delete", "pod", &far.name_any()])
        .await?;
    know_each_other(rome).await?;
    let now: BTreeSet<String> = rome
        .pods(NAMESPACE, "app=member")
        .await?
        .iter()
        .flat_map(addresses)
        .collect();
    ensure!(
        now.difference(&before).count() == 2,
        "the new member has addresses of its own: {before:?} {now:?}"
    );

    // While pods know the addresses, nothing moves.
    keep(rome, None).await?;
    eventually("the change waits", Duration::from_mins(1), || async {
        let endpoint = endpoint(rome, turin).await?.spec;
        Ok((endpoint.waiting.len() == 2).then_some(()))
    })
    .await?;
    know_each_other(rome).await?;
    rome.end_namespace(NAMESPACE).await?;
    eventually(
        "the addresses are mapped again",
        Duration::from_mins(1),
        || async {
            let endpoint = endpoint(rome, turin).await?.spec;
            Ok((endpoint.imported.iter().all(|(own, other)| own != other)
                && endpoint.waiting.is_empty())
            .then_some(()))
        },
    )
    .await?;
    keep(turin, None).await?;
    rome.liqoctl(&["unpeer", "turin", "--yes"]).await.map(drop)
}

/// Whether a cluster keeps the addresses of turin's pods, which it reaches through milan or itself.
async fn keeps(cluster: &Cluster, peer: &Cluster) -> Result<bool> {
    let spec = endpoint(cluster, peer).await?.spec;
    let range = format!("10.{TURINS_POD_OCTET}.0.0/16");
    Ok(spec
        .imported
        .iter()
        .any(|(own, here)| own.to_string() == range && here == own))
}

pub async fn a_pod_behind_a_broker_has_one_address_also_on_the_direct_path(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan, turin) = (&world.rome, &world.milan, &world.turin);
    keep(milan, Some(TURINS_POD_OCTET)).await?;
    keep(rome, Some(TURINS_POD_OCTET)).await?;
    eventually(
        "milan keeps the addresses of turin",
        Duration::from_mins(1),
        || async { Ok(keeps(milan, turin).await?.then_some(())) },
    )
    .await?;
    let (near, far) = near_and_far(&world).await?;
    let (caller, server, to_far) = (near.name_any(), far.name_any(), ip(&far)?);
    ensure!(
        keeps(rome, milan).await?,
        "{:?}",
        endpoint(rome, milan).await?.spec.behind
    );
    let own = exec(rome, broker::NAMESPACE, &server, "hostname -i").await?;
    ensure!(
        own.split_whitespace().any(|address| address == to_far),
        "home says {to_far}, and the pod {own}"
    );
    let seen_as = ask(rome, broker::NAMESPACE, &caller, &to_far, "cgi-bin/who").await?;
    for is_direct in [true, false] {
        allow_all(&world, is_direct).await?;
        direct(&world, is_direct).await?;
        let answer = ask(rome, broker::NAMESPACE, &caller, &to_far, "").await?;
        ensure!(answer == server, "{answer:?} answers at {to_far}");
        let answer = ask(rome, broker::NAMESPACE, &server, &seen_as, "").await?;
        ensure!(answer == caller, "{answer:?} answers at {seen_as}");
    }
    rome.end_namespace(broker::NAMESPACE).await?;
    keep(rome, None).await?;
    keep(milan, None).await?;
    eventually(
        "the addresses are mapped again",
        Duration::from_mins(1),
        || async { Ok((!keeps(milan, turin).await? && !keeps(rome, milan).await?).then_some(())) },
    )
    .await
}
