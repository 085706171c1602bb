//! The bytes of the three generations of the protocol. Pure.
//!
//! All three have the same methods at the same paths, and the bytes of their requests and
//! notifications are the same. Only the answer to `ReadResources` differs, and it does not contain
//! its generation: both ends must be configured. The .proto files in `proto/` define the protocol.
//! The messages here are written by hand; tests compare them with golden bytes.

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;
use liqo_quantity::{
    MAX_RATES, ParseDecimalError, ParseQuantityError, PricesError, Quantity, ResourceArgument,
    ResourceList, unit_of,
};
use prost::Message;

use crate::model::{
    MAX_CLUSTER_ID_LEN, MAX_POOLS, MAX_RESOURCES, Pool, PoolId, PoolsError, Prices, check_pools,
};

/// Name of the gRPC service. It has no package.
pub const SERVICE: &str = "resource_reader";
/// Path of the method that returns what a cluster is offered.
pub const READ_RESOURCES: &str = "/resource_reader/ReadResources";
/// Path of the method that streams changes.
pub const SUBSCRIBE: &str = "/resource_reader/Subscribe";
/// Path of the method that reports the end of a peering.
pub const REMOVE_CLUSTER: &str = "/resource_reader/RemoveCluster";

/// Maximum number of names in an error, and of characters of each: errors appear in logs and in the
/// status of policies.
const MAX_NAMES_IN_ERROR: usize = 10;
const MAX_NAME_LEN_IN_ERROR: usize = 63;

/// Generation of the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Generation {
    /// Liqo 0.5: one list, quantities as text, notifications that name no cluster
    P1,
    /// Liqo 0.6 to 0.8: one list
    P2,
    /// Liqo 0.9 and later: any number of pools
    #[default]
    P3,
}

impl Generation {
    const ALL: [Self; 3] = [Self::P1, Self::P2, Self::P3];

    /// The compiled form of the .proto file, for reflection.
    pub fn descriptors(self) -> &'static [u8] {
        match self {
            Self::P1 => include_bytes!("../proto/p1.bin"),
            Self::P2 => include_bytes!("../proto/p2.bin"),
            Self::P3 => include_bytes!("../proto/p3.bin"),
        }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// An answer that cannot become an offer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// No pool, or no resource in any pool.
    #[error("its answer is empty: it offers nothing")]
    Empty,
    /// Not a message of this generation.
    #[error("its answer cannot be read as {expected}: {reason}")]
    Unreadable {
        /// The configured generation.
        expected: Generation,
        /// Error of the decoder.
        reason: String,
    },
    /// A message of another generation.
    #[error(
        "its answer is not {expected}: is it a {found} plugin? Then set the generation to {found}"
    )]
    OtherGeneration {
        /// The configured generation.
        expected: Generation,
        /// A generation in which the answer is valid.
        found: Generation,
    },
    /// A text that is not a quantity.
    #[error("{pool} has {text:?} of {resource}: {source}")]
    Quantity {
        /// The pool.
        pool: PoolId,
        /// The resource.
        resource: String,
        /// The text.
        text: String,
        /// Why it is not a quantity.
        source: Box<ParseQuantityError>,
    },
    /// A text that is not an amount of money.
    #[error("{pool} has the price {text:?} for {resource}: {source}")]
    Rate {
        /// The pool.
        pool: PoolId,
        /// The resource.
        resource: String,
        /// The text.
        text: String,
        /// Why it is not an amount of money.
        source: ParseDecimalError,
    },
    /// A pool without any resource that a pod can request.
    #[error(
        "{pool} names only {}, which no pod can request: use cpu, memory, pods, storage, ephemeral-storage, hugepages-<size>, or domain/name",
        names.join(", ")
    )]
    Names {
        /// The pool.
        pool: PoolId,
        /// Names of its resources, shortened, and at most ten of them.
        names: Vec<String>,
    },
    /// The pools cannot be offered together.
    #[error(transparent)]
    Pools(#[from] PoolsError),
}

