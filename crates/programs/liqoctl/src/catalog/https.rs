//! Requests to a catalog over HTTPS: at an address, or in a pod behind the API server.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use http::{Request, Uri, header};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Config, client::ConfigExt as _};
use liqo_peering::exchange::exchange_http;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::cluster::ExplainFailure as _;

/// Limit for one request with its connection.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum length of an answer in bytes, four times that of a page.
const MAX_ANSWER_LEN: usize = 4 << 20;

/// Host and port of a catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogUrl {
    host: String,
    port: u16,
}

const EXPECTED_FORM: &str = "it looks like https://203.0.113.5:8443";

impl FromStr for CatalogUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uri: Uri = text.parse().map_err(|_| EXPECTED_FORM)?;
        let is_plain = uri.scheme_str() == Some("https")
            && uri.path_and_query().is_none_or(|path| path == "/");
        let authority = uri
            .authority()
            .filter(|authority| is_plain && !authority.as_str().contains('@'))
            .ok_or(EXPECTED_FORM)?;
        let port = match authority.port_u16() {
            Some(port) => port,
            None if authority.as_str() == authority.host() => 443,
            None => return Err(EXPECTED_FORM.to_owned()),
        };
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        if host.is_empty() {
            Err(EXPECTED_FORM.to_owned())
        } else {
            Ok(Self { host, port })
        }
    }
}

impl fmt::Display for CatalogUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

/// The certificates of the catalog that are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateTrust {
    /// One that this machine trusts.
    Machine,
    /// One in this file (PEM), or one that one of these signed.
    File(PathBuf),
    Any,
}

/// The certificates in a file, as DER.
fn read_certificates(file: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
    let found =
        CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found =
        found.with_context(|| format!("cannot read the certificates in {}", file.display()))?;
    if found.is_empty() {
        return Err(anyhow!("{} contains no certificate (PEM)", file.display()));
    }
    Ok(found.into_iter().map(|one| one.to_vec()).collect())
}

/// A client of one catalog. Each request has a connection of its own, as the catalog wants it.
pub struct CatalogClient {
    way: CatalogRoute,
    /// The called URL or port of a pod, for error texts.
    address: String,
    server: ServerName<'static>,
    tls: TlsConnector,
}

enum CatalogRoute {
    Direct(CatalogUrl),
    /// A port of a pod, through the API server.
    Pod {
        pods: Box<Api<Pod>>,
        name: String,
        port: u16,
    },
}

trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

impl CatalogClient {
    pub fn for_url(url: &CatalogUrl, trust: &CertificateTrust) -> anyhow::Result<Self> {
        let server = ServerName::try_from(url.host.clone())
            .with_context(|| format!("{} is not the name of a host", url.host))?;
        Ok(Self {
            way: CatalogRoute::Direct(url.clone()),
            address: url.to_string(),
            server,
            tls: connector(trust)?,
        })
    }

    /// The API server and the kubelet have proved which pod answers, so its certificate does not
    /// matter.
    pub fn for_pod(pods: Api<Pod>, name: &str, port: u16) -> anyhow::Result<Self> {
        let address = format!("port {port} of pod {name}");
        let way = CatalogRoute::Pod {
            pods: Box::new(pods),
            name: name.to_owned(),
            port,
        };
        Ok(Self {
            way,
            address,
            server: ServerName::try_from("localhost")?,
            tls: connector(&CertificateTrust::Any)?,
        })
    }

    /// The called URL or port of a pod.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Status and body of the answer.
    pub async fn get(&self, path: &str, authorization: &str) -> anyhow::Result<(u16, Vec<u8>)> {
        let request = Request::get(path)
            .header(header::HOST, self.host())
            .header(header::AUTHORIZATION, authorization)
            .header(header::ACCEPT, "application/json")
            .header(header::CONNECTION, "close")
            .body(Vec::new())?;
        let answer = async {
            let stream = self.open_tls_stream().await?;
            let stream = self
                .tls
                .connect(self.server.clone(), stream)
                .await
                .map_err(|error| self.not_secured(&error))?;
            let (status, body) = exchange_http(stream, request, MAX_ANSWER_LEN)
                .await
                .map_err(|error| anyhow!("the request to {} failed: {error}", self.address))?;
            Ok((status.as_u16(), body.to_vec()))
        };
        timeout(TIMEOUT, answer).await.map_err(|_| {
            anyhow!(
                "{} did not answer within {} s",
                self.address,
                TIMEOUT.as_secs()
            )
        })?
    }

    /// The host of requests.
    fn host(&self) -> &str {
        if matches!(self.way, CatalogRoute::Direct(_)) {
            &self.address
        } else {
            "localhost"
        }
    }

    async fn open_tls_stream(&self) -> anyhow::Result<Box<dyn ByteStream>> {
        match &self.way {
            CatalogRoute::Direct(CatalogUrl { host, port }) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await;
                Ok(Box::new(stream.with_context(|| {
                    format!(
                        "cannot reach {}: is the address right, and do firewalls let it through?",
                        self.address
                    )
                })?))
            }
            CatalogRoute::Pod { pods, name, port } => {
                let mut forwarder = pods
                    .portforward(name, &[*port])
                    .await
                    .doing(format!("forward to {}", self.address))?;
                let stream = forwarder.take_stream(*port);
                Ok(Box::new(stream.with_context(|| {
                    format!("the API server does not forward to {}", self.address)
                })?))
            }
        }
    }

    /// Explains a failed TLS handshake.
    fn not_secured(&self, error: &io::Error) -> anyhow::Error {
        let cause = error
            .get_ref()
            .and_then(|cause| cause.downcast_ref::<rustls::Error>());
        match (cause, &self.way) {
            (Some(rustls::Error::InvalidCertificate(problem)), CatalogRoute::Direct(_)) => anyhow!(
                "the certificate of {} is not trusted ({problem}): --ca-file names the certificate that signed it. Where nobody has signed \
                 it, --insecure-skip-tls-verify ignores it",
                self.address
            ),
            (_, CatalogRoute::Direct(_)) => anyhow!(
                "{} does not answer with TLS ({error}): is it the port of a catalog?",
                self.address
            ),
            (_, CatalogRoute::Pod { .. }) => {
                anyhow!(
                    "{} does not answer with TLS ({error}): was the plugin started with --catalog-port?",
                    self.address
                )
            }
        }
    }
}

fn connector(trust: &CertificateTrust) -> anyhow::Result<TlsConnector> {
    // The same TLS as for API servers. The URL is not used.
    let mut config = Config::new(Uri::from_static("https://localhost"));
    match trust {
        CertificateTrust::Machine => {}
        CertificateTrust::File(file) => config.root_cert = Some(read_certificates(file)?),
        CertificateTrust::Any => {
            config.accept_invalid_certs = true;
            // Those of the machine, which may have none, are not read.
            config.root_cert = Some(Vec::new());
        }
    }
    let config = config
        .rustls_client_config()
        .context("cannot set up TLS for the catalog")?;
    Ok(TlsConnector::from(Arc::new(config)))
}
