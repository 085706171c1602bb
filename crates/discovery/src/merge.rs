//! Merges the clusters that were found on the local network and in DNS domains, one entry for each
//! cluster ID, and decides what follows for its `ForeignCluster`.

use std::collections::{BTreeMap, BTreeSet};

use liqo_api::{
    ClusterId, Discovery, ForeignCluster, PeeringIntent, RequestedResources, SearchDomain,
    annotations, labels,
};
use serde::{Deserialize, Serialize};

use crate::announcement::{Announcement, MAX_URLS};

/// Maximum number of `ForeignCluster`s that discovery creates.
pub const MAX_CREATED: usize = 64;

/// A cluster that was found in at least one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundCluster {
    pub announcement: Announcement,
    /// The ways: `LAN`, `DNS` or both.
    pub ways: Vec<Discovery>,
    /// The same for people: `LAN`, and the names of `SearchDomain`s.
    pub sources: Vec<String>,
}

/// The clusters that the status of a `SearchDomain` lists.
pub fn listed_announcements(domain: &SearchDomain) -> Vec<Announcement> {
    let entries = domain.status.iter().flat_map(|status| &status.clusters);
    let complete = entries.filter_map(|entry| {
        let protocol = <[u32; 2]>::try_from(entry.protocol.as_slice()).ok()?;
        let (cluster_id, cluster_name) = (entry.cluster_id.clone()?, entry.cluster_name.clone()?);
        Some(Announcement {
            cluster_id,
            cluster_name,
            auth_urls: entry.auth_urls.clone(),
            protocol,
        })
    });
    complete.collect()
}

/// Merges what was found on the local network and in each `SearchDomain`. This cluster itself is
/// left out.
pub fn merge_announcements(
    own: &ClusterId,
    lan: &[Announcement],
    domains: &BTreeMap<String, Vec<Announcement>>,
) -> BTreeMap<ClusterId, FoundCluster> {
    let mut merged: BTreeMap<ClusterId, FoundCluster> = BTreeMap::new();
    let dns = domains
        .iter()
        .map(|(domain, all)| (Discovery::DNS, domain.as_str(), all.as_slice()));
    for (way, source, all) in [(Discovery::LAN, "LAN", lan)].into_iter().chain(dns) {
        let others = || all.iter().filter(|one| one.cluster_id != *own);
        for announcement in others() {
            let found = merged
                .entry(announcement.cluster_id.clone())
                .or_insert_with(|| FoundCluster {
                    announcement: Announcement {
                        auth_urls: Vec::new(),
                        ..announcement.clone()
                    },
                    ways: Vec::new(),
                    sources: Vec::new(),
                });
            if !found.ways.contains(&way) {
                found.ways.push(way);
            }
            if !found.sources.iter().any(|known| known == source) {
                found.sources.push(source.to_owned());
            }
        }
        add_urls(&mut merged, others);
    }
    merged
}

/// Adds the URLs of one source, at most [`MAX_URLS`] for each cluster, so that there is room for
/// the next source. Entries with the same ID take turns, so that a false one does not use up the
/// room of the right one.
fn add_urls<'a, I: Iterator<Item = &'a Announcement>>(
    merged: &mut BTreeMap<ClusterId, FoundCluster>,
    announcements: impl Fn() -> I,
) {
    let mut added: BTreeMap<&ClusterId, usize> = BTreeMap::new();
    for turn in 0..MAX_URLS {
        for announcement in announcements() {
            let id = &announcement.cluster_id;
            let (Some(url), Some(found)) = (announcement.auth_urls.get(turn), merged.get_mut(id))
            else {
                continue;
            };
            let (urls, added) = (
                &mut found.announcement.auth_urls,
                added.entry(id).or_default(),
            );
            if *added < MAX_URLS && urls.len() < 2 * MAX_URLS && !urls.contains(url) {
                urls.push(url.clone());
                *added += 1;
            }
        }
    }
}

/// A cluster that discovery finds now, as `liqoctl discover` reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryListEntry {
    #[serde(flatten)]
    pub announcement: Announcement,
    /// `LAN`, and the names of `SearchDomain`s.
    pub sources: Vec<String>,
    /// Reason why it has no `ForeignCluster`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Results of calls to the announced URLs of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedUrls {
    /// URLs at which the cluster proved its ID.
    pub proved: BTreeSet<String>,
    /// URLs at which it did not, with the reason.
    pub failed: BTreeMap<String, String>,
}

