//! Counts the open connections of each address.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Maximum number of open connections from one address.
pub const MAX_PER_ADDRESS: usize = 8;

/// The open connections of each address.
#[derive(Clone, Default)]
pub struct CatalogConnections {
    /// Has only addresses with an open connection.
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// Counts as an open connection until it is dropped.
pub struct CountedConnection {
    from: IpAddr,
    connections: CatalogConnections,
}

impl CatalogConnections {
    /// Counts one more connection from this address, unless it has too many.
    pub fn count_connection(&self, from: IpAddr) -> Option<CountedConnection> {
        let mut open = self.lock();
        let count = open.entry(from).or_default();
        if *count >= MAX_PER_ADDRESS {
            return None;
        }
        *count += 1;
        Some(CountedConnection {
            from,
            connections: self.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        let mut open = self.connections.lock();
        if let Some(count) = open.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_a_bounded_number_of_connections_until_they_are_dropped() {
        let (connections, [one, other]) = (
            CatalogConnections::default(),
            [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from),
        );
        let mut open: Vec<CountedConnection> = (0..100)
            .filter_map(|_| connections.count_connection(one))
            .collect();
        assert_eq!(open.len(), MAX_PER_ADDRESS);
        assert!(
            connections.count_connection(other).is_some(),
            "others have connections of their own"
        );
        drop(open.pop());
        open.extend(connections.count_connection(one));
        assert_eq!(
            open.len(),
            MAX_PER_ADDRESS,
            "one was dropped, so there is one more"
        );
        assert!(connections.count_connection(one).is_none());
        drop(open);
        assert!(
            connections.lock().is_empty(),
            "addresses without connections are forgotten"
        );
    }
}
