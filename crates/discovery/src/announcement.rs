//! What the DNS records of one cluster say: its ID, its name, the URLs of its auth endpoint, and
//! the protocol versions.

use std::{cmp::Reverse, net::IpAddr};

use liqo_api::{ClusterId, valid_cluster_name};
use serde::{Deserialize, Serialize};

use crate::message::{DnsRecord, DnsRecordData};

/// The service that clusters announce, and browse for.
pub const SERVICE: &str = "_liqo_auth._tcp";
/// Maximum number of URLs that count for one cluster.
pub const MAX_URLS: usize = 8;
/// Maximum number of aliases between a name and its address.
const MAX_ALIASES: usize = 8;
/// Maximum length of a host name in characters.
const MAX_HOST_LEN: usize = 253;

/// A cluster as an answer describes it. Nothing of it is proved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Announcement {
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    pub cluster_name: String,
    /// URLs of the auth endpoint, the best first: at most [`MAX_URLS`].
    #[serde(rename = "authURLs")]
    pub auth_urls: Vec<String>,
    /// The first and the last version of the protocol that it speaks.
    pub protocol: [u32; 2],
}

/// Reason why the records of an instance do not describe a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnnouncementFault {
    #[error("it has no SRV record")]
    NoServer,
    #[error("it has no TXT record")]
    NoText,
    #[error(
        "its TXT record has no valid id=CLUSTER_ID (`liqoctl status` in that cluster shows its ID)"
    )]
    NoId,
    #[error("its TXT record has no valid name=CLUSTER_NAME (a DNS label)")]
    NoName,
    #[error("its TXT record has versions={0:?} and not versions=FIRST-LAST, such as versions=1-1")]
    BadVersions(String),
    #[error("no SRV record of it leads to an address that other clusters can reach")]
    NoAddress,
}

/// The name of the service in a domain.
pub fn service_in(domain: &str) -> String {
    format!(
        "{SERVICE}.{}",
        domain.trim_end_matches('.').to_ascii_lowercase()
    )
}

/// Reads what the records say about an instance of the service.
pub fn parse_announcement(
    instance: &str,
    records: &[DnsRecord],
) -> Result<Announcement, AnnouncementFault> {
    let mut of_instance = records.iter().filter(|record| record.name == instance);
    let text = of_instance.find_map(|record| match &record.data {
        DnsRecordData::Txt(pairs) => Some(pairs),
        _ => None,
    });
    let text = text.ok_or(AnnouncementFault::NoText)?;
    // The first of several equal keys counts (RFC 6763, section 6.4).
    let value = |key: &str| {
        let mut pairs = text.iter();
        pairs
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    };
    let cluster_id = value("id")
        .and_then(|id| id.parse().ok())
        .ok_or(AnnouncementFault::NoId)?;
    let cluster_name = value("name")
        .filter(|name| valid_cluster_name(name))
        .ok_or(AnnouncementFault::NoName)?
        .to_owned();
    let protocol = match value("versions") {
        None => [1, 1],
        Some(text) => parse_versions(text)
            .ok_or_else(|| AnnouncementFault::BadVersions(text.chars().take(20).collect()))?,
    };
    let servers = servers_of_instance(instance, records);
    if servers.is_empty() {
        return Err(AnnouncementFault::NoServer);
    }
    let mut auth_urls = Vec::new();
    for url in servers
        .iter()
        .flat_map(|server| urls_of_server(server, records))
    {
        if auth_urls.len() < MAX_URLS && !auth_urls.contains(&url) {
            auth_urls.push(url);
        }
    }
    if auth_urls.is_empty() {
        Err(AnnouncementFault::NoAddress)
    } else {
        Ok(Announcement {
            cluster_id,
            cluster_name,
            auth_urls,
            protocol,
        })
    }
}

/// Reads `first-last`.
fn parse_versions(text: &str) -> Option<[u32; 2]> {
    let (first, last) = text.split_once('-')?;
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some([first, last])
}

/// A host and a port of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceServer {
    pub host: String,
    pub port: u16,
}

