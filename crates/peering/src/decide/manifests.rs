//! The Kubernetes objects of a peering.

use std::collections::BTreeMap;

use data_encoding::BASE64;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::{
            Namespace, ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus, Secret,
            ServiceAccount,
        },
        rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{MicroTime, Time},
    },
};
use kube::api::ObjectMeta;
use liqo_api::{
    CONTROLLER_MANAGER, ClusterId, annotations, consumer_service_account, labels, leases,
    peer_namespace::{PeerNamespace, PeerNamespaceKind},
    provider_namespace, roles, tenant_namespace,
};

use super::access::GrantedConsumer;

/// Name of the `RoleBinding` that gives the manager rights in a namespace that it created.
const MANAGER_BINDING: &str = "liqo-manager";

/// Name of the `ResourceQuota` in a tenant namespace.
pub const QUOTA: &str = "liqo-tenant";

/// Annotation on a tenant namespace: the tenancy has been ending since this time (RFC 3339).
pub const ENDING: &str = "liqo.io/ending";

/// A consumer's tokens may be renewed without its key for this time.
const SESSION_SECONDS: i64 = 24 * 3600;

/// A consumer's namespace at the provider.
pub fn namespace_of_tenant(consumer: &GrantedConsumer) -> Namespace {
    let mut object = labelled_namespace(
        tenant_namespace(&consumer.id),
        PeerNamespaceKind::Tenant,
        &consumer.id,
    );
    object.metadata.annotations = Some(BTreeMap::from([
        (
            annotations::PUBLIC_KEY.to_owned(),
            BASE64.encode(&consumer.public_key),
        ),
        (annotations::CLUSTER_NAME.to_owned(), consumer.name.clone()),
    ]));
    object
}

/// The consumer's own namespace for one provider.
pub fn namespace_of_provider(id: &ClusterId) -> Namespace {
    labelled_namespace(provider_namespace(id), PeerNamespaceKind::Provider, id)
}

fn labelled_namespace(name: String, kind: PeerNamespaceKind, peer: &ClusterId) -> Namespace {
    let peer = peer.clone();
    let mut all = PeerNamespace { peer, kind }.labels();
    // Nobody has pods there.
    all.insert(
        "pod-security.kubernetes.io/enforce".to_owned(),
        "restricted".to_owned(),
    );
    Namespace {
        metadata: ObjectMeta {
            name: Some(name),
            labels: Some(all),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    }
}

/// The manager's own rights in a namespace that it created.
pub fn manager_binding(liqo_namespace: &str) -> RoleBinding {
    account_binding(
        MANAGER_BINDING,
        ("ClusterRole", roles::OWN_NAMESPACE),
        CONTROLLER_MANAGER,
        liqo_namespace,
    )
}

/// The consumer's rights in its tenant namespace.
pub fn tenant_binding(consumer: &ClusterId, liqo_namespace: &str) -> RoleBinding {
    account_binding(
        roles::TENANT,
        ("ClusterRole", roles::TENANT),
        &consumer_service_account(consumer),
        liqo_namespace,
    )
}

/// In Liqo's namespace: the right of a consumer to renew its own token, for as long as the auth
/// endpoint does not answer.
pub fn renewal_role(consumer: &ClusterId) -> Role {
    let name = consumer_service_account(consumer);
    let rule = PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec!["serviceaccounts/token".to_owned()]),
        resource_names: Some(vec![name.clone()]),
        verbs: vec!["create".to_owned()],
        ..PolicyRule::default()
    };
    Role {
        metadata: managed_metadata(&name),
        rules: Some(vec![rule]),
    }
}

/// Gives that right to the consumer.
pub fn renewal_binding(consumer: &ClusterId, liqo_namespace: &str) -> RoleBinding {
    let name = consumer_service_account(consumer);
    account_binding(&name, ("Role", &name), &name, liqo_namespace)
}

/// `role`: its kind and name.
fn account_binding(
    name: &str,
    role: (&str, &str),
    account: &str,
    account_namespace: &str,
) -> RoleBinding {
    RoleBinding {
        metadata: managed_metadata(name),
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".into(),
            kind: role.0.into(),
            name: role.1.into(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".into(),
            name: account.into(),
            namespace: Some(account_namespace.into()),
            api_group: None,
        }]),
    }
}

