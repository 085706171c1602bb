//! `liqoctl discover`: the clusters that discovery finds now.

mod reason;

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt as _};
use liqo_api::{
    CLUSTERS_KEY, ClusterConfig, ClusterId, DISCOVERED_CLUSTERS, ForeignCluster, PeeringIntent,
    PeeringPolicy, SYSTEM_NAMESPACE, SearchDomain, links,
};
use liqo_discovery::merge::{DiscoveryListEntry, listed_announcements, merge_announcements};
use serde::Serialize;

use self::reason::{is_true, reason_not_borrowing};
use crate::{
    cluster::{Cluster, ExplainFailure as _},
    lists,
    output::{self, strip_control_characters},
};

/// The source of clusters that are found on the local network.
const LAN: &str = "LAN";

/// The clusters that are found, and the places searched.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryReport {
    /// Whether this cluster looks for others on the local network.
    pub lan: bool,
    /// The domains that it looks in.
    pub domains: Vec<SearchedDomain>,
    pub clusters: Vec<DiscoveredCluster>,
}

/// A `SearchDomain`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SearchedDomain {
    pub name: String,
    pub domain: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Its entries that do not describe a cluster.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub broken_entries: Vec<String>,
}

/// A cluster that is found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveredCluster {
    /// Name of its `ForeignCluster`; the name that it announces where there is none.
    pub name: String,
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    /// The address that this cluster uses, or would use.
    #[serde(rename = "authURL", skip_serializing_if = "Option::is_none")]
    pub auth_url: Option<String>,
    /// `LAN`, and names of `SearchDomain`s.
    pub found_by: Vec<String>,
    /// Whether this cluster borrows from it.
    pub borrows: bool,
    /// Whether this cluster lends to it.
    pub lends: bool,
    /// Whether this cluster refuses to lend to it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub refused: bool,
    /// The reason why this cluster does not borrow from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

pub async fn collect(cluster: &Cluster) -> anyhow::Result<DiscoveryReport> {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), SYSTEM_NAMESPACE);
    let list = maps
        .get_opt(DISCOVERED_CLUSTERS)
        .await
        .doing("read what discovery finds")?;
    let list = list
        .and_then(|list| list.data?.remove(CLUSTERS_KEY))
        .unwrap_or_else(|| "[]".to_owned());
    let discovered: Vec<DiscoveryListEntry> = serde_json::from_str(&list)?;
    let records = lists::list_peers(cluster).await?;
    let policies = lists::list_peering_policies(cluster).await?;
    let domains = lists::list_search_domains(cluster).await?;
    Ok(discovery_report(
        cluster.read_configuration().await?.as_ref(),
        domains,
        discovered,
        &records,
        policies,
    ))
}

fn discovery_report(
    config: Option<&ClusterConfig>,
    domains: Vec<SearchDomain>,
    discovered: Vec<DiscoveryListEntry>,
    records: &[ForeignCluster],
    policies: Vec<PeeringPolicy>,
) -> DiscoveryReport {
    let policies: Vec<_> = policies.into_iter().map(Arc::new).collect();
    let not_listed_yet = not_listed_yet(config, &domains, &discovered);
    DiscoveryReport {
        lan: config.is_some_and(|config| config.spec.discovery.lan.enabled),
        domains: domains.into_iter().map(searched_domain).collect(),
        clusters: discovered
            .into_iter()
            .chain(not_listed_yet)
            .map(|one| discovered_cluster(one, records, &policies))
            .collect(),
    }
}

