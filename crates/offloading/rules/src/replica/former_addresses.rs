//! Addresses that remote pods had a moment ago.
//!
//! A pod ends first, and the consumer takes its endpoint back a moment later. Until then, the provider leaves the endpoint out
//! without reporting it. If the consumer keeps the endpoint, the next check after [`GRACE`] reports it.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::pod::remote_pod::RemotePod;

/// How long the consumer may take to take an endpoint back.
const GRACE: Duration = Duration::from_secs(30);

#[derive(Default)]
pub struct FormerAddresses {
    /// When a pod of a mapped namespace lost an address.
    lost: HashMap<(String, IpAddr), Instant>,
}

impl FormerAddresses {
    /// Records a change that the watch reported.
    pub fn changed(&mut self, old: Option<&RemotePod>, new: Option<&RemotePod>, now: Instant) {
        let Some(old) = old else { return };
        let lost = old.addresses.iter().filter(|address| new.is_none_or(|new| !new.addresses.contains(address)));
        let mut lost = lost.map(|&address| ((old.key.namespace.clone(), address), now)).peekable();
        if lost.peek().is_some() {
            self.lost.retain(|_, since| now.duration_since(*since) < GRACE);
            self.lost.extend(lost);
        }
    }

    /// The addresses that pods of this mapped namespace had a moment ago.
    pub fn of(&self, namespace: &str, now: Instant) -> BTreeSet<IpAddr> {
        let recent = self.lost.iter().filter(|((of, _), since)| of == namespace && now.duration_since(**since) < GRACE);
        recent.map(|((_, address), _)| *address).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::pod;

    #[test]
    fn an_address_is_a_former_one_for_a_while_after_its_pod_lost_it() {
        let with = |phase: &str, address: &str| {
            let status = json!({ "phase": phase, "podIPs": [{ "ip": address }] });
            pod("web", "u", |object| object["status"] = status)
        };
        let (mut former, start) = (FormerAddresses::default(), Instant::now());
        let of = |former: &FormerAddresses, seconds: u64| {
            let found = former.of("demo-rome-aaaaaa", start + Duration::from_secs(seconds));
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let running = with("Running", "10.244.0.9");
        former.changed(None, Some(&running), start);
        former.changed(Some(&running), Some(&running), start);
        assert!(of(&former, 0).is_empty());
        former.changed(Some(&running), Some(&with("Succeeded", "10.244.0.9")), start);
        assert_eq!(of(&former, 29), ["10.244.0.9"]);
        assert!(of(&former, 30).is_empty());
        assert!(former.of("another", start).is_empty());
        former.changed(Some(&with("Running", "10.244.0.7")), None, start + Duration::from_secs(40));
        assert_eq!(of(&former, 40), ["10.244.0.7"]);
        assert_eq!(former.lost.len(), 1, "the old one is forgotten");
    }
}
