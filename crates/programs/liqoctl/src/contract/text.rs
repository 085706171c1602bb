//! Contracts as text for people.

use std::fmt::Write as _;

use liqo_api::{Commitment, ContractSpec, ContractTerms, PriceList, Renewal};
use liqo_quantity::{per_hour, priced_unit};

use super::state::{ContractState, ListedContract, lasting_breaches};
use crate::{
    output::{self, strip_control_characters},
    parties::ContractRole,
};

fn format_time(time: &liqo_api::Time) -> String {
    output::to_the_second(&time.0.to_string())
}

/// The end of a contract, as far as it is known.
fn end_of_contract(one: &ListedContract) -> String {
    let spec = &one.contract.spec;
    let end = spec
        .ended
        .as_ref()
        .map(|end| &end.at)
        .or(spec.terms.end.as_ref());
    end.map_or_else(|| "none".to_owned(), format_time)
}

/// The table of `contract list`.
pub fn render_contracts(found: &[ListedContract]) -> String {
    if found.is_empty() {
        return "There is no contract. A provider proposes one to each peer whose policy has `provide.contract`.".to_owned();
    }
    let rows = found.iter().map(|one| {
        let honoured = lasting_breaches(&one.contract).last().map_or_else(
            || "yes".to_owned(),
            |breach| format!("no: {}", breach.kind.as_str()),
        );
        vec![
            strip_control_characters(&one.peer),
            one.role.to_string(),
            format!("{:?}", one.state),
            one.contract.spec.terms.version.to_string(),
            format!("{:?}", one.contract.spec.terms.commitment),
            end_of_contract(one),
            honoured,
            one.name.clone(),
        ]
    });
    output::format_table(
        &[
            "PEER",
            "ROLE",
            "STATE",
            "VERSION",
            "COMMITMENT",
            "END",
            "HONOURED",
            "NAME",
        ],
        rows,
    )
}

/// A length of time in the largest unit that divides it.
fn format_duration(seconds: u32) -> String {
    let units = [(86_400, "day"), (3600, "hour"), (60, "minute")];
    let (number, unit) = units
        .into_iter()
        .find(|(unit, _)| seconds >= *unit && seconds.is_multiple_of(*unit))
        .map_or((seconds, "second"), |(unit, name)| (seconds / unit, name));
    if number == 1 {
        format!("1 {unit}")
    } else {
        format!("{number} {unit}s")
    }
}

fn format_prices(list: &PriceList) -> String {
    list.rates
        .iter()
        .map(|(name, rate)| {
            format!(
                "{} {rate} {} per {} and hour",
                strip_control_characters(name),
                strip_control_characters(&list.currency),
                priced_unit(name)
            )
        })
        .collect::<Vec<_>>()
        .join(", ")
}

/// Terms as people read them, each line with an indent.
pub fn render_terms(terms: &ContractTerms) -> String {
    let mut lines: Vec<TermLine> = Vec::new();
    let commitment = match terms.commitment {
        Commitment::BestEffort => {
            "BestEffort: the amounts follow what the provider has free; prices, notice, classes and limits are bound"
        }
        Commitment::Guaranteed => "Guaranteed: the amounts are reserved until the end",
    };
    lines.push(TermLine::new("version", terms.version.to_string()));
    lines.push(TermLine::new("commitment", commitment.to_owned()));
    for pool in &terms.pools {
        lines.push(TermLine::new(
            "pool",
            format!(
                "{}: {}",
                strip_control_characters(&pool.name),
                pool.resources.rounded()
            ),
        ));
        match terms.prices.get(&pool.name) {
            Some(list) => {
                lines.push(TermLine::new("  price", format_prices(list)));
                lines.push(TermLine::new(
                    "",
                    format!(
                        "all of it: {} {} per hour",
                        per_hour(&list.rates, &pool.resources).rounded(),
                        strip_control_characters(&list.currency)
                    ),
                ));
            }
            None => lines.push(TermLine::new("  price", "none".to_owned())),
        }
    }
    lines.push(TermLine::new(
        "notice",
        format_duration(terms.notice_seconds),
    ));
    lines.push(TermLine::new("from", format_time(&terms.start)));
    let end = match (&terms.end, terms.renewal) {
        (None, _) => "none; each side ends it with notice".to_owned(),
        (Some(end), Renewal::Automatic) => {
            format!("{}, then renewed if both sign again", format_time(end))
        }
        (Some(end), Renewal::None) => format!("{}, not renewed", format_time(end)),
    };
    lines.push(TermLine::new("until", end));
    let classes = &terms.classes;
    let (storage, ingress) = (class_names(&classes.storage), class_names(&classes.ingress));
    lines.push(TermLine::new(
        "classes",
        format!(
            "storage {storage}; ingress {ingress}; load balancers {}",
            class_names(&classes.load_balancer)
        ),
    ));
    let limits = &terms.limits;
    let security = format!("{:?}", limits.pod_security).to_lowercase();
    let most = format!(
        "{} namespaces, {} Services, {} endpoints",
        limits.max_namespaces, limits.max_services, limits.max_endpoints
    );
    lines.push(TermLine::new(
        "limits",
        format!(
            "Pod Security {security}; at most {most}; pods are charged their {}",
            format!("{:?}", limits.charge).to_lowercase()
        ),
    ));
    lines.push(TermLine::new(
        "receipts",
        format!("every {}", format_duration(terms.metering_period_seconds)),
    ));
    if let Some(delay) = terms.counts_after_seconds {
        lines.push(TermLine::new(
            "counts",
            format!("{} after the consumer signs it", format_duration(delay)),
        ));
    }
    let lines: Vec<String> = lines
        .iter()
        .map(|TermLine { name, value }| format!("  {name:<12} {value}"))
        .collect();
    lines.join("\n").trim_end().to_owned()
}

