//! Runs the controllers of a simulated cluster: after each change it calls `cluster::decide`, and
//! sends the writes that it returns to the API server.

use std::{sync::Arc, time::Duration};

use http::Method;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    ApiServer, Key, User,
    api_server::Store,
    cluster::{self, Memory, Objects, Settings, Write},
    random::Draws,
};

/// The controllers react to a change after a time between these two, and look at all changes within
/// it together.
const REACTION: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));
/// How long the controllers wait after writes that all failed, at first and at most.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_mins(5);
/// Longer than any wait for a time that an object names.
const IDLE: Duration = Duration::from_hours(1);

impl Objects for Store {
    fn list(&self, resource: &str, namespace: &str) -> Vec<Arc<Value>> {
        self.list(resource, namespace)
            .map(|(_, object)| object.clone())
            .collect()
    }

    fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.get(&Key {
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
        .cloned()
    }

    fn resources(&self) -> Vec<String> {
        self.resources().map(str::to_owned).collect()
    }

    fn ownership(&self) -> u64 {
        self.ownership()
    }

    fn changed(&self, resource: &str) -> u64 {
        self.changed(resource)
    }
}

/// The settings of a cluster that runs: they stay as they are, or who holds the sender changes
/// them.
pub struct LiveSettings(watch::Receiver<Settings>);

impl From<Settings> for LiveSettings {
    fn from(settings: Settings) -> Self {
        Self(watch::channel(settings).1)
    }
}

impl From<watch::Receiver<Settings>> for LiveSettings {
    fn from(settings: watch::Receiver<Settings>) -> Self {
        Self(settings)
    }
}

/// Runs the controllers until `stop`. `settings` are [`Settings`], or a receiver of them.
pub async fn run(server: ApiServer, settings: impl Into<LiveSettings>, stop: CancellationToken) {
    let LiveSettings(mut settings) = settings.into();
    let controllers = User::administrator();
    let mut draws = Draws::new(server.draw());
    let mut memory = Memory::default();
    let mut retry = RETRY;
    loop {
        let changed = server.changed();
        let now = server.now();
        let current = settings.borrow_and_update().clone();
        let (writes, next) =
            server.read(|objects| cluster::decide(objects, now, &current, &mut memory));
        let count = writes.len();
        // All are made, whatever becomes of the others.
        let mut succeeded = 0;
        for write in writes {
            succeeded += usize::from(execute(&server, &controllers, &write).await);
        }
        let until_next = next.map_or(IDLE, |next| {
            Duration::try_from(next - now).unwrap_or_default()
        });
        let has_failed = succeeded < count;
        let wait = match (succeeded > 0, has_failed) {
            (true, _) => Duration::ZERO,
            (false, true) => until_next.min(retry),
            (false, false) => until_next.min(IDLE),
        };
        retry = if has_failed {
            (retry * 2).min(LONGEST_RETRY)
        } else {
            RETRY
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = changed.notified() => {}
            Ok(()) = settings.changed() => {}
            () = tokio::time::sleep(wait) => {}
        }
        tokio::time::sleep(reaction_time(&mut draws)).await;
    }
}

fn reaction_time(draws: &mut Draws) -> Duration {
    let (least, most) = REACTION;
    least + draws.up_to(most.saturating_sub(least))
}

/// Makes a write, and returns whether it succeeded. One that fails is decided again from the state
/// that made it fail.
async fn execute(server: &ApiServer, user: &User, write: &Write) -> bool {
    let (method, path, body) = match write {
        Write::Create {
            resource,
            namespace,
            object,
        } => (
            Method::POST,
            server.path(resource, namespace, ""),
            object.clone(),
        ),
        Write::Update {
            resource,
            namespace,
            name,
            object,
        } => (
            Method::PUT,
            server.path(resource, namespace, name),
            object.clone(),
        ),
        Write::UpdateStatus {
            resource,
            namespace,
            name,
            object,
        } => (
            Method::PUT,
            server.path(resource, namespace, name) + "/status",
            object.clone(),
        ),
        Write::Finalize { object } => {
            let namespace = object["metadata"]["name"].as_str().unwrap_or_default();
            (
                Method::PUT,
                server.path("namespaces", "", namespace) + "/finalize",
                object.clone(),
            )
        }
        Write::Bind {
            namespace,
            pod,
            node,
        } => {
            let target = json!({ "apiVersion": "v1", "kind": "Node", "name": node });
            let binding = json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": pod }, "target": target });
            (
                Method::POST,
                server.path("pods", namespace, pod) + "/binding",
                binding,
            )
        }
        Write::Delete {
            resource,
            namespace,
            name,
            uid,
            grace_seconds,
            propagation,
        } => {
            let mut options = json!({ "preconditions": { "uid": uid } });
            if let Some(seconds) = grace_seconds {
                options["gracePeriodSeconds"] = json!(seconds);
            }
            if let Some(propagation) = propagation {
                options["propagationPolicy"] = json!(propagation);
            }
            (
                Method::DELETE,
                server.path(resource, namespace, name),
                options,
            )
        }
    };
    server.call(user, &method, &path, &body).await
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn reaction_times_are_drawn() {
        let mut draws = Draws::new(1);
        let times: BTreeSet<Duration> = (0..100).map(|_| reaction_time(&mut draws)).collect();
        assert!(
            times.len() > 90
                && times
                    .iter()
                    .all(|time| (REACTION.0..REACTION.1).contains(time)),
            "{times:?}"
        );
    }
}
