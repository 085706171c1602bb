//! What is kept of each shadow pod.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodSpec;
use liqo_api::{ShadowPod, finalizers};
use liqo_kit::{Key, requests::Effective};
use serde::Deserialize as _;
use serde_json::Value;

use super::{
    admission::{Account, Turn, negative_quantity},
    dns_names, finalizer,
    ledger::Wish,
    told::Told,
};

/// A larger pod than this is not kept, but read again when it is to be created: a consumer may send many that never run.
pub const LARGEST_KEPT: usize = 64 * 1024;

/// What is kept of a shadow pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Shadow {
    /// Its UID.
    pub uid: String,
    /// When it was created.
    pub created: Timestamp,
    /// Generation of its spec.
    pub generation: i64,
    /// Namespace of the home pod.
    pub namespace: String,
    /// The pool that it uses.
    pub pool: String,
    /// Name of the pod, at home and here; empty when it has none that could be one.
    pub pod_name: String,
    /// Whether the pod may run again after it ended.
    pub restarts: bool,
    /// The grace that is wanted, if the home pod is being deleted.
    pub deletion_grace: Option<i64>,
    /// Whether the shadow pod itself is being deleted.
    pub deleted: bool,
    /// Where among its finalizers the one stands by which it stays until its remote pod is gone.
    pub held: Option<usize>,
    /// What its status says.
    pub told: Told,
    /// The pod to run. Kept only while there is none, and only if it is small.
    pub pod: Option<Arc<Value>>,
    /// What that pod is charged, as far as it can be told before the provider's own admission. Kept only while there is none.
    pub charge: Option<Effective>,
}

impl Shadow {
    /// What is kept of this shadow pod.
    pub fn reduce(shadow: ShadowPod) -> Self {
        let text = |pointer: &str| shadow.spec.pod.pointer(pointer).and_then(Value::as_str);
        let told = Told::of(shadow.status.as_ref());
        let waits = told.remote_uid.is_none()
            && !told.phase.is_final()
            && shadow.metadata.deletion_timestamp.is_none()
            && shadow.spec.deletion.is_none();
        Self {
            uid: shadow.metadata.uid.unwrap_or_default(),
            created: shadow.metadata.creation_timestamp.map(|time| time.0).unwrap_or_default(),
            generation: shadow.metadata.generation.unwrap_or_default(),
            namespace: shadow.spec.namespace,
            pool: shadow.spec.pool,
            pod_name: text("/metadata/name").filter(|name| dns_names::is_subdomain(name)).unwrap_or_default().to_owned(),
            restarts: text("/spec/restartPolicy").is_none_or(|policy| policy == "Always"),
            deletion_grace: shadow.spec.deletion.map(|deletion| deletion.grace_period_seconds.max(0)),
            deleted: shadow.metadata.deletion_timestamp.is_some(),
            held: finalizer::position(shadow.metadata.finalizers.as_ref(), finalizers::SHADOW_POD),
            charge: waits.then(|| charge_of(&shadow.spec.pod)).flatten(),
            pod: (told.remote_uid.is_none() && !told.phase.is_final() && shadow.spec.pod.to_string().len() <= LARGEST_KEPT)
                .then(|| Arc::new(shadow.spec.pod)),
            told,
        }
    }

    /// When its turn comes, `name` being that of the shadow pod.
    pub fn turn(&self, name: &str) -> Turn {
        Turn { created: self.created, uid: name.to_owned() }
    }

    /// The room that it waits for, if it has no pod.
    pub fn wish(&self, key: &Key) -> Option<Wish> {
        let account = Account { tenant: key.namespace.clone(), pool: self.pool.clone() };
        Some(Wish { account, shadow: key.clone(), turn: self.turn(&key.name), charge: self.charge.clone()? })
    }

    /// Whether a change concerns more than the status, which only the provider writes.
    pub fn differs_beyond_status(&self, other: &Self) -> bool {
        (&self.uid, self.generation, self.deleted, self.held) != (&other.uid, other.generation, other.deleted, other.held)
    }
}

/// What a pod is charged; nothing of one that will be refused for it.
fn charge_of(pod: &Value) -> Option<Effective> {
    let spec = PodSpec::deserialize(pod.get("spec")?).ok()?;
    negative_quantity(&spec).is_none().then(|| Effective::of_pod(&spec))
}
