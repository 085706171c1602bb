//! Brings the clusters of one instance up, says how they are, takes them down.

use std::{
    fs,
    future::Future,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use futures::future::{try_join, try_join_all};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Namespace, Node},
};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};

use crate::{
    api, binaries, cgroups,
    cluster::{Cluster, NodeInfo},
    components::{self, Definition, Programs},
    configuration::{self, HostFacts},
    error::{Error, Result},
    image::{self, Archive},
    layout::{ClusterLayout, ClusterSpec, Instance, InstanceState, NodeLayout},
    lock::InstanceLock,
    network, objects, pki, processes,
    progress::Progress,
    requirements::{self, Requirements},
    supervisor::{self, ComponentState, ComponentStatus, Request, Response},
    teardown,
};

/// Who keeps the programs running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Supervision {
    /// A thread of this process: the clusters' programs end with it, and the next `up` or `down` removes what they leave.
    ThisProcess,
    /// A process of its own that outlives this one, made from this program; it must act on [`crate::supervised_instance`].
    Detached(PathBuf),
}

/// How a playground is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub instance: String,
    /// The process that keeps the programs running, if there is one.
    pub supervisor: Option<i32>,
    /// Its clusters.
    pub clusters: Vec<ClusterStatus>,
}

/// How a cluster is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// Its name.
    pub name: String,
    /// Where its API server is.
    pub api_url: String,
    /// A file with all rights.
    pub kubeconfig: PathBuf,
    /// Whether its API server says that it is ready.
    pub ready: bool,
    /// Its nodes, the first one first.
    pub nodes: Vec<NodeInfo>,
    /// Its programs.
    pub components: Vec<ComponentStatus>,
}

/// Some clusters on one network.
#[derive(Debug, Clone)]
pub struct Playground {
    instance: Instance,
    supervision: Supervision,
}

impl Playground {
    /// A playground by its name: 1 to 8 lower-case letters and digits. Nothing happens yet.
    pub fn open(instance: &str) -> Result<Self> {
        Ok(Self { instance: Instance::new(instance)?, supervision: Supervision::ThisProcess })
    }

    /// The same playground with another supervision.
    #[must_use]
    pub fn supervised_by(self, supervision: Supervision) -> Self {
        Self { supervision, ..self }
    }

    /// Brings up the clusters that are not up, repairs those that are damaged, and returns handles on all that were asked for. Other clusters
    /// of the instance stay.
    pub async fn up(&self, specs: &[ClusterSpec], progress: &dyn Progress) -> Result<Vec<Cluster>> {
        let requirements = Requirements::check().await?;
        requirements.install(progress).await?;
        let containerd = binaries::search("containerd", &binaries::search_path());
        let containerd = containerd.ok_or_else(|| Error::MissingPrograms { programs: "containerd".to_owned() })?;
        let programs = binaries::provide(containerd, progress).await?;
        let root = &self.instance.root;
        fs::create_dir_all(root).map_err(Error::file("create", root))?;
        let _lock = InstanceLock::take(&self.instance).await?;
        fs::create_dir_all(root).map_err(Error::file("create", root))?;
        let state = self.want(specs).await?;
        let facts = requirements::host_facts(root)?;
        requirements::ensure_inotify_instances();
        let layouts: Vec<_> = state.clusters.iter().map(|cluster| self.instance.layout(state.subnet, cluster)).collect();

        progress.started("network");
        network::ensure_bridge(&self.instance, state.subnet).await?;
        for cluster in &layouts {
            for node in &cluster.nodes {
                if network::ensure_node(cluster, node).await? {
                    // Pods of an earlier namespace hang on its network; the kubelet makes new ones.
                    processes::kill_pods(node);
                }
                cgroups::ensure(&node.cgroup)?;
            }
            prepare(cluster, &programs, &facts)?;
        }
        progress.finished("network");

        self.ensure_supervisor().await?;
        let control_planes = try_join_all(layouts.iter().map(|cluster| self.bring_up_control_plane(cluster, progress)));
        let (clients, images) = try_join(control_planes, image::base_images(&programs.coredns)).await?;
        let nodes =
            layouts.iter().zip(&clients).map(|(cluster, client)| self.bring_up_nodes(cluster, client, &facts, &images, progress));
        try_join_all(nodes).await?;
        specs.iter().map(|spec| self.cluster(&spec.name)).collect()
    }

