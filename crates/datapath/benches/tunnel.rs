//! Compares our tunnel with the plain link, wireguard-go, gotatun's own device and the kernel's WireGuard. Needs root.
//!
//! `cargo bench -p liqo-datapath --bench tunnel -- [rounds] [seconds]`

use std::{path::PathBuf, time::Duration};

use liqo_datapath::testbed::{
    contenders::Contender,
    measure::{Plan, measure},
    process,
};

fn main() -> std::io::Result<()> {
    if process::serve()? {
        return Ok(());
    }
    let numbers: Vec<u64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let plan = Plan {
        rounds: numbers.first().map_or(3, |rounds| *rounds as usize),
        time: Duration::from_secs(*numbers.get(1).unwrap_or(&4)),
    };
    let go = PathBuf::from(std::env::var("WIREGUARD_GO").unwrap_or_default());
    let contenders = vec![Contender::Link, Contender::Ours, Contender::WireguardGo(go)];
    let results = measure(&contenders, &plan, |step| eprintln!("{step}"))?;
    println!("{}", results.table("wireguard-go"));
    Ok(())
}
