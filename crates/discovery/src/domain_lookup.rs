//! Which questions to ask about a DNS domain, and what the answers say: PTR, then SRV and TXT of
//! each instance (one instance is one cluster), then addresses.
//!
//! The caller asks all [`DomainLookup::next_questions`], adds each answer, and repeats until there
//! is no question left.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use liqo_api::ClusterId;

use crate::{
    announcement::{
        Announcement, AnnouncementFault, addresses_of_host, last_alias, parse_announcement,
        servers_of_instance, service_in,
    },
    message::{DnsMessage, DnsQuestion, DnsRecord, DnsRecordData, DnsRecordType, DnsResponseCode},
};

/// Maximum number of instances of a domain that count.
pub const MAX_INSTANCES: usize = 64;
/// Maximum number of questions about one domain.
pub const MAX_QUESTIONS: usize = 512;
/// Maximum number of records that are stored for one domain.
const MAX_STORED: usize = 2048;
/// Bounds of the time after which a domain is asked again, whatever its records say.
const MIN_TTL: Duration = Duration::from_secs(10);
const MAX_TTL: Duration = Duration::from_hours(1);
/// The same if something is missing or broken.
const RETRY: Duration = Duration::from_secs(10);

/// Reason why there is no good answer about an instance, or about the domain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupFault {
    #[error("the DNS server did not answer {0}")]
    Unanswered(String),
    #[error(transparent)]
    Fault(#[from] AnnouncementFault),
}

/// One instance of a domain, with what its records say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The label of the instance, for people.
    pub name: String,
    pub found: Result<Announcement, LookupFault>,
    /// The first other instance with the same cluster ID. The records do not show which of them is
    /// right: only the cluster can prove its ID, so both count until it does.
    pub same_id_as: Option<String>,
}

impl Instance {
    /// Whether somebody has to correct its records, or those of another instance.
    pub fn is_broken(&self) -> bool {
        self.found.is_err() || self.same_id_as.is_some()
    }
}

/// The lookup of one domain.
#[derive(Clone, Debug)]
pub struct DomainLookup {
    service: String,
    asked: BTreeSet<DnsQuestion>,
    unanswered: BTreeSet<String>,
    records: Vec<DnsRecord>,
}

impl DomainLookup {
    pub fn new(domain: &str) -> Self {
        Self {
            service: service_in(domain),
            asked: BTreeSet::new(),
            unanswered: BTreeSet::new(),
            records: Vec::new(),
        }
    }

    /// The next questions; empty if everything that can be known is known.
    pub fn next_questions(&mut self) -> Vec<DnsQuestion> {
        let mut wanted = vec![DnsQuestion {
            name: self.service.clone(),
            kind: DnsRecordType::Ptr,
        }];
        for instance in self.instances() {
            let name = last_alias(&instance, &self.records);
            wanted.extend(
                [DnsRecordType::Srv, DnsRecordType::Txt].map(|kind| DnsQuestion {
                    name: name.clone(),
                    kind,
                }),
            );
            for server in servers_of_instance(&name, &self.records) {
                let host = last_alias(&server.host, &self.records);
                if addresses_of_host(&host, &self.records).is_empty() {
                    wanted.extend([DnsRecordType::A, DnsRecordType::Aaaa].map(|kind| {
                        DnsQuestion {
                            name: host.clone(),
                            kind,
                        }
                    }));
                }
            }
        }
        let left = MAX_QUESTIONS.saturating_sub(self.asked.len());
        let new: BTreeSet<DnsQuestion> = wanted
            .into_iter()
            .filter(|question| !self.asked.contains(question))
            .take(left)
            .collect();
        self.asked.extend(new.iter().cloned());
        new.into_iter().collect()
    }

    /// Adds the answer to a question. `None`: there was none.
    pub fn record_answer(&mut self, question: &DnsQuestion, answer: Option<&DnsMessage>) {
        match answer {
            Some(message) if message.outcome != DnsResponseCode::Failed => {
                let room = MAX_STORED.saturating_sub(self.records.len());
                for record in message.records.iter().take(room) {
                    if !self.records.contains(record) {
                        self.records.push(record.clone());
                    }
                }
            }
            _ => _ = self.unanswered.insert(question.name.clone()),
        }
    }

    fn instances(&self) -> BTreeSet<String> {
        let of_service = self
            .records
            .iter()
            .filter(|record| record.name == self.service);
        let targets = of_service.filter_map(|record| match &record.data {
            DnsRecordData::Ptr(target) => Some(target.clone()),
            _ => None,
        });
        targets
            .collect::<BTreeSet<_>>()
            .into_iter()
            .take(MAX_INSTANCES)
            .collect()
    }

