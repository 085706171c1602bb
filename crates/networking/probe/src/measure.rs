//! Measures latency and throughput, over TCP and UDP.

use std::{
    io,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};

use crate::{AnswerProblem, AskedServer, MeasuredAnswer, datagram, pattern};

/// Timeout of the server's answer.
const TIMEOUT: Duration = Duration::from_secs(10);

fn bounded_period(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds)
        .unwrap_or(Duration::from_secs(1))
        .min(Duration::from_mins(10))
}

/// Measures round trips on one connection for this time.
pub async fn measure_latency(
    to: &AskedServer,
    seconds: f64,
) -> Result<MeasuredAnswer, AnswerProblem> {
    let stream = timeout(TIMEOUT, TcpStream::connect(to.address))
        .await
        .map_err(|_| AnswerProblem::no_answer())??;
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut times = Vec::new();
    let end = Instant::now() + bounded_period(seconds);
    let question = to.with_token("who\n");
    let mut line = String::new();
    while Instant::now() < end || times.is_empty() {
        let start = Instant::now();
        stream.write_all(question.as_bytes()).await?;
        line.clear();
        let read = timeout(TIMEOUT, stream.read_line(&mut line))
            .await
            .map_err(|_| AnswerProblem::no_answer())??;
        if read == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        times.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    let [p50, p99] =
        [50, 99].map(|hundredths| times[(times.len() * hundredths / 100).min(times.len() - 1)]);
    Ok(MeasuredAnswer::Latency {
        p50,
        p99,
        count: times.len(),
    })
}

/// Sends as much as possible on this number of connections.
pub async fn measure_streams(
    to: &AskedServer,
    seconds: f64,
    connections: usize,
) -> Result<MeasuredAnswer, AnswerProblem> {
    let begin = Instant::now();
    let end = begin + bounded_period(seconds);
    let mut senders = JoinSet::new();
    for _ in 0..connections.clamp(1, 64) {
        senders.spawn(send_until(to.clone(), end));
    }
    let (mut bytes, mut sent) = (0, 0);
    while let Some(sender) = senders.join_next().await {
        let (arrived, written) = sender.map_err(io::Error::other)??;
        bytes += arrived;
        sent += written;
    }
    Ok(MeasuredAnswer::Carried {
        bytes,
        seconds: begin.elapsed().as_secs_f64(),
        sent,
    })
}

async fn send_until(to: AskedServer, end: Instant) -> io::Result<(u64, u64)> {
    let mut stream = timeout(TIMEOUT, TcpStream::connect(to.address)).await??;
    let mut buffer = vec![0; pattern::CHUNK];
    pattern::fill_pattern(0, &mut buffer);
    stream.write_all(to.with_token("sink\n").as_bytes()).await?;
    let mut sent = 0;
    while Instant::now() < end {
        // A connection that is stuck must not block the end.
        match timeout(TIMEOUT, stream.write(&buffer)).await?? {
            0 => break,
            written => sent += written as u64,
        }
    }
    stream.shutdown().await?;
    let mut line = String::new();
    timeout(TIMEOUT, BufReader::new(stream).read_line(&mut line)).await??;
    let arrived = line
        .trim()
        .parse()
        .map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    Ok((arrived, sent))
}

/// Sends datagrams as fast as possible, and asks how many arrived.
pub async fn measure_flood(
    to: &AskedServer,
    seconds: f64,
    bytes: usize,
) -> Result<MeasuredAnswer, AnswerProblem> {
    let socket = datagram::connect_socket(to.address).await?;
    let number = datagram::new_nonce();
    let packet = datagram::padded_datagram(&to.with_token(&format!("flood {number}")), bytes);
    let begin = Instant::now();
    let end = begin + bounded_period(seconds);
    let mut sent = 0;
    while Instant::now() < end {
        for _ in 0..32 {
            // A full queue counts as loss.
            if let Ok(written) = socket.send(&packet).await {
                sent += written as u64;
            }
        }
        tokio::task::yield_now().await;
    }
    let seconds = begin.elapsed().as_secs_f64();
    // Wait for datagrams under way.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let question = datagram::padded_datagram(
        &to.with_token(&format!("count {number}")),
        datagram::MIN_LEN,
    );
    for _ in 0..5 {
        socket.send(&question).await?;
        if let Ok(answer) = timeout(
            Duration::from_secs(1),
            datagram::await_answer(&socket, &number),
        )
        .await
        {
            let bytes = answer?
                .trim()
                .parse()
                .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
            return Ok(MeasuredAnswer::Carried {
                bytes,
                seconds,
                sent,
            });
        }
    }
    Err(AnswerProblem::no_answer())
}
