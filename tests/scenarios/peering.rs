//! Which clusters may peer, and which requests are refused.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use liqo_controller_runtime::Tcp;
use liqo_peering::{
    auth::client::{Applicant, AuthClient},
    protocol::{PeeringAnswer, SecretText},
};
use liqo_signing::ClusterIdentity;
use liqo_tests::{Cluster, World, eventually, still};
use serde_json::json;

use crate::{
    network::{disable_network, enable_network},
    pods::{deployment, node_of},
};

/// A client for milan's auth endpoint, with the address that milan publishes.
pub async fn milan(world: &World) -> Result<AuthClient> {
    let config = world
        .milan
        .object(&["clusterconfig", "liqo"])
        .await?
        .context("no ClusterConfig")?;
    let url = config["status"]["authURL"]
        .as_str()
        .context("milan does not know its address")?;
    Ok(AuthClient::new(
        &Tcp::network(),
        &world.milan.cluster_id().await?.parse()?,
        url,
    )?)
}

/// The private key of a cluster, read with the rights of its administrator.
pub async fn key_of(cluster: &Cluster) -> Result<ClusterIdentity> {
    Ok(liqo_peering::identity::load_or_create(&cluster.api::<Secret>("liqo")).await?)
}

fn denied(answer: PeeringAnswer, reason: &str) -> Result<()> {
    match answer {
        PeeringAnswer::Denied(refusal) if refusal.reason == reason => Ok(()),
        other => bail!("expected a refusal with {reason}, got {other:?}"),
    }
}

pub async fn a_wrong_token_is_refused(world: Arc<World>) -> Result<()> {
    let (client, stranger) = (milan(&world).await?, ClusterIdentity::generate()?);
    let ask = |token: Option<SecretText>| {
        let (client, stranger) = (&client, &stranger);
        async move {
            client
                .request_peering(&Applicant {
                    identity: stranger,
                    cluster_name: "stranger",
                    token: token.as_ref(),
                })
                .await
        }
    };
    denied(ask(None).await?, "TokenRequired")?;
    denied(
        ask(Some(SecretText("aaaabbbbccccddddeeeeffffgggghhhh".into()))).await?,
        "TokenInvalid",
    )?;
    let namespace = liqo_api::tenant_namespace(stranger.id());
    ensure!(
        world
            .milan
            .object(&["namespace", &namespace])
            .await?
            .is_none(),
        "a refused stranger has a namespace"
    );

    // A one-time token works once, and for one cluster.
    let created = world
        .milan
        .liqoctl(&["token", "create", "-o", "json"])
        .await?;
    let created: serde_json::Value = serde_json::from_str(&created)?;
    let token = SecretText(
        created["token"]
            .as_str()
            .context("no token printed")?
            .to_owned(),
    );
    ensure!(
        matches!(ask(Some(token.clone())).await?, PeeringAnswer::Granted(_)),
        "a good token was refused"
    );
    let second = ClusterIdentity::generate()?;
    denied(
        client
            .request_peering(&Applicant {
                identity: &second,
                cluster_name: "second",
                token: Some(&token),
            })
            .await?,
        "TokenInvalid",
    )?;
    // An accepted consumer needs no token again until it ends the peering.
    ensure!(
        matches!(ask(None).await?, PeeringAnswer::Granted(_)),
        "repeating a request was refused"
    );
    ensure!(matches!(
        client.end_peering(&stranger).await?,
        PeeringAnswer::Ended {}
    ));
    eventually(
        "everything of the stranger is gone",
        Duration::from_secs(40),
        || async {
            let names = world
                .milan
                .kubectl(&[
                    "get",
                    "namespaces,foreignclusters,serviceaccounts",
                    "-A",
                    "-o",
                    "yaml",
                ])
                .await?;
            Ok((!names.contains(stranger.id().as_str())).then_some(()))
        },
    )
    .await?;
    denied(ask(None).await?, "TokenRequired")
}

