//! The addresses of the remote pod, as the consumer sees them.

use std::net::IpAddr;

use liqo_api::annotations;
use liqo_network_model::{PeerMaps, PrefixMap, There};
use serde_json::{Map, Value, json};

use crate::pod::local_status::RemotePodView;
use crate::views::{AddressView, PodStatusView, PodView};

/// The addresses of a remote pod, as this cluster sees them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TranslatedAddresses {
    /// The addresses at which this cluster reaches it, in the provider's order; at most one of each
    /// family.
    pub here: Vec<IpAddr>,
    /// A sentence about an address that the provider reports and that cannot be the pod's.
    pub refused: Option<String>,
}

/// Translates the addresses in a remote pod's reduced status. Only the provider's own prefixes
/// count: other addresses do not belong to it, whatever it reports.
///
/// But a provider to which this cluster lends may run the pod here. Then it reports an address of
/// ours, as it sees that. The address counts while a pod of this provider has it here, as
/// `runs_here` says: otherwise a provider could name any pod of ours, which would get connections
/// that are meant for the remote pod, and would be open to peers as the remote pod is.
pub fn translate_addresses(
    remote: &Value,
    maps: &PeerMaps,
    runs_here: impl Fn(IpAddr) -> bool,
) -> TranslatedAddresses {
    let (imported, mut found) = (&maps.imported, TranslatedAddresses::default());
    if imported.is_empty() {
        return found;
    }
    let theirs = reported_addresses(remote);
    let mut is_ours = false;
    for &address in &theirs {
        // The API server accepts at most one of a family.
        if found
            .here
            .iter()
            .any(|known| known.is_ipv4() == address.is_ipv4())
        {
            continue;
        }
        if let Some(ours) = maps.exported.to_here(There(address)) {
            is_ours = true;
            found
                .here
                .extend(Some(ours.0).filter(|&ours| runs_here(ours)));
            continue;
        }
        match imported.to_here(There(address)) {
            Some(here) => found.here.push(here.0),
            // A family without a translation is no fault, unless the pod has no other address.
            None if theirs.len() > 1
                && !imported
                    .pairs()
                    .any(|(_, there)| there.0.addr().is_ipv4() == address.is_ipv4()) => {}
            None => {
                found.refused = found
                    .refused
                    .or_else(|| Some(address_refusal(address, imported)));
            }
        }
    }
    // A pod that just ended here has no address until its provider knows that.
    if found.here.is_empty() && found.refused.is_none() && !is_ours {
        found.refused = theirs
            .first()
            .map(|&address| address_refusal(address, imported));
    }
    found
}

fn address_refusal(address: IpAddr, imported: &PrefixMap) -> String {
    let prefixes: Vec<String> = imported
        .pairs()
        .map(|(_, there)| there.0.to_string())
        .collect();
    format!(
        "the provider says that the pod has address {address}, which is outside its prefixes ({}): pods of this cluster cannot reach it",
        prefixes.join(", ")
    )
}

fn reported_addresses(remote: &Value) -> Vec<IpAddr> {
    let status = PodStatusView::of(remote);
    let listed: Vec<IpAddr> = status
        .pod_ips()
        .filter_map(|one| one.ip()?.parse().ok())
        .take(2)
        .collect();
    if listed.is_empty() {
        status
            .pod_ip()
            .and_then(|address| address.parse().ok())
            .into_iter()
            .collect()
    } else {
        listed
    }
}

/// The addresses of node and pod in the status, if they change.
pub fn show_addresses(status: &mut Map<String, Value>, home: &Value, link: &RemotePodView<'_>) {
    let host_ips: Vec<IpAddr> = link.host_ip.into_iter().collect();
    let shown = PodView::of(home).status();
    let pod_ip = shown.pod_ip().unwrap_or_default();
    for (field, list, addresses, now, listed) in [
        (
            "hostIP",
            "hostIPs",
            host_ips.as_slice(),
            shown.host_ip(),
            shown.host_ips(),
        ),
        ("podIP", "podIPs", link.pod_ips, pod_ip, shown.pod_ips()),
    ] {
        let wanted: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let listed: Vec<&str> = listed.filter_map(AddressView::ip).collect();
        // A single address is in the other field already.
        if now != wanted.first().map_or("", String::as_str)
            || (listed != wanted && listed.len().max(wanted.len()) > 1)
        {
            let mut replaced = vec![json!({"$patch": "replace"})];
            replaced.extend(wanted.iter().map(|address| json!({"ip": address})));
            status.insert(field.into(), wanted.first().cloned().into());
            status.insert(list.into(), replaced.into());
        }
    }
}

/// The pod's address at the provider.
pub(crate) fn address_annotation(home: &Value, remote: &Value) -> Map<String, Value> {
    let wanted = PodStatusView::of(remote)
        .pod_ip()
        .and_then(|address| address.parse::<IpAddr>().ok())
        .map(|address| address.to_string());
    if annotated_address(home) == wanted.as_deref() {
        return Map::new();
    }
    Map::from_iter([(annotations::REMOTE_POD_IP.to_owned(), wanted.into())])
}

fn annotated_address(home: &Value) -> Option<&str> {
    PodView::of(home)
        .metadata()
        .annotation(annotations::REMOTE_POD_IP)
}

