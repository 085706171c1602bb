//! Who may come through our own tunnel to the auth endpoint and the API server: a list that gateways go by.
//!
//! Consumers that have a tenancy here are known by the key of their cluster, those that were only invited by the token that they were
//! given. Both keys follow from what stands here anyway; the list holds public halves only.
//!
//! A token that is spent leads to the auth endpoint for some seconds more, because the answer that it was spent for has to get out.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use data_encoding::{BASE64, HEXLOWER};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, ResourceExt as _,
    api::{ObjectMeta, Patch, PatchParams},
    runtime::watcher,
};
use liqo_api::{ClusterId, ForeignCluster, TUNNEL_GUESTS, Wish, annotations, guests, labels};
use liqo_kit::{Cache, Context, Key};
use liqo_passage::keys;
use serde_json::json;
use tokio::{sync::Notify, time::Instant};

use crate::{
    FIELD_MANAGER,
    auth::tokens::{ONE_TIME, TOKEN},
    decide::{Waiting, waiting},
    namespace::LiqoNamespace,
    objects::KIND_TENANT,
};

/// Tokens end by themselves; so often that is looked at, and what failed is tried again.
const PERIOD: Duration = Duration::from_secs(5);
/// How long the answer to whoever spent a token may take.
const LAST_ANSWER: Duration = Duration::from_secs(10);

/// A token that is out, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// The public key of whoever holds it.
    key: [u8; 32],
    /// When it ends; a date that cannot be read has passed.
    expires_at: Option<Timestamp>,
}

impl Invitation {
    #[allow(clippy::needless_pass_by_value)] // The form that a cache wants.
    fn of(secret: Secret) -> Option<Self> {
        let token = secret.data.as_ref()?.get(TOKEN).map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned())?;
        // Many may hold a reusable one, and whoever called last by its key would take the session from all others.
        if secret.labels().get(labels::PEERING_TOKEN).is_none_or(|kind| kind != ONE_TIME) {
            return None;
        }
        let expires_at = secret.annotations().get(annotations::EXPIRES_AT);
        let expires_at = expires_at.map(|text| text.parse().unwrap_or(Timestamp::MIN));
        (!token.is_empty()).then(|| Self { key: keys::public(keys::of_token(&token)), expires_at })
    }
}

/// What is known of those who may come.
pub struct Known {
    /// The tenancies.
    pub namespaces: Cache<LiqoNamespace>,
    /// The peers; some of them wait for approval.
    pub records: Cache<ForeignCluster>,
    /// Told when one of these changed.
    pub news: Arc<Notify>,
}

/// The list, as it is to be. Whose tenancy is being ended still hears that, and no more.
fn wanted(
    namespaces: &[Arc<LiqoNamespace>],
    noted: &[[u8; 32]],
    invitations: &[Arc<Invitation>],
    now: Timestamp,
) -> BTreeMap<String, String> {
    let invited = invitations.iter().filter(|invitation| invitation.expires_at.is_none_or(|at| at > now));
    let invited = invited.map(|invitation| (invitation.key, guests::AUTH));
    let noted = noted.iter().filter_map(|key| Some((keys::of_cluster(key)?, guests::AUTH)));
    let tenants = namespaces.iter().filter(|namespace| namespace.kind == KIND_TENANT && !namespace.terminating);
    let tenants = tenants.filter_map(|tenant| {
        let scope = if tenant.ending { guests::AUTH } else { guests::ALL };
        Some((keys::of_cluster(&tenant.public_key?)?, scope))
    });
    invited.chain(noted).chain(tenants).map(|(key, scope)| (HEXLOWER.encode(&key), scope.to_owned())).collect()
}

/// The key of a consumer that waits for approval, or was approved, if that was written down.
fn noted(record: &ForeignCluster, expiry: Duration, now: Timestamp) -> Option<[u8; 32]> {
    let may_come = record.spec.incoming_peering == Wish::Yes || matches!(waiting(record, expiry, now), Waiting::For(_));
    let key = BASE64.decode(record.annotations().get(annotations::PUBLIC_KEY)?.as_bytes()).ok()?.try_into().ok()?;
    (may_come && ClusterId::of_public_key(&key) == record.spec.cluster_id).then_some(key)
}

/// The tokens that are out, and those that were a moment ago.
#[derive(Default)]
struct Invitations(Vec<(Arc<Invitation>, Instant)>);

impl Invitations {
    fn see(&mut self, present: Vec<Arc<Invitation>>, now: Instant) -> Vec<Arc<Invitation>> {
        self.0.retain(|(one, seen)| !present.contains(one) && now.saturating_duration_since(*seen) < LAST_ANSWER);
        self.0.extend(present.into_iter().map(|one| (one, now)));
        self.0.iter().map(|(one, _)| one.clone()).collect()
    }
}

