//! The client that Liqo calls plugins with.
//!
//! It also works while the plugin is away: calls fail within their deadline, with an error that
//! says why, and the client keeps trying to subscribe, with growing delays.

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

use self::{settings::CheckedAddress, subscription::SubscriptionTask};
use crate::{
    changes::{Announcer, ChangeStream},
    codec::RawCodec,
    model::{Change, Pool},
    server::error_chain,
    source::{ResourceSource, SourceError},
    wire::{self, AnswerError},
};

pub use settings::{AddressError, ClientTls, ClientTlsError, Pem, Settings};

/// Maximum size of an answer in bytes, a hundred times that of the largest useful answer.
pub const LARGEST_ANSWER: usize = 1 << 20;

/// The client of one plugin. Clones share the connection and the subscription, which end with the
/// last clone.
#[derive(Clone, Debug)]
pub struct PluginClient {
    connection: Arc<PluginConnection>,
    announcer: Announcer,
    state: watch::Receiver<SubscriptionState>,
    _task: Arc<SubscriptionTask>,
}

/// State of the subscription to a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubscriptionState {
    /// The client has not finished its first attempt.
    Connecting,
    /// The plugin reports changes.
    Connected,
    /// The plugin answers but does not report changes. So each further attempt counts as a change.
    NotSubscribed(String),
    /// The plugin does not answer.
    Unreachable(String),
}

/// A call to a plugin failed.
#[derive(Debug, thiserror::Error)]
#[error("resource plugin {plugin}, asked about cluster {cluster}: {fault}")]
pub struct PluginError {
    /// The address of the plugin.
    pub plugin: String,
    /// The cluster that the call was about.
    pub cluster: String,
    /// Why the call failed.
    #[source]
    pub fault: CallFault,
}

/// Why a call to a plugin failed.
#[derive(Debug, thiserror::Error)]
pub enum CallFault {
    /// There is no connection, or it broke.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// The plugin did not answer within the deadline.
    #[error("it did not answer within {0:?}")]
    Timeout(Duration),
    /// The answer is larger than [`LARGEST_ANSWER`].
    #[error("it sent a message that is too large: {0}")]
    TooLarge(String),
    /// The plugin answered with an error.
    #[error("it answered {code:?}: {message}")]
    Refused {
        /// Status code of gRPC.
        code: Code,
        /// Message of the plugin.
        message: String,
    },
    /// The plugin's answer is invalid.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// The client's files for TLS are invalid.
    #[error(transparent)]
    Tls(#[from] ClientTlsError),
}

impl PluginClient {
    /// Starts to subscribe in the background and returns at once. It must be called on a tokio
    /// runtime.
    pub fn new(settings: Settings) -> Result<Self, AddressError> {
        let address = CheckedAddress::parse(&settings)?;
        let connection = Arc::new(PluginConnection {
            address,
            settings,
            channel: Mutex::new(None),
        });
        let announcer = Announcer::new();
        let (sender, state) = watch::channel(SubscriptionState::Connecting);
        let task = SubscriptionTask::start(connection.clone(), announcer.clone(), sender);
        Ok(Self {
            connection,
            announcer,
            state,
            _task: Arc::new(task),
        })
    }

    /// What the plugin offers to this cluster. It works in every state of the subscription.
    pub async fn read(&self, cluster: &str) -> Result<Vec<Pool>, PluginError> {
        let failed = |fault| PluginError {
            plugin: self.plugin_address(),
            cluster: cluster.to_owned(),
            fault,
        };
        let answer = self
            .connection
            .call(wire::READ_RESOURCES, wire::encode_cluster(cluster))
            .await
            .map_err(failed)?;
        let generation = self.connection.settings.generation;
        wire::decode_answer(generation, &answer).map_err(|error| failed(error.into()))
    }

    /// Tells the plugin that the peering with this cluster has ended. It may be called twice.
    pub async fn remove(&self, cluster: &str) -> Result<(), PluginError> {
        let removed = self
            .connection
            .call(wire::REMOVE_CLUSTER, wire::encode_cluster(cluster))
            .await;
        removed.map(drop).map_err(|fault| PluginError {
            plugin: self.plugin_address(),
            cluster: cluster.to_owned(),
            fault,
        })
    }

