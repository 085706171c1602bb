//! Where a plugin is and how to talk to it.

use std::{fmt, io, path::PathBuf, time::Duration};

use http::Uri;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::{server::chain, wire::Generation};

/// Pings of HTTP/2 find out that a plugin is gone; more of them than one in five minutes make servers of Go's gRPC hang up.
/// A plugin that hangs is found out sooner, by [`Settings::probe`].
const HTTP2_KEEPALIVE: Duration = Duration::from_secs(310);
/// A plugin whose node is gone is found out by the operating system.
const TCP_KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(15), Duration::from_secs(5), 3);

/// How many bytes a plugin may send in one call before they are read. Notifications are tiny, and h2 gives up a connection
/// on which some ten thousand tiny frames wait: a plugin that floods has to be stopped before.
const AHEAD: u32 = 8 << 10;

/// Where a plugin is and how to talk to it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `host:port`, or a URL.
    pub address: String,
    /// Which generation of the protocol it speaks.
    pub generation: Generation,
    /// With TLS; without, plain text. An address that starts with `https://` needs it.
    pub tls: Option<Tls>,
    /// How long to wait for a connection. Short, for an attempt may have gone to a pod that is no more, and the next one
    /// finds another.
    pub connect_timeout: Duration,
    /// How long to wait for an answer.
    pub deadline: Duration,
    /// How long to wait before the second attempt to subscribe; it grows to `longest_delay`.
    pub shortest_delay: Duration,
    /// The longest time between two attempts to subscribe.
    pub longest_delay: Duration,
    /// How often a subscribed plugin is asked whether it is still alive.
    pub probe: Duration,
}

/// What TLS needs. Files are read for each new connection, so they may be renewed.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The authority (PEM) whose certificate the plugin has.
    pub authority: Pem,
    /// Our own certificate chain and key (PEM), for plugins that ask for one.
    pub identity: Option<(Pem, Pem)>,
    /// The name in the plugin's certificate, if it is not the host of the address.
    pub server_name: Option<String>,
}

/// Certificates, or a key, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// In a file.
    File(PathBuf),
    /// The text itself.
    Bytes(Vec<u8>),
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Bytes(_) => f.write_str("(not shown)"),
        }
    }
}

impl<P: Into<PathBuf>> From<P> for Pem {
    fn from(path: P) -> Self {
        Self::File(path.into())
    }
}

impl Settings {
    /// What fits most plugins: plain text, the newest generation, five seconds for an answer.
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            generation: Generation::default(),
            tls: None,
            connect_timeout: Duration::from_secs(1),
            deadline: Duration::from_secs(5),
            shortest_delay: Duration::from_millis(200),
            longest_delay: Duration::from_secs(30),
            probe: Duration::from_secs(30),
        }
    }
}

/// An address that no plugin can have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not a host and a port.
    #[error("{0:?} is not the address of a resource plugin: use host:port, as in liqo-fixed-resources-plugin.liqo:6001")]
    Form(String),
    /// TLS without knowing whom to trust.
    #[error("{0:?} asks for TLS: the authority of the plugin's certificate has to be set, too")]
    NoAuthority(String),
}

/// The files for TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// One cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What is in them is no certificate, or no key.
    #[error("the TLS files of the plugin's connection: {0}")]
    Content(String),
}

/// A checked address: scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address(Uri);

impl Address {
    pub(crate) fn parse(settings: &Settings) -> Result<Self, AddressError> {
        let text = settings.address.trim();
        let wrong = || AddressError::Form(text.to_owned());
        let (scheme, authority) = match text.split_once("://") {
            Some(("http", _)) if settings.tls.is_some() => return Err(wrong()),
            Some((scheme @ ("http" | "https"), rest)) => (scheme, rest.strip_suffix('/').unwrap_or(rest)),
            Some(_) => return Err(wrong()),
            None => (if settings.tls.is_some() { "https" } else { "http" }, text),
        };
        if scheme == "https" && settings.tls.is_none() {
            return Err(AddressError::NoAuthority(text.to_owned()));
        }
        let uri: Uri = format!("{scheme}://{authority}/").parse().map_err(|_| wrong())?;
        let port = uri.port_u16().is_some_and(|port| port > 0);
        let whole = uri.path() == "/"
            && uri.query().is_none()
            && !authority.contains('@')
            && uri.host().is_some_and(|host| !host.is_empty());
        if port && whole { Ok(Self(uri)) } else { Err(wrong()) }
    }

    /// How to connect. Reads the files for TLS.
    pub(crate) fn endpoint(&self, settings: &Settings) -> Result<Endpoint, TlsError> {
        let (idle, interval, retries) = TCP_KEEPALIVE;
        let endpoint = Endpoint::from(self.0.clone())
            .connect_timeout(settings.connect_timeout)
            .initial_stream_window_size(AHEAD)
            .tcp_keepalive(Some(idle))
            .tcp_keepalive_interval(Some(interval))
            .tcp_keepalive_retries(Some(retries))
            .http2_keep_alive_interval(HTTP2_KEEPALIVE)
            .keep_alive_timeout(settings.deadline)
            .keep_alive_while_idle(true);
        let Some(tls) = &settings.tls else { return Ok(endpoint) };
        let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&tls.authority)?));
        if let Some((certificate, key)) = &tls.identity {
            config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        if let Some(name) = &tls.server_name {
            config = config.domain_name(name);
        }
        endpoint.tls_config(config).map_err(|error| TlsError::Content(chain(&error)))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.authority().map_or("", |authority| authority.as_str()))
    }
}

fn read(pem: &Pem) -> Result<Vec<u8>, TlsError> {
    match pem {
        Pem::File(path) => std::fs::read(path).map_err(|source| TlsError::File { path: path.clone(), source }),
        Pem::Bytes(bytes) => Ok(bytes.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(address: &str, tls: bool) -> Result<String, AddressError> {
        let tls = tls.then(|| Tls { authority: "ca.pem".into(), identity: None, server_name: None });
        Address::parse(&Settings { tls, ..Settings::new(address) }).map(|address| address.0.to_string())
    }

    #[test]
    fn addresses_are_host_and_port_or_a_url() {
        for (text, tls, expected) in [
            ("plugin.liqo:6001", false, "http://plugin.liqo:6001/"),
            (" 127.0.0.1:1 ", false, "http://127.0.0.1:1/"),
            ("[::1]:6001", false, "http://[::1]:6001/"),
            ("http://plugin:6001/", false, "http://plugin:6001/"),
            ("https://plugin:6001", true, "https://plugin:6001/"),
            ("plugin:6001", true, "https://plugin:6001/"),
        ] {
            assert_eq!(parse(text, tls).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "plugin",
            "plugin:",
            "plugin:0",
            ":6001",
            "plugin:6001/path",
            "user@plugin:6001",
            "dns:///plugin:6001",
            "a b:1",
            "plugin:65536",
        ] {
            assert!(matches!(parse(text, false), Err(AddressError::Form(_))), "{text:?} was taken");
        }
        assert!(matches!(parse("https://plugin:6001", false), Err(AddressError::NoAuthority(_))));
        assert!(matches!(parse("http://plugin:6001", true), Err(AddressError::Form(_))), "plain text although TLS is set");
    }
}
