//! Answers questions over UDP and TCP: asks the directory, then the name servers, and translates
//! the answer back.

use std::{
    cell::Cell,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use liqo_api::ClusterId;
use liqo_controller_runtime::dns::{read_message, write_message};
use parking_lot::RwLock;
use tokio::{
    net::{TcpListener, TcpStream, UdpSocket},
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::directory::{Directory, NameDecision};
use crate::limits::{ConcurrencyLimit, LimitPermit, MaximumInProgress};
use crate::message::{
    CNAME, DomainName, Query, QueryFault, ResponseCode, TranslatedAnswer, answer_without_records,
    translate_answer,
};
use crate::metrics;
use crate::upstream::{NameServers, QuestionTransport};

/// Maximum length of a question in bytes: with EDNS, usual ones have less than 300.
const MAX_QUESTION_LEN: usize = 4096;
/// Maximum number of Services of type `ExternalName` that stand for one another in one answer.
const MAX_ALIASES: usize = 8;
/// Questions in progress. Each has a socket to a name server, and each connection is a socket, too:
/// together they stay below the usual limit of 1024 open files. One consumer never takes more than
/// 30 %, so that others are answered.
const MAX_QUESTIONS: MaximumInProgress = MaximumInProgress {
    total: 600,
    per_consumer: 180,
    per_source: 60,
};
const MAX_CONNECTIONS: MaximumInProgress = MaximumInProgress {
    total: 200,
    per_consumer: 60,
    per_source: 10,
};
/// Maximum time that a client takes for its next question over TCP, and to read an answer.
const TCP_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay after a failed read or accept: for a moment there may be no memory or no file descriptors.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Maximum times for an answer.
#[derive(Clone, Copy, Debug)]
struct Timeouts {
    /// Maximum time that a question waits until the pod that asks it is known: the watch shows a
    /// pod's address a moment after it has it.
    new_pod: Duration,
    /// With that wait and all attempts to ask a name server. Usual clients wait for five seconds.
    answer: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            new_pod: Duration::from_secs(2),
            answer: Duration::from_millis(4500),
        }
    }
}

/// The directory that the watches update.
pub struct SharedDirectory {
    directory: RwLock<Directory>,
    changed: watch::Sender<()>,
}

impl Default for SharedDirectory {
    fn default() -> Self {
        Self {
            directory: RwLock::default(),
            changed: watch::Sender::new(()),
        }
    }
}

impl SharedDirectory {
    /// Changes the directory, and lets questions that wait for a new pod look again.
    pub fn change(&self, change: impl FnOnce(&mut Directory)) {
        change(&mut self.directory.write());
        self.changed.send_replace(());
    }
}

/// Answers questions. Clones share everything.
#[derive(Clone)]
pub struct NameResolver {
    known: Arc<SharedDirectory>,
    upstream: NameServers,
    /// The domain of this cluster. Without it, no name is translated.
    domain: Option<Arc<DomainName>>,
    questions: ConcurrencyLimit,
    connections: ConcurrencyLimit,
    timeouts: Timeouts,
}

impl NameResolver {
    pub fn new(
        known: Arc<SharedDirectory>,
        upstream: NameServers,
        domain: Option<DomainName>,
    ) -> Self {
        Self {
            known,
            upstream,
            domain: domain.map(Arc::new),
            questions: ConcurrencyLimit::new(MAX_QUESTIONS),
            connections: ConcurrencyLimit::new(MAX_CONNECTIONS),
            timeouts: Timeouts::default(),
        }
    }

    /// Counts a question or connection of this address. `None` if a limit is reached.
    fn acquire_permit(
        &self,
        limit: &ConcurrencyLimit,
        what: &'static str,
        source: IpAddr,
    ) -> Option<LimitPermit> {
        let consumer = self.known.directory.read().consumer_of(source).cloned();
        limit
            .acquire_permit(source, consumer)
            .inspect_err(|reason| metrics::count_refused(what, *reason))
            .ok()
    }

    /// The answer to a message. `None` if it is not even a question.
    async fn answer(
        &self,
        source: IpAddr,
        message: &[u8],
        transport: QuestionTransport,
    ) -> Option<Vec<u8>> {
        let query = match Query::read(message) {
            Ok(query) => query,
            Err(QueryFault::Drop) => return None,
            Err(QueryFault::Answer(code)) => return Some(answer_without_records(message, code)),
        };
        let answer = timeout(
            self.timeouts.answer,
            self.answer_to(source, &query, message, transport),
        )
        .await;
        Some(
            answer
                .ok()
                .flatten()
                .unwrap_or_else(|| answer_without_records(message, ResponseCode::ServerFailure)),
        )
    }

