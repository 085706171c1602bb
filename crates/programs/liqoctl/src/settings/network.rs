//! `network.*`: the network to other clusters.

use std::{collections::BTreeMap, ops::RangeInclusive, str::FromStr};

use ipnet::IpNet;
use liqo_api::NetworkSettings;

use super::parse_labels;

pub(super) const ENABLED: &str = "network.enabled";
pub(super) const POD_CIDRS: &str = "network.podCIDRs";
pub(super) const SERVICE_CIDRS: &str = "network.serviceCIDRs";
pub(super) const EXTERNAL_CIDRS: &str = "network.externalCIDRs";
pub(super) const RESERVED_CIDRS: &str = "network.reservedCIDRs";
pub(super) const PEER_CIDRS: &str = "network.peerCIDRs";
pub(super) const MTU: &str = "network.mtu";
pub(super) const API_THROUGH_TUNNEL: &str = "network.apiThroughTunnel";
pub(super) const REPLICAS: &str = "network.gateways.replicas";
pub(super) const PORT: &str = "network.gateways.port";
pub(super) const NODE_SELECTOR: &str = "network.gateways.nodeSelector";
pub(super) const ADDRESSES: &str = "network.gateways.addresses";
pub(super) const TLS_PORT: &str = "network.gateways.tlsPort";
pub(super) const TLS_ADDRESSES: &str = "network.gateways.tlsAddresses";

/// The settings of the network. Nothing means: unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkChanges {
    enabled: Option<bool>,
    pod_cidrs: Option<Vec<IpNet>>,
    service_cidrs: Option<Vec<IpNet>>,
    external_cidrs: Option<Vec<IpNet>>,
    reserved_cidrs: Option<Vec<IpNet>>,
    peer_cidrs: Option<Vec<IpNet>>,
    mtu: Option<u16>,
    api_through_tunnel: Option<bool>,
    replicas: Option<u8>,
    port: Option<u16>,
    node_selector: Option<BTreeMap<String, String>>,
    addresses: Option<Vec<String>>,
    tls_port: Option<u16>,
    tls_addresses: Option<Vec<String>>,
}

