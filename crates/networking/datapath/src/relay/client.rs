//! The relay client.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};

use tokio::{
    net::{TcpStream, UdpSocket},
    sync::watch,
    task::AbortHandle,
    time::{sleep, timeout},
};
use tokio_rustls::TlsConnector;

use super::{
    carry::{IDLE_TIMEOUT, RelayTraffic, carry_datagrams},
    loopback::loopback_for,
    tls::{self, CONNECT_TIMEOUT},
};

/// Pause between rounds of attempts. It doubles each time, up to the maximum. Between two servers
/// of a round it is always the minimum.
const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// A relay to one remote. It reconnects when the connection ends, and stops when it is dropped.
#[derive(Debug)]
pub struct RelayClient {
    servers: Vec<SocketAddr>,
    address: SocketAddr,
    server: watch::Receiver<Option<SocketAddr>>,
    task: AbortHandle,
}

impl RelayClient {
    /// Connects the tunnel that listens at `tunnel` on this machine to the first of `servers` that
    /// can be reached. Counts datagrams that TCP was too slow for in `dropped`. Calls `changed`
    /// whenever it connects or disconnects.
    pub async fn start(
        servers: Vec<SocketAddr>,
        tunnel: SocketAddr,
        dropped: Arc<AtomicU64>,
        changed: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let connector = tls::connector().map_err(io::Error::other)?;
        let udp = UdpSocket::bind(loopback_for(tunnel)).await?;
        udp.connect(tunnel).await?;
        let address = udp.local_addr()?;
        let (sender, server) = watch::channel(None);
        let task = tokio::spawn(keep_connected(
            servers.clone(),
            udp,
            connector,
            dropped,
            move |server| {
                if sender.send_replace(server) != server {
                    changed();
                }
            },
        ))
        .abort_handle();
        Ok(Self {
            servers,
            address,
            server,
            task,
        })
    }

    pub fn servers(&self) -> &[SocketAddr] {
        &self.servers
    }

    /// The address that the tunnel uses for the remote.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The currently connected server.
    pub fn server(&self) -> Option<SocketAddr> {
        *self.server.borrow()
    }
}

impl Drop for RelayClient {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep_connected(
    servers: Vec<SocketAddr>,
    udp: UdpSocket,
    connector: TlsConnector,
    dropped: Arc<AtomicU64>,
    report: impl Fn(Option<SocketAddr>),
) {
    let mut pause = MIN_PAUSE;
    loop {
        for (number, &server) in servers.iter().enumerate() {
            if number > 0 {
                sleep(MIN_PAUSE).await;
            }
            let stream = match timeout(CONNECT_TIMEOUT, connect_server(server, &connector)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => {
                    tracing::debug!(%error, %server, "cannot connect to a relay");
                    continue;
                }
                Err(_) => {
                    tracing::debug!(%server, "cannot connect to a relay: it does not answer");
                    continue;
                }
            };
            tracing::info!(%server, "connected to a relay");
            report(Some(server));
            let since = Instant::now();
            let ended = carry_datagrams(stream, &udp, &RelayTraffic::new(&dropped)).await;
            report(None);
            tracing::info!(%server, ended = ended.err().map(|error| error.to_string()), "the connection to a relay ended");
            if since.elapsed() > IDLE_TIMEOUT {
                pause = MIN_PAUSE;
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

async fn connect_server(
    server: SocketAddr,
    connector: &TlsConnector,
) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    connector.connect(server.ip().into(), stream).await
}
