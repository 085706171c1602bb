//! The server: answers over TCP and UDP.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::Semaphore,
    time::timeout,
};

use crate::{
    ServerIdentity,
    pattern::{self, CHUNK, IDLE_TIMEOUT},
};

const MAX_CONNECTIONS: usize = 512;
/// In bytes.
const MAX_LINE_LEN: u64 = 1024;
/// Maximum number of floods that are counted at a time.
const MAX_FLOODS: usize = 64;

/// The identity of the server, and the token of its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedIdentity {
    pub pod: String,
    pub node: String,
    /// Requests that do not begin with this word are ignored.
    pub token: Option<String>,
}

impl AnnouncedIdentity {
    /// The request without the token, or `None` if the token is missing.
    fn strip_token<'a>(&self, text: &'a str) -> Option<&'a str> {
        match &self.token {
            Some(token) => text.strip_prefix(token.as_str())?.strip_prefix(' '),
            None => Some(text),
        }
    }

    fn identity_json(&self, source: SocketAddr) -> Vec<u8> {
        let source = SocketAddr::new(source.ip().to_canonical(), source.port());
        let identity = ServerIdentity {
            pod: self.pod.clone(),
            node: self.node.clone(),
            source,
        };
        serde_json::to_vec(&identity).unwrap_or_default()
    }
}

/// Serves on this port on all addresses, until it is dropped.
pub async fn serve_questions(port: u16, name: AnnouncedIdentity) -> io::Result<()> {
    let (listener, socket) = match bind_sockets(Ipv6Addr::UNSPECIFIED.into(), port).await {
        Ok(bound) => bound,
        // A kernel without IPv6.
        Err(_) => bind_sockets(Ipv4Addr::UNSPECIFIED.into(), port).await?,
    };
    serve_on(listener, socket, name).await
}

async fn bind_sockets(address: IpAddr, port: u16) -> io::Result<(TcpListener, UdpSocket)> {
    let listener = TcpListener::bind((address, port)).await?;
    let socket = UdpSocket::bind((address, listener.local_addr()?.port())).await?;
    Ok((listener, socket))
}

/// Serves on these sockets until it is dropped.
pub async fn serve_on(
    listener: TcpListener,
    socket: UdpSocket,
    name: AnnouncedIdentity,
) -> io::Result<()> {
    tokio::select! {
        ended = serve_connections(listener, &name) => ended,
        ended = answer_datagrams(&socket, &name) => ended,
    }
}

async fn serve_connections(listener: TcpListener, name: &AnnouncedIdentity) -> io::Result<()> {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else {
            return Ok(());
        };
        let Ok((stream, source)) = listener.accept().await else {
            // For example because of too many open files.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let name = name.clone();
        tokio::spawn(async move {
            // The client sees that the connection broke.
            let _ = serve_connection(stream, source, &name).await;
            drop(permit);
        });
    }
}

async fn serve_connection(
    stream: TcpStream,
    source: SocketAddr,
    name: &AnnouncedIdentity,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::with_capacity(CHUNK, stream);
    let identity = [&name.identity_json(source)[..], b"\n"].concat();
    loop {
        let mut line = String::new();
        let read = timeout(
            IDLE_TIMEOUT,
            (&mut stream).take(MAX_LINE_LEN).read_line(&mut line),
        )
        .await??;
        if read == 0 {
            return Ok(());
        }
        let Some(request) = name.strip_token(&line) else {
            return Ok(());
        };
        let mut words = request.split_whitespace();
        match (words.next(), words.next()) {
            (Some("who"), None) => stream.write_all(&identity).await?,
            (Some("bulk"), Some(bytes)) => {
                let bytes = bytes.parse().map_err(io::Error::other)?;
                pattern::receive_pattern(&mut stream, bytes).await?;
                stream.write_all(&identity).await?;
                pattern::send_pattern(&mut stream, bytes).await?;
            }
            (Some("sink"), None) => {
                let total = count_received(&mut stream).await?;
                return stream.write_all(format!("{total}\n").as_bytes()).await;
            }
            (Some("GET"), Some(_)) => {
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    identity.len()
                );
                stream.write_all(head.as_bytes()).await?;
                stream.write_all(&identity).await?;
                return stream.shutdown().await;
            }
            _ => return Ok(()),
        }
    }
}

async fn count_received(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> io::Result<u64> {
    let mut buffer = vec![0; CHUNK];
    let mut total = 0;
    loop {
        match timeout(IDLE_TIMEOUT, stream.read(&mut buffer)).await?? {
            0 => return Ok(total),
            read => total += read as u64,
        }
    }
}

async fn answer_datagrams(socket: &UdpSocket, name: &AnnouncedIdentity) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let mut floods: HashMap<(SocketAddr, String), u64> = HashMap::new();
    loop {
        // An error concerns an earlier datagram.
        let Ok((length, source)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        let text = buffer[..length]
            .split(|byte| *byte == 0)
            .next()
            .unwrap_or_default();
        let Ok(text) = std::str::from_utf8(text) else {
            continue;
        };
        let answer = match name
            .strip_token(text)
            .and_then(|request| request.split_once(' '))
        {
            Some(("who", nonce)) => [nonce.as_bytes(), b" ", &name.identity_json(source)].concat(),
            Some(("flood", number)) => {
                let key = (source, number.to_owned());
                if floods.len() >= MAX_FLOODS && !floods.contains_key(&key) {
                    floods.clear();
                }
                *floods.entry(key).or_default() += length as u64;
                continue;
            }
            Some(("count", number)) => {
                let count = floods
                    .get(&(source, number.to_owned()))
                    .copied()
                    .unwrap_or_default();
                format!("{number} {count}").into_bytes()
            }
            _ => continue,
        };
        // No amplification: whoever forges its source must not cause more traffic than it sends.
        if answer.len() > length {
            continue;
        }
        // A client that misses the answer asks again.
        let _ = socket.send_to(&answer, source).await;
    }
}
