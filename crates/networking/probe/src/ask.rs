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
    AnswerProblem, AskRequest, AskedQuestion, AskedServer, MeasuredAnswer, ProblemKind,
    QuestionKind, QuestionReport, ServerIdentity, datagram, measure, path, pattern,
};

/// Maximum number of attempts for a short question.
const ATTEMPTS: usize = 3;
/// Questions on one TCP connection. The fastest answer counts: the first ones may be slowed down by
/// sleeping CPUs.
const ROUNDS: usize = 3;

/// Asks all questions. The receiver yields the reports in the order in which they are finished.
pub fn ask_questions(request: AskRequest) -> mpsc::UnboundedReceiver<QuestionReport> {
    let (reports, found) = mpsc::unbounded_channel();
    let permits = Arc::new(Semaphore::new(request.at_once.clamp(1, 64)));
    let time_limit = Duration::from_millis(request.timeout_millis);
    for (number, question) in request.questions.into_iter().enumerate() {
        let (reports, permits, token) = (reports.clone(), permits.clone(), request.token.clone());
        tokio::spawn(async move {
            let _permit = permits.acquire().await;
            let outcome = find_out(&question, token.as_ref(), time_limit).await;
            // The receiver may be gone.
            let _ = reports.send(QuestionReport {
                question: number,
                outcome,
            });
        });
    }
    found
}

async fn find_out(
    question: &AskedQuestion,
    token: Option<&String>,
    time_limit: Duration,
) -> Result<MeasuredAnswer, AnswerProblem> {
    let short = !matches!(
        question.what,
        QuestionKind::Bulk { .. }
            | QuestionKind::Latency { .. }
            | QuestionKind::Stream { .. }
            | QuestionKind::Flood { .. }
    );
    let attempts = if short { ATTEMPTS } else { 1 };
    let mut problem = AnswerProblem::no_answer();
    for _ in 0..attempts {
        match ask_once(question, token, time_limit).await {
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

async fn ask_once(
    question: &AskedQuestion,
    token: Option<&String>,
    time_limit: Duration,
) -> Result<MeasuredAnswer, AnswerProblem> {
    let addresses = timeout(time_limit, resolve_addresses(&question.to))
        .await
        .unwrap_or_else(|_| Err(AnswerProblem::no_answer()))?;
    first_answer(&addresses, &question.what, token, time_limit).await
}

/// Asks these addresses one after the other until one answers, as other programs do.
async fn first_answer(
    addresses: &[SocketAddr],
    what: &QuestionKind,
    token: Option<&String>,
    time_limit: Duration,
) -> Result<MeasuredAnswer, AnswerProblem> {
    let is_unlimited = matches!(
        what,
        QuestionKind::Latency { .. }
            | QuestionKind::Stream { .. }
            | QuestionKind::Flood { .. }
            | QuestionKind::Path { .. }
    );
    let share = time_limit / u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    let mut problem = AnswerProblem::no_answer();
    for address in addresses {
        let to = &AskedServer {
            address: *address,
            token: token.cloned(),
        };
        let finding = async {
            match *what {
                QuestionKind::Tcp => ask_tcp(to).await,
                QuestionKind::Udp { bytes } => ask_udp(to, bytes).await,
                QuestionKind::Bulk { bytes } => ask_bulk(to, bytes).await,
                QuestionKind::Path { largest } => path::find_path_mtu(to, largest).await,
                QuestionKind::Resolve => {
                    let mut all: Vec<IpAddr> = addresses
                        .iter()
                        .map(|address| address.ip().to_canonical())
                        .collect();
                    all.sort();
                    all.dedup();
                    Ok(MeasuredAnswer::Addresses { addresses: all })
                }
                QuestionKind::Latency { seconds } => measure::measure_latency(to, seconds).await,
                QuestionKind::Stream {
                    seconds,
                    connections,
                } => measure::measure_streams(to, seconds, connections).await,
                QuestionKind::Flood { seconds, bytes } => {
                    measure::measure_flood(to, seconds, bytes).await
                }
            }
        };
        let found = if is_unlimited {
            finding.await
        } else {
            timeout(share, finding)
                .await
                .unwrap_or_else(|_| Err(AnswerProblem::no_answer()))
        };
        match found {
            Ok(finding) => return Ok(finding),
            Err(found) => problem = found,
        }
    }
    Err(problem)
}

async fn resolve_addresses(to: &str) -> Result<Vec<SocketAddr>, AnswerProblem> {
    let found: Vec<SocketAddr> = lookup_host(to)
        .await
        .map_err(|error| AnswerProblem::new(ProblemKind::UnknownName, error.to_string()))?
        .collect();
    if found.is_empty() {
        let text = "the name has no address".to_owned();
        Err(AnswerProblem::new(ProblemKind::UnknownName, text))
    } else {
        Ok(found)
    }
}

async fn read_identity(stream: &mut BufReader<TcpStream>) -> io::Result<ServerIdentity> {
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

async fn ask_tcp(to: &AskedServer) -> Result<MeasuredAnswer, AnswerProblem> {
    let stream = TcpStream::connect(to.address).await?;
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut quickest = f64::INFINITY;
    let mut by = None;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        stream.write_all(to.with_token("who\n").as_bytes()).await?;
        by = Some(read_identity(&mut stream).await?);
        quickest = quickest.min(start.elapsed().as_secs_f64() * 1000.0);
    }
    by.map(|by| MeasuredAnswer::Answered {
        by,
        millis: quickest,
    })
    .ok_or_else(AnswerProblem::no_answer)
}

async fn ask_bulk(to: &AskedServer, bytes: u64) -> Result<MeasuredAnswer, AnswerProblem> {
    let start = Instant::now();
    let mut stream = BufReader::new(TcpStream::connect(to.address).await?);
    stream
        .write_all(to.with_token(&format!("bulk {bytes}\n")).as_bytes())
        .await?;
    pattern::send_pattern(&mut stream, bytes).await?;
    let by = read_identity(&mut stream).await?;
    pattern::receive_pattern(&mut stream, bytes).await?;
    Ok(MeasuredAnswer::Answered {
        by,
        millis: start.elapsed().as_secs_f64() * 1000.0,
    })
}

async fn ask_udp(to: &AskedServer, bytes: usize) -> Result<MeasuredAnswer, AnswerProblem> {
    let socket = datagram::connect_socket(to.address).await?;
    let start = Instant::now();
    let by = datagram::ask_identity(&socket, to, bytes).await?;
    Ok(MeasuredAnswer::Answered {
        by,
        millis: start.elapsed().as_secs_f64() * 1000.0,
    })
}

#[cfg(test)]
mod tests;
