//! To and fro between a connection and the tunnel.

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
    IDLE, PROOF,
    frames::{Frames, LARGEST},
    queue::Queue,
};
use crate::tunnel::message;

/// What passed.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    /// The tunnel here took the other side for one that it knows.
    pub(super) is_proven: AtomicBool,
    /// Datagrams that TCP was too slow for, on this connection and others.
    pub(super) dropped: Arc<AtomicU64>,
}

impl Traffic {
    /// Nothing yet; drops are counted here.
    pub(super) fn new(dropped: &Arc<AtomicU64>) -> Self {
        Self { is_proven: AtomicBool::default(), dropped: dropped.clone() }
    }
}

/// Carries datagrams between the tunnel, which `udp` is connected to, and the other side, until one of them is not there any more.
pub(super) async fn carry(stream: impl AsyncRead + AsyncWrite, udp: &UdpSocket, traffic: &Traffic) -> io::Result<()> {
    let (reader, writer) = tokio::io::split(stream);
    let unproven = async {
        sleep(PROOF).await;
        if traffic.is_proven.load(Relaxed) {
            std::future::pending::<()>().await;
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "the tunnel here does not answer"))
    };
    tokio::select! {
        ended = from_stream(reader, udp) => ended,
        ended = to_stream(udp, writer, traffic, IDLE) => ended,
        ended = unproven => ended,
    }
}

/// Only whole datagrams count as something that was heard.
async fn from_stream(mut stream: impl AsyncRead + Unpin, udp: &UdpSocket) -> io::Result<()> {
    let mut frames = Frames::default();
    let mut deadline = Instant::now() + PROOF;
    loop {
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the other side is silent");
        if timeout_at(deadline, stream.read_buf(frames.space())).await.map_err(late)?? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while let Some(datagram) = frames.next()? {
            deadline = Instant::now() + IDLE;
            // A tunnel that is not there at the moment takes nothing, as on any other way.
            let _ = udp.try_send(&datagram);
        }
    }
}

/// Who takes nothing for so long of what waits is not there any more, whatever it says itself.
async fn to_stream(
    udp: &UdpSocket,
    mut stream: impl AsyncWrite + Unpin,
    traffic: &Traffic,
    patience: Duration,
) -> io::Result<()> {
    let (mut queue, mut batch, mut is_flushed) = (Queue::default(), BytesMut::new(), true);
    let mut buffer = vec![0; LARGEST];
    let mut taken = Instant::now();
    loop {
        if batch.is_empty() {
            queue.fill(&mut batch);
        }
        let is_waiting = !(batch.is_empty() && is_flushed);
        tokio::select! {
            readable = udp.readable() => {
                readable?;
                take(udp, &mut buffer, &mut queue, traffic);
                if !is_waiting {
                    taken = Instant::now();
                }
            }
            written = write(&mut stream, &batch), if is_waiting => {
                is_flushed = batch.is_empty();
                batch.advance(written?);
                taken = Instant::now();
            }
            () = sleep_until(taken + patience), if is_waiting => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the other side takes nothing"));
            }
        }
    }
}

/// Writes some of what is there; with nothing there, sees to it that all before is on its way. Nothing is lost when it is not awaited
/// to its end.
async fn write(stream: &mut (impl AsyncWrite + Unpin), batch: &[u8]) -> io::Result<usize> {
    if batch.is_empty() {
        return stream.flush().await.map(|()| 0);
    }
    match stream.write(batch).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        length => Ok(length),
    }
}

/// Takes what the tunnel sent, some at a time.
fn take(udp: &UdpSocket, buffer: &mut [u8], queue: &mut Queue, traffic: &Traffic) {
    for _ in 0..64 {
        match udp.try_recv(buffer) {
            Ok(length) => {
                let datagram = &buffer[..length];
                if message::proves(datagram) {
                    traffic.is_proven.store(true, Relaxed);
                }
                traffic.dropped.fetch_add(queue.push(datagram), Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            // What was sent before was refused: nobody is there at the moment.
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_connection_that_takes_nothing_ends_and_one_that_nothing_is_sent_on_does_not() {
        let patience = Duration::from_millis(100);
        let [tunnel, udp] = [UdpSocket::bind("127.0.0.1:0").await.unwrap(), UdpSocket::bind("127.0.0.1:0").await.unwrap()];
        udp.connect(tunnel.local_addr().unwrap()).await.unwrap();
        let (near, _far) = tokio::io::duplex(1000);
        let traffic = Traffic::default();
        let carries = to_stream(&udp, near, &traffic, patience);
        tokio::pin!(carries);
        assert!(timeout(3 * patience, &mut carries).await.is_err(), "there was nothing to take");
        for _ in 0..4 {
            tunnel.send_to(&[4; 500], udp.local_addr().unwrap()).await.unwrap();
        }
        let begun = Instant::now();
        let ended = timeout(100 * patience, &mut carries).await.unwrap();
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= patience, "it got its time");
    }
}