    /// The changes that the plugin reports from now on, and [`Change::All`] each time the client
    /// has subscribed again, because it does not know what happened meanwhile.
    pub fn changes(&self) -> ChangeStream {
        self.announcer.listen()
    }

    /// State of the subscription.
    pub fn subscription_state(&self) -> watch::Receiver<SubscriptionState> {
        self.state.clone()
    }

    /// Address of the plugin.
    pub fn plugin_address(&self) -> String {
        self.connection.address.to_string()
    }
}

/// A plugin is a source like those that are built into Liqo.
#[async_trait]
impl ResourceSource for PluginClient {
    async fn read(&self, cluster: &str) -> Result<Vec<Pool>, SourceError> {
        match Self::read(self, cluster).await {
            Err(PluginError {
                fault: CallFault::Answer(AnswerError::Empty),
                ..
            }) => Ok(Vec::new()),
            read => read.map_err(SourceError::failed),
        }
    }

    fn changes(&self) -> BoxStream<'static, Change> {
        Self::changes(self).boxed()
    }

    async fn removed(&self, cluster: &str) {
        if let Err(error) = self.remove(cluster).await {
            tracing::warn!(%error, "could not tell a resource plugin that a peering ended");
        }
    }

    async fn ready(&self) {
        // An error means that the client was dropped.
        let _ = self
            .state
            .clone()
            .wait_for(|state| {
                matches!(
                    state,
                    SubscriptionState::Connected | SubscriptionState::NotSubscribed(_)
                )
            })
            .await;
    }
}

/// The connection to a plugin, which is opened when it is needed.
#[derive(Debug)]
struct PluginConnection {
    address: CheckedAddress,
    settings: Settings,
    channel: Mutex<Option<Channel>>,
}

impl PluginConnection {
    /// The open connection, or a new one.
    fn channel(&self) -> Result<Channel, ClientTlsError> {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = &*channel {
            return Ok(channel.clone());
        }
        let new = self.address.endpoint(&self.settings)?.connect_lazy();
        Ok(channel.insert(new).clone())
    }

    /// Makes the next call open a new connection.
    fn forget(&self) {
        *self.channel.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Calls a method with one request and one answer.
    async fn call(&self, path: &'static str, message: Bytes) -> Result<Bytes, CallFault> {
        let channel = self.channel()?;
        let deadline = self.settings.deadline;
        let call = async {
            let mut grpc = Grpc::new(channel).max_decoding_message_size(LARGEST_ANSWER);
            grpc.ready()
                .await
                .map_err(|error| CallFault::Unreachable(error_chain(&error)))?;
            let mut request = Request::new(message);
            request.set_timeout(deadline);
            let answer = grpc
                .unary(request, PathAndQuery::from_static(path), RawCodec)
                .await;
            answer
                .map(tonic::Response::into_inner)
                .map_err(|status| fault_of_status(&status, deadline))
        };
        let answered = tokio::time::timeout(deadline, call)
            .await
            .unwrap_or(Err(CallFault::Timeout(deadline)));
        // A new connection reads the files for TLS again, which may have been renewed.
        if matches!(answered, Err(CallFault::Unreachable(_))) {
            self.forget();
        }
        answered
    }
}

/// Distinguishes errors of tonic from errors that the plugin sent.
fn fault_of_status(status: &Status, deadline: Duration) -> CallFault {
    let code = status.code();
    let message: String = status.message().chars().take(500).collect();
    if let Some(cause) = std::error::Error::source(status) {
        let mut causes = std::iter::successors(Some(cause), |cause| cause.source());
        let timeout = causes.any(<dyn std::error::Error>::is::<tonic::TimeoutExpired>);
        return if timeout {
            CallFault::Timeout(deadline)
        } else {
            CallFault::Unreachable(error_chain(cause))
        };
    }
    match code {
        Code::DeadlineExceeded => CallFault::Timeout(deadline),
        // This is tonic's error for a message that exceeds the limit.
        Code::OutOfRange if message.contains("message length too large") => {
            CallFault::TooLarge(message)
        }
        code => CallFault::Refused { code, message },
    }
}
