//! Checks before an installation, so that it does not stop half-way.

use anyhow::bail;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        authorization::v1::{
            ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
        },
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, PartialObjectMeta, PostParams},
};

use crate::{
    cluster::{Cluster, ExplainFailure as _},
    manifests::{INSTALLED_BY, MANAGER, NAMESPACE},
};

/// The oldest minor version of Kubernetes 1 that Liqo supports.
pub const OLDEST_MINOR: u32 = 29;
/// The first one that serves `ValidatingAdmissionPolicy` v1.
pub const POLICIES_SINCE: u32 = 30;

#[derive(Clone, Debug)]
pub struct PreflightFindings {
    /// Version of the API server.
    pub version: String,
    /// Whether admission policies can be applied.
    pub admission_policies: bool,
}

/// Rights that the installation needs: verb, group, resource, namespace.
const NEEDED: [(&str, &str, &str, Option<&str>); 16] = [
    ("create", "", "namespaces", None),
    (
        "create",
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        None,
    ),
    (
        "patch",
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        None,
    ),
    ("create", "rbac.authorization.k8s.io", "clusterroles", None),
    (
        "escalate",
        "rbac.authorization.k8s.io",
        "clusterroles",
        None,
    ),
    (
        "create",
        "rbac.authorization.k8s.io",
        "clusterrolebindings",
        None,
    ),
    ("bind", "rbac.authorization.k8s.io", "clusterroles", None),
    (
        "create",
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        None,
    ),
    (
        "create",
        "flowcontrol.apiserver.k8s.io",
        "flowschemas",
        None,
    ),
    (
        "create",
        "flowcontrol.apiserver.k8s.io",
        "prioritylevelconfigurations",
        None,
    ),
    ("create", "config.liqo.io", "clusterconfigs", None),
    ("patch", "apps", "deployments", Some(NAMESPACE)),
    ("create", "policy", "poddisruptionbudgets", Some(NAMESPACE)),
    ("create", "", "secrets", Some(NAMESPACE)),
    (
        "create",
        "rbac.authorization.k8s.io",
        "roles",
        Some("kube-node-lease"),
    ),
    (
        "create",
        "rbac.authorization.k8s.io",
        "rolebindings",
        Some("kube-system"),
    ),
];

/// Checks the cluster; the error says what prevents an installation. Clusters without admission
/// policies need the user's consent.
pub async fn check_before_install(
    cluster: &Cluster,
    allow_no_policies: bool,
) -> anyhow::Result<PreflightFindings> {
    let version = cluster
        .client
        .apiserver_version()
        .await
        .doing(format!("reach {}", cluster.server))?;
    let minor = minor_of(&version.minor);
    if let Some(obstacle) = version_obstacle(minor, allow_no_policies) {
        bail!(
            "cluster {} runs Kubernetes {}; {obstacle}",
            cluster.context,
            version.git_version
        );
    }
    let missing = missing_rights(&cluster.client).await?;
    if !missing.is_empty() {
        bail!(
            "this user may not {}: use a kubeconfig of a cluster administrator",
            missing.join(", ")
        );
    }
    refuse_release_of_helm(
        cluster,
        "upgrade it with `helm upgrade`, whose values are those of --values",
    )
    .await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let present = definitions
        .list(&ListParams::default())
        .await
        .doing("list the definitions of kinds")?
        .items;
    if let Some(name) = other_liqo(&present) {
        bail!(
            "cluster {} has another Liqo (this program did not create the definition {name}): first uninstall that with the program that installed it",
            cluster.context
        );
    }
    Ok(PreflightFindings {
        version: version.git_version,
        admission_policies: minor.is_none_or(|minor| minor >= POLICIES_SINCE),
    })
}

/// Fails if Helm installed Liqo: its release would no longer say what is in the cluster. `advice`
/// says what to do instead.
pub async fn refuse_release_of_helm(cluster: &Cluster, advice: &str) -> anyhow::Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let deployment = deployments
        .get_metadata_opt(MANAGER)
        .await
        .doing("read the Deployment of the controller manager")?;
    match deployment.as_ref().and_then(release_of_helm) {
        Some(release) => bail!(
            "Helm installed Liqo in cluster {}, as release {release}: {advice}",
            cluster.context
        ),
        None => Ok(()),
    }
}

/// The release of an object that Helm installed.
fn release_of_helm(object: &PartialObjectMeta<Deployment>) -> Option<String> {
    let is_of_helm = object
        .labels()
        .get(INSTALLED_BY.0)
        .is_some_and(|label| label == "Helm");
    is_of_helm.then(|| {
        object
            .annotations()
            .get("meta.helm.sh/release-name")
            .cloned()
            .unwrap_or_default()
    })
}