    /// `None` if no name server answers, the answer cannot be read, or Services of type
    /// `ExternalName` stand for one another.
    async fn answer_to(
        &self,
        source: IpAddr,
        query: &Query,
        message: &[u8],
        transport: QuestionTransport,
    ) -> Option<Vec<u8>> {
        let mut aliases = Vec::new();
        let mut name = query.name.clone();
        loop {
            let target = match self.await_decision(source, &name, query).await {
                NameDecision::Alias { target } => target,
                decision => {
                    return self
                        .final_answer(decision, name, aliases, query, message, transport)
                        .await;
                }
            };
            aliases.push(std::mem::replace(&mut name, target));
            if query.kind == CNAME {
                aliases.push(name);
                let answer = translate_answer(
                    &answer_without_records(message, ResponseCode::NoError),
                    &aliases,
                    |_| None,
                )
                .ok()?;
                return Some(sized_answer(answer, query, transport));
            }
            if aliases.len() > MAX_ALIASES {
                return None;
            }
        }
    }

    /// The answer about a name, which is what the last of these aliases stands for. The first one
    /// is the name that the client asks for.
    async fn final_answer(
        &self,
        decision: NameDecision,
        name: DomainName,
        mut aliases: Vec<DomainName>,
        query: &Query,
        message: &[u8],
        transport: QuestionTransport,
    ) -> Option<Vec<u8>> {
        let asked = query.with_capped_size(message);
        let is_alias = !aliases.is_empty();
        // As the client wrote it, because some clients compare upper and lower case.
        aliases.push(name.clone());
        let translated = match decision {
            NameDecision::Unchanged => {
                let asked = if is_alias {
                    query.with_name(&asked, &name)?
                } else {
                    asked
                };
                let answer = self.upstream.ask(&asked, transport).await?;
                if self.names_hidden(None, &name, &answer) {
                    return Some(sized_answer(
                        no_such_name(message, &aliases)?,
                        query,
                        transport,
                    ));
                }
                let is_whole = transport == QuestionTransport::Tcp || answer.len() <= query.udp_len;
                if is_whole && !is_alias {
                    return Some(answer);
                }
                translate_answer(&answer, &aliases, |_| None).ok()?
            }
            NameDecision::Translate {
                name: here,
                consumer,
            } => {
                let answer = self
                    .upstream
                    .ask(&query.with_name(&asked, &here)?, transport)
                    .await?;
                if self.names_hidden(Some(&consumer), &here, &answer) {
                    return Some(sized_answer(
                        no_such_name(message, &aliases)?,
                        query,
                        transport,
                    ));
                }
                translate_answer(&answer, &aliases, |found| {
                    if *found == here {
                        Some(name.clone())
                    } else {
                        self.name_at_home(&consumer, found, &name)
                    }
                })
                .ok()?
            }
            // The cluster's DNS would answer for a namespace of the provider, or of another
            // consumer.
            NameDecision::UnknownPod | NameDecision::NoSuchName | NameDecision::Alias { .. } => {
                no_such_name(message, &aliases)?
            }
        };
        Some(sized_answer(translated, query, transport))
    }

    /// The name by which the consumer calls one that was found for the question of another name.
    fn name_at_home(
        &self,
        consumer: &ClusterId,
        found: &DomainName,
        asked: &DomainName,
    ) -> Option<DomainName> {
        let domain = self.domain.as_deref()?;
        let directory = self.known.directory.read();
        // The zone, in the SOA record of an answer without the records that the client wants.
        if found == domain {
            return directory
                .own_domain(consumer, domain)
                .filter(|own| asked.ends_with(own))
                .cloned();
        }
        directory.home_name(consumer, found, domain)
    }

    /// Whether the name of an address is one that pods of this consumer do not know: otherwise they
    /// would learn the names of all Services from their addresses. An answer that cannot be read
    /// names nothing.
    fn names_hidden(&self, consumer: Option<&ClusterId>, name: &DomainName, answer: &[u8]) -> bool {
        let Some(domain) = self.domain.as_deref().filter(|_| name.is_reverse()) else {
            return false;
        };
        let directory = self.known.directory.read();
        let is_hidden = Cell::new(false);
        let translated = translate_answer(answer, &[], |found| {
            is_hidden.set(is_hidden.get() || !directory.is_visible(consumer, found, domain));
            None
        });
        translated.is_ok() && is_hidden.get()
    }

