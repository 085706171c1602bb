//! Our tunnel in its own process, so that tests can kill it and measure its CPU time.
//!
//! The program starts itself a second time, in a role; its `main` must call [`serve_if_child`]
//! first.

use std::{
    io::{self, BufRead, BufReader, Read},
    net::{IpAddr, SocketAddr},
    process::{Child, ChildStdin, Command, Stdio},
    str::FromStr,
    time::Duration,
};

use ipnet::IpNet;

use super::{PairEnd, namespace::NetworkNamespace};
use liqo_datapath::tunnel::{
    EndpointConfig, PrivateKey, PublicKey, RemoteConfig, Tunnel, UserspaceTunnel,
};

/// Environment variable with the role of a process.
pub const ROLE: &str = "LIQO_TESTBED_ROLE";
/// Environment variable with the [`TunnelSide`] of a process.
pub const SIDE: &str = "LIQO_TESTBED_SIDE";

/// The configuration of one end of a tunnel between two.
#[derive(Clone, Debug)]
pub struct TunnelSide {
    pub device: String,
    pub mtu: u16,
    pub private_key: PrivateKey,
    /// Its UDP address.
    pub listen: SocketAddr,
    pub remote_key: PublicKey,
    /// The remote's UDP address.
    pub remote: SocketAddr,
    /// Prefixes behind the remote.
    pub prefixes: Vec<IpNet>,
}

impl TunnelSide {
    /// Both ends of a tunnel between the namespaces of a [`Pair`](super::Pair). The device names
    /// begin with `name`.
    pub fn both(name: &str, v6: bool) -> [Self; 2] {
        let keys = [PrivateKey::generate(), PrivateKey::generate()];
        [PairEnd::Left, PairEnd::Right].map(|end| {
            let (own, other) = (
                usize::from(end.number()) - 1,
                usize::from(end.other().number()) - 1,
            );
            Self {
                device: format!("{name}{}", end.number()),
                mtu: 1420,
                private_key: keys[own].clone(),
                listen: end.outside(v6, 51_820),
                remote_key: keys[other].public_key(),
                remote: end.other().outside(v6, 51_820),
                prefixes: [
                    end.other().inside(false, 0).ip(),
                    end.other().inside(true, 0).ip(),
                ]
                .map(IpNet::from)
                .to_vec(),
            }
        })
    }

    /// The configuration for our tunnel.
    pub fn endpoint(&self) -> EndpointConfig {
        let unspecified: IpAddr = if self.listen.is_ipv4() {
            std::net::Ipv4Addr::UNSPECIFIED.into()
        } else {
            std::net::Ipv6Addr::UNSPECIFIED.into()
        };
        EndpointConfig {
            private_key: self.private_key.clone(),
            previous_key: None,
            listen: vec![SocketAddr::new(unspecified, self.listen.port())],
            device: self.device.clone(),
            mtu: self.mtu,
            remotes: vec![RemoteConfig {
                endpoint: Some(self.remote),
                keepalive: Some(Duration::from_secs(25)),
                prefixes: self.prefixes.clone(),
                ..RemoteConfig::new(self.remote_key)
            }],
        }
    }

    /// One line for another process, which parses it with `FromStr`.
    pub fn line(&self) -> String {
        let private = data_encoding::BASE64.encode(self.private_key.bytes());
        let prefixes: Vec<_> = self.prefixes.iter().map(ToString::to_string).collect();
        let Self {
            device,
            mtu,
            listen,
            remote_key,
            remote,
            ..
        } = self;
        format!(
            "{device} {mtu} {private} {listen} {remote_key} {remote} {}",
            prefixes.join(",")
        )
    }
}

impl FromStr for TunnelSide {
    type Err = io::Error;

    fn from_str(line: &str) -> io::Result<Self> {
        fn field<T: FromStr>(fields: &mut dyn Iterator<Item = &str>) -> io::Result<T> {
            fields
                .next()
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| io::ErrorKind::InvalidInput.into())
        }
        let mut fields = line.split(' ');
        Ok(Self {
            device: field(&mut fields)?,
            mtu: field(&mut fields)?,
            private_key: field(&mut fields)?,
            listen: field(&mut fields)?,
            remote_key: field(&mut fields)?,
            remote: field(&mut fields)?,
            prefixes: fields
                .next()
                .unwrap_or_default()
                .split(',')
                .filter_map(|prefix| prefix.parse().ok())
                .collect(),
        })
    }
}

/// Runs our tunnel until standard input ends, if this process was started in that role. Returns
/// whether it was.
pub fn serve_if_child() -> io::Result<bool> {
    if std::env::var(ROLE).as_deref() != Ok("tunnel") {
        return Ok(false);
    }
    let side: TunnelSide = std::env::var(SIDE).unwrap_or_default().parse()?;
    let tunnel = UserspaceTunnel::new();
    tunnel.apply(&side.endpoint()).map_err(io::Error::other)?;
    wait_for_the_end()?;
    Ok(true)
}

/// Reports readiness, and waits until the parent process closes the pipe or ends.
pub fn wait_for_the_end() -> io::Result<()> {
    println!("ready");
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

/// A child process. Dropping this kills it.
#[derive(Debug)]
pub struct ChildProcess {
    child: Child,
    _stdin: Option<ChildStdin>,
}

impl ChildProcess {
    /// Starts this program again, in a role and in a namespace, and waits until it is ready.
    pub fn start(role: &str, namespace: &NetworkNamespace, side: &TunnelSide) -> io::Result<Self> {
        let program = std::env::current_exe()?;
        let mut child = namespace.run(|| {
            Command::new(program)
                .env(ROLE, role)
                .env(SIDE, side.line())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
        })??;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let running = Self {
            child,
            _stdin: stdin,
        };
        let mut line = String::new();
        if let Some(stdout) = stdout {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line == "ready\n" {
            Ok(running)
        } else {
            Err(io::Error::other(format!("{role} did not become ready")))
        }
    }

    /// Any other program that does not end by itself.
    pub fn adopt(child: Child) -> Self {
        Self {
            child,
            _stdin: None,
        }
    }

    /// CPU time of all its threads.
    pub fn processor_time(&self) -> io::Result<Duration> {
        let mut total = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            total += text
                .split(' ')
                .next()
                .and_then(|number| number.parse::<u64>().ok())
                .unwrap_or(0);
        }
        Ok(Duration::from_nanos(total))
    }

    /// Resident memory in bytes.
    pub fn resident_memory(&self) -> io::Result<usize> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .unwrap_or_default();
        let kibibytes: usize = line
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .map_err(io::Error::other)?;
        Ok(kibibytes << 10)
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