/// The servers of an instance. Those of the lowest priority number come first; among equals, those
/// of more weight (RFC 2782 would choose by chance, but then the address of a peering would change
/// by chance).
pub fn servers_of_instance(instance: &str, records: &[DnsRecord]) -> Vec<InstanceServer> {
    let mut found: Vec<_> = records
        .iter()
        .filter(|record| record.name == instance)
        .filter_map(|record| match &record.data {
            // The root as target says that the service does not exist there.
            DnsRecordData::Srv {
                priority,
                weight,
                port,
                target,
            } if *port > 0 && !target.is_empty() => Some((
                *priority,
                Reverse(*weight),
                InstanceServer {
                    host: target.clone(),
                    port: *port,
                },
            )),
            _ => None,
        })
        .collect();
    found.sort_by(|one, other| {
        (one.0, one.1, &one.2.host, one.2.port).cmp(&(
            other.0,
            other.1,
            &other.2.host,
            other.2.port,
        ))
    });
    found.dedup();
    found
        .into_iter()
        .map(|(.., server)| server)
        .take(MAX_URLS)
        .collect()
}

/// The name at the end of the aliases of a host, as far as they are known.
pub fn last_alias(host: &str, records: &[DnsRecord]) -> String {
    let mut name = host.to_owned();
    for _ in 0..MAX_ALIASES {
        let alias = records.iter().find_map(|record| match &record.data {
            DnsRecordData::Alias(target) if record.name == name => Some(target),
            _ => None,
        });
        match alias {
            Some(target) => name.clone_from(target),
            None => break,
        }
    }
    name
}

/// The addresses of a host.
pub fn addresses_of_host(host: &str, records: &[DnsRecord]) -> Vec<IpAddr> {
    let name = last_alias(host, records);
    let of_name = records.iter().filter(|record| record.name == name);
    let mut found: Vec<IpAddr> = of_name
        .filter_map(|record| match record.data {
            DnsRecordData::Address(address) => Some(address.to_canonical()),
            _ => None,
        })
        .collect();
    // In an order that does not depend on that of the answer, which servers rotate.
    found.sort_unstable();
    found.dedup();
    found
}

fn urls_of_server(server: &InstanceServer, records: &[DnsRecord]) -> Vec<String> {
    let port = server.port;
    let found = addresses_of_host(&server.host, records);
    if found.is_empty() {
        // A name that other clusters resolve themselves. Names of the local network mean nothing to
        // them.
        let named = is_host(&server.host).then(|| format!("https://{}:{port}", server.host));
        return named.into_iter().collect();
    }
    let reachable = found.into_iter().filter(|address| is_reachable(*address));
    reachable
        .map(|address| format!("https://{}", std::net::SocketAddr::new(address, port)))
        .collect()
}

fn is_host(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    // A last label of digits would be read as an address.
    let is_name = last.bytes().any(|byte| byte.is_ascii_lowercase());
    name.len() <= MAX_HOST_LEN
        && name.contains('.')
        && name.split('.').all(is_label)
        && is_name
        && !["local", "localhost"].contains(&last)
}