/// Pools that cannot be encoded in a generation of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The generation supports only one pool.
    #[error("{generation} supports one pool, not {count}: use --generation p3")]
    SeveralPools {
        /// The generation.
        generation: Generation,
        /// Number of pools.
        count: usize,
    },
    /// The generation has no prices.
    #[error("{0} has no prices: use --generation p3")]
    Prices(Generation),
    /// The pools cannot be offered in any generation.
    #[error(transparent)]
    Pools(#[from] PoolsError),
}

/// A message without a valid cluster ID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// The message cannot be decoded.
    #[error("the message cannot be read: {0}")]
    Unreadable(String),
    /// The ID is longer than [`MAX_CLUSTER_ID_LEN`] or contains control characters.
    #[error(
        "this is not the ID of a cluster: it has at most {MAX_CLUSTER_ID_LEN} characters and no control characters"
    )]
    Form,
}

/// Encodes the answer to `ReadResources`.
pub fn encode_answer(generation: Generation, pools: &[Pool]) -> Result<Bytes, EncodeError> {
    check_pools(pools)?;
    if generation != Generation::P3 && pools.len() > 1 {
        return Err(EncodeError::SeveralPools {
            generation,
            count: pools.len(),
        });
    }
    if generation != Generation::P3 && pools.iter().any(|pool| pool.prices.is_some()) {
        return Err(EncodeError::Prices(generation));
    }
    let only = pools
        .first()
        .map(|pool| pool.resources.clone())
        .unwrap_or_default();
    let bytes = match generation {
        Generation::P1 => TextList {
            resources: resource_texts(&only).collect(),
        }
        .encode_to_vec(),
        Generation::P2 => PoolMessage {
            resources: quantity_messages(&only),
            ..PoolMessage::default()
        }
        .encode_to_vec(),
        Generation::P3 => PoolsMessage {
            pools: pools.iter().map(pool_message).collect(),
        }
        .encode_to_vec(),
    };
    Ok(bytes.into())
}

fn pool_message(pool: &Pool) -> PoolMessage {
    PoolMessage {
        resources: quantity_messages(&pool.resources),
        name: pool.name.clone().unwrap_or_default(),
        prefix: pool.prefix.clone().unwrap_or_default(),
        prices: pool.prices.as_ref().map(|prices| PricesMessage {
            currency: prices.currency.clone(),
            rates: prices
                .rates
                .iter()
                .map(|(name, rate)| (name.to_owned(), rate.to_string()))
                .collect(),
        }),
        hops: pool.hops.into(),
    }
}

/// Decodes the answer to `ReadResources` and checks it, so the pools can be offered. It rounds
/// quantities down to the unit of the resource, and removes resources that no pod can request, such
/// as limits of attached volumes, which nodes list.
pub fn decode_answer(generation: Generation, answer: &[u8]) -> Result<Vec<Pool>, AnswerError> {
    if answer.is_empty() {
        return Err(AnswerError::Empty);
    }
    let decoded = decode_pools(generation, answer);
    if !decoded.as_ref().is_ok_and(|pools| is_plausible(pools)) {
        let other = Generation::ALL.into_iter().find(|found| {
            *found != generation
                && decode_pools(*found, answer).is_ok_and(|pools| is_plausible(&pools))
        });
        if let Some(found) = other {
            return Err(AnswerError::OtherGeneration {
                expected: generation,
                found,
            });
        }
    }
    let decoded = decoded.map_err(|error| AnswerError::Unreadable {
        expected: generation,
        reason: error.to_string(),
    })?;
    // First, because converting costs memory.
    if decoded.len() > MAX_POOLS {
        return Err(PoolsError::TooManyPools(decoded.len()).into());
    }
    let pools: Vec<Pool> = decoded
        .into_iter()
        .map(UncheckedPool::into_pool)
        .collect::<Result<_, _>>()?;
    check_pools(&pools)?;
    if pools.iter().all(|pool| pool.resources.is_empty()) {
        return Err(AnswerError::Empty);
    }
    Ok(pools)
}

