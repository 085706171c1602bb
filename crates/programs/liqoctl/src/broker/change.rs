//! The policies that `broker enable` and `broker disable` write, and the consequences. Pure.
//!
//! `enable` changes only what the user names. A new policy is a copy of the one that applies to its
//! customers until then, so that they keep their other rules, and comes before it. So `disable`
//! restores the former state: it deletes the policies that `enable` created, and takes
//! `source.offers` away from the others.

use std::{collections::BTreeMap, sync::Arc};

use kube::ResourceExt as _;
use liqo_api::{
    ClusterId, ForeignCluster, Granularity, Margin, OffersSource, PeerSelector, PeeringPolicy,
    PeeringPolicySpec, PoolBy, Rates, ResourceOffer, Source,
    policies::{PolicyPeer, policies_of_peer},
    tenant_namespace,
};
use liqo_quantity::RateArgument;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    output,
    policy::{shares_in_words, source_in_short},
    unpeer::lends_to,
};

/// Annotation on a policy: the command that created it, and may delete it again.
pub const CREATED_BY_ANNOTATION: &str = "liqo.io/created-by";
/// Its value on policies of `enable`.
pub const CREATED_BY: &str = "liqoctl broker enable";
/// The policy that `enable` writes if the user names none.
pub const DEFAULT_POLICY: &str = "broker";
/// A new policy comes so much before the policy that applied until then.
const PRIORITY_STEP: i32 = 10;
/// Percentage of a new policy.
const EVERYTHING: u8 = 100;

/// The changes to a policy that the user wants. A field that is `None` stays as it is.
#[derive(Clone, Debug, Default)]
pub struct RequestedPolicyChange {
    /// Name of the policy.
    pub policy: String,
    pub customers: Option<Customers>,
    pub percentage: Option<u8>,
    pub own_nodes: Option<bool>,
    pub margin: MarginChange,
    pub max_hops: Option<u8>,
}

/// To whom a policy applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Customers {
    Everybody,
    /// Peers by name or ID, as the user gave them.
    These(Vec<String>),
}

/// The change to the margin that the user wants.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum MarginChange {
    #[default]
    Keep,
    Remove,
    /// A field that is `None` or empty stays as it is.
    Set {
        percent: Option<u16>,
        fixed: Vec<RateArgument>,
        currency: Option<String>,
    },
}

/// It is not clear what to write, or it would not do what the user expects.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PolicyChangeError {
    #[error("there is no peer {name}: {there}. A cluster that is not known yet needs its ID")]
    UnknownPeer { name: String, there: String },
    #[error("policy {policy} is being deleted: wait until it is gone")]
    Leaving { policy: String },
    #[error(
        "policy {policy} lends {lent}, and a policy has one source: let another one lend on what is borrowed, with --policy NAME \
         --peers PEER,..."
    )]
    OtherSource { policy: String, lent: String },
    #[error(
        "policy {policy} divides its nodes by a label, which is not possible for what is borrowed: use --policy NAME for another one"
    )]
    ByLabel { policy: String },
    #[error(
        "these peers are under different policies ({policies}): run it for each of them, with --policy NAME --peers PEER"
    )]
    SeveralPolicies { policies: String },
    #[error(
        "--max-hops limits what this cluster accepts of its providers, and policy {policy} does not apply to {provider}: set \
         consume.maxHops in {instead}"
    )]
    NotOfProvider {
        policy: String,
        provider: String,
        instead: String,
    },
    #[error("no provider asks a price, so the margin needs --currency, such as EUR")]
    NoCurrency,
    #[error(
        "the providers ask prices in {currencies}: choose one with --currency. Offers with prices in others are not lent on"
    )]
    SeveralCurrencies { currencies: String },
    #[error("there is no policy {policy}: `liqoctl policy list`")]
    NoPolicy { policy: String },
    #[error(
        "policy {policy} lends on what this cluster borrows already: change it with --policy {policy}"
    )]
    LendsAlready { policy: String },
}

