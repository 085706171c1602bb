//! Describes a policy in plain sentences.

use k8s_openapi::{api::core::v1::Toleration, apimachinery::pkg::apis::meta::v1::LabelSelector};
use liqo_api::selectors::label_selector;
use liqo_api::{
    Accept, Approval, Charge, Consume, Hardening, Margin, PeerSelector, PeeringPolicySpec,
    PluginOvercommit, PodSecurity, PoolBy, Provide, Source, Usage,
};
use serde::Serialize;

use super::{contract_words, price_words};

/// The meaning of one field of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PolicySentence {
    /// The field of the spec.
    pub field: String,
    pub text: String,
}

fn sentence(field: &str, text: impl Into<String>) -> PolicySentence {
    PolicySentence {
        field: field.to_owned(),
        text: text.into(),
    }
}

/// Describes all rules of a policy.
pub fn policy_sentences(spec: &PeeringPolicySpec) -> Vec<PolicySentence> {
    let mut all = amount_sentences(&spec.provide);
    all.extend(rule_sentences(&spec.provide));
    all.extend(permission_sentences(&spec.provide.usage));
    all.extend(consume_sentences(&spec.consume));
    all
}

/// Sentences about the offered amounts.
fn amount_sentences(provide: &Provide) -> Vec<PolicySentence> {
    let source = &provide.source;
    let mut all = vec![sentence("provide.source", self::source_in_words(source))];
    let prices = provide
        .prices
        .as_ref()
        .map(|prices| price_words::price_sentences(prices, source.plugin.is_some()));
    if source.plugin.is_none() && source.fixed.is_none() {
        all.push(sentence(
            "provide.percentage",
            match provide.percentage {
                0 => "0 percent of that: nothing new is offered".to_owned(),
                percentage => {
                    format!("{percentage} percent of that, for all peers of this policy together")
                }
            },
        ));
    }
    if !provide.caps.is_empty() {
        all.push(sentence(
            "provide.caps",
            format!(
                "at most {} for each peer; resources that are not named are not capped",
                provide.caps
            ),
        ));
    }
    all.extend(
        source
            .offers
            .as_ref()
            .and_then(|offers| offers.margin.as_ref())
            .map(margin),
    );
    all.extend(
        prices
            .into_iter()
            .flatten()
            .map(|(field, text)| sentence(field, text)),
    );
    let contract = provide
        .contract
        .iter()
        .flat_map(contract_words::proposed_contract_sentences);
    all.extend(contract.map(|(field, text)| sentence(field, text)));
    if source.plugin.is_some() {
        return all;
    }
    if provide.weight != 1 {
        all.push(sentence(
            "provide.weight",
            format!(
                "when amounts are divided, a peer of this policy counts {} times",
                provide.weight
            ),
        ));
    }
    if provide.overcommit_percentage != 100 {
        let text = format!(
            "offers promise {} percent of that, which is more than exists",
            provide.overcommit_percentage
        );
        all.push(sentence("provide.overcommitPercentage", text));
    }
    let granularity = &provide.granularity;
    let pools = match granularity.by {
        PoolBy::Cluster if source.offers.is_some() => {
            "one pool for each number of clusters that resources come through: mostly one virtual node at the peer".to_owned()
        }
        PoolBy::Cluster => "one pool, named default: one virtual node at the peer".to_owned(),
        PoolBy::Node => "one pool for each of those nodes: as many virtual nodes at the peer".to_owned(),
        PoolBy::NodeLabel => {
            let label = granularity.label.as_deref().unwrap_or_default();
            format!("one pool for each value of the nodes' label {label}; nodes without it are not offered")
        }
    };
    all.push(sentence("provide.granularity", pools));
    if granularity.peers_may_choose {
        let text = "a peer may ask for one pool for each node instead, of at most 15 nodes; the amounts stay the same";
        all.push(sentence("provide.granularity.peersMayChoose", text));
    }
    all
}

/// The margin that is added to the prices of providers.
fn margin(margin: &Margin) -> PolicySentence {
    let fixed = if margin.fixed.is_empty() {
        String::new()
    } else {
        format!(", and {}", margin.fixed)
    };
    let text = format!(
        "costs what its providers ask, in {}, and {} percent more{fixed}",
        margin.currency, margin.percent
    );
    sentence("provide.source.offers.margin", text)
}

