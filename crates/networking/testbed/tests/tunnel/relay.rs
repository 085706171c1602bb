//! Relays carry packets while UDP is blocked; attacks on relays.

use std::{
    io::Write,
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use liqo_datapath::{
    relay::{LIMITS, RelayClient, RelayServer, connector},
    tunnel::Tunnel,
};
use liqo_datapath_testbed::{PairEnd, traffic::arrives_unchanged};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    runtime::Runtime,
};

use crate::{
    Tunnels,
    carries::{datagram_sockets, under_load},
    until,
    wire::ping,
};

const TUNNEL: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 51_820);
const PORT: u16 = 443;

/// Two ends with a session, a relay server at the right one, and a runtime for each.
struct Relays {
    tunnels: Tunnels,
    runtimes: [Runtime; 2],
    server: RelayServer,
}

impl Relays {
    fn new(v6: bool) -> Result<Self> {
        let tunnels = Tunnels::new(v6)?;
        until("a session", || {
            ping(&tunnels.pair.left, PairEnd::Right.inside(v6, 0), 0)
        })?;
        let runtime = || {
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
        };
        // The threads of a runtime are in the namespace of its creator.
        let runtimes = [
            tunnels.pair.left.run(runtime)??,
            tunnels.pair.right.run(runtime)??,
        ];
        let start = async move {
            RelayServer::start(
                &[PairEnd::Right.outside(v6, PORT)],
                loopback_for(v6),
                LIMITS,
            )
        };
        let server = runtimes[1].block_on(runtimes[1].spawn(start))??;
        Ok(Self {
            tunnels,
            runtimes,
            server,
        })
    }

    fn connect(&self, v6: bool) -> Result<RelayClient> {
        let start = RelayClient::start(
            vec![PairEnd::Right.outside(v6, PORT)],
            loopback_for(v6),
            Arc::default(),
            || {},
        );
        let client = self.runtimes[0].block_on(self.runtimes[0].spawn(start))??;
        until("a connection", || Ok(client.server().is_some()))?;
        Ok(client)
    }

    /// Sets the relay of the left tunnel.
    fn use_relay(&self, relay: Option<SocketAddr>) -> Result<()> {
        let mut endpoint = self.tunnels.endpoint(PairEnd::Left);
        endpoint.remotes[0].relay = relay;
        self.tunnels.apply(PairEnd::Left, &endpoint)
    }

    fn is_relayed(&self) -> Result<[bool; 2]> {
        Ok([
            self.tunnels.remote(PairEnd::Left)?.is_relayed(),
            self.tunnels.remote(PairEnd::Right)?.is_relayed(),
        ])
    }

    fn ping(&self, v6: bool) -> Result<bool> {
        ping(&self.tunnels.pair.left, PairEnd::Right.inside(v6, 0), 0)
    }
}

/// Blocks or allows all UDP on the link.
pub fn block_udp(tunnels: &Tunnels, is_blocked: bool) -> Result<()> {
    let rules = "add table inet block\ndelete table inet block\ntable inet block {\nchain i { type filter hook input priority 0; iifname wire meta l4proto udp drop; }\nchain o { type filter hook output priority 0; oifname wire meta l4proto udp drop; }\n}";
    let rules = if is_blocked {
        rules
    } else {
        "delete table inet block"
    };
    for end in [PairEnd::Left, PairEnd::Right] {
        tunnels.pair.end(end).command("nft", &["-f", "-"], rules)?;
    }
    Ok(())
}

fn loopback_for(v6: bool) -> SocketAddr {
    if v6 {
        SocketAddr::new(std::net::Ipv6Addr::LOCALHOST.into(), TUNNEL.port())
    } else {
        TUNNEL
    }
}

pub fn tls_carries_everything_while_udp_is_blocked_and_the_return_to_udp_loses_nothing()
-> Result<()> {
    let relays = Relays::new(false)?;
    let pair = &relays.tunnels.pair;
    let (sender, receiver) = datagram_sockets(pair, false)?;
    ensure!(relays.ping(false)?);
    block_udp(&relays.tunnels, true)?;
    ensure!(!relays.ping(false)?, "UDP is not blocked");
    let client = relays.connect(false)?;
    relays.use_relay(Some(client.address()))?;
    let begun = Instant::now();
    until("a ping over TLS", || relays.ping(false))?;
    println!("the first ping over TLS after {:?}", begun.elapsed());
    until("both ends to use the relay", || {
        Ok(relays.is_relayed()? == [true, true])
    })?;
    let speaks_from = relays
        .tunnels
        .remote(PairEnd::Right)?
        .endpoint
        .context("an endpoint")?;
    ensure!(
        relays
            .server
            .client_address(speaks_from)
            .context("its connection")?
            .ip()
            == PairEnd::Left.outside(false, 0).ip()
    );
    ensure!(relays.server.counts().proven == 1);
    ensure!(
        arrives_unchanged(
            &pair.left,
            &pair.right,
            PairEnd::Right.inside(false, 5001),
            20 << 20
        )?,
        "left to right"
    );
    ensure!(
        arrives_unchanged(
            &pair.right,
            &pair.left,
            PairEnd::Left.inside(false, 5002),
            20 << 20
        )?,
        "right to left"
    );

    let (sent, arrived) = under_load(&sender, &receiver, || {
        block_udp(&relays.tunnels, false)?;
        until("UDP again", || Ok(relays.is_relayed()? == [false, false]))?;
        relays.use_relay(None)?;
        until("the end of the connection", || {
            let _ = &client;
            Ok(relays.is_relayed()? == [false, false])
        })
    })?;
    println!("{arrived} of {sent} datagrams arrived while UDP took over again");
    ensure!(sent > 100 && sent == arrived, "{arrived} of {sent} arrived");
    drop(client);
    until("the connection to end", || {
        Ok(relays.server.counts().proven == 0)
    })?;
    ensure!(relays.ping(false)?);
    Ok(())
}

