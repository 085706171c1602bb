//! `liqoctl contract verify`: checks stored copies without a cluster.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use liqo_api::Contract;
use liqo_market::contract::verify::{self, VerifiedCopy};
use serde::Serialize;

/// The result of the check of stored copies of a contract.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContractVerdict {
    pub files: Vec<String>,
    /// ID of the contract, and its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contract: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    pub provider: String,
    pub consumer: String,
    /// SHA-256 of what both signed.
    pub digest: String,
    pub faults: Vec<String>,
}

/// Checks the contracts in one or two files, as `kubectl get contract -o yaml` or `-o json` writes
/// them.
pub fn verify_contract_files(files: &[PathBuf]) -> anyhow::Result<ContractVerdict> {
    let mut contracts = Vec::new();
    for file in files {
        contracts.push((file.display().to_string(), read_contract_file(file)?));
    }
    Ok(verify_contracts(&contracts))
}

fn read_contract_file(file: &Path) -> anyhow::Result<Contract> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    // JSON is YAML, too.
    serde_saphyr::from_str(&text)
        .with_context(|| format!("{} contains no Contract", file.display()))
}

pub(super) fn verify_contracts(contracts: &[(String, Contract)]) -> ContractVerdict {
    let mut verdict = ContractVerdict {
        files: contracts.iter().map(|(file, _)| file.clone()).collect(),
        ..ContractVerdict::default()
    };
    let mut valid: Vec<VerifiedCopy> = Vec::new();
    for (file, contract) in contracts {
        match verify::verify_copy(contract) {
            Ok(copy) => valid.push(copy),
            Err(faults) => verdict
                .faults
                .extend(faults.into_iter().map(|fault| format!("{file}: {fault}"))),
        }
    }
    if let Some(first) = valid.first() {
        let terms = &first.document.terms;
        (verdict.contract, verdict.version) = (Some(terms.contract.clone()), Some(terms.version));
        (verdict.provider, verdict.consumer) =
            (terms.provider.to_string(), terms.consumer.to_string());
        verdict.digest.clone_from(&first.document.digest);
        verdict.faults.extend(
            valid
                .iter()
                .skip(1)
                .filter_map(|other| verify::copies_difference(first, other)),
        );
    }
    verdict
}

/// The verdict as text. An error if something is wrong.
pub fn render_contract_verdict(verdict: &ContractVerdict) -> anyhow::Result<String> {
    if !verdict.faults.is_empty() {
        bail!("{}", verdict.faults.join("; "));
    }
    let ContractVerdict {
        contract,
        version,
        provider,
        consumer,
        digest,
        ..
    } = verdict;
    let (contract, version) = (
        contract.clone().unwrap_or_default(),
        version.unwrap_or_default(),
    );
    let copies = if verdict.files.len() > 1 {
        "Both copies contain the same contract"
    } else {
        "The copy is valid"
    };
    Ok(format!(
        "{copies}: {contract}, version {version}.\nSigned by the provider {provider}\nand by the consumer {consumer},\nover the same bytes (SHA-256 {digest})."
    ))
}
