//! A resource plugin that a scenario controls, and that can misbehave.
//!
//! It runs in the process of the test. Pods reach it at this machine's address on the bridge of the
//! clusters.

use std::{
    future::pending,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use h2::{RecvStream, server::SendResponse};
use http::Request;
use liqo_tests::{Cluster, World};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

#[allow(dead_code, clippy::unwrap_used)] // The tests of the client use all of it.
#[path = "../../crates/resource-plugin/tests/protocol/support/raw.rs"]
mod raw;

/// The behaviour of the plugin. With [`Subscribers::Notified`], each new behaviour is a change.
#[derive(Clone, Debug)]
pub struct Act {
    pub answer: Answer,
    pub subscribers: Subscribers,
}

/// How it answers `ReadResources`.
#[derive(Clone, Debug)]
pub enum Answer {
    /// With these bytes.
    Says(Vec<u8>),
    /// With one CPU more than in the last answer.
    EverMore,
    /// It does not answer.
    Hangs,
}

/// How it treats subscribers.
#[derive(Clone, Debug)]
pub enum Subscribers {
    /// It notifies them of each change.
    Notified,
    /// It sends notifications about this cluster as fast as they can read them.
    Flooded(String),
    /// It ends their streams at once.
    Rejected,
}

/// Numbers of calls and notifications.
#[derive(Debug, Default)]
pub struct Counts {
    pub reads: AtomicUsize,
    pub subscriptions: AtomicUsize,
    pub notifications: AtomicUsize,
    pub removals: AtomicUsize,
}

/// The plugin. It ends when this is dropped.
pub struct ScriptedPlugin {
    address: SocketAddr,
    act: watch::Sender<Act>,
    counts: Arc<Counts>,
    serving: Mutex<Option<JoinSet<()>>>,
}

impl ScriptedPlugin {
    /// Starts the plugin at an address that pods of this cluster can reach.
    pub async fn start(world: &World, cluster: &Cluster, act: Act) -> Result<Self> {
        let [a, b, c, _] = world.machinery(cluster)?.address().octets();
        let here = Ipv4Addr::new(a, b, c, 1);
        let listener = TcpListener::bind((here, 0))
            .await
            .with_context(|| format!("listening on {here}"))?;
        let (act, _) = watch::channel(act);
        let plugin = Self {
            address: listener.local_addr()?,
            act,
            counts: Arc::default(),
            serving: Mutex::default(),
        };
        plugin.serve(listener);
        Ok(plugin)
    }

    /// Its address in policies and messages.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// The field `provide` of a policy that uses this plugin.
    pub fn provide(&self) -> Value {
        // It knows nothing of the machine that the tests run on.
        json!({ "source": { "plugin": { "address": self.address(), "overcommit": "Allow" } }, "noticeSeconds": 2 })
    }

    /// Sets its behaviour.
    pub fn act(&self, answer: Answer, subscribers: Subscribers) {
        self.act.send_replace(Act {
            answer,
            subscribers,
        });
    }

    /// Sets its answer, and notifies subscribers.
    pub fn say(&self, answer: Vec<u8>) {
        self.act(Answer::Says(answer), Subscribers::Notified);
    }

    /// Ends it at once, and breaks all connections.
    pub fn kill(&self) {
        drop(
            self.serving
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
    }

    /// Starts it again at the same address.
    pub async fn revive(&self) -> Result<()> {
        let listener = TcpListener::bind(self.address)
            .await
            .with_context(|| format!("listening on {}", self.address))?;
        self.serve(listener);
        Ok(())
    }

    pub fn reads(&self) -> usize {
        self.counts.reads.load(Ordering::SeqCst)
    }

    pub fn subscriptions(&self) -> usize {
        self.counts.subscriptions.load(Ordering::SeqCst)
    }

    pub fn notifications(&self) -> usize {
        self.counts.notifications.load(Ordering::SeqCst)
    }

    pub fn removals(&self) -> usize {
        self.counts.removals.load(Ordering::SeqCst)
    }

    fn serve(&self, listener: TcpListener) {
        let (act, counts) = (self.act.subscribe(), self.counts.clone());
        let tasks = raw::serve(listener, move |request, respond| {
            answer(request, respond, act.clone(), counts.clone())
        });
        *self.serving.lock().unwrap_or_else(PoisonError::into_inner) = Some(tasks);
    }
}

async fn answer(
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    act: watch::Receiver<Act>,
    counts: Arc<Counts>,
) {
    let now = act.borrow().answer.clone();
    match (request.uri().path(), now) {
        (_, Answer::Hangs) => pending().await,
        ("/resource_reader/ReadResources", now) => {
            let before = counts.reads.fetch_add(1, Ordering::SeqCst);
            match now {
                Answer::Says(bytes) => raw::unary(respond, &bytes),
                _ => raw::unary(respond, &pool("", &[("cpu", &(before + 1).to_string())])),
            }
        }
        ("/resource_reader/Subscribe", _) => {
            counts.subscriptions.fetch_add(1, Ordering::SeqCst);
            subscribe(respond, act, &counts).await;
        }
        ("/resource_reader/RemoveCluster", _) => {
            counts.removals.fetch_add(1, Ordering::SeqCst);
            raw::unary(respond, &[]);
        }
        _ => raw::unimplemented(respond),
    }
}

async fn subscribe(respond: SendResponse<Bytes>, mut act: watch::Receiver<Act>, counts: &Counts) {
    let mut stream = raw::open(respond);
    loop {
        let subscribers = act.borrow_and_update().subscribers.clone();
        match subscribers {
            Subscribers::Rejected => return raw::close(stream),
            Subscribers::Notified => {
                if !raw::send(&mut stream, raw::frame(&[])).await || act.changed().await.is_err() {
                    return;
                }
            }
            Subscribers::Flooded(cluster) => {
                let notification = raw::frame(&field(1, cluster.as_bytes()));
                while !act.has_changed().unwrap_or(true) {
                    if !raw::send(&mut stream, notification.clone()).await {
                        return;
                    }
                    counts.notifications.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    }
}

/// Encodes a pool of an answer in generation P3. An answer with several pools is their
/// concatenation.
pub fn pool(name: &str, amounts: &[(&str, &str)]) -> Vec<u8> {
    let amount = |(resource, quantity): &(&str, &str)| {
        field(
            1,
            &[
                field(1, resource.as_bytes()),
                field(2, &field(1, quantity.as_bytes())),
            ]
            .concat(),
        )
    };
    let mut content: Vec<u8> = amounts.iter().flat_map(amount).collect();
    if !name.is_empty() {
        content.extend(field(2, name.as_bytes()));
    }
    field(1, &content)
}

/// Encodes a pool with prices: a currency, and a rate for each resource.
pub fn priced_pool(
    name: &str,
    amounts: &[(&str, &str)],
    currency: &str,
    rates: &[(&str, &str)],
) -> Vec<u8> {
    let rate = |(resource, rate): &(&str, &str)| {
        field(
            2,
            &[field(1, resource.as_bytes()), field(2, rate.as_bytes())].concat(),
        )
    };
    let prices: Vec<u8> = field(1, currency.as_bytes())
        .into_iter()
        .chain(rates.iter().flat_map(rate))
        .collect();
    // Without its own tag and length.
    let content = pool(name, amounts).split_off(2);
    field(1, &[content, field(4, &prices)].concat())
}

/// Encodes a field of a protobuf message: its number, its length in one byte, its content.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    assert!(content.len() < 128, "longer fields have longer lengths");
    let length = content.len().to_le_bytes()[0];
    [&[number << 3 | 2, length], content].concat()
}
