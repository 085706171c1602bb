//! wireguard-go, the reference implementation in user space, for comparison and as the other end.

use std::{
    fmt::Write as _,
    fs,
    io::{self, Read, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{
    namespace::NetworkNamespace,
    process::{ChildProcess, TunnelSide},
};

/// A running wireguard-go.
#[derive(Debug)]
pub struct WireguardGo {
    running: ChildProcess,
    socket: PathBuf,
}

impl WireguardGo {
    /// Starts the program in a namespace and configures it over its control socket. All instances
    /// on a machine share one directory of control sockets, which are named after their devices.
    pub fn start(
        program: &Path,
        namespace: &NetworkNamespace,
        side: &TunnelSide,
    ) -> io::Result<Self> {
        let socket = Path::new("/var/run/wireguard").join(format!("{}.sock", side.device));
        let _ = fs::remove_file(&socket);
        let child = namespace.run(|| {
            Command::new(program)
                .args(["-f", &side.device])
                .env("WG_PROCESS_FOREGROUND", "1")
                .env("LOG_LEVEL", "silent")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
        })??;
        let go = Self {
            running: ChildProcess::adopt(child),
            socket,
        };
        go.wait_for_socket()?;
        go.send_configuration(&configuration(side))?;
        Ok(go)
    }

    pub fn process(&self) -> &ChildProcess {
        &self.running
    }

    fn wait_for_socket(&self) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while UnixStream::connect(&self.socket).is_err() {
            if Instant::now() > deadline {
                return Err(io::Error::other(
                    "wireguard-go does not answer on its control socket",
                ));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn send_configuration(&self, configuration: &str) -> io::Result<()> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(configuration.as_bytes())?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\n\n") {
            let mut part = [0; 256];
            match stream.read(&mut part) {
                Ok(0) => break,
                Ok(length) => answer.extend(&part[..length]),
                // With a timeout, the kernel does not begin again after the process was stopped for
                // a moment.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if answer.starts_with(b"errno=0\n") {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "wireguard-go refuses its configuration: {}",
            String::from_utf8_lossy(&answer)
        )))
    }
}

impl Drop for WireguardGo {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
    }
}

/// The configuration in WireGuard's cross-platform protocol.
fn configuration(side: &TunnelSide) -> String {
    let hex = |key: &[u8; 32]| data_encoding::HEXLOWER.encode(key);
    let mut text = format!(
        "set=1\nprivate_key={}\nlisten_port={}\nreplace_peers=true\npublic_key={}\nendpoint={}\n",
        hex(side.private_key.bytes()),
        side.listen.port(),
        hex(&side.remote_key.0),
        side.remote,
    );
    for prefix in &side.prefixes {
        let _ = writeln!(text, "allowed_ip={prefix}");
    }
    text.push('\n');
    text
}
