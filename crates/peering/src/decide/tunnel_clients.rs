//! Who may reach the auth endpoint and the API server through our own tunnel.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use data_encoding::{BASE64, HEXLOWER};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use liqo_api::{
    ClusterId, ForeignCluster, PeeringIntent, annotations, labels,
    peer_namespace::PeerNamespaceKind, tunnel_client_scopes,
};
use liqo_tunnel_client::keys;
use tokio::time::Instant;

use super::{
    namespace::LiqoNamespace,
    peer::{ApprovalWait, approval_wait},
    tokens::{ONE_TIME, TOKEN},
};

/// Maximum time until the answer to a request that spends a token.
const SPENT_TOKEN_GRACE: Duration = Duration::from_secs(10);

/// A token that was issued and not used yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusedToken {
    /// The public key that is derived from the token.
    key: [u8; 32],
    /// A date that cannot be parsed has passed.
    expires_at: Option<Timestamp>,
}

impl UnusedToken {
    /// Returns none for a token that several clusters may have.
    #[allow(clippy::needless_pass_by_value)] // The signature that a cache requires.
    pub fn from_secret(secret: Secret) -> Option<Self> {
        let token = secret
            .data
            .as_ref()?
            .get(TOKEN)
            .map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned())?;
        // Several clusters may have a reusable token, and each call with its key would end the
        // sessions of all others.
        if secret
            .labels()
            .get(labels::PEERING_TOKEN)
            .is_none_or(|kind| kind != ONE_TIME)
        {
            return None;
        }
        let expires_at = secret.annotations().get(annotations::EXPIRES_AT);
        let expires_at = expires_at.map(|text| text.parse().unwrap_or(Timestamp::MIN));
        (!token.is_empty()).then(|| Self {
            key: keys::public_key(keys::private_key_of_token(&token)),
            expires_at,
        })
    }
}

/// The desired list. A consumer whose tenancy is ending may only use the auth endpoint, which tells
/// it so.
pub fn wanted_clients(
    namespaces: &[Arc<LiqoNamespace>],
    noted: &[[u8; 32]],
    invitations: &[Arc<UnusedToken>],
    now: Timestamp,
) -> BTreeMap<String, String> {
    let invited = invitations
        .iter()
        .filter(|invitation| invitation.expires_at.is_none_or(|at| at > now));
    let invited = invited.map(|invitation| (invitation.key, tunnel_client_scopes::AUTH));
    let noted = noted.iter().filter_map(|key| {
        Some((
            keys::public_key_of_cluster(key)?,
            tunnel_client_scopes::AUTH,
        ))
    });
    let tenants = namespaces
        .iter()
        .filter(|namespace| namespace.kind == PeerNamespaceKind::Tenant && !namespace.terminating);
    let tenants = tenants.filter_map(|tenant| {
        let scope = if tenant.ending {
            tunnel_client_scopes::AUTH
        } else {
            tunnel_client_scopes::ALL
        };
        Some((keys::public_key_of_cluster(&tenant.public_key?)?, scope))
    });
    invited
        .chain(noted)
        .chain(tenants)
        .map(|(key, scope)| (HEXLOWER.encode(&key), scope.to_owned()))
        .collect()
}

/// The recorded key of a consumer that waits for approval, or was approved.
pub fn waiting_consumer_key(
    record: &ForeignCluster,
    expiry: Duration,
    now: Timestamp,
) -> Option<[u8; 32]> {
    let may_come = record.spec.incoming_peering == PeeringIntent::Yes
        || matches!(approval_wait(record, expiry, now), ApprovalWait::For(_));
    let key = BASE64
        .decode(
            record
                .annotations()
                .get(annotations::PUBLIC_KEY)?
                .as_bytes(),
        )
        .ok()?
        .try_into()
        .ok()?;
    (may_come && ClusterId::of_public_key(&key) == record.spec.cluster_id).then_some(key)
}

