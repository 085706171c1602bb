//! The API server, and the installation of Liqo.

use k8s_openapi::{
    api::{
        admissionregistration::v1::MutatingWebhook, apps::v1::Deployment,
        discovery::v1::EndpointSlice,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::ResourceExt as _;
use liqo_api::conditions::{StatusCondition as _, has_true_condition};
use liqo_api::{ADDRESSES_KNOWN, AddressesKnownReason};
use serde_json::{Value, json};

use super::{first_few, leader_heartbeat, unread_finding, workloads};
use crate::{
    doctor::{Check, CheckFinding},
    finding::CheckVerdict,
    inspect::{ClusterFacts, WebhookCertificate},
    manifests::{INSTALLED_BY, MANAGER, MANAGER_LOGS, RESOLVER, avoided_nodes},
    preflight::{OLDEST_MINOR, POLICIES_SINCE},
    readiness, replicas,
    version::CLIENT,
};

pub fn check_cluster(facts: &ClusterFacts) -> Vec<CheckFinding> {
    let api = &facts.api_server;
    let took = api.took.as_millis();
    let mut found = vec![
        CheckFinding::ok(
            Check::ApiServer,
            format!("{} answers, in {took} ms", api.url),
        ),
        check_kubernetes_version(facts),
        own_rights(facts),
    ];
    if matches!(facts.liqo.config, Ok(None)) {
        found.push(CheckFinding::fail(
            Check::Installed,
            "Liqo is not installed in this cluster",
            "run `liqoctl install`",
        ));
        return found;
    }
    found.extend(check_installation(facts));
    found.push(check_definitions(facts));
    found.push(check_manager(facts));
    found.push(check_leader(facts));
    found.push(workloads::pods(facts));
    found.push(check_addresses(facts));
    found.push(check_services(facts));
    found.push(check_webhook(facts));
    found
}

fn check_kubernetes_version(facts: &ClusterFacts) -> CheckFinding {
    let (check, version) = (Check::KubernetesVersion, &facts.api_server.version);
    match facts.api_server.minor {
        None => CheckFinding::unknown(
            check,
            format!("{version} is not a version number that this program understands"),
        ),
        Some(minor) if minor < OLDEST_MINOR => CheckFinding::fail(
            check,
            format!("Kubernetes {version}"),
            format!("Liqo needs 1.{OLDEST_MINOR} or later: upgrade the cluster"),
        ),
        Some(minor) if minor < POLICIES_SINCE => CheckFinding::warn(
            check,
            format!("Kubernetes {version} has no admission policies, which restrict the manager"),
            format!("Liqo works without them; 1.{POLICIES_SINCE} has them"),
        ),
        Some(_) => CheckFinding::ok(check, format!("Kubernetes {version}")),
    }
}

fn own_rights(facts: &ClusterFacts) -> CheckFinding {
    if facts.refused.is_empty() {
        return CheckFinding::ok(
            Check::OwnRights,
            "this user may read everything that is needed",
        );
    }
    CheckFinding::warn(
        Check::OwnRights,
        format!("this user may not {}", first_few(&facts.refused)),
        "checks that need it are unknown: use a kubeconfig of a cluster administrator",
    )
}

fn check_installation(facts: &ClusterFacts) -> Vec<CheckFinding> {
    let config = match &facts.liqo.config {
        Ok(Some(config)) => config,
        Ok(None) => return Vec::new(),
        Err(why) => return vec![unread_finding(Check::Installed, why)],
    };
    let status = config.status.clone().unwrap_or_default();
    let Some(id) = status.cluster_id else {
        let advice = "the manager creates it when it starts: see manager and pods";
        return vec![CheckFinding::fail(
            Check::Installed,
            "Liqo is installed, and the cluster has no identity yet",
            advice,
        )];
    };
    let installed = CheckFinding::ok(
        Check::Installed,
        format!("cluster {}, ID {id}", config.spec.cluster_name),
    );
    let version = match status.version {
        None => CheckFinding::unknown(Check::Version, "the manager has not reported its version"),
        Some(version) if version == CLIENT => {
            CheckFinding::ok(Check::Version, format!("Liqo {version}, like this program"))
        }
        Some(version) => CheckFinding::warn(
            Check::Version,
            format!("Liqo {version} runs here, this program is {CLIENT}"),
            format!(
                "the checks below are those of {CLIENT}: use the liqoctl of {version}, or upgrade the cluster with `liqoctl install`"
            ),
        ),
    };
    vec![installed, version]
}

fn check_definitions(facts: &ClusterFacts) -> CheckFinding {
    let present = match &facts.definitions {
        Ok(present) => present,
        Err(why) => return unread_finding(Check::Definitions, why),
    };
    let wanted = liqo_api::custom_resource_definitions();
    let (mut missing, mut other, mut foreign) = (Vec::new(), Vec::new(), Vec::new());
    for definition in &wanted {
        let name = definition.name_any();
        match present.iter().find(|one| one.name_any() == name) {
            None => missing.push(name),
            Some(one) if !is_established(one) => missing.push(name),
            Some(one)
                if one.labels().get(INSTALLED_BY.0).map(String::as_str) != Some(INSTALLED_BY.1) =>
            {
                foreign.push(name);
            }
            Some(one) if !contains(&json!(one.spec), &json!(definition.spec)) => other.push(name),
            Some(_) => {}
        }
    }
    let check = Check::Definitions;
    if !missing.is_empty() {
        let what = format!("missing, or not served: {}", first_few(&missing));
        return CheckFinding::fail(check, what, "run `liqoctl install` again");
    }
    if !foreign.is_empty() {
        let advice = "another program installed another Liqo: uninstall it with that program";
        return CheckFinding::fail(
            check,
            format!("not created by liqoctl: {}", first_few(&foreign)),
            advice,
        );
    }
    if !other.is_empty() {
        let what = format!(
            "from another version than this program: {}",
            first_few(&other)
        );
        return CheckFinding::warn(
            check,
            what,
            "run `liqoctl install` of the version that you want here",
        );
    }
    CheckFinding::ok(check, format!("{} kinds", wanted.len()))
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    has_true_condition(conditions.into_iter().flatten(), "Established")
}

/// Whether `have` contains everything in `want`; the API server adds default values.
pub(super) fn contains(have: &Value, want: &Value) -> bool {
    match (have, want) {
        (_, Value::Null) => true,
        (Value::Object(have), Value::Object(want)) => want.iter().all(|(key, want)| {
            want.is_null() || have.get(key).is_some_and(|have| contains(have, want))
        }),
        (Value::Array(have), Value::Array(want)) => {
            have.len() == want.len()
                && have
                    .iter()
                    .zip(want)
                    .all(|(have, want)| contains(have, want))
        }
        (Value::Number(have), Value::Number(want)) => have.as_f64() == want.as_f64(),
        (have, want) => have == want,
    }
}

fn check_manager(facts: &ClusterFacts) -> CheckFinding {
    let check = Check::Manager;
    let deployment = match &facts.liqo.manager {
        Ok(Some(deployment)) => deployment,
        Ok(None) => {
            return CheckFinding::fail(
                check,
                format!("there is no Deployment {MANAGER}"),
                "run `liqoctl install` again",
            );
        }
        Err(why) => return unread_finding(check, why),
    };
    let wanted = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1);
    let available = deployment
        .status
        .as_ref()
        .and_then(|status| status.available_replicas)
        .unwrap_or(0);
    let what = match readiness::why_pods_refused(deployment) {
        Some(refusal) => {
            format!("{available} of {wanted} replicas available; new ones are refused: {refusal}")
        }
        None => format!("{available} of {wanted} replicas available"),
    };
    if wanted == 0 {
        let advice = format!("`kubectl -n liqo scale deployment {MANAGER} --replicas=1`");
        CheckFinding::fail(
            check,
            "the Deployment is scaled to zero: nothing changes in this cluster",
            advice,
        )
    } else if available == 0 {
        let until = "until it is back, nothing changes, and what peers know becomes outdated";
        CheckFinding::fail(
            check,
            what,
            format!("{}; {until}", unavailable_replica_advice(facts)),
        )
    } else if available < wanted {
        CheckFinding::warn(check, what, unavailable_replica_advice(facts))
    } else {
        check_replica_spread(facts, deployment, wanted)
            .unwrap_or_else(|| CheckFinding::ok(check, what))
    }
}

/// Advice about a replica that is not available.
fn unavailable_replica_advice(facts: &ClusterFacts) -> &'static str {
    match workloads::pods(facts).verdict {
        CheckVerdict::Ok => {
            "no pod of Liqo has a problem, so it may just be starting: wait a moment and run this again; then `kubectl -n liqo describe pods`"
        }
        _ => "see the check `pods`, and `kubectl -n liqo describe pods`",
    }
}

