//! Brings nodes up in a running cluster, connects them, and removes them.

use std::{future::Future, time::Duration};

use futures::future::{try_join, try_join_all};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Node};
use kube::{Api, Client, api::ListParams};

use crate::{
    api,
    configuration::{self, HostFacts},
    error::{Error, Result},
    fake_nodes,
    files::write_json,
    image::{self, ImageArchive},
    layout::{ClusterLayout, Instance, NodeLayout},
    network, objects, preparation, processes,
    progress::Progress,
    supervisor::{self, Request, Response},
    teardown,
    wait::poll,
};

/// The nodes of a cluster that is coming up.
pub(crate) struct Nodes<'a> {
    pub instance: &'a Instance,
    pub cluster: &'a ClusterLayout,
    pub client: &'a Client,
    pub progress: &'a dyn Progress,
}

impl Nodes<'_> {
    /// Brings up all nodes, and the name server on each real one.
    pub async fn bring_up(&self, facts: &HostFacts, images: &[ImageArchive]) -> Result<()> {
        self.bring_up_real_ones(facts, images).await?;
        // Real nodes come first: the scheduler would try the name server on each new fake node in
        // vain, with growing back-off.
        try_join(self.bring_up_fake_ones(), self.name_server())
            .await
            .map(drop)
    }

    async fn bring_up_real_ones(&self, facts: &HostFacts, images: &[ImageArchive]) -> Result<()> {
        let name = &self.cluster.name;
        let images_step = format!("{name}: images");
        self.progress.started(&images_step);
        // Images must be there before the node is ready: the kubelet retries a pod with a missing
        // image only after a long back-off.
        try_join_all(
            self.cluster
                .nodes
                .iter()
                .map(|node| self.load_base_images(node, images)),
        )
        .await?;
        self.progress.finished(&images_step);

        let nodes_step = format!("{name}: nodes");
        self.progress.started(&nodes_step);
        let ranges = objects::ensure_nodes(self.cluster, self.client).await?;
        let with_ranges = || self.cluster.nodes.iter().zip(&ranges);
        self.connect(&ranges).await?;
        try_join_all(with_ranges().map(|(node, ranges)| self.bring_up_one(node, ranges, facts)))
            .await?;
        self.progress.finished(&nodes_step);
        Ok(())
    }

    async fn name_server(&self) -> Result<()> {
        let name = &self.cluster.name;
        let name_server = format!("{name}: name server");
        self.progress.started(&name_server);
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), "kube-system");
        let complete = |deployment: Deployment, nodes: usize| {
            is_on_every_node(&deployment, nodes).then_some(())
        };
        let nodes = self.cluster.nodes.len();
        self.wait("name server", 120, || async {
            complete(deployments.get("coredns").await.ok()?, nodes)
        })
        .await?;
        if self.cluster.spec.metrics {
            self.wait("metrics server", 120, || async {
                complete(deployments.get("metrics-server").await.ok()?, 1)
            })
            .await?;
        }
        self.progress.finished(&name_server);
        Ok(())
    }

    async fn load_base_images(&self, node: &NodeLayout, images: &[ImageArchive]) -> Result<()> {
        let connected = || async {
            tokio::net::UnixStream::connect(node.containerd_socket())
                .await
                .ok()
        };
        self.wait("containerd", 120, connected).await?;
        for archive in images {
            image::import(node, archive).await?;
        }
        Ok(())
    }

    async fn bring_up_one(
        &self,
        node: &NodeLayout,
        pod_ranges: &[String],
        facts: &HostFacts,
    ) -> Result<()> {
        write_json(
            &node.cni_file(),
            &configuration::cni(node, pod_ranges, facts),
        )?;
        let nodes: Api<Node> = Api::all(self.client.clone());
        let ready = || async {
            nodes
                .get(&node.name)
                .await
                .ok()
                .filter(fake_nodes::is_ready)
        };
        self.wait("node", 120, ready).await?;
        if self.cluster.spec.network_policies {
            self.wait("network policies", 180, || network::enforces_policies(node))
                .await?;
        }
        Ok(())
    }

    /// Adds routes on each node to the pods of the other nodes.
    async fn connect(&self, ranges: &[Vec<String>]) -> Result<()> {
        let of_node = |(node, ranges): (&NodeLayout, &Vec<String>)| {
            ranges.clone().into_iter().zip(node.addresses())
        };
        let all: Vec<_> = self
            .cluster
            .nodes
            .iter()
            .zip(ranges)
            .flat_map(of_node)
            .collect();
        for node in &self.cluster.nodes {
            let own = node.addresses();
            let others: Vec<_> = all
                .iter()
                .filter(|(_, address)| !own.contains(address))
                .cloned()
                .collect();
            if !others.is_empty() {
                network::route_pods(node, &others).await?;
            }
        }
        Ok(())
    }

    /// Creates, changes and removes fake nodes as wanted, and waits until kwok has made them ready.
    async fn bring_up_fake_ones(&self) -> Result<()> {
        let (name, wanted) = (&self.cluster.name, &self.cluster.spec.fake_nodes);
        if wanted.count == 0 {
            return fake_nodes::ensure(name, self.client, wanted).await;
        }
        let step = format!("{name}: {} fake nodes", wanted.count);
        self.progress.started(&step);
        for node in &self.cluster.nodes {
            network::refuse(
                node,
                &[
                    fake_nodes::FAKE_NODE_RANGE,
                    &self.cluster.spec.fake_pod_range(),
                ],
            )
            .await?;
        }
        objects::apply_kwok(self.cluster, self.client).await?;
        fake_nodes::ensure(name, self.client, wanted).await?;
        let ready = || async {
            fake_nodes::are_ready(name, self.client, wanted.count)
                .await
                .then_some(())
        };
        self.wait("fake nodes", 180 + u64::from(wanted.count) / 20, ready)
            .await?;
        self.progress.finished(&step);
        Ok(())
    }

    async fn wait<T, F: Future<Output = Option<T>>>(
        &self,
        what: &str,
        seconds: u64,
        attempt: impl Fn() -> F,
    ) -> Result<T> {
        wait(self.instance, self.cluster, what, seconds, attempt).await
    }
}

