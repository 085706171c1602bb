//! `liqoctl receipt verify`: checks stored receipts without a cluster.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use liqo_api::{Receipt, ReceiptPhase};
use liqo_market::receipt::document::SignedReceipt;
use liqo_metering::receipt::statement_contradiction;
use serde::Serialize;

/// The result of the checks of one receipt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReceiptVerdict {
    pub file: String,
    pub name: String,
    /// Whether both clusters signed.
    pub is_countersigned: bool,
    pub faults: Vec<String>,
}

/// Checks the receipts in files, as `kubectl get receipt -o yaml` or `-o json` writes them. With
/// several files, also that they contain the same signed bytes.
pub fn verify_receipt_files(files: &[PathBuf]) -> anyhow::Result<Vec<ReceiptVerdict>> {
    let mut all = Vec::new();
    for file in files {
        all.push((file, read_receipt_file(file)?));
    }
    let first = all
        .first()
        .map(|(_, receipt)| receipt.spec.document.clone());
    Ok(all
        .iter()
        .map(|(file, receipt)| verify_receipt(file, receipt, first.as_deref()))
        .collect())
}

fn read_receipt_file(file: &Path) -> anyhow::Result<Receipt> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    // JSON is YAML, too.
    serde_saphyr::from_str(&text).with_context(|| format!("{} contains no Receipt", file.display()))
}

fn verify_receipt(file: &Path, receipt: &Receipt, first: Option<&str>) -> ReceiptVerdict {
    let name = receipt.metadata.name.clone().unwrap_or_default();
    let mut verdict = ReceiptVerdict {
        file: file.display().to_string(),
        name,
        ..ReceiptVerdict::default()
    };
    let signed = match SignedReceipt::read(&receipt.spec.document) {
        Ok(signed) => signed,
        Err(error) => {
            verdict.faults.push(error.to_string());
            return verdict;
        }
    };
    if signed.statement != receipt.spec.statement {
        verdict
            .faults
            .push("spec.statement differs from what the provider signed".to_owned());
    }
    verdict
        .faults
        .extend(statement_contradiction(&signed.statement));
    let status = receipt.status.clone().unwrap_or_default();
    // The kept signature counts, whatever the consumer shows now.
    let named = [
        ("kept", &receipt.spec.countersignature),
        ("shown", &status.signature),
    ];
    for (place, signature) in named
        .into_iter()
        .filter_map(|(place, signature)| Some((place, signature.as_ref()?)))
    {
        match signed.check_countersignature(signature) {
            Ok(()) => verdict.is_countersigned = true,
            Err(_) if verdict.is_countersigned => {}
            Err(error) => verdict.faults.push(format!(
                "the consumer's {place} signature is wrong: {error}"
            )),
        }
    }
    if status.phase == ReceiptPhase::Signed
        && named.iter().all(|(_, signature)| signature.is_none())
    {
        verdict
            .faults
            .push("it says that the consumer signed, and has no signature".to_owned());
    }
    if first.is_some_and(|first| payload_of(first) != Some(signed.envelope.payload.clone())) {
        verdict
            .faults
            .push("the files contain different receipts".to_owned());
    }
    verdict
}

fn payload_of(document: &str) -> Option<String> {
    SignedReceipt::read(document)
        .ok()
        .map(|other| other.envelope.payload)
}

/// The verdicts as text. An error if something is wrong.
pub fn verdict_text(verdicts: &[ReceiptVerdict]) -> anyhow::Result<String> {
    let faults: Vec<String> = verdicts
        .iter()
        .flat_map(|one| {
            one.faults
                .iter()
                .map(|fault| format!("{}: {fault}", one.file))
        })
        .collect();
    if !faults.is_empty() {
        bail!("{}", faults.join("; "));
    }
    Ok(verdicts
        .iter()
        .map(verdict_line)
        .collect::<Vec<_>>()
        .join("\n"))
}

fn verdict_line(one: &ReceiptVerdict) -> String {
    let who = if one.is_countersigned {
        "provider and consumer signed it"
    } else {
        "only the provider signed it"
    };
    format!("{}: {} is valid, {who}", one.file, one.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receipt::tests::signed;

    fn faults(change: impl FnOnce(&mut Receipt)) -> Vec<String> {
        let (_, _, mut receipt) = signed();
        change(&mut receipt);
        verify_receipt(Path::new("a"), &receipt, None).faults
    }

    #[test]
    fn a_receipt_that_both_signed_is_valid() {
        let (_, _, receipt) = signed();
        let verdict = verify_receipt(Path::new("a"), &receipt, Some(&receipt.spec.document));
        assert!(verdict.faults.is_empty() && verdict.is_countersigned);
        assert!(
            verdict_text(&[verdict])
                .unwrap()
                .ends_with("provider and consumer signed it")
        );
    }

    #[test]
    fn what_was_changed_is_named() {
        assert!(faults(|receipt| receipt.spec.statement.pods = 9)[0].contains("spec.statement"));
        assert!(faults(|receipt| receipt.spec.document.truncate(20))[0].contains("envelope"));
        assert!(
            faults(|receipt| receipt
                .status
                .as_mut()
                .unwrap()
                .signature
                .as_mut()
                .unwrap()
                .sig = "AAAA".into())[0]
                .contains("signature")
        );
        assert!(
            faults(|receipt| receipt.status.as_mut().unwrap().signature = None)[0]
                .contains("no signature")
        );
        let (_, _, other) = signed();
        let (_, _, receipt) = signed();
        let verdict = verify_receipt(Path::new("b"), &receipt, Some(&other.spec.document));
        assert_eq!(verdict.faults, ["the files contain different receipts"]);
        assert!(verdict_text(&[verdict]).is_err());
    }

    #[test]
    fn a_kept_signature_counts_after_the_consumer_took_its_own_back() {
        let (_, _, mut receipt) = signed();
        receipt.spec.countersignature = receipt.status.take().unwrap().signature;
        let verdict = verify_receipt(Path::new("a"), &receipt, None);
        assert!(verdict.faults.is_empty() && verdict.is_countersigned);
    }
}
