//! When a `SearchDomain` is looked up again, and what its status says.

use std::{collections::BTreeSet, time::Duration};

use liqo_api::conditions::DesiredCondition;
use liqo_api::{RESOLVED, ResolvedReason, SearchDomainEntry, SearchDomainStatus};
use liqo_discovery::domain_lookup::{DomainLookup, Instance, LookupFault};
use tokio::time::Instant;

/// After a status that could not be written, or whose entries somebody changed.
pub const RETRY_DELAY: Duration = Duration::from_secs(5);

/// The next lookup of a domain.
pub struct ScheduledLookup {
    pub domain: String,
    pub due: Instant,
    /// The entries that the status had after the last lookup.
    pub listed: Option<Vec<SearchDomainEntry>>,
}

impl ScheduledLookup {
    /// The same, or soon if somebody changed the entries. Our own write may not be visible yet,
    /// which costs one lookup.
    pub fn due_after_status(&self, status: Option<&SearchDomainStatus>, now: Instant) -> Instant {
        let present = status
            .map(|status| status.clusters.as_slice())
            .unwrap_or_default();
        let is_changed = self
            .listed
            .as_ref()
            .is_some_and(|listed| listed.as_slice() != present);
        if is_changed {
            self.due.min(now + RETRY_DELAY)
        } else {
            self.due
        }
    }
}

/// The entries and the condition. While the DNS server does not answer, the entries stay: it says
/// nothing about the clusters.
pub fn wanted_status(
    old: &SearchDomainStatus,
    lookup: &DomainLookup,
) -> (Vec<SearchDomainEntry>, DesiredCondition) {
    let instances = match lookup.result() {
        Ok(instances) => instances,
        Err(fault) => {
            let text = format!(
                "{fault}: is the domain right, and does the DNS of this cluster forward it?"
            );
            return (
                old.clusters.clone(),
                DesiredCondition::no(RESOLVED, ResolvedReason::Unanswered, text),
            );
        }
    };
    let broken: Vec<_> = instances
        .iter()
        .filter(|instance| instance.is_broken())
        .map(|one| one.name.as_str())
        .collect();
    let condition = if instances.is_empty() {
        let text = "the domain has no PTR record for _liqo_auth._tcp";
        DesiredCondition::no(RESOLVED, ResolvedReason::NoEntry, text)
    } else if broken.is_empty() {
        DesiredCondition::yes(RESOLVED, ResolvedReason::Resolved, count_text(&instances))
    } else {
        let text = format!(
            "{}; {} of {} entries do not describe a cluster of their own: {}",
            count_text(&instances),
            broken.len(),
            instances.len(),
            broken.join(", ")
        );
        DesiredCondition::no(RESOLVED, ResolvedReason::BrokenEntries, text)
    };
    let entries = instances.into_iter().map(|instance| {
        let mut known = old.clusters.iter();
        match (&instance.found, known.find(|one| one.name == instance.name)) {
            (Err(LookupFault::Unanswered(_)), Some(known)) => known.clone(),
            _ => entry_of_instance(instance),
        }
    });
    (entries.collect(), condition)
}

/// The number of clusters that the instances describe, for people.
fn count_text(instances: &[Instance]) -> String {
    let ids = instances
        .iter()
        .filter_map(|instance| Some(&instance.found.as_ref().ok()?.cluster_id));
    match ids.collect::<BTreeSet<_>>().len() {
        1 => "1 cluster".to_owned(),
        clusters => format!("{clusters} clusters"),
    }
}