fn discovered_cluster(
    one: DiscoveryListEntry,
    records: &[ForeignCluster],
    policies: &[Arc<PeeringPolicy>],
) -> DiscoveredCluster {
    let id = one.announcement.cluster_id;
    let record = records.iter().find(|record| record.spec.cluster_id == id);
    let reason = reason_not_borrowing(record, policies, &one.sources, one.problem);
    let announced = one.announcement.auth_urls.into_iter().next();
    DiscoveredCluster {
        name: strip_control_characters(
            &record.map_or(one.announcement.cluster_name, kube::ResourceExt::name_any),
        ),
        auth_url: record
            .and_then(|record| record.spec.auth_url.clone())
            .or(announced)
            .map(|url| strip_control_characters(&url)),
        found_by: one.sources,
        borrows: record
            .is_some_and(|record| record.wants_outgoing() && is_true(record, links::AUTHENTICATED)),
        lends: record.is_some_and(crate::unpeer::lends_to),
        refused: record.is_some_and(|record| record.spec.incoming_peering == PeeringIntent::No),
        reason,
        cluster_id: id,
    }
}

/// The clusters in the status of `SearchDomain`s that the manager has not listed yet, because it
/// limits how often it writes the list.
fn not_listed_yet(
    config: Option<&ClusterConfig>,
    domains: &[SearchDomain],
    listed: &[DiscoveryListEntry],
) -> Vec<DiscoveryListEntry> {
    let Some(own) = config.and_then(|config| config.status.as_ref()?.cluster_id.as_ref()) else {
        return Vec::new();
    };
    let domains = domains
        .iter()
        .map(|domain| (domain.name_any(), listed_announcements(domain)))
        .collect();
    let found = merge_announcements(own, &[], &domains).into_values();
    let missing = found.filter(|found| {
        listed
            .iter()
            .all(|one| one.announcement.cluster_id != found.announcement.cluster_id)
    });
    missing
        .map(|found| DiscoveryListEntry {
            announcement: found.announcement,
            sources: found.sources,
            problem: None,
        })
        .collect()
}

fn searched_domain(object: SearchDomain) -> SearchedDomain {
    let status = object.status.clone().unwrap_or_default();
    let failed = status
        .conditions
        .iter()
        .find(|condition| condition.status != "True");
    let broken = status
        .clusters
        .iter()
        .filter_map(|entry| Some(format!("{}: {}", entry.name, entry.problem.as_ref()?)));
    SearchedDomain {
        name: object.name_any(),
        problem: failed.map(|condition| strip_control_characters(&condition.message)),
        broken_entries: broken.map(|text| strip_control_characters(&text)).collect(),
        domain: object.spec.domain,
    }
}

/// The way of discovery that a source belongs to: all but `LAN` are names of `SearchDomain`s.
fn discovery_method(source: &str) -> String {
    if source == LAN {
        LAN.to_owned()
    } else {
        format!("DNS ({source})")
    }
}

/// The reason why this cluster does not borrow from another one, and a note if it refuses to lend
/// to it.
fn render_reason(one: &DiscoveredCluster) -> String {
    let refused = one.refused.then(|| {
        format!(
            "this cluster refuses to lend to it: `liqoctl approve {}` allows it",
            one.name
        )
    });
    one.reason
        .iter()
        .cloned()
        .chain(refused)
        .collect::<Vec<_>>()
        .join("; ")
}

/// The result as text for people.
pub fn render_discovery(report: &DiscoveryReport) -> String {
    let rows = report.clusters.iter().map(|one| {
        vec![
            one.name.clone(),
            one.cluster_id.to_string(),
            one.auth_url.clone().unwrap_or_default(),
            one.found_by
                .iter()
                .map(|source| discovery_method(source))
                .collect::<Vec<_>>()
                .join(", "),
            peering_in_words(one).to_owned(),
            render_reason(one),
        ]
    });
    let mut lines = Vec::new();
    if report.clusters.is_empty() {
        lines.push(match (report.lan, report.domains.is_empty()) {
            (false, true) => {
                "Discovery is off: switch it on with `liqoctl install --set discovery.lan.enabled=true`, or create a \
                              SearchDomain."
                    .to_owned()
            }
            _ => "No cluster is found.".to_owned(),
        });
    } else {
        lines.push(output::format_table(
            &[
                "NAME",
                "CLUSTER ID",
                "ADDRESS",
                "FOUND BY",
                "PEERED",
                "WHY NOT",
            ],
            rows,
        ));
    }
    for domain in &report.domains {
        lines.extend(
            domain
                .problem
                .as_ref()
                .map(|problem| format!("SearchDomain {}: {problem}", domain.name)),
        );
        lines.extend(
            domain
                .broken_entries
                .iter()
                .map(|entry| format!("  {entry}")),
        );
    }
    lines.join("\n")
}