/// The objects of this cluster.
#[derive(Clone, Copy, Debug)]
pub struct BrokerObjectsView<'a> {
    pub policies: &'a [PeeringPolicy],
    pub peers: &'a [ForeignCluster],
    /// Offers made and received.
    pub offers: &'a [ResourceOffer],
}

/// One changed field.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldChange {
    /// Its path in the spec.
    pub field: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

/// The change that `enable` writes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EnablePlan {
    /// Name of the policy.
    pub policy: String,
    /// Whether the policy is new.
    pub creates: bool,
    /// The policy that a new one is a copy of; nothing if it has defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy_of: Option<String>,
    /// The differences from the policy as it is, or from the one that it is a copy of.
    pub changes: Vec<FieldChange>,
    /// The known customers to which the policy will apply.
    pub customers: Vec<String>,
    pub notes: Vec<String>,
    #[serde(skip)]
    pub before: PeeringPolicySpec,
    #[serde(skip)]
    pub resource_version: Option<String>,
    pub spec: PeeringPolicySpec,
}

impl EnablePlan {
    /// Whether there is something to write.
    pub fn is_needed(&self) -> bool {
        self.creates || !self.changes.is_empty()
    }
}

/// Computes the policy change after which this cluster lends on what it borrows.
pub fn plan_policy_change(
    wanted: &RequestedPolicyChange,
    present: BrokerObjectsView,
) -> Result<EnablePlan, PolicyChangeError> {
    let ids = match &wanted.customers {
        None => None,
        Some(Customers::Everybody) => Some(Vec::new()),
        Some(Customers::These(names)) => Some(
            names
                .iter()
                .map(|name| peer_id(name, present.peers))
                .collect::<Result<Vec<_>, _>>()?,
        ),
    };
    let existing = present
        .policies
        .iter()
        .find(|policy| policy.name_any() == wanted.policy);
    let (before, copy_of) = match existing {
        Some(policy) => (spec_that_may_lend(policy)?, None),
        None => policy_in_force(ids.as_deref().unwrap_or_default(), present)?,
    };
    let mut spec = before.clone();
    if existing.is_none() {
        spec.peers = PeerSelector::default();
        spec.priority = before.priority.saturating_add(PRIORITY_STEP);
        spec.provide.percentage = EVERYTHING;
        spec.provide.source = Source::default();
        if spec.provide.granularity.by == PoolBy::NodeLabel {
            let peers_may_choose = spec.provide.granularity.peers_may_choose;
            spec.provide.granularity = Granularity {
                peers_may_choose,
                ..Granularity::default()
            };
        }
    }
    if let Some(ids) = ids {
        spec.peers = PeerSelector {
            cluster_ids: ids,
            ..PeerSelector::default()
        };
    }
    let offers = spec.provide.source.offers.get_or_insert_default();
    offers.own_nodes = wanted.own_nodes.unwrap_or(offers.own_nodes);
    apply_margin_change(offers, &wanted.margin, present.offers)?;
    spec.provide.percentage = wanted.percentage.unwrap_or(spec.provide.percentage);
    spec.consume.max_hops = wanted.max_hops.unwrap_or(spec.consume.max_hops);
    raise_priority(&mut spec, &wanted.policy, present);
    let after = with_policy(&wanted.policy, &spec, present.policies);
    if wanted.max_hops.is_some() {
        applies_to_providers(&wanted.policy, &after, present.peers)?;
    }
    let changes = changed_fields(&before, &spec);
    let customers = customers(&wanted.policy, &after, present.peers);
    let mut notes = notes(&wanted.policy, &spec, &after, present);
    if let (None, Some(budget), Some(of)) = (existing, &spec.consume.budget, &copy_of) {
        let (amount, currency) = (budget.amount, &budget.currency);
        notes.push(format!(
            "{} has a budget of its own, as {of} has: {amount} {currency}",
            wanted.policy
        ));
    }
    Ok(EnablePlan {
        policy: wanted.policy.clone(),
        creates: existing.is_none(),
        copy_of,
        changes,
        customers,
        notes,
        before,
        resource_version: existing.and_then(kube::ResourceExt::resource_version),
        spec,
    })
}