impl NetworkChanges {
    /// Takes a key, if it is one of the network.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<bool, String> {
        match key {
            ENABLED => self.enabled = Some(parse_boolean(value)?),
            API_THROUGH_TUNNEL => self.api_through_tunnel = Some(parse_boolean(value)?),
            POD_CIDRS => self.pod_cidrs = Some(parse_prefixes(value)?),
            SERVICE_CIDRS => self.service_cidrs = Some(parse_prefixes(value)?),
            EXTERNAL_CIDRS => self.external_cidrs = Some(parse_prefixes(value)?),
            RESERVED_CIDRS => self.reserved_cidrs = Some(parse_prefixes(value)?),
            PEER_CIDRS => self.peer_cidrs = Some(parse_prefixes(value)?),
            MTU => self.mtu = Some(parse_number(value, &(1280..=8900))?),
            REPLICAS => self.replicas = Some(parse_number(value, &(1..=7))?),
            PORT => self.port = Some(parse_number(value, &(1..=u16::MAX))?),
            NODE_SELECTOR => self.node_selector = Some(parse_labels(value)?),
            ADDRESSES => self.addresses = Some(parse_gateway_addresses(value)?),
            TLS_PORT => self.tls_port = Some(parse_number(value, &(0..=u16::MAX))?),
            TLS_ADDRESSES => self.tls_addresses = Some(parse_gateway_addresses(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub(super) fn applied_to(&self, mut network: NetworkSettings) -> NetworkSettings {
        fn set_if_given<T: Clone>(field: &mut T, set: Option<&T>) {
            if let Some(set) = set {
                field.clone_from(set);
            }
        }
        set_if_given(&mut network.enabled, self.enabled.as_ref());
        set_if_given(&mut network.pod_cidrs, self.pod_cidrs.as_ref());
        set_if_given(&mut network.service_cidrs, self.service_cidrs.as_ref());
        set_if_given(&mut network.external_cidrs, self.external_cidrs.as_ref());
        set_if_given(&mut network.reserved_cidrs, self.reserved_cidrs.as_ref());
        set_if_given(&mut network.peer_cidrs, self.peer_cidrs.as_ref());
        set_if_given(&mut network.mtu, self.mtu.as_ref());
        set_if_given(
            &mut network.api_through_tunnel,
            self.api_through_tunnel.as_ref(),
        );
        set_if_given(&mut network.gateways.replicas, self.replicas.as_ref());
        set_if_given(&mut network.gateways.port, self.port.as_ref());
        set_if_given(
            &mut network.gateways.node_selector,
            self.node_selector.as_ref(),
        );
        set_if_given(&mut network.gateways.addresses, self.addresses.as_ref());
        set_if_given(&mut network.gateways.tls_port, self.tls_port.as_ref());
        set_if_given(
            &mut network.gateways.tls_addresses,
            self.tls_addresses.as_ref(),
        );
        network
    }
}

pub(super) fn parse_boolean(text: &str) -> Result<bool, String> {
    text.parse()
        .map_err(|_| "it must be true or false".to_owned())
}

fn split_list(text: &str) -> impl Iterator<Item = &str> {
    text.trim_start_matches('{')
        .trim_end_matches('}')
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
}

/// Reads `10.244.0.0/16,fd00::/64`.
fn parse_prefixes(text: &str) -> Result<Vec<IpNet>, String> {
    split_list(text).map(parse_prefix).collect()
}

fn parse_prefix(item: &str) -> Result<IpNet, String> {
    match item.parse::<IpNet>() {
        Ok(prefix) if prefix == prefix.trunc() => Ok(prefix),
        Ok(prefix) => Err(format!(
            "{item} is an address and not a prefix ({} would be one)",
            prefix.trunc()
        )),
        Err(_) => Err(format!(
            "{item:?} is not a prefix; prefixes are given as 10.244.0.0/16,fd00::/64"
        )),
    }
}

fn parse_number<T: FromStr + PartialOrd + std::fmt::Display>(
    text: &str,
    range: &RangeInclusive<T>,
) -> Result<T, String> {
    let fits = text.parse().ok().filter(|number| range.contains(number));
    fits.ok_or_else(|| {
        format!(
            "it must be a whole number from {} to {}",
            range.start(),
            range.end()
        )
    })
}

/// Reads `203.0.113.7:51840,gateway.example.org:51840`.
fn parse_gateway_addresses(text: &str) -> Result<Vec<String>, String> {
    split_list(text).map(parse_gateway_address).collect()
}

fn parse_gateway_address(item: &str) -> Result<String, String> {
    match item
        .rsplit_once(':')
        .map(|(host, port)| (host, port.parse::<u16>()))
    {
        Some((host, Ok(1..))) if !host.is_empty() && !host.contains(['/', ' ']) => {
            Ok(item.to_owned())
        }
        _ => Err(format!(
            "{item:?} is not address:port, for example 203.0.113.7:51840"
        )),
    }
}

#[cfg(test)]
mod tests {
    use crate::settings::InstallSettings;

    use super::*;

    fn after(arguments: &[&str]) -> NetworkSettings {
        InstallSettings::parse(arguments)
            .unwrap()
            .network
            .applied_to(NetworkSettings::default())
    }

    #[test]
    fn every_key_is_understood() {
        let network = after(&[
            "network.enabled=false",
            "network.podCIDRs=10.1.0.0/16,fd01::/64",
            "network.serviceCIDRs=10.2.0.0/16",
            "network.externalCIDRs={10.3.0.0/24}",
            "network.reservedCIDRs=10.4.0.0/16",
            "network.peerCIDRs=10.5.0.0/16",
            "network.mtu=1380",
            "network.apiThroughTunnel=true",
            "network.gateways.replicas=3",
            "network.gateways.port=5000",
            "network.gateways.nodeSelector=edge=yes",
            "network.gateways.addresses=203.0.113.7:51840,gateway.example.org:51840",
            "network.gateways.tlsPort=8443",
            "network.gateways.tlsAddresses=203.0.113.7:443",
        ]);
        let text = serde_json::to_value(&network).unwrap();
        assert_eq!(
            text,
            serde_json::json!({
                "enabled": false,
                "podCIDRs": ["10.1.0.0/16", "fd01::/64"],
                "serviceCIDRs": ["10.2.0.0/16"],
                "externalCIDRs": ["10.3.0.0/24"],
                "reservedCIDRs": ["10.4.0.0/16"],
                "peerCIDRs": ["10.5.0.0/16"],
                "mtu": 1380,
                "apiThroughTunnel": true,
                "gateways": {
                    "replicas": 3,
                    "port": 5000,
                    "nodeSelector": { "edge": "yes" },
                    "tlsPort": 8443,
                    "addresses": ["203.0.113.7:51840", "gateway.example.org:51840"],
                    "tlsAddresses": ["203.0.113.7:443"],
                },
            })
        );
        assert_eq!(after(&[]), NetworkSettings::default());
        assert_eq!(after(&["network.externalCIDRs="]).external_cidrs, []);
    }

    #[test]
    fn values_that_cannot_work_are_refused_with_what_would() {
        for (argument, hint) in [
            ("network.enabled=yes", "true or false"),
            ("network.podCIDRs=10.244.0.1/16", "10.244.0.0/16"),
            ("network.podCIDRs=pods", "10.244.0.0/16"),
            ("network.mtu=1000", "1280 to 8900"),
            ("network.gateways.replicas=8", "1 to 7"),
            ("network.gateways.port=0", "1 to 65535"),
            ("network.gateways.addresses=203.0.113.7", "address:port"),
            ("network.gateways.tlsPort=none", "0 to 65535"),
            ("network.speed=9", "network.mtu"),
        ] {
            let text = InstallSettings::parse(&[argument]).unwrap_err().to_string();
            assert!(text.contains(hint), "{argument}: {text}");
        }
    }
}
