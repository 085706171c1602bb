//! The API server, and the installation of Liqo.

use k8s_openapi::{
    api::{apps::v1::Deployment, discovery::v1::EndpointSlice},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::ResourceExt as _;
use liqo_api::{ADDRESSES_KNOWN, AddressesKnownReason};
use serde_json::{Value, json};

use super::{leader, some, unread, workloads};
use crate::{
    doctor::{Check, Finding, Verdict},
    inspect::{Facts, WebhookCertificate},
    manifests::{INSTALLED_BY, MANAGER, MANAGER_LOGS, RESOLVER, avoided_nodes},
    preflight::{OLDEST_MINOR, POLICIES_SINCE},
    readiness, replicas,
    version::CLIENT,
};

pub fn decide(facts: &Facts) -> Vec<Finding> {
    let api = &facts.api_server;
    let took = api.took.as_millis();
    let mut found = vec![
        Finding::ok(
            Check::ApiServer,
            format!("{} answers, in {took} ms", api.url),
        ),
        version(facts),
        own_rights(facts),
    ];
    if matches!(facts.liqo.config, Ok(None)) {
        found.push(Finding::fail(
            Check::Installed,
            "Liqo is not installed in this cluster",
            "run `liqoctl install`",
        ));
        return found;
    }
    found.extend(installed(facts));
    found.push(definitions(facts));
    found.push(manager(facts));
    found.push(leads(facts));
    found.push(workloads::pods(facts));
    found.push(addresses(facts));
    found.push(services(facts));
    found.push(webhook(facts));
    found
}

fn version(facts: &Facts) -> Finding {
    let (check, version) = (Check::KubernetesVersion, &facts.api_server.version);
    match facts.api_server.minor {
        None => Finding::unknown(
            check,
            format!("{version} is not a version number that this program understands"),
        ),
        Some(minor) if minor < OLDEST_MINOR => Finding::fail(
            check,
            format!("Kubernetes {version}"),
            format!("Liqo needs 1.{OLDEST_MINOR} or later: upgrade the cluster"),
        ),
        Some(minor) if minor < POLICIES_SINCE => Finding::warn(
            check,
            format!("Kubernetes {version} has no admission policies, which restrict the manager"),
            format!("Liqo works without them; 1.{POLICIES_SINCE} has them"),
        ),
        Some(_) => Finding::ok(check, format!("Kubernetes {version}")),
    }
}

fn own_rights(facts: &Facts) -> Finding {
    if facts.refused.is_empty() {
        return Finding::ok(
            Check::OwnRights,
            "this user may read everything that is needed",
        );
    }
    Finding::warn(
        Check::OwnRights,
        format!("this user may not {}", some(&facts.refused)),
        "checks that need it are unknown: use a kubeconfig of a cluster administrator",
    )
}

fn installed(facts: &Facts) -> Vec<Finding> {
    let config = match &facts.liqo.config {
        Ok(Some(config)) => config,
        Ok(None) => return Vec::new(),
        Err(why) => return vec![unread(Check::Installed, why)],
    };
    let status = config.status.clone().unwrap_or_default();
    let Some(id) = status.cluster_id else {
        let advice = "the manager creates it when it starts: see manager and pods";
        return vec![Finding::fail(
            Check::Installed,
            "Liqo is installed, and the cluster has no identity yet",
            advice,
        )];
    };
    let installed = Finding::ok(
        Check::Installed,
        format!("cluster {}, ID {id}", config.spec.cluster_name),
    );
    let version = match status.version {
        None => Finding::unknown(Check::Version, "the manager has not reported its version"),
        Some(version) if version == CLIENT => {
            Finding::ok(Check::Version, format!("Liqo {version}, like this program"))
        }
        Some(version) => Finding::warn(
            Check::Version,
            format!("Liqo {version} runs here, this program is {CLIENT}"),
            format!(
                "the checks below are those of {CLIENT}: use the liqoctl of {version}, or upgrade the cluster with `liqoctl install`"
            ),
        ),
    };
    vec![installed, version]
}

fn definitions(facts: &Facts) -> Finding {
    let present = match &facts.definitions {
        Ok(present) => present,
        Err(why) => return unread(Check::Definitions, why),
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
        let what = format!("missing, or not served: {}", some(&missing));
        return Finding::fail(check, what, "run `liqoctl install` again");
    }
    if !foreign.is_empty() {
        let advice = "another program installed another Liqo: uninstall it with that program";
        return Finding::fail(
            check,
            format!("not created by liqoctl: {}", some(&foreign)),
            advice,
        );
    }
    if !other.is_empty() {
        let what = format!("from another version than this program: {}", some(&other));
        return Finding::warn(
            check,
            what,
            "run `liqoctl install` of the version that you want here",
        );
    }
    Finding::ok(check, format!("{} kinds", wanted.len()))
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Established" && condition.status == "True")
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

fn manager(facts: &Facts) -> Finding {
    let check = Check::Manager;
    let deployment = match &facts.liqo.manager {
        Ok(Some(deployment)) => deployment,
        Ok(None) => {
            return Finding::fail(
                check,
                format!("there is no Deployment {MANAGER}"),
                "run `liqoctl install` again",
            );
        }
        Err(why) => return unread(check, why),
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
    let what = match readiness::refusal(deployment) {
        Some(refusal) => {
            format!("{available} of {wanted} replicas available; new ones are refused: {refusal}")
        }
        None => format!("{available} of {wanted} replicas available"),
    };
    if wanted == 0 {
        let advice = format!("`kubectl -n liqo scale deployment {MANAGER} --replicas=1`");
        Finding::fail(
            check,
            "the Deployment is scaled to zero: nothing changes in this cluster",
            advice,
        )
    } else if available == 0 {
        let until = "until it is back, nothing changes, and what peers know becomes outdated";
        Finding::fail(check, what, format!("{}; {until}", unavailable(facts)))
    } else if available < wanted {
        Finding::warn(check, what, unavailable(facts))
    } else {
        spread(facts, deployment, wanted).unwrap_or_else(|| Finding::ok(check, what))
    }
}

/// Advice about a replica that is not available.
fn unavailable(facts: &Facts) -> &'static str {
    match workloads::pods(facts).verdict {
        Verdict::Ok => {
            "no pod of Liqo has a problem, so it may just be starting: wait a moment and run this again; then `kubectl -n liqo describe pods`"
        }
        _ => "see the check `pods`, and `kubectl -n liqo describe pods`",
    }
}

/// A warning if the replicas do not fit the nodes, where both are known.
fn spread(facts: &Facts, deployment: &Deployment, wanted: i32) -> Option<Finding> {
    let check = Check::Manager;
    let usable = replicas::usable(facts.real_nodes().ok()?, &avoided_nodes(deployment));
    if let Some(misfit) = replicas::misfit(wanted, usable) {
        return Some(Finding::warn(check, misfit.what, misfit.advice));
    }
    let node = replicas::shared_node(facts.pods.as_deref().ok()?, usable)?;
    let advice = format!(
        "the scheduler moves no pod that runs: delete one that does not lead, `kubectl -n liqo delete pod {}`",
        node.follower
    );
    Some(Finding::warn(
        check,
        format!("all replicas run on node {}, and fail with it", node.name),
        advice,
    ))
}

fn leads(facts: &Facts) -> Finding {
    let check = Check::Leader;
    if let Err(why) = &facts.leases {
        return unread(check, why);
    }
    match leader(facts) {
        None => Finding::fail(
            check,
            "no manager leads",
            format!(
                "see manager and pods; the log says why no replica could take the Lease: `{MANAGER_LOGS}`"
            ),
        ),
        Some((holder, heartbeat)) if heartbeat.is_fresh(facts.now()) => {
            Finding::ok(check, format!("{holder} leads"))
        }
        Some((holder, heartbeat)) => {
            let since = heartbeat.written.unwrap_or(heartbeat.own);
            let what = format!("{holder} was the last leader, and has been silent since {since}");
            Finding::fail(
                check,
                what,
                "see manager and pods: is it running, does it reach the API server, may it write Leases (rights)?",
            )
        }
    }
}

fn addresses(facts: &Facts) -> Finding {
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
        None => Finding::unknown(
            check,
            "the manager has not reported whether it knows this cluster's addresses",
        ),
        Some(condition) if condition.status == "True" => {
            Finding::ok(check, condition.message.clone())
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
            Finding::fail(
                check,
                format!("{}: {}", condition.reason, condition.message),
                advice,
            )
        }
    }
}

fn services(facts: &Facts) -> Finding {
    let check = Check::Services;
    let slices = match &facts.slices {
        Ok(slices) => slices,
        Err(why) => return unread(check, why),
    };
    let all = [liqo_api::AUTH_SERVICE, "liqo-webhook", RESOLVER];
    let empty: Vec<&str> = all
        .into_iter()
        .filter(|name| ready(slices, name) == 0)
        .collect();
    if empty.is_empty() {
        return Finding::ok(check, "liqo-auth, liqo-webhook and liqo-dns have endpoints");
    }
    Finding::fail(
        check,
        format!("no ready endpoint: Service {}", empty.join(", ")),
        "peers call liqo-auth, the API server shows new pods of offloaded namespaces to liqo-webhook, and pods of consumers resolve no name while nothing answers at liqo-dns: see manager, leader and pods",
    )
}

/// Number of ready endpoints of a Service.
pub fn ready(slices: &[EndpointSlice], service: &str) -> usize {
    let of_it = slices.iter().filter(|slice| {
        slice
            .labels()
            .get("kubernetes.io/service-name")
            .is_some_and(|name| name == service)
    });
    let endpoints = of_it.flat_map(|slice| &slice.endpoints);
    let is_ready = |conditions: &k8s_openapi::api::discovery::v1::EndpointConditions| {
        conditions.ready.unwrap_or(true)
    };
    endpoints
        .filter(|endpoint| endpoint.conditions.as_ref().is_none_or(is_ready))
        .count()
}

/// A certificate with less lifetime left, in seconds, should have been renewed.
const RENEWAL_OVERDUE: i64 = 7 * 24 * 3600;

fn webhook(facts: &Facts) -> Finding {
    let check = Check::Webhook;
    let again = "delete Secret liqo/liqo-webhook and restart the manager: it creates both again, and updates the configuration within a minute";
    let configuration = match &facts.webhook {
        Ok(Some(configuration)) => configuration,
        Ok(None) => {
            return Finding::fail(
                check,
                "there is no MutatingWebhookConfiguration liqo",
                "run `liqoctl install` again: without it no new pod goes to a peer",
            );
        }
        Err(why) => return unread(check, why),
    };
    let entries = configuration.webhooks.as_deref().unwrap_or_default();
    let certificate = match &facts.webhook_certificate {
        Ok(Some(certificate)) => certificate,
        Ok(None) => {
            return Finding::fail(
                check,
                "Secret liqo/liqo-webhook contains no certificate",
                "the manager creates it when it starts: see manager",
            );
        }
        Err(why) => return unread(check, why),
    };
    let trusts = |entry: &k8s_openapi::api::admissionregistration::v1::MutatingWebhook| {
        entry
            .client_config
            .ca_bundle
            .as_ref()
            .is_some_and(|bundle| bundle.0 == certificate.ca.as_bytes())
    };
    if let Some(entry) = entries.iter().find(|entry| !trusts(entry)) {
        let what = format!(
            "the API server trusts another CA for {} than the one that signs its certificate",
            entry.name
        );
        return Finding::fail(
            check,
            what,
            "the manager repairs it within a minute; if it does not, see leader and rights",
        );
    }
    let now = facts.now().as_second();
    if let Err(why) = verify(certificate, now) {
        return Finding::fail(
            check,
            format!("the API server does not accept its certificate: {why}"),
            again,
        );
    }
    if verify(certificate, now + RENEWAL_OVERDUE).is_err() {
        return Finding::warn(
            check,
            "its certificate expires within a week, and should have been renewed",
            again,
        );
    }
    if entries.is_empty() {
        let what = "the manager has not told the API server about it yet";
        return Finding::warn(
            check,
            what,
            "it does so within a minute; if it does not, see leader and rights",
        );
    }
    Finding::ok(
        check,
        "its certificate is valid, and the API server trusts it",
    )
}

/// Checks the webhook's certificate as a client would, at this time (seconds since 1970).
fn verify(certificate: &WebhookCertificate, at: i64) -> Result<(), String> {
    use rustls::{
        RootCertStore,
        client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
        pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
    };
    let parsed = |pem: &str| {
        CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| error.to_string())
    };
    let mut roots = RootCertStore::empty();
    roots
        .add(parsed(&certificate.ca)?)
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
        .verify_server_cert(&parsed(&certificate.leaf)?, &[], &name, &[], at)
        .map(drop)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