/// Reason why Liqo is not installed on this minor version of Kubernetes 1. A version that cannot be
/// read counts as new enough.
fn version_obstacle(minor: Option<u32>, allow_no_policies: bool) -> Option<String> {
    let minor = minor?;
    if minor < OLDEST_MINOR {
        return Some(format!("Liqo needs 1.{OLDEST_MINOR} or later"));
    }
    (minor < POLICIES_SINCE && !allow_no_policies).then(|| {
        format!(
            "before 1.{POLICIES_SINCE} no admission policies limit what Liqo's manager may write, nor the size of what consumers write: \
             upgrade it, or accept that with --without-admission-policies"
        )
    })
}

/// `34` of `34+`.
fn minor_of(text: &str) -> Option<u32> {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

async fn missing_rights(client: &Client) -> anyhow::Result<Vec<String>> {
    let missing: Vec<Option<String>> = stream::iter(NEEDED)
        .map(|needed| missing_right(client, needed))
        .buffered(4)
        .try_collect()
        .await?;
    Ok(missing.into_iter().flatten().collect())
}

async fn missing_right(
    client: &Client,
    (verb, group, resource, namespace): (&str, &str, &str, Option<&str>),
) -> anyhow::Result<Option<String>> {
    let attributes = ResourceAttributes {
        verb: Some(verb.to_owned()),
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        namespace: namespace.map(ToOwned::to_owned),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec {
        resource_attributes: Some(attributes),
        ..SelfSubjectAccessReviewSpec::default()
    };
    let review = SelfSubjectAccessReview {
        spec,
        ..SelfSubjectAccessReview::default()
    };
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = api
        .create(&PostParams::default(), &review)
        .await
        .doing("ask what this user may do")?;
    let allowed = answer.status.is_some_and(|status| status.allowed);
    Ok((!allowed).then(|| match namespace {
        Some(namespace) => format!("{verb} {resource} in {namespace}"),
        None => format!("{verb} {resource}"),
    }))
}

/// A custom resource definition of one of our kinds that `liqoctl` did not create.
fn other_liqo(definitions: &[CustomResourceDefinition]) -> Option<String> {
    definitions
        .iter()
        .find(|definition| {
            let group = &definition.spec.group;
            (group == "liqo.io" || group.ends_with(".liqo.io"))
                && definition.labels().get(INSTALLED_BY.0).map(String::as_str)
                    != Some(INSTALLED_BY.1)
        })
        .map(ResourceExt::name_any)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn minor_versions_of_vendors_are_understood() {
        assert_eq!(
            (minor_of("34"), minor_of("29+"), minor_of("")),
            (Some(34), Some(29), None)
        );
    }

    #[test]
    fn a_cluster_without_admission_policies_needs_consent_and_an_older_one_is_refused() {
        let obstacle = |minor, allow| version_obstacle(Some(minor), allow).unwrap_or_default();
        assert!(obstacle(29, false).contains("--without-admission-policies"));
        assert_eq!(
            (obstacle(29, true), obstacle(30, false)),
            (String::new(), String::new())
        );
        assert!(obstacle(28, true).contains("1.29 or later"));
        assert_eq!(version_obstacle(None, false), None);
    }

    #[test]
    fn what_helm_installed_is_known_by_its_label_and_annotation() {
        let object = |by: &str| -> PartialObjectMeta<Deployment> {
            let (labels, annotations) = (
                json!({ INSTALLED_BY.0: by }),
                json!({ "meta.helm.sh/release-name": "liqo" }),
            );
            serde_json::from_value(
                json!({ "metadata": { "labels": labels, "annotations": annotations } }),
            )
            .unwrap()
        };
        assert_eq!(release_of_helm(&object("Helm")).as_deref(), Some("liqo"));
        assert_eq!(release_of_helm(&object(INSTALLED_BY.1)), None);
    }

    #[test]
    fn kinds_that_somebody_else_installed_are_noticed() {
        let mut ours = liqo_api::custom_resource_definitions();
        assert!(other_liqo(&ours).is_some());
        for definition in &mut ours {
            definition
                .labels_mut()
                .insert(INSTALLED_BY.0.to_owned(), INSTALLED_BY.1.to_owned());
        }
        assert_eq!(other_liqo(&ours), None);
        ours[0].spec.group = "example.org".to_owned();
        ours[0].metadata.labels = None;
        assert_eq!(other_liqo(&ours), None);
    }
}