/// The unused tokens, and those that were used a moment ago.
#[derive(Default)]
pub struct RecentTokens(Vec<(Arc<UnusedToken>, Instant)>);

impl RecentTokens {
    /// Records the unused tokens that exist now. Returns all whose holders may call.
    pub fn observe_tokens(
        &mut self,
        present: Vec<Arc<UnusedToken>>,
        now: Instant,
    ) -> Vec<Arc<UnusedToken>> {
        self.0.retain(|(one, seen)| {
            !present.contains(one) && now.saturating_duration_since(*seen) < SPENT_TOKEN_GRACE
        });
        self.0.extend(present.into_iter().map(|one| (one, now)));
        self.0.iter().map(|(one, _)| one.clone()).collect()
    }
}

/// The changes that turn the current list into the desired one; none if there are none. Removes
/// entries that others wrote, and entries that were `written` last and may not be visible yet.
pub fn list_changes<'a>(
    current: &'a BTreeMap<String, String>,
    written: &'a BTreeMap<String, String>,
    wanted: &'a BTreeMap<String, String>,
) -> Option<BTreeMap<&'a String, Option<&'a String>>> {
    let there = current.keys().chain(written.keys());
    let removed = there
        .filter(|key| !wanted.contains_key(*key))
        .map(|key| (key, None));
    let added = wanted
        .iter()
        .filter(|(key, scope)| current.get(*key) != Some(scope))
        .map(|(key, scope)| (key, Some(scope)));
    let changes: BTreeMap<_, _> = removed.chain(added).collect();
    (!changes.is_empty()).then_some(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        decide::{access::GrantedConsumer, manifests, tokens},
        identity::tunnel_key,
    };
    use liqo_signing::ClusterIdentity;
    use serde_json::json;

    fn secret(token: &str, kind: &str, expires_at: Option<&str>) -> Secret {
        tokens::token_secret("t", kind, token, expires_at.map(|at| at.parse().unwrap()))
    }

    fn invitation(token: &str, expires_at: Option<&str>) -> Arc<UnusedToken> {
        UnusedToken::from_secret(secret(token, ONE_TIME, expires_at))
            .unwrap()
            .into()
    }

    #[test]
    fn a_token_that_many_may_hold_invites_nobody() {
        assert!(UnusedToken::from_secret(secret("many", tokens::ONE_TIME, None)).is_some());
        assert_eq!(
            UnusedToken::from_secret(secret("many", tokens::REUSABLE, None)),
            None
        );
        let mut unlabelled = secret("many", tokens::ONE_TIME, None);
        unlabelled.metadata.labels = None;
        assert_eq!(UnusedToken::from_secret(unlabelled), None);
    }

    #[test]
    fn what_others_write_into_the_list_goes_and_what_they_take_from_it_comes_back() {
        let list = |all: &[(&str, &str)]| {
            all.iter()
                .map(|(key, scope)| ((*key).to_owned(), (*scope).to_owned()))
                .collect()
        };
        let wanted: BTreeMap<String, String> = list(&[("a", "All"), ("b", "Auth")]);
        let (empty, off) = (BTreeMap::new(), BTreeMap::new());
        assert_eq!(list_changes(&wanted, &wanted, &wanted), None);
        let current = list(&[("b", "All"), ("foreign", "All")]);
        let change = json!(list_changes(&current, &wanted, &wanted).unwrap());
        assert_eq!(change, json!({ "a": "All", "b": "Auth", "foreign": null }));
        assert_eq!(
            json!(list_changes(&current, &empty, &off).unwrap()),
            json!({ "b": null, "foreign": null })
        );
        assert_eq!(list_changes(&empty, &empty, &off), None);
        // It was written, but the watch does not show it yet.
        assert_eq!(
            json!(list_changes(&current, &wanted, &off).unwrap()),
            json!({ "a": null, "b": null, "foreign": null })
        );
    }

    #[test]
    fn who_has_a_token_gets_to_the_door_and_who_has_a_tenancy_gets_in() {
        let now = "2026-06-01T12:00:00Z".parse().unwrap();
        let (identity, waits) = (
            ClusterIdentity::generate().unwrap(),
            ClusterIdentity::generate().unwrap(),
        );
        let consumer = GrantedConsumer {
            id: identity.id().clone(),
            public_key: *identity.public_key(),
            name: "rome".into(),
            protocol_version: 1,
        };
        let mut tenant =
            LiqoNamespace::from_namespace(manifests::namespace_of_tenant(&consumer)).unwrap();
        let invitations = [
            invitation("good", Some("2026-06-01T13:00:00Z")),
            invitation("over", Some("2026-06-01T11:00:00Z")),
        ];
        let list = wanted_clients(
            &[tenant.clone().into()],
            &[*waits.public_key()],
            &invitations,
            now,
        );
        let of = |key: [u8; 32]| {
            list.get(&HEXLOWER.encode(&keys::public_key(key)))
                .map(String::as_str)
        };
        assert_eq!(
            of(keys::private_key_of_token("good")),
            Some(tunnel_client_scopes::AUTH)
        );
        assert_eq!(of(keys::private_key_of_token("over")), None);
        assert_eq!(
            of(tunnel_key(&identity).unwrap()),
            Some(tunnel_client_scopes::ALL)
        );
        assert_eq!(
            of(tunnel_key(&waits).unwrap()),
            Some(tunnel_client_scopes::AUTH)
        );
        tenant.ending = true;
        let list = wanted_clients(&[tenant.clone().into()], &[], &[], now);
        assert_eq!(
            list.values().collect::<Vec<_>>(),
            [tunnel_client_scopes::AUTH],
            "it has to hear that it is over"
        );
        tenant.terminating = true;
        assert!(wanted_clients(&[tenant.into()], &[], &[], now).is_empty());
    }

    #[test]
    fn the_answer_to_who_spent_a_token_gets_out_and_nothing_after_it() {
        let (one, start) = (invitation("one", None), Instant::now());
        let mut seen = RecentTokens::default();
        assert_eq!(
            seen.observe_tokens(vec![one.clone()], start),
            std::slice::from_ref(&one)
        );
        assert_eq!(
            seen.observe_tokens(vec![one.clone()], start + SPENT_TOKEN_GRACE),
            std::slice::from_ref(&one)
        );
        assert_eq!(
            seen.observe_tokens(Vec::new(), start + SPENT_TOKEN_GRACE * 3 / 2),
            [one]
        );
        assert!(
            seen.observe_tokens(Vec::new(), start + SPENT_TOKEN_GRACE * 2)
                .is_empty()
        );
    }

    #[test]
    fn who_waits_for_approval_may_come_again_and_who_was_refused_may_not() {
        let now = Timestamp::now();
        let identity = ClusterIdentity::generate().unwrap();
        let record = |incoming: &str, since: Timestamp| -> ForeignCluster {
            let annotations = json!({
                annotations::PENDING_APPROVAL: since.to_string(), annotations::PUBLIC_KEY: BASE64.encode(identity.public_key()),
            });
            serde_json::from_value(json!({
                "metadata": { "name": "rome", "annotations": annotations },
                "spec": { "clusterID": identity.id(), "incomingPeering": incoming },
            }))
            .unwrap()
        };
        let day = Duration::from_hours(24);
        assert_eq!(
            waiting_consumer_key(&record("Auto", now), day, now),
            Some(*identity.public_key())
        );
        assert_eq!(
            waiting_consumer_key(&record("Auto", Timestamp::UNIX_EPOCH), day, now),
            None
        );
        assert_eq!(
            waiting_consumer_key(&record("Yes", Timestamp::UNIX_EPOCH), day, now),
            Some(*identity.public_key())
        );
        assert_eq!(waiting_consumer_key(&record("No", now), day, now), None);
        let mut other = record("Yes", now);
        other.spec.cluster_id = ClusterId::of_public_key(&[1; 32]);
        assert_eq!(waiting_consumer_key(&other, day, now), None);
    }
}
