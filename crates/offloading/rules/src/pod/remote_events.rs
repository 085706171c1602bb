//! Reports of the kubelet and the scheduler of a provider about a remote pod, as events of its
//! local pod.
//!
//! Warnings travel, and those Normal events that name the failed probe for which a container
//! restarts, or tell that an image is pulled for long. So a healthy pod costs no write. A namespace
//! can ask for all ([`EventSelection`]). A provider is not trusted: it can only write about a pod
//! that it runs, each text has a bound, and the [`RemoteEventJournal`] limits how many events are
//! held and how often they are written.

mod journal;
mod pulls;
mod selection;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use liqo_api::{Key, MappedNamespacePhase, NamespaceMap, short_hash};
use serde_json::{Value, json};

use crate::dns_names;
use crate::json::set_at;
use crate::pod::home_text::{self, replace_word};
use crate::pod::local_state::LocalPod;
use crate::pod::local_status::seconds_timestamp;

pub use journal::{DueEvent, RemoteEventJournal};
pub use selection::EventSelection;

const WARNING: &str = "Warning";
const NORMAL: &str = "Normal";
/// The reason of the Normal event with which a kubelet ends a container.
const KILLING: &str = "Killing";
/// The kubelet's words if the cause is a probe. Other messages are about deleted pods.
const FAILED_PROBES: [&str; 2] = [" failed liveness probe", " failed startup probe"];
/// The reasons of the Normal events with which a kubelet begins and ends a pull.
const PULLING: &str = "Pulling";
const PULLED: &str = "Pulled";
/// The kubelet's words in an event `Pulled` if there was no pull.
const PRESENT: &str = " already present on machine";

/// Maximum length of a message in bytes: what the API server takes in an event of today's API.
const MAX_MESSAGE_LEN: usize = 1024;
/// Maximum length of a reason, as in Kubernetes' own events.
const MAX_REASON_LEN: usize = 128;
/// Maximum length of the name of a component, a UID, or the path of a container.
const MAX_NAME_LEN: usize = 100;
/// Maximum length of an object's name.
const MAX_OBJECT_NAME_LEN: usize = 253;
/// A larger count says no more.
const MAX_COUNT: i32 = 1_000_000;

/// The content of an event at the provider about one remote pod, checked and cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteEvent {
    /// UID of the event.
    pub uid: String,
    /// Name of the remote pod, which is the local pod's, too.
    pub pod_name: String,
    /// UID of the remote pod.
    pub pod_uid: String,
    /// The container that it is about, for example `spec.containers{main}`; empty for the whole
    /// pod.
    field_path: String,
    /// `Warning` or `Normal`.
    event_type: &'static str,
    reason: String,
    message: String,
    /// The reporter, for example `kubelet`; empty if that is no plain name.
    component: String,
    count: i32,
    first: Timestamp,
    last: Timestamp,
    /// Orders events of the same second.
    order: u64,
    /// The step of a pull that it reports, if its owner sees it only when the pull takes long.
    pull: Option<PullStep>,
}

/// The step of an image pull that an event reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PullStep {
    Started,
    Ended,
}

impl RemoteEvent {
    /// Reads an event of the provider's namespace `namespace`; nothing if it is not about a pod
    /// there, is not selected, or is malformed.
    pub fn from_event(
        event: Event,
        namespace: &str,
        selection: EventSelection,
        now: Timestamp,
    ) -> Option<Self> {
        let object = event.involved_object;
        let is_about_pod =
            object.kind.as_deref() == Some("Pod") && object.namespace.as_deref() == Some(namespace);
        let message = event.message.unwrap_or_default();
        let reason = event.reason.filter(|reason| is_reason(reason))?;
        let component = event
            .source
            .and_then(|source| source.component)
            .filter(|name| !name.is_empty());
        let component = component
            .or(event.reporting_component)
            .filter(|name| is_plain(name, "/"))
            .unwrap_or_default();
        let (event_type, pull) = match (event.type_.as_deref()?, selection) {
            _ if !is_about_pod => return None,
            (WARNING, _) => (WARNING, None),
            (NORMAL, EventSelection::All) if component != liqo_api::CONTROLLER_MANAGER => {
                (NORMAL, None)
            }
            (NORMAL, _) if is_failed_probe(&reason, &message) => (NORMAL, None),
            (NORMAL, EventSelection::Notable) => (NORMAL, Some(pull_step(&reason, &message)?)),
            _ => return None,
        };
        let series = event.series.unwrap_or_default();
        let event_time = event.event_time.map(|time| time.0);
        let created = event.metadata.creation_timestamp.map(|time| time.0);
        let first = event
            .first_timestamp
            .map(|time| time.0)
            .or(event_time)
            .or(created);
        let last = event
            .last_timestamp
            .map(|time| time.0)
            .or(series.last_observed_time.map(|time| time.0))
            .or(event_time);
        // Clocks of clusters differ.
        let last = last.or(first)?.min(now);
        Some(Self {
            order: event_order(event.metadata.name.as_deref(), created),
            uid: event.metadata.uid.filter(|uid| is_plain(uid, ""))?,
            pod_name: object.name.filter(|name| dns_names::is_subdomain(name))?,
            pod_uid: object.uid.filter(|uid| is_plain(uid, ""))?,
            field_path: object
                .field_path
                .filter(|path| is_plain(path, "{}"))
                .unwrap_or_default(),
            event_type,
            reason,
            message: printable_line(&message),
            component,
            count: event
                .count
                .filter(|count| *count > 0)
                .or(series.count)
                .unwrap_or(1)
                .clamp(1, MAX_COUNT),
            first: first.unwrap_or(last).min(last),
            last,
            pull,
        })
    }