/// A warning if the replicas do not fit the nodes, where both are known.
fn check_replica_spread(
    facts: &ClusterFacts,
    deployment: &Deployment,
    wanted: i32,
) -> Option<CheckFinding> {
    let check = Check::Manager;
    let usable = replicas::usable_nodes(facts.real_nodes().ok()?, &avoided_nodes(deployment));
    if let Some(misfit) = replicas::replica_mismatch(wanted, usable) {
        return Some(CheckFinding::warn(check, misfit.what, misfit.advice));
    }
    let node = replicas::shared_node(facts.pods.as_deref().ok()?, usable)?;
    let advice = format!(
        "the scheduler moves no pod that runs: delete one that does not lead, `kubectl -n liqo delete pod {}`",
        node.follower
    );
    Some(CheckFinding::warn(
        check,
        format!("all replicas run on node {}, and fail with it", node.name),
        advice,
    ))
}

fn check_leader(facts: &ClusterFacts) -> CheckFinding {
    let check = Check::Leader;
    if let Err(why) = &facts.leases {
        return unread_finding(check, why);
    }
    match leader_heartbeat(facts) {
        None => CheckFinding::fail(
            check,
            "no manager leads",
            format!(
                "see manager and pods; the log says why no replica could take the Lease: `{MANAGER_LOGS}`"
            ),
        ),
        Some((holder, heartbeat)) if heartbeat.is_fresh(facts.now()) => {
            CheckFinding::ok(check, format!("{holder} leads"))
        }
        Some((holder, heartbeat)) => {
            let since = heartbeat.written.unwrap_or(heartbeat.own);
            let what = format!("{holder} was the last leader, and has been silent since {since}");
            CheckFinding::fail(
                check,
                what,
                "see manager and pods: is it running, does it reach the API server, may it write Leases (rights)?",
            )
        }
    }
}

