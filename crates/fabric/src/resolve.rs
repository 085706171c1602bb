//! The addresses behind the names of peers' gateways.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::{Duration, Instant},
};

use futures::future::join_all;

/// How long an answer is taken as it is.
const KEPT: Duration = Duration::from_mins(1);
/// How long all answers together are waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// So many addresses of a name are taken.
const MOST_ADDRESSES: usize = 8;

/// What is known of names.
#[derive(Debug, Default)]
pub(crate) struct Resolver {
    known: BTreeMap<String, (Vec<SocketAddr>, Instant)>,
}

impl Resolver {
    /// The addresses of these names. A name without an answer keeps what was known of it.
    pub(crate) async fn look_up(&mut self, names: BTreeSet<String>) -> BTreeMap<String, Vec<SocketAddr>> {
        self.known.retain(|name, _| names.contains(name));
        let is_due = |name: &&String| self.known.get(*name).is_none_or(|(_, at)| at.elapsed() >= KEPT);
        let asked = names.iter().filter(is_due).map(|name| async move {
            let answer = tokio::time::timeout(PATIENCE, tokio::net::lookup_host(name)).await;
            (name.clone(), answer.ok().and_then(Result::ok).map(settled))
        });
        for (name, answer) in join_all(asked).await {
            if answer.is_none() {
                tracing::warn!(name, "the name of a peer's gateway has no address");
            }
            let entry = self.known.entry(name).or_insert((Vec::new(), Instant::now()));
            *entry = (answer.unwrap_or_else(|| std::mem::take(&mut entry.0)), Instant::now());
        }
        self.known.iter().map(|(name, (addresses, _))| (name.clone(), addresses.clone())).collect()
    }
}

/// The same for the same addresses: many name servers give them in another order each time.
fn settled(answer: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let all: BTreeSet<SocketAddr> = answer.collect();
    all.into_iter().take(MOST_ADDRESSES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_come_in_another_order_or_twice_are_the_same_and_not_too_many() {
        let all: Vec<SocketAddr> = (0..20).map(|last| ([192, 0, 2, last], 443).into()).collect();
        let answer = settled(all.iter().copied());
        assert_eq!(answer.len(), MOST_ADDRESSES);
        assert_eq!(settled(all.iter().rev().chain(&all).copied()), answer);
    }

    #[tokio::test]
    async fn a_name_is_looked_up_and_one_without_an_address_has_none() {
        let names = ["localhost:7".to_owned(), "no such name:7".to_owned()];
        let found = Resolver::default().look_up(names.clone().into()).await;
        assert!(found[&names[0]].iter().all(|address| address.ip().is_loopback() && address.port() == 7));
        assert!(!found[&names[0]].is_empty());
        assert!(found[&names[1]].is_empty());
    }
}
