//! Pools and changes: plain types without I/O.

use std::{collections::BTreeSet, fmt};

use liqo_quantity::{PricesError, Quantity, Rates, ResourceList};

/// Maximum number of pools in one answer. A consumer accepts no more.
pub const MAX_POOLS: usize = 16;
/// Maximum number of resources in one pool.
pub const MAX_RESOURCES: usize = 128;
/// Maximum number of clusters that the resources of a pool come through.
pub const MAX_HOPS: u8 = 64;
/// Maximum length of a cluster ID in bytes: that of a name in Kubernetes.
pub const MAX_CLUSTER_ID_LEN: usize = 253;

/// One set of resources in an offer. One pool becomes one virtual node at the consumer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Name of the pool: a DNS label. Only the third generation of the protocol sends it.
    pub name: Option<String>,
    /// Prefix of the name of a pool without a name: a DNS label. The name of the provider's cluster
    /// follows it.
    pub prefix: Option<String>,
    /// The amounts of the pool.
    pub resources: ResourceList,
    /// What they cost. If absent, [`ResourceSource::prices`](crate::ResourceSource::prices), and
    /// without these what the policy of the provider says. Only the third generation of the
    /// protocol sends it.
    pub prices: Option<Prices>,
    /// How many clusters the resources come through, with this one. At 0 and 1 this cluster owns
    /// them; with more it borrows them, and pods of the pool run on those of its virtual nodes that
    /// come through as many. Only the third generation of the protocol sends it.
    pub hops: u8,
}

/// What resources cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prices {
    /// The currency, such as `EUR` or `credits`: letters, digits and dashes, at most 12, beginning
    /// with a letter.
    pub currency: String,
    /// The price of each resource for one unit and hour. A resource without a rate costs nothing.
    pub rates: Rates,
}

impl Pool {
    /// A pool without a name, for a provider that has only one.
    pub fn unnamed(resources: ResourceList) -> Self {
        Self {
            resources,
            ..Self::default()
        }
    }

    /// A pool with a name.
    pub fn named(name: impl Into<String>, resources: ResourceList) -> Self {
        Self {
            name: Some(name.into()),
            resources,
            ..Self::default()
        }
    }

    /// The same pool at these prices.
    #[must_use]
    pub fn at(self, prices: Prices) -> Self {
        Self {
            prices: Some(prices),
            ..self
        }
    }

    /// Distinguishes the pool from other pools of the same answer.
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

/// Distinguishes the pools of one answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PoolId {
    /// The pool without a name and prefix.
    Unnamed,
    /// A pool with a prefix.
    Prefix(String),
    /// A pool with a name.
    Name(String),
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One character more than a valid name may have.
        match self {
            Self::Unnamed => f.write_str("the pool without a name"),
            Self::Prefix(prefix) => write!(f, "the pool with prefix {:?}", shortened(prefix)),
            Self::Name(name) => write!(f, "pool {:?}", shortened(name)),
        }
    }
}

/// A notification that offers changed. It contains no amounts: the receiver reads again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// The offers to all clusters may have changed.
    All,
    /// The offer to the cluster with this ID has changed.
    Cluster(String),
}

/// Pools that cannot be offered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolsError {
    /// More than [`MAX_POOLS`] pools.
    #[error("there are {0} pools; the maximum is {MAX_POOLS}")]
    TooManyPools(usize),
    /// More than [`MAX_RESOURCES`] resources in a pool.
    #[error("{pool} has {count} resources; the maximum is {MAX_RESOURCES}")]
    TooManyResources {
        /// The pool.
        pool: PoolId,
        /// Number of its resources.
        count: usize,
    },
    /// A name or prefix that is not a DNS label. It becomes part of the name of a Node.
    #[error("{0}: the name of a pool has at most 63 lower-case letters, digits and inner dashes")]
    Name(PoolId),
    /// Two pools with the same name or prefix, or two without.
    #[error("{0} appears more than once")]
    Duplicate(PoolId),
    /// A negative amount.
    #[error("{pool} has {quantity} of {resource}: an amount cannot be negative")]
    Negative {
        /// The pool.
        pool: PoolId,
        /// The resource.
        resource: String,
        /// The amount.
        quantity: Quantity,
    },
    /// The prices of a pool are not usable.
    #[error("{pool}: {source}")]
    Prices {
        /// The pool.
        pool: PoolId,
        /// Why.
        source: PricesError,
    },
    /// A pool comes through more than [`MAX_HOPS`] clusters.
    #[error("{pool} comes through {hops} clusters; the maximum is {MAX_HOPS}")]
    Hops {
        /// The pool.
        pool: PoolId,
        /// Number of clusters.
        hops: u32,
    },
}

