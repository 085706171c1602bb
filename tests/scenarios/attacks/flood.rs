//! Requests at full speed, over many connections, and how they were answered.

use std::{
    collections::BTreeMap,
    fmt,
    path::Path,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use futures::io::{copy, sink};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use liqo_tests::Measurement;
use serde_json::Value;
use tokio::task::JoinSet;

/// Length of an attack, and of the calm time before it.
const LENGTH: Duration = Duration::from_secs(5);
/// The same in a run that measures the attack.
const MEASURED_LENGTH: Duration = Duration::from_secs(40);
/// An answer that takes longer is given up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// For a request without an answer.
pub const NO_ANSWER: u16 = 0;

/// The length of this attack in this run.
pub fn length(attack: Measurement) -> Result<Duration> {
    attack.choose(LENGTH, MEASURED_LENGTH)
}

/// Whether the attacker has the right to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    Has,
    HasNot,
}

/// How many requests were answered with each status code. All kinds of success count as 200.
#[derive(Debug)]
pub struct Answers {
    begun: Instant,
    counts: Mutex<BTreeMap<(Right, u16), u64>>,
}

impl Answers {
    pub fn new() -> Self {
        Self {
            begun: Instant::now(),
            counts: Mutex::default(),
        }
    }

    pub fn add(&self, right: Right, code: u16) {
        *self
            .counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry((right, code))
            .or_default() += 1;
    }

    /// How many requests with or without a right were answered with one of these codes.
    pub fn count(&self, right: Right, codes: impl Fn(u16) -> bool) -> u64 {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts
            .iter()
            .filter(|((of, code), _)| *of == right && codes(*code))
            .map(|(_, count)| count)
            .sum()
    }
}

/// Requests a second, for a table.
impl fmt::Display for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.begun.elapsed().as_secs_f64();
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        for ((right, code), count) in counts.iter() {
            let right = if *right == Right::Has {
                "with"
            } else {
                "without"
            };
            let code = if *code == NO_ANSWER {
                "no answer".to_owned()
            } else {
                code.to_string()
            };
            let rate = f64::from(u32::try_from(*count).unwrap_or(u32::MAX)) / seconds;
            writeln!(
                f,
                "  requests {right} a right, answered with {code}: {count}, {rate:.1} a second"
            )?;
        }
        Ok(())
    }
}

/// A client with connections of its own, which sends each request once.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let mut config = Config::from_custom_kubeconfig(
        Kubeconfig::read_from(kubeconfig)?,
        &KubeConfigOptions::default(),
    )
    .await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// A request to an API server.
pub fn request(method: &str, path: &str, body: Option<&Value>) -> Result<http::Request<Vec<u8>>> {
    let kind = if method == "PATCH" {
        "application/merge-patch+json"
    } else {
        "application/json"
    };
    let body = body
        .map(serde_json::to_vec)
        .transpose()?
        .unwrap_or_default();
    Ok(http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", kind)
        .body(body)?)
}

/// Sends a request, reads the answer to its end without keeping it, and returns the status code.
pub async fn send(client: &Client, request: http::Request<Vec<u8>>) -> u16 {
    let answered = tokio::time::timeout(ANSWER_TIMEOUT, async {
        match client.request_stream(request).await {
            Ok(answer) => copy(answer, &mut sink()).await.map_or(NO_ANSWER, |_| 200),
            Err(kube::Error::Api(status)) => status.code,
            Err(_) => NO_ANSWER,
        }
    });
    answered.await.unwrap_or(NO_ANSWER)
}

/// Waits until all tasks of an attack have ended. Fails if one failed.
pub async fn end(mut tasks: JoinSet<Result<()>>) -> Result<()> {
    while let Some(task) = tasks.join_next().await {
        task.context("a task of the attack")??;
    }
    Ok(())
}