/// Keeps the list until `context.stop`.
pub async fn run(context: Context, known: Known) {
    let wake = known.news.clone();
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &context.namespace);
    let tokens = watcher::Config::default().labels(labels::PEERING_TOKEN);
    let invitations = Cache::watch(secrets, tokens, context.stop.clone(), Invitation::of, move |_, _, _| wake.notify_one());
    let wake = known.news.clone();
    let lists: Api<ConfigMap> = Api::namespaced(context.client.clone(), &context.namespace);
    let only_ours = watcher::Config::default().fields(&format!("metadata.name={TUNNEL_GUESTS}"));
    let keys_of = |list: ConfigMap| Some(list.data.unwrap_or_default());
    let list = Cache::watch(lists.clone(), only_ours, context.stop.clone(), keys_of, move |_, _, _| wake.notify_one());
    if !(invitations.synced().await && list.synced().await) {
        return;
    }
    let (mut seen, mut written) = (Invitations::default(), BTreeMap::new());
    loop {
        let invited = seen.see(values(&invitations), Instant::now());
        let standing = list.get(&Key::new(&context.namespace, TUNNEL_GUESTS));
        match keep(&context, &lists, standing.as_deref(), &written, &known, &invited).await {
            Ok(now) => written = now,
            Err(error) => tracing::warn!(%error, "cannot write the list of those who may come through the tunnel, trying again"),
        }
        tokio::select! {
            () = context.stop.cancelled() => return,
            () = known.news.notified() => {}
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

fn values<R: Send + Sync + PartialEq + 'static>(cache: &Cache<R>) -> Vec<Arc<R>> {
    cache.all().into_iter().map(|(_, one)| one).collect()
}

/// What is to be written so that the list is as wanted; none if it is. What others wrote into it lets nobody in. What was `written`
/// last may not be seen in it yet, and is taken back all the same.
fn changes<'a>(
    standing: &'a BTreeMap<String, String>,
    written: &'a BTreeMap<String, String>,
    wanted: &'a BTreeMap<String, String>,
) -> Option<BTreeMap<&'a String, Option<&'a String>>> {
    let there = standing.keys().chain(written.keys());
    let removed = there.filter(|key| !wanted.contains_key(*key)).map(|key| (key, None));
    let added = wanted.iter().filter(|(key, scope)| standing.get(*key) != Some(scope)).map(|(key, scope)| (key, Some(scope)));
    let changes: BTreeMap<_, _> = removed.chain(added).collect();
    (!changes.is_empty()).then_some(changes)
}