/// The address in that annotation.
pub fn remote_pod_address(home: &Value) -> Option<IpAddr> {
    annotated_address(home)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use liqo_network_model::Here;

    use super::*;

    /// Prefixes as the provider knows them, and where we see them.
    fn imported(pairs: &[(&str, &str)]) -> PrefixMap {
        PrefixMap::new(
            pairs.iter().map(|(theirs, ours)| {
                (Here(ours.parse().unwrap()), There(theirs.parse().unwrap()))
            }),
        )
        .unwrap()
    }

    fn both() -> PrefixMap {
        imported(&[
            ("10.244.0.0/16", "10.71.0.0/16"),
            ("fd00::/64", "fd11::/64"),
        ])
    }

    fn here(remote: &Value, imported: &PrefixMap) -> (Vec<String>, bool) {
        seen(
            remote,
            &PeerMaps {
                imported: imported.clone(),
                ..PeerMaps::default()
            },
            &[],
        )
    }

    /// `guests` are the addresses of the provider's pods here.
    fn seen(remote: &Value, maps: &PeerMaps, guests: &[&str]) -> (Vec<String>, bool) {
        let found = translate_addresses(remote, maps, |address| {
            guests.contains(&address.to_string().as_str())
        });
        (
            found.here.iter().map(ToString::to_string).collect(),
            found.refused.is_some(),
        )
    }

    fn ips(all: &[&str]) -> Value {
        json!({ "podIP": all.first(), "podIPs": all.iter().map(|ip| json!({ "ip": ip })).collect::<Vec<_>>() })
    }

    fn owned(all: &[&str]) -> Vec<String> {
        all.iter().map(|&one| one.to_owned()).collect()
    }

    #[test]
    fn addresses_are_translated_in_the_order_of_the_provider() {
        assert_eq!(
            here(&json!({ "podIP": "10.244.0.9" }), &both()),
            (owned(&["10.71.0.9"]), false)
        );
        assert_eq!(
            here(&ips(&["fd00::9", "10.244.0.9"]), &both()),
            (owned(&["fd11::9", "10.71.0.9"]), false)
        );
        assert_eq!(
            here(&ips(&["10.244.0.9", "10.244.0.10"]), &both()),
            (owned(&["10.71.0.9"]), false),
            "one of a family"
        );
        assert_eq!(
            here(&json!({}), &both()),
            (Vec::new(), false),
            "it has none yet"
        );
    }

    #[test]
    fn an_address_outside_of_the_providers_prefixes_is_refused() {
        assert_eq!(here(&ips(&["10.9.0.1"]), &both()), (Vec::new(), true));
        assert_eq!(
            here(&ips(&["10.71.0.9"]), &both()),
            (Vec::new(), true),
            "where we see it is not what it has"
        );
        assert_eq!(
            here(&ips(&["10.9.0.1", "fd00::9"]), &both()),
            (owned(&["fd11::9"]), true)
        );
        let maps = PeerMaps {
            imported: both(),
            ..PeerMaps::default()
        };
        let message = translate_addresses(&ips(&["10.9.0.1"]), &maps, |_| true)
            .refused
            .unwrap();
        assert!(
            message.contains("10.9.0.1") && message.contains("10.244.0.0/16"),
            "{message}"
        );
    }

    #[test]
    fn a_pod_that_the_provider_runs_on_our_own_node_has_the_address_of_its_pod_there() {
        // Ours, and where the provider sees them.
        let exported = [
            ("10.244.0.0/16", "10.65.0.0/16"),
            ("fd00::/64", "fd65::/64"),
        ];
        let exported = exported
            .map(|(ours, theirs)| (Here(ours.parse().unwrap()), There(theirs.parse().unwrap())));
        let maps = PeerMaps {
            exported: PrefixMap::new(exported).unwrap(),
            imported: both(),
        };
        let guests = ["10.244.0.16", "fd00::16"];
        assert_eq!(
            seen(&ips(&["10.65.0.16", "fd65::16"]), &maps, &guests),
            (owned(&["10.244.0.16", "fd00::16"]), false)
        );
        assert_eq!(
            seen(&ips(&["fd65::16", "10.65.0.16"]), &maps, &guests[..1]),
            (owned(&["10.244.0.16"]), false)
        );
        assert_eq!(
            seen(&ips(&["10.65.0.17"]), &maps, &guests),
            (Vec::new(), false),
            "another pod of ours, or one that has ended"
        );
        assert_eq!(
            seen(&ips(&["10.244.0.9"]), &maps, &guests),
            (owned(&["10.71.0.9"]), false),
            "a pod at the provider"
        );
    }

    #[test]
    fn a_family_that_is_not_shown_is_left_out_and_a_pod_without_any_other_is_told() {
        let v4 = imported(&[("10.244.0.0/16", "10.71.0.0/16")]);
        assert_eq!(
            here(&ips(&["fd00::9", "10.244.0.9"]), &v4),
            (owned(&["10.71.0.9"]), false)
        );
        assert_eq!(here(&ips(&["fd00::9"]), &v4), (Vec::new(), true));
        assert_eq!(
            here(&ips(&["10.244.0.9"]), &PrefixMap::default()),
            (Vec::new(), false),
            "there is no network yet"
        );
    }
}
