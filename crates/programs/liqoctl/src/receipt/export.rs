//! Receipts for whoever writes the invoice: one line for each resource of each pool.

use liqo_api::{ClusterId, Money, ReceiptPhase};
use liqo_quantity::{AmountSeconds, priced_unit};
use serde::Serialize;

use super::Found;
use crate::parties::Role;

/// One line of an invoice.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    pub receipt: String,
    pub contract: String,
    pub provider: ClusterId,
    pub consumer: ClusterId,
    pub peer: String,
    pub role: Role,
    pub period_start: String,
    pub period_seconds: u32,
    pub state: ReceiptPhase,
    pub pool: String,
    pub version: u32,
    pub resource: String,
    pub amount_seconds: AmountSeconds,
    /// What the rate is for: one of it, for one hour.
    pub unit: String,
    pub rate: Option<Money>,
    pub cost: Option<Money>,
    pub currency: Option<String>,
}

/// The lines of all receipts.
pub fn lines(found: &[Found]) -> Vec<Line> {
    found.iter().flat_map(of).collect()
}

fn of(one: &Found) -> Vec<Line> {
    let statement = &one.receipt.spec.statement;
    let pools = statement.pools.iter().flat_map(|pool| pool.resources.iter().map(move |(name, line)| (pool, name, line)));
    let line = |(pool, name, line): (&liqo_api::ReceiptPool, &String, &liqo_api::ReceiptLine)| Line {
        receipt: one.name.clone(),
        contract: statement.contract.clone(),
        provider: statement.provider.clone(),
        consumer: statement.consumer.clone(),
        peer: one.peer.clone(),
        role: one.role,
        period_start: statement.period.start.0.to_string(),
        period_seconds: statement.period.seconds,
        state: one.phase,
        pool: pool.pool.clone(),
        version: pool.version,
        resource: name.clone(),
        amount_seconds: line.amount_seconds,
        unit: priced_unit(name).to_string(),
        rate: line.rate,
        cost: line.cost,
        currency: pool.currency.clone(),
    };
    pools.map(line).collect()
}

/// The lines as comma-separated values (RFC 4180), with a header.
pub fn csv(lines: &[Line]) -> String {
    let header = "receipt,contract,provider,consumer,peer,role,periodStart,periodSeconds,state,pool,version,resource,amountSeconds,unit,rate,cost,currency";
    let optional = |money: Option<Money>| money.map(|money| money.to_string()).unwrap_or_default();
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
            optional(line.rate),
            optional(line.cost),
            line.currency.clone().unwrap_or_default(),
        ];
        fields.map(|field| quoted(&field)).join(",")
    });
    std::iter::once(header.to_owned()).chain(rows).collect::<Vec<_>>().join("\r\n")
}

/// Peers choose some texts, and spreadsheets run a text that begins like a formula.
fn quoted(field: &str) -> String {
    let harmless = if field.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{field}") } else { field.to_owned() };
    let plain = !harmless.contains(['"', ',', '\n', '\r']);
    if plain { harmless } else { format!("\"{}\"", harmless.replace('"', "\"\"")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receipt::tests::signed;

    #[test]
    fn each_resource_has_a_line() {
        let (_, _, receipt) = signed();
        let one = Found { peer: "rome".into(), role: Role::Provider, name: "r".into(), phase: ReceiptPhase::Signed, receipt };
        let lines = lines(&[one]);
        assert_eq!(lines.len(), 2);
        let text = csv(&lines);
        let rows: Vec<&str> = text.split("\r\n").collect();
        assert_eq!(rows.len(), 3);
        assert!(
            rows[0].split(',').count() == rows[1].split(',').count() && rows[1].ends_with(",gold,1,cpu,7200,core,0.04,0.08,EUR"),
            "{text}"
        );
        assert!(rows[2].ends_with(",pods,3600,piece,,,EUR"), "{text}");
    }

    #[test]
    fn a_field_neither_breaks_the_line_nor_runs_in_a_spreadsheet() {
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(quoted("=1+1"), "'=1+1");
        assert_eq!(quoted("plain"), "plain");
    }
}