fn check_addresses(facts: &ClusterFacts) -> CheckFinding {
    let check = Check::Addresses;
    let status = facts
        .liqo
        .configuration()
        .and_then(|config| config.status.as_ref());
    let condition = status.and_then(|status| {
        status
            .conditions
            .iter()
            .find(|condition| condition.type_ == ADDRESSES_KNOWN)
    });
    match condition {
        None => CheckFinding::unknown(
            check,
            "the manager has not reported whether it knows this cluster's addresses",
        ),
        Some(condition) if condition.is_true() => {
            CheckFinding::ok(check, condition.message.clone())
        }
        Some(condition) => {
            let setting = match AddressesKnownReason::parse(&condition.reason) {
                Some(AddressesKnownReason::ApiServerAddress) => "apiServer.address",
                Some(AddressesKnownReason::AuthenticationAddress | AddressesKnownReason::Found)
                | None => "authentication.address",
            };
            let advice = format!(
                "other clusters cannot borrow from this one until `liqoctl install --set {setting}=https://...` sets an address that they reach"
            );
            CheckFinding::fail(
                check,
                format!("{}: {}", condition.reason, condition.message),
                advice,
            )
        }
    }
}

fn check_services(facts: &ClusterFacts) -> CheckFinding {
    let check = Check::Services;
    let slices = match &facts.slices {
        Ok(slices) => slices,
        Err(why) => return unread_finding(check, why),
    };
    let all = [liqo_api::AUTH_SERVICE, "liqo-webhook", RESOLVER];
    let empty: Vec<&str> = all
        .into_iter()
        .filter(|name| ready_endpoints(slices, name) == 0)
        .collect();
    if empty.is_empty() {
        return CheckFinding::ok(check, "liqo-auth, liqo-webhook and liqo-dns have endpoints");
    }
    CheckFinding::fail(
        check,
        format!("no ready endpoint: Service {}", empty.join(", ")),
        "peers call liqo-auth, the API server shows new pods of offloaded namespaces to liqo-webhook, and pods of consumers resolve no name while nothing answers at liqo-dns: see manager, leader and pods",
    )
}

