use super::firewall::FirewallError;

/// Failure to bring the kernel into the wanted state.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("talking to the kernel (netlink): {0}")]
    Connect(std::io::Error),
    #[error("reading {what} from the kernel: {source}")]
    Read {
        /// Links, neighbours, routes or rules.
        what: &'static str,
        source: rtnetlink::Error,
    },
    /// The kernel refused a change.
    #[error("{step}: {source}; does this process have NET_ADMIN?")]
    Change {
        /// The change, for the message.
        step: String,
        source: rtnetlink::Error,
    },
    /// Routes need a device that does not exist (yet).
    #[error("there is no network device {device} yet")]
    NoDevice { device: &'static str },
    #[error(transparent)]
    Firewall(#[from] FirewallError),
}
