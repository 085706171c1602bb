use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{Cluster, World, eventually};

/// Kinds of objects that scenarios create, change or remove, as arguments of `kubectl get`. Kinds
/// that refer to others come first.
const KINDS: [&[&str]; 7] = [
    &["peeringpolicies"],
    &["clusterconfigs"],
    &["-n", "liqo", "deployments"],
    &["-n", "liqo", "services"],
    &["priorityclasses"],
    &["ingressclasses"],
    &["nodes", "-l", "liqo.io/type!=virtual-node"],
];
/// Namespaces that users created.
const NAMESPACES: [&str; 3] = [
    "namespaces",
    "-l",
    "!liqo.io/namespace-kind,!liqo.io/managed",
];
/// Prefix of the names of nftables tables that scenarios create on nodes.
const TABLE_PREFIX: &str = "scenario_";
/// As an argument of `kubectl taint`: the taint of Kubernetes' own tests, without which they leave
/// the nodes.
const REMOVED_TAINT: &str = "playground.liqo.io/tests-";
const TIMEOUT: Duration = Duration::from_mins(2);

/// The state of rome, turin and milan when they were ready. After a failed scenario it is restored.
pub struct Baseline {
    rome: State,
    turin: State,
    milan: State,
}

struct State {
    /// For each of [`KINDS`], a patch for each object, by name.
    objects: Vec<BTreeMap<String, Value>>,
    namespaces: BTreeMap<String, Value>,
    peers: BTreeMap<String, Value>,
}

impl State {
    async fn of(cluster: &Cluster) -> Result<Self> {
        let mut objects = Vec::new();
        for kind in KINDS {
            objects.push(list(cluster, kind).await?);
        }
        let (namespaces, peers) = (
            list(cluster, &NAMESPACES).await?,
            list(cluster, &["foreignclusters"]).await?,
        );
        Ok(Self {
            objects,
            namespaces,
            peers,
        })
    }
}

/// A patch for each object, by name, that restores what scenarios change: the labels of nodes, and
/// the specs of other objects.
async fn list(cluster: &Cluster, kind: &[&str]) -> Result<BTreeMap<String, Value>> {
    let of = |object: Value| {
        let name = object["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let patch = if kind[0] == "nodes" {
            json!([{ "op": "replace", "path": "/metadata/labels", "value": object["metadata"]["labels"] }])
        } else {
            json!([{ "op": "replace", "path": "/spec", "value": object["spec"] }])
        };
        (name, patch)
    };
    Ok(cluster.items(kind).await?.into_iter().map(of).collect())
}

impl Baseline {
    /// The current state of the clusters.
    pub async fn of(world: &World) -> Result<Self> {
        let (rome, turin, milan) = tokio::try_join!(
            State::of(&world.rome),
            State::of(&world.turin),
            State::of(&world.milan)
        )?;
        Ok(Self { rome, turin, milan })
    }

    /// Restores this state: first machines and managers, because they do the rest.
    pub async fn restore(&self, world: &World) -> Result<()> {
        world.forget_fixture().await;
        let (rome, turin, milan) = (&world.rome, &world.turin, &world.milan);
        let all = [
            (rome, &self.rome),
            (turin, &self.turin),
            (milan, &self.milan),
        ];
        for (cluster, _) in all {
            heal(world, cluster)
                .await
                .with_context(|| format!("the machines of {}", cluster.name))?;
        }
        world.machinery(milan)?.scale_fake_nodes(1).await?;
        for (cluster, state) in all {
            world.reinstall(cluster).await?;
            restore_objects(cluster, state).await?;
        }
        for (cluster, state) in all {
            remove_namespaces(cluster, state).await?;
            // Otherwise contracts go on for as long as they give notice.
            cluster
                .kubectl(&[
                    "delete",
                    "contracts.sharing.liqo.io",
                    "--all",
                    "--all-namespaces",
                    "--wait=false",
                ])
                .await?;
        }
        for (cluster, state) in all {
            restore_peers(cluster, state).await?;
        }
        world.peer_rome_with_milan().await?;
        for (cluster, state) in all {
            eventually(
                &format!("{} has no other peers", cluster.name),
                TIMEOUT,
                || async {
                    let peers = list(cluster, &["foreignclusters"]).await?;
                    ensure!(peers.keys().eq(state.peers.keys()), "{:?}", peers.keys());
                    Ok(Some(()))
                },
            )
            .await?;
        }
        Ok(())
    }
}

