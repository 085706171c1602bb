//! Carries datagrams between a connection and the tunnel, within limits.
//!
//! Only datagrams with the shape of a WireGuard message pass. A connection ends after
//! [`PROOF_TIMEOUT`] if the tunnel does not answer on it, and after [`IDLE_TIMEOUT`] if it is
//! silent or stuck. When TCP is slow, the oldest datagrams of a small queue are dropped. The server
//! limits the number of connections; the oldest one on which the tunnel has not answered yet makes
//! room for a new one.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::{Buf as _, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::UdpSocket,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::{
    frames::{Frames, MAX_DATAGRAM_LEN},
    queue::DatagramQueue,
};
use crate::message;

/// Within this time the tunnel must have answered, and the other side must have sent a datagram.
pub const PROOF_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection ends when the other side sends no datagram for this long. Tunnels send something
/// every few seconds.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct RelayTraffic {
    /// The tunnel on this machine answered, so it knows the other side.
    pub(super) is_proven: AtomicBool,
    /// Datagrams that were dropped because TCP was too slow, on all connections.
    pub(super) dropped: Arc<AtomicU64>,
}

impl RelayTraffic {
    pub(super) fn new(dropped: &Arc<AtomicU64>) -> Self {
        Self {
            is_proven: AtomicBool::default(),
            dropped: dropped.clone(),
        }
    }
}

/// Carries datagrams between the tunnel, which `udp` is connected to, and the other side, until one
/// of them is gone.
pub(super) async fn carry_datagrams(
    stream: impl AsyncRead + AsyncWrite,
    udp: &UdpSocket,
    traffic: &RelayTraffic,
) -> io::Result<()> {
    let (reader, writer) = tokio::io::split(stream);
    let unproven = async {
        sleep(PROOF_TIMEOUT).await;
        if traffic.is_proven.load(Relaxed) {
            std::future::pending::<()>().await;
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the tunnel on this machine does not answer",
        ))
    };
    tokio::select! {
        ended = from_stream(reader, udp) => ended,
        ended = to_stream(udp, writer, traffic, IDLE_TIMEOUT) => ended,
        ended = unproven => ended,
    }
}

/// Only complete datagrams count as signs of life.
async fn from_stream(mut stream: impl AsyncRead + Unpin, udp: &UdpSocket) -> io::Result<()> {
    let mut frames = Frames::default();
    let mut deadline = Instant::now() + PROOF_TIMEOUT;
    loop {
        let received = timeout_at(deadline, stream.read_buf(frames.space()))
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the other side is silent"))??;
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while let Some(datagram) = frames.next()? {
            deadline = Instant::now() + IDLE_TIMEOUT;
            // The tunnel may be restarting: the datagram is lost, as on any link.
            let _ = udp.try_send(&datagram);
        }
    }
}

/// A peer that accepts none of the waiting data for `timeout` is gone, even if it still sends.
async fn to_stream(
    udp: &UdpSocket,
    mut stream: impl AsyncWrite + Unpin,
    traffic: &RelayTraffic,
    timeout: Duration,
) -> io::Result<()> {
    let (mut queue, mut batch, mut is_flushed) = (DatagramQueue::default(), BytesMut::new(), true);
    let mut buffer = vec![0; MAX_DATAGRAM_LEN];
    let mut last_progress = Instant::now();
    loop {
        if batch.is_empty() {
            queue.fill_batch(&mut batch);
        }
        let is_waiting = !(batch.is_empty() && is_flushed);
        tokio::select! {
            readable = udp.readable() => {
                readable?;
                take_datagrams(udp, &mut buffer, &mut queue, traffic);
                if !is_waiting {
                    last_progress = Instant::now();
                }
            }
            written = write_or_flush(&mut stream, &batch), if is_waiting => {
                is_flushed = batch.is_empty();
                batch.advance(written?);
                last_progress = Instant::now();
            }
            () = sleep_until(last_progress + timeout), if is_waiting => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the other side accepts no data"));
            }
        }
    }
}

/// Writes a part of the batch, or flushes if the batch is empty. Cancel safe.
async fn write_or_flush(stream: &mut (impl AsyncWrite + Unpin), batch: &[u8]) -> io::Result<usize> {
    if batch.is_empty() {
        return stream.flush().await.map(|()| 0);
    }
    match stream.write(batch).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        length => Ok(length),
    }
}

/// Queues some of the datagrams that the tunnel sent.
fn take_datagrams(
    udp: &UdpSocket,
    buffer: &mut [u8],
    queue: &mut DatagramQueue,
    traffic: &RelayTraffic,
) {
    for _ in 0..64 {
        match udp.try_recv(buffer) {
            Ok(length) => {
                let Some(datagram) = buffer.get(..length) else {
                    continue;
                };
                if message::proves_known_remote(datagram) {
                    traffic.is_proven.store(true, Relaxed);
                }
                traffic.dropped.fetch_add(queue.push(datagram), Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            // ICMP refused an earlier datagram: the tunnel is not running at the moment.
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_connection_that_accepts_nothing_ends_and_an_unused_one_does_not() {
        let idle_timeout = Duration::from_millis(100);
        let [tunnel, udp] = [
            UdpSocket::bind("127.0.0.1:0").await.unwrap(),
            UdpSocket::bind("127.0.0.1:0").await.unwrap(),
        ];
        udp.connect(tunnel.local_addr().unwrap()).await.unwrap();
        let (near, _far) = tokio::io::duplex(1000);
        let traffic = RelayTraffic::default();
        let carries = to_stream(&udp, near, &traffic, idle_timeout);
        tokio::pin!(carries);
        assert!(
            timeout(3 * idle_timeout, &mut carries).await.is_err(),
            "nothing was sent"
        );
        for _ in 0..4 {
            tunnel
                .send_to(&[4; 500], udp.local_addr().unwrap())
                .await
                .unwrap();
        }
        let begun = Instant::now();
        let ended = timeout(100 * idle_timeout, &mut carries).await.unwrap();
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= idle_timeout, "it ended too early");
    }
}
