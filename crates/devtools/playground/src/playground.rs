//! Brings the clusters of one instance up, reports their status, takes them down.

use std::{path::PathBuf, time::Duration};

use futures::future::{try_join, try_join_all};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, ResourceExt};
use serde::{Deserialize, Serialize};

use crate::{
    api,
    binaries::{self, Extras, Programs},
    cgroups,
    cluster::{Cluster, NodeInfo},
    components::Definition,
    error::{Error, Result},
    fake_nodes,
    files::{make_directory, read},
    image,
    layout::{ClusterLayout, Instance, InstanceState},
    lock::InstanceLock,
    network,
    nodes::{self, Nodes},
    objects, preparation, processes,
    progress::Progress,
    requirements::{self, Requirements},
    spec::ClusterSpec,
    supervisor::{self, ComponentState, ComponentStatus, Request, Response},
    teardown,
    wait::poll,
};

/// Who keeps the programs running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Supervision {
    /// A thread of this process: the clusters' programs end with it, and the next `up` or `down`
    /// removes what they leave.
    ThisProcess,
    /// A separate process of this program, which outlives this one. The program must act on
    /// [`crate::supervised_instance`].
    Detached(PathBuf),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub instance: String,
    /// Process ID of the supervisor, if it runs as its own process.
    pub supervisor: Option<i32>,
    pub clusters: Vec<ClusterStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    pub name: String,
    pub api_url: String,
    /// Path of a kubeconfig with all rights.
    pub kubeconfig: PathBuf,
    /// Whether its API server is ready.
    pub ready: bool,
    /// The real nodes, beginning with the one that runs the control plane.
    pub nodes: Vec<NodeStatus>,
    pub fake_nodes: FakeNodesStatus,
    pub components: Vec<ComponentStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    #[serde(flatten)]
    pub node: NodeInfo,
    /// Missing if the cluster does not answer.
    pub ready: Option<bool>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FakeNodesStatus {
    pub wanted: u16,
    pub found: usize,
    pub ready: usize,
}

/// Clusters on one network of this machine.
#[derive(Debug, Clone)]
pub struct Playground {
    instance: Instance,
    supervision: Supervision,
}

impl Playground {
    /// A playground by its name: 1 to 8 lower-case letters and digits. This starts nothing.
    pub fn open(instance: &str) -> Result<Self> {
        Ok(Self {
            instance: Instance::new(instance)?,
            supervision: Supervision::ThisProcess,
        })
    }

    /// The same playground with another supervision.
    #[must_use]
    pub fn supervised_by(self, supervision: Supervision) -> Self {
        Self {
            supervision,
            ..self
        }
    }

    /// Installs and builds what these clusters need on this machine, and starts nothing. Says which
    /// programs of another patch level are used. [`Self::up`] does the same, silently.
    pub async fn provide_programs(
        &self,
        specs: &[ClusterSpec],
        progress: &dyn Progress,
    ) -> Result<()> {
        self.programs(specs, progress, |line| progress.line(&line))
            .await
            .map(drop)
    }

    async fn programs(
        &self,
        specs: &[ClusterSpec],
        progress: &dyn Progress,
        say: impl FnMut(String),
    ) -> Result<Programs> {
        let present = self
            .clusters()?
            .into_iter()
            .map(|cluster| cluster.layout.spec);
        let all: Vec<ClusterSpec> = present.chain(specs.iter().cloned()).collect();
        let requirements = Requirements::check(&all).await?;
        requirements.install(progress).await?;
        let containerd = binaries::search("containerd", &binaries::search_path());
        let containerd = containerd.ok_or_else(|| Error::MissingPrograms {
            programs: "containerd".to_owned(),
        })?;
        let extras = Extras {
            fake_nodes: all.iter().any(|spec| spec.fake_nodes.count > 0),
            network_policies: all.iter().any(|spec| spec.network_policies),
            metrics: all.iter().any(|spec| spec.metrics),
        };
        binaries::provide(containerd, extras, progress, say).await
    }

