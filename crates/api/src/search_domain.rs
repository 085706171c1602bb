use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClusterId, Condition, schema};

/// A DNS domain in which this cluster looks for others. Each cluster has an instance of the service
/// `_liqo_auth._tcp` there (RFC 6763): a PTR record, an SRV and a TXT record. A cluster that proves
/// its ID gets a `ForeignCluster`; a `PeeringPolicy` says whether this cluster peers with it
/// automatically.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "discovery.liqo.io",
    version = "v1alpha1",
    kind = "SearchDomain",
    plural = "searchdomains",
    shortname = "sd",
    category = "liqo",
    status = "SearchDomainStatus",
    doc = "A DNS domain in which this cluster looks for others",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(name = "Domain", type_ = "string", json_path = ".spec.domain"),
    printcolumn(name = "Resolved", type_ = "string", json_path = ".status.conditions[?(@.type==\"Resolved\")].status"),
    // The message counts the clusters. A column with `[*]` would show only the first one.
    printcolumn(name = "Found", type_ = "string", json_path = ".status.conditions[?(@.type==\"Resolved\")].message"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct SearchDomainSpec {
    /// The domain, such as `clusters.example.org`.
    #[schemars(
        length(max = 200),
        regex(
            pattern = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*\.?$"
        )
    )]
    pub domain: String,
}

/// What was found in the domain.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SearchDomainStatus {
    /// One entry for each instance, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub clusters: Vec<SearchDomainEntry>,
    /// `Resolved`: whether the domain could be read, and each entry describes a cluster of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// One instance in a domain: a cluster, or what is wrong with it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SearchDomainEntry {
    /// Name of the instance.
    pub name: String,
    /// ID that the records contain. The cluster has not necessarily proved it.
    #[serde(rename = "clusterID", default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<ClusterId>,
    /// Name of the cluster in the records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,
    /// URLs of its auth endpoint, the best first.
    #[serde(rename = "authURLs", default, skip_serializing_if = "Vec::is_empty")]
    pub auth_urls: Vec<String>,
    /// First and last version of the protocol that it speaks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    pub protocol: Vec<u32>,
    /// Why the records do not describe a cluster, or which other entry has the same cluster ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Condition of a [`SearchDomain`]: the domain could be read, and each entry describes a cluster of
/// its own.
pub const RESOLVED: &str = "Resolved";
