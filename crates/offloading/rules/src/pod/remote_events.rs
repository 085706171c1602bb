//! What the kubelet and the scheduler of a provider warn about a remote pod, as events of its local pod.
//!
//! Only Warning events travel, so a healthy pod costs nothing. A provider is not trusted: it can only write about a pod that it runs,
//! each text has a bound, and the [`Journal`] limits how many events are held and how often they are written.

mod journal;
mod rate;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use liqo_api::{Key, MappedNamespacePhase, NamespaceMap, short_hash};
use serde_json::{Value, json};

use crate::dns_names;
use crate::pod::local_state::LocalPod;
use crate::pod::local_status::stamp;

pub use journal::{Due, Journal};
pub use rate::Rate;

/// The events at a provider that its API server sends us: none of a healthy pod.
pub const FIELD_SELECTOR: &str = "type=Warning,involvedObject.kind=Pod";

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

/// What an event at the provider says about one remote pod, checked and cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteEvent {
    /// UID of the event.
    pub uid: String,
    /// Name of the remote pod, which is the local pod's, too.
    pub pod_name: String,
    /// UID of the remote pod.
    pub pod_uid: String,
    /// The container that it is about, for example `spec.containers{main}`; empty for the whole pod.
    field_path: String,
    reason: String,
    message: String,
    /// Who reports it, for example `kubelet`; empty if that is no plain name.
    component: String,
    count: i32,
    first: Timestamp,
    last: Timestamp,
}

impl RemoteEvent {
    /// Reads an event of the provider's namespace `namespace`; nothing if it is no warning about a pod there, or malformed.
    pub fn of(event: Event, namespace: &str, now: Timestamp) -> Option<Self> {
        let object = event.involved_object;
        let is_about_pod = object.kind.as_deref() == Some("Pod") && object.namespace.as_deref() == Some(namespace);
        if !is_about_pod || event.type_.as_deref() != Some("Warning") {
            return None;
        }
        let series = event.series.unwrap_or_default();
        let event_time = event.event_time.map(|time| time.0);
        let created = event.metadata.creation_timestamp.map(|time| time.0);
        let first = event.first_timestamp.map(|time| time.0).or(event_time).or(created);
        let last = event.last_timestamp.map(|time| time.0).or(series.last_observed_time.map(|time| time.0)).or(event_time);
        // Clocks of clusters differ.
        let last = last.or(first)?.min(now);
        let component = event.source.and_then(|source| source.component).filter(|name| !name.is_empty());
        Some(Self {
            uid: event.metadata.uid.filter(|uid| is_plain(uid, ""))?,
            pod_name: object.name.filter(|name| dns_names::is_subdomain(name))?,
            pod_uid: object.uid.filter(|uid| is_plain(uid, ""))?,
            field_path: object.field_path.filter(|path| is_plain(path, "{}")).unwrap_or_default(),
            reason: event.reason.filter(|reason| is_reason(reason))?,
            message: printable(&event.message.unwrap_or_default()),
            component: component.or(event.reporting_component).filter(|name| is_plain(name, "/")).unwrap_or_default(),
            count: event.count.filter(|count| *count > 0).or(series.count).unwrap_or(1).clamp(1, MAX_COUNT),
            first: first.unwrap_or(last).min(last),
            last,
        })
    }

    /// The event of the local pod. Its name follows from the pod and the remote event, so the same one is never written twice, not
    /// even by another process. `mapped` is the provider's namespace; `node` is the virtual node's name.
    pub fn at_home(&self, pod: &LocalPod, mapped: &str, node: &str) -> (Key, Value) {
        let hash = short_hash(&format!("{} {}", pod.uid, self.uid));
        let start: String = pod.key.name.chars().take(MAX_OBJECT_NAME_LEN - hash.len() - 1).collect();
        let name = format!("{}.{hash}", start.trim_end_matches(['-', '.']));
        let message = replace_word(&self.message, mapped, &pod.key.namespace);
        let message = replace_word(&message, &self.pod_uid, &pod.uid);
        let mut object = json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": pod.key.namespace, "name": pod.key.name, "uid": pod.uid,
        });
        if !self.field_path.is_empty() {
            object["fieldPath"] = self.field_path.as_str().into();
        }
        let component = if self.component.is_empty() { node.to_owned() } else { format!("{node}/{}", self.component) };
        let event = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "namespace": pod.key.namespace, "name": name },
            "involvedObject": object,
            "type": "Warning",
            "reason": self.reason,
            "message": bounded(&message),
            "count": self.count,
            "firstTimestamp": stamp(self.first),
            "lastTimestamp": stamp(self.last),
            "source": { "component": component, "host": node },
            "reportingComponent": liqo_api::CONTROLLER_MANAGER,
        });
        (Key::new(&pod.key.namespace, name), event)
    }
}

/// The provider's namespace whose events are about pods of our namespace `home`, once the provider says that it is ready.
pub fn watched_namespace(map: Option<&NamespaceMap>, home: &str) -> Option<String> {
    let mapped = map?.status.as_ref()?.namespaces.get(home)?;
    let is_usable = mapped.phase == MappedNamespacePhase::Ready && dns_names::is_label(&mapped.remote_name);
    is_usable.then(|| mapped.remote_name.clone())
}

/// Whether a text consists of letters, digits, `.`, `-` and these characters, and is neither empty nor long.
fn is_plain(text: &str, more: &str) -> bool {
    let is_known = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.' || more.contains(c);
    (1..=MAX_NAME_LEN).contains(&text.len()) && text.chars().all(is_known)
}

fn is_reason(text: &str) -> bool {
    text.len() <= MAX_REASON_LEN
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric())
}

/// A text on one line, without control characters and those that change the direction of writing, and not too long.
fn printable(text: &str) -> String {
    let is_hidden =
        |c: &char| c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}');
    let visible: String = text.chars().map(|c| if c.is_whitespace() { ' ' } else { c }).filter(|c| !is_hidden(c)).collect();
    bounded(&visible).to_owned()
}

fn bounded(text: &str) -> &str {
    let fits = |(at, c): &(usize, char)| at + c.len_utf8() <= MAX_MESSAGE_LEN;
    let end = text.char_indices().take_while(fits).last().map_or(0, |(at, c)| at + c.len_utf8());
    &text[..end]
}

/// Replaces a name where it is not a part of a longer name.
fn replace_word(text: &str, word: &str, with: &str) -> String {
    let continues = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let (mut replaced, mut copied) = (String::new(), 0);
    for (at, found) in text.match_indices(word).filter(|(_, found)| !found.is_empty()) {
        let end = at + found.len();
        if !text[..at].ends_with(continues) && !text[end..].starts_with(continues) {
            replaced.push_str(&text[copied..at]);
            replaced.push_str(with);
            copied = end;
        }
    }
    replaced.push_str(&text[copied..]);
    replaced
}

#[cfg(test)]
mod tests;
