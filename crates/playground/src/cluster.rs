//! A handle on one running cluster: where it is, and ways to disturb it.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
};

use futures::future::try_join_all;
use liqo_quantity::ResourceList;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::{
    api,
    audit::{self, Write},
    components::KWOK,
    error::{Error, Result},
    fake_nodes,
    image::{self, ImageSpec},
    layout::{ClusterLayout, Instance, NodeLayout},
    lock::InstanceLock,
    network, nodes, processes,
    spec::ClusterSpec,
    supervisor::{self, ComponentStatus, Request, Response},
};

/// One node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeInfo {
    /// Its name in the cluster.
    pub name: String,
    /// Its address, reachable from this machine and from the nodes of all clusters of the instance.
    pub address: Ipv4Addr,
    /// The same of IPv6, where the cluster has both families.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_v6: Option<Ipv6Addr>,
    /// Its network namespace, for `nsenter --net=/run/netns/...`.
    pub network_namespace: String,
    /// The socket of its containerd.
    pub containerd_socket: PathBuf,
}

impl From<&NodeLayout> for NodeInfo {
    fn from(node: &NodeLayout) -> Self {
        Self {
            name: node.name.clone(),
            address: node.address,
            address_v6: node.address_v6,
            network_namespace: node.namespace.clone(),
            containerd_socket: node.containerd_socket(),
        }
    }
}

/// A cluster of a playground.
#[derive(Debug, Clone)]
pub struct Cluster {
    pub(crate) instance: Instance,
    pub(crate) layout: ClusterLayout,
}

