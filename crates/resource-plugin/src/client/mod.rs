//! The other end of the protocol: what Liqo asks plugins with.
//!
//! Nothing here needs the plugin to be there. Calls fail, clearly and within their deadline; the subscription is tried
//! again for ever, ever more slowly.

mod settings;
mod subscription;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt as _, stream::BoxStream};
use http::uri::PathAndQuery;
use tokio::sync::watch;
use tonic::{Code, Request, Status, client::Grpc, transport::Channel};

use self::{settings::Address, subscription::Task};
use crate::{
    changes::{Announcer, Changes},
    codec::Raw,
    model::{Change, Pool},
    server::chain,
    source::{ResourceSource, SourceError},
    wire::{self, AnswerError},
};

pub use settings::{AddressError, Pem, Settings, Tls, TlsError};

/// The largest answer that is read: a hundred times what the largest sensible one needs.
pub const LARGEST_ANSWER: usize = 1 << 20;

/// Speaks to one plugin. Clones share connection and subscription; the last one ends both.
#[derive(Clone, Debug)]
pub struct PluginClient {
    connection: Arc<Connection>,
    announcer: Announcer,
    state: watch::Receiver<State>,
    _task: Arc<Task>,
}

/// How it stands with the subscription to a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The first attempt has not ended yet.
    Connecting,
    /// The plugin tells of changes.
    Connected,
    /// The plugin answers, but tells of no changes. So each further attempt counts as a change.
    NotSubscribed(String),
    /// The plugin does not answer.
    Unreachable(String),
}

/// A plugin's answer cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("resource plugin {plugin}, asked about cluster {cluster}: {fault}")]
pub struct PluginError {
    /// The address of the plugin.
    pub plugin: String,
    /// The cluster in question.
    pub cluster: String,
    /// What is wrong.
    #[source]
    pub fault: Fault,
}

/// What is wrong with a plugin's answer.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// No connection, or it broke.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// No answer in time.
    #[error("it did not answer within {0:?}")]
    Timeout(Duration),
    /// The message is larger than any sensible one.
    #[error("it sent a message that is too large: {0}")]
    TooLarge(String),
    /// It refuses, or failed.
    #[error("it answered {code:?}: {message}")]
    Refused {
        /// The status code.
        code: Code,
        /// Its words.
        message: String,
    },
    /// It answered what cannot be used.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// Our own side of TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl PluginClient {
    /// Starts to subscribe, and returns at once. To be called on a tokio runtime.
    pub fn new(settings: Settings) -> Result<Self, AddressError> {
        let address = Address::parse(&settings)?;
        let connection = Arc::new(Connection { address, settings, channel: Mutex::new(None) });
        let announcer = Announcer::new();
        let (sender, state) = watch::channel(State::Connecting);
        let task = Task::start(connection.clone(), announcer.clone(), sender);
        Ok(Self { connection, announcer, state, _task: Arc::new(task) })
    }

    /// What the plugin offers to this cluster. May be asked at any time, whatever the subscription's state.
    pub async fn read(&self, cluster: &str) -> Result<Vec<Pool>, PluginError> {
        let failed = |fault| PluginError { plugin: self.plugin(), cluster: cluster.to_owned(), fault };
        let answer = self.connection.call(wire::READ_RESOURCES, wire::encode_cluster(cluster)).await.map_err(failed)?;
        let generation = self.connection.settings.generation;
        wire::decode_answer(generation, &answer).map_err(|error| failed(error.into()))
    }

    /// Tells the plugin that the peering with this cluster has ended. Harmless when said twice.
    pub async fn remove(&self, cluster: &str) -> Result<(), PluginError> {
        let removed = self.connection.call(wire::REMOVE_CLUSTER, wire::encode_cluster(cluster)).await;
        removed.map(drop).map_err(|fault| PluginError { plugin: self.plugin(), cluster: cluster.to_owned(), fault })
    }

    /// What the plugin tells of changes from now on, and [`Change::All`] each time that it was found again, because what
    /// happened meanwhile is not known.
    pub fn changes(&self) -> Changes {
        self.announcer.listen()
    }

    /// How it stands with the subscription.
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// The plugin's address.
    pub fn plugin(&self) -> String {
        self.connection.address.to_string()
    }
}

/// A plugin is a source like those that are built in.
#[async_trait]
impl ResourceSource for PluginClient {
    async fn read(&self, cluster: &str) -> Result<Vec<Pool>, SourceError> {
        match Self::read(self, cluster).await {
            Err(PluginError { fault: Fault::Answer(AnswerError::Empty), .. }) => Ok(Vec::new()),
            read => read.map_err(SourceError::failed),
        }
    }

    fn changes(&self) -> BoxStream<'static, Change> {
        Self::changes(self).boxed()
    }

    async fn removed(&self, cluster: &str) {
        if let Err(error) = self.remove(cluster).await {
            tracing::warn!(%error, "a plugin was not told that a peering ended");
        }
    }

    async fn ready(&self) {
        // It ends when the subscription does, with the client.
        let _ = self.state.clone().wait_for(|state| matches!(state, State::Connected | State::NotSubscribed(_))).await;
    }
}

/// The one connection to a plugin, made when it is needed.
#[derive(Debug)]
struct Connection {
    address: Address,
    settings: Settings,
    channel: Mutex<Option<Channel>>,
}

impl Connection {
    /// The connection, or a new one.
    fn channel(&self) -> Result<Channel, TlsError> {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = &*channel {
            return Ok(channel.clone());
        }
        let new = self.address.endpoint(&self.settings)?.connect_lazy();
        Ok(channel.insert(new).clone())
    }

    /// The next call connects anew.
    fn forget(&self) {
        *self.channel.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// One question, one answer.
    async fn call(&self, path: &'static str, message: Bytes) -> Result<Bytes, Fault> {
        let channel = self.channel()?;
        let deadline = self.settings.deadline;
        let call = async {
            let mut grpc = Grpc::new(channel).max_decoding_message_size(LARGEST_ANSWER);
            grpc.ready().await.map_err(|error| Fault::Unreachable(chain(&error)))?;
            let mut request = Request::new(message);
            request.set_timeout(deadline);
            let answer = grpc.unary(request, PathAndQuery::from_static(path), Raw).await;
            answer.map(tonic::Response::into_inner).map_err(|status| fault(&status, deadline))
        };
        let answered = tokio::time::timeout(deadline, call).await.unwrap_or(Err(Fault::Timeout(deadline)));
        // A broken connection is not mended with files for TLS that may have been renewed since.
        if matches!(answered, Err(Fault::Unreachable(_))) {
            self.forget();
        }
        answered
    }
}

/// Tells apart what tonic reports by itself and what the plugin said.
fn fault(status: &Status, deadline: Duration) -> Fault {
    let code = status.code();
    let message: String = status.message().chars().take(500).collect();
    if let Some(cause) = std::error::Error::source(status) {
        let mut causes = std::iter::successors(Some(cause), |cause| cause.source());
        let timeout = causes.any(<dyn std::error::Error>::is::<tonic::TimeoutExpired>);
        return if timeout { Fault::Timeout(deadline) } else { Fault::Unreachable(chain(cause)) };
    }
    match code {
        Code::DeadlineExceeded => Fault::Timeout(deadline),
        // Tonic's words for a message beyond our limit.
        Code::OutOfRange if message.contains("message length too large") => Fault::TooLarge(message),
        code => Fault::Refused { code, message },
    }
}