struct TermLine {
    name: &'static str,
    value: String,
}

impl TermLine {
    fn new(name: &'static str, value: String) -> Self {
        Self { name, value }
    }
}

/// The names of classes; the empty one stands for the default class.
fn class_names(list: &[String]) -> String {
    let names: Vec<String> = list
        .iter()
        .map(|name| {
            if name.is_empty() {
                "default".to_owned()
            } else {
                strip_control_characters(name)
            }
        })
        .collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

/// One contract in words.
pub fn render_contract(one: &ListedContract) -> String {
    let (spec, status) = (
        &one.contract.spec,
        one.contract.status.clone().unwrap_or_default(),
    );
    let mut text = format!(
        "{} with {}, as its {}: {}\n",
        one.name,
        strip_control_characters(&one.peer),
        role_of_peer(one.role),
        state_in_words(one)
    );
    text.push_str(&render_terms(&spec.terms));
    if let Some(message) = status.message.filter(|_| one.state != ContractState::Ended) {
        let _ = write!(
            text,
            "\nThe consumer says: {}",
            strip_control_characters(&message)
        );
    }
    if let Some(pending) = &spec.pending {
        let is_signed = pending.signed.is_some();
        let state = if is_signed {
            "is signed, and does not count yet"
        } else {
            "waits for the consumer's signature"
        };
        let _ = write!(
            text,
            "\nAn amendment {state}:\n{}",
            render_terms(&pending.terms)
        );
    }
    let breaches: Vec<_> = spec.breaches.iter().chain(&status.breaches).collect();
    for breach in breaches {
        let until = breach.until.as_ref().map_or_else(
            || "lasts".to_owned(),
            |until| format!("until {}", format_time(until)),
        );
        let (what, message) = (
            strip_control_characters(&breach.object),
            strip_control_characters(&breach.message),
        );
        let _ = write!(
            text,
            "\nBreach by the {} since {} ({until}): {}, {what}: {message}",
            breach.by,
            format_time(&breach.time),
            breach.kind.as_str()
        );
    }
    text
}

/// The role of the peer, if this cluster is `own`.
fn role_of_peer(own: ContractRole) -> ContractRole {
    match own {
        ContractRole::Provider => ContractRole::Consumer,
        ContractRole::Consumer => ContractRole::Provider,
    }
}

fn state_in_words(one: &ListedContract) -> String {
    let spec = &one.contract.spec;
    match one.state {
        ContractState::Proposed => "proposed, the consumer has not answered".to_owned(),
        ContractState::AwaitingDecision => {
            "waits for a person at the consumer: `liqoctl offer accept` there".to_owned()
        }
        ContractState::Refused => "the consumer does not sign it".to_owned(),
        ContractState::InForce => format!("in force since {}", start_of_contract(spec)),
        ContractState::Amending => format!(
            "in force since {}, with an amendment",
            start_of_contract(spec)
        ),
        ContractState::Ending => spec.ended.as_ref().map_or_else(String::new, |end| {
            format!(
                "ends at {}, by the {}: {}",
                format_time(&end.at),
                end.by,
                strip_control_characters(&end.reason)
            )
        }),
        ContractState::Ended => spec.ended.as_ref().map_or_else(
            || "over".to_owned(),
            |end| {
                format!(
                    "over since {}, by the {}: {}",
                    format_time(&end.at),
                    end.by,
                    strip_control_characters(&end.reason)
                )
            },
        ),
    }
}

fn start_of_contract(spec: &ContractSpec) -> String {
    spec.in_force_since
        .as_ref()
        .map(format_time)
        .unwrap_or_default()
}

/// The question before a contract is ended.
pub fn question_of_end(one: &ListedContract) -> String {
    let spec = &one.contract.spec;
    let notice = format_duration(spec.terms.notice_seconds);
    let early = spec.terms.end.as_ref().filter(|_| {
        spec.terms.commitment == Commitment::Guaranteed && one.role == ContractRole::Provider
    });
    let early = early.map(|end| {
        format!(
            " The amounts are guaranteed until {}, so ending it earlier is a breach.",
            format_time(end)
        )
    });
    let early = early.unwrap_or_default();
    format!(
        "This ends {} with {} after a notice of {notice}, and the pods that run under it.{early} Continue?",
        one.name,
        strip_control_characters(&one.peer)
    )
}
