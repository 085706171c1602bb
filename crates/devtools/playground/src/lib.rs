//! Real Kubernetes clusters on this machine, as a library. It needs Linux and root. It does not
//! install Liqo.
//!
//! A playground is a few clusters on one network. Each runs the programs of Kubernetes itself, and
//! pods are real containers. A node is a network namespace, a cgroup and a directory, without a
//! virtual machine or a container engine around it.
//!
//! ```text
//!   network namespace rome-1              network namespace milan-1
//!  ┌───────────────────────────┐         ┌───────────────────────────┐
//!  │ etcd, kube-apiserver, ... │         │ etcd, kube-apiserver, ... │
//!  │ containerd, kubelet       │         │ containerd, kubelet       │     pods 10.244.0.0/16 and
//!  │ ┌─────┐ ┌─────┐ ┌─────┐   │         │ ┌─────┐ ┌─────┐           │     services 10.96.0.0/12
//!  │ │ pod │ │ pod │ │ pod │   │         │ │ pod │ │ pod │           │     in every cluster
//!  │ └──┬──┘ └──┬──┘ └──┬──┘   │         │ └──┬──┘ └──┬──┘           │
//!  │    └──cni0─┴───────┘ eth0 │         │    └──cni0─┘         eth0 │
//!  └────────────────────────┬──┘         └────────────────────────┬──┘
//!                           └──── bridge lp-INSTANCE ─────────────┘       172.30.x.0/24, the host is .1
//! ```
//!
//! All clusters use the same pod and service ranges, so overlap is the normal case. Clusters and
//! the host reach each node, its API server and its node ports by the node's address on the bridge.
//! A cluster may also have IPv6, several nodes, and thousands of fake nodes: objects whose kubelets
//! kwok simulates, where pods become ready without running.
//!
//! [`Playground::up`] creates what is missing, removes surplus nodes and leaves everything else
//! alone, so it also repairs. [`Playground::down`] finds everything by names and marks that begin
//! with the instance's name, so it works after any crash. Between them one supervisor is the parent
//! of all programs: it restarts those that exit, and remembers why. Tests can disturb a
//! [`Cluster`]: stop components, power off a node, freeze the cluster or cut it off. Instances do
//! not see each other: the user's own is called `liqo`, tests use other names.
//!
//! Programs come from PATH or from `$KUBEBUILDER_ASSETS`, or are built once from their Go modules
//! into the user's cache directory. [`ImageSpec`] builds images from programs on this machine, so
//! no registry is needed. [`build_programs`] builds those of a source tree.
//!
//! `cargo playground`, the scenarios in `tests/` and tests of several crates use it. See
//! `examples/cluster.rs` for how to call it, and `playground.rs` for what `up` does.

mod api;
mod audit;
mod binaries;
mod cargo_build;
mod cgroups;
mod cluster;
mod components;
mod configuration;
mod error;
mod fake_nodes;
mod files;
mod go_build;
mod image;
mod kwok;
mod layout;
mod lock;
mod network;
mod node_kind;
mod nodes;
mod objects;
mod pki;
mod playground;
mod preparation;
mod processes;
mod program;
mod progress;
mod requirements;
mod run;
mod spec;
mod supervisor;
mod teardown;
mod wait;

pub use audit::Write;
pub use binaries::{
    KubernetesTests, etcd, has_kubernetes_tests, helm_3_and_4, kube_apiserver, kubectl,
    kubernetes_tests, wireguard_go,
};
pub use cargo_build::{CargoProfile, ProgramBuild, build_programs, cargo_command};
pub use cluster::{Cluster, NodeInfo};
pub use error::{Error, Result};
pub use image::{
    BUSYBOX, ImageArchive, ImageSpec, MachineFile, NONROOT, PAUSE, build_image, image_architecture,
    machine_files,
};
pub use layout::{DUAL_STACK_SETTINGS, POD_RANGE, POD_RANGE_V6, SERVICE_RANGE, SERVICE_RANGE_V6};
pub use node_kind::{FAKE_NODE, FAKE_NODE_LABEL, NODE_KIND_LABEL, REAL_NODE};
pub use playground::{ClusterStatus, FakeNodesStatus, NodeStatus, Playground, Status, Supervision};
pub use processes::Process;
pub use program::{KUBERNETES_VERSION, cache};
pub use progress::{Progress, Silent};
pub use requirements::Requirements;
pub use spec::{ClusterSpec, FakeNodes, MAX_NODES, fake_node_resources};
pub use supervisor::{ComponentState, ComponentStatus, run_supervisor, supervised_instance};
