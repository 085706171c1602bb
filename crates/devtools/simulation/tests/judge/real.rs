//! A real API server with its etcd, and nothing else of a cluster.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use kube::{Client, Config};
use liqo_playground::Silent;

use crate::side::Server;

const START_TIMEOUT: Duration = Duration::from_mins(3);
const STARTS: usize = 3;

/// Ends with this value.
pub struct RealServer {
    directory: PathBuf,
    children: Vec<Child>,
    url: String,
}

impl Drop for RealServer {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl RealServer {
    /// Tries again with other ports: another program may have taken one meanwhile.
    pub async fn start() -> anyhow::Result<Self> {
        for _ in 1..STARTS {
            match Self::start_once().await {
                Ok(server) => return Ok(server),
                Err(error) => eprintln!("{error:#}: starting again"),
            }
        }
        Self::start_once().await
    }

    async fn start_once() -> anyhow::Result<Self> {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("judge-{}-{number}", std::process::id()));
        // A former test with this number of a process may have been killed.
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory)?;
        let [client_port, peer_port, port] = free_ports()?;
        let url = format!("https://127.0.0.1:{port}");
        let mut server = Self {
            directory,
            children: Vec::new(),
            url,
        };
        let etcd = liqo_playground::etcd(&Silent).await?;
        let api_server = liqo_playground::kube_apiserver(&Silent).await?;
        server.run(
            &etcd,
            "etcd",
            &etcd_flags(&server.directory, client_port, peer_port),
        )?;
        server.run(
            &api_server,
            "kube-apiserver",
            &api_server_flags(&server.directory, client_port, port)?,
        )?;
        server.wait_until_ready().await?;
        Ok(server)
    }

    fn run(&mut self, program: &Path, name: &str, flags: &[String]) -> anyhow::Result<()> {
        let log = fs::File::create(self.directory.join(format!("{name}.log")))?;
        // It ends with this test, however that ends.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(flags)
            .env("GOMAXPROCS", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        self.children.push(child);
        Ok(())
    }

    pub fn clients(&self) -> anyhow::Result<Server> {
        Ok(Server {
            admin: self.client("admin-token")?,
            ordinary: self.client("alice-token")?,
        })
    }

    fn client(&self, token: &str) -> anyhow::Result<Client> {
        let mut config = Config::new(self.url.parse()?);
        config.accept_invalid_certs = true;
        config.default_retry = false;
        config.auth_info.token = Some(token.to_owned().into());
        Ok(Client::try_from(config)?)
    }

    async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let client = self.client("admin-token")?;
        let began = Instant::now();
        while began.elapsed() < START_TIMEOUT {
            let request = http::Request::get("/readyz").body(Vec::new())?;
            if client
                .request_text(request)
                .await
                .is_ok_and(|text| text == "ok")
            {
                return Ok(());
            }
            for child in &mut self.children {
                if child.try_wait()?.is_some() {
                    bail!("a program of the real server ended: {}", self.last_lines());
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        bail!(
            "the real server is not ready after {START_TIMEOUT:?}: {}",
            self.last_lines()
        )
    }

    fn last_lines(&self) -> String {
        let read = |name: &str| {
            fs::read_to_string(self.directory.join(format!("{name}.log"))).unwrap_or_default()
        };
        let tail = |text: String| text.lines().rev().take(5).collect::<Vec<_>>().join("\n");
        format!("\n{}\n{}", tail(read("etcd")), tail(read("kube-apiserver")))
    }
}

fn free_ports() -> anyhow::Result<[u16; 3]> {
    let listeners = [
        TcpListener::bind("127.0.0.1:0")?,
        TcpListener::bind("127.0.0.1:0")?,
        TcpListener::bind("127.0.0.1:0")?,
    ];
    let mut ports = [0; 3];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}

fn etcd_flags(directory: &Path, client_port: u16, peer_port: u16) -> Vec<String> {
    let (client, peer) = (
        format!("http://127.0.0.1:{client_port}"),
        format!("http://127.0.0.1:{peer_port}"),
    );
    vec![
        format!("--data-dir={}", directory.join("etcd").display()),
        "--name=default".to_owned(),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        "--unsafe-no-fsync".to_owned(),
        "--log-level=error".to_owned(),
    ]
}

fn api_server_flags(directory: &Path, etcd_port: u16, port: u16) -> anyhow::Result<Vec<String>> {
    let tokens = directory.join("tokens.csv");
    fs::write(
        &tokens,
        "admin-token,admin,,\"system:masters\"\nalice-token,alice,,\"devs\"\n",
    )?;
    // The server generates this key with its certificate, before it reads keys for tokens.
    let key = directory.join("certificates/apiserver.key");
    Ok(vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        // The address of no machine: the loopback address is not allowed.
        "--advertise-address=192.0.2.1".to_owned(),
        format!("--cert-dir={}", directory.join("certificates").display()),
        format!("--token-auth-file={}", tokens.display()),
        "--authorization-mode=RBAC".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--service-cluster-ip-range=10.96.0.0/12".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
        format!("--service-account-key-file={}", key.display()),
        format!("--service-account-signing-key-file={}", key.display()),
        // Otherwise it would forget the past during the test.
        "--etcd-compaction-interval=0".to_owned(),
        "--profiling=false".to_owned(),
    ])
}
