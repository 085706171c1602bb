//! Asks the cluster's own name servers.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    time::timeout,
};

use crate::message::{id, is_answer, set_id};

/// Maximum time for the answer of one server. Usual clients wait for five seconds.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum number of tries of a question, at one server after another.
const ATTEMPTS: usize = 2;

/// The protocol of a question. The question goes upstream over the same one, so that size and
/// truncation are the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionTransport {
    Udp,
    Tcp,
}

/// The cluster's name servers.
#[derive(Clone, Debug)]
pub struct NameServers {
    servers: Vec<SocketAddr>,
}

impl NameServers {
    pub fn new(servers: Vec<SocketAddr>) -> Self {
        Self { servers }
    }

    /// Asks the servers in turn. The answer has the ID of the question. `None` if none answers in
    /// time.
    pub async fn ask(&self, question: &[u8], transport: QuestionTransport) -> Option<Vec<u8>> {
        for server in self
            .servers
            .iter()
            .cycle()
            .take(ATTEMPTS.max(self.servers.len()))
        {
            let mut asked = question.to_vec();
            set_id(&mut asked, rand::random());
            let answer = async {
                match transport {
                    QuestionTransport::Udp => over_udp(*server, &asked).await,
                    QuestionTransport::Tcp => over_tcp(*server, &asked).await,
                }
            };
            match timeout(TIMEOUT, answer).await {
                Ok(Ok(mut answer)) => {
                    set_id(&mut answer, id(question));
                    return Some(answer);
                }
                Ok(Err(error)) => tracing::debug!(%server, %error, "a name server cannot be asked"),
                Err(_) => tracing::debug!(%server, "a name server does not answer"),
            }
        }
        None
    }
}

/// Each question has a socket of its own, so the kernel chooses another port, and only packets of
/// this server arrive.
async fn over_udp(server: SocketAddr, asked: &[u8]) -> io::Result<Vec<u8>> {
    let any: IpAddr = if server.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(asked).await?;
    // The kernel gives memory only for what arrives.
    let mut answer = Vec::with_capacity(usize::from(u16::MAX));
    loop {
        answer.clear();
        socket.recv_buf(&mut answer).await?;
        if is_answer(asked, &answer) {
            return Ok(answer);
        }
    }
}

async fn over_tcp(server: SocketAddr, asked: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    write_message(&mut stream, asked).await?;
    let answer = read_message(&mut stream, usize::from(u16::MAX)).await?;
    if is_answer(asked, &answer) {
        Ok(answer)
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not an answer to the question",
        ))
    }
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