/// The ID of a peer. An ID may be unknown, because a customer may come later.
fn peer_id(name: &str, known: &[ForeignCluster]) -> Result<ClusterId, PolicyChangeError> {
    if let Ok(id) = name.parse() {
        return Ok(id);
    }
    let found = known
        .iter()
        .find(|foreign| foreign.name_any() == name)
        .map(|foreign| foreign.spec.cluster_id.clone());
    found.ok_or_else(|| {
        let names: Vec<String> = known.iter().map(kube::ResourceExt::name_any).collect();
        let there = if names.is_empty() {
            "this cluster has no peers".to_owned()
        } else {
            output::existing_names(&names)
        };
        PolicyChangeError::UnknownPeer {
            name: name.to_owned(),
            there,
        }
    })
}

/// The spec of an existing policy, if it may lend on what is borrowed.
fn spec_that_may_lend(policy: &PeeringPolicy) -> Result<PeeringPolicySpec, PolicyChangeError> {
    let name = policy.name_any();
    let provide = &policy.spec.provide;
    if policy.metadata.deletion_timestamp.is_some() {
        return Err(PolicyChangeError::Leaving { policy: name });
    }
    if provide.source.offers.is_none() && !provide.source.is_local() {
        return Err(PolicyChangeError::OtherSource {
            policy: name,
            lent: source_in_short(&provide.source),
        });
    }
    if provide.granularity.by == PoolBy::NodeLabel {
        return Err(PolicyChangeError::ByLabel { policy: name });
    }
    Ok(policy.spec.clone())
}

/// The policy that applies to these customers now, or to everybody.
fn policy_in_force(
    customers: &[ClusterId],
    present: BrokerObjectsView,
) -> Result<(PeeringPolicySpec, Option<String>), PolicyChangeError> {
    let policies = arcs_of_policies(present.policies);
    let mut found: Vec<Option<&Arc<PeeringPolicy>>> = if customers.is_empty() {
        // A peer that nothing is known about.
        let stranger = PolicyPeer {
            id: ClusterId::of_public_key(&[0; 32]),
            name: None,
            labels: BTreeMap::new(),
        };
        vec![
            policies_of_peer(&policies, &stranger)
                .into_iter()
                .find(|policy| policy.spec.peers.is_everybody()),
        ]
    } else {
        customers
            .iter()
            .map(|id| {
                policies_of_peer(&policies, &policy_peer(id, present.peers))
                    .into_iter()
                    .next()
            })
            .collect()
    };
    found.sort_by_key(|policy| policy.map(|policy| policy.name_any()));
    found.dedup_by_key(|policy| policy.map(|policy| policy.name_any()));
    match found.as_slice() {
        [Some(one)] if one.spec.provide.source.offers.is_some() => {
            Err(PolicyChangeError::LendsAlready {
                policy: one.name_any(),
            })
        }
        [Some(one)] => Ok((one.spec.clone(), Some(one.name_any()))),
        [None] | [] => Ok((PeeringPolicySpec::default(), None)),
        several => Err(PolicyChangeError::SeveralPolicies {
            policies: several
                .iter()
                .copied()
                .map(|policy| policy.map_or_else(|| "none".to_owned(), |one| one.name_any()))
                .collect::<Vec<_>>()
                .join(", "),
        }),
    }
}

fn arcs_of_policies(policies: &[PeeringPolicy]) -> Vec<Arc<PeeringPolicy>> {
    policies.iter().cloned().map(Arc::new).collect()
}

