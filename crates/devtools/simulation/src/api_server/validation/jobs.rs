//! Jobs, and cron jobs that make them.

use super::json::{has, immutable, list, not_negative, one_of, required_one_of, text};
use super::metadata::label_selector;
use super::workloads::matches;
use super::{Cause, names, pods};
use serde_json::{Map, Value, json};

pub fn job(causes: &mut Vec<Cause>, object: &Value) {
    generated_selector(causes, object);
    selected(causes, &object["spec"]);
    let spec = &object["spec"];
    let completions = spec["completions"].as_i64().unwrap_or(0);
    if spec["completionMode"] == "Indexed" && completions > 0 {
        let name = text(&object["metadata"], "name");
        let host = format!("{name}-{}", completions - 1);
        if !names::label(&host).is_empty() {
            let detail = format!("will not able to create pod with invalid DNS label: {host}");
            causes.push(Cause::invalid("metadata.name", name, detail));
        }
    }
}

/// The labels that the API server gave to the pods of a job.
fn generated_selector(causes: &mut Vec<Cause>, object: &Value) {
    let spec = &object["spec"];
    if spec["manualSelector"] == true || spec["selector"].is_null() {
        return;
    }
    let (uid, name) = (text(&object["metadata"], "uid"), text(&object["metadata"], "name"));
    if uid.is_empty() {
        causes.push(Cause::required("metadata.uid", ""));
    }
    let expected = [
        ("controller-uid", uid),
        ("job-name", name),
        ("batch.kubernetes.io/controller-uid", uid),
        ("batch.kubernetes.io/job-name", name),
    ];
    let labels = spec["template"]["metadata"].get("labels").cloned().unwrap_or_default();
    for (key, value) in expected {
        let path = format!("spec.template.metadata.labels[{key}]");
        let detail = format!("must be '{value}'");
        match labels.get(key) {
            None => causes.push(Cause::required(path, &detail)),
            Some(given) if given != value => causes.push(Cause::invalid(path, labels.clone(), detail)),
            Some(_) => {}
        }
    }
    let expected: Map<String, Value> = expected.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    if matches(&spec["selector"], &Value::Object(expected)) == Some(false) {
        causes.push(Cause::invalid("spec.selector", spec["selector"].clone(), "`selector` not auto-generated"));
    }
}

fn selected(causes: &mut Vec<Cause>, spec: &Value) {
    job_spec(causes, "spec", spec);
    if spec["selector"].is_null() {
        causes.push(Cause::required("spec.selector", ""));
    }
    label_selector(causes, "spec.selector", &spec["selector"]);
    let labels = spec["template"]["metadata"].get("labels").cloned().unwrap_or_default();
    if matches(&spec["selector"], &labels) == Some(false) {
        let detail = "`selector` does not match template `labels`";
        causes.push(Cause::invalid("spec.template.metadata.labels", labels, detail));
    }
}

fn job_spec(causes: &mut Vec<Cause>, path: &str, spec: &Value) {
    let counts = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    for field in counts {
        not_negative(causes, &format!("{path}.{field}"), &spec[field]);
    }
    if has(spec, "maxFailedIndexes") && !has(spec, "backoffLimitPerIndex") {
        let detail = "when maxFailedIndexes is specified";
        causes.push(Cause::required(format!("{path}.backoffLimitPerIndex"), detail));
    }
    completion(causes, path, spec);
    if let Some(policy) = spec["podReplacementPolicy"].as_str() {
        let policies: &[&str] = if has(spec, "podFailurePolicy") { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
        one_of(causes, &format!("{path}.podReplacementPolicy"), policy, policies);
    }
    pods::template(causes, &format!("{path}.template"), &spec["template"]);
    let at = format!("{path}.template.spec.restartPolicy");
    match text(&spec["template"]["spec"], "restartPolicy") {
        "Always" | "" => causes.push(Cause::required(at, "valid values: \"OnFailure\", \"Never\"")),
        "OnFailure" if has(spec, "podFailurePolicy") => {
            let detail = "only \"Never\" is supported when podFailurePolicy is specified";
            causes.push(Cause::invalid(at, "OnFailure", detail));
        }
        policy => one_of(causes, &at, policy, &["OnFailure", "Never"]),
    }
}

fn completion(causes: &mut Vec<Cause>, path: &str, spec: &Value) {
    let mode = spec["completionMode"].as_str().unwrap_or("NonIndexed");
    one_of(causes, &format!("{path}.completionMode"), mode, &["NonIndexed", "Indexed"]);
    let number = |field: &str| spec[field].as_i64();
    if mode == "Indexed" {
        if number("completions").is_none() {
            causes.push(Cause::required(format!("{path}.completions"), "when completion mode is Indexed"));
        }
        if let Some(parallelism) = number("parallelism").filter(|parallelism| *parallelism > 100_000) {
            let detail = "must be less than or equal to 100000 when completion mode is Indexed";
            causes.push(Cause::invalid(format!("{path}.parallelism"), parallelism, detail));
        }
        if let (Some(failed), Some(completions)) = (number("maxFailedIndexes"), number("completions"))
            && failed > completions
        {
            let detail = "must be less than or equal to completions";
            causes.push(Cause::invalid(format!("{path}.maxFailedIndexes"), failed, detail));
        }
    }
    if mode == "NonIndexed" {
        for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if let Some(count) = number(field) {
                causes.push(Cause::invalid(format!("{path}.{field}"), count, "requires indexed completion mode"));
            }
        }
    }
}

