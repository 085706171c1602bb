//! Asks one DNS server one question.
//!
//! The caller chooses the ID of the question and how long it waits, and reads answers by itself:
//! until then they are bytes from anybody.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
};

/// Waits for a packet that `read_answer` takes for the answer. Packets have at most `max_len`
/// bytes; the rest of a longer one is cut off.
///
/// Each question has a socket of its own, so the kernel chooses another port, and only packets of
/// this server arrive. Anything else may come from somebody who guesses; the right answer may still
/// come.
pub async fn ask_over_udp<T>(
    server: SocketAddr,
    question: &[u8],
    max_len: usize,
    read_answer: impl Fn(&[u8]) -> Option<T>,
) -> io::Result<T> {
    let any: IpAddr = if server.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(question).await?;
    // The kernel gives memory only for what arrives.
    let mut packet = Vec::with_capacity(max_len);
    loop {
        packet.clear();
        socket.recv_buf(&mut packet).await?;
        if let Some(answer) = read_answer(&packet) {
            return Ok(answer);
        }
    }
}

/// Reads one message of at most `max_len` bytes. It is an error if `read_answer` does not take it
/// for the answer.
pub async fn ask_over_tcp<T>(
    server: SocketAddr,
    question: &[u8],
    max_len: usize,
    read_answer: impl Fn(&[u8]) -> Option<T>,
) -> io::Result<T> {
    let mut stream = TcpStream::connect(server).await?;
    write_message(&mut stream, question).await?;
    let message = read_message(&mut stream, max_len).await?;
    read_answer(&message)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an answer to the question"))
}

/// Reads one message with its length before it (RFC 1035, section 4.2.2).
pub async fn read_message(stream: &mut TcpStream, max_len: usize) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16().await?);
    if length > max_len {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the message is too long",
        ));
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

/// Writes one message with its length before it.
pub async fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the message is too long"))?;
    stream
        .write_all(&[&length.to_be_bytes(), message].concat())
        .await
}