/// The policies with this one as it will be.
fn with_policy(
    name: &str,
    spec: &PeeringPolicySpec,
    policies: &[PeeringPolicy],
) -> Vec<Arc<PeeringPolicy>> {
    let others = policies
        .iter()
        .filter(|policy| policy.name_any() != name)
        .cloned();
    others
        .chain([PeeringPolicy::new(name, spec.clone())])
        .map(Arc::new)
        .collect()
}

fn policy_peer(id: &ClusterId, known: &[ForeignCluster]) -> PolicyPeer {
    PolicyPeer::new(
        id,
        known.iter().find(|foreign| foreign.spec.cluster_id == *id),
    )
}

/// The policy that applies to a peer.
fn policy_of(
    policies: &[Arc<PeeringPolicy>],
    foreign: &ForeignCluster,
) -> Option<Arc<PeeringPolicy>> {
    policies_of_peer(
        policies,
        &PolicyPeer::new(&foreign.spec.cluster_id, Some(foreign)),
    )
    .first()
    .map(|policy| (*policy).clone())
}

/// Raises the priority so that the policy applies to every customer that it names.
fn raise_priority(spec: &mut PeeringPolicySpec, name: &str, present: BrokerObjectsView) {
    let others: Vec<_> = arcs_of_policies(present.policies)
        .into_iter()
        .filter(|policy| policy.name_any() != name)
        .collect();
    for id in &spec.peers.cluster_ids {
        if let Some(other) = policies_of_peer(&others, &policy_peer(id, present.peers)).first() {
            // Among equal priorities, the first by name applies.
            let comes_first =
                (spec.priority, other.name_any().as_str()) > (other.spec.priority, name);
            if !comes_first {
                spec.priority = other.spec.priority.saturating_add(PRIORITY_STEP);
            }
        }
    }
}

fn applies_to_providers(
    name: &str,
    policies: &[Arc<PeeringPolicy>],
    known: &[ForeignCluster],
) -> Result<(), PolicyChangeError> {
    for provider in known.iter().filter(|foreign| foreign.wants_resources()) {
        let applying = policy_of(policies, provider).map(|policy| policy.name_any());
        if applying.as_deref() != Some(name) {
            let instead = applying.map_or_else(
                || "a policy that does".to_owned(),
                |policy| format!("policy {policy}"),
            );
            return Err(PolicyChangeError::NotOfProvider {
                policy: name.to_owned(),
                provider: provider.name_any(),
                instead,
            });
        }
    }
    Ok(())
}

fn apply_margin_change(
    offers: &mut OffersSource,
    change: &MarginChange,
    received: &[ResourceOffer],
) -> Result<(), PolicyChangeError> {
    let (percent, fixed, currency) = match change {
        MarginChange::Keep => return Ok(()),
        MarginChange::Remove => {
            offers.margin = None;
            return Ok(());
        }
        MarginChange::Set {
            percent,
            fixed,
            currency,
        } => (percent, fixed, currency),
    };
    let mut margin = offers.margin.take().unwrap_or_default();
    margin.percent = percent.unwrap_or(margin.percent);
    if !fixed.is_empty() {
        margin.fixed = fixed.iter().cloned().collect::<Rates>();
    }
    match currency {
        Some(currency) => margin.currency.clone_from(currency),
        None if margin.currency.is_empty() => margin.currency = only_currency(received)?,
        None => {}
    }
    offers.margin = Some(margin);
    Ok(())
}

/// The currency of all providers.
fn only_currency(offers: &[ResourceOffer]) -> Result<String, PolicyChangeError> {
    let mut found = currencies(offers);
    match (found.pop(), found.is_empty()) {
        (Some(one), true) => Ok(one),
        (None, _) => Err(PolicyChangeError::NoCurrency),
        (Some(last), false) => {
            found.push(last);
            Err(PolicyChangeError::SeveralCurrencies {
                currencies: found.join(", "),
            })
        }
    }
}