/// The source of the amounts.
pub fn source_in_words(source: &Source) -> String {
    if let Some(offers) = &source.offers {
        let own = if offers.own_nodes {
            ", and on all local nodes"
        } else {
            ""
        };
        return format!("what is free on the virtual nodes, which other clusters offer{own}");
    }
    if let Some(plugin) = &source.plugin {
        let tls = plugin.tls.as_ref().map_or_else(
            || "in plain text".to_owned(),
            |tls| format!("by TLS with Secret {}", tls.secret_name),
        );
        let beyond = match plugin.overcommit {
            PluginOvercommit::Warn => "",
            PluginOvercommit::Cut => ", as far as the nodes have it",
            PluginOvercommit::Allow => ", also beyond what the nodes have",
        };
        return format!(
            "what the resource plugin at {} says ({:?}, {tls}){beyond}",
            plugin.address, plugin.generation
        );
    }
    if let Some(fixed) = &source.fixed {
        return format!(
            "{} for each peer, as far as that much is free",
            fixed.resources
        );
    }
    if let Some(nodes) = &source.nodes {
        let selectors: Vec<String> = nodes.selectors.iter().map(selector_in_words).collect();
        return format!(
            "what is free on the local nodes with {}",
            selectors.join(", or with ")
        );
    }
    "what is free on all local nodes".to_owned()
}

/// Rules about changes and approval.
fn rule_sentences(provide: &Provide) -> Vec<PolicySentence> {
    let threshold = match provide.threshold() {
        0 => "an offer is rewritten whenever an amount differs".to_owned(),
        percent => {
            format!("an offer is rewritten when an amount is off by more than {percent} percent")
        }
    };
    let notice = match provide.notice_seconds {
        0 => "resources are taken back at once, and their pods end".to_owned(),
        seconds => format!(
            "a notice precedes the end of pods by {seconds} s when resources are taken back"
        ),
    };
    let approval = match provide.approval {
        Approval::Automatic if provide.token_required => "a cluster with a valid token may borrow",
        Approval::Automatic => "every cluster that the policy selects may borrow, without a token",
        Approval::Manual => "a person has to approve each peer: `liqoctl approve PEER`",
    };
    let absence = provide
        .absence_seconds
        .map(|seconds| format!("pods of a peer that is silent for {seconds} s end"));
    let mut sentences = vec![
        sentence("provide.offerUpdateThresholdPercentage", threshold),
        sentence("provide.noticeSeconds", notice),
    ];
    sentences.extend(absence.map(|text| sentence("provide.absenceSeconds", text)));
    sentences.push(sentence("provide.approval", approval));
    sentences
}

/// Limits for the peer's namespaces, Services and endpoints, where they are not the default.
fn number_limit_sentences(usage: &Usage) -> Vec<PolicySentence> {
    let default = Usage::default();
    let all: [(&str, &str, u32, u32); 3] = [
        (
            "maxNamespaces",
            "namespaces",
            usage.max_namespaces.into(),
            default.max_namespaces.into(),
        ),
        (
            "maxServices",
            "Services",
            usage.max_services.into(),
            default.max_services.into(),
        ),
        (
            "maxEndpoints",
            "endpoints, each counted for every port,",
            usage.max_endpoints,
            default.max_endpoints,
        ),
    ];
    let mut sentences = Vec::new();
    for (field, what, number, _) in all
        .into_iter()
        .filter(|(_, _, number, default)| number != default)
    {
        let text = format!("maximum number of {what} for each peer: {number}");
        sentences.push(sentence(&format!("provide.usage.{field}"), text));
    }
    sentences
}

/// Permissions of the peer's pods. Leaves out defaults that allow nothing.
fn permission_sentences(usage: &Usage) -> Vec<PolicySentence> {
    let security = match usage.pod_security {
        PodSecurity::Baseline => "the peer's pods must meet the Pod Security standard baseline",
        PodSecurity::Restricted => "the peer's pods must meet the Pod Security standard restricted",
    };
    let mut all = vec![sentence("provide.usage.podSecurity", security)];
    all.extend(sentence_of_names(
        "provide.usage.storageClasses",
        "they may use the storage classes",
        &usage.storage_classes,
    ));
    all.extend(of_exposure(usage));
    let tolerations: Vec<String> = usage.named_tolerations().map(toleration_in_words).collect();
    let further = [
        sentence_of_names(
            "provide.usage.allowedIngressSources",
            "their pods are also reachable from",
            &usage.allowed_ingress_sources,
        ),
        sentence_of_names(
            "provide.usage.runtimeClassName",
            "they get the RuntimeClass",
            usage.runtime_class_name.as_slice(),
        ),
        sentence_of_names(
            "provide.usage.priorityClassName",
            "they get the PriorityClass",
            usage.priority_class_name.as_slice(),
        ),
        sentence_of_names(
            "provide.usage.tolerations",
            "they keep tolerations of",
            &tolerations,
        ),
        sentence_of_names(
            "provide.usage.namespaceNames",
            "their namespaces may also be named",
            &usage.namespace_names,
        ),
    ];
    all.extend(further.into_iter().flatten());
    all.extend(of_volumes(usage));
    all.extend(number_limit_sentences(usage));
    if usage.charge == Charge::Limits {
        let text =
            "pods count with their limits, and each container must have limits of cpu and memory";
        all.push(sentence("provide.usage.charge", text));
    }
    all.extend(container_sentences(usage));
    let kinds: Vec<String> = usage
        .reflected_kinds
        .iter()
        .map(|kind| format!("{kind:?}"))
        .collect();
    let kinds = if kinds.is_empty() {
        "nothing is reflected here".to_owned()
    } else {
        format!("may be reflected here: {}", kinds.join(", "))
    };
    all.push(sentence("provide.usage.reflectedKinds", kinds));
    all
}

