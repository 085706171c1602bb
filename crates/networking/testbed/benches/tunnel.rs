//! Compares our tunnel with the plain link, wireguard-go and, where there is one, the kernel's
//! WireGuard. Needs root.
//!
//! `cargo bench -p liqo-datapath-testbed --bench tunnel -- [rounds] [seconds of each kind of
//! traffic]`

use std::{io, time::Duration};

use liqo_datapath_testbed::{
    contenders::Contender,
    measure::{MeasurementPlan, measure_contenders},
    process,
};

fn main() -> io::Result<()> {
    if process::serve_if_child()? {
        return Ok(());
    }
    let numbers: Vec<u64> = std::env::args()
        .filter_map(|argument| argument.parse().ok())
        .collect();
    let plan = MeasurementPlan {
        rounds: numbers
            .first()
            .and_then(|rounds| usize::try_from(*rounds).ok())
            .unwrap_or(5),
        time: Duration::from_secs(*numbers.get(1).unwrap_or(&4)),
    };
    let build = liqo_playground::wireguard_go(&liqo_playground::Silent);
    let go = tokio::runtime::Runtime::new()?
        .block_on(build)
        .map_err(io::Error::other)?;
    let mut contenders = vec![
        Contender::Link,
        Contender::Ours,
        Contender::WireguardGo(go),
        Contender::Kernel,
    ];
    contenders.retain(|contender| {
        let open = contender.open();
        if let Err(error) = &open {
            eprintln!("not measured: {} ({error})", contender.name());
        }
        open.is_ok()
    });
    let results = measure_contenders(&contenders, &plan, |step| eprintln!("{step}"))?;
    println!("{}", results.table("wireguard-go"));
    Ok(())
}