/// Ends partitions, brings the first CA back, and removes the nftables tables that drop packets.
async fn heal(world: &World, cluster: &Cluster) -> Result<()> {
    world.heal(&cluster.name).await?;
    world.machinery(cluster)?.use_next_ca(false).await?;
    for node in world.machinery(cluster)?.nodes() {
        let nft = format!("nsenter --net=/run/netns/{} nft", node.network_namespace);
        let tables = world.shell(&format!("{nft} list tables"), 20).await?;
        for table in tables.lines().filter(|line| {
            line.split(' ')
                .next_back()
                .is_some_and(|name| name.starts_with(TABLE_PREFIX))
        }) {
            world.shell(&format!("{nft} delete {table}"), 20).await?;
        }
    }
    eventually(
        &format!("the API server of {} answers", cluster.name),
        TIMEOUT,
        || async {
            Ok(cluster
                .try_kubectl(&["get", "--raw", "/readyz"])
                .await?
                .success
                .then_some(()))
        },
    )
    .await
}

/// Removes new objects, and restores changed ones.
async fn restore_objects(cluster: &Cluster, state: &State) -> Result<()> {
    for (kind, before) in KINDS.into_iter().zip(&state.objects) {
        let end = if kind[0] == "-n" { 3 } else { 1 };
        for (name, now) in list(cluster, kind).await? {
            let target = [&kind[..end], &[name.as_str()]].concat();
            match before.get(&name) {
                None => cluster
                    .kubectl(&[&["delete", "--ignore-not-found"], target.as_slice()].concat())
                    .await
                    .map(drop)?,
                Some(patch) if *patch != now => {
                    let patch = patch.to_string();
                    cluster
                        .kubectl(
                            &[
                                &["patch"],
                                target.as_slice(),
                                &["--type=json", "-p", &patch],
                            ]
                            .concat(),
                        )
                        .await
                        .map(drop)?;
                }
                Some(_) => {}
            }
            if kind[0] == "nodes" {
                cluster.try_kubectl(&["uncordon", &name]).await?;
                cluster
                    .try_kubectl(&["taint", "nodes", &name, REMOVED_TAINT])
                    .await?;
            }
        }
    }
    Ok(())
}

async fn remove_namespaces(cluster: &Cluster, state: &State) -> Result<()> {
    cluster
        .kubectl(&["-n", "default", "delete", "deployments,pods", "--all"])
        .await?;
    let now = list(cluster, &NAMESPACES).await?;
    let new: Vec<&str> = now
        .keys()
        .filter(|name| !state.namespaces.contains_key(*name))
        .map(String::as_str)
        .collect();
    if new.is_empty() {
        return Ok(());
    }
    cluster
        .kubectl(
            &[
                &[
                    "delete",
                    "namespace",
                    "--ignore-not-found",
                    "--timeout=120s",
                ],
                new.as_slice(),
            ]
            .concat(),
        )
        .await
        .map(drop)
}

/// Ends new peerings, and restores the specs of the others.
async fn restore_peers(cluster: &Cluster, state: &State) -> Result<()> {
    for (name, now) in list(cluster, &["foreignclusters"]).await? {
        match state.peers.get(&name) {
            None => {
                // The object of a cluster that only borrows goes once that cluster has said
                // goodbye, so do not wait here.
                cluster.try_liqoctl(&["unpeer", &name, "--yes"]).await?;
                cluster
                    .kubectl(&[
                        "delete",
                        "foreigncluster",
                        &name,
                        "--ignore-not-found",
                        "--wait=false",
                    ])
                    .await?;
            }
            Some(patch) if *patch != now => {
                let patch = patch.to_string();
                cluster
                    .kubectl(&[
                        "patch",
                        "foreigncluster",
                        &name,
                        "--type=json",
                        "-p",
                        &patch,
                    ])
                    .await?;
            }
            Some(_) => {}
        }
    }
    Ok(())
}