/// What an update of a job must leave as it is.
pub fn update(causes: &mut Vec<Cause>, old_job: &Value, new_job: &Value) {
    let (old, new) = (&old_job["spec"], &new_job["spec"]);
    selected(causes, new);
    if new["completionMode"] != "Indexed" {
        immutable(causes, "spec.completions", old.get("completions"), new.get("completions"));
    } else if let Some(completions) = new["completions"].as_i64()
        && old["completions"] != completions
        && new["parallelism"] != completions
    {
        let detail = "can only be modified in tandem with spec.parallelism";
        causes.push(Cause::invalid("spec.completions", completions, detail));
    }
    immutable(causes, "spec.selector", old.get("selector"), new.get("selector"));
    let waits = old["suspend"] == true && !has(&old_job["status"], "startTime");
    let (before, after) = (fixed_template(old, waits), fixed_template(new, waits));
    if before != after {
        // Go prints its own type, whose fields have other names.
        causes.push(Cause::invalid("spec.template", new["template"].clone(), "field is immutable"));
    }
    for field in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"] {
        immutable(causes, &format!("spec.{field}"), old.get(field), new.get(field));
    }
}

/// What must stay of a template: where pods run may still change while a job waits.
fn fixed_template(spec: &Value, waits: bool) -> Value {
    let mut template = spec["template"].clone();
    if waits {
        for (part, fields) in
            [("metadata", ["labels", "annotations", ""]), ("spec", ["nodeSelector", "tolerations", "schedulingGates"])]
        {
            if let Some(part) = template[part].as_object_mut() {
                part.retain(|field, _| !fields.contains(&field.as_str()));
            }
        }
        if let Some(affinity) = template["spec"]["affinity"].as_object_mut() {
            affinity.shift_remove("nodeAffinity");
        }
    }
    template
}

pub fn status(causes: &mut Vec<Cause>, old_job: &Value, new_job: &Value) {
    let (old, new) = (&old_job["status"], &new_job["status"]);
    for field in ["active", "succeeded", "failed", "ready", "terminating"] {
        not_negative(causes, &format!("status.{field}"), &new[field]);
    }
    let is = |status: &Value, kind: &str| {
        list(status, "conditions").any(|(_, condition)| text(condition, "type") == kind && text(condition, "status") == "True")
    };
    let (complete, failed) = (is(new, "Complete"), is(new, "Failed"));
    let became = |kind: &str| is(old, kind) != is(new, kind);
    let finishes = (is(old, "Complete") || is(old, "Failed")) != (complete || failed);
    let differs = |field: &str| old.get(field) != new.get(field);
    let count = |status: &Value, field: &str| status[field].as_i64().unwrap_or(0);
    let mut conditions = |broken: bool, detail: &str| {
        if broken {
            causes.push(Cause::invalid_omitted("status.conditions", detail));
        }
    };
    conditions(
        complete && failed && (became("Complete") || became("Failed")),
        "cannot set Complete=True and Failed=true conditions",
    );
    let targets = is(new, "FailureTarget");
    conditions(
        failed && !targets && became("Failed"),
        "cannot set Failed=True condition without the FailureTarget=true condition",
    );
    conditions(
        complete && !is(new, "SuccessCriteriaMet") && (became("Complete") || became("SuccessCriteriaMet")),
        "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
    );
    for kind in ["Failed", "Complete", "FailureTarget"] {
        conditions(is(old, kind) && !is(new, kind), &format!("cannot disable the terminal {kind}=True condition"));
    }
    conditions(
        is(old, "SuccessCriteriaMet") && !is(new, "SuccessCriteriaMet"),
        "cannot disable the SuccessCriteriaMet=True condition",
    );
    if became("Complete") || differs("completionTime") {
        end_time(causes, new, complete);
    }
    let (begin, end) = (new["startTime"].as_str(), new["completionTime"].as_str());
    // Times in one format compare as text.
    if let (Some(begin), Some(end)) = (begin, end)
        && end < begin
    {
        causes.push(Cause::invalid("status.completionTime", end, "must be equal to or after `startTime`"));
    }
    if (finishes || differs("startTime")) && (complete || failed) && begin.is_none() {
        causes.push(Cause::required("status.startTime", "startTime is required for finished job"));
    }
    if complete || failed {
        let active = count(new, "active");
        if active > 0 && (finishes || differs("active")) {
            causes.push(Cause::invalid("status.active", active, "active>0 is invalid for finished job"));
        }
    }
    if has(new, "ready") && count(new, "ready") > count(new, "active") && (differs("ready") || differs("active")) {
        causes.push(Cause::invalid("status.ready", count(new, "ready"), "cannot set more ready pods than active"));
    }
    for field in ["failed", "succeeded"] {
        if count(new, field) < count(old, field) {
            let detail = format!("cannot decrease the {field} counter");
            causes.push(Cause::invalid(format!("status.{field}"), count(new, field), detail));
        }
    }
}