/// Removes real nodes from a cluster: their pods first, if the cluster answers, then their programs
/// and everything they have on this machine. The next `up` removes their Node objects.
pub(crate) async fn take_away(
    instance: &Instance,
    cluster: &ClusterLayout,
    surplus: &[NodeLayout],
    progress: &dyn Progress,
) -> Result<()> {
    let step = format!("{}: taking away {}", cluster.name, names(surplus));
    progress.started(&step);
    let client = api::client(&cluster.name, &cluster.kubeconfig()).await.ok();
    if let Some(client) = client
        && api::is_ready(&client).await
    {
        try_join_all(
            surplus
                .iter()
                .map(|node| objects::drain(cluster, &client, node)),
        )
        .await?;
    }
    preparation::retire(cluster, surplus)?;
    // Without a supervisor nothing runs.
    let _ = supervisor::ask(instance, &Request::Reload).await;
    for node in surplus {
        teardown::remove_node(cluster, node).await?;
        for other in cluster
            .nodes
            .iter()
            .filter(|other| !surplus.contains(other))
        {
            if network::is_there(other).await? {
                for address in node.addresses() {
                    network::forget_node(other, address).await?;
                }
            }
        }
    }
    progress.finished(&step);
    Ok(())
}

fn names(nodes: &[NodeLayout]) -> String {
    nodes
        .iter()
        .map(|node| node.name.as_str())
        .collect::<Vec<_>>()
        .join(", ")
}

fn is_on_every_node(deployment: &Deployment, nodes: usize) -> bool {
    let Some(status) = &deployment.status else {
        return false;
    };
    let count = |count: Option<i32>| {
        count
            .and_then(|count| usize::try_from(count).ok())
            .unwrap_or_default()
    };
    status.observed_generation >= deployment.metadata.generation
        && count(status.available_replicas) >= nodes
}

/// The nodes of a cluster; nothing if it does not answer within seconds.
pub(crate) async fn list(client: &Client) -> Option<Vec<Node>> {
    let nodes: Api<Node> = Api::all(client.clone());
    let parameters = ListParams::default().match_any();
    let listed = tokio::time::timeout(Duration::from_secs(10), nodes.list(&parameters)).await;
    listed.ok()?.ok().map(|nodes| nodes.items)
}

/// Waits for a part of a cluster. On failure the error names the programs that restarted.
pub(crate) async fn wait<T, F: Future<Output = Option<T>>>(
    instance: &Instance,
    cluster: &ClusterLayout,
    what: &str,
    seconds: u64,
    attempt: impl Fn() -> F,
) -> Result<T> {
    if let Some(found) = poll(Duration::from_secs(seconds), attempt).await {
        return Ok(found);
    }
    let mut hint = format!("look at {}", cluster.dir.join("logs").display());
    if let Ok(Response::Status { components, .. }) =
        supervisor::ask(instance, &Request::Status).await
    {
        let unwell = components
            .into_iter()
            .filter(|status| status.cluster == cluster.name && status.restarts > 0);
        for status in unwell {
            let exit = status.last_exit.unwrap_or_default();
            hint = format!(
                "{hint}; {} is {:?}, restarted {} times, {exit}",
                status.component, status.state, status.restarts
            );
        }
    }
    Err(Error::NotReady {
        what: what.to_owned(),
        cluster: cluster.name.clone(),
        seconds,
        hint,
    })
}

/// Ends everything that runs on a node, as if its machine had lost its power: nobody is told.
pub(crate) async fn power_off(
    instance: &Instance,
    cluster: &ClusterLayout,
    node: &NodeLayout,
) -> Result<()> {
    network::set_link(node, false).await?;
    let stop = |component: &String| Request::Stop {
        cluster: cluster.name.clone(),
        component: component.clone(),
    };
    ask_for_all(instance, cluster, node, stop).await?;
    processes::kill_all(&cluster.instance, || processes::of_node(cluster, node)).await
}

/// Starts a node again.
pub(crate) async fn power_on(
    instance: &Instance,
    cluster: &ClusterLayout,
    node: &NodeLayout,
) -> Result<()> {
    network::set_link(node, true).await?;
    let start = |component: &String| Request::Start {
        cluster: cluster.name.clone(),
        component: component.clone(),
    };
    ask_for_all(instance, cluster, node, start).await
}

/// All at once: some components wait for others.
async fn ask_for_all(
    instance: &Instance,
    cluster: &ClusterLayout,
    node: &NodeLayout,
    request: impl Fn(&String) -> Request,
) -> Result<()> {
    let definitions = preparation::read_definitions(cluster);
    let here = definitions
        .iter()
        .map(|definition| &definition.component)
        .filter(|component| node.runs(component));
    let requests: Vec<_> = here.map(request).collect();
    try_join_all(
        requests
            .iter()
            .map(|request| supervisor::ask(instance, request)),
    )
    .await
    .map(drop)
}
