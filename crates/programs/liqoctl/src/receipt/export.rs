//! Receipts for whoever writes the invoice: one line for each resource of each pool, or for each
//! currency of a summary.

use liqo_api::{ClusterId, Money, ReceiptPhase};
use liqo_quantity::{AmountSeconds, priced_unit};
use serde::Serialize;

use super::ListedReceipt;
use crate::parties::ContractRole;

/// One line of an invoice. That of a summary has neither pool nor resource, and the cost of
/// everything in its currency.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InvoiceLine {
    pub receipt: String,
    pub contract: String,
    pub provider: ClusterId,
    pub consumer: ClusterId,
    pub peer: String,
    pub role: ContractRole,
    pub period_start: String,
    pub period_seconds: u32,
    pub state: ReceiptPhase,
    pub pool: String,
    pub version: u32,
    pub resource: String,
    pub amount_seconds: AmountSeconds,
    /// The rate is for one of this unit, for one hour.
    pub unit: String,
    pub rate: Option<Money>,
    pub cost: Option<Money>,
    pub currency: Option<String>,
}

/// The lines of all receipts that are valid.
pub fn invoice_lines(found: &[ListedReceipt]) -> Vec<InvoiceLine> {
    found
        .iter()
        .filter(|one| one.fault.is_none())
        .flat_map(lines_of_receipt)
        .collect()
}

fn lines_of_receipt(one: &ListedReceipt) -> Vec<InvoiceLine> {
    let statement = &one.receipt.spec.statement;
    if statement.is_summary {
        let totals = statement.totals.iter();
        return totals
            .map(|(currency, total)| InvoiceLine {
                cost: Some(*total),
                currency: Some(currency.clone()),
                ..empty_line(one)
            })
            .collect();
    }
    let mut lines = Vec::new();
    for pool in &statement.pools {
        for (resource, used) in &pool.resources {
            lines.push(InvoiceLine {
                pool: pool.pool.clone(),
                version: pool.version,
                resource: resource.clone(),
                amount_seconds: used.amount_seconds,
                unit: if resource.is_empty() {
                    String::new()
                } else {
                    priced_unit(resource).to_string()
                },
                rate: used.rate,
                cost: used.cost,
                currency: pool.currency.clone(),
                ..empty_line(one)
            });
        }
    }
    lines
}

/// A line of this receipt, without pool, resource and cost.
fn empty_line(one: &ListedReceipt) -> InvoiceLine {
    let statement = &one.receipt.spec.statement;
    InvoiceLine {
        receipt: one.name.clone(),
        contract: statement.contract.clone(),
        provider: statement.provider.clone(),
        consumer: statement.consumer.clone(),
        peer: one.peer.clone(),
        role: one.role,
        period_start: statement.period.start.0.to_string(),
        period_seconds: statement.period.seconds,
        state: one.phase,
        pool: String::new(),
        version: 0,
        resource: String::new(),
        amount_seconds: AmountSeconds::default(),
        unit: String::new(),
        rate: None,
        cost: None,
        currency: None,
    }
}

/// The lines as comma-separated values (RFC 4180), with a header.
pub fn to_csv(lines: &[InvoiceLine]) -> String {
    let header = "receipt,contract,provider,consumer,peer,role,periodStart,periodSeconds,state,pool,version,resource,amountSeconds,unit,rate,cost,currency";
    let rows = lines.iter().map(|line| {
        let fields = [
            line.receipt.clone(),
            line.contract.clone(),
            line.provider.to_string(),
            line.consumer.to_string(),
            line.peer.clone(),
            format!("{:?}", line.role),
            line.period_start.clone(),
            line.period_seconds.to_string(),
            format!("{:?}", line.state),
            line.pool.clone(),
            line.version.to_string(),
            line.resource.clone(),
            line.amount_seconds.to_string(),
            line.unit.clone(),
            money_text(line.rate),
            money_text(line.cost),
            line.currency.clone().unwrap_or_default(),
        ];
        fields.map(|field| quoted(&field)).join(",")
    });
    std::iter::once(header.to_owned())
        .chain(rows)
        .collect::<Vec<_>>()
        .join("\r\n")
}

fn money_text(money: Option<Money>) -> String {
    money.map(|money| money.to_string()).unwrap_or_default()
}

/// Peers choose some texts, and spreadsheets run a text that begins like a formula.
fn quoted(field: &str) -> String {
    let harmless = if field.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        format!("'{field}")
    } else {
        field.to_owned()
    };
    let plain = !harmless.contains(['"', ',', '\n', '\r']);
    if plain {
        harmless
    } else {
        format!("\"{}\"", harmless.replace('"', "\"\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receipt::tests::signed;

    fn found(receipt: liqo_api::Receipt) -> ListedReceipt {
        let (peer, name, phase) = ("rome".to_owned(), "r".to_owned(), ReceiptPhase::Signed);
        ListedReceipt {
            peer,
            role: ContractRole::Provider,
            is_kept: false,
            name,
            phase,
            fault: None,
            receipt,
        }
    }

    #[test]
    fn each_resource_has_a_line() {
        let (_, _, receipt) = signed();
        let one = found(receipt);
        let lines = invoice_lines(&[one]);
        assert_eq!(lines.len(), 2);
        let text = to_csv(&lines);
        let rows: Vec<&str> = text.split("\r\n").collect();
        assert_eq!(rows.len(), 3);
        assert!(
            rows[0].split(',').count() == rows[1].split(',').count()
                && rows[1].ends_with(",gold,1,cpu,7200,core,0.04,0.08,EUR"),
            "{text}"
        );
        assert!(rows[2].ends_with(",pods,3600,piece,,,EUR"), "{text}");
    }

    #[test]
    fn a_summary_has_a_line_for_each_currency() {
        let (_, _, mut receipt) = signed();
        let statement = &mut receipt.spec.statement;
        (statement.is_summary, statement.pools) = (true, Vec::new());
        statement
            .totals
            .insert("credits".into(), "3".parse().unwrap());
        let one = found(receipt);
        let text = to_csv(&invoice_lines(&[one]));
        let rows: Vec<&str> = text.split("\r\n").collect();
        assert!(
            rows.len() == 3
                && rows[1].ends_with(",,0,,0,,,0.08,EUR")
                && rows[2].ends_with(",,3,credits"),
            "{text}"
        );
    }

    #[test]
    fn a_field_neither_breaks_the_line_nor_runs_in_a_spreadsheet() {
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(quoted("=1+1"), "'=1+1");
        assert_eq!(quoted("plain"), "plain");
    }
}
