//! DNS for remote pods: they resolve the names of their namespaces as at home.
//!
//! A namespace `demo` of a consumer may be called `demo-rome-x7k2qd` here. The provider points pods in mapped namespaces to this
//! resolver (`liqo_offloading_rules::pod::carry::home_names`), which asks the cluster's own name servers:
//!
//! ```text
//!   remote pod                 resolver                                           cluster's name servers
//!     web.demo.svc... ───────▶ whose pod is it? demo is demo-rome-x7k2qd here
//!                              web.demo-rome-x7k2qd.svc... ─────────────────────▶ 10.96.7.7
//!     10.96.7.7 ◀───────────── the same answer under the name that was asked ◀───
//! ```
//!
//! * `message`: reads and writes messages; pure.
//! * `directory`: whose pod asks, and which name it means; pure.
//! * `server`, `upstream`, `limits`: sockets, and how much may be in progress.
//!
//! All other questions and answers pass unchanged. Every replica answers; there is no leader, and nothing is stored or written. The
//! resolver has no rights but to read namespaces and pods.

mod directory;
mod limits;
mod message;
mod server;
mod upstream;
mod watches;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use kube::Client;
use liqo_api::RESOLVER_PORT;
use liqo_offloading_rules::resolv_conf::{self, ResolvConf};
use tokio::{
    net::{TcpListener, UdpSocket},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use message::Name;
use server::{Known, Resolver};
use upstream::Upstream;

/// The port of name servers.
const DNS_PORT: u16 = 53;
/// How long it still answers after it was told to end: until then, nodes may send questions here.
const CLOSING_DELAY: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("reading {}, which names the cluster's name servers", resolv_conf::PATH)]
    ResolvConf(#[source] io::Error),
    #[error("{} names no name server; the pod needs dnsPolicy ClusterFirst", resolv_conf::PATH)]
    NoNameServer,
    #[error("listening on {address} for questions")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("a server ended by itself; restart the process")]
    Ended,
}

/// Answers at these addresses of the pod until a moment after `stop`. Calls `ready` when all namespaces and pods are known.
pub async fn run(client: Client, addresses: &[IpAddr], ready: impl FnOnce(), stop: CancellationToken) -> Result<(), Error> {
    let text = tokio::fs::read_to_string(resolv_conf::PATH).await.map_err(Error::ResolvConf)?;
    let ResolvConf { servers, domain } = ResolvConf::parse(&text);
    if servers.is_empty() {
        return Err(Error::NoNameServer);
    }
    let domain = domain.as_deref().and_then(Name::parse);
    if domain.is_none() {
        tracing::warn!("{} names no domain of the cluster, so all questions pass unchanged", resolv_conf::PATH);
    }
    let upstream = Upstream::new(servers.into_iter().map(|server| SocketAddr::new(server, DNS_PORT)).collect());
    let known = Arc::new(Known::default());
    let (namespaces, pods) = watches::start(&client, &known, &stop);
    let resolver = Resolver::new(known, upstream, domain);

    let closing = CancellationToken::new();
    let _close = tokio::spawn({
        let (stop, closing) = (stop.clone(), closing.clone());
        async move {
            stop.cancelled().await;
            tokio::time::sleep(CLOSING_DELAY).await;
            closing.cancel();
        }
    });
    let mut servers = JoinSet::new();
    for address in addresses {
        let address = SocketAddr::new(*address, RESOLVER_PORT);
        let listen = |source| Error::Listen { address, source };
        servers.spawn(resolver.clone().serve_udp(UdpSocket::bind(address).await.map_err(listen)?, closing.clone()));
        servers.spawn(resolver.clone().serve_tcp(TcpListener::bind(address).await.map_err(listen)?, closing.clone()));
    }
    let synced = async { namespaces.synced().await && pods.synced().await };
    if stop.run_until_cancelled(synced).await == Some(true) {
        tracing::info!(?addresses, "answering questions of remote pods");
        ready();
    }
    let ended = servers.join_next().await;
    if stop.is_cancelled() || ended.is_none() { Ok(()) } else { Err(Error::Ended) }
}