impl Cluster {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.layout.name
    }

    /// Where its API server is.
    pub fn api_url(&self) -> String {
        self.layout.api_url()
    }

    /// The address of its first node, where the control plane is.
    pub fn address(&self) -> Ipv4Addr {
        self.layout.address()
    }

    /// All its nodes, the first one first.
    pub fn nodes(&self) -> Vec<NodeInfo> {
        self.layout.nodes.iter().map(NodeInfo::from).collect()
    }

    /// A kubeconfig file with all rights; it names no other file.
    pub fn kubeconfig(&self) -> PathBuf {
        self.layout.kubeconfig()
    }

    /// The cluster's certificate authority, as PEM.
    pub fn ca_pem(&self) -> Result<String> {
        let path = self.layout.pki("ca.crt");
        std::fs::read_to_string(&path).map_err(Error::file("read", &path))
    }

    /// A client with all rights.
    pub async fn client(&self) -> Result<kube::Client> {
        api::client(self.name(), &self.kubeconfig()).await
    }

    /// What a component wrote.
    pub fn log(&self, component: &str) -> PathBuf {
        self.layout.log(component)
    }

    /// One line of JSON for each request that changed something, with who made it.
    pub fn audit_log(&self) -> PathBuf {
        self.layout.audit_log()
    }

    /// All requests so far that were to change something, the oldest first.
    pub fn writes(&self) -> Result<Vec<Write>> {
        let path = self.audit_log();
        let text = std::fs::read_to_string(&path).map_err(Error::file("read", &path))?;
        Ok(audit::parse(&text))
    }

    /// Puts an image on every real node. Nodes that are added later do not have it.
    pub async fn load_image(&self, spec: &ImageSpec) -> Result<()> {
        let archive = image::archive(spec).await?;
        try_join_all(self.layout.nodes.iter().map(|node| image::import(node, &archive))).await.map(drop)
    }

    /// What it was last brought up as, with the number of fake nodes that it was given since.
    pub fn spec(&self) -> Result<ClusterSpec> {
        let missing = || Error::NoSuchCluster { instance: self.instance.name.clone(), name: self.name().to_owned() };
        let state = self.instance.read_state()?.ok_or_else(missing)?;
        state.clusters.into_iter().map(|cluster| cluster.spec).find(|spec| spec.name == self.name()).ok_or_else(missing)
    }

    /// Ends everything on a real node at once, as if its machine had lost its power: first its link, so that nobody hears of it. It stays so until
    /// [`Cluster::start_node`] or the next `up`. With the first node the control plane goes, too.
    pub async fn stop_node(&self, node: &str) -> Result<()> {
        nodes::power_off(&self.instance, &self.layout, self.layout.node(node)?).await
    }

    /// Starts a node that was stopped, and returns when its programs run; it becomes ready soon after.
    pub async fn start_node(&self, node: &str) -> Result<()> {
        nodes::power_on(&self.instance, &self.layout, self.layout.node(node)?).await
    }

    /// Adds fake nodes, or removes the last ones with the pods on them, until there are so many; returns when all are ready. The cluster must have
    /// been brought up with at least one: then kwok runs, and none of the programs is started anew.
    pub async fn scale_fake_nodes(&self, count: u16) -> Result<()> {
        let _lock = InstanceLock::take(&self.instance).await?;
        let answered_for = self.components().await?.iter().any(|status| status.component == KWOK);
        let mut spec = self.spec()?;
        if !answered_for {
            return Err(Error::NoFakeNodes { cluster: self.name().to_owned() });
        }
        spec.fake_nodes.count = count;
        let client = self.client().await?;
        fake_nodes::ensure(self.name(), &client, &spec.fake_nodes).await?;
        if let Some(mut state) = self.instance.read_state()? {
            state
                .clusters
                .iter_mut()
                .filter(|cluster| cluster.spec.name == spec.name)
                .for_each(|cluster| cluster.spec = spec.clone());
            self.instance.write_state(&state)?;
        }
        let ready = || async { fake_nodes::are_ready(self.name(), &client, count).await.then_some(()) };
        nodes::wait(&self.instance, &self.layout, "fake nodes", 60 + u64::from(count) / 20, ready).await
    }

    /// The names of its fake nodes, as they would be with the number that it was last given.
    pub fn fake_nodes(&self) -> Result<Vec<String>> {
        Ok((1..=self.spec()?.fake_nodes.count).map(|number| fake_nodes::name(self.name(), number)).collect())
    }

    /// Sets a label of a fake node; without a value, removes it.
    pub async fn label_fake_node(&self, node: &str, key: &str, value: Option<&str>) -> Result<()> {
        fake_nodes::label(self.name(), &self.client().await?, node, key, value).await
    }

    /// Sets what a fake node has, capacity and allocatable alike, until the next `up`. What is not named, it has no longer.
    pub async fn set_fake_node_resources(&self, node: &str, resources: &ResourceList) -> Result<()> {
        fake_nodes::set_resources(self.name(), &self.client().await?, node, resources).await
    }

    /// What the components are doing.
    pub async fn components(&self) -> Result<Vec<ComponentStatus>> {
        match supervisor::ask(&self.instance, &Request::Status).await? {
            Response::Status { components, .. } => {
                Ok(components.into_iter().filter(|component| component.cluster == self.name()).collect())
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Stops a component in good order; it stays stopped until [`Cluster::start`].
    pub async fn stop(&self, component: &str) -> Result<()> {
        let request = Request::Stop { cluster: self.name().to_owned(), component: component.to_owned() };
        supervisor::ask(&self.instance, &request).await.map(drop)
    }

    /// Starts a component that was stopped, and returns when it runs.
    pub async fn start(&self, component: &str) -> Result<()> {
        let request = Request::Start { cluster: self.name().to_owned(), component: component.to_owned() };
        supervisor::ask(&self.instance, &request).await.map(drop)
    }

    /// Kills a component with SIGKILL; it is started again after a moment.
    pub async fn kill(&self, component: &str) -> Result<()> {
        self.signal(component, Signal::KILL).await
    }

    /// Stops a component's execution: its connections stay open and nothing answers.
    pub async fn pause(&self, component: &str) -> Result<()> {
        self.signal(component, Signal::STOP).await
    }

    /// Lets a paused component go on.
    pub async fn resume(&self, component: &str) -> Result<()> {
        self.signal(component, Signal::CONT).await
    }

    async fn signal(&self, component: &str, signal: Signal) -> Result<()> {
        let running =
            self.components().await?.into_iter().find(|status| status.component == component).and_then(|status| status.pid);
        let Some(pid) = running else {
            let reason = format!("{component} of cluster {} does not run", self.name());
            return Err(Error::Refused { instance: self.instance.name.clone(), reason });
        };
        processes::signal(pid, signal);
        Ok(())
    }

    /// Stops the execution of the whole cluster, pods included, as if its machines were suspended.
    pub fn freeze(&self) {
        processes::signal_cluster(&self.layout, Signal::STOP);
    }

    /// Lets a frozen cluster go on.
    pub fn thaw(&self) {
        processes::signal_cluster(&self.layout, Signal::CONT);
    }

    /// Cuts all nodes off from the other clusters, from this machine and from each other; pods on one node still reach each other.
    pub async fn partition(&self) -> Result<()> {
        self.set_links(false).await
    }

    /// Ends a partition.
    pub async fn heal(&self) -> Result<()> {
        self.set_links(true).await
    }

    async fn set_links(&self, up: bool) -> Result<()> {
        for node in &self.layout.nodes {
            network::set_link(node, up).await?;
        }
        Ok(())
    }

    /// The directory with everything of this cluster.
    pub fn directory(&self) -> &Path {
        &self.layout.dir
    }
}
