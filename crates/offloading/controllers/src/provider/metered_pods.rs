//! The pods of consumers that are charged: the facts that the recorder needs about them at the end
//! of a period.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;
use liqo_api::Key;
use liqo_metering::{Period, Seconds, UsageEntry};
use liqo_offloading_rules::pod::metering::{Metering, orphan_usage_entries, usage_entries};
use liqo_offloading_rules::pod::remote_pod::RemotePod;
use liqo_offloading_rules::pod::shadow_pod::ProviderShadowPod;

use crate::metering::{GRACE, MeteringSide, name_of_key};
use crate::provider::state::ProviderState;
use crate::provider::triggers;

/// The provider's side of metering.
pub struct ProviderMetering(pub Arc<ProviderState>);

/// The key under which what the pods of one shadow pod used is stored. A later one of the same name
/// has entries of its own.
pub fn life_key(name: &str, uid: &str) -> String {
    format!("{name}/{uid}")
}

impl ProviderState {
    /// Returns the [`Metering`] of the pod of this shadow pod; `None` if its tenancy has no
    /// contract. `uid`: that of the shadow pod. `recorded`: UID of the pod in its status.
    pub fn metering(&self, shadow: &Key, uid: &str, recorded: Option<&str>) -> Option<Metering> {
        let is_unseen = recorded.is_some_and(|uid| !self.index.lock().has_seen(shadow, uid));
        let unwatched_since = self.context.unwatched_since.filter(|_| is_unseen);
        Some(Metering {
            unwatched_since,
            ..self.metering_of(shadow, &life_key(&shadow.name, uid))?
        })
    }

    fn metering_of(&self, shadow: &Key, life: &str) -> Option<Metering> {
        let charge = self.recorder.latest_contract(&shadow.namespace)?.charge;
        let settled = self
            .recorder
            .settled_until_running(&shadow.namespace, &shadow.name);
        let since = self
            .recorder
            .stored_before(&shadow.namespace, &shadow.name, life);
        let is_stored = self.recorder.is_stored(&shadow.namespace, life);
        Some(Metering {
            charge,
            settled,
            since,
            is_stored,
            unwatched_since: None,
        })
    }

    /// Stores what the pods used of shadow pods of this name that are gone. Returns whether all of
    /// it is stored. `pods`: those of this name that still exist.
    pub fn store_left(&self, key: &Key, pods: &[Arc<RemotePod>]) -> bool {
        let (left, now) = (self.shadow_index.lock().gone_pods(key), self.context.now());
        let mut all_stored = true;
        for shadow in &left {
            if self.store_gone_pod(key, shadow, pods, now) {
                self.shadow_index.lock().forget_stored(key, &shadow.uid);
            } else {
                all_stored = false;
            }
        }
        all_stored
    }

    /// Stores what the pods of one shadow pod used. Returns whether it is stored.
    fn store_gone_pod(
        &self,
        key: &Key,
        shadow: &ProviderShadowPod,
        pods: &[Arc<RemotePod>],
        now: Timestamp,
    ) -> bool {
        let metering = self.metering(key, &shadow.uid, shadow.reported.remote_uid.as_deref());
        let Some(metering) = metering.filter(|metering| !metering.is_stored) else {
            return true;
        };
        let entries = usage_entries(&key.name, shadow, pods, &metering, now);
        self.recorder
            .store_entries(&key.namespace, &life_key(&key.name, &shadow.uid), entries)
    }

    /// Whether something is not stored of a shadow pod of this name that is gone.
    pub fn has_left(&self, key: &Key) -> bool {
        let left = self.shadow_index.lock().gone_pods(key);
        left.iter().any(|shadow| {
            let life = life_key(&key.name, &shadow.uid);
            shadow.reported.charges.is_some() && !self.recorder.is_stored(&key.namespace, &life)
        })
    }

    /// The pods of a shadow pod of this name that are in a namespace of the tenant.
    fn mapped_pods_of(&self, shadow: &Key, tenant: &str) -> Vec<Arc<RemotePod>> {
        let mut pods = self.index.lock().pods_of_shadow(shadow);
        pods.retain(|pod| self.is_mapped_for(&pod.key.namespace, tenant));
        pods
    }

