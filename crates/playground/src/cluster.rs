//! A handle on one running cluster: where it is, and ways to disturb it.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::{
    api,
    audit::{self, Write},
    error::{Error, Result},
    image::{self, ImageSpec},
    layout::{ClusterLayout, Instance, NodeLayout},
    network, processes,
    supervisor::{self, ComponentStatus, Request, Response},
};

/// One node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its name in the cluster.
    pub name: String,
    /// Its address, reachable from this machine and from the nodes of all clusters of the instance.
    pub address: Ipv4Addr,
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

    /// Puts an image on every node.
    pub async fn load_image(&self, spec: &ImageSpec) -> Result<()> {
        let archive = image::archive(spec).await?;
        for node in &self.layout.nodes {
            image::import(node, &archive).await?;
        }
        Ok(())
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
