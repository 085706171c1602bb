//! The clusters that were heard on the local network.
//!
//! The key of an entry is the cluster ID and the address of the sender. So whoever announces the ID
//! of another cluster adds an entry, but neither replaces nor ends the real one. The manager tries
//! the URLs of all entries.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use liqo_api::ClusterId;

use crate::{
    announcement::{Announcement, MAX_URLS, parse_announcement, service_in},
    message::{DnsMessage, DnsRecord, DnsRecordData},
};

/// The domain of multicast DNS.
pub const LAN_DOMAIN: &str = "local";
/// Maximum number of entries.
pub const MAX_ENTRIES: usize = 256;
/// Maximum number of entries of one sender. A cluster announces only itself.
pub const MAX_ENTRIES_PER_SENDER: usize = 4;
/// Maximum number of entries of one cluster, which has several addresses, and may change its
/// gateway. Each has a URL in the report.
pub const MAX_ENTRIES_PER_CLUSTER: usize = MAX_URLS;
/// Maximum number of clusters. Later ones are ignored until one of these expires.
pub const MAX_CLUSTERS: usize = 64;
/// Bounds of the time for which an entry lives without being announced again.
const MIN_TTL: Duration = Duration::from_secs(10);
const MAX_TTL: Duration = Duration::from_mins(10);
/// Maximum number of clusters in one message that count.
const MAX_PER_MESSAGE: usize = 4;

/// Content of a message about one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LanNotice {
    /// It is there, for so many seconds.
    Present(Announcement, u32),
    /// It said goodbye, or somebody in its name.
    Gone(ClusterId),
}

/// Reads what a message says. It must contain everything about a cluster: nothing is stored to be
/// completed by a later message.
pub fn read_notices(message: &DnsMessage) -> Vec<LanNotice> {
    if !message.is_response {
        return Vec::new();
    }
    let service = service_in(LAN_DOMAIN);
    let instances = message
        .records
        .iter()
        .filter(|record| record.name == service)
        .filter_map(|record| match &record.data {
            DnsRecordData::Ptr(instance) => Some((instance, record.ttl)),
            _ => None,
        });
    instances
        .take(MAX_PER_MESSAGE)
        .filter_map(|(instance, ttl)| read_notice(instance, ttl, &message.records))
        .collect()
}

fn read_notice(instance: &str, ttl: u32, records: &[DnsRecord]) -> Option<LanNotice> {
    if ttl == 0 {
        let label = instance.split('.').next()?;
        return label.parse().ok().map(LanNotice::Gone);
    }
    let announcement = parse_announcement(instance, records).ok()?;
    Some(LanNotice::Present(announcement, ttl))
}

/// Reason why an announcement does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IgnoredReason {
    /// It is our own.
    Own,
    /// The sender, the cluster or the table has as many entries as it may have.
    Full,
}

#[derive(Clone, Debug)]
struct LanEntry {
    announcement: Announcement,
    expires: Instant,
}

/// The table. Everything in it expires.
#[derive(Clone, Debug)]
pub struct LanTable {
    own: ClusterId,
    entries: BTreeMap<(ClusterId, IpAddr), LanEntry>,
}

impl LanTable {
    pub fn new(own: ClusterId) -> Self {
        Self {
            own,
            entries: BTreeMap::new(),
        }
    }

    /// Records what `sender` said.
    pub fn record_notice(
        &mut self,
        sender: IpAddr,
        heard: LanNotice,
        now: Instant,
    ) -> Result<(), IgnoredReason> {
        self.expire(now);
        match heard {
            // Not at once: another node of the cluster, or the cluster itself if it did not say
            // that, announces it again (RFC 6762, section 10.1).
            LanNotice::Gone(id) => {
                if let Some(entry) = self.entries.get_mut(&(id, sender)) {
                    entry.expires = entry.expires.min(now + MIN_TTL);
                }
                Ok(())
            }
            LanNotice::Present(announcement, _) if announcement.cluster_id == self.own => {
                Err(IgnoredReason::Own)
            }
            LanNotice::Present(announcement, ttl) => {
                let key = (announcement.cluster_id.clone(), sender);
                if !self.entries.contains_key(&key) && self.is_full_for(&key) {
                    return Err(IgnoredReason::Full);
                }
                let ttl = Duration::from_secs(ttl.into()).clamp(MIN_TTL, MAX_TTL);
                self.entries.insert(
                    key,
                    LanEntry {
                        announcement,
                        expires: now + ttl,
                    },
                );
                Ok(())
            }
        }
    }