    /// Stores what these pods used, whose shadow pod was gone before this process listed it.
    /// Returns whether that is done.
    pub fn store_orphans(&self, key: &Key, pods: &[Arc<RemotePod>]) -> bool {
        let now = self.context.now();
        pods.iter().fold(true, |all, pod| {
            let Some((life, metering)) = self.metering_of_orphan(key, pod) else {
                return all;
            };
            let entries = orphan_usage_entries(&key.name, pod, &metering, now);
            (metering.is_stored || self.recorder.store_entries(&key.namespace, &life, entries))
                && all
        })
    }

    /// Returns the [`Metering`] of a pod without shadow pod, and its key.
    fn metering_of_orphan(&self, key: &Key, pod: &RemotePod) -> Option<(String, Metering)> {
        let life = life_key(&key.name, &format!("/{}", pod.uid));
        let mut metering = self.metering_of(key, &life)?;
        // The entry of its shadow pod has it until this cluster deleted it.
        metering.is_stored |= metering.since > pod.created && pod.deletion_grace.is_some();
        Some((life, metering))
    }
}

impl MeteringSide for ProviderMetering {
    fn open_entries(&self, namespace: &str, now: Seconds) -> Option<Vec<UsageEntry>> {
        let provider = &self.0;
        let time = Timestamp::from_second(now).ok()?;
        let mut open = Vec::new();
        let shadows = provider.shadow_index.lock().in_namespace(namespace);
        for (key, shadow) in &shadows {
            let metering =
                provider.metering(key, &shadow.uid, shadow.reported.remote_uid.as_deref())?;
            if !metering.is_stored {
                open.extend(usage_entries(
                    &key.name,
                    shadow,
                    &provider.mapped_pods_of(key, namespace),
                    &metering,
                    time,
                ));
            }
        }
        // Pods whose shadow pod is gone, and that are not stored yet.
        let known: HashSet<&Key> = shadows.iter().map(|(key, _)| key).collect();
        let orphans = provider.index.lock().shadows_in(namespace);
        for key in orphans.iter().filter(|key| !known.contains(key)) {
            for pod in provider.mapped_pods_of(key, namespace) {
                let (_, metering) = provider.metering_of_orphan(key, &pod)?;
                if !metering.is_stored {
                    open.extend(orphan_usage_entries(&key.name, &pod, &metering, time));
                }
            }
        }
        Some(open)
    }

    fn entry_parts(&self, entry: &UsageEntry, period_seconds: u32) -> Vec<(Period, UsageEntry)> {
        Period::parts(entry, period_seconds)
    }

    fn entries_stored(&self, namespace: &str, pods: Vec<String>) {
        let keys = pods.iter().map(|pod| Key::new(namespace, name_of_key(pod)));
        self.0.queues.add(triggers::shadow_pods_due(keys));
    }

