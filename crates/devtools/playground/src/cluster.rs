//! A handle on a running cluster, with methods to inspect and disturb it.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
    path::PathBuf,
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
    network, nodes, pki, preparation,
    processes::{self, Process},
    spec::ClusterSpec,
    supervisor::{self, ComponentStatus, Request, Response},
};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeInfo {
    pub name: String,
    /// Reachable from this machine and from the nodes of all clusters of the instance.
    pub address: Ipv4Addr,
    /// Only in clusters with both families.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_v6: Option<Ipv6Addr>,
    /// For `nsenter --net=/run/netns/...`.
    pub network_namespace: String,
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

#[derive(Debug, Clone)]
pub struct Cluster {
    pub(crate) instance: Instance,
    pub(crate) layout: ClusterLayout,
}

impl Cluster {
    pub fn name(&self) -> &str {
        &self.layout.name
    }

    /// URL of its API server.
    pub fn api_url(&self) -> String {
        self.layout.api_url()
    }

    /// Address of its first node, which runs the control plane.
    pub fn address(&self) -> Ipv4Addr {
        self.layout.address()
    }

    /// Its real nodes, beginning with the one that runs the control plane.
    pub fn nodes(&self) -> Vec<NodeInfo> {
        self.layout.nodes.iter().map(NodeInfo::from).collect()
    }

    /// A kubeconfig file with all rights. It embeds its certificates, so it can be copied.
    pub fn kubeconfig(&self) -> PathBuf {
        self.layout.kubeconfig()
    }

    /// A directory for the keys of this cluster's gateways. All nodes of a machine share its file
    /// system, and nodes of two playgrounds may have the same name.
    pub fn key_directory(&self) -> PathBuf {
        self.layout.keys()
    }

    /// Certificate and key with which the kubelet of the first node serves, for pods that need any
    /// certificate.
    pub fn serving_certificate(&self) -> [PathBuf; 2] {
        ["crt", "key"].map(|part| {
            self.layout
                .pki(&format!("{}-server.{part}", self.layout.nodes[0].name))
        })
    }

    /// A client with all rights.
    pub async fn client(&self) -> Result<kube::Client> {
        api::client(self.name(), &self.kubeconfig()).await
    }

    /// The log file of a component.
    pub fn log(&self, component: &str) -> PathBuf {
        self.layout.log(component)
    }

    /// One line of JSON for each request that changed something, with who made it.
    pub fn audit_log(&self) -> PathBuf {
        self.layout.audit_log()
    }

    /// Length of the audit log in bytes, to be given to [`Cluster::writes_since`] later.
    pub fn audit_position(&self) -> Result<u64> {
        audit::position(&self.audit_log())
    }

    /// The writes behind a position in the audit log, the oldest first.
    pub fn writes_since(&self, position: u64) -> Result<Vec<Write>> {
        audit::since(&self.audit_log(), position)
    }

    /// The command lines of its components, by name.
    pub fn command_lines(&self) -> BTreeMap<String, Vec<String>> {
        let definitions = preparation::read_definitions(&self.layout).into_iter();
        definitions
            .map(|definition| (definition.component, definition.command))
            .collect()
    }

    /// The processes of all its components and pods.
    pub fn processes(&self) -> Vec<Process> {
        processes::of_cluster(&self.layout)
            .into_iter()
            .filter_map(Process::of)
            .collect()
    }

    /// Loads an image on every real node. Nodes that are added later do not have it.
    pub async fn load_image(&self, spec: &ImageSpec) -> Result<()> {
        self.load_archive(&image::build_image(spec).await?).await
    }

    pub(crate) async fn load_archive(&self, archive: &image::ImageArchive) -> Result<()> {
        try_join_all(
            self.layout
                .nodes
                .iter()
                .map(|node| image::import(node, archive)),
        )
        .await
        .map(drop)
    }

    /// The specification of the last `up`, with the current number of fake nodes.
    pub fn spec(&self) -> Result<ClusterSpec> {
        let missing = || Error::NoSuchCluster {
            instance: self.instance.name.clone(),
            name: self.name().to_owned(),
        };
        let state = self.instance.read_state()?.ok_or_else(missing)?;
        state
            .clusters
            .into_iter()
            .map(|cluster| cluster.spec)
            .find(|spec| spec.name == self.name())
            .ok_or_else(missing)
    }

    /// Ends everything on a real node at once, as if its machine had lost its power. Its link goes
    /// down first, so nobody is told. It stays so until [`Cluster::start_node`] or the next `up`.
    /// With the first node the control plane goes, too.
    pub async fn stop_node(&self, node: &str) -> Result<()> {
        nodes::power_off(&self.instance, &self.layout, self.layout.node(node)?).await
    }

    /// Starts a node that was stopped, and returns when its programs run; it becomes ready soon
    /// after.
    pub async fn start_node(&self, node: &str) -> Result<()> {
        nodes::power_on(&self.instance, &self.layout, self.layout.node(node)?).await
    }

    /// Adds fake nodes, or removes the last ones with the pods on them, until there are `count`;
    /// returns when all are ready. The cluster must have been brought up with at least one: then
    /// kwok runs already, and no program restarts.
    pub async fn scale_fake_nodes(&self, count: u16) -> Result<()> {
        let _lock = InstanceLock::take(&self.instance).await?;
        let has_kwok = self
            .components()
            .await?
            .iter()
            .any(|status| status.component == KWOK);
        let mut spec = self.spec()?;
        if !has_kwok {
            return Err(Error::NoFakeNodes {
                cluster: self.name().to_owned(),
            });
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
        let ready = || async {
            fake_nodes::are_ready(self.name(), &client, count)
                .await
                .then_some(())
        };
        nodes::wait(
            &self.instance,
            &self.layout,
            "fake nodes",
            180 + u64::from(count) / 20,
            ready,
        )
        .await
    }

    /// The names of the fake nodes that it should have.
    pub fn fake_nodes(&self) -> Result<Vec<String>> {
        Ok((1..=self.spec()?.fake_nodes.count)
            .map(|number| fake_nodes::name(self.name(), number))
            .collect())
    }

    /// Sets a label of a fake node; without a value, removes it.
    pub async fn label_fake_node(&self, node: &str, key: &str, value: Option<&str>) -> Result<()> {
        fake_nodes::label(self.name(), &self.client().await?, node, key, value).await
    }

    /// Sets capacity and allocatable of a fake node until the next `up`. Resources that are not
    /// named are removed.
    pub async fn set_fake_node_resources(
        &self,
        node: &str,
        resources: &ResourceList,
    ) -> Result<()> {
        fake_nodes::set_resources(self.name(), &self.client().await?, node, resources).await
    }

    /// The states of its components.
    pub async fn components(&self) -> Result<Vec<ComponentStatus>> {
        match supervisor::ask(&self.instance, &Request::Status).await? {
            Response::Status { components, .. } => Ok(components
                .into_iter()
                .filter(|component| component.cluster == self.name())
                .collect()),
            _ => Ok(Vec::new()),
        }
    }

    /// Stops a component with SIGTERM; it stays stopped until [`Cluster::start`].
    pub async fn stop(&self, component: &str) -> Result<()> {
        let request = Request::Stop {
            cluster: self.name().to_owned(),
            component: component.to_owned(),
        };
        supervisor::ask(&self.instance, &request).await.map(drop)
    }

    /// Starts a component that was stopped, and returns when it runs.
    pub async fn start(&self, component: &str) -> Result<()> {
        let request = Request::Start {
            cluster: self.name().to_owned(),
            component: component.to_owned(),
        };
        supervisor::ask(&self.instance, &request).await.map(drop)
    }

    /// Kills a component with SIGKILL; the supervisor starts it again after a moment.
    pub async fn kill(&self, component: &str) -> Result<()> {
        let running = self
            .components()
            .await?
            .into_iter()
            .find(|status| status.component == component)
            .and_then(|status| status.pid);
        let Some(pid) = running else {
            let reason = format!("{component} of cluster {} does not run", self.name());
            return Err(Error::Refused {
                instance: self.instance.name.clone(),
                reason,
            });
        };
        processes::signal(pid, Signal::KILL);
        Ok(())
    }

    /// Gives the API server a certificate of its second CA, or of the first one again. If that
    /// changes something, kills it; the supervisor starts it again. The cluster's own programs
    /// verify both certificates, pods do after [`Cluster::publish_cas`].
    pub async fn use_next_ca(&self, next: bool) -> Result<()> {
        if pki::uses_next_ca(&self.layout)? == next {
            return Ok(());
        }
        pki::certify_api_server(&self.layout, next)?;
        self.kill("kube-apiserver").await
    }

    /// Publishes the CA certificates in the `ConfigMap` `kube-root-ca.crt` of all namespaces: those
    /// of both CAs, or of the first one. Restarts the kube-controller-manager for that.
    pub async fn publish_cas(&self, both: bool) -> Result<()> {
        pki::publish(&self.layout, both)?;
        self.kill("kube-controller-manager").await
    }

    /// Stops the execution of the whole cluster, pods included, as if its machines were suspended.
    pub fn freeze(&self) {
        processes::signal_cluster(&self.layout, Signal::STOP);
    }

    /// Resumes a frozen cluster.
    pub fn thaw(&self) {
        processes::signal_cluster(&self.layout, Signal::CONT);
    }

    /// Cuts all nodes off from the other clusters, from this machine and from each other; pods on
    /// one node still reach each other.
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
}
