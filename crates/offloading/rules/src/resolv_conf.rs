//! Reads what a pod's `/etc/resolv.conf` says about its cluster. Pure.

use std::net::IpAddr;

/// The file, in every pod with the DNS policy `ClusterFirst`.
pub const PATH: &str = "/etc/resolv.conf";

/// The parts of the file that are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvConf {
    pub servers: Vec<IpAddr>,
    /// The domain of the cluster, such as `cluster.local`.
    pub domain: Option<String>,
}

impl ResolvConf {
    /// Reads the file's text. The kubelet writes the search domains
    /// `NAMESPACE.svc.DOMAIN svc.DOMAIN DOMAIN`.
    pub fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") => found
                    .servers
                    .extend(words.next().and_then(|word| word.parse::<IpAddr>().ok())),
                // The last line counts (resolv.conf(5)).
                Some("search") => {
                    let domain = words.find_map(|word| word.strip_prefix("svc."));
                    found.domain = domain
                        .map(|domain| domain.trim_end_matches('.').to_owned())
                        .filter(|domain| !domain.is_empty());
                }
                _ => {}
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_knows_the_domain_and_the_name_servers_of_its_cluster() {
        let text = "search liqo.svc.cluster.local svc.cluster.local cluster.local lan\nnameserver 10.96.0.10\nnameserver fd00::a\noptions ndots:5\n";
        let found = ResolvConf::parse(text);
        assert_eq!(
            found.servers,
            ["10.96.0.10", "fd00::a"].map(|address| address.parse::<IpAddr>().unwrap())
        );
        assert_eq!(found.domain.as_deref(), Some("cluster.local"));
    }

    #[test]
    fn the_file_of_a_node_names_no_domain() {
        let text = "# made by hand\nnameserver fe80::1%eth0\nnameserver\nnameserver 192.168.1.1\nsearch lan svc.\n";
        let found = ResolvConf::parse(text);
        assert_eq!(
            found,
            ResolvConf {
                servers: vec!["192.168.1.1".parse().unwrap()],
                domain: None
            }
        );
        assert_eq!(ResolvConf::parse(""), ResolvConf::default());
    }
}
