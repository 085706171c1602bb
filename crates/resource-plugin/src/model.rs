//! What is offered, and what is told of changes: plain types without I/O.

use std::{collections::BTreeSet, fmt};

use liqo_quantity::{Quantity, ResourceList};

/// The most pools that one answer may hold: a consumer takes no more.
pub const MOST_POOLS: usize = 16;
/// The most resources that one pool may name.
pub const MOST_RESOURCES: usize = 128;
/// The longest cluster ID that travels: that of a name in Kubernetes.
pub const LONGEST_CLUSTER_ID: usize = 253;

/// One set of resources in an offer. One pool becomes one virtual node at the consumer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Its name: a DNS label. Known to the third generation of the protocol only.
    pub name: Option<String>,
    /// If it has no name, what its name starts with: a DNS label, too. The name of the provider's cluster follows.
    pub prefix: Option<String>,
    /// How much there is.
    pub resources: ResourceList,
}

impl Pool {
    /// The pool of a provider that has only one.
    pub fn unnamed(resources: ResourceList) -> Self {
        Self { resources, ..Self::default() }
    }

    /// A pool with a name.
    pub fn named(name: impl Into<String>, resources: ResourceList) -> Self {
        Self { name: Some(name.into()), resources, ..Self::default() }
    }

    /// What tells it from the other pools of an answer.
    pub(crate) fn id(&self) -> PoolId {
        match (&self.name, &self.prefix) {
            (Some(name), _) => PoolId::Name(name.clone()),
            (None, Some(prefix)) => PoolId::Prefix(prefix.clone()),
            (None, None) => PoolId::Unnamed,
        }
    }
}

impl From<ResourceList> for Pool {
    fn from(resources: ResourceList) -> Self {
        Self::unnamed(resources)
    }
}

/// What tells the pools of one answer apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PoolId {
    /// The one without a name.
    Unnamed,
    /// By what its name starts with.
    Prefix(String),
    /// By its name.
    Name(String),
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unnamed => f.write_str("the pool without a name"),
            Self::Prefix(prefix) => write!(f, "the pool with prefix {prefix:?}"),
            Self::Name(name) => write!(f, "pool {name:?}"),
        }
    }
}

/// News about what is offered. It carries no amount: whoever hears it reads again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// For every cluster.
    All,
    /// For the cluster with this ID.
    Cluster(String),
}

/// Pools that cannot be offered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolsError {
    /// More pools than a consumer takes.
    #[error("there are {0} pools, at most {MOST_POOLS} can be offered")]
    TooManyPools(usize),
    /// More resources than any cluster has.
    #[error("{pool} names {count} resources, at most {MOST_RESOURCES} can be offered")]
    TooManyResources {
        /// The pool.
        pool: PoolId,
        /// How many it names.
        count: usize,
    },
    /// The name cannot become part of the name of a node.
    #[error("{0} cannot be offered: names of pools are lower-case letters, digits and inner dashes, at most 63")]
    Name(PoolId),
    /// Two pools that nothing tells apart.
    #[error("{0} appears more than once")]
    Duplicate(PoolId),
    /// Less than nothing.
    #[error("{pool} holds {quantity} of {resource}; less than nothing cannot be offered")]
    Negative {
        /// The pool.
        pool: PoolId,
        /// The resource.
        resource: String,
        /// How much there is said to be.
        quantity: Quantity,
    },
}

/// Whether these pools can be offered together.
pub fn check(pools: &[Pool]) -> Result<(), PoolsError> {
    if pools.len() > MOST_POOLS {
        return Err(PoolsError::TooManyPools(pools.len()));
    }
    let mut seen = BTreeSet::new();
    for pool in pools {
        let id = pool.id();
        if [&pool.name, &pool.prefix].into_iter().flatten().any(|name| !is_dns_label(name)) {
            return Err(PoolsError::Name(id));
        }
        if pool.resources.len() > MOST_RESOURCES {
            return Err(PoolsError::TooManyResources { pool: id, count: pool.resources.len() });
        }
        if let Some((resource, quantity)) = pool.resources.iter().find(|(_, quantity)| quantity.is_negative()) {
            return Err(PoolsError::Negative { pool: id, resource: resource.to_owned(), quantity });
        }
        if !seen.insert(id.clone()) {
            return Err(PoolsError::Duplicate(id));
        }
    }
    Ok(())
}

fn is_dns_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [text.bytes().next(), text.bytes().last()];
    text.len() <= 63 && ends.iter().all(|end| end.is_some_and(inner)) && text.bytes().all(|byte| inner(byte) || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(amount: &str) -> ResourceList {
        [("cpu", amount.parse().unwrap())].into()
    }

    #[test]
    fn pools_are_told_apart_by_name_then_prefix() {
        let prefixed = |prefix: &str| Pool { prefix: Some(prefix.into()), ..Pool::unnamed(cpu("1")) };
        assert_eq!(check(&[Pool::unnamed(cpu("1")), Pool::named("a", cpu("1")), prefixed("a"), prefixed("b")]), Ok(()));
        let twice = [Pool::named("a", cpu("1")), Pool { prefix: Some("b".into()), ..Pool::named("a", cpu("2")) }];
        assert_eq!(check(&twice).unwrap_err().to_string(), "pool \"a\" appears more than once");
        let twice = [Pool::unnamed(cpu("1")), Pool::unnamed(cpu("2"))];
        assert_eq!(check(&twice).unwrap_err().to_string(), "the pool without a name appears more than once");
    }

    #[test]
    fn names_that_cannot_be_names_of_nodes_are_refused() {
        for name in ["", "A", "-a", "a-", "a.b", "a b", "ä", &"a".repeat(64)] {
            let named = Pool::named(name, cpu("1"));
            assert!(matches!(check(&[named]), Err(PoolsError::Name(PoolId::Name(_)))), "{name:?}");
            let prefixed = Pool { prefix: Some(name.to_owned()), ..Pool::default() };
            assert!(matches!(check(&[prefixed]), Err(PoolsError::Name(PoolId::Prefix(_)))), "{name:?}");
        }
        assert_eq!(check(&[Pool::named("a".repeat(63), cpu("1"))]), Ok(()));
    }

    #[test]
    fn less_than_nothing_is_refused_by_name() {
        let error = check(&[Pool::named("gold", cpu("-1"))]).unwrap_err();
        assert_eq!(error.to_string(), "pool \"gold\" holds -1 of cpu; less than nothing cannot be offered");
    }

    #[test]
    fn there_is_a_bound_on_pools_and_resources() {
        let pools = |count: usize| (0..count).map(|n| Pool::named(format!("p{n}"), cpu("1"))).collect::<Vec<_>>();
        assert_eq!(check(&pools(MOST_POOLS)), Ok(()));
        assert_eq!(check(&pools(MOST_POOLS + 1)), Err(PoolsError::TooManyPools(MOST_POOLS + 1)));
        let many = |count: usize| {
            let resources = (0..count).map(|n| (format!("example.com/r{n}"), Quantity::from_units(1))).collect();
            check(&[Pool::unnamed(resources)])
        };
        assert_eq!(many(MOST_RESOURCES), Ok(()));
        assert!(matches!(many(MOST_RESOURCES + 1), Err(PoolsError::TooManyResources { .. })));
    }
}