    /// Ends everything and removes everything but the cached programs. Works after any crash, and when nothing is there.
    pub async fn down(&self) -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::NotRoot);
        }
        let lock = InstanceLock::take(&self.instance).await?;
        // One that does not answer is killed with everything else.
        let _ = supervisor::ask(&self.instance, &Request::Shutdown).await;
        teardown::remove(&self.instance).await?;
        lock.remove();
        Ok(())
    }

    /// A handle on a cluster that is up.
    pub fn cluster(&self, name: &str) -> Result<Cluster> {
        let missing = || Error::NoSuchCluster { instance: self.instance.name.clone(), name: name.to_owned() };
        let state = self.read_state()?.ok_or_else(missing)?;
        let cluster = state.clusters.iter().find(|cluster| cluster.spec.name == name).ok_or_else(missing)?;
        Ok(Cluster { instance: self.instance.clone(), layout: self.instance.layout(state.subnet, cluster) })
    }

    /// Handles on all clusters.
    pub fn clusters(&self) -> Result<Vec<Cluster>> {
        let Some(state) = self.read_state()? else { return Ok(Vec::new()) };
        let handle = |cluster| Cluster { instance: self.instance.clone(), layout: self.instance.layout(state.subnet, cluster) };
        Ok(state.clusters.iter().map(handle).collect())
    }

    /// A kubeconfig file with all rights for a cluster.
    pub fn kubeconfig(&self, cluster: &str) -> Result<PathBuf> {
        Ok(self.cluster(cluster)?.kubeconfig())
    }

    /// Where a component writes to.
    pub fn logs(&self, cluster: &str, component: &str) -> Result<PathBuf> {
        Ok(self.cluster(cluster)?.log(component))
    }

    /// Puts an image on every node of a cluster.
    pub async fn load_image(&self, cluster: &str, spec: &image::ImageSpec) -> Result<()> {
        self.cluster(cluster)?.load_image(spec).await
    }

    /// How everything is, also when it is not well.
    pub async fn status(&self) -> Result<Status> {
        let (supervisor, components) = match supervisor::ask(&self.instance, &Request::Status).await {
            Ok(Response::Status { supervisor, components }) => (Some(supervisor), components),
            _ => (None, Vec::new()),
        };
        let mut clusters = Vec::new();
        for cluster in self.clusters()? {
            let layout = &cluster.layout;
            let ready = match cluster.client().await {
                Ok(client) => api::is_ready(&client).await,
                Err(_) => false,
            };
            let of_cluster = |definition: Definition| {
                let known = components
                    .iter()
                    .find(|status| (&status.cluster, &status.component) == (&definition.cluster, &definition.component));
                known.cloned().unwrap_or_else(|| ComponentStatus::new(&definition, ComponentState::Unsupervised))
            };
            clusters.push(ClusterStatus {
                name: layout.name.clone(),
                api_url: layout.api_url(),
                kubeconfig: layout.kubeconfig(),
                ready,
                nodes: cluster.nodes(),
                components: read_definitions(layout).into_iter().map(of_cluster).collect(),
            });
        }
        Ok(Status { instance: self.instance.name.clone(), supervisor, clusters })
    }

    fn read_state(&self) -> Result<Option<InstanceState>> {
        let path = self.instance.state_file();
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read(&path).map_err(Error::file("read", &path))?;
        serde_json::from_slice(&text).map(Some).map_err(|error| Error::Damaged { path, reason: error.to_string() })
    }

    async fn want(&self, specs: &[ClusterSpec]) -> Result<InstanceState> {
        let mut state = match self.read_state()? {
            Some(state) => state,
            None => InstanceState { subnet: network::choose_subnet(&self.instance).await?, clusters: Vec::new() },
        };
        state.want(&self.instance.name, specs)?;
        write_json(&self.instance.state_file(), &serde_json::to_value(&state).unwrap_or_default())?;
        Ok(state)
    }

    async fn ensure_supervisor(&self) -> Result<()> {
        if supervisor::ask(&self.instance, &Request::Reload).await.is_ok() {
            return Ok(());
        }
        // One that does not answer, or does not understand, would disturb its successor. Its programs end with it.
        processes::kill_supervisor(&self.instance);
        match &self.supervision {
            Supervision::ThisProcess => drop(supervisor::start_thread(&self.instance)?),
            Supervision::Detached(program) => supervisor::start_detached(&self.instance, program)?,
        }
        let answers = || async { supervisor::ask(&self.instance, &Request::Status).await.ok() };
        if poll(Duration::from_secs(10), answers).await.is_none() {
            let reason = format!("see {}", self.instance.supervisor_log().display());
            return Err(Error::NoSupervisor { instance: self.instance.name.clone(), reason });
        }
        Ok(())
    }

    async fn bring_up_control_plane(&self, cluster: &ClusterLayout, progress: &dyn Progress) -> Result<Client> {
        let step = format!("{}: control plane", cluster.name);
        progress.started(&step);
        let client = api::client(&cluster.name, &cluster.kubeconfig()).await?;
        self.wait("API server", cluster, 120, || async { api::is_ready(&client).await.then_some(()) }).await?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        self.wait("namespace kube-public", cluster, 30, || async { namespaces.get_opt("kube-public").await.ok().flatten() })
            .await?;
        objects::apply(cluster, &client, &read(&cluster.pki("ca.crt"))?).await?;
        progress.finished(&step);
        Ok(client)
    }

    async fn bring_up_nodes(
        &self,
        cluster: &ClusterLayout,
        client: &Client,
        facts: &HostFacts,
        images: &[Archive],
        progress: &dyn Progress,
    ) -> Result<()> {
        let images_step = format!("{}: images", cluster.name);
        progress.started(&images_step);
        // Before the node is ready: a pod whose image is missing waits long for its next try.
        try_join_all(cluster.nodes.iter().map(|node| self.load_base_images(cluster, node, images))).await?;
        progress.finished(&images_step);

        let nodes = format!("{}: nodes", cluster.name);
        progress.started(&nodes);
        try_join_all(cluster.nodes.iter().map(|node| self.bring_up_node(cluster, node, client, facts))).await?;
        self.connect_nodes(cluster, client).await?;
        progress.finished(&nodes);

        let name_server = format!("{}: name server", cluster.name);
        progress.started(&name_server);
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), "kube-system");
        let available =
            |deployment: Deployment| deployment.status.and_then(|status| status.available_replicas).filter(|count| *count > 0);
        self.wait("name server", cluster, 120, || async { deployments.get("coredns").await.ok().and_then(available) }).await?;
        progress.finished(&name_server);
        Ok(())
    }

    async fn load_base_images(&self, cluster: &ClusterLayout, node: &NodeLayout, images: &[Archive]) -> Result<()> {
        let connected = || async { tokio::net::UnixStream::connect(node.containerd_socket()).await.ok() };
        self.wait("containerd", cluster, 30, connected).await?;
        for archive in images {
            image::import(node, archive).await?;
        }
        Ok(())
    }

    async fn bring_up_node(&self, cluster: &ClusterLayout, node: &NodeLayout, client: &Client, facts: &HostFacts) -> Result<()> {
        objects::ensure_node(cluster, client, node).await?;
        let nodes: Api<Node> = Api::all(client.clone());
        let pod_range = self.wait("node with a pod range", cluster, 60, || pod_range(&nodes, node)).await?;
        write_json(&node.cni_file(), &configuration::cni(node, &pod_range, facts))?;
        self.wait("node", cluster, 120, || async { nodes.get(&node.name).await.ok().filter(is_node_ready) }).await?;
        Ok(())
    }

    async fn connect_nodes(&self, cluster: &ClusterLayout, client: &Client) -> Result<()> {
        let nodes: Api<Node> = Api::all(client.clone());
        for to in &cluster.nodes {
            let range = self.wait("node with a pod range", cluster, 10, || pod_range(&nodes, to)).await?;
            for from in cluster.nodes.iter().filter(|from| from.name != to.name) {
                network::route_pods(from, &range, to).await?;
            }
        }
        Ok(())
    }

    /// Waits for something of a cluster, and says on failure which of its programs are not well.
    async fn wait<T, F: Future<Output = Option<T>>>(
        &self,
        what: &str,
        cluster: &ClusterLayout,
        seconds: u64,
        attempt: impl Fn() -> F,
    ) -> Result<T> {
        if let Some(found) = poll(Duration::from_secs(seconds), attempt).await {
            return Ok(found);
        }
        let mut hint = format!("look at {}", cluster.dir.join("logs").display());
        if let Ok(Response::Status { components, .. }) = supervisor::ask(&self.instance, &Request::Status).await {
            let unwell = components.into_iter().filter(|status| status.cluster == cluster.name && status.restarts > 0);
            for status in unwell {
                let exit = status.last_exit.unwrap_or_default();
                hint = format!("{hint}; {} is {:?}, restarted {} times, {exit}", status.component, status.state, status.restarts);
            }
        }
        Err(Error::NotReady { what: what.to_owned(), cluster: cluster.name.clone(), seconds, hint })
    }
}

