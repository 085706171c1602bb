//! The network that a process calls and listens on. In tests, streams in memory replace TCP.

use std::{
    error::Error,
    fmt::Debug,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    task::{Context, Poll},
    vec,
};

use futures::future::BoxFuture;
use http::Uri;
use hyper_util::client::legacy::connect::{
    HttpConnector,
    dns::{GaiResolver, Name},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};
use tower::Service;

/// Bytes in both directions.
pub trait NetworkStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> NetworkStream for T {}

pub type BoxNetworkStream = Box<dyn NetworkStream>;

/// Whether an address that a name resolves to may be called.
pub type AddressFilter = fn(IpAddr) -> bool;

/// Connects a process to others, and others to it.
pub trait Network: Debug + Send + Sync {
    /// Connects to an IP address, or to the first address of a name that is allowed and answers.
    /// Returns the address, too. Whoever calls an IP address has checked it before.
    fn connect(
        &self,
        host: &str,
        port: u16,
        allowed: AddressFilter,
    ) -> BoxFuture<'static, io::Result<(BoxNetworkStream, SocketAddr)>>;

    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Listener>>>;
}

/// Accepts the connections to one address.
pub trait Listener: Send + Sync {
    /// Returns the next connection, and who opened it.
    fn accept(&self) -> BoxFuture<'_, io::Result<(BoxNetworkStream, SocketAddr)>>;
}

/// The network of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Tcp {
    pub fn network() -> Arc<dyn Network> {
        Arc::new(Self)
    }
}

impl Network for Tcp {
    fn connect(
        &self,
        host: &str,
        port: u16,
        allowed: AddressFilter,
    ) -> BoxFuture<'static, io::Result<(BoxNetworkStream, SocketAddr)>> {
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host.to_owned()
        };
        let address = Uri::builder()
            .scheme("http")
            .authority(format!("{host}:{port}"))
            .path_and_query("/")
            .build();
        Box::pin(async move {
            let address =
                address.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            // It tries the addresses of both families side by side.
            let mut connector = HttpConnector::new_with_resolver(FilteredResolver {
                inner: GaiResolver::new(),
                allowed,
            });
            connector.set_nodelay(true);
            let stream = connector
                .call(address)
                .await
                .map_err(|error| connect_error(&error))?
                .into_inner();
            let peer = stream.peer_addr()?;
            Ok((Box::new(stream) as BoxNetworkStream, peer))
        })
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        Box::pin(
            async move { Ok(Box::new(TcpListener::bind(address).await?) as Box<dyn Listener>) },
        )
    }
}

impl Listener for TcpListener {
    fn accept(&self) -> BoxFuture<'_, io::Result<(BoxNetworkStream, SocketAddr)>> {
        Box::pin(async move {
            let (stream, from) = self.accept().await?;
            Ok((Box::new(stream) as BoxNetworkStream, from))
        })
    }
}

/// The reason why the machine could not connect: the connector's own error only says that it could
/// not.
fn connect_error(error: &(dyn Error + 'static)) -> io::Error {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<io::Error>() {
            return io::Error::new(found.kind(), found.to_string());
        }
        next = error.source();
    }
    io::Error::other(error.to_string())
}

/// Resolves names to the addresses that may be called.
#[derive(Clone)]
struct FilteredResolver {
    inner: GaiResolver,
    allowed: AddressFilter,
}

impl Service<Name> for FilteredResolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (host, allowed) = (name.as_str().to_owned(), self.allowed);
        let resolved = self.inner.call(name);
        Box::pin(async move { only_allowed(&host, allowed, resolved.await?) })
    }
}

/// The addresses of `host` that may be called; an error if there are only others.
fn only_allowed(
    host: &str,
    allowed: AddressFilter,
    found: impl Iterator<Item = SocketAddr>,
) -> io::Result<vec::IntoIter<SocketAddr>> {
    let (usable, refused): (Vec<SocketAddr>, Vec<SocketAddr>) =
        found.partition(|address| allowed(address.ip()));
    match refused.first() {
        Some(refused) if usable.is_empty() => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "{host} resolves to {}, which only the provider itself can reach: correct `--set apiServer.address` there, or the name",
                refused.ip()
            ),
        )),
        _ => Ok(usable.into_iter()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts
            .iter()
            .map(|text| SocketAddr::new(text.parse().unwrap(), 6443))
            .collect()
    }

    #[test]
    fn of_several_addresses_only_those_that_are_allowed_are_called() {
        let allowed = |address: IpAddr| !address.is_loopback();
        let found = |texts: &[&str]| {
            only_allowed("api.milan.example", allowed, addresses(texts).into_iter())
        };
        let error = found(&["127.0.0.1", "::1"]).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("api.milan.example resolves to 127.0.0.1"),
            "{error}"
        );
        assert_eq!(
            found(&["127.0.0.1", "203.0.113.5"])
                .unwrap()
                .collect::<Vec<_>>(),
            addresses(&["203.0.113.5"])
        );
        assert_eq!(found(&[]).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn tcp_connects_to_who_listens_and_says_why_it_cannot() {
        for loopback in ["127.0.0.1", "::1"] {
            let listener = TcpListener::bind((loopback, 0)).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let listener: Box<dyn Listener> = Box::new(listener);
            let (called, accepted) =
                tokio::join!(Tcp.connect(loopback, port, |_| true), listener.accept());
            let ((mut client, peer), (mut server, _)) = (called.unwrap(), accepted.unwrap());
            assert_eq!(peer, SocketAddr::new(loopback.parse().unwrap(), port));
            client.write_all(b"a").await.unwrap();
            assert_eq!(server.read_u8().await.unwrap(), b'a');
            drop(listener);
            let refused = Tcp.connect(loopback, port, |_| true).await.err().unwrap();
            assert_eq!(
                refused.kind(),
                io::ErrorKind::ConnectionRefused,
                "{refused}"
            );
        }
        let forbidden = Tcp.connect("localhost", 1, |_| false).await.err().unwrap();
        assert_eq!(
            forbidden.kind(),
            io::ErrorKind::PermissionDenied,
            "{forbidden}"
        );
    }
}
