//! The other end is wireguard-go.

use std::{path::PathBuf, sync::Mutex};

use anyhow::{Result, ensure};
use liqo_datapath::tunnel::{Tunnel, UserspaceTunnel};
use liqo_datapath_testbed::{
    Pair, PairEnd, process::TunnelSide, traffic::arrives_unchanged, wireguard_go::WireguardGo,
};

use crate::{until, wire::ping};

/// Builds wireguard-go the first time.
fn program() -> Result<PathBuf> {
    static BUILD: Mutex<()> = Mutex::new(());
    let _one = BUILD
        .lock()
        .map_err(|_| anyhow::anyhow!("an earlier build failed"))?;
    Ok(tokio::runtime::Runtime::new()?
        .block_on(liqo_playground::wireguard_go(&liqo_playground::Silent))?)
}

struct Mixed {
    pair: Pair,
    ours: UserspaceTunnel,
    sides: [TunnelSide; 2],
    name: &'static str,
}

/// Ours at the left, wireguard-go at the right.
fn mixed(name: &'static str, v6: bool) -> Result<(Mixed, WireguardGo)> {
    let pair = Pair::new()?;
    // The name must be unique on this machine.
    let sides = TunnelSide::both(&format!("{name}{}x", std::process::id() % 1_000_000), v6);
    let go = WireguardGo::start(&program()?, &pair.right, &sides[1])?;
    pair.address(PairEnd::Right, &sides[1].device, 1420)?;
    Ok((
        Mixed {
            pair,
            ours: UserspaceTunnel::new(),
            sides,
            name,
        },
        go,
    ))
}

impl Mixed {
    fn start(&self, keepalive: bool) -> Result<()> {
        let mut endpoint = self.sides[0].endpoint();
        if !keepalive {
            endpoint.remotes[0].keepalive = None;
            // Without an endpoint our end cannot start.
            endpoint.remotes[0].endpoint = None;
        }
        self.pair.left.run(|| self.ours.apply(&endpoint))??;
        Ok(self
            .pair
            .address(PairEnd::Left, &self.sides[0].device, 1420)?)
    }

    fn transfer(&self, megabytes: usize) -> Result<()> {
        for v6 in [false, true] {
            let length = megabytes << 20;
            let (left, right) = (&self.pair.left, &self.pair.right);
            ensure!(
                arrives_unchanged(left, right, PairEnd::Right.inside(v6, 5001), length)?,
                "{}: damaged on the way there",
                self.name
            );
            ensure!(
                arrives_unchanged(right, left, PairEnd::Left.inside(v6, 5002), length)?,
                "{}: damaged on the way here",
                self.name
            );
        }
        let remote = self.ours.state().remotes[0].clone();
        ensure!(
            remote.dropped.forged == 0 && remote.dropped.wrong_source == 0,
            "{remote:?}"
        );
        Ok(())
    }
}

pub fn wireguard_go_understands_us() -> Result<()> {
    let (mixed, _go) = mixed("we", false)?;
    mixed.start(true)?;
    mixed.transfer(50)
}

pub fn wireguard_go_begins() -> Result<()> {
    let (mixed, _go) = mixed("go", false)?;
    mixed.start(false)?;
    ensure!(mixed.ours.state().remotes[0].endpoint.is_none());
    until("an answer", || {
        ping(&mixed.pair.right, PairEnd::Left.inside(false, 0), 56)
    })?;
    ensure!(mixed.ours.state().remotes[0].endpoint == Some(PairEnd::Right.outside(false, 51_820)));
    mixed.transfer(10)
}

pub fn wireguard_go_over_ipv6() -> Result<()> {
    let (mixed, _go) = mixed("six", true)?;
    mixed.start(true)?;
    mixed.transfer(10)
}
