//! Asks the DNS servers of this pod: over UDP, and over TCP where an answer is too long.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use liqo_controller_runtime::dns::{ask_over_tcp, ask_over_udp};
use liqo_discovery::{
    domain_lookup::DomainLookup,
    message::{self, DnsMessage, DnsQuestion, DnsResponseCode, MAX_TCP_LEN, MAX_UDP_LEN},
};
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::time::timeout;

/// Timeout of one answer of one server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of servers that are asked, as the resolver of the C library does.
const MAX_SERVERS: usize = 3;
const MAX_CONCURRENT: usize = 8;
const CONFIGURATION: &str = "/etc/resolv.conf";

/// The servers in the text of a `resolv.conf`.
fn parse_servers(text: &str) -> Vec<SocketAddr> {
    let addresses = text.lines().filter_map(|line| {
        line.trim()
            .strip_prefix("nameserver")?
            .trim()
            .parse::<IpAddr>()
            .ok()
    });
    addresses
        .map(|address| SocketAddr::new(address, 53))
        .take(MAX_SERVERS)
        .collect()
}

pub async fn look_up(domain: &str) -> DomainLookup {
    let servers = parse_servers(
        &tokio::fs::read_to_string(CONFIGURATION)
            .await
            .unwrap_or_default(),
    );
    look_up_at(&servers, domain).await
}

async fn look_up_at(servers: &[SocketAddr], domain: &str) -> DomainLookup {
    let mut lookup = DomainLookup::new(domain);
    loop {
        let questions = lookup.next_questions();
        if questions.is_empty() {
            return lookup;
        }
        let asked = stream::iter(questions).map(|question| async move {
            let answer = ask_any(servers, &question).await;
            (question, answer)
        });
        let answers: Vec<_> = asked.buffer_unordered(MAX_CONCURRENT).collect().await;
        for (question, answer) in answers {
            lookup.record_answer(&question, answer.as_ref());
        }
    }
}

/// The answer of the first server that has one. A packet may be lost, so each is asked twice.
async fn ask_any(servers: &[SocketAddr], question: &DnsQuestion) -> Option<DnsMessage> {
    for server in servers.iter().chain(servers) {
        match ask_server(*server, question).await {
            Ok(message) if message.outcome != DnsResponseCode::Failed => return Some(message),
            Ok(_) => tracing::debug!(%server, name = question.name, "the DNS server has no answer"),
            Err(error) => {
                tracing::debug!(%server, name = question.name, %error, "the DNS server does not answer");
            }
        }
    }
    None
}

async fn ask_server(server: SocketAddr, question: &DnsQuestion) -> io::Result<DnsMessage> {
    let mut id = [0; 2];
    // Together with the port, which the kernel chooses, it keeps others from answering.
    SystemRandom::new()
        .fill(&mut id)
        .map_err(|_| io::Error::other("no random number"))?;
    let id = u16::from_be_bytes(id);
    let bytes = message::encode_question(id, question, true)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a name"))?;
    let read = |answer: &[u8], max_len| {
        let answer = message::parse_message(answer, max_len).ok()?;
        message::is_answer(&answer, id, question).then_some(answer)
    };
    // A longer packet is no answer, so it must not be cut off to the maximum length.
    let over_udp = ask_over_udp(server, &bytes, MAX_UDP_LEN + 1, |answer| {
        read(answer, MAX_UDP_LEN)
    });
    let answer = timeout(ANSWER_TIMEOUT, over_udp).await??;
    if !answer.is_truncated {
        return Ok(answer);
    }
    let over_tcp = ask_over_tcp(server, &bytes, MAX_TCP_LEN, |answer| {
        read(answer, MAX_TCP_LEN)
    });
    timeout(ANSWER_TIMEOUT, over_tcp).await?
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, UdpSocket},
    };

    use super::*;

    #[test]
    fn the_servers_of_this_pod_are_read() {
        let text = "search a.b\nnameserver 10.96.0.10\n nameserver  fd00::a\nnameserver nonsense\n#nameserver 10.0.0.1\n";
        let expected: Vec<SocketAddr> = vec![
            "10.96.0.10:53".parse().unwrap(),
            "[fd00::a]:53".parse().unwrap(),
        ];
        assert_eq!(parse_servers(text), expected);
    }

    /// A server that answers every question with these bytes after the question: first something
    /// else, then truncated, then over TCP.
    async fn server(answer: fn(&[u8]) -> Vec<u8>) -> SocketAddr {
        // The port must be free for both.
        let (udp, tcp, address) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let address = udp.local_addr().unwrap();
            if let Ok(tcp) = TcpListener::bind(address).await {
                break (udp, tcp, address);
            }
        };
        tokio::spawn(async move {
            let mut buffer = [0; 512];
            loop {
                let (length, from) = udp.recv_from(&mut buffer).await.unwrap();
                let mut wrong = answer(&buffer[..length]);
                wrong[0] ^= 1;
                udp.send_to(&wrong, from).await.unwrap();
                let mut truncated = buffer[..length].to_vec();
                truncated[2] |= 0x82;
                udp.send_to(&truncated, from).await.unwrap();
            }
        });
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = tcp.accept().await.unwrap();
                let mut asked = vec![0; usize::from(stream.read_u16().await.unwrap())];
                stream.read_exact(&mut asked).await.unwrap();
                let answer = answer(&asked);
                stream
                    .write_u16(u16::try_from(answer.len()).unwrap())
                    .await
                    .unwrap();
                stream.write_all(&answer).await.unwrap();
            }
        });
        address
    }

    #[tokio::test]
    async fn the_right_answer_is_awaited_and_a_long_one_comes_over_tcp() {
        let empty = |asked: &[u8]| {
            let mut answer = asked.to_vec();
            answer[2] |= 0x80;
            answer
        };
        let servers = [server(empty).await];
        assert_eq!(
            look_up_at(&servers, "example.org").await.result(),
            Ok(Vec::new())
        );
        assert!(
            look_up_at(&[], "example.org").await.result().is_err(),
            "no server at all"
        );
    }
}
