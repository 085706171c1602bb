//! A tunnel client: its packets stay in the process, and both ends have a TCP stack.

use std::{sync::Arc, thread};

use anyhow::{Result, ensure};
use liqo_datapath::tunnel::{InwardChannel, PrivateKey, RemoteConfig, Tunnel as _};
use liqo_datapath_testbed::PairEnd;
use liqo_tunnel_client::{
    AUTH_PORT, ListenPolicy, PacketLink, Stack, StackRole,
    session::{DialConfig, DialedGateway, dial},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    runtime::Builder,
    sync::{Semaphore, oneshot, watch},
};

use crate::Tunnels;

pub fn a_tunnel_client_is_answered_in_the_process() -> Result<()> {
    let tunnels = Tunnels::prepare(false)?;
    let caller = PrivateKey::generate();
    let (inside, mut outside) = PacketLink::pair();
    let mut right = tunnels.side(PairEnd::Right).endpoint();
    right.remotes.push(RemoteConfig {
        public_key: caller.public_key(),
        endpoint: None,
        keepalive: None,
        prefixes: Vec::new(),
        inward: Some(InwardChannel(outside.outgoing.clone())),
        ..right.remotes[0].clone()
    });
    tunnels.apply(PairEnd::Right, &right)?;
    let endpoints = vec![PairEnd::Right.outside(false, 51_820).to_string()];
    let gateway = DialedGateway {
        public_key: right.private_key.public_key().0,
        endpoints,
    };
    let config = DialConfig {
        private_key: *caller.bytes(),
        gateways: vec![gateway],
    };

    let (done, until) = oneshot::channel::<()>();
    let far = async {
        let policy = watch::channel(ListenPolicy {
            ports: vec![AUTH_PORT],
            max_connections: 8,
            permits: Arc::new(Semaphore::new(8)),
        })
        .1;
        let (_, mut accepted) = Stack::start(StackRole::Server(policy), inside);
        let echo = async {
            while let Some(accepted) = accepted.recv().await {
                let (mut read, mut write) = tokio::io::split(accepted.stream);
                tokio::io::copy(&mut read, &mut write).await?;
                write.shutdown().await?;
            }
            anyhow::Ok(())
        };
        let carry = async {
            while let Some(packet) = outside.incoming.recv().await {
                tunnels
                    .tunnel(PairEnd::Right)
                    .send(caller.public_key(), &packet);
            }
        };
        tokio::select! {
            _ = until => Ok(()),
            outcome = echo => outcome,
            () = carry => Ok(()),
        }
    };
    let near = async {
        let connection = dial(config)?;
        let sent: Vec<u8> = (0..1_000_000_u32).map(|at| at.to_le_bytes()[0]).collect();
        let (mut read, mut write) = tokio::io::split(connection.connect(AUTH_PORT).await?);
        let mut received = Vec::new();
        let writing = async {
            write.write_all(&sent).await?;
            write.shutdown().await
        };
        tokio::try_join!(writing, read.read_to_end(&mut received))?;
        ensure!(
            received == sent,
            "{} of {} bytes came back",
            received.len(),
            sent.len()
        );
        Ok(())
    };
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            Builder::new_current_thread()
                .enable_all()
                .build()?
                .block_on(far)
        });
        // Sockets are of the namespace of the thread that makes them.
        let outcome = tunnels.pair.left.run(|| {
            anyhow::Ok(
                Builder::new_current_thread()
                    .enable_all()
                    .build()?
                    .block_on(near)?,
            )
        });
        drop(done);
        serving
            .join()
            .map_err(|_| anyhow::anyhow!("the far end panicked"))??;
        outcome?
    })
}