/// The account of a consumer. No pod mounts its token.
pub fn consumer_account(consumer: &ClusterId) -> ServiceAccount {
    let mut metadata = managed_metadata(&consumer_service_account(consumer));
    metadata
        .labels
        .get_or_insert_default()
        .insert(labels::CONSUMER_ID.to_owned(), consumer.to_string());
    ServiceAccount {
        metadata,
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

/// An empty Secret that a consumer's tokens are bound to: deleting it invalidates them.
pub fn session_secret(consumer: &ClusterId) -> Secret {
    let mut metadata = managed_metadata(&consumer_service_account(consumer));
    metadata
        .labels
        .get_or_insert_default()
        .insert(labels::CONSUMER_ID.to_owned(), consumer.to_string());
    Secret {
        metadata,
        type_: Some("Opaque".into()),
        ..Secret::default()
    }
}

/// Whether a session Secret that was created at this time is to be replaced. Who stole a token can
/// renew it until then.
pub fn is_session_over(created: Option<&Time>, now: Timestamp) -> bool {
    created.is_some_and(|created| {
        now.as_second().saturating_sub(created.0.as_second()) >= SESSION_SECONDS
    })
}

/// The maximum number of objects in a tenant namespace. Kubernetes' quotas do not limit bytes:
/// these numbers, times the maximum sizes of [`record_text`](liqo_api::record_text), do. They
/// suffice for 2,000 pods, each with a token of its own, while some are replaced. The provider
/// makes contracts, but a consumer that spoils one by its answer gets another.
pub fn tenant_quota() -> ResourceQuota {
    let hard = [
        ("count/shadowpods.virtualkubelet.liqo.io", "2500"),
        ("count/reflectedobjects.virtualkubelet.liqo.io", "1500"),
        ("count/namespacemaps.virtualkubelet.liqo.io", "10"),
        ("count/resourcerequests.discovery.liqo.io", "10"),
        ("count/networkconfigs.net.liqo.io", "10"),
        ("count/contracts.sharing.liqo.io", "20"),
        ("count/secrets", "2500"),
    ];
    let hard = hard
        .into_iter()
        .map(|(name, number)| (name.to_owned(), Quantity(number.to_owned())))
        .collect();
    ResourceQuota {
        metadata: managed_metadata(QUOTA),
        spec: Some(ResourceQuotaSpec {
            hard: Some(hard),
            ..ResourceQuotaSpec::default()
        }),
        ..ResourceQuota::default()
    }
}

/// The status that makes a new quota usable at once; none if it is usable already.
///
/// Kubernetes refuses objects that a quota limits but does not count yet, and it may take half a
/// minute to count objects of a new kind. A new namespace is empty, so the missing counts are zero.
pub fn first_count(quota: &ResourceQuota) -> Option<ResourceQuotaStatus> {
    let wanted = quota
        .spec
        .as_ref()
        .and_then(|spec| spec.hard.clone())
        .unwrap_or_default();
    let mut used = quota
        .status
        .as_ref()
        .and_then(|status| status.used.clone())
        .unwrap_or_default();
    if wanted.keys().all(|name| used.contains_key(name)) {
        return None;
    }
    for name in wanted.keys() {
        used.entry(name.clone())
            .or_insert_with(|| Quantity("0".to_owned()));
    }
    Some(ResourceQuotaStatus {
        hard: Some(wanted),
        used: Some(used),
    })
}

/// A lease that was never renewed.
pub fn unrenewed_lease(name: &str) -> Lease {
    Lease {
        metadata: managed_metadata(name),
        spec: None,
    }
}

pub fn lease_renewal(holder: &ClusterId, now: Timestamp) -> Lease {
    let spec = LeaseSpec {
        holder_identity: Some(holder.to_string()),
        renew_time: Some(MicroTime(now)),
        lease_duration_seconds: Some(30),
        ..LeaseSpec::default()
    };
    Lease {
        metadata: ObjectMeta::default(),
        spec: Some(spec),
    }
}

/// A text that each renewal of the lease changes.
pub fn lease_version(lease: &Lease) -> Option<String> {
    lease
        .spec
        .as_ref()
        .and_then(|spec| spec.renew_time.as_ref())
        .map(|time| time.0.to_string())
}

/// The two leases of a tenant namespace.
pub fn tenant_leases() -> [Lease; 2] {
    [
        unrenewed_lease(leases::PROVIDER),
        unrenewed_lease(leases::CONSUMER),
    ]
}

fn managed_labels() -> BTreeMap<String, String> {
    BTreeMap::from([(labels::MANAGED.to_owned(), "true".to_owned())])
}

fn managed_metadata(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some(managed_labels()),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt as _;
    use liqo_api::record_text::{MAX_OBJECT_LEN, MAX_POD_LEN, MAX_SECRET_LEN};

    use super::*;

    #[test]
    fn a_tenant_namespace_says_from_its_creation_whose_it_is() {
        let consumer = GrantedConsumer {
            id: ClusterId::of_public_key(&[1; 32]),
            public_key: [1; 32],
            name: "rome".into(),
            protocol_version: 1,
        };
        let object = namespace_of_tenant(&consumer);
        assert_eq!(object.labels()[labels::NAMESPACE_KIND], "tenant");
        assert_eq!(
            object.labels()[labels::CONSUMER_ID],
            consumer.id.to_string()
        );
        assert_eq!(object.annotations()[annotations::CLUSTER_NAME], "rome");
        assert_eq!(
            object.labels()["pod-security.kubernetes.io/enforce"],
            "restricted"
        );
    }

    #[test]
    fn the_consumers_account_lives_where_the_consumer_cannot_write() {
        let id = ClusterId::of_public_key(&[1; 32]);
        let subject = &tenant_binding(&id, "liqo").subjects.unwrap()[0];
        assert_eq!(subject.namespace.as_deref(), Some("liqo"));
        assert_eq!(
            Some(subject.name.as_str()),
            consumer_account(&id).metadata.name.as_deref()
        );
        assert_eq!(
            consumer_account(&id).automount_service_account_token,
            Some(false)
        );
    }

    #[test]
    fn a_consumer_may_renew_the_token_of_its_own_account_only() {
        let id = ClusterId::of_public_key(&[1; 32]);
        let rules = renewal_role(&id).rules.unwrap();
        assert_eq!(rules.len(), 1);
        assert_eq!(
            rules[0].resources.as_deref(),
            Some(["serviceaccounts/token".to_owned()].as_slice())
        );
        assert_eq!(
            rules[0].resource_names.as_deref(),
            Some([consumer_service_account(&id)].as_slice())
        );
        assert_eq!(rules[0].verbs, ["create"]);
        let binding = renewal_binding(&id, "liqo");
        assert_eq!(
            (binding.role_ref.kind.as_str(), binding.role_ref.name),
            ("Role", consumer_service_account(&id))
        );
        assert_eq!(
            binding.subjects.unwrap()[0].name,
            consumer_service_account(&id)
        );
    }

    #[test]
    fn a_session_ends_after_a_day() {
        let hours = |hours: i64| Some(Time(Timestamp::from_second(hours * 3600).unwrap()));
        let now = Timestamp::from_second(48 * 3600).unwrap();
        assert!(
            is_session_over(hours(24).as_ref(), now) && !is_session_over(hours(25).as_ref(), now)
        );
        assert!(!is_session_over(None, now));
    }

    #[test]
    fn a_new_quota_counts_from_zero_and_an_old_one_is_left_alone() {
        let mut object = tenant_quota();
        let hard = object.spec.as_ref().unwrap().hard.clone().unwrap();
        let counted = BTreeMap::from([("count/secrets".to_owned(), Quantity("3".into()))]);
        object.status = Some(ResourceQuotaStatus {
            used: Some(counted),
            ..Default::default()
        });
        let status = first_count(&object).unwrap();
        let used = status.used.clone().unwrap();
        assert_eq!(used["count/secrets"].0, "3");
        assert!(
            hard.keys()
                .all(|name| name == "count/secrets" || used[name].0 == "0")
        );
        object.status = Some(status);
        assert_eq!(first_count(&object), None);
    }

    #[test]
    fn a_tenant_fills_no_more_than_350_mib_and_may_run_2000_pods() {
        let hard = tenant_quota().spec.unwrap().hard.unwrap();
        let number = |kind: &str| hard[&format!("count/{kind}")].0.parse::<usize>().unwrap();
        let (pods, secrets) = (
            number("shadowpods.virtualkubelet.liqo.io"),
            number("secrets"),
        );
        assert!(pods >= 2000 && secrets >= 2000);
        let objects = number("reflectedobjects.virtualkubelet.liqo.io");
        assert!(
            pods * MAX_POD_LEN + secrets * MAX_SECRET_LEN + objects * MAX_OBJECT_LEN <= 350 << 20
        );
    }

    #[test]
    fn each_renewal_of_a_lease_shows() {
        let id = ClusterId::of_public_key(&[1; 32]);
        let first = lease_version(&lease_renewal(&id, Timestamp::UNIX_EPOCH));
        let second = lease_version(&lease_renewal(&id, Timestamp::from_microsecond(1).unwrap()));
        assert!(first.is_some() && first != second);
        assert_eq!(lease_version(&unrenewed_lease("provider")), None);
    }
}
