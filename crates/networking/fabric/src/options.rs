//! The options of the program.

use std::path::PathBuf;

#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Namespace of Liqo's objects.
    pub namespace: String,
    /// The node that the program runs on.
    pub node: String,
    /// Directory for the keys of this node's gateway.
    pub key_directory: PathBuf,
    /// Port of health checks, on each node.
    pub health_port: u16,
}
