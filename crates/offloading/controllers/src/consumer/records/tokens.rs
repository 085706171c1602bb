//! Tokens by which pods at a provider use the API server of this cluster.
//!
//! Each of these pods has a Secret of its own in the tenant namespace, which does not exist here.
//! It holds a token of the pod's `ServiceAccount` that is bound to the local pod, and so is worth
//! nothing when that is gone; our CA; and the name of its namespace. The Secret is created before
//! the pod is sent, renewed while the pod runs, and removed with it.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    ByteString,
    api::{
        authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
        core::v1::{ConfigMap, Secret, ServiceAccount},
    },
};
use kube::{Api, api::PostParams};
use liqo_api::{annotations, pods, rfc3339};
use liqo_controller_runtime::{
    Key, Requeue,
    writes::{RequestError, StepContext as _, StepError},
};

use super::{remove_record, write_record};
use crate::consumer::events::warn;
use crate::consumer::state::{ConsumerState, RemoteObjects, RemoteProvider};
use liqo_offloading_rules::pod::carry::api_server::ApiServerChoice;
use liqo_offloading_rules::pod::carry::api_server::requested_token;
use liqo_offloading_rules::pod::carry::api_server::service_account;
use liqo_offloading_rules::pod::carry::api_server::time_until_renewal;
use liqo_offloading_rules::pod::carry::api_server::token_renewal_time;
use liqo_offloading_rules::pod::local_state::ConsumerShadowPod;
use liqo_offloading_rules::pod::local_state::LocalPod;
use liqo_offloading_rules::pod::references::ROOT_CA;
use liqo_offloading_rules::replica::record::Reference;
use liqo_offloading_rules::replica::record::fingerprint_of_secret;
use liqo_offloading_rules::replica::record::record_of_secret;

/// Delay before a Secret is checked again that is not known to be wanted yet.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Creates the Secret of a pod that is about to be sent. The controller of records retries what
/// fails; the provider waits for the Secret, as a kubelet does.
pub async fn ensure_token(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    remote: &RemoteObjects,
    pod: &LocalPod,
) {
    let reference = Reference::of_api_server(pod);
    if remote.record(&reference).is_none() && !peer.is_recorded(&reference) {
        // What failed is shown on the pod.
        let _ = issue_token(consumer, peer, remote, pod, &reference).await;
        peer.record_queue.add_after(reference, POLL_INTERVAL);
    }
}

/// Whether a pod needs its Secret.
#[derive(Debug, PartialEq, Eq)]
enum TokenNeed {
    No,
    /// Not as far as is known, or not yet: none is created, and an existing one stays.
    Perhaps,
    Yes,
}

/// The input of the decision. The provider can write records and shadow pods: they may show that
/// the pod needs no Secret, never that it may have one.
struct TokenFacts<'a> {
    /// The pod of this UID on a virtual node of this provider.
    pod: Option<&'a LocalPod>,
    /// The namespace that the record names.
    namespace: &'a str,
    /// Whether that namespace is offloaded.
    is_offloaded: bool,
    /// Whether pods of that namespace may use our API server from there, if that is known.
    is_open: Option<bool>,
    shadow: Option<&'a ConsumerShadowPod>,
}

fn token_need(facts: &TokenFacts) -> TokenNeed {
    let Some(pod) = facts
        .pod
        .filter(|pod| may_use_api_server(pod))
        .filter(|pod| facts.is_offloaded && pod.key.namespace == facts.namespace)
    else {
        return TokenNeed::No;
    };
    match (facts.is_open, facts.shadow) {
        (Some(false), _) => TokenNeed::No,
        (_, Some(shadow)) if !shadow.uses_api_server => TokenNeed::No,
        // A shadow pod of a pod that was never sent is not ours.
        (Some(true), Some(_))
            if pod.sent_to.is_some() && pod.api_server != ApiServerChoice::Unclear =>
        {
            TokenNeed::Yes
        }
        _ => TokenNeed::Perhaps,
    }
}

fn may_use_api_server(pod: &LocalPod) -> bool {
    let may_use = matches!(
        pod.api_server,
        ApiServerChoice::Home { .. } | ApiServerChoice::Unclear
    );
    may_use && !pod.finished
}

/// Whether pods of this namespace may use our API server from this provider: the namespace and the
/// policy say so. `None` while that is not known.
fn is_open(consumer: &ConsumerState, peer: &RemoteProvider, namespace: &str) -> Option<bool> {
    if !consumer.networks.is_synced() {
        return None;
    }
    let network = consumer.networks.network_of_peer(&peer.id);
    let reaches_api_server = network.is_some_and(|network| network.api_server);
    Some(reaches_api_server && consumer.gives_tokens(namespace))
}

