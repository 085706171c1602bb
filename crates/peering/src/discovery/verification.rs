//! Calls announced URLs, and remembers at which of them the announced cluster proved its ID.

use std::{collections::BTreeMap, sync::Arc};

use liqo_api::{ClusterId, valid_cluster_name};
use liqo_controller_runtime::Network;
use liqo_discovery::merge::FoundCluster;
use tokio::{task::JoinSet, time::Instant};

use crate::{
    auth::client::AuthClient,
    decide::discovery::{AnnouncedUrl, CallOutcome, UrlChecks, short_reason},
    protocol::{PROTOCOL, negotiate_version},
};

/// Maximum number of calls at the same time.
const MAX_CONCURRENT: usize = 8;

/// The announced URLs, and the calls to them.
pub struct Verification {
    network: Arc<dyn Network>,
    pub checks: UrlChecks,
    calls: JoinSet<FinishedCall>,
}

struct FinishedCall {
    target: AnnouncedUrl,
    outcome: CallOutcome,
}

impl Verification {
    pub fn new(network: Arc<dyn Network>) -> Self {
        Self {
            network,
            checks: UrlChecks::default(),
            calls: JoinSet::new(),
        }
    }

    /// Forgets URLs that are not announced any more, and calls those that are due.
    pub fn update_targets(&mut self, found: &BTreeMap<ClusterId, FoundCluster>, now: Instant) {
        self.checks.update_targets(found, now);
        let free = MAX_CONCURRENT.saturating_sub(self.calls.len());
        for target in self.checks.take_due(free, now) {
            let network = Arc::clone(&self.network);
            self.calls.spawn(async move {
                let outcome = call_url(&network, &target).await;
                FinishedCall { target, outcome }
            });
        }
    }

    /// Waits until a call ends; for ever if there is none.
    pub async fn next(&mut self) {
        match self.calls.join_next().await {
            Some(Ok(FinishedCall { target, outcome })) => {
                self.checks.record_outcome(&target, outcome, Instant::now());
            }
            Some(Err(_)) => {}
            None => std::future::pending().await,
        }
    }
}

async fn call_url(network: &Arc<dyn Network>, target: &AnnouncedUrl) -> CallOutcome {
    let client = AuthClient::new(network, &target.cluster_id, &target.url).map_err(short_reason)?;
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

#[cfg(test)]
mod tests {
    use liqo_api::Discovery;
    use liqo_controller_runtime::Tcp;
    use liqo_discovery::announcement::Announcement;

    use super::*;

    #[tokio::test]
    async fn each_announced_url_is_called_once_until_it_is_due_again() {
        let id = ClusterId::of_public_key(&[1; 32]);
        let mut verification = Verification::new(Tcp::network());
        // No packet leaves: these are refused before.
        let auth_urls = vec!["https://127.0.0.1:1".into(), "http://203.0.113.1".into()];
        let announcement = Announcement {
            cluster_id: id.clone(),
            cluster_name: "milan".into(),
            auth_urls,
            protocol: [1, 1],
        };
        let found = FoundCluster {
            announcement,
            ways: vec![Discovery::LAN],
            sources: Vec::new(),
        };
        let all = BTreeMap::from([(id.clone(), found)]);
        verification.update_targets(&all, Instant::now());
        verification.next().await;
        verification.next().await;
        let verified = verification.checks.verified_urls(&id);
        assert_eq!(
            (verified.proved.len(), verified.failed.len()),
            (0, 2),
            "{verified:?}"
        );
        verification.update_targets(&all, Instant::now());
        assert!(verification.calls.is_empty(), "it waits");
    }
}
