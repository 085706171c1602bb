//! Questions and answers in single datagrams.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::atomic::{AtomicU64, Ordering},
};

use tokio::net::UdpSocket;

use crate::{AskedServer, ServerIdentity};

/// Minimum length of a question in bytes: longer than any answer, and shorter than what every
/// network carries unfragmented.
pub(crate) const MIN_LEN: usize = 512;

/// A socket that is connected to the server.
pub(crate) async fn connect_socket(to: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = if to.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(to).await?;
    Ok(socket)
}

/// A word that is used once.
pub(crate) fn new_nonce() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    format!(
        "{}-{}",
        std::process::id(),
        LAST.fetch_add(1, Ordering::Relaxed)
    )
}

/// A datagram of this length that begins with these words.
pub(crate) fn padded_datagram(words: &str, bytes: usize) -> Vec<u8> {
    let mut datagram = words.as_bytes().to_vec();
    datagram.resize(bytes.max(datagram.len()), 0);
    datagram
}

/// Asks who the server is, in a datagram of at least this length.
pub(crate) async fn ask_identity(
    socket: &UdpSocket,
    to: &AskedServer,
    bytes: usize,
) -> io::Result<ServerIdentity> {
    let nonce = new_nonce();
    socket
        .send(&padded_datagram(
            &to.with_token(&format!("who {nonce}")),
            bytes.max(MIN_LEN),
        ))
        .await?;
    serde_json::from_str(&await_answer(socket, &nonce).await?).map_err(|_| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "the answer is not that of a probe server",
        )
    })
}

/// Waits for the answer with this nonce and skips older answers.
pub(crate) async fn await_answer(socket: &UdpSocket, nonce: &str) -> io::Result<String> {
    let mut buffer = vec![0; 2048];
    loop {
        let length = socket.recv(&mut buffer).await?;
        let text = String::from_utf8_lossy(&buffer[..length]);
        if let Some((said, rest)) = text.split_once(' ')
            && said == nonce
        {
            return Ok(rest.to_owned());
        }
    }
}