pub fn over_ipv6_too() -> Result<()> {
    let relays = Relays::new(true)?;
    block_udp(&relays.tunnels, true)?;
    let client = relays.connect(true)?;
    relays.use_relay(Some(client.address()))?;
    until("a ping over TLS", || relays.ping(true))?;
    ensure!(relays.is_relayed()?[0]);
    Ok(())
}

pub fn a_relay_whose_connection_breaks_reconnects_and_the_tunnel_goes_on() -> Result<()> {
    let mut relays = Relays::new(false)?;
    block_udp(&relays.tunnels, true)?;
    let client = relays.connect(false)?;
    relays.use_relay(Some(client.address()))?;
    until("a ping over TLS", || relays.ping(false))?;
    let listen = relays.server.listen_addresses().to_vec();
    let start = async move { RelayServer::start(&listen, TUNNEL, LIMITS) };
    // Stop the former one first.
    let free = async { RelayServer::start(&[], TUNNEL, LIMITS) };
    relays.server = relays.runtimes[1].block_on(relays.runtimes[1].spawn(free))??;
    until("the end of the connection", || {
        Ok(client.server().is_none())
    })?;
    relays.server = relays.runtimes[1].block_on(relays.runtimes[1].spawn(start))??;
    until("another connection", || Ok(client.server().is_some()))?;
    until("a ping over TLS", || relays.ping(false))?;
    Ok(())
}

pub fn an_attack_on_a_relay_harms_nobody() -> Result<()> {
    let relays = Relays::new(false)?;
    block_udp(&relays.tunnels, true)?;
    let client = relays.connect(false)?;
    relays.use_relay(Some(client.address()))?;
    until("a ping over TLS", || relays.ping(false))?;
    let pair = &relays.tunnels.pair;
    let server = PairEnd::Right.outside(false, PORT);

    // A thousand connections that say nothing, or something that is not TLS.
    let mut silent = Vec::new();
    for number in 0..1000 {
        let mut stream = pair.left.run(|| TcpStream::connect(server))??;
        if number % 2 == 0 {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\n\r\n");
        }
        silent.push(stream);
    }
    let most = LIMITS.per_source;
    // Each of the 500 silent ones but the last makes room for a newer one.
    until("refusals", || Ok(relays.server.counts().refused >= 480))?;
    let counts = relays.server.counts();
    ensure!(counts.proven == 1 && counts.unproven < most, "{counts:?}");
    ensure!(relays.ping(false)?);
    until("silent connections to be closed", || {
        Ok(relays.server.counts().unproven == 0)
    })?;
    drop(silent);

    // Valid TLS handshakes, then garbage: each is closed at once.
    let connector = connector().map_err(anyhow::Error::from)?;
    let begins: [&[u8]; 4] = [
        &[0xff, 0xff, 1, 2, 3],
        &[0, 0],
        &[0, 5, 4, 0, 0, 0, 1],
        &[0, 148, 9, 9, 9, 9],
    ];
    for begin in begins {
        let frame = [begin, &vec![7; 20_000]].concat();
        let connector = connector.clone();
        let attempt = async move {
            let stream = tokio::net::TcpStream::connect(server).await?;
            let mut stream = connector.connect(server.ip().into(), stream).await?;
            let _ = stream.write_all(&frame).await;
            let _ = stream.flush().await;
            let mut answer = [0; 16];
            // Closed with or without an error.
            let ended =
                tokio::time::timeout(Duration::from_secs(5), stream.read(&mut answer)).await?;
            anyhow::Ok(ended.unwrap_or(0))
        };
        let read = relays.runtimes[0]
            .block_on(relays.runtimes[0].spawn(attempt))?
            .context("a connection that was not closed")?;
        ensure!(read == 0, "garbage was answered");
    }

    // A stranger whose messages have the right shape gets no answer, and is closed in the end.
    let stranger = {
        let connector = connector.clone();
        async move {
            let stream = tokio::net::TcpStream::connect(server).await?;
            let mut stream = connector.connect(server.ip().into(), stream).await?;
            let message = Arc::new([&[0, 148, 1, 0, 0, 0][..], &[7; 144]].concat());
            while stream.write_all(&message).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            anyhow::Ok(())
        }
    };
    let begun = Instant::now();
    relays.runtimes[0].block_on(relays.runtimes[0].spawn(stranger))??;
    println!("a stranger was closed after {:?}", begun.elapsed());
    ensure!(
        relays
            .tunnels
            .tunnel(PairEnd::Right)
            .state()
            .dropped
            .bad_handshake
            > 0
    );

    ensure!(arrives_unchanged(
        &pair.left,
        &pair.right,
        PairEnd::Right.inside(false, 5001),
        5 << 20
    )?);
    ensure!(relays.server.counts().proven == 1);
    Ok(())
}
