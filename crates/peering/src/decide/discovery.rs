//! Which announced URLs are called, and when again; and whether this cluster borrows from a peer
//! because of a policy.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use liqo_api::{CLUSTERS_KEY, ClusterId, ForeignCluster, PeeringPolicy};
use liqo_discovery::{
    announcement::Announcement,
    lan_table::MAX_CLUSTERS,
    merge::{FoundCluster, VerifiedUrls},
};
use tokio::time::Instant;

/// A URL that answered is called again after this time.
const PROVED_FOR: Duration = Duration::from_mins(2);
/// A URL that did not answer is called again after a delay between these, which doubles.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(2);
const MAX_RETRY_DELAY: Duration = Duration::from_mins(5);
/// Maximum length of a stored reason in characters.
const MAX_REASON_LEN: usize = 300;

/// The result of a call: the name of the cluster that proved its ID, or the reason.
pub type CallOutcome = Result<String, String>;

/// A URL that a cluster announced.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnnouncedUrl {
    pub cluster_id: ClusterId,
    pub url: String,
}

struct UrlCheck {
    outcome: Option<CallOutcome>,
    due: Instant,
    delay: Duration,
    is_running: bool,
}

/// The announced URLs, and what calls to them showed.
#[derive(Default)]
pub struct UrlChecks {
    checks: BTreeMap<AnnouncedUrl, UrlCheck>,
}

impl UrlChecks {
    /// Learns URLs that are new, and forgets those that are not announced any more.
    pub fn update_targets(&mut self, found: &BTreeMap<ClusterId, FoundCluster>, now: Instant) {
        self.checks.retain(|target, _| {
            let found = found.get(&target.cluster_id);
            found.is_some_and(|found| found.announcement.auth_urls.contains(&target.url))
        });
        for (id, found) in found {
            for url in &found.announcement.auth_urls {
                let target = AnnouncedUrl {
                    cluster_id: id.clone(),
                    url: url.clone(),
                };
                self.checks.entry(target).or_insert(UrlCheck {
                    outcome: None,
                    due: now,
                    delay: MIN_RETRY_DELAY,
                    is_running: false,
                });
            }
        }
    }

    /// Returns at most `max` URLs that are due. Each counts as being called until its outcome is
    /// recorded.
    pub fn take_due(&mut self, max: usize, now: Instant) -> Vec<AnnouncedUrl> {
        let mut due: Vec<_> = self
            .checks
            .iter_mut()
            .filter(|(_, check)| !check.is_running && check.due <= now)
            .collect();
        // Whoever announces many URLs at which nobody answers does not hold up those that were
        // never called.
        due.sort_by_key(|(_, check)| (check.outcome.is_some(), check.due));
        due.into_iter()
            .take(max)
            .map(|(target, check)| {
                check.is_running = true;
                target.clone()
            })
            .collect()
    }

    pub fn record_outcome(&mut self, target: &AnnouncedUrl, outcome: CallOutcome, now: Instant) {
        let Some(check) = self.checks.get_mut(target) else {
            return;
        };
        check.is_running = false;
        if outcome.is_ok() {
            (check.due, check.delay) = (now + PROVED_FOR, MIN_RETRY_DELAY);
        } else {
            check.due = now + check.delay;
            check.delay = (check.delay * 2).min(MAX_RETRY_DELAY);
        }
        check.outcome = Some(outcome);
    }

    /// The time at which the next call is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.checks
            .values()
            .filter(|check| !check.is_running)
            .map(|check| check.due)
            .min()
    }

    /// The results of the calls to a cluster's URLs.
    pub fn verified_urls(&self, id: &ClusterId) -> VerifiedUrls {
        let first = AnnouncedUrl {
            cluster_id: id.clone(),
            url: String::new(),
        };
        let mut verified = VerifiedUrls::default();
        for (AnnouncedUrl { url, .. }, check) in self
            .checks
            .range(first..)
            .take_while(|(target, _)| target.cluster_id == *id)
        {
            match &check.outcome {
                Some(Ok(_)) => _ = verified.proved.insert(url.clone()),
                Some(Err(reason)) => _ = verified.failed.insert(url.clone(), reason.clone()),
                None => {}
            }
        }
        verified
    }

    /// The name that the cluster gave when it proved its ID at this URL.
    pub fn name_at(&self, id: &ClusterId, url: &str) -> Option<String> {
        let target = AnnouncedUrl {
            cluster_id: id.clone(),
            url: url.to_owned(),
        };
        self.checks.get(&target)?.outcome.clone()?.ok()
    }
}

/// The text of an error, short enough to be stored.
pub fn short_reason(error: impl std::fmt::Display) -> String {
    let text = error.to_string();
    text.chars()
        .filter(|character| !character.is_control())
        .take(MAX_REASON_LEN)
        .collect()
}

/// Reads the list that `liqo-fabric` wrote. Another version may have written it.
pub fn lan_list(map: &ConfigMap) -> Result<Vec<Announcement>, serde_json::Error> {
    let text = map
        .data
        .as_ref()
        .and_then(|data| data.get(CLUSTERS_KEY))
        .map_or("[]", String::as_str);
    let mut all: Vec<Announcement> = serde_json::from_str(text)?;
    all.truncate(MAX_CLUSTERS);
    Ok(all)
}

