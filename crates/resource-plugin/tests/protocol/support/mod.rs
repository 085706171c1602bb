//! Code that several modules of tests use.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Mutex,
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _, stream::BoxStream};
use liqo_resource_plugin::{
    Announcer, Change, ChangeStream, Options, Pool, ResourceSource, ServeError, Server, Settings,
    SourceError, SubscriptionState, arguments::resources, async_trait,
};
use tokio::{sync::oneshot, sync::watch, task::JoinHandle};

pub mod raw;

/// Long enough for a busy machine. A test that passes never waits this long.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// A source that offers what the test sets, and records which clusters were removed.
#[derive(Default)]
pub struct FakeSource {
    pub pools: Mutex<Vec<Pool>>,
    pub announcer: Announcer,
    pub removed: Mutex<Vec<String>>,
}

impl FakeSource {
    pub fn with(texts: &[&str]) -> Self {
        Self {
            pools: Mutex::new(vec![resources(texts).unwrap().into()]),
            ..Self::default()
        }
    }
}

#[async_trait]
impl ResourceSource for FakeSource {
    async fn read(&self, cluster: &str) -> Result<Vec<Pool>, SourceError> {
        match cluster {
            "unknown" => Err(SourceError::UnknownCluster(cluster.to_owned())),
            "early" => Err(SourceError::NotReady(
                "the nodes are not listed yet".to_owned(),
            )),
            "broken" => Err(SourceError::failed("the disk failed")),
            "hanging" => std::future::pending().await,
            _ => Ok(self.pools.lock().unwrap().clone()),
        }
    }

    fn changes(&self) -> BoxStream<'static, Change> {
        self.announcer.listen().boxed()
    }

    async fn removed(&self, cluster: &str) {
        self.removed.lock().unwrap().push(cluster.to_owned());
    }
}

/// A plugin that listens on loopback.
pub struct Plugin {
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ServeError>>,
}

pub fn loopback() -> Options {
    Options {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        port: 0,
        ..Options::default()
    }
}

impl Plugin {
    pub async fn start(source: impl ResourceSource, options: &Options) -> Self {
        let server = Server::bind(options).await.unwrap();
        let address = server.address().unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(server.run(source, stopped.map(drop)));
        Self {
            address,
            stop,
            serving,
        }
    }

    pub async fn stop(self) {
        drop(self.stop);
        tokio::time::timeout(TIMEOUT, self.serving)
            .await
            .expect("it should end")
            .unwrap()
            .unwrap();
    }
}

/// Settings with short delays.
pub fn settings(address: SocketAddr) -> Settings {
    Settings {
        deadline: Duration::from_secs(2),
        shortest_delay: Duration::from_millis(20),
        longest_delay: Duration::from_millis(200),
        probe: Duration::from_millis(500),
        ..Settings::new(address.to_string())
    }
}

pub async fn reach(
    state: &mut watch::Receiver<SubscriptionState>,
    wanted: impl Fn(&SubscriptionState) -> bool,
) -> SubscriptionState {
    let last = state.clone();
    let reached = tokio::time::timeout(TIMEOUT, state.wait_for(wanted)).await;
    reached
        .unwrap_or_else(|_| panic!("the state stays {:?}", *last.borrow()))
        .unwrap()
        .clone()
}

pub async fn next(changes: &mut ChangeStream) -> Change {
    tokio::time::timeout(TIMEOUT, changes.next())
        .await
        .expect("there should be a change")
        .unwrap()
}

/// The changes that can be received without waiting.
pub fn received(changes: &mut ChangeStream) -> Vec<Change> {
    std::iter::from_fn(|| changes.next().now_or_never().flatten()).collect()
}