fn is_label(label: &str) -> bool {
    let mut bytes = label.bytes();
    (1..=63).contains(&label.len())
        && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Whether another machine may have this address. Announced addresses that mean the caller's own
/// machine or link are refused: the latter are also those of the metadata services of clouds.
pub fn is_reachable(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let [first, ..] = address.octets();
            !(first == 0
                || address.is_loopback()
                || address.is_link_local()
                || address.is_multicast()
                || first >= 240)
        }
        IpAddr::V6(address) => {
            !(address.is_loopback()
                || address.is_unspecified()
                || address.is_multicast()
                || address.is_unicast_link_local())
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const INSTANCE: &str = "milan._liqo_auth._tcp.example.org";

    pub(crate) fn id(number: u8) -> ClusterId {
        ClusterId::of_public_key(&[number; 32])
    }

    pub(crate) fn record(name: &str, data: DnsRecordData) -> DnsRecord {
        DnsRecord {
            name: name.to_owned(),
            ttl: 120,
            data,
        }
    }

    pub(crate) fn txt(pairs: &[(&str, &str)]) -> DnsRecord {
        let pairs = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        record(INSTANCE, DnsRecordData::Txt(pairs.collect()))
    }

    pub(crate) fn srv(priority: u16, weight: u16, port: u16, target: &str) -> DnsRecord {
        record(
            INSTANCE,
            DnsRecordData::Srv {
                priority,
                weight,
                port,
                target: target.to_owned(),
            },
        )
    }

    pub(crate) fn address(name: &str, address: &str) -> DnsRecord {
        record(name, DnsRecordData::Address(address.parse().unwrap()))
    }

    fn good_txt() -> DnsRecord {
        txt(&[
            ("id", id(1).as_str()),
            ("name", "milan"),
            ("versions", "1-2"),
            ("id", id(2).as_str()),
        ])
    }

    #[test]
    fn records_describe_a_cluster() {
        let records = [
            good_txt(),
            srv(0, 0, 30443, "a.example.org"),
            address("a.example.org", "203.0.113.5"),
        ];
        let found = parse_announcement(INSTANCE, &records).unwrap();
        assert_eq!(
            (
                found.cluster_id,
                found.cluster_name.as_str(),
                found.protocol
            ),
            (id(1), "milan", [1, 2])
        );
        assert_eq!(found.auth_urls, ["https://203.0.113.5:30443"]);
    }

    #[test]
    fn servers_are_ordered_by_priority_and_then_by_weight() {
        let records = [
            good_txt(),
            srv(20, 9, 1, "c.example.org"),
            srv(10, 1, 2, "b.example.org"),
            srv(10, 5, 3, "a.example.org"),
            address("a.example.org", "2001:db8::1"),
            address("a.example.org", "203.0.113.5"),
        ];
        let urls = parse_announcement(INSTANCE, &records).unwrap().auth_urls;
        assert_eq!(
            urls,
            [
                "https://203.0.113.5:3",
                "https://[2001:db8::1]:3",
                "https://b.example.org:2",
                "https://c.example.org:1"
            ]
        );
    }

    #[test]
    fn aliases_are_followed_and_end() {
        let alias = |from: &str, to: &str| record(from, DnsRecordData::Alias(to.to_owned()));
        let mut records = vec![
            good_txt(),
            srv(0, 0, 443, "a.example.org"),
            alias("a.example.org", "b.example.org"),
            alias("b.example.org", "c.example.org"),
            address("c.example.org", "203.0.113.5"),
        ];
        assert_eq!(
            parse_announcement(INSTANCE, &records).unwrap().auth_urls,
            ["https://203.0.113.5:443"]
        );
        records[3] = alias("b.example.org", "a.example.org");
        assert_eq!(
            parse_announcement(INSTANCE, &records).unwrap().auth_urls,
            ["https://a.example.org:443"],
            "a circle has no address"
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        let with = |txt: DnsRecord, srv: DnsRecord| {
            parse_announcement(INSTANCE, &[txt, srv, address("a.local", "203.0.113.5")])
                .unwrap_err()
        };
        let server = || srv(0, 0, 443, "a.local");
        assert_eq!(
            with(txt(&[("name", "milan")]), server()),
            AnnouncementFault::NoId
        );
        assert_eq!(
            with(txt(&[("id", "milan"), ("name", "milan")]), server()),
            AnnouncementFault::NoId
        );
        assert_eq!(
            with(txt(&[("id", id(1).as_str()), ("name", "../etc")]), server()),
            AnnouncementFault::NoName
        );
        assert_eq!(
            with(
                txt(&[("id", id(1).as_str()), ("name", id(2).as_str())]),
                server()
            ),
            AnnouncementFault::NoName
        );
        let bad = txt(&[
            ("id", id(1).as_str()),
            ("name", "milan"),
            ("versions", "2-1"),
        ]);
        assert_eq!(
            with(bad, server()),
            AnnouncementFault::BadVersions("2-1".into())
        );
        for (port, host) in [(0, "a.local"), (443, "")] {
            assert_eq!(
                with(good_txt(), srv(0, 0, port, host)),
                AnnouncementFault::NoServer
            );
        }
        assert_eq!(
            parse_announcement(INSTANCE, &[server()]),
            Err(AnnouncementFault::NoText)
        );
    }

    #[test]
    fn no_address_of_the_callers_own_machine_or_link_counts() {
        for bad in [
            "127.0.0.1",
            "0.0.0.0",
            "169.254.169.254",
            "224.0.0.251",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "ff02::fb",
            "::ffff:127.0.0.1",
        ] {
            let records = [
                good_txt(),
                srv(0, 0, 443, "a.local"),
                address("a.local", bad),
            ];
            assert_eq!(
                parse_announcement(INSTANCE, &records),
                Err(AnnouncementFault::NoAddress),
                "{bad}"
            );
        }
        for bad in [
            "localhost",
            "a.localhost",
            "a.local",
            "a",
            "a b.example.org",
            "2130706433",
            "1.2",
            r"a\.example.org",
        ] {
            assert_eq!(
                parse_announcement(INSTANCE, &[good_txt(), srv(0, 0, 443, bad)]),
                Err(AnnouncementFault::NoAddress),
                "{bad}"
            );
        }
    }
}