/// Brings the Secret of the pod with this UID to what is wanted.
pub async fn reconcile_token(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    remote: &RemoteObjects,
    reference: &Reference,
    uid: &str,
) -> Result<Requeue, RequestError> {
    let record = remote
        .record(reference)
        .filter(|record| !record.terminating);
    let (pod, shadow) = (peer.pod(uid), remote.shadow_pod(uid));
    let facts = TokenFacts {
        pod: pod.as_deref(),
        namespace: &reference.namespace,
        is_offloaded: consumer.is_offloaded(&reference.namespace),
        is_open: is_open(consumer, peer, &reference.namespace),
        shadow: shadow.as_deref(),
    };
    match (token_need(&facts), &pod) {
        (TokenNeed::No, _) if record.is_none() => Ok(Requeue::OnChange),
        (TokenNeed::No, _) if !consumer.all_pods_known(&peer.id) => {
            Ok(Requeue::After(POLL_INTERVAL))
        }
        (TokenNeed::No, _) => remove_record(peer, remote, reference)
            .await
            .map(|()| Requeue::OnChange),
        (TokenNeed::Perhaps, _) | (TokenNeed::Yes, None) => Ok(Requeue::After(POLL_INTERVAL)),
        (TokenNeed::Yes, Some(pod)) => {
            let renew_at = record.as_ref().and_then(|record| record.renew_at);
            let wait = time_until_renewal(
                renew_at,
                peer.time_since_token_request(uid),
                consumer.context.now(),
            );
            if wait.is_zero() {
                issue_token(consumer, peer, remote, pod, reference).await?;
                return Ok(Requeue::After(POLL_INTERVAL));
            }
            Ok(Requeue::After(wait))
        }
    }
}

/// Requests a token, and records it for the provider. Shows a failure on the pod.
async fn issue_token(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    remote: &RemoteObjects,
    pod: &LocalPod,
    reference: &Reference,
) -> Result<(), RequestError> {
    let issued = match secret_with_token(consumer, peer, pod, reference).await {
        Ok(Some(secret)) => {
            let fingerprint = fingerprint_of_secret(&secret);
            write_record(
                peer,
                remote,
                reference,
                remote.record(reference).as_deref(),
                (secret, fingerprint),
            )
            .await
        }
        Ok(None) => return Ok(()),
        Err(error) => Err(error.into()),
    };
    match &issued {
        Ok(()) => tracing::debug!(peer = %peer.id, pod = %pod.key, "token sent"),
        Err(error) if peer.may_warn(&pod.uid) => {
            let error = liqo_controller_runtime::queue::error_chain(error);
            tracing::warn!(peer = %peer.id, pod = %pod.key, error, "no token for a pod that uses this cluster's API server elsewhere");
            warn(consumer, pod, pods::NO_API_SERVER, &error).await;
        }
        Err(_) => {}
    }
    issued
}

/// Requests a token for a pod. Returns the Secret with it that the provider is to have.
async fn secret_with_token(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    pod: &LocalPod,
    reference: &Reference,
) -> Result<Option<Secret>, StepError> {
    let (client, local, now) = (
        consumer.context.client.clone(),
        pod.to_json(),
        consumer.context.now(),
    );
    let wanted = requested_token(&local);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: wanted.audience.into_iter().collect(),
            expiration_seconds: Some(wanted.seconds),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(pod.key.name.clone()),
                uid: Some(pod.uid.clone()),
            }),
        },
        ..TokenRequest::default()
    };
    peer.note_token_request(&pod.uid);
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &pod.key.namespace);
    let granted = accounts
        .create_token_request(service_account(&local), &PostParams::default(), &request)
        .await;
    let granted = granted.step("request a token of the ServiceAccount of", "Pod", &pod.key)?;
    let authority = Api::<ConfigMap>::namespaced(client, &pod.key.namespace)
        .get(ROOT_CA)
        .await;
    let authority = authority.step("read", "ConfigMap", Key::new(&pod.key.namespace, ROOT_CA))?;
    let authority = authority
        .data
        .and_then(|mut data| data.remove("ca.crt"))
        .unwrap_or_default();
    let token = granted
        .status
        .map(|status| status.token)
        .unwrap_or_default();
    let data = BTreeMap::from(
        [
            ("token", token),
            ("ca.crt", authority),
            ("namespace", pod.key.namespace.clone()),
        ]
        .map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes()))),
    );
    let Some(mut record) = record_of_secret(
        reference,
        &Secret {
            data: Some(data),
            ..Secret::default()
        },
    ) else {
        return Ok(None);
    };
    let renew_at = rfc3339(token_renewal_time(now, wanted.seconds));
    record
        .metadata
        .annotations
        .get_or_insert_default()
        .insert(annotations::RENEW_AT.to_owned(), renew_at);
    Ok(Some(record))
}

#[cfg(test)]
mod tests {
    use liqo_api::Claimed;
    use serde_json::{Value, json};

    use super::*;

    /// A pod with an account of its own that was sent, with these changes.
    fn local_pod(changes: &Value) -> LocalPod {
        let mut pod = json!({
            "metadata": { "namespace": "demo", "name": "web", "uid": "u", "annotations": { annotations::SENT_TO: "t" } },
            "spec": { "serviceAccountName": "reader", "containers": [{ "name": "c" }],
                "volumes": [{ "name": "kube-api-access-x", "projected": { "sources": [{ "serviceAccountToken": { "path": "token" } }] } }] },
            "status": { "phase": "Running" } });
        json_patch::merge(&mut pod, changes);
        LocalPod::from_pod(
            serde_json::from_value(pod).unwrap(),
            &Key::new("liqo-provider-x", "default"),
        )
        .unwrap()
    }

