//! What the test prints.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::Value;

use crate::{
    differences,
    sequence::{Finding, Outcome},
};

/// The longest text of one answer.
const MAX_ANSWER: usize = 6_000;
const MAX_VALUE: usize = 600;

/// The seed, the request, both answers and how they differ.
pub fn describe(finding: &Finding) -> String {
    let Finding {
        seed,
        number,
        request,
        resolved,
        answers,
        differences,
    } = finding;
    let mut text = format!(
        "seed {seed}, request {number}: {} {}\n\n",
        request.verb, request.resource
    );
    for (server, resolved) in ["real", "simulated"].iter().zip(resolved) {
        let user = if request.is_ordinary {
            "alice"
        } else {
            "admin"
        };
        let _ = write!(
            text,
            "{server}: curl -u {user} -X {} '{}'",
            request.method, resolved.path_and_query
        );
        let _ = write!(text, " -H 'Accept: {}'", request.accept);
        if !request.content_type.is_empty() {
            let _ = write!(text, " -H 'Content-Type: {}'", request.content_type);
        }
        if !resolved.body.is_empty() {
            let _ = write!(text, " -d '{}'", resolved.body);
        }
        text.push('\n');
    }
    for (server, answer) in ["real", "simulated"].iter().zip(answers) {
        let _ = writeln!(
            text,
            "\nanswer of the {server} one: {}",
            shorten(&pretty(&answer.value), MAX_ANSWER)
        );
    }
    text.push_str("\ndifferences:\n");
    for difference in differences {
        let value = |value: &Option<Value>| one_line(value.as_ref(), MAX_VALUE);
        let (real, simulated) = (value(&difference.real), value(&difference.simulated));
        let _ = writeln!(
            text,
            "  {} {}\n    real:      {real}\n    simulated: {simulated}",
            difference.path, difference.note
        );
    }
    let _ = writeln!(text, "\nagain: {}", command(*seed));
    text
}

pub fn command(seed: u64) -> String {
    format!("LIQO_JUDGE_SEED={seed} cargo test -p liqo-simulation --test judge -- --nocapture")
}

fn one_line(value: Option<&Value>, length: usize) -> String {
    value.map_or_else(
        || "-".to_owned(),
        |value| shorten(&value.to_string(), length),
    )
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

fn shorten(text: &str, length: usize) -> String {
    match text.char_indices().nth(length) {
        Some((end, _)) => format!("{}... ({} more bytes)", &text[..end], text.len() - end),
        None => text.to_owned(),
    }
}

/// How often a place differs, and in how many sequences nothing differed before: later differences
/// are often consequences.
#[derive(Default)]
struct Group<'a> {
    count: usize,
    first: usize,
    example: Option<(&'a Finding, usize)>,
}

/// The most frequent differences, causes first, each with the shortest example.
pub fn summarize(outcomes: &[Outcome]) -> String {
    let mut groups: BTreeMap<(String, String, String), Group> = BTreeMap::new();
    for outcome in outcomes {
        for (order, finding) in outcome.findings.iter().enumerate() {
            for (index, difference) in finding.differences.iter().enumerate() {
                let request = &finding.request;
                let key = (
                    request.verb.to_owned(),
                    request.resource.clone(),
                    difference.path.clone(),
                );
                let group = groups.entry(key).or_default();
                group.count += 1;
                group.first += usize::from(order == 0);
                group.example.get_or_insert((finding, index));
            }
        }
    }
    let mut sorted: Vec<_> = groups.into_iter().collect();
    sorted.sort_by_key(|(_, group)| std::cmp::Reverse((group.first, group.count)));
    let mut text = format!(
        "{} kinds of differences; first in its sequence / all:\n",
        sorted.len()
    );
    for ((verb, resource, path), group) in sorted {
        let _ = writeln!(
            text,
            "{:4} /{:5}  {verb} {resource} {path}",
            group.first, group.count
        );
        if let Some((finding, index)) = group.example {
            text.push_str(&example(finding, index));
        }
    }
    text
}

fn example(finding: &Finding, index: usize) -> String {
    let difference = &finding.differences[index];
    let value = |value: &Option<Value>| one_line(value.as_ref(), MAX_VALUE / 2);
    let resolved = &finding.resolved[0];
    let (request, codes) = (
        &finding.request,
        [finding.answers[0].code(), finding.answers[1].code()],
    );
    format!(
        "        seed {} request {}: {} {} ({}) {}\n        codes {codes:?} real: {} simulated: {} {}\n",
        finding.seed,
        finding.number,
        request.method,
        resolved.path_and_query,
        request.content_type,
        shorten(&resolved.body, 300),
        value(&difference.real),
        value(&difference.simulated),
        difference.note,
    )
}

/// What was compared.
pub fn totals(outcomes: &[Outcome]) -> String {
    let requests: usize = outcomes.iter().map(|outcome| outcome.requests).sum();
    let events: usize = outcomes.iter().map(|outcome| outcome.events).sum();
    let mut codes = BTreeMap::<u64, usize>::new();
    for code in outcomes.iter().flat_map(|outcome| &outcome.codes) {
        *codes.entry(*code).or_default() += 1;
    }
    let codes: Vec<String> = codes
        .iter()
        .map(|(code, count)| format!("{count} of {code}"))
        .collect();
    let mut text = format!(
        "{requests} requests and {events} events of watches compared; answers: {}\n",
        codes.join(", ")
    );
    for (pattern, count) in differences::used() {
        let _ = writeln!(text, "expected difference, {count} times: {pattern}");
    }
    text
}