    /// The instances, each with its cluster or with what is wrong. If the domain itself could not
    /// be asked, why not.
    pub fn result(&self) -> Result<Vec<Instance>, LookupFault> {
        if self.unanswered.contains(&self.service) {
            return Err(LookupFault::Unanswered(self.service.clone()));
        }
        let instances = self.instances().into_iter();
        let mut instances: Vec<Instance> = instances
            .map(|instance| self.read_instance(&instance))
            .collect();
        mark_shared_ids(&mut instances);
        Ok(instances)
    }

    fn read_instance(&self, instance: &str) -> Instance {
        let name = instance
            .strip_suffix(&self.service)
            .unwrap_or(instance)
            .trim_end_matches('.')
            .to_owned();
        let target = last_alias(instance, &self.records);
        let servers = servers_of_instance(&target, &self.records).into_iter();
        let mut hosts = servers.map(|server| last_alias(&server.host, &self.records));
        let silent = hosts.find(|host| {
            self.unanswered.contains(host) && addresses_of_host(host, &self.records).is_empty()
        });
        let found = match (parse_announcement(&target, &self.records), silent) {
            // Without its addresses, its URLs would change for a while.
            (Ok(_), Some(silent)) => Err(LookupFault::Unanswered(silent)),
            (Err(_), _) if self.unanswered.contains(&target) => {
                Err(LookupFault::Unanswered(target))
            }
            (Err(fault), _) => Err(fault.into()),
            (Ok(announcement), None) => Ok(announcement),
        };
        Instance {
            name,
            found,
            same_id_as: None,
        }
    }

    /// After what time to ask again: the shortest time to live of the records, within bounds.
    pub fn ask_again_after(&self) -> Duration {
        let shortest = self
            .records
            .iter()
            .map(|record| Duration::from_secs(record.ttl.into()))
            .min();
        let is_broken = !self.unanswered.is_empty()
            || self
                .result()
                .is_ok_and(|all| all.is_empty() || all.iter().any(Instance::is_broken));
        let longest = if is_broken { RETRY } else { MAX_TTL };
        shortest.unwrap_or(longest).clamp(MIN_TTL, longest)
    }
}

