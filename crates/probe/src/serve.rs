//! The side that answers.

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

use crate::{Identity, is_pattern, pattern};

/// A connection on which nothing is said ends after this time.
const PATIENCE: Duration = Duration::from_secs(60);
/// So many connections are served at once.
const CONNECTIONS: usize = 512;
/// A line is no longer.
const LONGEST_LINE: u64 = 1024;
/// So many counts of floods are kept.
const FLOODS: usize = 64;
/// Bytes read or written at once.
pub(crate) const CHUNK: usize = 256 * 1024;

/// Who serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The pod.
    pub pod: String,
    /// Its node.
    pub node: String,
    /// Who does not say this first is not answered.
    pub token: Option<String>,
}

impl Name {
    /// What is meant by what was said; nothing where it is not for us.
    fn meant<'a>(&self, said: &'a str) -> Option<&'a str> {
        match &self.token {
            Some(token) => said.strip_prefix(token.as_str())?.strip_prefix(' '),
            None => Some(said),
        }
    }

    fn told(&self, source: SocketAddr) -> Vec<u8> {
        let source = SocketAddr::new(source.ip().to_canonical(), source.port());
        let identity = Identity { pod: self.pod.clone(), node: self.node.clone(), source };
        serde_json::to_vec(&identity).unwrap_or_default()
    }
}

/// Answers on this port, on all addresses, until it is dropped.
pub async fn serve(port: u16, name: Name) -> io::Result<()> {
    let (listener, socket) = match bind(Ipv6Addr::UNSPECIFIED.into(), port).await {
        Ok(bound) => bound,
        // A kernel without IPv6.
        Err(_) => bind(Ipv4Addr::UNSPECIFIED.into(), port).await?,
    };
    serve_on(listener, socket, name).await
}

async fn bind(address: IpAddr, port: u16) -> io::Result<(TcpListener, UdpSocket)> {
    let listener = TcpListener::bind((address, port)).await?;
    let socket = UdpSocket::bind((address, listener.local_addr()?.port())).await?;
    Ok((listener, socket))
}

/// Answers on these until it is dropped.
pub async fn serve_on(listener: TcpListener, socket: UdpSocket, name: Name) -> io::Result<()> {
    tokio::select! {
        ended = connections(listener, &name) => ended,
        ended = datagrams(&socket, &name) => ended,
    }
}

async fn connections(listener: TcpListener, name: &Name) -> io::Result<()> {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = room.clone().acquire_owned().await else { return Ok(()) };
        let Ok((stream, source)) = listener.accept().await else {
            // There are too many open files, say.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let name = name.clone();
        tokio::spawn(async move {
            // Whoever asks sees that it broke.
            let _ = connection(stream, source, &name).await;
            drop(place);
        });
    }
}

async fn connection(stream: TcpStream, source: SocketAddr, name: &Name) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::with_capacity(CHUNK, stream);
    loop {
        let mut line = String::new();
        let read = timeout(PATIENCE, (&mut stream).take(LONGEST_LINE).read_line(&mut line)).await??;
        if read == 0 {
            return Ok(());
        }
        let Some(meant) = name.meant(&line) else { return Ok(()) };
        let mut words = meant.split_whitespace();
        match (words.next(), words.next()) {
            (Some("who"), None) => {
                let mut answer = name.told(source);
                answer.push(b'\n');
                stream.write_all(&answer).await?;
            }
            (Some("bulk"), Some(bytes)) => {
                let bytes = bytes.parse().map_err(io::Error::other)?;
                take(&mut stream, bytes).await?;
                let mut answer = name.told(source);
                answer.push(b'\n');
                stream.write_all(&answer).await?;
                give(&mut stream, bytes).await?;
            }
            (Some("sink"), None) => {
                let total = sink(&mut stream).await?;
                return stream.write_all(format!("{total}\n").as_bytes()).await;
            }
            (Some("GET"), Some(_)) => {
                let body = name.told(source);
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                stream.write_all(head.as_bytes()).await?;
                stream.write_all(&body).await?;
                return stream.shutdown().await;
            }
            _ => return Ok(()),
        }
    }
}

/// Reads so many bytes of the pattern.
pub(crate) async fn take(stream: &mut (impl tokio::io::AsyncRead + Unpin), bytes: u64) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    while offset < bytes {
        let wanted = usize::try_from(bytes - offset).unwrap_or(CHUNK).min(CHUNK);
        let read = timeout(PATIENCE, stream.read(&mut buffer[..wanted])).await??;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("it ended after {offset} of {bytes} bytes")));
        }
        if !is_pattern(offset, &buffer[..read]) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("other bytes arrived than were sent, after {offset}"),
            ));
        }
        offset += read as u64;
    }
    Ok(())
}

/// Writes so many bytes of the pattern.
pub(crate) async fn give(stream: &mut (impl tokio::io::AsyncWrite + Unpin), bytes: u64) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    while offset < bytes {
        let wanted = usize::try_from(bytes - offset).unwrap_or(CHUNK).min(CHUNK);
        pattern(offset, &mut buffer[..wanted]);
        timeout(PATIENCE, stream.write_all(&buffer[..wanted])).await??;
        offset += wanted as u64;
    }
    stream.flush().await
}

async fn sink(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> io::Result<u64> {
    let mut buffer = vec![0; CHUNK];
    let mut total = 0;
    loop {
        match timeout(PATIENCE, stream.read(&mut buffer)).await?? {
            0 => return Ok(total),
            read => total += read as u64,
        }
    }
}

async fn datagrams(socket: &UdpSocket, name: &Name) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let mut floods: HashMap<(SocketAddr, String), u64> = HashMap::new();
    loop {
        // An error is about a datagram that was sent before.
        let Ok((length, source)) = socket.recv_from(&mut buffer).await else { continue };
        let text = buffer[..length].split(|byte| *byte == 0).next().unwrap_or_default();
        let Ok(text) = std::str::from_utf8(text) else { continue };
        let answer = match name.meant(text).and_then(|meant| meant.split_once(' ')) {
            Some(("who", nonce)) => [nonce.as_bytes(), b" ", &name.told(source)].concat(),
            Some(("flood", number)) => {
                let key = (source, number.to_owned());
                if floods.len() >= FLOODS && !floods.contains_key(&key) {
                    floods.clear();
                }
                *floods.entry(key).or_default() += length as u64;
                continue;
            }
            Some(("count", number)) => {
                let count = floods.get(&(source, number.to_owned())).copied().unwrap_or_default();
                format!("{number} {count}").into_bytes()
            }
            _ => continue,
        };
        // Whoever pretends to be another is not to have that one sent more than was sent here.
        if answer.len() > length {
            continue;
        }
        // Who does not hear it asks again.
        let _ = socket.send_to(&answer, source).await;
    }
}