/// Whether this cluster borrows from a peer because of its policy, if the record has to say
/// something else than now.
pub fn automatic_outgoing_change(
    record: &ForeignCluster,
    policy: Option<&PeeringPolicy>,
) -> Option<bool> {
    let wanted = policy.is_some_and(|policy| policy.spec.consume.automatic);
    let current = record
        .status
        .as_ref()
        .is_some_and(|status| status.automatic_outgoing_peering);
    (record.metadata.deletion_timestamp.is_none() && wanted != current).then_some(wanted)
}

#[cfg(test)]
mod tests {
    use liqo_api::{Discovery, LAN_CLUSTERS};
    use serde_json::json;

    use super::*;

    fn id() -> ClusterId {
        ClusterId::of_public_key(&[1; 32])
    }

    fn found(urls: &[&str]) -> BTreeMap<ClusterId, FoundCluster> {
        let announcement = Announcement {
            cluster_id: id(),
            cluster_name: "milan".into(),
            auth_urls: urls.iter().map(ToString::to_string).collect(),
            protocol: [1, 1],
        };
        BTreeMap::from([(
            id(),
            FoundCluster {
                announcement,
                ways: vec![Discovery::LAN],
                sources: Vec::new(),
            },
        )])
    }

    fn target(url: &str) -> AnnouncedUrl {
        AnnouncedUrl {
            cluster_id: id(),
            url: url.to_owned(),
        }
    }

    #[test]
    fn each_url_is_called_once_and_again_after_growing_delays() {
        let (mut checks, now) = (UrlChecks::default(), Instant::now());
        let all = found(&["https://203.0.113.1", "https://203.0.113.2"]);
        checks.update_targets(&all, now);
        let due = checks.take_due(8, now);
        assert_eq!(
            due,
            [target("https://203.0.113.1"), target("https://203.0.113.2")]
        );
        assert_eq!(checks.next_due(), None, "both are being called");
        for target in &due {
            checks.record_outcome(target, Err("no".into()), now);
        }
        let verified = checks.verified_urls(&id());
        assert_eq!((verified.proved.len(), verified.failed.len()), (0, 2));
        checks.update_targets(&all, now);
        assert_eq!(checks.take_due(8, now), [], "they wait");
        assert_eq!(checks.next_due(), Some(now + MIN_RETRY_DELAY));
        for _ in 0..20 {
            checks.record_outcome(&due[0], Err("no".into()), now);
        }
        assert_eq!(checks.checks[&due[0]].due, now + MAX_RETRY_DELAY);
        checks.record_outcome(&due[0], Ok("milan".into()), now);
        assert_eq!(checks.name_at(&id(), &due[0].url).as_deref(), Some("milan"));
        checks.update_targets(&found(&[]), now);
        assert_eq!(
            checks.verified_urls(&id()),
            VerifiedUrls::default(),
            "it is announced no more"
        );
    }

    #[test]
    fn a_url_that_was_never_called_comes_before_those_that_did_not_answer() {
        let (mut checks, now) = (UrlChecks::default(), Instant::now());
        checks.update_targets(&found(&["https://a.example"]), now);
        for target in checks.take_due(1, now) {
            checks.record_outcome(&target, Err("no".into()), now);
        }
        let later = now + MAX_RETRY_DELAY;
        checks.update_targets(&found(&["https://a.example", "https://b.example"]), later);
        assert_eq!(checks.take_due(1, later), [target("https://b.example")]);
    }

    #[test]
    fn a_list_of_another_form_is_an_error_and_a_long_one_is_cut() {
        let list = |text: &str| {
            let map =
                json!({ "metadata": { "name": LAN_CLUSTERS }, "data": { CLUSTERS_KEY: text } });
            lan_list(&serde_json::from_value(map).unwrap()).map(|list| list.len())
        };
        let one = json!({ "clusterID": id(), "clusterName": "milan", "authURLs": [], "protocol": [1, 1] });
        assert_eq!(list(&json!([one]).to_string()).unwrap(), 1);
        assert_eq!(
            list(&json!(vec![one; 1000]).to_string()).unwrap(),
            MAX_CLUSTERS
        );
        assert!(list("{}").is_err() && list("[{}]").is_err() && list("").is_err());
        assert_eq!(lan_list(&ConfigMap::default()).unwrap(), []);
    }

    #[test]
    fn borrowing_follows_the_policy_until_the_record_is_deleted() {
        let record = |status: bool| -> ForeignCluster {
            serde_json::from_value(json!({
                "metadata": { "name": "milan" },
                "spec": { "clusterID": id() },
                "status": { "automaticOutgoingPeering": status },
            }))
            .unwrap()
        };
        let automatic: PeeringPolicy = serde_json::from_value(json!({
            "metadata": { "name": "p" },
            "spec": { "consume": { "automatic": true } },
        }))
        .unwrap();
        let change = |status, policy| automatic_outgoing_change(&record(status), policy);
        assert_eq!(change(false, Some(&automatic)), Some(true));
        assert_eq!(change(true, Some(&automatic)), None);
        assert_eq!(change(true, None), Some(false));
        assert_eq!(change(false, None), None);
        let mut ending = record(true);
        ending.metadata.deletion_timestamp = Some(
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH),
        );
        assert_eq!(automatic_outgoing_change(&ending, None), None);
    }
}
