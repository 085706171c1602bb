//! Messages of a provider's programs about a remote pod, in the words of home: objects have the
//! names that they have at home.

use std::sync::Arc;

use crate::dns_names::is_subdomain;
use crate::pod::carry::api_server;
use crate::pod::local_state::{ConsumerShadowPod, LocalPod};
use crate::pod::references::{PodReferences, ROOT_CA};
use crate::replica::kind::ReplicaKind;
use crate::replica::name::{MARK, replica_name};

/// A text in which these objects of home have the names of their replicas.
pub fn with_home_names(text: &str, named: &PodReferences) -> String {
    let mut text = text.to_owned();
    if text.contains(MARK) {
        // An object of another name has no replica, and such a name may be anything.
        let named = named
            .kinds_and_names()
            .map(|(kind, name)| (kind, name.as_str()))
            .filter(|(_, name)| is_subdomain(name));
        // Most pods mount it without naming it.
        for (kind, name) in named.chain([(ReplicaKind::ConfigMap, ROOT_CA)]) {
            text = replace_word(&text, &replica_name(kind, name), name);
        }
    }
    text
}

/// The same for the objects that a local pod names, and for its Secret with a token.
pub(crate) fn with_names_of_pod(text: &str, pod: &LocalPod) -> String {
    if !text.contains(MARK) {
        return text.to_owned();
    }
    let mut named = pod.refs.clone();
    named
        .secrets
        .insert(api_server::api_server_secret_name(&pod.uid));
    with_home_names(text, &named)
}

/// The shadow pod with the names of home in its texts.
pub fn shadow_with_home_names(
    shadow: Arc<ConsumerShadowPod>,
    pod: Option<&LocalPod>,
) -> Arc<ConsumerShadowPod> {
    match pod.filter(|_| shadow.provider_texts().any(|text| text.contains(MARK))) {
        Some(pod) => Arc::new(shadow.with_provider_texts(|text| with_names_of_pod(text, pod))),
        None => shadow,
    }
}

/// Replaces a name where it is not a part of a longer name.
pub(crate) fn replace_word(text: &str, word: &str, with: &str) -> String {
    if word.is_empty() {
        return text.to_owned();
    }
    let (mut replaced, mut rest, mut follows_more) = (String::new(), text, false);
    while let Some((before, after)) = rest.split_once(word) {
        let is_part = before
            .chars()
            .next_back()
            .map_or(follows_more, continues_word)
            || after.starts_with(continues_word);
        replaced.push_str(before);
        replaced.push_str(if is_part { word } else { with });
        (rest, follows_more) = (after, word.ends_with(continues_word));
    }
    replaced.push_str(rest);
    replaced
}

fn continues_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-'
}

#[cfg(test)]
mod tests {
    use liqo_api::{Claimed, Key};
    use serde_json::{Value, json};

    use super::*;
    use crate::replica::kind::ReplicaKind;

    fn local_pod() -> LocalPod {
        let pod = json!({ "metadata": { "namespace": "demo", "name": "web", "uid": "u" },
            "spec": { "containers": [{ "name": "c", "envFrom": [{ "configMapRef": { "name": "same" } }] }],
                "volumes": [{ "name": "v", "secret": { "secretName": "same" } }, { "name": "ca", "configMap": { "name": "ca.crt" } }] } });
        LocalPod::from_pod(
            serde_json::from_value(pod).unwrap(),
            &Key::new("liqo-provider-x", "default"),
        )
        .unwrap()
    }

    #[test]
    fn what_a_kubelet_says_names_the_objects_of_home() {
        let pod = local_pod();
        let name = replica_name;
        for (said, shown) in [
            (
                format!(
                    "configmap \"{}\" not found",
                    name(ReplicaKind::ConfigMap, "same")
                ),
                "configmap \"same\" not found",
            ),
            (
                format!(
                    "couldn't find key k in Secret x/{}",
                    name(ReplicaKind::Secret, "same")
                ),
                "couldn't find key k in Secret x/same",
            ),
            (
                format!("no {}.", name(ReplicaKind::ConfigMap, "ca.crt")),
                "no ca.crt.",
            ),
            (
                format!(
                    "secret {} not found",
                    name(ReplicaKind::Secret, "liqo-api-server-u")
                ),
                "secret liqo-api-server-u not found",
            ),
        ] {
            assert_eq!(with_names_of_pod(&said, &pod), shown);
        }
        let strange = format!(
            "{} x{} liqo-{}",
            name(ReplicaKind::Secret, "other"),
            name(ReplicaKind::Secret, "same"),
            name(ReplicaKind::Secret, "same")
        );
        assert_eq!(
            with_names_of_pod(&strange, &pod),
            strange,
            "names of others"
        );
    }

    #[test]
    fn the_status_and_the_refusal_of_a_pod_name_the_objects_of_home() {
        let pod = local_pod();
        let derived = replica_name(ReplicaKind::Secret, "same");
        let shadow = |message: &str, waiting: &str| {
            let status = json!({ "phase": "Created", "reason": "Invalid", "message": message, "pod": { "containerStatuses": [
                { "name": "c", "state": { "waiting": { "reason": "CreateContainerConfigError", "message": waiting } } }] } });
            let carried = json!({ "metadata": { "name": "web" }, "spec": {} }).to_string();
            let shadow: Value = json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ShadowPod", "metadata": { "name": "u" },
                "spec": { "namespace": "demo", "pool": "default", "pod": carried }, "status": status });
            Arc::new(
                ConsumerShadowPod::from_claimed(Claimed::new(
                    serde_json::from_value(shadow).unwrap(),
                ))
                .unwrap(),
            )
        };
        let told = shadow_with_home_names(
            shadow(
                &format!("{derived}: invalid"),
                &format!("secret \"{derived}\" not found"),
            ),
            Some(&pod),
        );
        assert_eq!(told, shadow("same: invalid", "secret \"same\" not found"));
        let plain = shadow("m", "w");
        assert!(Arc::ptr_eq(
            &shadow_with_home_names(plain.clone(), Some(&pod)),
            &plain
        ));
    }
}
