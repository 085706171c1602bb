//! Compares our tunnel with the plain link, wireguard-go, gotatun's own device and, where there is one, the kernel's WireGuard. Needs
//! root.
//!
//! `cargo bench -p liqo-datapath-testbed --bench tunnel -- [rounds] [seconds of each kind of traffic]`

use std::{io, time::Duration};

use gotatun::{
    device::{DeviceBuilder, Peer},
    x25519,
};
use liqo_datapath_testbed::{
    contenders::Contender,
    measure::{Plan, measure},
    process::{self, Side},
};

const GOTATUN: &str = "gotatun's device";

fn main() -> io::Result<()> {
    if process::serve()? || serve_gotatun()? {
        return Ok(());
    }
    let numbers: Vec<u64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let plan = Plan {
        rounds: numbers.first().and_then(|rounds| usize::try_from(*rounds).ok()).unwrap_or(5),
        time: Duration::from_secs(*numbers.get(1).unwrap_or(&4)),
    };
    let build = liqo_playground::wireguard_go(&liqo_playground::Silent);
    let go = tokio::runtime::Runtime::new()?.block_on(build).map_err(io::Error::other)?;
    let mut contenders =
        vec![Contender::Link, Contender::Ours, Contender::WireguardGo(go), Contender::Role(GOTATUN), Contender::Kernel];
    contenders.retain(|contender| {
        let open = contender.open();
        if let Err(error) = &open {
            eprintln!("not measured: {} ({error})", contender.name());
        }
        open.is_ok()
    });
    let results = measure(&contenders, &plan, |step| eprintln!("{step}"))?;
    println!("{}", results.table("wireguard-go"));
    Ok(())
}

/// Runs gotatun's device until standard input ends, if this process was started in that role.
fn serve_gotatun() -> io::Result<bool> {
    if std::env::var(process::ROLE).as_deref() != Ok(GOTATUN) {
        return Ok(false);
    }
    let side: Side = std::env::var(process::SIDE).unwrap_or_default().parse()?;
    let peer = Peer::new(x25519::PublicKey::from(side.remote_key.0)).with_endpoint(side.remote);
    let peer = side.prefixes.iter().filter_map(|prefix| prefix.to_string().parse().ok()).fold(peer, Peer::with_allowed_ip);
    tokio::runtime::Runtime::new()?.block_on(async {
        let device = DeviceBuilder::new()
            .with_default_udp()
            .create_tun(&side.device)
            .map_err(io::Error::other)?
            .with_private_key(x25519::StaticSecret::from(*side.private_key.bytes()))
            .with_listen_port(side.listen.port())
            .with_peer(peer)
            .build()
            .await
            .map_err(io::Error::other)?;
        tokio::task::spawn_blocking(process::wait_for_the_end).await??;
        drop(device);
        Ok(true)
    })
}