    /// What the provider shows of it: with this Secret, and as if it ran.
    fn shadow(secret: &str) -> ConsumerShadowPod {
        let pod = json!({ "metadata": { "name": "web" }, "spec": { "volumes": [{ "name": "v", "secret": { "secretName": secret } }] } });
        let shadow = json!({
            "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ShadowPod", "metadata": { "name": "u" },
            "spec": { "namespace": "demo", "pool": "default", "pod": pod.to_string() },
            "status": { "phase": "Created", "pod": { "phase": "Running" } } });
        ConsumerShadowPod::from_claimed(Claimed::new(serde_json::from_value(shadow).unwrap()))
            .unwrap()
    }

    fn facts<'a>(pod: &'a LocalPod, shadow: &'a ConsumerShadowPod) -> TokenFacts<'a> {
        TokenFacts {
            pod: Some(pod),
            namespace: "demo",
            is_offloaded: true,
            is_open: Some(true),
            shadow: Some(shadow),
        }
    }

    #[test]
    fn a_pod_that_was_sent_with_its_secret_keeps_it_until_it_ends_or_wants_none() {
        let (pod, with, without) = (
            local_pod(&json!({})),
            shadow("liqo-api-server-u"),
            shadow("another"),
        );
        assert_eq!(token_need(&facts(&pod, &with)), TokenNeed::Yes);
        assert_eq!(
            token_need(&TokenFacts {
                shadow: None,
                ..facts(&pod, &with)
            }),
            TokenNeed::Perhaps
        );
        assert_eq!(token_need(&facts(&pod, &without)), TokenNeed::No);
        assert_eq!(
            token_need(&TokenFacts {
                pod: None,
                ..facts(&pod, &with)
            }),
            TokenNeed::No
        );
        assert_eq!(
            token_need(&TokenFacts {
                is_offloaded: false,
                ..facts(&pod, &with)
            }),
            TokenNeed::No
        );
        let none = json!({ "metadata": { "annotations": { annotations::API_SERVER: "none" } } });
        for changes in [json!({ "status": { "phase": "Succeeded" } }), none] {
            assert_eq!(
                token_need(&facts(&local_pod(&changes), &with)),
                TokenNeed::No
            );
        }
    }

    #[test]
    fn a_pod_whose_annotation_says_nothing_valid_keeps_its_token_and_gets_no_new_one() {
        let unclear =
            json!({ "metadata": { "annotations": { annotations::API_SERVER: "bogus" } } });
        let (pod, with, without) = (
            local_pod(&unclear),
            shadow("liqo-api-server-u"),
            shadow("another"),
        );
        assert_eq!(token_need(&facts(&pod, &with)), TokenNeed::Perhaps);
        assert_eq!(token_need(&facts(&pod, &without)), TokenNeed::No);
    }

    #[test]
    fn nobody_gets_a_token_where_the_policy_says_no_whatever_the_provider_shows() {
        let (pod, shadow) = (local_pod(&json!({})), shadow("liqo-api-server-u"));
        assert_eq!(
            token_need(&TokenFacts {
                is_open: Some(false),
                ..facts(&pod, &shadow)
            }),
            TokenNeed::No
        );
        assert_eq!(
            token_need(&TokenFacts {
                is_open: Some(false),
                shadow: None,
                ..facts(&pod, &shadow)
            }),
            TokenNeed::No
        );
    }

    #[test]
    fn until_it_is_known_what_the_policy_says_no_token_comes_and_none_goes() {
        let (pod, shadow) = (local_pod(&json!({})), shadow("liqo-api-server-u"));
        assert_eq!(
            token_need(&TokenFacts {
                is_open: None,
                ..facts(&pod, &shadow)
            }),
            TokenNeed::Perhaps
        );
    }

    #[test]
    fn a_provider_gets_no_token_of_a_pod_that_it_was_not_sent() {
        let forged = shadow("liqo-api-server-u");
        let shown = |status: &str| {
            json!({ "metadata": { "annotations": { annotations::SENT_TO: null } }, "status": { "conditions": [
                { "type": "liqo.io/Offloaded", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z" }] } })
        };
        // The pod's condition follows from what the provider shows.
        for status in ["False", "True"] {
            assert_eq!(
                token_need(&facts(&local_pod(&shown(status)), &forged)),
                TokenNeed::Perhaps
            );
        }
    }

    #[test]
    fn a_record_of_another_namespace_than_the_pods_is_not_its_own() {
        let (pod, forged) = (local_pod(&json!({})), shadow("liqo-api-server-u"));
        assert_eq!(
            token_need(&TokenFacts {
                namespace: "shop",
                ..facts(&pod, &forged)
            }),
            TokenNeed::No
        );
    }
}