    /// The event of the local pod. Its name follows from the pod and the remote event, so the same
    /// one is never written twice, not even by another process. `mapped` is the provider's
    /// namespace; `node` is the virtual node's name. The consumer of a brokered pod reads who
    /// reports the event, and knows no names for the clusters behind this one.
    pub fn to_local_event(
        &self,
        pod: &LocalPod,
        mapped: &str,
        node: &str,
        is_brokered: bool,
    ) -> (Key, Value) {
        let hash = short_hash(&format!("{} {}", pod.uid, self.uid));
        // kubectl shows events of the same second in the order of their names.
        let end = format!("{:016x}.{hash}", self.order);
        let start: String = pod
            .key
            .name
            .chars()
            .take(MAX_OBJECT_NAME_LEN - end.len() - 1)
            .collect();
        let name = format!("{}.{end}", start.trim_end_matches(['-', '.']));
        let message = replace_word(&self.message, mapped, &pod.key.namespace);
        let message =
            home_text::with_names_of_pod(&replace_word(&message, &self.pod_uid, &pod.uid), pod);
        let mut object = json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": pod.key.namespace, "name": pod.key.name, "uid": pod.uid,
        });
        if !self.field_path.is_empty() {
            set_at(&mut object, &["fieldPath"], self.field_path.as_str());
        }
        let component = match (self.component.as_str(), is_brokered) {
            ("", true) => liqo_api::CONTROLLER_MANAGER.to_owned(),
            (component, true) => component.to_owned(),
            ("", false) => node.to_owned(),
            (component, false) => format!("{node}/{component}"),
        };
        let event = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "namespace": pod.key.namespace, "name": name },
            "involvedObject": object,
            "type": self.event_type,
            "reason": self.reason,
            "message": bounded_message(&message),
            "count": self.count,
            "firstTimestamp": seconds_timestamp(self.first),
            "lastTimestamp": seconds_timestamp(self.last),
            "source": { "component": component, "host": node },
            "reportingComponent": liqo_api::CONTROLLER_MANAGER,
        });
        (Key::new(&pod.key.namespace, name), event)
    }
}

/// The provider's namespace whose events are about pods of our namespace `home`, once the provider
/// says that it is ready.
pub fn watched_namespace(map: Option<&NamespaceMap>, home: &str) -> Option<String> {
    let mapped = map?.status.as_ref()?.namespaces.get(home)?;
    let is_usable =
        mapped.phase == MappedNamespacePhase::Ready && dns_names::is_label(&mapped.remote_name);
    is_usable.then(|| mapped.remote_name.clone())
}

fn is_failed_probe(reason: &str, message: &str) -> bool {
    reason == KILLING && FAILED_PROBES.iter().any(|words| message.contains(words))
}

/// Nothing if the event is not about a pull.
fn pull_step(reason: &str, message: &str) -> Option<PullStep> {
    match reason {
        PULLING => Some(PullStep::Started),
        PULLED if !message.contains(PRESENT) => Some(PullStep::Ended),
        _ => None,
    }
}

/// Kubelets and schedulers end the names of events with the nanoseconds since 1970 of the first
/// occurrence, in hexadecimal digits. Like the time of creation, the name never changes.
fn event_order(name: Option<&str>, created: Option<Timestamp>) -> u64 {
    let end = name.and_then(|name| u64::from_str_radix(name.rsplit('.').next()?, 16).ok());
    end.or_else(|| u64::try_from(created?.as_nanosecond()).ok())
        .unwrap_or_default()
}

/// Whether a text consists of letters, digits, `.`, `-` and these characters, and is neither empty
/// nor long.
fn is_plain(text: &str, more: &str) -> bool {
    (1..=MAX_NAME_LEN).contains(&text.len())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.' || more.contains(c))
}

fn is_reason(text: &str) -> bool {
    text.len() <= MAX_REASON_LEN
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric())
}

/// A text on one line, without control characters and those that change the direction of writing,
/// and not too long.
fn printable_line(text: &str) -> String {
    let visible: String = text
        .chars()
        .map(|c| if c.is_whitespace() { ' ' } else { c })
        .filter(|c| !is_hidden(*c))
        .collect();
    bounded_message(&visible)
}

fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
}

fn bounded_message(text: &str) -> String {
    text.char_indices()
        .take_while(|(at, c)| at + c.len_utf8() <= MAX_MESSAGE_LEN)
        .map(|(_, c)| c)
        .collect()
}

#[cfg(test)]
mod tests;
