//! The end that connects.

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
    IDLE, PATIENCE, beside,
    carry::{Traffic, carry},
    tls,
};

/// Between two rounds of attempts, twice as long each time, up to the other; between two servers of a round always the first.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// A relay to one remote. It connects again when the connection ends, and ends itself when it is dropped.
#[derive(Debug)]
pub struct Client {
    servers: Vec<SocketAddr>,
    address: SocketAddr,
    server: watch::Receiver<Option<SocketAddr>>,
    task: AbortHandle,
}

impl Client {
    /// Connects to the first of `servers` that can be reached, for the tunnel that waits for datagrams at `tunnel` on this machine.
    /// Datagrams that TCP was too slow for are added to `dropped`. Each time that it is connected or is not any more, `changed` is called.
    pub async fn start(
        servers: Vec<SocketAddr>,
        tunnel: SocketAddr,
        dropped: Arc<AtomicU64>,
        changed: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let connector = tls::connector().map_err(io::Error::other)?;
        let udp = UdpSocket::bind(beside(tunnel)).await?;
        udp.connect(tunnel).await?;
        let address = udp.local_addr()?;
        let (sender, server) = watch::channel(None);
        let say = move |server| {
            if sender.send_replace(server) != server {
                changed();
            }
        };
        let task = tokio::spawn(keep(servers.clone(), udp, connector, dropped, say)).abort_handle();
        Ok(Self { servers, address, server, task })
    }

    /// Where it was told to connect to.
    pub fn servers(&self) -> &[SocketAddr] {
        &self.servers
    }

    /// Where the tunnel sends to what is meant for the remote.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The server that it is connected to now.
    pub fn server(&self) -> Option<SocketAddr> {
        *self.server.borrow()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep(
    servers: Vec<SocketAddr>,
    udp: UdpSocket,
    connector: TlsConnector,
    dropped: Arc<AtomicU64>,
    say: impl Fn(Option<SocketAddr>),
) {
    let [shortest, longest] = PAUSES;
    let mut pause = shortest;
    loop {
        for (number, &server) in servers.iter().enumerate() {
            if number > 0 {
                sleep(shortest).await;
            }
            let stream = match timeout(PATIENCE, connect(server, &connector)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => {
                    tracing::debug!(%error, %server, "no relay");
                    continue;
                }
                Err(_) => {
                    tracing::debug!(%server, "no relay: it does not answer");
                    continue;
                }
            };
            tracing::info!(%server, "connected to a relay");
            say(Some(server));
            let since = Instant::now();
            let ended = carry(stream, &udp, &Traffic::new(&dropped)).await;
            say(None);
            tracing::info!(%server, ended = ended.err().map(|error| error.to_string()), "the connection to a relay ended");
            if since.elapsed() > IDLE {
                pause = shortest;
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

async fn connect(server: SocketAddr, connector: &TlsConnector) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    connector.connect(server.ip().into(), stream).await
}
