//! Which pods of consumers are charged: what the recorder needs to know of them at the end of a period.

use std::sync::Arc;

use jiff::Timestamp;
use liqo_api::Key;
use liqo_metering::{Charges, Entry, Period, Seconds};
use liqo_offloading_rules::pod::metering::{Metering, entries, with_pod};
use liqo_offloading_rules::pod::remote_pod::RemotePod;

use crate::metering::{GRACE, Side};
use crate::provider::state::Provider;
use crate::provider::triggers;

/// The provider's side of metering.
pub struct ProviderSide(pub Arc<Provider>);

impl Provider {
    /// How the pod of this shadow pod is measured; `None` if its tenancy has no contract. `recorded`: UID of the pod in its status.
    pub fn metering(&self, shadow: &Key, recorded: Option<&str>) -> Option<Metering> {
        let charge = self.recorder.contract(&shadow.namespace)?.charge;
        let settled = self.recorder.settled_as_running(&shadow.namespace, &shadow.name);
        let is_unseen = recorded.is_some_and(|uid| !self.index.lock().has_seen(shadow, uid));
        let unwatched_since = self.context.unwatched_since.filter(|_| is_unseen);
        let is_stored = self.recorder.is_stored(&shadow.namespace, &shadow.name);
        Some(Metering { charge, settled, is_stored, unwatched_since })
    }

    /// Stores what the pods used that a shadow pod left behind, because somebody removed it by force. Returns whether that is done.
    pub fn store_orphans(&self, shadow: &Key, pods: &[Arc<RemotePod>]) -> bool {
        let (Some(metering), now) = (self.metering(shadow, None), self.context.now()) else { return true };
        let gone = |pod: &Arc<RemotePod>| {
            let charges = with_pod(&Charges::default(), pod, &metering, now);
            charges.gone(now.as_second(), None).entries(&shadow.name, &pod.pool, now.as_second())
        };
        metering.is_stored || self.recorder.store(&shadow.namespace, &shadow.name, pods.iter().flat_map(gone).collect())
    }
}

impl Side for ProviderSide {
    fn open(&self, namespace: &str, now: Seconds) -> Option<Vec<Entry>> {
        let provider = &self.0;
        let time = Timestamp::from_second(now).ok()?;
        let mut open = Vec::new();
        for (key, shadow) in provider.shadows.in_namespace(namespace) {
            let metering = provider.metering(&key, shadow.reported.remote_uid.as_deref())?;
            let mut pods = provider.index.lock().of(&key);
            pods.retain(|pod| provider.is_mapped_for(&pod.key.namespace, namespace));
            open.extend(entries(&key.name, &shadow, &pods, &metering, time));
        }
        Some(open)
    }

    fn parts(&self, entry: &Entry, period_seconds: u32) -> Vec<(Period, Entry)> {
        Period::parts(entry, period_seconds)
    }

    fn stored(&self, namespace: &str, pods: Vec<String>) {
        let keys = pods.into_iter().map(|pod| Key::new(namespace, pod));
        self.0.queues.add(triggers::shadow_pods(keys));
    }

    fn grace(&self) -> Seconds {
        GRACE
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::BodyExt as _;
    use kube::{Client, client::Body};
    use liqo_api::{ClusterId, labels, tenant_namespace};
    use liqo_controller_runtime::Context;
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
                drop(body.collect().await);
                if parts.uri.query().is_some_and(|query| query.contains("watch=true")) {
                    std::future::pending::<()>().await;
                }
                let kind = parts.uri.path().rsplit('/').next().unwrap_or_default();
                let items = objects.get(kind).cloned().unwrap_or_else(|| json!([]));
                let list = json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": items });
                Ok::<_, Infallible>(http::Response::new(Body::from(list.to_string().into_bytes())))
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
            "metadata": { "namespace": tenant_namespace(&rome()), "name": "contract-c", "uid": "c", "resourceVersion": "1" },
            "spec": { "document": "", "terms": terms, "inForceSince": since } })
    }

    /// A shadow pod whose pod (UID `u-NAME`) is charged since this time.
    fn shadow(name: &str, since: Seconds, deleted: Option<Timestamp>) -> Value {
        let template = json!({ "metadata": { "name": name }, "spec": { "containers": [] } }).to_string();
        json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ShadowPod",
            "metadata": { "namespace": tenant_namespace(&rome()), "name": name, "uid": name, "resourceVersion": "1",
                "deletionTimestamp": deleted, "finalizers": ["liqo.io/shadow-pod"] },
            "spec": { "namespace": "demo", "pool": "default", "pod": template },
            "status": { "phase": "Created", "remoteUID": format!("u-{name}"), "charges": format!("{since}- cpu=1,pods=1") } })
    }

    fn pod(name: &str) -> Value {
        let labels = json!({ labels::CONSUMER_ID: rome(), labels::SHADOW_POD: name, labels::POOL: "default" });
        let container = json!({ "name": "c", "image": "i", "resources": { "requests": { "cpu": "1" } } });
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
        json!([namespace(&tenant_namespace(&rome()), "tenant"), namespace(MAPPED, "mapped")])
    }

    /// A provider with these objects, whose former manager was alive until this time.
    async fn provider(objects: Value, unwatched_since: Timestamp) -> Arc<Provider> {
        let context = testing::context("milan", api_server(objects));
        let provider = Arc::new(Provider::start(Context { unwatched_since: Some(unwatched_since), ..context }));
        assert!(provider.synced().await);
        provider
    }

    #[tokio::test]
    async fn a_pod_that_ended_while_the_manager_was_down_counts_no_longer_than_can_be_shown() {
        let start: Timestamp = "2026-02-01T10:00:00Z".parse().unwrap();
        let (since, second) = (start.as_second(), |seconds: i64| Timestamp::from_second(start.as_second() + seconds).unwrap());
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
        let side = ProviderSide(provider(objects, second(600)).await);
        let mut open: Vec<String> = side
            .open(&tenant_namespace(&rome()), second(4000).as_second())
            .unwrap()
            .iter()
            .map(|entry| format!("{} {} {}", entry.uid, entry.from.at - since, entry.until.at - since))
            .collect();
        open.sort();
        assert_eq!(open, ["deleted 0 730", "deleted-and-gone 0 600", "runs 0 4000", "vanished 0 600"]);
        side.0.context.stop.cancel();
    }
}