/// Names, in each instance that shares its cluster ID, another one that has it.
fn mark_shared_ids(instances: &mut [Instance]) {
    let mut names: BTreeMap<ClusterId, Vec<String>> = BTreeMap::new();
    for (instance, found) in instances
        .iter()
        .filter_map(|one| Some((one, one.found.as_ref().ok()?)))
    {
        names
            .entry(found.cluster_id.clone())
            .or_default()
            .push(instance.name.clone());
    }
    for instance in instances {
        let same = instance
            .found
            .as_ref()
            .ok()
            .and_then(|found| names.get(&found.cluster_id));
        instance.same_id_as =
            same.and_then(|names| names.iter().find(|name| **name != instance.name).cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::announcement::tests::{id, record};

    const SERVICE_NAME: &str = "_liqo_auth._tcp.example.org";

    /// A server with these records: it answers with those of the asked name and type, and with
    /// aliases.
    fn look_up(zone: &[DnsRecord], broken: &[&str]) -> DomainLookup {
        let mut lookup = DomainLookup::new("Example.org.");
        for round in 0.. {
            let questions = lookup.next_questions();
            if questions.is_empty() {
                break;
            }
            assert!(round < 20, "it never ends");
            for question in questions {
                let fits = |record: &&DnsRecord| {
                    record.name == question.name
                        && match record.data {
                            DnsRecordData::Ptr(_) => question.kind == DnsRecordType::Ptr,
                            DnsRecordData::Srv { .. } => question.kind == DnsRecordType::Srv,
                            DnsRecordData::Txt(_) => question.kind == DnsRecordType::Txt,
                            DnsRecordData::Address(address) => {
                                question.kind
                                    == if address.is_ipv4() {
                                        DnsRecordType::A
                                    } else {
                                        DnsRecordType::Aaaa
                                    }
                            }
                            DnsRecordData::Alias(_) => true,
                        }
                };
                let records: Vec<_> = zone.iter().filter(fits).cloned().collect();
                let outcome = if records.is_empty() {
                    DnsResponseCode::NoSuchName
                } else {
                    DnsResponseCode::Ok
                };
                let message = DnsMessage {
                    id: 0,
                    is_response: true,
                    is_truncated: false,
                    outcome,
                    questions: Vec::new(),
                    records,
                };
                let fails = broken.contains(&question.name.as_str());
                lookup.record_answer(&question, (!fails).then_some(&message));
            }
        }
        lookup
    }

    fn instance(name: &str) -> String {
        format!("{name}.{SERVICE_NAME}")
    }

    fn cluster(name: &str, number: u8, ttl: u32) -> Vec<DnsRecord> {
        let txt = [("id", id(number).to_string()), ("name", name.to_owned())]
            .map(|(key, value)| (key.to_owned(), value));
        let server = DnsRecordData::Srv {
            priority: 0,
            weight: 0,
            port: 30443,
            target: format!("{name}.example.org"),
        };
        let with_ttl = |mut one: DnsRecord| {
            one.ttl = ttl;
            one
        };
        vec![
            with_ttl(record(SERVICE_NAME, DnsRecordData::Ptr(instance(name)))),
            with_ttl(record(&instance(name), DnsRecordData::Txt(txt.into()))),
            with_ttl(record(&instance(name), server)),
            with_ttl(record(
                &format!("{name}.example.org"),
                DnsRecordData::Address([203, 0, 113, number].into()),
            )),
        ]
    }

    fn found(lookup: &DomainLookup) -> Vec<(String, Result<String, LookupFault>)> {
        let all = lookup.result().unwrap().into_iter();
        all.map(|one| {
            (
                one.name,
                one.found
                    .map(|announcement| announcement.auth_urls[0].clone()),
            )
        })
        .collect()
    }

    #[test]
    fn a_domain_is_read_step_by_step() {
        let zone = [cluster("milan", 1, 300), cluster("turin", 2, 60)].concat();
        let lookup = look_up(&zone, &[]);
        assert_eq!(
            found(&lookup),
            [
                ("milan".into(), Ok("https://203.0.113.1:30443".into())),
                ("turin".into(), Ok("https://203.0.113.2:30443".into()))
            ]
        );
        assert_eq!(lookup.ask_again_after(), Duration::from_mins(1));
        assert_eq!(
            look_up(&cluster("milan", 1, 0), &[]).ask_again_after(),
            MIN_TTL
        );
        assert_eq!(
            look_up(&cluster("milan", 1, u32::MAX), &[]).ask_again_after(),
            MAX_TTL
        );
    }

    #[test]
    fn a_broken_entry_leaves_the_others_alone() {
        let mut zone = [cluster("milan", 1, 300), cluster("turin", 2, 300)].concat();
        zone.remove(5);
        zone.push(record(SERVICE_NAME, DnsRecordData::Ptr(instance("rome"))));
        let lookup = look_up(&zone, &[&instance("rome")]);
        assert_eq!(
            found(&lookup),
            [
                ("milan".into(), Ok("https://203.0.113.1:30443".into())),
                (
                    "rome".into(),
                    Err(LookupFault::Unanswered(instance("rome")))
                ),
                (
                    "turin".into(),
                    Err(LookupFault::Fault(AnnouncementFault::NoText))
                ),
            ]
        );
        assert_eq!(lookup.ask_again_after(), RETRY);
    }

    #[test]
    fn entries_with_one_cluster_id_all_count_and_name_each_other() {
        let lookup = look_up(
            &[
                cluster("liar", 1, 300),
                cluster("milan", 1, 300),
                cluster("turin", 2, 300),
            ]
            .concat(),
            &[],
        );
        let all = lookup.result().unwrap();
        assert!(all.iter().all(|one| one.found.is_ok()), "{all:?}");
        let others: Vec<_> = all.iter().map(|one| one.same_id_as.as_deref()).collect();
        assert_eq!(others, [Some("milan"), Some("liar"), None]);
        assert_eq!(lookup.ask_again_after(), RETRY);
    }

    #[test]
    fn aliases_across_answers_are_followed() {
        let mut zone = cluster("milan", 1, 300);
        zone[3].name = "c.example.net".into();
        zone.push(record(
            "milan.example.org",
            DnsRecordData::Alias("b.example.net".into()),
        ));
        zone.push(record(
            "b.example.net",
            DnsRecordData::Alias("c.example.net".into()),
        ));
        assert_eq!(
            found(&look_up(&zone, &[])),
            [("milan".into(), Ok("https://203.0.113.1:30443".into()))]
        );
    }

    #[test]
    fn a_domain_that_is_not_answered_is_not_an_empty_one() {
        let lookup = look_up(&[], &[SERVICE_NAME]);
        assert_eq!(
            lookup.result(),
            Err(LookupFault::Unanswered(SERVICE_NAME.into()))
        );
        assert_eq!(
            (look_up(&[], &[]).result(), lookup.ask_again_after()),
            (Ok(Vec::new()), RETRY)
        );
    }

    #[test]
    fn a_zone_of_any_size_costs_a_bounded_number_of_questions() {
        let zone: Vec<DnsRecord> = (0..=255)
            .flat_map(|number| cluster(&format!("c{number}"), number, 300))
            .collect();
        let lookup = look_up(&zone, &[]);
        assert!(lookup.asked.len() <= MAX_QUESTIONS);
        assert_eq!(lookup.result().unwrap().len(), MAX_INSTANCES);
    }
}