/// The currencies of what costs something, sorted.
fn currencies(offers: &[ResourceOffer]) -> Vec<String> {
    let received = offers.iter().filter(|offer| is_received(offer));
    let priced = received.filter_map(|offer| offer.spec.prices.as_ref());
    let costly = priced.filter(|prices| prices.rates.iter().any(|(_, rate)| !rate.is_zero()));
    let mut all: Vec<String> = costly
        .map(|prices| output::strip_control_characters(&prices.currency))
        .collect();
    all.sort();
    all.dedup();
    all
}

/// Whether another cluster made it to this one.
fn is_received(offer: &ResourceOffer) -> bool {
    offer.namespace() == Some(liqo_api::provider_namespace(&offer.spec.cluster_id))
}

/// The known customers to which a policy applies.
fn customers(name: &str, policies: &[Arc<PeeringPolicy>], known: &[ForeignCluster]) -> Vec<String> {
    let mut names: Vec<String> = known
        .iter()
        .filter(|foreign| lends_to(foreign))
        .filter(|foreign| is_under_policy(name, policies, foreign))
        .map(kube::ResourceExt::name_any)
        .collect();
    names.sort();
    names
}

fn is_under_policy(name: &str, policies: &[Arc<PeeringPolicy>], foreign: &ForeignCluster) -> bool {
    policy_of(policies, foreign).is_some_and(|policy| policy.name_any() == name)
}

/// Notes to the user, shown before the policy is written.
fn notes(
    name: &str,
    spec: &PeeringPolicySpec,
    after: &[Arc<PeeringPolicy>],
    present: BrokerObjectsView,
) -> Vec<String> {
    let mut notes = Vec::new();
    let offers = spec.provide.source.offers.clone().unwrap_or_default();
    if !present.offers.iter().any(is_received) {
        notes.push(
            "this cluster borrows nothing yet: `liqoctl peer --remote-kubeconfig FILE` borrows from another cluster".to_owned(),
        );
    }
    for foreign in present.peers.iter().filter(|foreign| lends_to(foreign)) {
        let Some(policy) = policy_of(after, foreign) else {
            continue;
        };
        let is_ours = policy.name_any() == name;
        let selected =
            spec.peers.is_everybody() || spec.peers.cluster_ids.contains(&foreign.spec.cluster_id);
        if !is_ours && selected && policy.spec.provide.source.offers.is_none() {
            let (priority, other) = (policy.spec.priority, policy.name_any());
            notes.push(format!(
                "{other} (priority {priority}) applies to {}, not {name}: it gets nothing of what is borrowed",
                foreign.name_any()
            ));
        }
        if is_ours
            && !offers.own_nodes
            && present
                .offers
                .iter()
                .any(|offer| offers_own_nodes(offer, foreign))
        {
            let seconds = spec.provide.notice_seconds;
            notes.push(format!(
                "{} uses this cluster's own nodes: its pods there end after a notice of {seconds} s (--own-nodes lends both)",
                foreign.name_any()
            ));
        }
    }
    notes.extend(price_notes(spec, offers.margin.as_ref(), present.offers));
    if spec.provide.contract.is_some() {
        notes.push(
            "customers have to sign a contract before their pods are admitted (`provide.contract`)"
                .to_owned(),
        );
    }
    notes
}

/// Whether the peer is offered something of this cluster's own nodes.
fn offers_own_nodes(offer: &ResourceOffer, foreign: &ForeignCluster) -> bool {
    offer.namespace() == Some(tenant_namespace(&foreign.spec.cluster_id))
        && !offer.spec.is_borrowed()
}

