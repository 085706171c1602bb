//! Receipts as text for people.

use liqo_api::{ReceiptPhase, ReceiptStatement, ReceiptStatus};
use liqo_metering::Seconds;
use liqo_quantity::{AmountSeconds, Money, PricedUnit, cost_of_use, priced_unit};

use super::ListedReceipt;
use crate::output::{self, strip_control_characters};

/// An amount times seconds, in hours of the unit that prices are for: `2 core-hours`.
pub fn amount_in_hours(resource: &str, used: AmountSeconds) -> String {
    let unit = priced_unit(resource);
    let hours = rounded(cost_of_use(Money::from_nanos(1_000_000_000), unit, used));
    match unit {
        PricedUnit::Piece => format!("{hours} hours"),
        unit => format!("{hours} {unit}-hours"),
    }
}

/// At most three decimals, which is enough to read.
fn rounded(amount: Money) -> String {
    let text = amount.to_string();
    match text.split_once('.') {
        Some((whole, decimals)) if decimals.len() > 3 => format!("{whole}.{}", &decimals[..3]),
        _ => text,
    }
}

fn period(statement: &ReceiptStatement) -> String {
    output::to_the_second(&statement.period.start.0.to_string())
}

fn totals(statement: &ReceiptStatement) -> String {
    let all: Vec<String> = statement
        .totals
        .iter()
        .map(|(currency, total)| format!("{total} {}", strip_control_characters(currency)))
        .collect();
    if all.is_empty() {
        "-".to_owned()
    } else {
        all.join(", ")
    }
}

/// The table of `receipt list`. `answer_delay`: how long after a period this cluster has the
/// receipt as a consumer.
pub fn render_receipts(found: &[ListedReceipt], answer_delay: Seconds) -> String {
    if found.is_empty() {
        let minutes = answer_delay.unsigned_abs().div_ceil(60);
        return format!(
            "There is no receipt. A contract gets one after each period in which pods ran under it: at the provider about a minute \
             later, at the consumer {minutes} minutes later, when it has compared it with its own count (metering.clockToleranceSeconds). \
             `liqoctl usage` shows what was used since the last one."
        );
    }
    let rows = found.iter().map(|one| {
        let statement = &one.receipt.spec.statement;
        vec![
            strip_control_characters(&one.peer),
            one.role.to_string(),
            period(statement),
            statement.pods.to_string(),
            totals(statement),
            state_in_words(one),
            one.name.clone(),
        ]
    });
    output::format_table(
        &["PEER", "ROLE", "PERIOD", "PODS", "TOTAL", "STATE", "NAME"],
        rows,
    )
}

fn state_in_words(one: &ListedReceipt) -> String {
    if one.fault.is_some() {
        "Invalid".to_owned()
    } else {
        format!("{:?}", one.phase)
    }
}

/// One receipt in words.
pub fn render_receipt(one: &ListedReceipt) -> String {
    let statement = &one.receipt.spec.statement;
    let mut lines = vec![
        format!(
            "Receipt {} of contract {}",
            one.name,
            strip_control_characters(&statement.contract)
        ),
        format!("  provider  {}", statement.provider),
        format!("  consumer  {}", statement.consumer),
        format!(
            "  period    {} and {} seconds on",
            period(statement),
            statement.period.seconds
        ),
        format!("  pods      {}", statement.pods),
    ];
    for pool in &statement.pools {
        lines.push(format!(
            "  pool {}, version {} of the contract",
            strip_control_characters(&pool.pool),
            pool.version
        ));
        for (name, line) in &pool.resources {
            let price = match (line.rate, line.cost, &pool.currency) {
                (Some(rate), Some(cost), Some(currency)) => {
                    let currency = strip_control_characters(currency);
                    format!(
                        " at {rate} {currency} a {} and hour: {cost} {currency}",
                        priced_unit(name)
                    )
                }
                _ => ", no price".to_owned(),
            };
            lines.push(format!(
                "    {}: {}{price}",
                strip_control_characters(name),
                amount_in_hours(name, line.amount_seconds)
            ));
        }
    }
    if statement.is_summary {
        lines.push("  a summary: the lines of its pools would take too much space".to_owned());
    }
    lines.push(format!("  total     {}", totals(statement)));
    lines.push(format!(
        "  entries   {}, SHA-256 {}",
        statement.entries,
        strip_control_characters(&statement.digest)
    ));
    if one.is_kept {
        lines.push("  The peering has ended.".to_owned());
    }
    lines.push(match &one.fault {
        Some(fault) => format!(
            "  This receipt is not valid: {}.",
            strip_control_characters(fault)
        ),
        None if one.is_kept && one.phase == ReceiptPhase::Pending => {
            "  The provider signed it; the consumer never did.".to_owned()
        }
        None => answer_in_words(one.phase, one.receipt.status.as_ref()),
    });
    lines.join("\n")
}

