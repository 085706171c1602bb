//! DNS for remote pods: they resolve the names of their namespaces as at home. This is the process
//! `liqo-dns`.
//!
//! A namespace `demo` of a consumer may be called `demo-rome-x7k2qd` here. The provider points all
//! remote pods to this resolver (`liqo_offloading_rules::pod::carry::home_names`), which asks the
//! cluster's own name servers:
//!
//! ```text
//!   remote pod                 resolver                                           cluster's name servers
//!     web.demo.svc... ───────▶ whose pod is it? demo is demo-rome-x7k2qd here
//!                              web.demo-rome-x7k2qd.svc... ─────────────────────▶ 10.96.7.7
//!     10.96.7.7 ◀───────────── the same answer under the name that was asked ◀───
//! ```
//!
//! - Names in the domain of the consumer's cluster become names in the domain of this cluster.
//! - A Service of type `ExternalName` has a replica that is an alias. The resolver answers as if
//!   the pod had asked for the target itself, so an alias never shows a pod a name that it could
//!   not ask for.
//! - For a consumer's pods, names in namespaces of the provider and of other consumers do not
//!   exist, except the name of the API server. A reverse lookup of an address there finds no name,
//!   either.
//! - All other questions and answers pass unchanged.
//!
//! Where to read, in this order:
//! * `directory`: whose pod asks, and which name it means; pure.
//! * `message`: reads and writes DNS messages; pure.
//! * `server`: the sockets. `upstream` asks the name servers, `limits` bounds the work in progress,
//!   `metrics` counts.
//! * `watches`: follows namespaces, `NamespaceMap`s, Services and pods, and updates the directory.
//!
//! `liqo-controller-manager dns` calls [`answer_questions`]. Every replica answers; there is no leader, and
//! nothing is stored or written. The resolver has no rights but to read namespaces,
//! `NamespaceMap`s, Services and pods.

#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::string_slice, clippy::expect_used)
)] // It reads what peers write.

mod directory;
mod limits;
mod message;
mod metrics;
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

use message::DomainName;
use server::{NameResolver, SharedDirectory};
use upstream::NameServers;

/// The port of name servers.
const DNS_PORT: u16 = 53;
/// Time for which it still answers after it was told to end: until then, nodes may send questions
/// here.
const CLOSING_DELAY: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "reading {}, which names the cluster's name servers",
        resolv_conf::PATH
    )]
    ResolvConf(#[source] io::Error),
    #[error(
        "{} names no name server; the pod needs dnsPolicy ClusterFirst",
        resolv_conf::PATH
    )]
    NoNameServer,
    #[error("listening on {address} for questions")]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
    #[error(
        "a watch ended before all namespaces, Services and pods were known; restart the process"
    )]
    Watch,
    #[error("a server ended by itself; restart the process")]
    Ended,
}

/// Answers at these addresses of the pod as soon as all namespaces, Services and pods are known,
/// until a moment after `stop`. Calls `ready` when it begins.
pub async fn answer_questions(
    client: Client,
    addresses: &[IpAddr],
    ready: impl FnOnce(),
    stop: CancellationToken,
) -> Result<(), Error> {
    let text = tokio::fs::read_to_string(resolv_conf::PATH)
        .await
        .map_err(Error::ResolvConf)?;
    let ResolvConf { servers, domain } = ResolvConf::parse(&text);
    if servers.is_empty() {
        return Err(Error::NoNameServer);
    }
    let domain = domain.as_deref().and_then(DomainName::parse);
    if domain.is_none() {
        tracing::warn!(
            "{} names no domain of the cluster, so all questions pass unchanged",
            resolv_conf::PATH
        );
    }
    let upstream = NameServers::new(
        servers
            .into_iter()
            .map(|server| SocketAddr::new(server, DNS_PORT))
            .collect(),
    );
    let known = Arc::new(SharedDirectory::default());
    let watches = watches::start_watches(&client, &known, &stop);
    let resolver = NameResolver::new(known, upstream, domain);
    let addresses: Vec<SocketAddr> = addresses
        .iter()
        .map(|address| SocketAddr::new(*address, RESOLVER_PORT))
        .collect();
    serve_when_synced(&resolver, &addresses, watches.synced(), ready, stop).await
}

/// Opens the sockets only when everything is known: an answer before could be that of another
/// namespace.
async fn serve_when_synced(
    resolver: &NameResolver,
    addresses: &[SocketAddr],
    synced: impl Future<Output = bool>,
    ready: impl FnOnce(),
    stop: CancellationToken,
) -> Result<(), Error> {
    match stop.run_until_cancelled(synced).await {
        Some(true) => {}
        Some(false) if !stop.is_cancelled() => return Err(Error::Watch),
        _ => return Ok(()),
    }
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
    for &address in addresses {
        let socket = UdpSocket::bind(address)
            .await
            .map_err(|source| Error::Listen { address, source })?;
        servers.spawn(resolver.clone().serve_udp(socket, closing.clone()));
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| Error::Listen { address, source })?;
        servers.spawn(resolver.clone().serve_tcp(listener, closing.clone()));
    }
    tracing::info!(?addresses, "answering questions of remote pods");
    ready();
    let ended = servers.join_next().await;
    if stop.is_cancelled() || ended.is_none() {
        Ok(())
    } else {
        Err(Error::Ended)
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future};

    use super::*;

    #[tokio::test]
    async fn it_answers_only_when_everything_is_known() {
        let resolver = NameResolver::new(Arc::default(), NameServers::new(Vec::new()), None);
        // An address at which it cannot listen, so an error shows that it tried.
        let taken = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let addresses = [taken.local_addr().unwrap()];
        let is_ready = Cell::new(false);
        let ready = || is_ready.set(true);
        let stop = CancellationToken::new();

        let found = serve_when_synced(
            &resolver,
            &addresses,
            future::ready(true),
            ready,
            stop.clone(),
        )
        .await;
        assert!(matches!(found, Err(Error::Listen { .. })), "{found:?}");
        let found = serve_when_synced(
            &resolver,
            &addresses,
            future::ready(false),
            ready,
            stop.clone(),
        )
        .await;
        assert!(matches!(found, Err(Error::Watch)), "{found:?}");
        let waiting = tokio::time::timeout(
            Duration::from_millis(50),
            serve_when_synced(
                &resolver,
                &addresses,
                future::pending(),
                ready,
                stop.clone(),
            ),
        );
        assert!(waiting.await.is_err());
        stop.cancel();
        assert!(
            serve_when_synced(&resolver, &addresses, future::pending(), ready, stop)
                .await
                .is_ok()
        );
        assert!(!is_ready.get());
    }
}