/// Encodes a request or a notification with a cluster ID. The bytes are the same in all
/// generations.
pub fn encode_cluster(cluster: &str) -> Bytes {
    ClusterMessage {
        id: cluster.to_owned(),
    }
    .encode_to_vec()
    .into()
}

/// Decodes a request or a notification. The ID may be empty.
pub fn decode_cluster(message: &[u8]) -> Result<String, ClusterError> {
    let ClusterMessage { id } = ClusterMessage::decode(message)
        .map_err(|error| ClusterError::Unreadable(error.to_string()))?;
    let fits = id.len() <= MAX_CLUSTER_ID_LEN && !id.chars().any(char::is_control);
    if fits {
        Ok(id)
    } else {
        Err(ClusterError::Form)
    }
}

/// `ReadRequest`, `RemoveRequest`, `ClusterIdentity`.
#[derive(Clone, PartialEq, Message)]
struct ClusterMessage {
    #[prost(string, tag = "1")]
    id: String,
}

/// `ReadResponse` of P1.
#[derive(Clone, PartialEq, Message)]
struct TextList {
    #[prost(btree_map = "string, string", tag = "1")]
    resources: BTreeMap<String, String>,
}

/// `ResourceList`. P2 has its first field only.
#[derive(Clone, PartialEq, Message)]
struct PoolMessage {
    #[prost(btree_map = "string, message", tag = "1")]
    resources: BTreeMap<String, QuantityMessage>,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    prefix: String,
    #[prost(message, optional, tag = "4")]
    prices: Option<PricesMessage>,
    #[prost(uint32, tag = "5")]
    hops: u32,
}

/// `Prices` of P3.
#[derive(Clone, PartialEq, Message)]
struct PricesMessage {
    #[prost(string, tag = "1")]
    currency: String,
    #[prost(btree_map = "string, string", tag = "2")]
    rates: BTreeMap<String, String>,
}

/// `PoolResourceList` of P3.
#[derive(Clone, PartialEq, Message)]
struct PoolsMessage {
    #[prost(message, repeated, tag = "1")]
    pools: Vec<PoolMessage>,
}

/// `k8s.io.apimachinery.pkg.api.resource.Quantity`.
#[derive(Clone, PartialEq, Message)]
struct QuantityMessage {
    #[prost(string, optional, tag = "1")]
    string: Option<String>,
}

fn resource_texts(resources: &ResourceList) -> impl Iterator<Item = (String, String)> {
    resources
        .iter()
        .map(|(name, quantity)| (name.to_owned(), quantity.to_string()))
}

fn quantity_messages(resources: &ResourceList) -> BTreeMap<String, QuantityMessage> {
    resource_texts(resources)
        .map(|(name, text)| (name, QuantityMessage { string: Some(text) }))
        .collect()
}

/// A decoded pool before its names and quantities are checked.
struct UncheckedPool {
    name: String,
    prefix: String,
    /// `None` if no quantity was sent, which Kubernetes reads as zero.
    resources: BTreeMap<String, Option<String>>,
    prices: Option<PricesMessage>,
    hops: u32,
}

fn decode_pools(
    generation: Generation,
    answer: &[u8],
) -> Result<Vec<UncheckedPool>, prost::DecodeError> {
    Ok(match generation {
        Generation::P1 => {
            let resources = TextList::decode(answer)?.resources;
            let resources = resources
                .into_iter()
                .map(|(name, text)| (name, Some(text)))
                .collect();
            vec![UncheckedPool {
                name: String::new(),
                prefix: String::new(),
                resources,
                prices: None,
                hops: 0,
            }]
        }
        Generation::P2 => {
            let list = PoolMessage::decode(answer)?;
            vec![unchecked_pool(PoolMessage {
                name: String::new(),
                prefix: String::new(),
                prices: None,
                hops: 0,
                ..list
            })]
        }
        Generation::P3 => PoolsMessage::decode(answer)?
            .pools
            .into_iter()
            .map(unchecked_pool)
            .collect(),
    })
}

