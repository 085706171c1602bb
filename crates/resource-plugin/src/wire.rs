//! The bytes of the three generations of the protocol. Pure.
//!
//! All three have the same methods at the same paths, and their requests and notifications are the same bytes. Only the
//! answer to `ReadResources` differs, and nothing in it says which generation it is: both ends have to be told. The .proto
//! files in `proto/` are the contract; the messages here are written by hand, and a test compares the two.

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;
use liqo_quantity::{ParseQuantityError, Quantity, ResourceArgument, ResourceList, unit_of};
use prost::Message;

use crate::model::{LONGEST_CLUSTER_ID, MOST_POOLS, MOST_RESOURCES, Pool, PoolId, PoolsError, check};

/// The name of the service; there is no package.
pub const SERVICE: &str = "resource_reader";
/// Path of the method that asks what a cluster is offered.
pub const READ_RESOURCES: &str = "/resource_reader/ReadResources";
/// Path of the method that tells of changes.
pub const SUBSCRIBE: &str = "/resource_reader/Subscribe";
/// Path of the method that says that a peering ended.
pub const REMOVE_CLUSTER: &str = "/resource_reader/RemoveCluster";

/// Which generation of the protocol is spoken.
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

/// An answer that says nothing that could be offered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// No pool, or none that names a resource.
    #[error("its answer is empty: it offers nothing")]
    Empty,
    /// No message of this generation.
    #[error("its answer cannot be read as {expected}: {reason}")]
    Unreadable {
        /// What was to be read.
        expected: Generation,
        /// What the decoder says.
        reason: String,
    },
    /// A message, but of another generation.
    #[error("its answer is not {expected}: is it a {found} plugin? Then set the generation to {found}")]
    OtherGeneration {
        /// What was to be read.
        expected: Generation,
        /// What can be read.
        found: Generation,
    },
    /// A quantity that is none.
    #[error("{pool} holds {text:?} of {resource}: {source}")]
    Quantity {
        /// The pool.
        pool: PoolId,
        /// The resource.
        resource: String,
        /// What it said.
        text: String,
        /// What is wrong with that.
        source: Box<ParseQuantityError>,
    },
    /// Nothing that a pod could request.
    #[error(
        "{pool} names only {}, which no pod can request: use cpu, memory, pods, storage, ephemeral-storage, hugepages-<size>, or domain/name",
        names.join(", ")
    )]
    Names {
        /// The pool.
        pool: PoolId,
        /// What it names.
        names: Vec<String>,
    },
    /// The pools cannot be offered.
    #[error(transparent)]
    Pools(#[from] PoolsError),
}

/// Pools that cannot be told in a generation of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TellError {
    /// The generation knows one pool only.
    #[error("{generation} can tell of one pool, not of {count}: use --generation p3")]
    SeveralPools {
        /// The generation.
        generation: Generation,
        /// How many there are.
        count: usize,
    },
    /// They could not be offered in any.
    #[error(transparent)]
    Pools(#[from] PoolsError),
}

/// An ID that no cluster can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// The message is none.
    #[error("the message cannot be read: {0}")]
    Unreadable(String),
    /// Longer than any name in Kubernetes, or with control characters.
    #[error("this is not the ID of a cluster: it may have {LONGEST_CLUSTER_ID} characters, and nothing invisible")]
    Form,
}

/// The answer to `ReadResources`.
pub fn encode_answer(generation: Generation, pools: &[Pool]) -> Result<Bytes, TellError> {
    check(pools)?;
    if generation != Generation::P3 && pools.len() > 1 {
        return Err(TellError::SeveralPools { generation, count: pools.len() });
    }
    let only = pools.first().map(|pool| pool.resources.clone()).unwrap_or_default();
    let bytes = match generation {
        Generation::P1 => TextList { resources: texts(&only).collect() }.encode_to_vec(),
        Generation::P2 => PoolMessage { resources: quantities(&only), ..PoolMessage::default() }.encode_to_vec(),
        Generation::P3 => {
            let message = |pool: &Pool| PoolMessage {
                resources: quantities(&pool.resources),
                name: pool.name.clone().unwrap_or_default(),
                prefix: pool.prefix.clone().unwrap_or_default(),
            };
            PoolsMessage { pools: pools.iter().map(message).collect() }.encode_to_vec()
        }
    };
    Ok(bytes.into())
}

