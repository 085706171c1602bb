//! Decides which connections of strangers stay open: one rule for all ports that anybody may reach.
//!
//! A connection is proven when its other side has shown that this cluster knows it. If there are
//! too many connections, the oldest unproven one is closed. An honest caller proves itself within
//! milliseconds, so silent connections cannot keep it out.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
};

/// Maximum numbers of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// All connections.
    pub connections: usize,
    /// A new connection ends the oldest unproven one.
    pub unproven: usize,
    /// Connections from one source. A new one ends the oldest unproven one from there.
    pub per_source: usize,
}

/// The open connections.
#[derive(Debug)]
pub struct OpenConnections<T> {
    limits: ConnectionLimits,
    /// By number, so the oldest comes first.
    all: BTreeMap<u64, (IpAddr, T)>,
    next: u64,
}

/// Whether a new connection stays open.
#[derive(Debug, PartialEq, Eq)]
pub enum ConnectionAdmission<T> {
    /// It stays, under this number.
    Open(u64),
    /// A limit was reached: it stays, and the other one has to end.
    Instead {
        /// Its number.
        number: u64,
        /// The oldest unproven one.
        ended: T,
    },
    /// A limit was reached, and all that could make room are proven.
    Refused,
}

impl<T> OpenConnections<T> {
    /// No connection yet.
    pub fn new(limits: ConnectionLimits) -> Self {
        Self {
            limits,
            all: BTreeMap::new(),
            next: 0,
        }
    }

    /// Adds a connection if there is room, or if another one can end for it.
    pub fn add(
        &mut self,
        source: IpAddr,
        connection: T,
        is_proven: impl Fn(&T) -> bool,
    ) -> ConnectionAdmission<T> {
        let ConnectionLimits {
            connections,
            unproven,
            per_source,
        } = self.limits;
        let is_crowd = self
            .all
            .values()
            .filter(|(other, _)| *other == source)
            .count()
            >= per_source;
        let is_full = self.all.len() >= connections
            || self.iter().filter(|one| !is_proven(one)).count() >= unproven;
        let mut ended = None;
        if is_crowd || is_full {
            let oldest = self
                .all
                .iter()
                .find(|(_, (other, one))| !is_proven(one) && (!is_crowd || *other == source))
                .map(|(number, _)| *number);
            ended = oldest.and_then(|number| self.remove(number));
            if ended.is_none() {
                return ConnectionAdmission::Refused;
            }
        }
        let number = self.next;
        self.next += 1;
        self.all.insert(number, (source, connection));
        match ended {
            Some(ended) => ConnectionAdmission::Instead { number, ended },
            None => ConnectionAdmission::Open(number),
        }
    }

    /// Removes a connection that ended, if it is still here.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        self.all.remove(&number).map(|(_, connection)| connection)
    }

    /// The connection with this number.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.all.get_mut(&number).map(|(_, connection)| connection)
    }

    /// Removes all connections that are not kept.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        self.all.retain(|_, (_, connection)| keep(connection));
    }

    /// The connections, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.all.values().map(|(_, connection)| connection)
    }
}

/// The network that one owner controls: an IPv4 address or an IPv6 /64.
pub fn network_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of connections; those in capitals are proven.
    struct Book(OpenConnections<char>);

    impl Book {
        fn new(connections: usize, unproven: usize, per_source: usize) -> Self {
            Self(OpenConnections::new(ConnectionLimits {
                connections,
                unproven,
                per_source,
            }))
        }

        fn add(&mut self, source: u8, name: char) -> ConnectionAdmission<char> {
            self.0
                .add([192, 0, 2, source].into(), name, |name| name.is_uppercase())
        }

        fn fill(&mut self, all: &[(u8, char)]) {
            for (source, name) in all {
                assert!(
                    matches!(self.add(*source, *name), ConnectionAdmission::Open(_)),
                    "{name}"
                );
            }
        }

        fn open(&self) -> String {
            self.0.iter().collect()
        }
    }

    #[test]
    fn the_oldest_unproven_connection_makes_room() {
        let mut book = Book::new(4, 2, 4);
        book.fill(&[(1, 'A'), (2, 'b'), (3, 'c')]);
        assert_eq!(
            book.add(4, 'd'),
            ConnectionAdmission::Instead {
                number: 3,
                ended: 'b'
            },
            "two that are not proven"
        );
        assert_eq!(book.open(), "Acd");
        let mut book = Book::new(3, 3, 3);
        book.fill(&[(1, 'A'), (2, 'b'), (3, 'C')]);
        assert_eq!(
            book.add(4, 'd'),
            ConnectionAdmission::Instead {
                number: 3,
                ended: 'b'
            },
            "three altogether"
        );
    }

    #[test]
    fn a_crowd_from_one_source_makes_room_among_itself() {
        let mut book = Book::new(8, 8, 2);
        book.fill(&[(1, 'a'), (2, 'b'), (2, 'c')]);
        assert_eq!(
            book.add(2, 'd'),
            ConnectionAdmission::Instead {
                number: 3,
                ended: 'b'
            }
        );
        let mut full = Book::new(3, 3, 2);
        full.fill(&[(1, 'a'), (2, 'b'), (2, 'c')]);
        assert_eq!(
            full.add(2, 'd'),
            ConnectionAdmission::Instead {
                number: 3,
                ended: 'b'
            },
            "the oldest of all is from elsewhere"
        );
        let mut proven = Book::new(8, 8, 1);
        proven.fill(&[(1, 'a'), (2, 'B')]);
        assert_eq!(proven.add(2, 'c'), ConnectionAdmission::Refused);
    }

    #[test]
    fn proven_connections_never_make_room_and_one_that_ends_does() {
        let mut book = Book::new(2, 2, 2);
        book.fill(&[(1, 'A'), (2, 'B')]);
        assert_eq!(book.add(3, 'c'), ConnectionAdmission::Refused);
        assert_eq!(book.0.remove(0), Some('A'));
        assert_eq!(
            (book.add(3, 'c'), book.open()),
            (ConnectionAdmission::Open(2), "Bc".to_owned())
        );
        assert_eq!(book.0.remove(0), None);
        book.0.retain(|name| *name == 'c');
        assert_eq!(
            (book.open(), book.0.get_mut(2)),
            ("c".to_owned(), Some(&mut 'c'))
        );
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let same = |one: &str, other: &str| {
            network_of(one.parse().unwrap()) == network_of(other.parse().unwrap())
        };
        assert!(same("2001:db8::1", "2001:db8::ffff:0:0:2"));
        assert!(!same("2001:db8::1", "2001:db8:0:1::1"));
        assert!(same("::ffff:192.0.2.1", "192.0.2.1"));
        assert!(!same("192.0.2.1", "192.0.2.2"));
    }
}