/// A sentence that lists names, if there are any.
fn sentence_of_names(field: &str, what: &str, names: &[String]) -> Option<PolicySentence> {
    (!names.is_empty()).then(|| sentence(field, format!("{what} {}", names.join(", "))))
}

/// The classes of their Ingresses and load balancers. Leaves out what allows nothing.
fn of_exposure(usage: &Usage) -> Vec<PolicySentence> {
    let mut all = Vec::new();
    all.extend(sentence_of_names(
        "provide.usage.ingressClasses",
        "their Ingresses may have the classes",
        &class_names(&usage.ingress_classes),
    ));
    if !usage.ingress_classes.is_empty() {
        let hosts = if usage.ingress_hosts.is_empty() {
            vec!["no host".to_owned()]
        } else {
            usage.ingress_hosts.clone()
        };
        all.extend(sentence_of_names(
            "provide.usage.ingressHosts",
            "their Ingresses may claim",
            &hosts,
        ));
        all.extend(sentence_of_names(
            "provide.usage.ingressAnnotations",
            "their Ingresses keep the annotations",
            &usage.ingress_annotations,
        ));
    }
    all.extend(sentence_of_names(
        "provide.usage.loadBalancerClasses",
        "their load balancers may have the classes",
        &class_names(&usage.load_balancer_classes),
    ));
    if !usage.load_balancer_classes.is_empty() {
        all.extend(sentence_of_names(
            "provide.usage.maxLoadBalancers",
            "maximum number of load balancers for each peer:",
            &[usage.max_load_balancers.to_string()],
        ));
    }
    all
}

fn class_names(classes: &[String]) -> Vec<String> {
    classes
        .iter()
        .map(|class| {
            if class.is_empty() {
                "(the default of the cluster)".to_owned()
            } else {
                class.clone()
            }
        })
        .collect()
}

fn of_volumes(usage: &Usage) -> Option<PolicySentence> {
    let text = match usage.volume_types.as_deref()? {
        [] => "they may have no volumes".to_owned(),
        types => format!("they may have volumes of {} only", types.join(", ")),
    };
    Some(sentence("provide.usage.volumeTypes", text))
}

/// Permissions and limits of their containers. Leaves out defaults.
fn container_sentences(usage: &Usage) -> Vec<PolicySentence> {
    let (default, mut all) = (Usage::default(), Vec::new());
    all.extend(sentence_of_names(
        "provide.usage.podLabels",
        "they keep the labels",
        &usage.pod_labels,
    ));
    all.extend(sentence_of_names(
        "provide.usage.podAnnotations",
        "they keep the annotations",
        &usage.pod_annotations,
    ));
    match usage.images.as_deref() {
        None => {}
        Some([]) => all.push(sentence("provide.usage.images", "they may use no image")),
        Some(images) => all.push(sentence(
            "provide.usage.images",
            format!("they may use images of {} only", images.join(", ")),
        )),
    }
    if usage.always_pull_images {
        all.push(sentence(
            "provide.usage.alwaysPullImages",
            "nodes ask the registry for every image that they start with",
        ));
    }
    if usage.default_limit_percentage != default.default_limit_percentage {
        let text = match usage.default_limit_percentage {
            0 => "containers without limits of memory and ephemeral storage get none".to_owned(),
            percentage => {
                format!(
                    "containers without limits of memory and ephemeral storage get {percentage} percent of their requests"
                )
            }
        };
        all.push(sentence("provide.usage.defaultLimitPercentage", text));
    }
    if usage.hardening == Hardening::None {
        let text = "containers may have raw sockets, and run without a seccomp profile unless they name one";
        all.push(sentence("provide.usage.hardening", text));
    }
    all
}

fn toleration_in_words(toleration: &Toleration) -> String {
    let key = toleration.key.as_deref().unwrap_or_default();
    let value = toleration
        .value
        .as_deref()
        .filter(|value| !value.is_empty())
        .map(|value| format!("={value}"))
        .unwrap_or_default();
    let effect = toleration
        .effect
        .as_deref()
        .filter(|effect| !effect.is_empty())
        .map(|effect| format!(" ({effect})"))
        .unwrap_or_default();
    format!("{key}{value}{effect}")
}

