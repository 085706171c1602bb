//! Tokens by which pods at a provider use the API server here.
//!
//! Each pod that does has a Secret of its own in the tenant namespace, which exists nowhere here: with a token of its
//! `ServiceAccount` that is bound to the home pod, and so worth nothing when that is gone; our CA; and the name of its namespace. It is
//! made before the pod is sent, renewed while the pod runs, and removed with it.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
        core::v1::{ConfigMap, Secret, ServiceAccount},
    },
};
use kube::{Api, api::PostParams};
use liqo_api::{annotations, pods};
use liqo_kit::Next;
use liqo_network::Here;

use super::{
    Consumer,
    home_pods::warn,
    peer::{Peer, Remote},
    reduced::HomePod,
    reflected::{Reference, fingerprint_of_secret, record_of_secret},
    reflection::{Error, is_offloaded, recorded, remove, write},
    virtual_nodes::all_pods_known,
};
use crate::decide::{
    refs::ROOT_CA,
    travel::api_server::{Wish, account, renewed_at, token, until_next},
};

/// When a Secret is looked at again that is not known to be wanted yet.
const LOOK: Duration = Duration::from_secs(5);

/// Where pods at this provider reach our API servers; nothing where they may not, or cannot.
pub fn addresses(consumer: &Consumer, peer: &Peer) -> Vec<IpAddr> {
    let Some(network) = consumer.networks.of(&peer.id).filter(|network| network.api_server) else { return Vec::new() };
    let config = consumer.context.config();
    let servers = config.status.iter().filter_map(|status| status.network.as_ref()).flat_map(|network| &network.api_servers);
    servers.filter_map(|server| network.maps.exported.there(Here(server.stand_in))).map(|there| there.0).collect()
}

/// Makes the Secret of a pod that is about to be sent. What goes wrong is left to the worker: the provider waits for it, as a
/// kubelet does.
pub async fn ensure(consumer: &Consumer, peer: &Peer, remote: &Remote, pod: &HomePod) {
    let reference = Reference::of_api_server(pod);
    if recorded(remote, &reference).is_none() && !peer.is_reflected(&reference) {
        // What went wrong was told.
        let _ = issue(consumer, peer, remote, pod, &reference).await;
        peer.references.add_after(reference, LOOK);
    }
}

/// Whether a pod needs its Secret.
enum Need {
    No,
    /// It was not sent yet, as far as is known.
    Perhaps,
    Yes(Arc<HomePod>),
}

fn need(consumer: &Consumer, peer: &Peer, remote: &Remote, reference: &Reference, uid: &str) -> Need {
    let uses = |pod: &Arc<HomePod>| !pod.finished && matches!(pod.api_server, Wish::Home { .. });
    let Some(pod) = peer.home_pod(uid).filter(uses).filter(|_| is_offloaded(consumer, &reference.namespace)) else {
        return Need::No;
    };
    match remote.shadow(uid) {
        Some(shadow) if shadow.uses_api_server => Need::Yes(pod),
        Some(_) => Need::No,
        None => Need::Perhaps,
    }
}

/// Keeps the Secret of the pod with this UID as it is to be.
pub async fn reconcile(
    consumer: &Consumer,
    peer: &Peer,
    remote: &Remote,
    reference: &Reference,
    uid: &str,
) -> Result<Next, Error> {
    let record = recorded(remote, reference).filter(|record| !record.terminating);
    match need(consumer, peer, remote, reference, uid) {
        Need::No if record.is_none() => Ok(Next::OnChange),
        Need::No if !all_pods_known(consumer, &peer.id) => Ok(Next::After(LOOK)),
        Need::No => remove(peer, remote, reference).await.map(|()| Next::OnChange),
        Need::Perhaps => Ok(Next::After(LOOK)),
        Need::Yes(pod) => {
            let renew_at = record.as_ref().and_then(|record| record.renew_at);
            let wait = until_next(renew_at, peer.asked_for_token(uid), Timestamp::now());
            if wait.is_zero() {
                issue(consumer, peer, remote, &pod, reference).await?;
                return Ok(Next::After(LOOK));
            }
            Ok(Next::After(wait))
        }
    }
}

/// Asks for a token, and puts it where the provider takes it from. Tells on the pod if there is none.
async fn issue(consumer: &Consumer, peer: &Peer, remote: &Remote, pod: &HomePod, reference: &Reference) -> Result<(), Error> {
    let issued = try_issue(consumer, peer, remote, pod, reference).await;
    if let Err(error) = &issued
        && peer.may_warn(&pod.uid)
    {
        let error = liqo_kit::queue::error_chain(error);
        tracing::warn!(peer = %peer.id, pod = %pod.key, error, "no token for a pod that uses this cluster's API server elsewhere");
        warn(consumer, pod, pods::NO_API_SERVER, &error).await;
    }
    issued
}

async fn try_issue(consumer: &Consumer, peer: &Peer, remote: &Remote, pod: &HomePod, reference: &Reference) -> Result<(), Error> {
    let (client, home, now) = (consumer.context.client.clone(), pod.json(), Timestamp::now());
    let wanted = token(&home);
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
    peer.asks_for_token(&pod.uid);
    let failed = |what: &'static str| move |source| Error::Token { what, pod: pod.key.clone(), source };
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &pod.key.namespace);
    let granted = accounts.create_token_request(account(&home), &PostParams::default(), &request).await;
    let granted = granted.map_err(failed("asking for a token of its ServiceAccount"))?;
    let authority = Api::<ConfigMap>::namespaced(client, &pod.key.namespace).get(ROOT_CA).await;
    let authority = authority.map_err(failed("reading ConfigMap kube-root-ca.crt"))?;
    let authority = authority.data.and_then(|mut data| data.remove("ca.crt")).unwrap_or_default();
    let entry = |key: &str, value: String| (key.to_owned(), ByteString(value.into_bytes()));
    let data = BTreeMap::from([
        entry("token", granted.status.map(|status| status.token).unwrap_or_default()),
        entry("ca.crt", authority),
        entry("namespace", pod.key.namespace.clone()),
    ]);
    let Some(mut record) = record_of_secret(reference, &Secret { data: Some(data), ..Secret::default() }) else { return Ok(()) };
    let renew_at = renewed_at(now, wanted.seconds).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    record.metadata.annotations.get_or_insert_default().insert(annotations::RENEW_AT.to_owned(), renew_at);
    let print = fingerprint_of_secret(&record);
    write(peer, remote, reference, recorded(remote, reference).as_deref(), Some((record, print))).await?;
    tracing::debug!(peer = %peer.id, pod = %pod.key, "token sent");
    Ok(())
}
