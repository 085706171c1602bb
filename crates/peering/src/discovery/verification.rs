//! Calls announced URLs, and remembers at which of them the announced cluster proved its ID.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use liqo_api::{ClusterId, valid_cluster_name};
use liqo_controller_runtime::Network;
use liqo_discovery::merge::{FoundCluster, VerifiedUrls};
use tokio::{task::JoinSet, time::Instant};

use crate::{
    auth::client::AuthClient,
    protocol::{PROTOCOL, negotiate_version},
};

/// Maximum number of calls at the same time.
const MAX_CONCURRENT: usize = 8;
/// A URL that answered is called again after this time.
const PROVED_FOR: Duration = Duration::from_mins(2);
/// A URL that did not answer is called again after a delay between these, which doubles.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(2);
const MAX_RETRY_DELAY: Duration = Duration::from_mins(5);
/// Maximum length of a stored reason in characters.
const MAX_REASON_LEN: usize = 300;

/// The result of a call: the name of the cluster that proved its ID, or the reason.
type CallOutcome = Result<String, String>;
type CallTarget = (ClusterId, String);

struct UrlCheck {
    outcome: Option<CallOutcome>,
    due: Instant,
    delay: Duration,
    is_running: bool,
}

/// The announced URLs, and what calls to them showed.
pub struct Verification {
    network: Arc<dyn Network>,
    checks: BTreeMap<CallTarget, UrlCheck>,
    calls: JoinSet<(CallTarget, CallOutcome)>,
}

impl Verification {
    pub fn new(network: Arc<dyn Network>) -> Self {
        Self {
            network,
            checks: BTreeMap::new(),
            calls: JoinSet::new(),
        }
    }

    /// Forgets URLs that are not announced any more, and calls those that are due.
    pub fn update_targets(&mut self, found: &BTreeMap<ClusterId, FoundCluster>, now: Instant) {
        self.checks.retain(|(id, url), _| {
            let found = found.get(id);
            found.is_some_and(|found| found.announcement.auth_urls.contains(url))
        });
        for (id, found) in found {
            for url in &found.announcement.auth_urls {
                let new = UrlCheck {
                    outcome: None,
                    due: now,
                    delay: MIN_RETRY_DELAY,
                    is_running: false,
                };
                self.checks.entry((id.clone(), url.clone())).or_insert(new);
            }
        }
        let mut due: Vec<_> = self
            .checks
            .iter_mut()
            .filter(|(_, check)| !check.is_running && check.due <= now)
            .collect();
        // Whoever announces many URLs at which nobody answers does not hold up those that were
        // never called.
        due.sort_by_key(|(_, check)| (check.outcome.is_some(), check.due));
        for (target, check) in due
            .into_iter()
            .take(MAX_CONCURRENT.saturating_sub(self.calls.len()))
        {
            check.is_running = true;
            let (network, target) = (Arc::clone(&self.network), target.clone());
            self.calls.spawn(async move {
                let outcome = call_url(&network, &target.0, &target.1).await;
                (target, outcome)
            });
        }
    }

    /// Waits until a call ends; for ever if there is none.
    pub async fn next(&mut self) {
        match self.calls.join_next().await {
            Some(Ok((target, outcome))) => self.record_outcome(&target, outcome, Instant::now()),
            Some(Err(_)) => {}
            None => std::future::pending().await,
        }
    }

    fn record_outcome(&mut self, target: &CallTarget, outcome: CallOutcome, now: Instant) {
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
        let mut verified = VerifiedUrls::default();
        for ((_, url), check) in self
            .checks
            .range((id.clone(), String::new())..)
            .take_while(|((of, _), _)| of == id)
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
    pub fn name(&self, id: &ClusterId, url: &str) -> Option<String> {
        self.checks
            .get(&(id.clone(), url.to_owned()))?
            .outcome
            .clone()?
            .ok()
    }
}

async fn call_url(network: &Arc<dyn Network>, id: &ClusterId, url: &str) -> CallOutcome {
    let client = AuthClient::new(network, id, url).map_err(short_reason)?;
    let ids = client
        .request_identification()
        .await
        .map_err(short_reason)?;
    negotiate_version(PROTOCOL, ids.protocol).map_err(short_reason)?;
    if valid_cluster_name(&ids.cluster_name) {
        Ok(ids.cluster_name)
    } else {
        Err("its cluster name is not valid".to_owned())
    }
}

fn short_reason(error: impl std::fmt::Display) -> String {
    let text = error.to_string();
    text.chars()
        .filter(|character| !character.is_control())
        .take(MAX_REASON_LEN)
        .collect()
}

#[cfg(test)]
mod tests {
    use liqo_api::Discovery;
    use liqo_controller_runtime::Tcp;
    use liqo_discovery::announcement::Announcement;

    use super::*;

    fn found(urls: &[&str]) -> BTreeMap<ClusterId, FoundCluster> {
        let id = ClusterId::of_public_key(&[1; 32]);
        let announcement = Announcement {
            cluster_id: id.clone(),
            cluster_name: "milan".into(),
            auth_urls: urls.iter().map(ToString::to_string).collect(),
            protocol: [1, 1],
        };
        BTreeMap::from([(
            id,
            FoundCluster {
                announcement,
                ways: vec![Discovery::LAN],
                sources: Vec::new(),
            },
        )])
    }

    #[tokio::test]
    async fn each_url_is_called_once_and_again_after_growing_delays() {
        let (id, mut verification) = (
            ClusterId::of_public_key(&[1; 32]),
            Verification::new(Tcp::network()),
        );
        // No packet leaves: these are refused before.
        let all = found(&["https://127.0.0.1:1", "http://203.0.113.1"]);
        verification.update_targets(&all, Instant::now());
        verification.next().await;
        verification.next().await;
        let verified = verification.verified_urls(&id);
        assert_eq!(
            (verified.proved.len(), verified.failed.len()),
            (0, 2),
            "{verified:?}"
        );
        let now = Instant::now();
        verification.update_targets(&all, now);
        assert!(verification.calls.is_empty(), "it waits");
        let target = (id.clone(), "https://127.0.0.1:1".to_owned());
        for _ in 0..20 {
            verification.record_outcome(&target, Err("no".into()), now);
        }
        assert_eq!(verification.checks[&target].due, now + MAX_RETRY_DELAY);
        verification.record_outcome(&target, Ok("milan".into()), now);
        assert_eq!(verification.name(&id, &target.1).as_deref(), Some("milan"));
        verification.update_targets(&found(&[]), now);
        assert_eq!(
            verification.verified_urls(&id),
            VerifiedUrls::default(),
            "it is announced no more"
        );
    }
}