    fn completion_grace(&self) -> Seconds {
        GRACE
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use http_body_util::BodyExt as _;
    use kube::{Client, client::Body};
    use liqo_api::{ClusterId, labels, tenant_namespace};
    use liqo_controller_runtime::Context;
    use liqo_metering::Charges;
    use liqo_offloading_rules::pod::metering::charges_with_pod;
    use liqo_offloading_rules::pod::reported_status::ReportedStatus;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing;

    const MAPPED: &str = "demo-rome";

    fn rome() -> ClusterId {
        ClusterId::of_public_key(&[7; 32])
    }

    /// An API server with these objects, by the last part of the path at which they are listed.
    fn api_server(objects: Value) -> Client {
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let objects = objects.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                if parts.method != http::Method::GET {
                    return Ok(http::Response::new(Body::from(body)));
                }
                if parts
                    .uri
                    .query()
                    .is_some_and(|query| query.contains("watch=true"))
                {
                    std::future::pending::<()>().await;
                }
                let kind = parts.uri.path().rsplit('/').next().unwrap_or_default();
                let items = objects.get(kind).cloned().unwrap_or_else(|| json!([]));
                let list = json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": items });
                Ok::<_, Infallible>(http::Response::new(Body::from(
                    list.to_string().into_bytes(),
                )))
            }
        });
        Client::new(service, "default")
    }

    fn contract() -> Value {
        let since = "2026-01-01T00:00:00Z";
        let limits = json!({ "podSecurity": "baseline", "maxNamespaces": 1, "maxServices": 1, "maxEndpoints": 1, "charge": "Requests",
            "defaultLimitPercentage": 800 });
        let terms = json!({ "contract": "c", "version": 1, "provider": ClusterId::of_public_key(&[1; 32]), "consumer": rome(),
            "commitment": "BestEffort", "pools": [], "classes": {}, "prices": {}, "noticeSeconds": 0, "limits": limits, "start": since,
            "renewal": "None", "meteringPeriodSeconds": 3600 });
        json!({ "apiVersion": "sharing.liqo.io/v1alpha1", "kind": "Contract",
            "metadata": { "namespace": tenant_namespace(&rome()), "name": "contract-c", "uid": "c", "resourceVersion": "1",
                "labels": { labels::CONSUMER_ID: rome() } },
            "spec": { "document": "", "terms": terms, "inForceSince": since } })
    }

    /// A shadow pod whose pod (UID `u-NAME`) is charged since this time.
    fn shadow(name: &str, since: Seconds, deleted: Option<Timestamp>) -> Value {
        let template =
            json!({ "metadata": { "name": name }, "spec": { "containers": [] } }).to_string();
        json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ShadowPod",
            "metadata": { "namespace": tenant_namespace(&rome()), "name": name, "uid": name, "resourceVersion": "1",
                "deletionTimestamp": deleted, "finalizers": ["liqo.io/shadow-pod"] },
            "spec": { "namespace": "demo", "pool": "default", "pod": template },
            "status": { "phase": "Created", "remoteUID": format!("u-{name}"), "charges": format!("{since}- cpu=1,pods=1") } })
    }

    fn pod(name: &str) -> Value {
        let labels = json!({ labels::CONSUMER_ID: rome(), labels::SHADOW_POD: name, labels::POOL: "default" });
        let container =
            json!({ "name": "c", "image": "i", "resources": { "requests": { "cpu": "1" } } });
        json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "namespace": MAPPED, "name": name, "uid": format!("u-{name}"), "resourceVersion": "1", "labels": labels },
            "spec": { "containers": [container] } })
    }

    fn namespaces() -> Value {
        let namespace = |name: &str, kind: &str| {
            let labels = json!({ labels::MANAGED: "true", labels::NAMESPACE_KIND: kind, labels::CONSUMER_ID: rome(),
                labels::HOME_NAMESPACE: "demo" });
            json!({ "apiVersion": "v1", "kind": "Namespace",
                "metadata": { "name": name, "uid": name, "resourceVersion": "1", "labels": labels } })
        };
        json!([
            namespace(&tenant_namespace(&rome()), "tenant"),
            namespace(MAPPED, "mapped")
        ])
    }

    /// A provider with these objects, whose former manager was alive until this time.
    async fn provider(objects: Value, unwatched_since: Timestamp) -> Arc<ProviderState> {
        let context = testing::context("milan", api_server(objects));
        let provider = Arc::new(ProviderState::start(Context {
            unwatched_since: Some(unwatched_since),
            ..context
        }));
        assert!(provider.synced().await);
        provider
    }

    #[tokio::test]
    async fn a_pod_that_ended_while_the_manager_was_down_counts_no_longer_than_can_be_shown() {
        let start: Timestamp = "2026-02-01T10:00:00Z".parse().unwrap();
        let (since, second) = (start.as_second(), |seconds: i64| {
            Timestamp::from_second(start.as_second() + seconds).unwrap()
        });
        let shadows = json!([
            shadow("runs", since, None),
            shadow("vanished", since, None),
            // Nobody deleted its remote pod.
            shadow("deleted", since, Some(second(700))),
            shadow("deleted-and-gone", since, Some(second(700))),
        ]);
        let pods = json!([pod("runs"), pod("deleted")]);
        let objects = json!({ "contracts": [contract()], "shadowpods": shadows, "pods": pods, "namespaces": namespaces() });
        // The manager was down from second 600 until after the end of the period.
        let side = ProviderMetering(provider(objects, second(600)).await);
        let mut open: Vec<String> = side
            .open_entries(&tenant_namespace(&rome()), second(4000).as_second())
            .unwrap()
            .iter()
            .map(|entry| {
                format!(
                    "{} {} {}",
                    entry.uid,
                    entry.from.at - since,
                    entry.until.at - since
                )
            })
            .collect();
        open.sort();
        assert_eq!(
            open,
            [
                "deleted 0 730",
                "deleted-and-gone 0 600",
                "runs 0 4000",
                "vanished 0 600"
            ]
        );
        side.0.context.stop.cancel();
    }

    fn now() -> Seconds {
        testing::clock().now().as_second()
    }

    /// The shadow pod of the first life as the provider keeps it, and the pod that it left behind.
    fn first_life(since: Seconds) -> (Key, Arc<ProviderShadowPod>, Arc<RemotePod>) {
        let first = serde_json::from_value(shadow("web", since, None)).unwrap();
        let mut left_pod = pod("web");
        left_pod["metadata"]["creationTimestamp"] =
            Timestamp::from_second(since).unwrap().to_string().into();
        let left_pod = RemotePod::from_pod(serde_json::from_value(left_pod).unwrap()).unwrap();
        (
            Key::new(tenant_namespace(&rome()), "web"),
            Arc::new(ProviderShadowPod::from_shadow_pod(first)),
            Arc::new(left_pod),
        )
    }

    #[tokio::test]
    async fn a_second_shadow_pod_of_the_same_name_is_metered_after_the_first() {
        let objects = json!({ "contracts": [contract()], "namespaces": namespaces() });
        let provider = provider(objects, testing::clock().now()).await;
        tokio::spawn(
            provider
                .recorder
                .clone()
                .run(Arc::new(ProviderMetering(provider.clone()))),
        );
        let (key, first, left_pod) = first_life(now() - 100);
        let second = Arc::new(ProviderShadowPod {
            uid: "second".into(),
            reported: ReportedStatus::default(),
            ..ProviderShadowPod::clone(&first)
        });
        // Without its finalizer, one object replaces the other, and its pod goes on for its grace.
        provider
            .shadow_index
            .lock()
            .apply_change(&key, Some(&first));
        provider
            .shadow_index
            .lock()
            .apply_change(&key, Some(&second));
        let pods = [left_pod.clone()];
        assert!(
            !provider.store_left(&key, &pods),
            "the entry of the first waits"
        );
        tokio::time::timeout(Duration::from_secs(20), async {
            while !provider.store_left(&key, &pods) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap();
        assert!(
            provider.recorder.is_stored(&key.namespace, "web/web")
                && provider.shadow_index.lock().gone_pods(&key).is_empty()
        );
        let metering = provider.metering(&key, "second", None).unwrap();
        assert!(!metering.is_stored, "its pods are metered, too");
        let charges = charges_with_pod(
            &Charges::default(),
            &left_pod,
            &metering,
            Timestamp::from_second(now() + 500).unwrap(),
        );
        assert!(
            charges.charged_from().unwrap() >= now() - 50,
            "the first has the seconds before: {charges}"
        );
        provider.context.stop.cancel();
    }

    #[tokio::test]
    async fn a_pod_whose_shadow_pod_was_removed_by_force_counts_until_its_entry_is_stored() {
        let mut alone = pod("orphan");
        alone["metadata"]["creationTimestamp"] = Timestamp::from_second(now() - 50)
            .unwrap()
            .to_string()
            .into();
        let objects =
            json!({ "contracts": [contract()], "namespaces": namespaces(), "pods": [alone] });
        let side = ProviderMetering(provider(objects, testing::clock().now()).await);
        let (key, first, left_pod) = first_life(now() - 100);
        let open = || {
            let open = side.open_entries(&key.namespace, now()).unwrap();
            let mut pods: Vec<String> = open.into_iter().map(|entry| entry.uid).collect();
            pods.sort();
            pods
        };
        assert_eq!(open(), ["orphan"], "its shadow pod was never seen");
        side.0.shadow_index.lock().apply_change(&key, Some(&first));
        side.0.shadow_index.lock().apply_change(&key, None);
        assert_eq!(
            open(),
            ["orphan", "web"],
            "between the watch event and the entry"
        );
        assert!(!side.0.store_left(&key, &[left_pod]));
        assert_eq!(open(), ["orphan", "web"], "while the entry waits");
        side.0.recorder.forget(&key.namespace, "web");
        assert!(!side.0.store_left(&key, &[]), "the entry still waits");
        side.0.context.stop.cancel();
    }
}