fn entry_of_instance(instance: Instance) -> SearchDomainEntry {
    match instance.found {
        Ok(found) => SearchDomainEntry {
            name: instance.name,
            cluster_id: Some(found.cluster_id),
            cluster_name: Some(found.cluster_name),
            auth_urls: found.auth_urls,
            protocol: found.protocol.to_vec(),
            problem: instance.same_id_as.map(|other| {
                format!(
                    "its cluster ID is also that of {other}: the one at whose address the cluster proves it counts"
                )
            }),
        },
        Err(fault) => SearchDomainEntry {
            name: instance.name,
            problem: Some(fault.to_string()),
            ..SearchDomainEntry::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use liqo_discovery::message::{DnsMessage, DnsRecord, DnsRecordData, DnsResponseCode};

    use super::*;

    #[tokio::test]
    async fn entries_that_somebody_removed_are_looked_up_again_soon() {
        let now = Instant::now();
        let due = now + Duration::from_hours(1);
        let entry = SearchDomainEntry {
            name: "milan".into(),
            ..SearchDomainEntry::default()
        };
        let scheduled = |listed| ScheduledLookup {
            domain: "example.org".into(),
            due,
            listed,
        };
        let written = SearchDomainStatus {
            clusters: vec![entry.clone()],
            conditions: Vec::new(),
        };
        let known = scheduled(Some(vec![entry]));
        assert_eq!(known.due_after_status(Some(&written), now), due);
        assert_eq!(
            known.due_after_status(Some(&SearchDomainStatus::default()), now),
            now + RETRY_DELAY
        );
        assert_eq!(known.due_after_status(None, now), now + RETRY_DELAY);
        let soon = ScheduledLookup { due: now, ..known };
        assert_eq!(soon.due_after_status(None, now), now, "it is due already");
        assert_eq!(
            scheduled(None).due_after_status(None, now),
            due,
            "nothing is known of it yet"
        );
    }

    #[test]
    fn while_the_server_is_silent_the_entries_stay() {
        let known = SearchDomainEntry {
            name: "milan".into(),
            ..SearchDomainEntry::default()
        };
        let old = SearchDomainStatus {
            clusters: vec![known],
            conditions: Vec::new(),
        };
        let mut lookup = DomainLookup::new("example.org");
        for question in lookup.next_questions() {
            lookup.record_answer(&question, None);
        }
        let (clusters, condition) = wanted_status(&old, &lookup);
        assert_eq!(
            (clusters, condition.reason.as_str()),
            (old.clusters, "Unanswered")
        );
    }

    const SERVICE_NAME: &str = "_liqo_auth._tcp.example.org";

    /// A lookup to which the server answers all questions with these records.
    fn looked_up(records: &[(String, DnsRecordData)]) -> DomainLookup {
        let records: Vec<_> = records
            .iter()
            .map(|(name, data)| DnsRecord {
                name: name.clone(),
                ttl: 60,
                data: data.clone(),
            })
            .collect();
        let message = DnsMessage {
            id: 0,
            is_response: true,
            is_truncated: false,
            outcome: DnsResponseCode::Ok,
            questions: Vec::new(),
            records,
        };
        let mut lookup = DomainLookup::new("example.org");
        loop {
            let questions = lookup.next_questions();
            if questions.is_empty() {
                return lookup;
            }
            for question in questions {
                lookup.record_answer(&question, Some(&message));
            }
        }
    }

    fn listed(name: &str) -> (String, DnsRecordData) {
        (
            SERVICE_NAME.to_owned(),
            DnsRecordData::Ptr(format!("{name}.{SERVICE_NAME}")),
        )
    }

    #[test]
    fn entries_with_one_cluster_id_are_listed_with_their_addresses_and_name_each_other() {
        let id = liqo_api::ClusterId::of_public_key(&[2; 32]).to_string();
        let of_entry = |name: &str, host: u8| {
            let instance = format!("{name}.{SERVICE_NAME}");
            let text = DnsRecordData::Txt(
                [
                    ("id".to_owned(), id.clone()),
                    ("name".to_owned(), "milan".to_owned()),
                ]
                .into(),
            );
            let server = DnsRecordData::Srv {
                priority: 0,
                weight: 0,
                port: 1,
                target: format!("{name}.example.org"),
            };
            let address = (
                format!("{name}.example.org"),
                DnsRecordData::Address([203, 0, 113, host].into()),
            );
            [
                listed(name),
                (instance.clone(), text),
                (instance, server),
                address,
            ]
        };
        let (clusters, condition) = wanted_status(
            &SearchDomainStatus::default(),
            &looked_up(&[of_entry("liar", 9), of_entry("milan", 5)].concat()),
        );
        assert_eq!(
            clusters
                .iter()
                .map(|one| one.auth_urls.as_slice())
                .collect::<Vec<_>>(),
            [["https://203.0.113.9:1"], ["https://203.0.113.5:1"]]
        );
        let problems: Vec<_> = clusters
            .iter()
            .map(|one| one.problem.as_deref().unwrap())
            .collect();
        assert!(
            problems[0].starts_with("its cluster ID is also that of milan"),
            "{problems:?}"
        );
        assert!(
            problems[1].starts_with("its cluster ID is also that of liar"),
            "{problems:?}"
        );
        assert_eq!(
            condition.message,
            "1 cluster; 2 of 2 entries do not describe a cluster of their own: liar, milan"
        );
    }

    #[test]
    fn broken_entries_are_listed_with_what_is_wrong() {
        let (clusters, condition) = wanted_status(
            &SearchDomainStatus::default(),
            &looked_up(&[listed("milan")]),
        );
        assert_eq!(
            (clusters[0].name.as_str(), clusters[0].problem.as_deref()),
            ("milan", Some("it has no TXT record"))
        );
        assert_eq!(
            (condition.reason.as_str(), condition.status),
            ("BrokenEntries", Some(false))
        );
    }
}