fn unchecked_pool(message: PoolMessage) -> UncheckedPool {
    let resources = message.resources.into_iter();
    UncheckedPool {
        name: message.name,
        prefix: message.prefix,
        prices: message.prices,
        hops: message.hops,
        resources: resources
            .map(|(name, quantity)| (name, quantity.string))
            .collect(),
    }
}

/// Whether the answer was probably encoded in the generation in which it was decoded. An answer of
/// another generation either cannot be decoded, or has lengths and tags in its names, or has no
/// quantities.
fn is_plausible(pools: &[UncheckedPool]) -> bool {
    let mut resources = pools.iter().flat_map(|pool| &pool.resources).peekable();
    resources.peek().is_some()
        && resources.all(|(name, text)| {
            name.bytes().all(|byte| byte.is_ascii_graphic())
                && text
                    .as_ref()
                    .is_some_and(|text| text.parse::<Quantity>().is_ok())
        })
}

impl UncheckedPool {
    fn into_pool(self) -> Result<Pool, AnswerError> {
        let [name, prefix] =
            [self.name, self.prefix].map(|text| Some(text).filter(|text| !text.is_empty()));
        let mut pool = Pool {
            name,
            prefix,
            ..Pool::default()
        };
        if self.resources.len() > MAX_RESOURCES {
            return Err(PoolsError::TooManyResources {
                pool: pool.id(),
                count: self.resources.len(),
            }
            .into());
        }
        pool.hops = u8::try_from(self.hops).map_err(|_| PoolsError::Hops {
            pool: pool.id(),
            hops: self.hops,
        })?;
        let mut others = Vec::new();
        for (resource, text) in self.resources {
            if ResourceArgument::new(&resource, "0").is_err() {
                if others.len() < MAX_NAMES_IN_ERROR {
                    others.push(
                        resource
                            .escape_debug()
                            .take(MAX_NAME_LEN_IN_ERROR)
                            .collect::<String>(),
                    );
                }
                continue;
            }
            let quantity = match text.as_deref().map(str::parse::<Quantity>) {
                None => Quantity::ZERO,
                Some(Ok(quantity)) if quantity.is_negative() => quantity,
                Some(Ok(quantity)) => quantity.round_down(unit_of(&resource)),
                Some(Err(source)) => {
                    let text = text.unwrap_or_default().chars().take(80).collect();
                    return Err(AnswerError::Quantity {
                        pool: pool.id(),
                        resource,
                        text,
                        source: source.into(),
                    });
                }
            };
            pool.resources.insert(resource, quantity);
        }
        pool.prices = self
            .prices
            .map(|prices| prices.into_prices(&pool))
            .transpose()?;
        if pool.resources.is_empty() && !others.is_empty() {
            return Err(AnswerError::Names {
                pool: pool.id(),
                names: others,
            });
        }
        if !others.is_empty() {
            tracing::debug!(pool = %pool.id(), names = others.join(", "), "removed resources that no pod can request");
        }
        Ok(pool)
    }
}

impl PricesMessage {
    /// Removes prices of what no pod can request.
    fn into_prices(self, pool: &Pool) -> Result<Prices, AnswerError> {
        if self.rates.len() > MAX_RATES {
            let source = PricesError::TooMany(self.rates.len());
            return Err(PoolsError::Prices {
                pool: pool.id(),
                source,
            }
            .into());
        }
        let requestable = self
            .rates
            .into_iter()
            .filter(|(resource, _)| ResourceArgument::new(resource, "0").is_ok());
        let mut rates = Vec::new();
        for (resource, text) in requestable {
            match text.parse() {
                Ok(rate) => rates.push((resource, rate)),
                Err(source) => {
                    return Err(AnswerError::Rate {
                        pool: pool.id(),
                        resource,
                        text: text.chars().take(80).collect(),
                        source,
                    });
                }
            }
        }
        Ok(Prices {
            currency: self.currency,
            rates: rates.into_iter().collect(),
        })
    }
}
