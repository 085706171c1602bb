//! Connections to a provider's API server. Each connection checks the addresses that a name has at that moment, and uses one of these:
//! what the name resolves to earlier or later does not matter.

use std::{
    io,
    net::SocketAddr,
    task::{Context, Poll},
    time::Duration,
    vec,
};

use futures::future::BoxFuture;
use hyper_util::client::legacy::connect::{
    HttpConnector,
    dns::{GaiResolver, Name},
};
use tokio::time::timeout;
use tower::{BoxError, Service};

use crate::credential::is_no_server;

/// A connector that refuses names of this machine and of its link.
pub fn connector() -> HttpConnector<CheckedResolver> {
    let mut connector = HttpConnector::new_with_resolver(CheckedResolver(GaiResolver::new()));
    connector.enforce_http(false);
    connector
}

/// Resolves names to addresses that an API server of another cluster may have.
#[derive(Clone)]
pub struct CheckedResolver(GaiResolver);

impl Service<Name> for CheckedResolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let host = name.as_str().to_owned();
        let resolved = self.0.call(name);
        Box::pin(async move { allowed(&host, resolved.await?) })
    }
}

/// The addresses of `host` that may be called; an error if there are only others.
fn allowed(host: &str, found: impl Iterator<Item = SocketAddr>) -> io::Result<vec::IntoIter<SocketAddr>> {
    let (refused, allowed): (Vec<SocketAddr>, Vec<SocketAddr>) = found.partition(|address| is_no_server(address.ip()));
    match refused.first() {
        Some(refused) if allowed.is_empty() => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "{host} resolves to {}, which only the provider itself can reach: correct `--set apiServer.address` there, or the name",
                refused.ip()
            ),
        )),
        _ => Ok(allowed.into_iter()),
    }
}

/// A connector that gives up after a time, which includes the resolution of the name and TLS.
#[derive(Clone)]
pub struct TimedConnector<C> {
    pub inner: C,
    pub timeout: Duration,
}

impl<C> Service<http::Uri> for TimedConnector<C>
where
    C: Service<http::Uri>,
    C::Error: Into<BoxError>,
    C::Future: Send + 'static,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<C::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: http::Uri) -> Self::Future {
        let (connected, limit) = (self.inner.call(uri), self.timeout);
        Box::pin(async move {
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {limit:?}"));
            timeout(limit, connected).await.map_err(late)?.map_err(Into::into)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_this_machine_or_of_its_link_is_refused() {
        let addresses =
            |texts: &[&str]| texts.iter().map(|text| SocketAddr::new(text.parse().unwrap(), 6443)).collect::<Vec<_>>();
        for refused in
            ["127.0.0.1", "::1", "169.254.169.254", "fe80::1", "::ffff:127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255"]
        {
            let error = allowed("api.milan.example", addresses(&[refused]).into_iter()).unwrap_err();
            assert!(error.to_string().contains("api.milan.example resolves to"), "{refused}: {error}");
        }
        let both = allowed("api.milan.example", addresses(&["169.254.169.254", "203.0.113.5"]).into_iter()).unwrap();
        assert_eq!(both.collect::<Vec<_>>(), addresses(&["203.0.113.5"]));
        let private = addresses(&["10.0.0.7", "fd00::7", "192.168.1.20"]);
        assert_eq!(allowed("api.milan.example", private.clone().into_iter()).unwrap().collect::<Vec<_>>(), private);
        assert_eq!(allowed("api.milan.example", std::iter::empty()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_connection_that_takes_too_long_is_given_up() {
        let never = tower::service_fn(|_: http::Uri| std::future::pending::<io::Result<()>>());
        let mut connector = TimedConnector { inner: never, timeout: Duration::from_millis(20) };
        let error = connector.call(http::Uri::from_static("https://api.milan.example")).await.unwrap_err();
        assert!(error.to_string().contains("20ms"), "{error}");
    }
}
