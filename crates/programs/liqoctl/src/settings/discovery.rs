//! `discovery.lan.*` and `discovery.autoPeering`: how clusters find each other, and with which of
//! them peerings are automatic.

use liqo_api::{Discovery, DiscoverySettings, PeerSelector, PeeringPolicySpec};

use super::network::parse_boolean;

pub(super) const LAN: &str = "discovery.lan.enabled";
pub(super) const INTERFACES: &str = "discovery.lan.interfaces";
pub(super) const AUTO_PEERING: &str = "discovery.autoPeering";

/// Priority of the policy for automatic peerings: above the default policy.
const PRIORITY: i32 = 10;

/// The settings of discovery. Nothing means: unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveryChanges {
    lan: Option<bool>,
    interfaces: Option<Vec<String>>,
    /// The ways of discovery; none to end automatic peering.
    auto_peering: Option<Vec<Discovery>>,
}

impl DiscoveryChanges {
    /// Takes a key, if it is one of discovery.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<bool, String> {
        match key {
            LAN => self.lan = Some(parse_boolean(value)?),
            INTERFACES => self.interfaces = Some(parse_interfaces(value)?),
            AUTO_PEERING => self.auto_peering = Some(parse_discovery_methods(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The configuration with the settings applied.
    pub(super) fn applied_to(&self, mut discovery: DiscoverySettings) -> DiscoverySettings {
        discovery.lan.enabled = self.lan.unwrap_or(discovery.lan.enabled);
        if let Some(interfaces) = &self.interfaces {
            discovery.lan.interfaces.clone_from(interfaces);
        }
        discovery
    }

    /// The policy for automatic peerings with the settings applied. Other fields of an existing one
    /// stay.
    pub(super) fn policy_with_settings(
        &self,
        present: Option<PeeringPolicySpec>,
    ) -> Option<PeeringPolicySpec> {
        let Some(ways) = &self.auto_peering else {
            return present;
        };
        if ways.is_empty() {
            return None;
        }
        let mut policy = present.unwrap_or_else(|| PeeringPolicySpec {
            priority: PRIORITY,
            ..PeeringPolicySpec::default()
        });
        policy.peers = PeerSelector {
            discovered_by: ways.clone(),
            ..policy.peers
        };
        policy.provide.token_required = false;
        policy.consume.automatic = true;
        Some(policy)
    }
}

fn split_list(text: &str) -> impl Iterator<Item = &str> {
    let text = text
        .trim_start_matches(['{', '['])
        .trim_end_matches(['}', ']']);
    text.split(',').map(str::trim).filter(|one| !one.is_empty())
}

fn parse_interfaces(text: &str) -> Result<Vec<String>, String> {
    let all: Vec<String> = split_list(text).map(str::to_owned).collect();
    match all
        .iter()
        .find(|name| name.len() > 15 || name.contains(['/', ' ']))
    {
        Some(name) => Err(format!(
            "{name:?} is not the name of an interface, such as eth0"
        )),
        None if all.len() > 16 => Err("at most 16 interfaces".to_owned()),
        None => Ok(all),
    }
}

fn parse_discovery_methods(text: &str) -> Result<Vec<Discovery>, String> {
    split_list(text).map(parse_discovery_method).collect()
}

fn parse_discovery_method(name: &str) -> Result<Discovery, String> {
    match Discovery::of_label(&name.to_ascii_uppercase()) {
        Some(way @ (Discovery::LAN | Discovery::DNS)) => Ok(way),
        _ => Err(
            "it must be LAN, DNS, or both with a comma; empty to end automatic peering".to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(settings: &[(&str, &str)]) -> DiscoveryChanges {
        let mut changes = DiscoveryChanges::default();
        for (key, value) in settings {
            changes.set(key, value).unwrap();
        }
        changes
    }

    #[test]
    fn discovery_is_off_until_it_is_switched_on_and_stays_on() {
        let before = changes(&[]).applied_to(DiscoverySettings::default());
        assert!(before.is_default() && !before.lan.enabled);
        let after = changes(&[(LAN, "true"), (INTERFACES, "{eth0,eth1}")]).applied_to(before);
        assert!(after.lan.enabled);
        assert_eq!(changes(&[]).applied_to(after.clone()), after);
        assert_eq!(after.lan.interfaces, ["eth0", "eth1"]);
    }

    #[test]
    fn automatic_peering_is_a_policy_for_those_who_were_found_that_way() {
        assert_eq!(changes(&[]).policy_with_settings(None), None);
        let mut policy = changes(&[(AUTO_PEERING, "lan")])
            .policy_with_settings(None)
            .unwrap();
        assert_eq!(
            (policy.peers.discovered_by.as_slice(), policy.priority),
            (&[Discovery::LAN][..], PRIORITY)
        );
        assert!(policy.consume.automatic && !policy.provide.token_required);
        // What a person changed stays.
        policy.provide.percentage = 20;
        let wider = changes(&[(AUTO_PEERING, "LAN,DNS")])
            .policy_with_settings(Some(policy))
            .unwrap();
        assert_eq!(
            (wider.provide.percentage, wider.peers.discovered_by.len()),
            (20, 2)
        );
        assert_eq!(
            changes(&[(AUTO_PEERING, "")]).policy_with_settings(Some(wider)),
            None
        );
    }

    #[test]
    fn values_that_cannot_work_are_refused() {
        for (key, value) in [
            (LAN, "perhaps"),
            (INTERFACES, "a/b"),
            (AUTO_PEERING, "Manual"),
            (AUTO_PEERING, "all"),
        ] {
            assert!(
                DiscoveryChanges::default().set(key, value).is_err(),
                "{key}={value}"
            );
        }
    }
}