/// The facts about a `ForeignCluster` that count here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // Facts that do not depend on each other.
pub struct KnownForeignCluster {
    /// A person made it: it does not have Liqo's label.
    pub by_person: bool,
    /// The way in its label, if it is not `Manual`.
    pub way: Option<Discovery>,
    pub auth_url: Option<String>,
    /// One side borrows from the other, or a consumer waits for approval.
    pub is_peered: bool,
    /// A person changed what discovery does not write.
    pub is_decided: bool,
    pub deleting: bool,
}

impl KnownForeignCluster {
    pub fn from_foreign_cluster(record: &ForeignCluster) -> Self {
        let labels = record.metadata.labels.as_ref();
        let label = |key: &str| Some(labels?.get(key)?.as_str());
        let status = record.status.as_ref();
        let waits = record
            .metadata
            .annotations
            .as_ref()
            .is_some_and(|all| all.contains_key(annotations::PENDING_APPROVAL));
        let spec = &record.spec;
        let auto = PeeringIntent::Auto;
        Self {
            by_person: label(labels::MANAGED) != Some("true"),
            way: label(labels::DISCOVERED_BY)
                .and_then(Discovery::of_label)
                .filter(|way| *way != Discovery::Manual),
            auth_url: spec.auth_url.clone(),
            is_peered: waits
                || status.is_some_and(|status| {
                    status.tenant_namespace.is_some() || status.remote_tenant_namespace.is_some()
                }),
            is_decided: spec.outgoing_peering != auto
                || spec.incoming_peering != auto
                || spec.network != auto
                || !spec.offers.is_empty()
                || !spec.tunnel.is_empty()
                || spec.token_secret_name.is_some()
                || spec.request != RequestedResources::default(),
            deleting: record.metadata.deletion_timestamp.is_some(),
        }
    }
}

/// Next change of a `ForeignCluster`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForeignClusterChange {
    Nothing,
    Create {
        way: Discovery,
        auth_url: String,
    },
    /// Set what is not `None`.
    Update {
        way: Option<Discovery>,
        auth_url: Option<String>,
    },
    Delete,
}

/// Decides about one cluster. `created` is the number of `ForeignCluster`s that discovery created
/// so far.
pub fn decide_change(
    found: Option<&FoundCluster>,
    known: Option<&KnownForeignCluster>,
    verified: &VerifiedUrls,
    created: usize,
) -> ForeignClusterChange {
    match (found, known) {
        (_, Some(known)) if known.by_person || known.deleting => ForeignClusterChange::Nothing,
        // A person gave it the URL, by which it may be reached in another way on purpose. Or a
        // consumer came by itself: that somebody announces it does not change the policy for it.
        (_, Some(known))
            if known.way.is_none() && (known.auth_url.is_some() || known.is_peered) =>
        {
            ForeignClusterChange::Nothing
        }
        (None, Some(known)) if known.way.is_some() && !known.is_peered && !known.is_decided => {
            ForeignClusterChange::Delete
        }
        (None, _) => ForeignClusterChange::Nothing,
        (Some(found), None) => match (first_proved(found, verified), found.ways.first()) {
            (Some(auth_url), Some(way)) if created < MAX_CREATED => ForeignClusterChange::Create {
                way: *way,
                auth_url,
            },
            _ => ForeignClusterChange::Nothing,
        },
        (Some(found), Some(known)) => {
            let Some(proved) = first_proved(found, verified) else {
                return ForeignClusterChange::Nothing;
            };
            let current = known.auth_url.as_ref();
            // An address that is still announced stays until the cluster answers only at another
            // one.
            let stays = current.is_some_and(|url| {
                found.announcement.auth_urls.contains(url) && !verified.failed.contains_key(url)
            });
            let auth_url = Some(proved).filter(|_| !stays);
            // The way decides which policy applies, so it does not change under a peering.
            let is_stale =
                !known.is_peered && known.way.is_none_or(|way| !found.ways.contains(&way));
            let way = found.ways.first().copied().filter(|_| is_stale);
            if auth_url.is_none() && way.is_none() {
                ForeignClusterChange::Nothing
            } else {
                ForeignClusterChange::Update { way, auth_url }
            }
        }
    }
}