/// Rules for accepting the peer's offers.
fn consume_sentences(consume: &Consume) -> Vec<PolicySentence> {
    let mut all = vec![sentence(
        "consume.accept",
        acceptance_in_words(consume.accept),
    )];
    if consume.automatic {
        all.push(sentence(
            "consume.automatic",
            "this cluster borrows from the peer automatically".to_owned(),
        ));
    }
    if let Some(most) = consume.max_offers {
        all.push(sentence(
            "consume.maxOffers",
            format!("at most {most} of its offers are accepted"),
        ));
    }
    if !consume.max_resources.is_empty() {
        let text = format!(
            "at most {} of all its offers together is accepted; a larger offer is accepted in part",
            consume.max_resources
        );
        all.push(sentence("consume.maxResources", text));
    }
    if consume.max_hops != Consume::default().max_hops {
        let text = format!(
            "resources may come through at most {} clusters, with the peer",
            consume.max_hops
        );
        all.push(sentence("consume.maxHops", text));
    }
    all.extend(
        contract_words::signed_contract_sentences(&consume.contract)
            .into_iter()
            .map(|(field, text)| sentence(field, text)),
    );
    all.extend(consume.max_prices.as_ref().map(|limits| {
        sentence(
            "consume.maxPrices",
            price_words::price_limits_in_words(limits),
        )
    }));
    all.extend(
        consume
            .budget
            .as_ref()
            .map(|budget| sentence("consume.budget", price_words::budget_in_words(budget))),
    );
    if !consume.node_labels.is_empty() {
        let text = format!(
            "its virtual nodes also take over the labels {}",
            consume.node_labels.join(", ")
        );
        all.push(sentence("consume.nodeLabels", text));
    }
    all
}

fn acceptance_in_words(accept: Accept) -> &'static str {
    match accept {
        Accept::Automatic => "what the peer offers is accepted",
        Accept::Manual => {
            "a person has to decide on each offer of the peer: `liqoctl offer accept`"
        }
        Accept::Never => "nothing that the peer offers is accepted",
    }
}

/// The shared amounts, in a few words.
pub fn shares_in_words(provide: &Provide) -> String {
    let mut text = if provide.source.plugin.is_some() {
        "as the plugin says".to_owned()
    } else if let Some(fixed) = &provide.source.fixed {
        fixed.resources.to_string()
    } else {
        format!("{} %", provide.percentage)
    };
    if !provide.caps.is_empty() {
        text = format!("{text}, at most {}", provide.caps);
    }
    text
}

/// The source of the amounts, in a few words.
pub fn source_in_short(source: &Source) -> String {
    if let Some(plugin) = &source.plugin {
        return format!("plugin {}", plugin.address);
    }
    if source.fixed.is_some() {
        return "fixed".to_owned();
    }
    if let Some(offers) = &source.offers {
        return if offers.own_nodes {
            "offers, all nodes"
        } else {
            "offers"
        }
        .to_owned();
    }
    match &source.nodes {
        Some(nodes) => format!(
            "nodes {}",
            nodes
                .selectors
                .iter()
                .map(selector_in_words)
                .collect::<Vec<_>>()
                .join(" or ")
        ),
        None => "all nodes".to_owned(),
    }
}

/// The peers that a policy is for, in a few words.
pub fn peers_in_words(peers: &PeerSelector) -> String {
    let mut all = Vec::new();
    if !peers.cluster_ids.is_empty() {
        let ids: Vec<&str> = peers
            .cluster_ids
            .iter()
            .map(liqo_api::ClusterId::short_id)
            .collect();
        all.push(format!("ID {}", ids.join("|")));
    }
    if !peers.names.is_empty() {
        all.push(format!("name {}", peers.names.join("|")));
    }
    all.extend(peers.selector.as_ref().map(selector_in_words));
    if !peers.discovered_by.is_empty() {
        let ways: Vec<String> = peers
            .discovered_by
            .iter()
            .map(|way| format!("{way:?}"))
            .collect();
        all.push(format!("found {}", ways.join("|")));
    }
    if all.is_empty() {
        "everybody".to_owned()
    } else {
        all.join(", ")
    }
}

/// A label selector, as kubectl writes it.
pub fn selector_in_words(selector: &LabelSelector) -> String {
    match label_selector(selector) {
        Some(selector) if selector.selects_all() => "any labels".to_owned(),
        Some(selector) => selector.to_string(),
        None => "a selector that is not valid".to_owned(),
    }
}
