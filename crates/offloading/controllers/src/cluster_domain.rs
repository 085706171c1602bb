//! The DNS domain of this cluster.

use liqo_offloading_rules::resolv_conf::{self, ResolvConf};

/// Reads the domain, such as `cluster.local`, from this process's own `/etc/resolv.conf`. `None` if
/// that names none.
pub fn of_this_pod() -> Option<String> {
    let domain = std::fs::read_to_string(resolv_conf::PATH)
        .ok()
        .and_then(|text| ResolvConf::parse(&text).domain);
    if domain.is_none() {
        tracing::warn!(
            "{} names no domain of the cluster, without which remote pods do not resolve names as at home",
            resolv_conf::PATH
        );
    }
    domain
}
