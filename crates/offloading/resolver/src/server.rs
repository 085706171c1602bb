//! Answers questions over UDP and TCP.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use parking_lot::RwLock;
use tokio::{
    net::{TcpListener, TcpStream, UdpSocket},
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::directory::{Decision, Directory};
use crate::limits::{Limit, Permit};
use crate::message::{Fault, Name, Query, ResponseCode, refusal, translate};
use crate::upstream::{Transport, Upstream, read_message, write_message};

/// Maximum length of a question in bytes: with EDNS, usual ones have less than 300.
const MAX_QUESTION_LEN: usize = 4096;
/// Questions in progress, in sum and of one address.
const MAX_QUESTIONS: (usize, usize) = (1000, 100);
/// TCP connections, in sum and of one address.
const MAX_CONNECTIONS: (usize, usize) = (200, 10);
/// How long a client may take for its next question over TCP, and to read an answer.
const TCP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a question waits until the pod that asks it is known: the watch shows a pod's address a moment after it has it.
const NEW_POD_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay after a failed read or accept: for a moment there may be no memory or no file descriptors.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// What the watches tell the servers.
pub struct Known {
    directory: RwLock<Directory>,
    changed: watch::Sender<()>,
}

impl Default for Known {
    fn default() -> Self {
        Self { directory: RwLock::default(), changed: watch::Sender::new(()) }
    }
}

impl Known {
    /// Changes the directory, and lets questions that wait for a new pod look again.
    pub fn change(&self, change: impl FnOnce(&mut Directory)) {
        change(&mut self.directory.write());
        self.changed.send_replace(());
    }
}

/// Answers questions. Clones share everything.
#[derive(Clone)]
pub struct Resolver {
    known: Arc<Known>,
    upstream: Upstream,
    /// The domain of this cluster. Without it, no name is translated.
    domain: Option<Arc<Name>>,
    questions: Limit,
    connections: Limit,
}

impl Resolver {
    pub fn new(known: Arc<Known>, upstream: Upstream, domain: Option<Name>) -> Self {
        Self {
            known,
            upstream,
            domain: domain.map(Arc::new),
            questions: Limit::new(MAX_QUESTIONS.0, MAX_QUESTIONS.1),
            connections: Limit::new(MAX_CONNECTIONS.0, MAX_CONNECTIONS.1),
        }
    }

    /// The answer to a message. `None` if it is not even a question.
    async fn answer(&self, source: IpAddr, message: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let query = match Query::read(message) {
            Ok(query) => query,
            Err(Fault::Drop) => return None,
            Err(Fault::Answer(code)) => return Some(refusal(message, code)),
        };
        let failure = || refusal(message, ResponseCode::ServerFailure);
        Some(match self.decision(source, &query).await {
            Decision::Unchanged | Decision::UnknownPod => self.upstream.ask(message, transport).await.unwrap_or_else(failure),
            Decision::TooLong => refusal(message, ResponseCode::NoSuchName),
            Decision::Translate { name, consumer } => {
                let at_home = |here: &Name| {
                    let domain = self.domain.as_deref()?;
                    // As the client wrote it, because some clients compare upper and lower case.
                    if *here == name {
                        return Some(query.name.clone());
                    }
                    self.known.directory.read().at_home(&consumer, here, domain)
                };
                let answer = self.upstream.ask(&query.with_name(message, &name), transport).await;
                match answer.and_then(|answer| translate(&answer, at_home).ok()) {
                    Some(translated) if transport == Transport::Udp => translated.fitting(query.udp_len),
                    Some(translated) => translated.whole(),
                    None => failure(),
                }
            }
        })
    }

    /// Waits a moment for a new pod to be known.
    async fn decision(&self, source: IpAddr, query: &Query) -> Decision {
        let Some(domain) = self.domain.as_deref().filter(|_| query.is_simple) else { return Decision::Unchanged };
        let deadline = Instant::now() + NEW_POD_TIMEOUT;
        let mut changes = self.known.changed.subscribe();
        loop {
            let decision = self.known.directory.read().decide(source, &query.name, query.kind, domain);
            if decision != Decision::UnknownPod || !matches!(timeout_at(deadline, changes.changed()).await, Ok(Ok(()))) {
                return decision;
            }
        }
    }

    /// Answers at this socket until `stop`.
    pub async fn serve_udp(self, socket: UdpSocket, stop: CancellationToken) {
        let socket = Arc::new(socket);
        let mut buffer = vec![0; MAX_QUESTION_LEN + 1];
        while let Some(received) = stop.run_until_cancelled(socket.recv_from(&mut buffer)).await {
            let (length, client) = match received {
                Ok(received) => received,
                Err(error) => {
                    tracing::debug!(%error, "cannot receive a question");
                    sleep(RETRY_DELAY).await;
                    continue;
                }
            };
            // Who asks too much asks again later.
            let Some(permit) = self.questions.enter(client.ip()).filter(|_| length <= MAX_QUESTION_LEN) else { continue };
            let (resolver, socket, message) = (self.clone(), socket.clone(), buffer[..length].to_vec());
            tokio::spawn(async move {
                if let Some(answer) = resolver.answer(client.ip(), &message, Transport::Udp).await
                    && let Err(error) = socket.send_to(&answer, client).await
                {
                    tracing::debug!(%client, %error, "cannot send an answer");
                }
                drop(permit);
            });
        }
    }

    /// Answers at this listener until `stop`.
    pub async fn serve_tcp(self, listener: TcpListener, stop: CancellationToken) {
        while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((stream, client)) => {
                    if let Some(permit) = self.connections.enter(client.ip()) {
                        tokio::spawn(self.clone().connection(stream, client, permit));
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    async fn connection(self, mut stream: TcpStream, client: SocketAddr, permit: Permit) {
        if let Err(error) = self.questions_of(&mut stream, client.ip()).await {
            tracing::debug!(%client, %error, "a connection ended");
        }
        drop(permit);
    }

    /// Answers one question after another until the client closes the connection, is silent, or sends something else.
    async fn questions_of(&self, stream: &mut TcpStream, source: IpAddr) -> io::Result<()> {
        loop {
            let message = timeout(TCP_TIMEOUT, read_message(stream, MAX_QUESTION_LEN)).await??;
            let Some(_permit) = self.questions.enter(source) else { return Ok(()) };
            let Some(answer) = self.answer(source, &message, Transport::Tcp).await else { return Ok(()) };
            timeout(TCP_TIMEOUT, write_message(stream, &answer)).await??;
        }
    }
}

#[cfg(test)]
mod tests;