/// Reads the answer to `ReadResources`. What comes back can be offered: it is checked, quantities are rounded down to what the
/// resource is counted in, and names that no pod can request (as limits of attached volumes, which nodes list) are left out.
pub fn decode_answer(generation: Generation, answer: &[u8]) -> Result<Vec<Pool>, AnswerError> {
    if answer.is_empty() {
        return Err(AnswerError::Empty);
    }
    let told = told(generation, answer);
    if !told.as_ref().is_ok_and(|pools| is_sound(pools)) {
        let fits = |found: &Generation| *found != generation && self::told(*found, answer).is_ok_and(|pools| is_sound(&pools));
        if let Some(found) = Generation::ALL.into_iter().find(fits) {
            return Err(AnswerError::OtherGeneration { expected: generation, found });
        }
    }
    let told = told.map_err(|error| AnswerError::Unreadable { expected: generation, reason: error.to_string() })?;
    // Before anything is made of it.
    if told.len() > MOST_POOLS {
        return Err(PoolsError::TooManyPools(told.len()).into());
    }
    let pools: Vec<Pool> = told.into_iter().map(ToldPool::read).collect::<Result<_, _>>()?;
    check(&pools)?;
    if pools.iter().all(|pool| pool.resources.is_empty()) {
        return Err(AnswerError::Empty);
    }
    Ok(pools)
}

/// The request that names a cluster, and the notification that does: the same in all generations.
pub fn encode_cluster(cluster: &str) -> Bytes {
    ClusterMessage { id: cluster.to_owned() }.encode_to_vec().into()
}

/// Reads a request or a notification; an empty ID is for the caller to judge.
pub fn decode_cluster(message: &[u8]) -> Result<String, ClusterError> {
    let ClusterMessage { id } = ClusterMessage::decode(message).map_err(|error| ClusterError::Unreadable(error.to_string()))?;
    let fits = id.len() <= LONGEST_CLUSTER_ID && !id.chars().any(char::is_control);
    if fits { Ok(id) } else { Err(ClusterError::Form) }
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

fn texts(resources: &ResourceList) -> impl Iterator<Item = (String, String)> {
    resources.iter().map(|(name, quantity)| (name.to_owned(), quantity.to_string()))
}

fn quantities(resources: &ResourceList) -> BTreeMap<String, QuantityMessage> {
    texts(resources).map(|(name, text)| (name, QuantityMessage { string: Some(text) })).collect()
}

/// A pool as it was told, not yet believed.
struct ToldPool {
    name: String,
    prefix: String,
    /// Without a text where no quantity was sent: Kubernetes reads that as zero.
    resources: BTreeMap<String, Option<String>>,
}

fn told(generation: Generation, answer: &[u8]) -> Result<Vec<ToldPool>, prost::DecodeError> {
    let pool = |PoolMessage { resources, name, prefix }| ToldPool {
        name,
        prefix,
        resources: resources.into_iter().map(|(name, quantity)| (name, quantity.string)).collect(),
    };
    Ok(match generation {
        Generation::P1 => {
            let resources = TextList::decode(answer)?.resources;
            let resources = resources.into_iter().map(|(name, text)| (name, Some(text))).collect();
            vec![ToldPool { name: String::new(), prefix: String::new(), resources }]
        }
        Generation::P2 => {
            let list = PoolMessage::decode(answer)?;
            vec![pool(PoolMessage { name: String::new(), prefix: String::new(), ..list })]
        }
        Generation::P3 => PoolsMessage::decode(answer)?.pools.into_iter().map(pool).collect(),
    })
}

/// Whether this looks like what was meant. Read as another generation than it was written in, an answer is either no message
/// at all, or one with lengths and tags for names, or one without quantities.
fn is_sound(pools: &[ToldPool]) -> bool {
    let one = |(name, text): (&String, &Option<String>)| {
        name.bytes().all(|byte| byte.is_ascii_graphic()) && text.as_ref().is_some_and(|text| text.parse::<Quantity>().is_ok())
    };
    pools.iter().any(|pool| !pool.resources.is_empty()) && pools.iter().all(|pool| pool.resources.iter().all(one))
}

impl ToldPool {
    fn read(self) -> Result<Pool, AnswerError> {
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let mut pool = Pool { name: some(self.name), prefix: some(self.prefix), resources: ResourceList::new() };
        if self.resources.len() > MOST_RESOURCES {
            return Err(PoolsError::TooManyResources { pool: pool.id(), count: self.resources.len() }.into());
        }
        let mut others = Vec::new();
        for (resource, text) in self.resources {
            if ResourceArgument::new(&resource, "0").is_err() {
                others.push(resource.escape_debug().to_string());
                continue;
            }
            let quantity = match text.as_deref().map(str::parse::<Quantity>) {
                None => Quantity::ZERO,
                Some(Ok(quantity)) if quantity.is_negative() => quantity,
                Some(Ok(quantity)) => quantity.round_down(unit_of(&resource)),
                Some(Err(source)) => {
                    let text = text.unwrap_or_default().chars().take(80).collect();
                    return Err(AnswerError::Quantity { pool: pool.id(), resource, text, source: source.into() });
                }
            };
            pool.resources.insert(resource, quantity);
        }
        if pool.resources.is_empty() && !others.is_empty() {
            return Err(AnswerError::Names { pool: pool.id(), names: others });
        }
        if !others.is_empty() {
            tracing::debug!(pool = %pool.id(), names = others.join(", "), "left out, because no pod can request them");
        }
        Ok(pool)
    }
}
