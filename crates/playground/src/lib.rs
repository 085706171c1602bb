//! Real Kubernetes clusters on this machine, as a library.
//!
//! A playground is a few clusters on one network, made of the programs of Kubernetes itself: an etcd, an API server, a controller manager and a
//! scheduler for each cluster, a containerd, a kubelet and a kube-proxy for each node. Pods are real containers. There is no virtual machine and
//! no container engine around them: a node is a network namespace, a cgroup and a directory.
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
//! All clusters use the same ranges of pod and service addresses, so that overlap is the normal case. Nodes, and with them API servers and node
//! ports, are reached by their address on the bridge, from every cluster and from the host. A cluster may have IPv6 beside IPv4: then nodes, pods
//! and Services have addresses of both.
//!
//! A cluster may have several such nodes, whose pods reach each other by their own addresses, and thousands of fake ones: objects for which kwok
//! answers, and where pods become ready without running.
//!
//! [`Playground::up`] makes what is missing, takes away nodes that are too many, and leaves alone what is there, so it is also the repair. Each
//! program is the child of one supervisor that starts it again when it exits and remembers why; [`Playground::status`] shows that.
//! [`Playground::down`] finds everything by names and marks that all begin with the instance's name, not by what it remembers, so it works after
//! any crash. A [`Cluster`] can be disturbed for tests: components stopped, killed or paused, a node without power, the whole cluster frozen or
//! cut off.
//!
//! Several playgrounds do not see each other: the user's own is called `liqo`, tests take other names.
//!
//! The programs come from PATH, from `$KUBEBUILDER_ASSETS`, or are built once from their Go modules into the user's cache directory; images are
//! written here, by [`ImageSpec`], from programs on this machine. So neither a registry nor a download of binaries is needed.

mod api;
mod audit;
mod binaries;
mod cgroups;
mod cluster;
mod components;
mod configuration;
mod error;
mod fake_nodes;
mod files;
mod image;
mod kwok;
mod layout;
mod lock;
mod network;
mod nodes;
mod objects;
mod pki;
mod playground;
mod preparation;
mod processes;
mod progress;
mod requirements;
mod run;
mod spec;
mod supervisor;
mod teardown;
mod wait;

pub use audit::Write;
pub use binaries::{KUBERNETES_VERSION, cache, kubectl, wireguard_go};
pub use cluster::{Cluster, NodeInfo};
pub use error::{Error, Result};
pub use fake_nodes::FAKE_NODE_LABEL;
pub use image::{BUSYBOX, ImageSpec, NONROOT, PAUSE};
pub use layout::{DUAL_STACK_SETTINGS, POD_RANGE, POD_RANGE_V6, SERVICE_RANGE, SERVICE_RANGE_V6};
pub use playground::{ClusterStatus, FakeNodesStatus, NodeStatus, Playground, Status, Supervision};
pub use progress::{Progress, Silent};
pub use requirements::Requirements;
pub use spec::{ClusterSpec, FakeNodes, MOST_NODES, fake_node_resources};
pub use supervisor::{ComponentState, ComponentStatus, run_supervisor, supervised_instance};
