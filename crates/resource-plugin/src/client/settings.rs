//! The settings of a client: address, generation, TLS and timeouts.

use std::{fmt, io, path::PathBuf, time::Duration};

use http::Uri;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::{server::error_chain, wire::Generation};

/// HTTP/2 pings detect that a plugin is gone. Servers of grpc-go close a connection with more than
/// one ping in five minutes. [`Settings::probe`] detects a plugin that hangs sooner.
const HTTP2_KEEPALIVE: Duration = Duration::from_secs(310);
/// TCP keepalive (idle time, interval, retries) detects that a plugin's node is gone.
const TCP_KEEPALIVE: (Duration, Duration, u32) =
    (Duration::from_secs(15), Duration::from_secs(5), 3);

/// Maximum number of bytes that a plugin may send in one call before the client reads them. h2
/// closes a connection on which about ten thousand tiny frames wait, and notifications are tiny:
/// flow control must stop a plugin that floods before that.
const STREAM_WINDOW: u32 = 8 << 10;

/// How to call a plugin.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `host:port`, or a URL.
    pub address: String,
    /// Generation of the plugin's protocol.
    pub generation: Generation,
    /// Settings of TLS; `None` for plain text. An address that begins with `https://` needs them.
    pub tls: Option<ClientTls>,
    /// Timeout of opening a connection. It is short, because an attempt may go to a pod that is
    /// gone, and the next one reaches another.
    pub connect_timeout: Duration,
    /// Timeout of a call.
    pub deadline: Duration,
    /// Delay before the second attempt to subscribe. It doubles after each failure, up to
    /// `longest_delay`.
    pub shortest_delay: Duration,
    /// Maximum delay between two attempts to subscribe.
    pub longest_delay: Duration,
    /// Interval of health checks of a subscribed plugin.
    pub probe: Duration,
}

/// Settings of TLS. The client reads the files for each new connection, so they can be renewed.
#[derive(Clone, Debug)]
pub struct ClientTls {
    /// The authority (PEM) that signed the plugin's certificate.
    pub authority: Pem,
    /// Certificate chain and key of the client (PEM), for plugins that require them.
    pub identity: Option<(Pem, Pem)>,
    /// The name in the plugin's certificate, if it differs from the host of the address.
    pub server_name: Option<String>,
}

/// Certificates, or a key, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// Path of a file.
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
    /// Settings for most plugins: plain text, the newest generation, a timeout of five seconds.
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

/// An invalid address of a plugin.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The address is not a host and a port.
    #[error(
        "{0:?} is not the address of a resource plugin: use host:port, as in liqo-fixed-resources-plugin.liqo:6001"
    )]
    Form(String),
    /// The address requires TLS, but there is no authority.
    #[error("{0:?} requires TLS: set the authority of the plugin's certificate, too")]
    NoAuthority(String),
}

/// The client's files for TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientTlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file does not contain a valid certificate or key.
    #[error("the files for TLS with the plugin are invalid: {0}")]
    Content(String),
}

/// A checked address: scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckedAddress(Uri);

impl CheckedAddress {
    pub(crate) fn parse(settings: &Settings) -> Result<Self, AddressError> {
        let text = settings.address.trim();
        let wrong = || AddressError::Form(text.to_owned());
        let (scheme, authority) = match text.split_once("://") {
            Some(("http", _)) if settings.tls.is_some() => return Err(wrong()),
            Some((scheme @ ("http" | "https"), rest)) => {
                (scheme, rest.strip_suffix('/').unwrap_or(rest))
            }
            Some(_) => return Err(wrong()),
            None => (
                if settings.tls.is_some() {
                    "https"
                } else {
                    "http"
                },
                text,
            ),
        };
        if scheme == "https" && settings.tls.is_none() {
            return Err(AddressError::NoAuthority(text.to_owned()));
        }
        let uri: Uri = format!("{scheme}://{authority}/")
            .parse()
            .map_err(|_| wrong())?;
        let port = uri.port_u16().is_some_and(|port| port > 0);
        let whole = uri.path() == "/"
            && uri.query().is_none()
            && !authority.contains('@')
            && uri.host().is_some_and(|host| !host.is_empty());
        if port && whole {
            Ok(Self(uri))
        } else {
            Err(wrong())
        }
    }

    /// How to connect. It reads the files for TLS.
    pub(crate) fn endpoint(&self, settings: &Settings) -> Result<Endpoint, ClientTlsError> {
        let (idle, interval, retries) = TCP_KEEPALIVE;
        let endpoint = Endpoint::from(self.0.clone())
            .connect_timeout(settings.connect_timeout)
            .initial_stream_window_size(STREAM_WINDOW)
            .tcp_keepalive(Some(idle))
            .tcp_keepalive_interval(Some(interval))
            .tcp_keepalive_retries(Some(retries))
            .http2_keep_alive_interval(HTTP2_KEEPALIVE)
            .keep_alive_timeout(settings.deadline)
            .keep_alive_while_idle(true);
        let Some(tls) = &settings.tls else {
            return Ok(endpoint);
        };
        let mut config =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read_pem(&tls.authority)?));
        if let Some((certificate, key)) = &tls.identity {
            config = config.identity(Identity::from_pem(read_pem(certificate)?, read_pem(key)?));
        }
        if let Some(name) = &tls.server_name {
            config = config.domain_name(name);
        }
        endpoint
            .tls_config(config)
            .map_err(|error| ClientTlsError::Content(error_chain(&error)))
    }
}

impl fmt::Display for CheckedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            self.0
                .authority()
                .map_or("", |authority| authority.as_str()),
        )
    }
}

fn read_pem(pem: &Pem) -> Result<Vec<u8>, ClientTlsError> {
    match pem {
        Pem::File(path) => std::fs::read(path).map_err(|source| ClientTlsError::File {
            path: path.clone(),
            source,
        }),
        Pem::Bytes(bytes) => Ok(bytes.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(address: &str, tls: bool) -> Result<String, AddressError> {
        let tls = tls.then(|| ClientTls {
            authority: "ca.pem".into(),
            identity: None,
            server_name: None,
        });
        CheckedAddress::parse(&Settings {
            tls,
            ..Settings::new(address)
        })
        .map(|address| address.0.to_string())
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
            assert!(
                matches!(parse(text, false), Err(AddressError::Form(_))),
                "{text:?} was accepted"
            );
        }
        assert!(matches!(
            parse("https://plugin:6001", false),
            Err(AddressError::NoAuthority(_))
        ));
        assert!(
            matches!(
                parse("http://plugin:6001", true),
                Err(AddressError::Form(_))
            ),
            "plain text although TLS is set"
        );
    }
}
