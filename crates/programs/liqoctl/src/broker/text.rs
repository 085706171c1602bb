//! The effects of `enable` and `disable`, as text for people.

use serde_json::Value;

use super::change::{CustomerAfterDisable, EnablePlan, FieldChange, PolicyDisablePlan};

/// The changes of `enable`, shown before it asks.
pub fn render_planned_changes(plan: &EnablePlan) -> String {
    let name = &plan.policy;
    let head = match (plan.creates, &plan.copy_of) {
        (true, Some(of)) => format!("Policy {name} is new: a copy of {of}, with"),
        (true, None) => format!("Policy {name} is new: it has the defaults, with"),
        (false, _) if plan.changes.is_empty() => format!("Policy {name} stays as it is"),
        (false, _) => format!("Policy {name} changes"),
    };
    let width = plan
        .changes
        .iter()
        .map(|change| change.field.len())
        .max()
        .unwrap_or_default();
    let mut lines = vec![head];
    lines.extend(plan.changes.iter().map(
        |FieldChange {
             field,
             before,
             after,
         }| {
            format!(
                "  {field:width$}   {} → {}",
                render_field_value(before.as_ref()),
                render_field_value(after.as_ref())
            )
        },
    ));
    lines.push(match plan.customers.as_slice() {
        [] => "It applies to no consumer yet.".to_owned(),
        customers => format!("It applies to {}.", customers.join(", ")),
    });
    lines.extend(plan.notes.iter().map(|note| format!("Note: {note}.")));
    lines.join("\n")
}

fn render_field_value(value: Option<&Value>) -> String {
    match value {
        None => "(none)".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// The result of `enable`.
pub fn render_enabled(plan: &EnablePlan) -> String {
    let name = &plan.policy;
    if !plan.is_needed() {
        return format!(
            "This cluster lends on what it borrows already, under policy {name}: nothing was changed."
        );
    }
    format!(
        "This cluster lends on what it borrows, under policy {name}: see `liqoctl broker status`. `liqoctl broker disable` ends it."
    )
}

/// The changes of `disable`, shown before it asks.
pub fn render_planned_endings(endings: &[PolicyDisablePlan]) -> String {
    let mut lines = Vec::new();
    for ending in endings {
        let name = &ending.policy;
        lines.push(if ending.deletes {
            format!("Policy {name} goes: `broker enable` created it")
        } else {
            format!("Policy {name} stays without provide.source.offers: it lends this cluster's own nodes")
        });
        lines.extend(ending.customers.iter().map(render_customer_afterwards));
    }
    lines.push(
        "Customers' pods on what is borrowed end after the notice of the policy that applies then, unless a plugin lends it on."
            .to_owned(),
    );
    lines.join("\n")
}

fn render_customer_afterwards(customer: &CustomerAfterDisable) -> String {
    match (&customer.policy, &customer.shares) {
        (Some(policy), Some(shares)) => format!(
            "  {} is then under policy {policy}: {shares}",
            customer.peer
        ),
        _ => format!(
            "  {} is then under no policy, and gets nothing",
            customer.peer
        ),
    }
}

/// The result of `disable`. `plugins` are the policies by whose plugins this cluster lends on all
/// the same.
pub fn render_disabled(endings: &[PolicyDisablePlan], plugins: &[String]) -> String {
    let names: Vec<&str> = endings
        .iter()
        .map(|ending| ending.policy.as_str())
        .collect();
    let done = match (endings, plugins) {
        ([], []) => return "This cluster lends nothing on: nothing was changed.".to_owned(),
        ([], _) => "Nothing was changed".to_owned(),
        _ => format!(
            "This cluster lends nothing on any more under {}",
            names.join(", ")
        ),
    };
    if plugins.is_empty() {
        return format!("{done}. `liqoctl policy list` shows what applies now.");
    }
    format!(
        "{done}. It lends on by the plugin of policy {}, which this command does not end: give that another source (spec.provide.source).",
        plugins.join(", ")
    )
}
