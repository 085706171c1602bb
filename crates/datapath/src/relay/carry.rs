//! To and fro between a connection and the tunnel.

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use bytes::{Buf as _, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::UdpSocket,
    time::{Instant, sleep, timeout_at},
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
    /// Datagrams that TCP was too slow for.
    pub(super) dropped: AtomicU64,
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
        ended = to_stream(udp, writer, traffic) => ended,
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

async fn to_stream(udp: &UdpSocket, mut stream: impl AsyncWrite + Unpin, traffic: &Traffic) -> io::Result<()> {
    let (mut queue, mut batch, mut is_flushed) = (Queue::default(), BytesMut::new(), true);
    let mut buffer = vec![0; LARGEST];
    loop {
        if batch.is_empty() {
            queue.fill(&mut batch);
        }
        tokio::select! {
            readable = udp.readable() => {
                readable?;
                take(udp, &mut buffer, &mut queue, traffic);
            }
            written = write(&mut stream, &batch), if !(batch.is_empty() && is_flushed) => {
                is_flushed = batch.is_empty();
                batch.advance(written?);
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