    fn is_full_for(&self, (id, sender): &(ClusterId, IpAddr)) -> bool {
        let of_cluster = self.entries.keys().filter(|key| key.0 == *id).count();
        let of_sender = self.entries.keys().filter(|key| key.1 == *sender).count();
        let clusters: BTreeSet<_> = self.entries.keys().map(|key| &key.0).collect();
        self.entries.len() >= MAX_ENTRIES
            || of_sender >= MAX_ENTRIES_PER_SENDER
            || of_cluster >= MAX_ENTRIES_PER_CLUSTER
            || (of_cluster == 0 && clusters.len() >= MAX_CLUSTERS)
    }

    /// Forgets what has expired.
    pub fn expire(&mut self, now: Instant) {
        self.entries.retain(|_, entry| entry.expires > now);
    }

    /// Time at which the next entry expires.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.entries.values().map(|entry| entry.expires).min()
    }

    /// The clusters, each once, ordered by ID. The URLs of a cluster come from its senders in turn,
    /// so that no sender can push out those of the others.
    pub fn clusters(&self) -> Vec<Announcement> {
        let mut by_cluster: BTreeMap<&ClusterId, Vec<&Announcement>> = BTreeMap::new();
        for ((id, _), entry) in &self.entries {
            by_cluster.entry(id).or_default().push(&entry.announcement);
        }
        let merged = by_cluster.into_values().filter_map(|all| {
            let mut merged = Announcement {
                auth_urls: Vec::new(),
                ..(*all.first()?).clone()
            };
            for turn in 0..MAX_URLS {
                for url in all.iter().filter_map(|one| one.auth_urls.get(turn)) {
                    if merged.auth_urls.len() < MAX_URLS && !merged.auth_urls.contains(url) {
                        merged.auth_urls.push(url.clone());
                    }
                }
            }
            Some(merged)
        });
        merged.collect()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::announcement::tests::id;

    fn present(number: u8, url: &str, ttl: u32) -> LanNotice {
        let announcement = Announcement {
            cluster_id: id(number),
            cluster_name: format!("c{number}"),
            auth_urls: vec![url.to_owned()],
            protocol: [1, 1],
        };
        LanNotice::Present(announcement, ttl)
    }

    fn sender(number: u8) -> IpAddr {
        [203, 0, 113, number].into()
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_cluster_is_seen_until_it_says_goodbye_or_expires() {
        let (mut table, start) = (LanTable::new(id(0)), Instant::now());
        table
            .record_notice(sender(1), present(1, "https://203.0.113.1:1", 120), start)
            .unwrap();
        table
            .record_notice(sender(2), present(2, "https://203.0.113.2:1", 120), start)
            .unwrap();
        assert_eq!(table.clusters().len(), 2);
        table
            .record_notice(sender(1), LanNotice::Gone(id(1)), start)
            .unwrap();
        assert_eq!(table.clusters().len(), 2, "it may contradict");
        table.expire(start + MIN_TTL);
        assert_eq!(
            table
                .clusters()
                .iter()
                .map(|one| one.cluster_id.clone())
                .collect::<Vec<_>>(),
            [id(2)]
        );
        assert_eq!(table.next_expiry(), Some(start + seconds(120)));
        table.expire(start + seconds(120));
        assert!(table.is_empty());
    }

    #[test]
    fn a_cluster_does_not_see_itself() {
        let mut table = LanTable::new(id(0));
        assert_eq!(
            table.record_notice(
                sender(1),
                present(0, "https://203.0.113.1:1", 120),
                Instant::now()
            ),
            Err(IgnoredReason::Own)
        );
    }

    #[test]
    fn a_new_address_replaces_the_one_before() {
        let (mut table, now) = (LanTable::new(id(0)), Instant::now());
        for url in ["https://203.0.113.1:1", "https://203.0.113.9:1"] {
            table
                .record_notice(sender(1), present(1, url, 120), now)
                .unwrap();
        }
        assert_eq!(table.clusters()[0].auth_urls, ["https://203.0.113.9:1"]);
    }

    #[test]
    fn nobody_ends_or_replaces_the_entry_of_another_sender() {
        let (mut table, now) = (LanTable::new(id(0)), Instant::now());
        table
            .record_notice(sender(5), present(1, "https://203.0.113.5:1", 120), now)
            .unwrap();
        table
            .record_notice(sender(6), LanNotice::Gone(id(1)), now)
            .unwrap();
        let mut lie = present(1, "https://203.0.113.6:1", 120);
        if let LanNotice::Present(announcement, _) = &mut lie {
            announcement
                .auth_urls
                .extend((0..MAX_URLS).map(|port| format!("https://203.0.113.6:{}", port + 2)));
        }
        table.record_notice(sender(4), lie, now).unwrap();
        let urls = &table.clusters()[0].auth_urls;
        assert!(
            urls.len() == MAX_URLS && urls[..2].contains(&"https://203.0.113.5:1".to_owned()),
            "{urls:?}"
        );
    }

    #[test]
    fn no_sender_fills_the_table() {
        let (mut table, now) = (LanTable::new(id(0)), Instant::now());
        for number in 1..=100 {
            let _ = table.record_notice(
                sender(1),
                present(number, "https://203.0.113.1:1", 120),
                now,
            );
        }
        assert_eq!(table.len(), MAX_ENTRIES_PER_SENDER);
        table
            .record_notice(sender(2), present(200, "https://203.0.113.2:1", 120), now)
            .unwrap();
        // Its own entries stay current.
        table
            .record_notice(sender(1), present(1, "https://203.0.113.1:2", 120), now)
            .unwrap();
    }

    #[test]
    fn those_who_were_there_first_stay() {
        let (mut table, now) = (LanTable::new(id(0)), Instant::now());
        table
            .record_notice(sender(1), present(250, "https://203.0.113.1:1", 120), now)
            .unwrap();
        for number in 1..=200_u8 {
            let _ = table.record_notice(
                sender(2 + number / 3),
                present(number, "https://203.0.113.2:1", 120),
                now,
            );
            // Those who announce the same cluster from other addresses.
            let _ = table.record_notice(
                sender(2 + number),
                present(250, &format!("https://203.0.113.3:{number}"), 120),
                now,
            );
        }
        let clusters = table.clusters();
        let first = clusters
            .iter()
            .find(|one| one.cluster_id == id(250))
            .expect("it is still there");
        assert!(
            clusters.len() == MAX_CLUSTERS
                && first
                    .auth_urls
                    .contains(&"https://203.0.113.1:1".to_owned())
        );
    }

    #[test]
    fn lifetimes_have_bounds() {
        let (mut table, now) = (LanTable::new(id(0)), Instant::now());
        table
            .record_notice(
                sender(1),
                present(1, "https://203.0.113.1:1", u32::MAX),
                now,
            )
            .unwrap();
        table
            .record_notice(sender(2), present(2, "https://203.0.113.1:1", 1), now)
            .unwrap();
        assert_eq!(table.next_expiry(), Some(now + MIN_TTL));
        table.expire(now + MIN_TTL);
        assert_eq!(table.next_expiry(), Some(now + MAX_TTL));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_history_exceeds_a_bound_and_everything_ends(
            history in prop::collection::vec((any::<u8>(), 1u8..40, any::<u8>(), any::<u32>(), 0u64..40, any::<bool>()), 0..900)
        ) {
            let (mut table, mut now) = (LanTable::new(id(0)), Instant::now());
            for (from, number, port, ttl, later, goodbye) in history {
                now += seconds(later / 39);
                let what = if goodbye { LanNotice::Gone(id(number)) } else { present(number, &format!("https://203.0.113.1:{port}"), ttl) };
                let _ = table.record_notice(sender(from), what, now);
                prop_assert!(table.len() <= MAX_ENTRIES);
                let clusters = table.clusters();
                prop_assert!(clusters.len() <= MAX_CLUSTERS);
                prop_assert!(clusters.iter().all(|one| (1..=MAX_URLS).contains(&one.auth_urls.len())));
            }
            table.expire(now + MAX_TTL);
            prop_assert!(table.is_empty());
        }
    }
}