fn price_notes(
    spec: &PeeringPolicySpec,
    margin: Option<&Margin>,
    offers: &[ResourceOffer],
) -> Vec<String> {
    let asked = currencies(offers);
    let mut notes = Vec::new();
    match margin {
        Some(margin) => {
            let others: Vec<String> = asked
                .into_iter()
                .filter(|currency| *currency != margin.currency)
                .collect();
            if !others.is_empty() {
                notes.push(format!(
                    "offers with prices in {} are not lent on: the margin is in {}",
                    others.join(", "),
                    margin.currency
                ));
            }
            if spec
                .provide
                .prices
                .as_ref()
                .is_some_and(|prices| !prices.rates.is_empty())
            {
                notes.push("with a margin, `provide.prices.rates` do not count".to_owned());
            }
        }
        None if spec.provide.prices.is_none() && !asked.is_empty() => {
            notes.push("providers ask a price, and this policy asks none: --margin PERCENT passes their prices on".to_owned());
        }
        None => {}
    }
    notes
}

/// The fields that differ.
fn changed_fields(before: &PeeringPolicySpec, after: &PeeringPolicySpec) -> Vec<FieldChange> {
    let mut changes = Vec::new();
    let (before, after) = (spec_as_json(before), spec_as_json(after));
    collect_field_changes("", Some(&before), Some(&after), &mut changes);
    changes
}

/// The spec as JSON.
fn spec_as_json(spec: &PeeringPolicySpec) -> Value {
    serde_json::to_value(spec).unwrap_or_default()
}

fn collect_field_changes(
    path: &str,
    before: Option<&Value>,
    after: Option<&Value>,
    changes: &mut Vec<FieldChange>,
) {
    match (before, after) {
        (before, after) if before == after => {}
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            collect_map_changes(path, before, after, changes);
        }
        (None, Some(Value::Object(after))) if !after.is_empty() => {
            collect_map_changes(path, &Map::new(), after, changes);
        }
        (before, after) => {
            changes.push(FieldChange {
                field: path.to_owned(),
                before: before.cloned(),
                after: after.cloned(),
            });
        }
    }
}

fn collect_map_changes(
    path: &str,
    before: &Map<String, Value>,
    after: &Map<String, Value>,
    changes: &mut Vec<FieldChange>,
) {
    let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        collect_field_changes(&path, before.get(name), after.get(name), changes);
    }
}

/// The JSON merge patch that turns `before` into `after`. Fields that this version of the program
/// does not know stay.
pub fn merge_patch(before: &PeeringPolicySpec, after: &PeeringPolicySpec) -> Value {
    merge_patch_between(&spec_as_json(before), &spec_as_json(after))
}

fn merge_patch_between(before: &Value, after: &Value) -> Value {
    let (Value::Object(before), Value::Object(after)) = (before, after) else {
        return after.clone();
    };
    let removed = before
        .keys()
        .filter(|name| !after.contains_key(*name))
        .map(|name| (name.clone(), Value::Null));
    let changed = after
        .iter()
        .filter(|(name, value)| before.get(*name) != Some(*value));
    let changed = changed.map(|(name, value)| {
        (
            name.clone(),
            before
                .get(name)
                .map_or_else(|| value.clone(), |old| merge_patch_between(old, value)),
        )
    });
    Value::Object(removed.chain(changed).collect())
}

/// The effect of `disable` on one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyDisablePlan {
    pub policy: String,
    /// Whether the policy goes; otherwise only `provide.source.offers` does.
    pub deletes: bool,
    /// The policy of each of its customers afterwards.
    pub customers: Vec<CustomerAfterDisable>,
    #[serde(skip)]
    pub before: PeeringPolicySpec,
    #[serde(skip)]
    pub resource_version: Option<String>,
}

/// The policy of a customer when this cluster lends nothing on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CustomerAfterDisable {
    pub peer: String,
    /// Nothing if no policy selects it then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The resources that the policy shares, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<String>,
}