fn answer_in_words(phase: ReceiptPhase, status: Option<&ReceiptStatus>) -> String {
    let message = strip_control_characters(
        status
            .and_then(|status| status.message.as_deref())
            .unwrap_or_default(),
    );
    match phase {
        ReceiptPhase::Pending => {
            return "  The provider signed it; the consumer has not compared it yet.".to_owned();
        }
        ReceiptPhase::Signed => return format!("  Both signed it: {message}."),
        ReceiptPhase::Disputed => {}
    }
    let mut lines = vec![format!("  The consumer disputes it: {message}.")];
    let dispute = status.and_then(|status| status.dispute.as_ref());
    for pod in dispute.iter().flat_map(|dispute| &dispute.pods) {
        let counts = format!(
            "provider {} s, consumer {} s",
            pod.provider_seconds, pod.consumer_seconds
        );
        lines.push(format!(
            "    {}: {counts}: {}",
            strip_control_characters(&pod.uid),
            strip_control_characters(&pod.message)
        ));
    }
    if let Some(dispute) = dispute {
        let more = dispute
            .number
            .saturating_sub(u64::try_from(dispute.pods.len()).unwrap_or(u64::MAX));
        if more > 0 {
            lines.push(format!("    and {more} more pods"));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use liqo_api::{Dispute, DisputedPod};

    use super::*;
    use crate::parties::ContractRole;
    use crate::receipt::{answer_delay, tests::signed};

    fn found() -> ListedReceipt {
        let (_, _, receipt) = signed();
        let name = receipt.metadata.name.clone().unwrap();
        let phase = ReceiptPhase::Signed;
        ListedReceipt {
            peer: "rome".into(),
            role: ContractRole::Provider,
            is_kept: false,
            name,
            phase,
            fault: None,
            receipt,
        }
    }

    #[test]
    fn a_receipt_reads_as_an_invoice() {
        let text = render_receipt(&found());
        for part in [
            "pool gold, version 1",
            "cpu: 2 core-hours at 0.04 EUR a core and hour: 0.08 EUR",
            "pods: 1 hours, no price",
            "total     0.08 EUR",
            "Both signed it",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let table = render_receipts(&[found()], 0);
        assert!(
            table.contains("2026-01-01T00:00:00Z")
                && table.contains("0.08 EUR")
                && table.contains("Signed"),
            "{table}"
        );
    }

    #[test]
    fn a_consumer_without_a_receipt_reads_when_the_first_one_comes() {
        let mut config =
            liqo_api::ClusterConfig::new("liqo", liqo_api::ClusterConfigSpec::default());
        assert!(
            render_receipts(&[], answer_delay(&config)).contains("at the consumer 6 minutes later")
        );
        config.spec.metering.clock_tolerance_seconds = 30;
        assert!(
            render_receipts(&[], answer_delay(&config)).contains("at the consumer 2 minutes later")
        );
    }

    #[test]
    fn a_dispute_names_the_pods() {
        let mut one = ListedReceipt {
            phase: ReceiptPhase::Disputed,
            ..found()
        };
        let pod = DisputedPod {
            uid: "u".into(),
            provider_seconds: 9,
            consumer_seconds: 8,
            message: "too long".into(),
        };
        one.receipt.status = Some(ReceiptStatus {
            phase: ReceiptPhase::Disputed,
            message: Some("one pod differs".into()),
            dispute: Some(Dispute {
                number: 3,
                pods: vec![pod],
            }),
            ..ReceiptStatus::default()
        });
        let text = render_receipt(&one);
        assert!(
            text.contains("u: provider 9 s, consumer 8 s: too long")
                && text.contains("and 2 more pods"),
            "{text}"
        );
    }

    #[test]
    fn amounts_are_rounded_to_be_read() {
        assert_eq!(
            amount_in_hours("cpu", "1".parse().unwrap()),
            "0.000 core-hours"
        );
        assert_eq!(
            amount_in_hours("memory", "3865470566400".parse().unwrap()),
            "1 GiB-hours"
        );
        assert_eq!(
            amount_in_hours("pods", "1800".parse().unwrap()),
            "0.5 hours"
        );
    }
}