    /// Waits a moment for a new pod to be known.
    async fn await_decision(
        &self,
        source: IpAddr,
        name: &DomainName,
        query: &Query,
    ) -> NameDecision {
        let Some(domain) = self.domain.as_deref() else {
            return NameDecision::Unchanged;
        };
        if !query.is_simple {
            // Its name cannot be replaced.
            let directory = self.known.directory.read();
            let is_visible = !name.is_reverse()
                && directory.is_visible(directory.consumer_of(source), name, domain);
            return if is_visible {
                NameDecision::Unchanged
            } else {
                NameDecision::NoSuchName
            };
        }
        let deadline = Instant::now() + self.timeouts.new_pod;
        let mut changes = self.known.changed.subscribe();
        loop {
            let decision = {
                let directory = self.known.directory.read();
                let decision = directory.decide(source, name, query.kind, domain);
                if decision != NameDecision::UnknownPod
                    || !directory.may_wait(source, Instant::now().into_std())
                {
                    return decision;
                }
                decision
            };
            if !matches!(timeout_at(deadline, changes.changed()).await, Ok(Ok(()))) {
                self.known
                    .directory
                    .write()
                    .note_wait(source, Instant::now().into_std());
                return decision;
            }
        }
    }

    /// Answers at this socket until `stop`.
    pub async fn serve_udp(self, socket: UdpSocket, stop: CancellationToken) {
        let socket = Arc::new(socket);
        let mut buffer = vec![0; MAX_QUESTION_LEN + 1];
        while let Some(received) = stop
            .run_until_cancelled(socket.recv_from(&mut buffer))
            .await
        {
            let (length, client) = match received {
                Ok(received) => received,
                Err(error) => {
                    tracing::debug!(%error, "cannot receive a question");
                    sleep(RETRY_DELAY).await;
                    continue;
                }
            };
            let Some(question) = buffer
                .get(..length)
                .filter(|question| question.len() <= MAX_QUESTION_LEN)
            else {
                continue;
            };
            // A client over its limit gets no answer and asks again.
            let Some(permit) = self.acquire_permit(&self.questions, "question", client.ip()) else {
                continue;
            };
            let (resolver, socket, message) = (self.clone(), socket.clone(), question.to_vec());
            tokio::spawn(async move {
                if let Some(answer) = resolver
                    .answer(client.ip(), &message, QuestionTransport::Udp)
                    .await
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
                    if let Some(permit) =
                        self.acquire_permit(&self.connections, "connection", client.ip())
                    {
                        tokio::spawn(self.clone().serve_connection(stream, client, permit));
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    async fn serve_connection(
        self,
        mut stream: TcpStream,
        client: SocketAddr,
        permit: LimitPermit,
    ) {
        if let Err(error) = self.questions_of(&mut stream, client.ip()).await {
            tracing::debug!(%client, %error, "a connection ended");
        }
        drop(permit);
    }

    /// Answers one question after another until the client closes the connection, is silent, or
    /// sends something else.
    async fn questions_of(&self, stream: &mut TcpStream, source: IpAddr) -> io::Result<()> {
        loop {
            let message = timeout(TCP_TIMEOUT, read_message(stream, MAX_QUESTION_LEN)).await??;
            let Some(permit) = self.acquire_permit(&self.questions, "question", source) else {
                return Ok(());
            };
            let Some(answer) = self.answer(source, &message, QuestionTransport::Tcp).await else {
                return Ok(());
            };
            // A client that reads slowly takes no more than a connection.
            drop(permit);
            timeout(TCP_TIMEOUT, write_message(stream, &answer)).await??;
        }
    }
}

/// The answer that there is no such name.
fn no_such_name(message: &[u8], aliases: &[DomainName]) -> Option<TranslatedAnswer> {
    translate_answer(
        &answer_without_records(message, ResponseCode::NoSuchName),
        aliases,
        |_| None,
    )
    .ok()
}

/// As much of an answer as fits.
fn sized_answer(answer: TranslatedAnswer, query: &Query, transport: QuestionTransport) -> Vec<u8> {
    match transport {
        QuestionTransport::Udp => answer.fitting_message(query.udp_len),
        QuestionTransport::Tcp => answer.whole_message(),
    }
}

#[cfg(test)]
mod tests;