async fn pod_range(nodes: &Api<Node>, node: &NodeLayout) -> Option<String> {
    nodes.get(&node.name).await.ok()?.spec?.pod_cidr
}

fn is_node_ready(node: &Node) -> bool {
    let conditions = node.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
    conditions.filter(|condition| condition.type_ == "Ready").any(|condition| condition.status == "True")
}

/// Asks again and again until there is an answer or the time is over.
async fn poll<T, F: Future<Output = Option<T>>>(limit: Duration, attempt: impl Fn() -> F) -> Option<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = attempt().await {
            return Some(found);
        }
        if Instant::now() > deadline {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Writes all files that a cluster's programs read.
fn prepare(cluster: &ClusterLayout, programs: &Programs, facts: &HostFacts) -> Result<()> {
    for directory in ["etcd", "logs", "pki"] {
        make_directory(&cluster.dir.join(directory))?;
    }
    pki::issue(cluster)?;
    let ca = read(&cluster.pki("ca.crt"))?;
    let kubeconfig = |path: &Path, file: &str| {
        let pem = |suffix: &str| read(&cluster.pki(&format!("{file}.{suffix}")));
        write_json(path, &configuration::kubeconfig(cluster, file, &ca, &pem("crt")?, &pem("key")?))
    };
    kubeconfig(&cluster.kubeconfig(), "admin")?;
    for user in ["controller-manager", "scheduler", "kube-proxy"] {
        kubeconfig(&cluster.dir.join(format!("{user}.kubeconfig")), user)?;
    }
    write_json(&cluster.dir.join("audit-policy.json"), &configuration::audit_policy())?;
    for node in &cluster.nodes {
        for directory in ["kubelet", "pod-logs", "volume-plugins", "cni"] {
            make_directory(&node.dir.join(directory))?;
        }
        kubeconfig(&node.dir.join("kubelet.kubeconfig"), &format!("{}-client", node.name))?;
        write(&node.dir.join("containerd.toml"), &configuration::containerd(node, facts))?;
        write(&node.dir.join("resolv.conf"), "# Nothing is upstream of a playground.\n")?;
        write_json(&node.dir.join("kubelet.json"), &configuration::kubelet(cluster, node))?;
    }
    let mut definitions = components::definitions(cluster, programs);
    for definition in &mut definitions {
        definition.namespace_inode = network::namespace_inode(&definition.namespace)?;
    }
    write_json(&cluster.components_file(), &serde_json::to_value(definitions).unwrap_or_default())
}

fn read_definitions(cluster: &ClusterLayout) -> Vec<Definition> {
    let text = fs::read(cluster.components_file()).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn make_directory(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(Error::file("create", path))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(Error::file("read", path))
}

fn write_json(path: &Path, value: &serde_json::Value) -> Result<()> {
    write(path, &format!("{value:#}\n"))
}

/// Whole or not at all, readable by root only, and not at all if nothing changed: some programs watch their files.
fn write(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let temporary = path.with_extension("new");
    let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary);
    let mut file = file.map_err(Error::file("write", &temporary))?;
    std::io::Write::write_all(&mut file, text.as_bytes()).map_err(Error::file("write", &temporary))?;
    fs::rename(&temporary, path).map_err(Error::file("write", path))
}