/// Number of ready endpoints of a Service.
pub fn ready_endpoints(slices: &[EndpointSlice], service: &str) -> usize {
    let of_it = slices.iter().filter(|slice| {
        slice
            .labels()
            .get("kubernetes.io/service-name")
            .is_some_and(|name| name == service)
    });
    let endpoints = of_it.flat_map(|slice| &slice.endpoints);
    endpoints
        .filter(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            conditions.and_then(|one| one.ready).unwrap_or(true)
        })
        .count()
}

/// A certificate with less lifetime left, in seconds, should have been renewed.
const RENEWAL_OVERDUE: i64 = 7 * 24 * 3600;

fn check_webhook(facts: &ClusterFacts) -> CheckFinding {
    let check = Check::Webhook;
    let again = "delete Secret liqo/liqo-webhook and restart the manager: it creates both again, and updates the configuration within a minute";
    let configuration = match &facts.webhook {
        Ok(Some(configuration)) => configuration,
        Ok(None) => {
            return CheckFinding::fail(
                check,
                "there is no MutatingWebhookConfiguration liqo",
                "run `liqoctl install` again: without it no new pod goes to a peer",
            );
        }
        Err(why) => return unread_finding(check, why),
    };
    let entries = configuration.webhooks.as_deref().unwrap_or_default();
    let certificate = match &facts.webhook_certificate {
        Ok(Some(certificate)) => certificate,
        Ok(None) => {
            return CheckFinding::fail(
                check,
                "Secret liqo/liqo-webhook contains no certificate",
                "the manager creates it when it starts: see manager",
            );
        }
        Err(why) => return unread_finding(check, why),
    };
    if let Some(entry) = entries
        .iter()
        .find(|entry| !trusts_certificate(entry, certificate))
    {
        let what = format!(
            "the API server trusts another CA for {} than the one that signs its certificate",
            entry.name
        );
        return CheckFinding::fail(
            check,
            what,
            "the manager repairs it within a minute; if it does not, see leader and rights",
        );
    }
    let now = facts.now().as_second();
    if let Err(why) = verify_webhook_certificate(certificate, now) {
        return CheckFinding::fail(
            check,
            format!("the API server does not accept its certificate: {why}"),
            again,
        );
    }
    if verify_webhook_certificate(certificate, now + RENEWAL_OVERDUE).is_err() {
        return CheckFinding::warn(
            check,
            "its certificate expires within a week, and should have been renewed",
            again,
        );
    }
    if entries.is_empty() {
        let what = "the manager has not told the API server about it yet";
        return CheckFinding::warn(
            check,
            what,
            "it does so within a minute; if it does not, see leader and rights",
        );
    }
    CheckFinding::ok(
        check,
        "its certificate is valid, and the API server trusts it",
    )
}

fn trusts_certificate(webhook: &MutatingWebhook, certificate: &WebhookCertificate) -> bool {
    let bundle = webhook.client_config.ca_bundle.as_ref();
    bundle.is_some_and(|bundle| bundle.0 == certificate.ca.as_bytes())
}

/// Checks the webhook's certificate as a client would, at this time (seconds since 1970).
fn verify_webhook_certificate(certificate: &WebhookCertificate, at: i64) -> Result<(), String> {
    use rustls::{
        RootCertStore,
        client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
        pki_types::{ServerName, UnixTime},
    };
    let mut roots = RootCertStore::empty();
    roots
        .add(parse_certificate(&certificate.ca)?)
        .map_err(|error| error.to_string())?;
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider)
        .build()
        .map_err(|error| error.to_string())?;
    let name = ServerName::try_from("liqo-webhook.liqo.svc").map_err(|error| error.to_string())?;
    let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(
        u64::try_from(at).unwrap_or(0),
    ));
    verifier
        .verify_server_cert(&parse_certificate(&certificate.leaf)?, &[], &name, &[], at)
        .map(drop)
        .map_err(|error| error.to_string())
}

fn parse_certificate(pem: &str) -> Result<rustls::pki_types::CertificateDer<'static>, String> {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