/// Checks that these pools can be offered together.
pub fn check_pools(pools: &[Pool]) -> Result<(), PoolsError> {
    if pools.len() > MAX_POOLS {
        return Err(PoolsError::TooManyPools(pools.len()));
    }
    let mut seen = BTreeSet::new();
    for pool in pools {
        let id = pool.id();
        if [&pool.name, &pool.prefix]
            .into_iter()
            .flatten()
            .any(|name| !is_dns_label(name))
        {
            return Err(PoolsError::Name(id));
        }
        if pool.resources.len() > MAX_RESOURCES {
            return Err(PoolsError::TooManyResources {
                pool: id,
                count: pool.resources.len(),
            });
        }
        if let Some((resource, quantity)) = pool
            .resources
            .iter()
            .find(|(_, quantity)| quantity.is_negative())
        {
            return Err(PoolsError::Negative {
                pool: id,
                resource: resource.to_owned(),
                quantity,
            });
        }
        if let Some(prices) = &pool.prices {
            prices
                .rates
                .check_prices(&prices.currency)
                .map_err(|source| PoolsError::Prices {
                    pool: id.clone(),
                    source,
                })?;
        }
        if pool.hops > MAX_HOPS {
            return Err(PoolsError::Hops {
                pool: id,
                hops: pool.hops.into(),
            });
        }
        if !seen.insert(id.clone()) {
            return Err(PoolsError::Duplicate(id));
        }
    }
    Ok(())
}

/// At most one character more than a valid name may have.
fn shortened(name: &str) -> String {
    name.chars().take(64).collect()
}

fn is_dns_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [text.bytes().next(), text.bytes().last()];
    text.len() <= 63
        && ends.iter().all(|end| end.is_some_and(inner))
        && text.bytes().all(|byte| inner(byte) || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(amount: &str) -> ResourceList {
        [("cpu", amount.parse().unwrap())].into()
    }

    #[test]
    fn pools_are_distinguished_by_name_then_prefix() {
        let prefixed = |prefix: &str| Pool {
            prefix: Some(prefix.into()),
            ..Pool::unnamed(cpu("1"))
        };
        assert_eq!(
            check_pools(&[
                Pool::unnamed(cpu("1")),
                Pool::named("a", cpu("1")),
                prefixed("a"),
                prefixed("b")
            ]),
            Ok(())
        );
        let twice = [
            Pool::named("a", cpu("1")),
            Pool {
                prefix: Some("b".into()),
                ..Pool::named("a", cpu("2"))
            },
        ];
        assert_eq!(
            check_pools(&twice).unwrap_err().to_string(),
            "pool \"a\" appears more than once"
        );
        let twice = [Pool::unnamed(cpu("1")), Pool::unnamed(cpu("2"))];
        assert_eq!(
            check_pools(&twice).unwrap_err().to_string(),
            "the pool without a name appears more than once"
        );
    }

    #[test]
    fn names_that_are_not_dns_labels_are_refused() {
        for name in ["", "A", "-a", "a-", "a.b", "a b", "ä", &"a".repeat(64)] {
            let named = Pool::named(name, cpu("1"));
            assert!(
                matches!(
                    check_pools(&[named]),
                    Err(PoolsError::Name(PoolId::Name(_)))
                ),
                "{name:?}"
            );
            let prefixed = Pool {
                prefix: Some(name.to_owned()),
                ..Pool::default()
            };
            assert!(
                matches!(
                    check_pools(&[prefixed]),
                    Err(PoolsError::Name(PoolId::Prefix(_)))
                ),
                "{name:?}"
            );
        }
        assert_eq!(
            check_pools(&[Pool::named("a".repeat(63), cpu("1"))]),
            Ok(())
        );
    }

    #[test]
    fn the_error_of_a_negative_amount_names_the_pool() {
        let error = check_pools(&[Pool::named("gold", cpu("-1"))]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "pool \"gold\" has -1 of cpu: an amount cannot be negative"
        );
    }

    #[test]
    fn resources_come_through_a_bounded_number_of_clusters() {
        let through = |hops: u8| {
            check_pools(&[Pool {
                hops,
                ..Pool::unnamed(cpu("1"))
            }])
        };
        assert_eq!(through(MAX_HOPS), Ok(()));
        assert_eq!(
            through(MAX_HOPS + 1),
            Err(PoolsError::Hops {
                pool: PoolId::Unnamed,
                hops: 65
            })
        );
    }

    #[test]
    fn prices_have_a_currency_and_are_not_negative() {
        let priced = |currency: &str, rate: &str| {
            let rates = [("cpu", rate.parse().unwrap())].into_iter().collect();
            check_pools(&[Pool::named("gold", cpu("1")).at(Prices {
                currency: currency.into(),
                rates,
            })])
        };
        assert_eq!(priced("EUR", "0.04"), Ok(()));
        assert!(matches!(
            priced("", "0.04"),
            Err(PoolsError::Prices {
                source: PricesError::Currency,
                ..
            })
        ));
        assert_eq!(
            priced("EUR", "-1").unwrap_err().to_string(),
            "pool \"gold\": the price of cpu is negative: -1"
        );
    }

    #[test]
    fn the_numbers_of_pools_and_resources_are_limited() {
        let pools = |count: usize| {
            (0..count)
                .map(|n| Pool::named(format!("p{n}"), cpu("1")))
                .collect::<Vec<_>>()
        };
        assert_eq!(check_pools(&pools(MAX_POOLS)), Ok(()));
        assert_eq!(
            check_pools(&pools(MAX_POOLS + 1)),
            Err(PoolsError::TooManyPools(MAX_POOLS + 1))
        );
        let many = |count: usize| {
            let resources = (0..count)
                .map(|n| (format!("example.com/r{n}"), Quantity::from_units(1)))
                .collect();
            check_pools(&[Pool::unnamed(resources)])
        };
        assert_eq!(many(MAX_RESOURCES), Ok(()));
        assert!(matches!(
            many(MAX_RESOURCES + 1),
            Err(PoolsError::TooManyResources { .. })
        ));
    }
}