/// Writes what the list as it stands lacks or has too much, and returns what is in it then.
async fn keep(
    context: &Context,
    api: &Api<ConfigMap>,
    standing: Option<&BTreeMap<String, String>>,
    written: &BTreeMap<String, String>,
    known: &Known,
    invited: &[Arc<Invitation>],
) -> kube::Result<BTreeMap<String, String>> {
    let spec = context.config().spec.clone();
    let wanted = if spec.network.enabled && spec.network.api_through_tunnel {
        let (expiry, now) = (Duration::from_secs(spec.peering.approval_expiry_seconds.into()), Timestamp::now());
        let noted: Vec<_> = known.records.all().iter().filter_map(|(_, record)| noted(record, expiry, now)).collect();
        wanted(&values(&known.namespaces), &noted, invited, now)
    } else {
        BTreeMap::new()
    };
    let none = BTreeMap::new();
    let Some(changes) = changes(standing.unwrap_or(&none), written, &wanted) else { return Ok(wanted) };
    if standing.is_some() {
        let ours = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        api.patch(TUNNEL_GUESTS, &ours, &Patch::Merge(json!({ "data": changes }))).await?;
        return Ok(wanted);
    }
    let list = ConfigMap {
        metadata: ObjectMeta {
            name: Some(TUNNEL_GUESTS.to_owned()),
            labels: Some([(labels::MANAGED.to_owned(), "true".to_owned())].into()),
            ..ObjectMeta::default()
        },
        data: Some(wanted.clone()),
        ..ConfigMap::default()
    };
    api.patch(TUNNEL_GUESTS, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&list)).await?;
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        auth::{server::Consumer, tokens},
        identity::ClusterIdentity,
        objects,
    };

    fn secret(token: &str, kind: &str, expires_at: Option<&str>) -> Secret {
        tokens::secret("t", kind, token, expires_at.map(|at| at.parse().unwrap()))
    }

    fn invitation(token: &str, expires_at: Option<&str>) -> Arc<Invitation> {
        Invitation::of(secret(token, ONE_TIME, expires_at)).unwrap().into()
    }

    #[test]
    fn a_token_that_many_may_hold_invites_nobody() {
        assert!(Invitation::of(secret("many", tokens::ONE_TIME, None)).is_some());
        assert_eq!(Invitation::of(secret("many", tokens::REUSABLE, None)), None);
        let mut unlabelled = secret("many", tokens::ONE_TIME, None);
        unlabelled.metadata.labels = None;
        assert_eq!(Invitation::of(unlabelled), None);
    }

    #[test]
    fn what_others_write_into_the_list_goes_and_what_they_take_from_it_comes_back() {
        let list = |all: &[(&str, &str)]| all.iter().map(|(key, scope)| ((*key).to_owned(), (*scope).to_owned())).collect();
        let wanted: BTreeMap<String, String> = list(&[("a", "All"), ("b", "Auth")]);
        let (empty, off) = (BTreeMap::new(), BTreeMap::new());
        assert_eq!(changes(&wanted, &wanted, &wanted), None);
        let standing = list(&[("b", "All"), ("foreign", "All")]);
        let change = json!(changes(&standing, &wanted, &wanted).unwrap());
        assert_eq!(change, json!({ "a": "All", "b": "Auth", "foreign": null }));
        assert_eq!(json!(changes(&standing, &empty, &off).unwrap()), json!({ "b": null, "foreign": null }));
        assert_eq!(changes(&empty, &empty, &off), None);
        // It was written, and the watch does not know yet.
        assert_eq!(json!(changes(&standing, &wanted, &off).unwrap()), json!({ "a": null, "b": null, "foreign": null }));
    }

    #[test]
    fn who_has_a_token_gets_to_the_door_and_who_has_a_tenancy_gets_in() {
        let now = "2026-06-01T12:00:00Z".parse().unwrap();
        let (identity, waits) = (ClusterIdentity::generate().unwrap(), ClusterIdentity::generate().unwrap());
        let consumer =
            Consumer { id: identity.id().clone(), public_key: *identity.public_key(), name: "rome".into(), protocol_version: 1 };
        let mut tenant = LiqoNamespace::of(objects::tenant(&consumer)).unwrap();
        let invitations = [invitation("good", Some("2026-06-01T13:00:00Z")), invitation("over", Some("2026-06-01T11:00:00Z"))];
        let list = wanted(&[tenant.clone().into()], &[*waits.public_key()], &invitations, now);
        let of = |key: [u8; 32]| list.get(&HEXLOWER.encode(&keys::public(key))).map(String::as_str);
        assert_eq!(of(keys::of_token("good")), Some(guests::AUTH));
        assert_eq!(of(keys::of_token("over")), None);
        assert_eq!(of(identity.tunnel_key().unwrap()), Some(guests::ALL));
        assert_eq!(of(waits.tunnel_key().unwrap()), Some(guests::AUTH));
        tenant.ending = true;
        let list = wanted(&[tenant.clone().into()], &[], &[], now);
        assert_eq!(list.values().collect::<Vec<_>>(), [guests::AUTH], "it has to hear that it is over");
        tenant.terminating = true;
        assert!(wanted(&[tenant.into()], &[], &[], now).is_empty());
    }

    #[test]
    fn the_answer_to_who_spent_a_token_gets_out_and_nothing_after_it() {
        let (one, start) = (invitation("one", None), Instant::now());
        let mut seen = Invitations::default();
        assert_eq!(seen.see(vec![one.clone()], start), std::slice::from_ref(&one));
        assert_eq!(seen.see(vec![one.clone()], start + LAST_ANSWER), std::slice::from_ref(&one));
        assert_eq!(seen.see(Vec::new(), start + LAST_ANSWER * 3 / 2), [one]);
        assert!(seen.see(Vec::new(), start + LAST_ANSWER * 2).is_empty());
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
        let day = Duration::from_secs(86400);
        assert_eq!(noted(&record("Auto", now), day, now), Some(*identity.public_key()));
        assert_eq!(noted(&record("Auto", Timestamp::UNIX_EPOCH), day, now), None);
        assert_eq!(noted(&record("Yes", Timestamp::UNIX_EPOCH), day, now), Some(*identity.public_key()));
        assert_eq!(noted(&record("No", now), day, now), None);
        let mut other = record("Yes", now);
        other.spec.cluster_id = ClusterId::of_public_key(&[1; 32]);
        assert_eq!(noted(&other, day, now), None);
    }
}