fn peering_in_words(one: &DiscoveredCluster) -> &'static str {
    match (one.borrows, one.lends) {
        (true, true) => "borrows, lends",
        (true, false) => "borrows",
        (false, true) => "lends",
        (false, false) => "no",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn milan() -> ClusterId {
        ClusterId::of_public_key(&[2; 32])
    }

    fn discovered(problem: Option<&str>) -> Vec<DiscoveryListEntry> {
        let one = json!([{
            "clusterID": milan(), "clusterName": "milan", "authURLs": ["https://203.0.113.5:1"], "protocol": [1, 1],
            "sources": ["LAN", "example"], "problem": problem,
        }]);
        serde_json::from_value(one).unwrap()
    }

    fn record(mut spec: Value, status: &Value) -> ForeignCluster {
        spec["clusterID"] = json!(milan());
        spec["authURL"] = json!("https://203.0.113.6:1");
        let labels = json!({ "liqo.io/managed": "true", "liqo.io/discovered-by": "LAN" });
        serde_json::from_value(json!({ "metadata": { "name": "milan", "labels": labels }, "spec": spec, "status": status }))
            .unwrap()
    }

    fn shown(
        problem: Option<&str>,
        record: Option<ForeignCluster>,
        automatic: bool,
    ) -> DiscoveredCluster {
        let mut policy = PeeringPolicy::new("default", liqo_api::PeeringPolicySpec::default());
        policy.spec.consume.automatic = automatic;
        let records: Vec<_> = record.into_iter().collect();
        discovery_report(
            None,
            Vec::new(),
            discovered(problem),
            &records,
            vec![policy],
        )
        .clusters
        .remove(0)
    }

    #[test]
    fn the_reason_says_what_keeps_two_clusters_from_peering() {
        let reason = |problem, record, automatic| shown(problem, record, automatic).reason.unwrap();
        assert_eq!(reason(Some("no answer"), None, false), "no answer");
        assert_eq!(reason(None, None, false), "its address is being called");
        assert!(
            reason(None, Some(record(json!({}), &json!({}))), false)
                .contains("policy default starts no peering")
        );
        assert_eq!(
            reason(None, Some(record(json!({}), &json!({}))), true),
            "the peering starts"
        );
        assert!(
            reason(
                None,
                Some(record(json!({ "outgoingPeering": "No" }), &json!({}))),
                true
            )
            .contains("is No")
        );
        let refused = json!({ "automaticOutgoingPeering": true, "conditions": [
            { "type": "IdentityVerified", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" },
            { "type": "Authenticated", "status": "False", "reason": "TokenRequired", "message": "needs a token", "lastTransitionTime": "2026-01-01T00:00:00Z" },
        ] });
        assert_eq!(
            reason(None, Some(record(json!({}), &refused)), true),
            "needs a token"
        );
    }

    #[test]
    fn a_peer_is_shown_with_the_address_in_use() {
        let condition = |kind: &str| json!({ "type": kind, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let conditions = ["IdentityVerified", "Authenticated", "PeerReachable"].map(condition);
        let status = json!({ "automaticOutgoingPeering": true, "conditions": conditions, "tenantNamespace": "t" });
        let one = shown(None, Some(record(json!({}), &status)), true);
        assert_eq!(
            (one.borrows, one.lends, one.reason.as_deref()),
            (true, true, None)
        );
        assert_eq!(one.auth_url.as_deref(), Some("https://203.0.113.6:1"));
        let text = render_discovery(&DiscoveryReport {
            lan: true,
            domains: Vec::new(),
            clusters: vec![one],
        });
        assert!(
            text.contains("borrows, lends") && text.contains("LAN, DNS (example)"),
            "{text}"
        );
    }

    #[test]
    fn a_cluster_that_is_refused_here_is_shown_as_refused_although_this_one_borrows_from_it() {
        let condition = |kind: &str| json!({ "type": kind, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let conditions = ["IdentityVerified", "Authenticated", "PeerReachable"].map(condition);
        let status = json!({ "automaticOutgoingPeering": true, "conditions": conditions });
        let one = shown(
            None,
            Some(record(json!({ "incomingPeering": "No" }), &status)),
            true,
        );
        assert_eq!(
            (one.borrows, one.lends, one.refused, one.reason.as_deref()),
            (true, false, true, None)
        );
        let text = render_discovery(&DiscoveryReport {
            lan: true,
            domains: Vec::new(),
            clusters: vec![one],
        });
        assert!(
            text.ends_with("this cluster refuses to lend to it: `liqoctl approve milan` allows it"),
            "{text}"
        );
    }

    #[test]
    fn whoever_has_not_switched_it_on_is_told_how() {
        let off = DiscoveryReport {
            lan: false,
            domains: Vec::new(),
            clusters: Vec::new(),
        };
        assert!(render_discovery(&off).contains("discovery.lan.enabled=true"));
        assert_eq!(
            render_discovery(&DiscoveryReport { lan: true, ..off }),
            "No cluster is found."
        );
    }

    #[test]
    fn a_cluster_in_a_domain_is_shown_before_the_manager_lists_it() {
        let own = ClusterId::of_public_key(&[1; 32]);
        let config: ClusterConfig = serde_json::from_value(
            json!({ "metadata": { "name": "liqo" }, "spec": { "clusterName": "rome" }, "status": { "clusterID": own } }),
        )
        .unwrap();
        let entry = |name: &str, id: &ClusterId| json!({ "name": name, "clusterID": id, "clusterName": name, "authURLs": ["https://203.0.113.5:1"], "protocol": [1, 1] });
        let entries = [
            entry("rome", &own),
            entry("milan", &milan()),
            json!({ "name": "turin", "problem": "it has no TXT record" }),
        ];
        let domain: SearchDomain = serde_json::from_value(json!({
            "metadata": { "name": "example" }, "spec": { "domain": "example.org" }, "status": { "clusters": entries },
        }))
        .unwrap();
        let clusters = |listed| {
            discovery_report(Some(&config), vec![domain.clone()], listed, &[], Vec::new())
                .clusters
                .into_iter()
                .map(|one| one.found_by)
        };
        assert_eq!(clusters(Vec::new()).collect::<Vec<_>>(), [["example"]]);
        assert_eq!(
            clusters(discovered(None)).collect::<Vec<_>>(),
            [["LAN", "example"]],
            "it is shown once"
        );
    }

    #[test]
    fn a_domain_shows_its_broken_entries() {
        let object: SearchDomain = serde_json::from_value(json!({
            "metadata": { "name": "example" }, "spec": { "domain": "example.org" },
            "status": { "clusters": [{ "name": "milan", "problem": "it has no TXT record" }], "conditions": [
                { "type": "Resolved", "status": "False", "reason": "BrokenEntries", "message": "1 of 1", "lastTransitionTime": "2026-01-01T00:00:00Z" },
            ] },
        }))
        .unwrap();
        let text = render_discovery(&DiscoveryReport {
            lan: false,
            domains: vec![searched_domain(object)],
            clusters: Vec::new(),
        });
        assert_eq!(
            text,
            "No cluster is found.\nSearchDomain example: 1 of 1\n  milan: it has no TXT record"
        );
    }
}
