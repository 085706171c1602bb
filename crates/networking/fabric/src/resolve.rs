//! Looks up the names of peers' gateways in DNS, and remembers the answers for a while.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::{Duration, Instant},
};

use futures::future::join_all;

/// Answers are used for this time.
const MAX_AGE: Duration = Duration::from_mins(1);
/// For all answers together.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of addresses of a name that are used.
const MAX_ADDRESSES: usize = 8;

/// Looks up names and remembers the answers.
#[derive(Debug, Default)]
pub struct GatewayNameResolver {
    known: BTreeMap<String, (Vec<SocketAddr>, Instant)>,
}

impl GatewayNameResolver {
    /// The addresses of these names. A name without an answer keeps its former addresses.
    pub async fn look_up(&mut self, names: BTreeSet<String>) -> BTreeMap<String, Vec<SocketAddr>> {
        self.known.retain(|name, _| names.contains(name));
        let due = names.iter().filter(|name| {
            let known = self.known.get(*name);
            known.is_none_or(|(_, at)| at.elapsed() >= MAX_AGE)
        });
        let asked = due.map(|name| async move {
            let answer = tokio::time::timeout(TIMEOUT, tokio::net::lookup_host(name)).await;
            (
                name.clone(),
                answer.ok().and_then(Result::ok).map(sorted_addresses),
            )
        });
        for (name, answer) in join_all(asked).await {
            if answer.is_none() {
                tracing::warn!(name, "the name of a peer's gateway has no address");
            }
            let entry = self
                .known
                .entry(name)
                .or_insert((Vec::new(), Instant::now()));
            *entry = (
                answer.unwrap_or_else(|| std::mem::take(&mut entry.0)),
                Instant::now(),
            );
        }
        self.known
            .iter()
            .map(|(name, (addresses, _))| (name.clone(), addresses.clone()))
            .collect()
    }
}

/// Sorts, because many name servers change the order each time.
fn sorted_addresses(answer: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let all: BTreeSet<SocketAddr> = answer.collect();
    all.into_iter().take(MAX_ADDRESSES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_come_in_another_order_or_twice_are_the_same_and_not_too_many() {
        let all: Vec<SocketAddr> = (0..20)
            .map(|last| ([192, 0, 2, last], 443).into())
            .collect();
        let answer = sorted_addresses(all.iter().copied());
        assert_eq!(answer.len(), MAX_ADDRESSES);
        assert_eq!(
            sorted_addresses(all.iter().rev().chain(&all).copied()),
            answer
        );
    }

    #[tokio::test]
    async fn names_are_looked_up_and_an_unknown_name_has_no_address() {
        let names = ["localhost:7".to_owned(), "no such name:7".to_owned()];
        let found = GatewayNameResolver::default()
            .look_up(names.clone().into())
            .await;
        assert!(
            found[&names[0]]
                .iter()
                .all(|address| address.ip().is_loopback() && address.port() == 7)
        );
        assert!(!found[&names[0]].is_empty());
        assert!(found[&names[1]].is_empty());
    }
}