/// Computes the changes after which this cluster, or a single policy, lends nothing on. Empty if no
/// policy lends on.
pub fn plan_policy_disabling(
    only: Option<&str>,
    present: BrokerObjectsView,
) -> Result<Vec<PolicyDisablePlan>, PolicyChangeError> {
    if let Some(name) = only.filter(|name| {
        !present
            .policies
            .iter()
            .any(|policy| policy.name_any() == *name)
    }) {
        return Err(PolicyChangeError::NoPolicy {
            policy: name.to_owned(),
        });
    }
    let ending: Vec<&PeeringPolicy> = present
        .policies
        .iter()
        .filter(|policy| policy.spec.provide.source.offers.is_some())
        .filter(|policy| policy.metadata.deletion_timestamp.is_none())
        .filter(|policy| only.is_none_or(|name| policy.name_any() == name))
        .collect();
    let now = arcs_of_policies(present.policies);
    let after: Vec<Arc<PeeringPolicy>> = present
        .policies
        .iter()
        .filter_map(|policy| policy_without_borrowed(policy, &ending))
        .map(Arc::new)
        .collect();
    let ending = ending.into_iter().map(|policy| {
        let lent = present
            .peers
            .iter()
            .filter(|foreign| lends_to(foreign))
            .filter(|foreign| is_under_policy(&policy.name_any(), &now, foreign));
        PolicyDisablePlan {
            policy: policy.name_any(),
            deletes: was_created(policy),
            customers: lent
                .map(|foreign| customer_after_disable(foreign, &after))
                .collect(),
            before: policy.spec.clone(),
            resource_version: policy.resource_version(),
        }
    });
    Ok(ending.collect())
}

fn customer_after_disable(
    foreign: &ForeignCluster,
    after: &[Arc<PeeringPolicy>],
) -> CustomerAfterDisable {
    let then = policy_of(after, foreign);
    let shares = then.as_ref().map(|policy| {
        format!(
            "{} of {}",
            shares_in_words(&policy.spec.provide),
            source_in_short(&policy.spec.provide.source)
        )
    });
    CustomerAfterDisable {
        peer: foreign.name_any(),
        policy: then.map(|policy| policy.name_any()),
        shares,
    }
}

/// The policies by whose plugins this cluster lends on. Nothing but another source in them ends
/// that.
pub fn by_plugins(present: BrokerObjectsView) -> Vec<String> {
    let policies = arcs_of_policies(present.policies);
    present
        .policies
        .iter()
        .filter(|policy| lends_on_by_plugin(policy, &policies, present))
        .map(kube::ResourceExt::name_any)
        .collect()
}

fn lends_on_by_plugin(
    policy: &PeeringPolicy,
    policies: &[Arc<PeeringPolicy>],
    present: BrokerObjectsView,
) -> bool {
    let mut customers = present
        .peers
        .iter()
        .filter(|foreign| is_under_policy(&policy.name_any(), policies, foreign))
        .map(|foreign| tenant_namespace(&foreign.spec.cluster_id));
    policy.spec.provide.source.plugin.is_some()
        && customers.any(|namespace| has_borrowed_offers(&namespace, present.offers))
}

fn has_borrowed_offers(namespace: &str, offers: &[ResourceOffer]) -> bool {
    let mut offers = offers
        .iter()
        .filter(|offer| offer.namespace().as_deref() == Some(namespace));
    offers.any(|offer| offer.spec.is_borrowed() && offer.spec.withdrawal_timestamp.is_none())
}

fn was_created(policy: &PeeringPolicy) -> bool {
    policy
        .annotations()
        .get(CREATED_BY_ANNOTATION)
        .is_some_and(|command| command == CREATED_BY)
}

/// A policy as it is afterwards; nothing if it goes.
fn policy_without_borrowed(
    policy: &PeeringPolicy,
    ending: &[&PeeringPolicy],
) -> Option<PeeringPolicy> {
    if !ending.iter().any(|one| one.name_any() == policy.name_any()) {
        return Some(policy.clone());
    }
    if was_created(policy) {
        return None;
    }
    let mut policy = policy.clone();
    policy.spec.provide.source.offers = None;
    Some(policy)
}
