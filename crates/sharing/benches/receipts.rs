//! Measures the cost of metering for 10,000 pods in one period:
//! `cargo bench -p liqo-sharing --bench receipts`.
//!
//! Every pod uses cpu and memory of one of four pools, under one of three versions of a contract;
//! names and numbers have the lengths that they have in real clusters. The bench prints the sizes
//! of what is stored, the median time of each step, and the peak memory of the process with the
//! entries of both sides.

use std::{collections::BTreeMap, fs, time::Instant};

use liqo_api::{
    Claimed, ClusterId, Money, PriceList, Receipt, ReceiptPhase, ReceiptSpec, UsageRecord,
    UsageRecordSpec,
};
use liqo_market::receipt::{
    answer::{ConsumerEvidence, answer_receipt},
    document::SignedReceipt,
};
use liqo_metering::{
    ChunkBook, Period, Tolerance, UsageEntries, UsageEntry, compare_usage,
    receipt::{
        ContractVersion, ReceiptContract, api_period, receipt_name, statement_contradiction,
    },
};
use liqo_signing::ClusterIdentity;

const PODS: u32 = 10_000;
const POOLS: u32 = 4;
/// Entries that are stored in one write, as when some pods end every second.
const BATCH: usize = 40;
const ROUNDS: usize = 20;

type Failure = Box<dyn std::error::Error>;

/// The entry of a pod of the period, as the provider or the consumer stores it.
fn entry(number: u32, period: Period, namespace: &str) -> Result<UsageEntry, Failure> {
    let from = period.start + i64::from(number % 3000);
    let (until, pool) = (from + 30 + i64::from(number % 500), number % POOLS);
    let uid = format!(
        "{number:08x}-1c2d-4e3f-8a9b-{:012x}",
        number.wrapping_mul(2_654_435_761)
    );
    let line = format!(
        "{uid} pool-{pool} {from} {until} cpu={}m,memory=536870912,pods=1 {namespace}",
        100 + number % 7
    );
    Ok(line.trim_end().parse()?)
}

fn contract(
    provider: &ClusterId,
    consumer: &ClusterId,
    period: Period,
) -> Result<ReceiptContract, Failure> {
    let mut versions = Vec::new();
    for (version, cpu) in (1..).zip(["0.04", "0.06", "0.08"]) {
        let rates = [("cpu", cpu.parse::<Money>()?), ("memory", "0.005".parse()?)]
            .into_iter()
            .collect();
        let list = PriceList {
            currency: "EUR".to_owned(),
            rates,
        };
        let prices = (0..POOLS)
            .map(|pool| (format!("pool-{pool}"), list.clone()))
            .collect();
        let from = period.start + i64::from(version - 1) * 1200;
        versions.push(ContractVersion {
            version,
            digest: "d".repeat(64),
            from,
            prices,
        });
    }
    let id = "0123456789abcdef0123456789abcdef".to_owned();
    Ok(ReceiptContract {
        id,
        provider: provider.clone(),
        consumer: consumer.clone(),
        versions,
        end: None,
    })
}

/// The records that a side writes: their sizes as JSON, and the number of writes.
fn records(
    usage: &UsageEntries,
    contract: &str,
    period: Period,
) -> Result<(Vec<usize>, usize), Failure> {
    let (mut book, mut stored, mut writes) = (ChunkBook::default(), BTreeMap::new(), 0);
    let entries: Vec<UsageEntry> = usage.entries().cloned().collect();
    for batch in entries.chunks(BATCH) {
        for write in book.append_entries(contract, period, batch.to_vec()) {
            writes += 1;
            stored.insert(write.chunk, write);
        }
    }
    if let Some(last) = book.complete_period(contract, period) {
        writes += 1;
        stored.insert(last.chunk, last);
    }
    let mut sizes = Vec::new();
    for write in stored.into_values() {
        let (chunk, chunks, entries) = (write.chunk, write.chunks, write.entries);
        let spec = UsageRecordSpec {
            contract: contract.to_owned(),
            period: api_period(period),
            chunk,
            chunks,
            entries,
        };
        sizes.push(
            serde_json::to_string(&UsageRecord::new("usage-01234567-202601010000-0", spec))?.len(),
        );
    }
    Ok((sizes, writes))
}

/// The median time of a step in milliseconds.
fn timed<T>(name: &str, mut step: impl FnMut() -> T) {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            std::hint::black_box(step());
            begin.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{name:<60} {:>10.2} ms", times[ROUNDS / 2]);
}

