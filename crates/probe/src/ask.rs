//! The side that asks.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpStream, UdpSocket, lookup_host},
    sync::{Semaphore, mpsc},
    time::timeout,
};

use crate::{Finding, Identity, Problem, ProblemKind, Question, Report, Request, Server, What, measure, path, serve};

/// A datagram that is to be answered is no shorter: more than an answer has, and less than every network carries in one piece.
pub(crate) const SHORTEST: usize = 512;
/// So often a short question is asked.
const ATTEMPTS: usize = 3;
/// Of so many answers on one connection the quickest counts: the first ones wake up what sleeps.
const ROUNDS: usize = 3;

/// Asks all questions; reports come as they are found.
pub fn ask(request: Request) -> mpsc::UnboundedReceiver<Report> {
    let (reports, found) = mpsc::unbounded_channel();
    let room = Arc::new(Semaphore::new(request.at_once.clamp(1, 64)));
    let patience = Duration::from_millis(request.patience_millis);
    for (number, question) in request.questions.into_iter().enumerate() {
        let (reports, room, token) = (reports.clone(), room.clone(), request.token.clone());
        tokio::spawn(async move {
            let _place = room.acquire().await;
            let outcome = find_out(&question, token.as_ref(), patience).await;
            // Nobody listens any more.
            let _ = reports.send(Report { question: number, outcome });
        });
    }
    found
}

async fn find_out(question: &Question, token: Option<&String>, patience: Duration) -> Result<Finding, Problem> {
    let short = !matches!(question.what, What::Bulk { .. } | What::Latency { .. } | What::Stream { .. } | What::Flood { .. });
    let attempts = if short { ATTEMPTS } else { 1 };
    let mut problem = Problem::silence();
    for _ in 0..attempts {
        match once(question, token, patience).await {
            Ok(found) => return Ok(found),
            Err(found) => problem = found,
        }
        // What is refused is refused at once; it may be different a little later.
        if attempts > 1 && problem.kind != ProblemKind::NoAnswer {
            tokio::time::sleep(patience / 4).await;
        }
    }
    Err(problem)
}

async fn once(question: &Question, token: Option<&String>, patience: Duration) -> Result<Finding, Problem> {
    let addresses = timeout(patience, addresses(&question.to)).await.unwrap_or_else(|_| Err(Problem::silence()))?;
    of_any(&addresses, &question.what, token, patience).await
}

/// Asks one of these addresses. Where that does not answer, the next one is tried, as programs do.
async fn of_any(addresses: &[SocketAddr], what: &What, token: Option<&String>, patience: Duration) -> Result<Finding, Problem> {
    let is_unlimited = matches!(what, What::Latency { .. } | What::Stream { .. } | What::Flood { .. } | What::Path { .. });
    let share = patience / u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    let mut problem = Problem::silence();
    for address in addresses {
        let to = &Server { address: *address, token: token.cloned() };
        let finding = async {
            match *what {
                What::Tcp => tcp(to).await,
                What::Udp { bytes } => udp(to, bytes).await,
                What::Bulk { bytes } => bulk(to, bytes).await,
                What::Path { largest } => path::find(to, largest).await,
                What::Resolve => {
                    let mut all: Vec<IpAddr> = addresses.iter().map(|address| address.ip().to_canonical()).collect();
                    all.sort();
                    all.dedup();
                    Ok(Finding::Addresses { addresses: all })
                }
                What::Latency { seconds } => measure::latency(to, seconds).await,
                What::Stream { seconds, connections } => measure::stream(to, seconds, connections).await,
                What::Flood { seconds, bytes } => measure::flood(to, seconds, bytes).await,
            }
        };
        let silence = |_| Err(Problem::silence());
        let found = if is_unlimited { finding.await } else { timeout(share, finding).await.unwrap_or_else(silence) };
        match found {
            Ok(finding) => return Ok(finding),
            Err(found) => problem = found,
        }
    }
    Err(problem)
}

async fn addresses(to: &str) -> Result<Vec<SocketAddr>, Problem> {
    let unknown = |text: String| Problem::new(ProblemKind::UnknownName, text);
    let found: Vec<SocketAddr> = lookup_host(to).await.map_err(|error| unknown(error.to_string()))?.collect();
    if found.is_empty() { Err(unknown("the name has no address".to_owned())) } else { Ok(found) }
}

async fn line(stream: &mut BufReader<TcpStream>) -> io::Result<Identity> {
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed without an answer"));
    }
    serde_json::from_str(&line).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "somebody else answered, in other words"))
}

async fn tcp(to: &Server) -> Result<Finding, Problem> {
    let stream = TcpStream::connect(to.address).await?;
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut quickest = f64::INFINITY;
    let mut by = None;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        stream.write_all(to.say("who\n").as_bytes()).await?;
        by = Some(line(&mut stream).await?);
        quickest = quickest.min(start.elapsed().as_secs_f64() * 1000.0);
    }
    by.map(|by| Finding::Answered { by, millis: quickest }).ok_or_else(Problem::silence)
}

async fn bulk(to: &Server, bytes: u64) -> Result<Finding, Problem> {
    let start = Instant::now();
    let mut stream = BufReader::new(TcpStream::connect(to.address).await?);
    stream.write_all(to.say(&format!("bulk {bytes}\n")).as_bytes()).await?;
    serve::give(&mut stream, bytes).await?;
    let by = line(&mut stream).await?;
    serve::take(&mut stream, bytes).await?;
    Ok(Finding::Answered { by, millis: start.elapsed().as_secs_f64() * 1000.0 })
}

async fn udp(to: &Server, bytes: usize) -> Result<Finding, Problem> {
    let socket = datagram_socket(to.address).await?;
    let start = Instant::now();
    let by = exchange(&socket, to, bytes).await?;
    Ok(Finding::Answered { by, millis: start.elapsed().as_secs_f64() * 1000.0 })
}

/// A socket for datagrams to and from nobody else.
pub(crate) async fn datagram_socket(to: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(to).await?;
    Ok(socket)
}

/// A word that was not said before.
pub(crate) fn nonce() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed))
}

/// A datagram of this length that begins with these words.
pub(crate) fn padded(words: &str, bytes: usize) -> Vec<u8> {
    let mut datagram = words.as_bytes().to_vec();
    datagram.resize(bytes.max(datagram.len()), 0);
    datagram
}

/// Asks who is there in a datagram of this length at least.
pub(crate) async fn exchange(socket: &UdpSocket, to: &Server, bytes: usize) -> io::Result<Identity> {
    let nonce = nonce();
    socket.send(&padded(&to.say(&format!("who {nonce}")), bytes.max(SHORTEST))).await?;
    serde_json::from_str(&answer(socket, &nonce).await?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "somebody else answered, in other words"))
}

/// What is said to these words; answers to older ones pass by.
pub(crate) async fn answer(socket: &UdpSocket, nonce: &str) -> io::Result<String> {
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

#[cfg(test)]
mod tests;