/// Jobs that are complete have a time of completion, and no others.
fn end_time(causes: &mut Vec<Cause>, status: &Value, complete: bool) {
    match status["completionTime"].as_str() {
        Some(end) if !complete => {
            let detail = "cannot set completionTime when there is no Complete=True condition";
            causes.push(Cause::invalid("status.completionTime", end, detail));
        }
        None if complete => {
            let detail = "completionTime is required for Complete jobs";
            causes.push(Cause::required("status.completionTime", detail));
        }
        _ => {}
    }
}

pub fn cron_job(causes: &mut Vec<Cause>, object: &Value, is_new: bool) {
    let spec = &object["spec"];
    match text(spec, "schedule") {
        "" => causes.push(Cause::required("spec.schedule", "")),
        schedule => {
            if let Err(problem) = check_schedule(schedule) {
                causes.push(Cause::invalid("spec.schedule", schedule, problem));
            }
            if schedule.contains("TZ") {
                let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
                causes.push(Cause::invalid("spec.schedule", schedule, detail));
            }
        }
    }
    not_negative(causes, "spec.startingDeadlineSeconds", &spec["startingDeadlineSeconds"]);
    match spec["timeZone"].as_str() {
        Some("") => causes.push(Cause::invalid("spec.timeZone", "", "timeZone must be nil or non-empty string")),
        Some(zone) if jiff::tz::TimeZone::get(zone).is_err() => {
            causes.push(Cause::invalid("spec.timeZone", zone, format!("unknown time zone {zone}")));
        }
        _ => {}
    }
    let policies = ["Allow", "Forbid", "Replace"];
    required_one_of(causes, "spec.concurrencyPolicy", text(spec, "concurrencyPolicy"), &policies);
    let job = &spec["jobTemplate"]["spec"];
    job_spec(causes, "spec.jobTemplate.spec", job);
    if has(job, "selector") {
        let detail = "`selector` will be auto-generated";
        causes.push(Cause::invalid("spec.jobTemplate.spec.selector", job["selector"].clone(), detail));
    }
    if job["manualSelector"] == true {
        causes.push(Cause::not_supported("spec.jobTemplate.spec.manualSelector", true, &["nil", "false"]));
    }
    for field in ["successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        not_negative(causes, &format!("spec.{field}"), &spec[field]);
    }
    let name = text(&object["metadata"], "name");
    if is_new && name.len() > 52 {
        causes.push(Cause::invalid("metadata.name", name, "must be no more than 52 characters"));
    }
}

/// The five fields of a schedule, of which only numbers are checked, or a word such as `@daily`.
fn check_schedule(schedule: &str) -> Result<(), String> {
    if schedule.starts_with('@') {
        let words = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];
        let known = words.contains(&schedule) || schedule.starts_with("@every ");
        return if known { Ok(()) } else { Err(format!("unrecognized descriptor: {schedule}")) };
    }
    let fields: Vec<_> = schedule.split_whitespace().collect();
    if fields.len() != 5 {
        let list = fields.join(" ");
        return Err(format!("expected exactly 5 fields, found {}: [{list}]", fields.len()));
    }
    let bounds = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)];
    for (field, (low, high)) in fields.iter().zip(bounds) {
        for part in field.split(',') {
            check_part(part, low, high)?;
        }
    }
    Ok(())
}

fn check_part(part: &str, low: u32, high: u32) -> Result<(), String> {
    let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
    let number = |text: &str| {
        // Months and weekdays also have names.
        if text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_alphabetic()) && matches!(high, 12 | 6) {
            return Ok(low);
        }
        text.parse::<u32>()
            .map_err(|_| format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax"))
    };
    step.map(number).transpose()?;
    if matches!(range, "*" | "?") {
        return Ok(());
    }
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last) = (number(first)?, number(last)?);
    if first < low {
        return Err(format!("beginning of range ({first}) below minimum ({low}): {part}"));
    }
    if last > high {
        return Err(format!("end of range ({last}) above maximum ({high}): {part}"));
    }
    if first > last {
        return Err(format!("beginning of range ({first}) beyond end of range ({last}): {part}"));
    }
    Ok(())
}