/// The peak of the resident memory of this process so far, in KiB; nothing where there is no
/// `/proc`.
fn peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| {
        line.strip_prefix("VmHWM:")?
            .trim()
            .strip_suffix(" kB")?
            .trim()
            .parse()
            .ok()
    })
}

fn main() -> Result<(), Failure> {
    let (provider, consumer) = (ClusterIdentity::generate()?, ClusterIdentity::generate()?);
    let period = Period::at(1_767_225_600, 3600);
    let before = peak();
    let side = |namespace: &str| {
        (0..PODS)
            .map(|number| entry(number, period, namespace))
            .collect::<Result<UsageEntries, Failure>>()
    };
    let (theirs, ours) = (side("")?, side("a-namespace")?);
    let contract = contract(provider.id(), consumer.id(), period)?;
    let statement = contract.receipt(period, &theirs)?;
    let document = SignedReceipt::compose(&provider, &statement)?;
    let (evidence_of, tolerance) = (Claimed::new(Ok(theirs.clone())), Tolerance::default());
    let evidence = ConsumerEvidence {
        provider: provider.id(),
        contract: Some(&contract),
        theirs: &evidence_of,
        ours: &ours,
        tolerance,
    };
    let name = receipt_name(&contract.id, period);
    let mut receipt = Receipt::new(
        &name,
        ReceiptSpec {
            document: document.clone(),
            statement: statement.clone(),
            countersignature: None,
        },
    );
    receipt.status = Some(answer_receipt(Claimed::new(&receipt), &evidence, &consumer));
    assert_eq!(
        receipt.status.as_ref().map(|status| status.phase),
        Some(ReceiptPhase::Signed),
        "{:?}",
        receipt.status
    );

    print_sizes(&receipt, &contract)?;
    for (side, usage) in [("provider", &theirs), ("consumer", &ours)] {
        print_records(side, usage, &contract.id, period)?;
    }
    if let (Some(before), Some(now)) = (before, peak()) {
        println!(
            "{:<60} {:>10} KiB",
            "peak memory with three copies of all entries",
            now.saturating_sub(before)
        );
    }
    let text = theirs.canonical_text();
    timed("read the entries of one side from their text", || {
        UsageEntries::parse(&text)
    });
    timed("compute the digest of the entries", || theirs.digest());
    timed("compose the receipt from the entries", || {
        contract.receipt(period, &theirs)
    });
    timed("sign it", || SignedReceipt::compose(&provider, &statement));
    timed("verify signature and sums", || {
        SignedReceipt::read(&document).map(|signed| statement_contradiction(&signed.statement))
    });
    timed("compare both sides pod by pod", || {
        compare_usage(&theirs, &ours, tolerance)
    });
    timed("answer it: all of that at the consumer, and sign", || {
        answer_receipt(Claimed::new(&receipt), &evidence, &consumer)
    });
    Ok(())
}

fn print_sizes(receipt: &Receipt, contract: &ReceiptContract) -> Result<(), Failure> {
    println!(
        "{PODS} pods in {POOLS} pools, under {} versions of the contract",
        contract.versions.len()
    );
    println!(
        "{:<60} {:>10} bytes",
        "receipt: object with both signatures, as JSON",
        serde_json::to_string(&receipt)?.len()
    );
    println!(
        "{:<60} {:>10} bytes",
        "receipt: signed document",
        receipt.spec.document.len()
    );
    println!(
        "{:<60} {:>10} bytes",
        "receipt: statement",
        serde_json::to_string(&receipt.spec.statement)?.len()
    );
    Ok(())
}

fn print_records(
    side: &str,
    usage: &UsageEntries,
    contract: &str,
    period: Period,
) -> Result<(), Failure> {
    let (sizes, writes) = records(usage, contract, period)?;
    let (sum, largest) = (
        sizes.iter().sum::<usize>(),
        sizes.iter().max().copied().unwrap_or_default(),
    );
    println!(
        "{:<60} {sum:>10} bytes",
        format!("usage records of the {side}: all as JSON")
    );
    println!(
        "{:<60} {largest:>10} bytes",
        format!(
            "usage records of the {side}: the largest of {}",
            sizes.len()
        )
    );
    println!(
        "{:<60} {writes:>10}",
        format!("usage records of the {side}: writes, {BATCH} pods in each")
    );
    Ok(())
}