pub async fn two_way_peering_works(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    milan
        .liqoctl(&[
            "peer",
            "--remote-kubeconfig",
            &rome.kubeconfig.display().to_string(),
        ])
        .await?;
    milan
        .wait_for(&["node/rome"], "condition=Ready", 30)
        .await?;
    milan.offloaded_namespace("reverse", "Remote").await?;
    rome.offloaded_namespace("forward", "Remote").await?;
    milan.apply(&deployment("reverse", "web", 1)).await?;
    rome.apply(&deployment("forward", "web", 1)).await?;
    ensure!(node_of(&milan.ready_pods("reverse", "app=web", 1).await?[0]) == "rome");
    ensure!(node_of(&rome.ready_pods("forward", "app=web", 1).await?[0]) == "milan");
    milan.delete_namespace("reverse").await?;
    milan.liqoctl(&["unpeer", "rome", "--yes"]).await?;
    // The other direction still works.
    rome.wait_for(&["node/milan"], "condition=Ready", 10)
        .await?;
    ensure!(node_of(&rome.ready_pods("forward", "app=web", 1).await?[0]) == "milan");
    rome.end_namespace("forward").await?;
    // What rome announced as milan's provider no longer counts: without rome's announcement as a
    // consumer there is no network.
    disable_network(&world).await?;
    enable_network(&world).await
}

pub async fn a_hostile_node_name_or_label_does_nothing(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    // The provider advertises labels that would be privileged at home.
    let configs: Api<liqo_api::ClusterConfig> = Api::all(milan.client.clone());
    let labels = json!({ "node-role.kubernetes.io/control-plane": "", "liqo.io/type": "real", "kubernetes.io/hostname": "rome-1", "tier": "gold" });
    configs
        .patch(
            "liqo",
            &PatchParams::default(),
            &Patch::Merge(json!({ "spec": { "clusterLabels": labels } })),
        )
        .await?;
    let nodes: Api<Node> = Api::all(rome.client.clone());
    let node = eventually(
        "the harmless label arrives",
        Duration::from_secs(30),
        || async {
            let node = nodes.get("milan").await?;
            let gold = node
                .metadata
                .labels
                .clone()
                .unwrap_or_default()
                .get("tier")
                .is_some_and(|tier| tier == "gold");
            Ok(gold.then_some(node))
        },
    )
    .await?;
    let labels = node.metadata.labels.unwrap_or_default();
    ensure!(
        !labels.contains_key("node-role.kubernetes.io/control-plane"),
        "a role was taken over from the peer"
    );
    ensure!(
        labels["liqo.io/type"] == "virtual-node" && labels["kubernetes.io/hostname"] != "rome-1",
        "{labels:?}"
    );
    configs
        .patch(
            "liqo",
            &PatchParams::default(),
            &Patch::Merge(json!({ "spec": { "clusterLabels": null } })),
        )
        .await?;

    // A provider with the name of one of the consumer's nodes does not change that node.
    let before = nodes.get("rome-1").await?.metadata.uid;
    let turin_as = |name: &str| Patch::Merge(json!({ "spec": { "clusterName": name } }));
    let turins: Api<liqo_api::ClusterConfig> = Api::all(world.turin.client.clone());
    turins
        .patch("liqo", &PatchParams::default(), &turin_as("rome-1"))
        .await?;
    rome.liqoctl(&[
        "peer",
        "--remote-kubeconfig",
        &world.turin.kubeconfig.display().to_string(),
    ])
    .await?;
    let id = world.turin.cluster_id().await?;
    let expected = format!("rome-1-{}", &id[..6]);
    rome.wait_for(&[&format!("node/{expected}")], "condition=Ready", 30)
        .await?;
    let own = || async {
        let node = nodes.get("rome-1").await?;
        let taints = node
            .spec
            .clone()
            .unwrap_or_default()
            .taints
            .unwrap_or_default();
        Ok((
            node.metadata.uid,
            node.metadata
                .labels
                .unwrap_or_default()
                .contains_key("liqo.io/type"),
            taints.is_empty(),
        ))
    };
    still(
        "our own node",
        Duration::from_secs(3),
        (before, false, true),
        own,
    )
    .await?;
    rome.liqoctl(&["unpeer", "rome-1", "--yes"]).await?;
    still("our own node", Duration::from_secs(2), own().await?, own).await?;
    turins
        .patch("liqo", &PatchParams::default(), &turin_as("turin"))
        .await?;
    Ok(())
}