    /// Brings up the clusters that are not up, repairs those that are damaged, and returns handles
    /// on all that were asked for. Other clusters of the instance stay.
    pub async fn up(&self, specs: &[ClusterSpec], progress: &dyn Progress) -> Result<Vec<Cluster>> {
        let programs = self.programs(specs, progress, drop).await?;
        let root = &self.instance.root;
        make_directory(root)?;
        let _lock = InstanceLock::take(&self.instance).await?;
        make_directory(root)?;
        let state = self.want(specs, progress).await?;
        let facts = requirements::host_facts(root)?;
        requirements::ensure_inotify_instances();
        let layouts: Vec<_> = state
            .clusters
            .iter()
            .map(|cluster| self.instance.layout(state.subnet, cluster))
            .collect();

        progress.started("network");
        let dual_stack = layouts.iter().any(|cluster| cluster.spec.dual_stack);
        network::ensure_bridge(&self.instance, state.subnet, dual_stack).await?;
        for cluster in &layouts {
            for node in &cluster.nodes {
                if network::ensure_node(cluster, node).await? {
                    // Pods of an earlier namespace use its network; the kubelet creates new ones.
                    processes::kill_pods(node);
                }
                cgroups::ensure(&node.cgroup)?;
            }
            preparation::prepare(cluster, &programs, &facts)?;
        }
        progress.finished("network");

        self.ensure_supervisor().await?;
        self.start_what_was_stopped().await?;
        let control_planes = try_join_all(
            layouts
                .iter()
                .map(|cluster| self.bring_up_control_plane(cluster, progress)),
        );
        let (clients, images) = try_join(
            control_planes,
            image::base_images(&programs.coredns, programs.metrics_server.as_deref()),
        )
        .await?;
        let all: Vec<_> = layouts
            .iter()
            .zip(&clients)
            .map(|(cluster, client)| Nodes {
                instance: &self.instance,
                cluster,
                client,
                progress,
            })
            .collect();
        try_join_all(all.iter().map(|nodes| nodes.bring_up(&facts, &images))).await?;
        specs.iter().map(|spec| self.cluster(&spec.name)).collect()
    }

