//! The client: asks all questions of a request, several at a time.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpStream, lookup_host},
    sync::{Semaphore, mpsc},
    time::timeout,
};

use crate::{
    Finding, Identity, Problem, ProblemKind, Question, Report, Request, Server, What, datagram,
    measure, path, pattern,
};

/// Maximum number of attempts for a short question.
const ATTEMPTS: usize = 3;
/// Questions on one TCP connection. The fastest answer counts: the first ones may be slowed down by
/// sleeping CPUs.
const ROUNDS: usize = 3;

/// Asks all questions. The receiver yields the reports in the order in which they are finished.
pub fn ask(request: Request) -> mpsc::UnboundedReceiver<Report> {
    let (reports, found) = mpsc::unbounded_channel();
    let permits = Arc::new(Semaphore::new(request.at_once.clamp(1, 64)));
    let time_limit = Duration::from_millis(request.timeout_millis);
    for (number, question) in request.questions.into_iter().enumerate() {
        let (reports, permits, token) = (reports.clone(), permits.clone(), request.token.clone());
        tokio::spawn(async move {
            let _permit = permits.acquire().await;
            let outcome = find_out(&question, token.as_ref(), time_limit).await;
            // The receiver may be gone.
            let _ = reports.send(Report {
                question: number,
                outcome,
            });
        });
    }
    found
}

async fn find_out(
    question: &Question,
    token: Option<&String>,
    time_limit: Duration,
) -> Result<Finding, Problem> {
    let short = !matches!(
        question.what,
        What::Bulk { .. } | What::Latency { .. } | What::Stream { .. } | What::Flood { .. }
    );
    let attempts = if short { ATTEMPTS } else { 1 };
    let mut problem = Problem::silence();
    for _ in 0..attempts {
        match once(question, token, time_limit).await {
            Ok(found) => return Ok(found),
            Err(found) => problem = found,
        }
        // A refusal comes at once. It may be gone a little later.
        if attempts > 1 && problem.kind != ProblemKind::NoAnswer {
            tokio::time::sleep(time_limit / 4).await;
        }
    }
    Err(problem)
}

async fn once(
    question: &Question,
    token: Option<&String>,
    time_limit: Duration,
) -> Result<Finding, Problem> {
    let addresses = timeout(time_limit, addresses(&question.to))
        .await
        .unwrap_or_else(|_| Err(Problem::silence()))?;
    of_any(&addresses, &question.what, token, time_limit).await
}

/// Asks these addresses one after the other until one answers, as other programs do.
async fn of_any(
    addresses: &[SocketAddr],
    what: &What,
    token: Option<&String>,
    time_limit: Duration,
) -> Result<Finding, Problem> {
    let is_unlimited = matches!(
        what,
        What::Latency { .. } | What::Stream { .. } | What::Flood { .. } | What::Path { .. }
    );
    let share = time_limit / u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    let mut problem = Problem::silence();
    for address in addresses {
        let to = &Server {
            address: *address,
            token: token.cloned(),
        };
        let finding = async {
            match *what {
                What::Tcp => tcp(to).await,
                What::Udp { bytes } => udp(to, bytes).await,
                What::Bulk { bytes } => bulk(to, bytes).await,
                What::Path { largest } => path::find(to, largest).await,
                What::Resolve => {
                    let mut all: Vec<IpAddr> = addresses
                        .iter()
                        .map(|address| address.ip().to_canonical())
                        .collect();
                    all.sort();
                    all.dedup();
                    Ok(Finding::Addresses { addresses: all })
                }
                What::Latency { seconds } => measure::latency(to, seconds).await,
                What::Stream {
                    seconds,
                    connections,
                } => measure::stream(to, seconds, connections).await,
                What::Flood { seconds, bytes } => measure::flood(to, seconds, bytes).await,
            }
        };
        let silence = |_| Err(Problem::silence());
        let found = if is_unlimited {
            finding.await
        } else {
            timeout(share, finding).await.unwrap_or_else(silence)
        };
        match found {
            Ok(finding) => return Ok(finding),
            Err(found) => problem = found,
        }
    }
    Err(problem)
}

async fn addresses(to: &str) -> Result<Vec<SocketAddr>, Problem> {
    let unknown = |text: String| Problem::new(ProblemKind::UnknownName, text);
    let found: Vec<SocketAddr> = lookup_host(to)
        .await
        .map_err(|error| unknown(error.to_string()))?
        .collect();
    if found.is_empty() {
        Err(unknown("the name has no address".to_owned()))
    } else {
        Ok(found)
    }
}

async fn line(stream: &mut BufReader<TcpStream>) -> io::Result<Identity> {
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the connection was closed without an answer",
        ));
    }
    serde_json::from_str(&line).map_err(|_| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "the answer is not that of a probe server",
        )
    })
}

async fn tcp(to: &Server) -> Result<Finding, Problem> {
    let stream = TcpStream::connect(to.address).await?;
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut quickest = f64::INFINITY;
    let mut by = None;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        stream.write_all(to.request("who\n").as_bytes()).await?;
        by = Some(line(&mut stream).await?);
        quickest = quickest.min(start.elapsed().as_secs_f64() * 1000.0);
    }
    by.map(|by| Finding::Answered {
        by,
        millis: quickest,
    })
    .ok_or_else(Problem::silence)
}

async fn bulk(to: &Server, bytes: u64) -> Result<Finding, Problem> {
    let start = Instant::now();
    let mut stream = BufReader::new(TcpStream::connect(to.address).await?);
    stream
        .write_all(to.request(&format!("bulk {bytes}\n")).as_bytes())
        .await?;
    pattern::send(&mut stream, bytes).await?;
    let by = line(&mut stream).await?;
    pattern::receive(&mut stream, bytes).await?;
    Ok(Finding::Answered {
        by,
        millis: start.elapsed().as_secs_f64() * 1000.0,
    })
}

async fn udp(to: &Server, bytes: usize) -> Result<Finding, Problem> {
    let socket = datagram::connect(to.address).await?;
    let start = Instant::now();
    let by = datagram::exchange(&socket, to, bytes).await?;
    Ok(Finding::Answered {
        by,
        millis: start.elapsed().as_secs_f64() * 1000.0,
    })
}

#[cfg(test)]
mod tests;
