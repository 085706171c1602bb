//! The label that tells real nodes from fake ones.

/// Every node of a playground has this label. It is also the key of the taint of fake nodes, and
/// kwok's own label for its nodes.
pub const NODE_KIND_LABEL: &str = "kwok.x-k8s.io/node";
/// Value of [`NODE_KIND_LABEL`] on nodes that are only objects.
pub const FAKE_NODE: &str = "fake";
/// Value of [`NODE_KIND_LABEL`] on nodes with a kubelet. kwok leaves these alone.
pub const REAL_NODE: &str = "real";
/// The label of every fake node, and of no other.
pub const FAKE_NODE_LABEL: (&str, &str) = (NODE_KIND_LABEL, FAKE_NODE);