    /// Ends everything and removes everything except the cached programs. Works after any crash,
    /// and if nothing exists.
    pub async fn down(&self) -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::NotRoot);
        }
        let lock = InstanceLock::take(&self.instance).await?;
        // A supervisor that does not answer is killed with everything else.
        let _ = supervisor::ask(&self.instance, &Request::Shutdown).await;
        teardown::remove(&self.instance).await?;
        lock.remove();
        Ok(())
    }

    /// A handle on a cluster that is up.
    pub fn cluster(&self, name: &str) -> Result<Cluster> {
        let missing = || Error::NoSuchCluster {
            instance: self.instance.name.clone(),
            name: name.to_owned(),
        };
        let state = self.instance.read_state()?.ok_or_else(missing)?;
        let cluster = state
            .clusters
            .iter()
            .find(|cluster| cluster.spec.name == name)
            .ok_or_else(missing)?;
        Ok(Cluster {
            instance: self.instance.clone(),
            layout: self.instance.layout(state.subnet, cluster),
        })
    }

    /// Handles on all clusters.
    pub fn clusters(&self) -> Result<Vec<Cluster>> {
        let Some(state) = self.instance.read_state()? else {
            return Ok(Vec::new());
        };
        let handle = |cluster| Cluster {
            instance: self.instance.clone(),
            layout: self.instance.layout(state.subnet, cluster),
        };
        Ok(state.clusters.iter().map(handle).collect())
    }

    /// A kubeconfig file with all rights for a cluster.
    pub fn kubeconfig(&self, cluster: &str) -> Result<PathBuf> {
        Ok(self.cluster(cluster)?.kubeconfig())
    }

    /// The log file of a component.
    pub fn logs(&self, cluster: &str, component: &str) -> Result<PathBuf> {
        Ok(self.cluster(cluster)?.log(component))
    }

    /// Builds an image and loads it on every real node of all clusters.
    pub async fn load_image(&self, spec: &image::ImageSpec) -> Result<()> {
        let archive = image::build_image(spec).await?;
        try_join_all(
            self.clusters()?
                .iter()
                .map(|cluster| cluster.load_archive(&archive)),
        )
        .await
        .map(drop)
    }

    /// The status of everything, also of parts that do not work.
    pub async fn status(&self) -> Result<Status> {
        let (supervisor, components) = match supervisor::ask(&self.instance, &Request::Status).await
        {
            Ok(Response::Status {
                supervisor,
                components,
            }) => (Some(supervisor), components),
            _ => (None, Vec::new()),
        };
        let mut clusters = Vec::new();
        for cluster in self.clusters()? {
            let layout = &cluster.layout;
            let client = cluster.client().await.ok();
            let ready = match &client {
                Some(client) => api::is_ready(client).await,
                None => false,
            };
            let known = match &client {
                Some(client) if ready => nodes::list(client).await,
                _ => None,
            };
            let is_ready = |name: &str| {
                Some(
                    known
                        .as_ref()?
                        .iter()
                        .any(|node| node.name_any() == name && fake_nodes::is_ready(node)),
                )
            };
            let node_status = |node: NodeInfo| NodeStatus {
                ready: is_ready(&node.name),
                node,
            };
            let (found, ready_fakes) = known
                .as_ref()
                .map_or((0, 0), |nodes| fake_nodes::count(&layout.name, nodes));
            let of_cluster = |definition: Definition| {
                let known = components.iter().find(|status| {
                    (&status.cluster, &status.component)
                        == (&definition.cluster, &definition.component)
                });
                known.cloned().unwrap_or_else(|| {
                    ComponentStatus::new(&definition, ComponentState::Unsupervised)
                })
            };
            clusters.push(ClusterStatus {
                name: layout.name.clone(),
                api_url: layout.api_url(),
                kubeconfig: layout.kubeconfig(),
                ready,
                nodes: cluster.nodes().into_iter().map(node_status).collect(),
                fake_nodes: FakeNodesStatus {
                    wanted: layout.spec.fake_nodes.count,
                    found,
                    ready: ready_fakes,
                },
                components: preparation::read_definitions(layout)
                    .into_iter()
                    .map(of_cluster)
                    .collect(),
            });
        }
        Ok(Status {
            instance: self.instance.name.clone(),
            supervisor,
            clusters,
        })
    }

    /// Removes surplus nodes and stores the wanted state.
    async fn want(&self, specs: &[ClusterSpec], progress: &dyn Progress) -> Result<InstanceState> {
        let mut state = match self.instance.read_state()? {
            Some(state) => state,
            None => InstanceState {
                subnet: network::choose_subnet(&self.instance).await?,
                clusters: Vec::new(),
            },
        };
        // Refuse invalid specifications before removing anything.
        let mut wanted = state.clone();
        wanted.want(&self.instance.name, specs)?;
        // They stay in the stored state until they are gone, so after a crash the next `up` removes
        // them.
        for (cluster, surplus) in state.surplus(&self.instance, specs) {
            nodes::take_away(&self.instance, &cluster, &surplus, progress).await?;
        }
        state = wanted;
        self.instance.write_state(&state)?;
        Ok(state)
    }

    async fn start_what_was_stopped(&self) -> Result<()> {
        let Response::Status { components, .. } =
            supervisor::ask(&self.instance, &Request::Status).await?
        else {
            return Ok(());
        };
        let stopped = components
            .into_iter()
            .filter(|status| status.state == ComponentState::Stopped);
        // In parallel, because some wait for others.
        let start = |status: ComponentStatus| Request::Start {
            cluster: status.cluster,
            component: status.component,
        };
        let requests: Vec<_> = stopped.map(start).collect();
        try_join_all(
            requests
                .iter()
                .map(|request| supervisor::ask(&self.instance, request)),
        )
        .await
        .map(drop)
    }

    async fn ensure_supervisor(&self) -> Result<()> {
        if supervisor::ask(&self.instance, &Request::Reload)
            .await
            .is_ok()
        {
            return Ok(());
        }
        // A supervisor that does not answer or understand would disturb its successor. Its programs
        // end with it.
        processes::kill_supervisor(&self.instance);
        match &self.supervision {
            Supervision::ThisProcess => drop(supervisor::start_thread(&self.instance)?),
            Supervision::Detached(program) => supervisor::start_detached(&self.instance, program)?,
        }
        let answers = || async { supervisor::ask(&self.instance, &Request::Status).await.ok() };
        if poll(Duration::from_mins(1), answers).await.is_none() {
            let reason = format!("see {}", self.instance.supervisor_log().display());
            return Err(Error::NoSupervisor {
                instance: self.instance.name.clone(),
                reason,
            });
        }
        Ok(())
    }

    async fn bring_up_control_plane(
        &self,
        cluster: &ClusterLayout,
        progress: &dyn Progress,
    ) -> Result<Client> {
        let step = format!("{}: control plane", cluster.name);
        progress.started(&step);
        let client = api::client(&cluster.name, &cluster.kubeconfig()).await?;
        nodes::wait(&self.instance, cluster, "API server", 300, || async {
            api::is_ready(&client).await.then_some(())
        })
        .await?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let kube_public = || async { namespaces.get_opt("kube-public").await.ok().flatten() };
        nodes::wait(
            &self.instance,
            cluster,
            "namespace kube-public",
            120,
            kube_public,
        )
        .await?;
        objects::apply(cluster, &client, &read(&cluster.pki("ca.crt"))?).await?;
        progress.finished(&step);
        Ok(client)
    }
}