fn first_proved(found: &FoundCluster, verified: &VerifiedUrls) -> Option<String> {
    found
        .announcement
        .auth_urls
        .iter()
        .find(|url| verified.proved.contains(*url))
        .cloned()
}

/// Reason why a cluster that was found has no `ForeignCluster`. `None`: it has one, or will have
/// one in a moment.
pub fn reason_not_created(
    found: &FoundCluster,
    known: Option<&KnownForeignCluster>,
    verified: &VerifiedUrls,
    created: usize,
) -> Option<String> {
    if known.is_some()
        || found
            .announcement
            .auth_urls
            .iter()
            .any(|url| !verified.failed.contains_key(url))
    {
        let is_full = known.is_none() && created >= MAX_CREATED;
        return is_full.then(|| {
            format!(
                "discovery created {MAX_CREATED} ForeignClusters already: delete some, or create this one with `liqoctl peer`"
            )
        });
    }
    let first = found.announcement.auth_urls.first()?;
    verified.failed.get(first).cloned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::announcement::tests::id;

    const HERE: &str = "https://203.0.113.1:30443";
    const THERE: &str = "https://203.0.113.2:30443";

    fn announcement(number: u8, urls: &[&str]) -> Announcement {
        Announcement {
            cluster_id: id(number),
            cluster_name: "milan".into(),
            auth_urls: urls.iter().map(ToString::to_string).collect(),
            protocol: [1, 1],
        }
    }

    fn found(ways: &[Discovery], urls: &[&str]) -> FoundCluster {
        FoundCluster {
            announcement: announcement(1, urls),
            ways: ways.to_vec(),
            sources: Vec::new(),
        }
    }

    fn proved(urls: &[&str]) -> VerifiedUrls {
        VerifiedUrls {
            proved: urls.iter().map(ToString::to_string).collect(),
            ..VerifiedUrls::default()
        }
    }

    /// As discovery makes it.
    fn made() -> KnownForeignCluster {
        KnownForeignCluster {
            by_person: false,
            way: Some(Discovery::LAN),
            auth_url: Some(HERE.into()),
            is_peered: false,
            is_decided: false,
            deleting: false,
        }
    }

    #[test]
    fn all_ways_merge_into_one_cluster() {
        let domains = BTreeMap::from([(
            "example".to_owned(),
            vec![announcement(1, &[THERE]), announcement(0, &[HERE])],
        )]);
        let merged = merge_announcements(&id(0), &[announcement(1, &[HERE])], &domains);
        assert_eq!(merged.len(), 1, "a cluster does not find itself");
        let milan = &merged[&id(1)];
        assert_eq!(milan.announcement.auth_urls, [HERE, THERE]);
        assert_eq!(
            (milan.ways.as_slice(), milan.sources.join(" ").as_str()),
            (&[Discovery::LAN, Discovery::DNS][..], "LAN example")
        );
    }

    #[test]
    fn a_false_entry_with_the_same_id_does_not_displace_the_right_one() {
        let urls = |host: u8| {
            (0..MAX_URLS)
                .map(|port| format!("https://203.0.113.{host}:{}", port + 1))
                .collect::<Vec<_>>()
        };
        let with_urls = |auth_urls| Announcement {
            auth_urls,
            ..announcement(1, &[])
        };
        let entries = vec![
            with_urls(urls(8)),
            with_urls(urls(9)),
            announcement(1, &[THERE]),
        ];
        let merged = merge_announcements(
            &id(0),
            &[with_urls(urls(7))],
            &BTreeMap::from([("example".to_owned(), entries)]),
        );
        let milan = &merged[&id(1)];
        assert!(
            milan.announcement.auth_urls.len() == 2 * MAX_URLS
                && milan.announcement.auth_urls.contains(&THERE.to_owned())
        );
        let create = ForeignClusterChange::Create {
            way: Discovery::LAN,
            auth_url: THERE.into(),
        };
        assert_eq!(
            decide_change(Some(milan), None, &proved(&[THERE]), 0),
            create
        );
    }

    #[test]
    fn only_a_cluster_that_proved_its_id_gets_an_object() {
        let milan = found(&[Discovery::LAN], &[HERE, THERE]);
        assert_eq!(
            decide_change(Some(&milan), None, &VerifiedUrls::default(), 0),
            ForeignClusterChange::Nothing
        );
        let create = ForeignClusterChange::Create {
            way: Discovery::LAN,
            auth_url: THERE.into(),
        };
        assert_eq!(
            decide_change(Some(&milan), None, &proved(&[THERE]), 0),
            create
        );
        assert_eq!(
            decide_change(Some(&milan), None, &proved(&[THERE]), MAX_CREATED),
            ForeignClusterChange::Nothing
        );
    }

    #[test]
    fn an_address_changes_only_to_one_that_is_proved() {
        let moved = found(&[Discovery::LAN], &[THERE]);
        assert_eq!(
            decide_change(Some(&moved), Some(&made()), &VerifiedUrls::default(), 1),
            ForeignClusterChange::Nothing
        );
        let update = ForeignClusterChange::Update {
            way: None,
            auth_url: Some(THERE.into()),
        };
        assert_eq!(
            decide_change(Some(&moved), Some(&made()), &proved(&[THERE]), 1),
            update
        );
        // It does not change while the current one is announced, too, unless only the other one
        // answers.
        let both = found(&[Discovery::LAN], &[THERE, HERE]);
        assert_eq!(
            decide_change(Some(&both), Some(&made()), &proved(&[THERE, HERE]), 1),
            ForeignClusterChange::Nothing
        );
        let mut verified = proved(&[THERE]);
        verified.failed.insert(HERE.into(), "no answer".into());
        assert_eq!(
            decide_change(Some(&both), Some(&made()), &verified, 1),
            update
        );
    }

    #[test]
    fn the_object_of_a_consumer_gets_its_address_and_the_label_only_without_a_peering() {
        let came = KnownForeignCluster {
            way: None,
            auth_url: None,
            is_peered: false,
            ..made()
        };
        let update = ForeignClusterChange::Update {
            way: Some(Discovery::DNS),
            auth_url: Some(HERE.into()),
        };
        assert_eq!(
            decide_change(
                Some(&found(&[Discovery::DNS], &[HERE])),
                Some(&came),
                &proved(&[HERE]),
                0
            ),
            update
        );
        let borrows = KnownForeignCluster {
            is_peered: true,
            ..came.clone()
        };
        assert_eq!(
            decide_change(
                Some(&found(&[Discovery::DNS], &[HERE])),
                Some(&borrows),
                &proved(&[HERE]),
                0
            ),
            ForeignClusterChange::Nothing
        );
        let with_url = KnownForeignCluster {
            auth_url: Some(THERE.into()),
            ..came
        };
        assert_eq!(
            decide_change(
                Some(&found(&[Discovery::DNS], &[HERE])),
                Some(&with_url),
                &proved(&[HERE]),
                0
            ),
            ForeignClusterChange::Nothing
        );
    }

    #[test]
    fn the_label_stays_while_the_cluster_is_found_that_way() {
        let both = found(&[Discovery::DNS, Discovery::LAN], &[HERE]);
        assert_eq!(
            decide_change(Some(&both), Some(&made()), &proved(&[HERE]), 1),
            ForeignClusterChange::Nothing
        );
        let dns = found(&[Discovery::DNS], &[HERE]);
        let update = ForeignClusterChange::Update {
            way: Some(Discovery::DNS),
            auth_url: None,
        };
        assert_eq!(
            decide_change(Some(&dns), Some(&made()), &proved(&[HERE]), 1),
            update
        );
        let peered = KnownForeignCluster {
            is_peered: true,
            ..made()
        };
        assert_eq!(
            decide_change(Some(&dns), Some(&peered), &proved(&[HERE]), 1),
            ForeignClusterChange::Nothing,
            "another policy might apply"
        );
    }

    #[test]
    fn what_nobody_sees_goes_unless_it_is_peered_or_a_person_has_a_part_in_it() {
        let gone = |known: KnownForeignCluster| {
            decide_change(None, Some(&known), &VerifiedUrls::default(), 1)
        };
        assert_eq!(gone(made()), ForeignClusterChange::Delete);
        assert_eq!(
            gone(KnownForeignCluster {
                is_peered: true,
                ..made()
            }),
            ForeignClusterChange::Nothing
        );
        assert_eq!(
            gone(KnownForeignCluster {
                is_decided: true,
                ..made()
            }),
            ForeignClusterChange::Nothing
        );
        assert_eq!(
            gone(KnownForeignCluster {
                by_person: true,
                ..made()
            }),
            ForeignClusterChange::Nothing
        );
        assert_eq!(
            gone(KnownForeignCluster {
                way: None,
                ..made()
            }),
            ForeignClusterChange::Nothing,
            "it belongs to a consumer that came"
        );
        assert_eq!(
            gone(KnownForeignCluster {
                deleting: true,
                ..made()
            }),
            ForeignClusterChange::Nothing
        );
    }

    #[test]
    fn the_problem_is_that_of_the_first_url() {
        let (milan, mut verified) = (
            found(&[Discovery::LAN], &[HERE, THERE]),
            VerifiedUrls::default(),
        );
        assert_eq!(reason_not_created(&milan, None, &verified, 0), None);
        for (url, text) in [(THERE, "there"), (HERE, "here")] {
            verified.failed.insert(url.into(), text.into());
        }
        assert_eq!(
            reason_not_created(&milan, None, &verified, 0).as_deref(),
            Some("here")
        );
        assert_eq!(
            reason_not_created(&milan, Some(&made()), &verified, 0),
            None
        );
        assert!(
            reason_not_created(&milan, None, &proved(&[HERE]), MAX_CREATED)
                .unwrap()
                .contains("delete some")
        );
    }

    #[test]
    fn the_facts_of_an_object_are_read() {
        let record = |spec: serde_json::Value, labels: serde_json::Value| -> ForeignCluster {
            let mut spec = spec;
            spec["clusterID"] = json!(id(1));
            serde_json::from_value(
                json!({ "metadata": { "name": "milan", "labels": labels }, "spec": spec }),
            )
            .unwrap()
        };
        let ours = json!({ labels::MANAGED: "true", labels::DISCOVERED_BY: "LAN" });
        assert_eq!(
            KnownForeignCluster::from_foreign_cluster(&record(
                json!({ "authURL": HERE }),
                ours.clone()
            )),
            made()
        );
        assert!(
            KnownForeignCluster::from_foreign_cluster(&record(
                json!({ "outgoingPeering": "No" }),
                ours
            ))
            .is_decided
        );
        assert!(KnownForeignCluster::from_foreign_cluster(&record(json!({}), json!({}))).by_person);
    }

    proptest! {
        #[test]
        fn nothing_of_a_person_changes_and_no_url_is_used_that_was_not_proved(
            ways in prop::sample::subsequence(vec![Discovery::LAN, Discovery::DNS], 0..=2),
            urls in prop::sample::subsequence(vec![HERE, THERE], 1..=2),
            good in prop::sample::subsequence(vec![HERE, THERE], 0..=2),
            flags in any::<[bool; 6]>(),
        ) {
            let [by_person, with_way, is_peered, is_decided, deleting, is_known] = flags;
            let known = KnownForeignCluster {
                by_person, is_peered, is_decided, deleting,
                way: with_way.then_some(Discovery::LAN), ..made()
            };
            let found = (!ways.is_empty()).then(|| found(&ways, &urls));
            let verified = proved(&good);
            let change = decide_change(found.as_ref(), is_known.then_some(&known), &verified, 0);
            if is_known && (by_person || deleting) {
                prop_assert_eq!(&change, &ForeignClusterChange::Nothing);
            }
            match change {
                ForeignClusterChange::Create { auth_url, .. } | ForeignClusterChange::Update { auth_url: Some(auth_url), .. } => {
                    prop_assert!(verified.proved.contains(&auth_url));
                }
                ForeignClusterChange::Delete => prop_assert!(found.is_none() && with_way && !is_peered && !is_decided),
                ForeignClusterChange::Nothing | ForeignClusterChange::Update { auth_url: None, .. } => {}
            }
        }
    }
}
