//! The contenders of the benchmark: the plain link, our tunnel, and other `WireGuard`s, each
//! between two namespaces.

use std::{
    io,
    path::PathBuf,
    sync::atomic::{AtomicU16, Ordering::Relaxed},
    time::Duration,
};

use super::{
    Pair, PairEnd,
    process::{ChildProcess, TunnelSide},
    wireguard_go::WireguardGo,
};

/// Something that carries packets from one namespace to another.
#[derive(Clone, Debug)]
pub enum Contender {
    /// The link itself, without a tunnel.
    Link,
    /// Our tunnel.
    Ours,
    /// wireguard-go: the program.
    WireguardGo(PathBuf),
    /// The kernel's WireGuard, set up by the program `wg`.
    Kernel,
}

/// A running contender.
pub struct RunningContender {
    pub pair: Pair,
    processes: Vec<ContenderProcess>,
    link: bool,
}

enum ContenderProcess {
    Running(ChildProcess),
    Go(WireguardGo),
}

impl Contender {
    /// Its name in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Link => "plain link",
            Self::Ours => "liqo",
            Self::WireguardGo(_) => "wireguard-go",
            Self::Kernel => "kernel",
        }
    }

    /// Starts the contender between two new namespaces.
    pub fn open(&self) -> io::Result<RunningContender> {
        static NUMBER: AtomicU16 = AtomicU16::new(0);
        let pair = Pair::new()?;
        let name = format!(
            "lq{}x{}e",
            std::process::id() % 100_000,
            NUMBER.fetch_add(1, Relaxed)
        );
        let mut processes = Vec::new();
        if !matches!(self, Self::Link) {
            for (end, side) in [PairEnd::Left, PairEnd::Right]
                .into_iter()
                .zip(TunnelSide::both(&name, false))
            {
                let namespace = pair.end(end);
                match self {
                    Self::WireguardGo(program) => {
                        processes.push(ContenderProcess::Go(WireguardGo::start(
                            program, namespace, &side,
                        )?));
                    }
                    Self::Kernel => configure_kernel(&pair, end, &side)?,
                    _ => processes.push(ContenderProcess::Running(ChildProcess::start(
                        "tunnel", namespace, &side,
                    )?)),
                }
                pair.address(end, &side.device, side.mtu)?;
            }
        }
        Ok(RunningContender {
            pair,
            processes,
            link: matches!(self, Self::Link),
        })
    }
}

fn configure_kernel(pair: &Pair, end: PairEnd, side: &TunnelSide) -> io::Result<()> {
    let namespace = pair.end(end);
    namespace.ip(&format!("link add {} type wireguard", side.device))?;
    let prefixes: Vec<_> = side.prefixes.iter().map(ToString::to_string).collect();
    let configuration = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = {}\n[Peer]\nPublicKey = {}\nEndpoint = {}\nAllowedIPs = {}\n",
        data_encoding::BASE64.encode(side.private_key.bytes()),
        side.listen.port(),
        side.remote_key,
        side.remote,
        prefixes.join(", "),
    );
    namespace
        .command(
            "wg",
            &["setconf", &side.device, "/dev/stdin"],
            &configuration,
        )
        .map(drop)
}

impl RunningContender {
    /// The address of one end for traffic over this contender.
    pub fn address(&self, end: PairEnd, port: u16) -> std::net::SocketAddr {
        if self.link {
            end.outside(false, port)
        } else {
            end.inside(false, port)
        }
    }

    /// CPU time of its processes.
    pub fn processor_time(&self) -> io::Result<Duration> {
        let times = self.processes.iter().map(|process| match process {
            ContenderProcess::Running(running) => running.processor_time(),
            ContenderProcess::Go(go) => go.process().processor_time(),
        });
        times.sum::<io::Result<Duration>>()
    }
}
