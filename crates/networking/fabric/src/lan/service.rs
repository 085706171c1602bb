//! Announces this cluster on the local network and listens for others. It knows nothing of
//! Kubernetes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ipnet::IpNet;
use liqo_discovery::{
    announcement::Announcement,
    lan_table::{LanNotice, LanTable, read_notices},
    message::{MAX_UDP_LEN, parse_message},
    responder::{OwnAnnouncement, TTL, encode_browse_question},
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::socket::{LanPacket, LanSocket, LanSocketKey, node_interfaces};

/// Packets that wait to be read.
const QUEUE_LEN: usize = 128;
/// Interval between two reads of the interfaces.
const INTERFACES_INTERVAL: Duration = Duration::from_secs(5);
/// A new announcement is sent at these times after the start, in seconds, because packets get lost.
const FIRST_SENDS: [u64; 3] = [0, 1, 3];
/// Interval of later announcements: a quarter of the time to live.
const SEND_INTERVAL: Duration = Duration::from_secs(TTL as u64 / 4);
/// Minimum time between two answers on one interface (RFC 6762, section 6).
const MIN_ANSWER_INTERVAL: Duration = Duration::from_secs(1);

/// The announcement and its interfaces. `None` for the announcement: the cluster does not know its
/// address yet.
#[derive(Clone, Debug, PartialEq)]
pub struct LanConfig {
    pub own_id: liqo_api::ClusterId,
    pub own: Option<OwnAnnouncement>,
    /// The interfaces that the user chose; none if they are detected.
    pub interfaces: Vec<String>,
    /// Prefixes of pods: interfaces with an address in them are left out.
    pub pods: Vec<IpNet>,
}

/// Runs until `stop`. Publishes the clusters that it hears, and `None` while it has no socket:
/// without a `config`, or without an interface.
pub async fn run_service(
    mut config: watch::Receiver<Option<LanConfig>>,
    found: watch::Sender<Option<Vec<Announcement>>>,
    stop: CancellationToken,
) {
    loop {
        let current = config.borrow_and_update().clone();
        let ended = if let Some(current) = current {
            serve_config(current, &mut config, &found, &stop).await
        } else {
            found.send_replace(None);
            wait_for_change(&mut config, &stop).await
        };
        if ended.is_none() {
            return;
        }
    }
}

/// `None` if everything ends.
async fn wait_for_change(
    config: &mut watch::Receiver<Option<LanConfig>>,
    stop: &CancellationToken,
) -> Option<()> {
    tokio::select! {
        () = stop.cancelled() => None,
        changed = config.changed() => changed.ok(),
    }
}

struct LanService {
    config: LanConfig,
    sockets: BTreeMap<LanSocketKey, LanSocket>,
    answered: BTreeMap<LanSocketKey, Instant>,
    table: LanTable,
    sender: mpsc::Sender<LanPacket>,
    /// Interfaces whose socket could not be opened, so that each is logged once.
    failed: BTreeSet<LanSocketKey>,
}

/// Serves one configuration until it changes, and says goodbye.
async fn serve_config(
    current: LanConfig,
    config: &mut watch::Receiver<Option<LanConfig>>,
    found: &watch::Sender<Option<Vec<Announcement>>>,
    stop: &CancellationToken,
) -> Option<()> {
    let (sender, mut received) = mpsc::channel(QUEUE_LEN);
    let mut service = LanService {
        table: LanTable::new(current.own_id.clone()),
        config: current,
        sockets: BTreeMap::new(),
        answered: BTreeMap::new(),
        sender,
        failed: BTreeSet::new(),
    };
    let start = Instant::now();
    let (mut sends, mut next_send, mut next_look) = (0, start, start);
    let ended = loop {
        let now = Instant::now();
        if now >= next_look {
            if service.update_sockets() {
                // Nobody on a new interface knows this cluster.
                (sends, next_send) = (0, now);
            }
            next_look = now + INTERFACES_INTERVAL;
        }
        if now >= next_send {
            service.announce_and_browse().await;
            sends += 1;
            next_send = now
                + FIRST_SENDS
                    .get(sends)
                    .zip(FIRST_SENDS.get(sends - 1))
                    .map_or(SEND_INTERVAL, |(next, last)| {
                        Duration::from_secs(next - last)
                    });
        }
        service.table.expire(now.into_std());
        // Without a socket, an empty list would not mean that there are no clusters.
        let clusters = (!service.sockets.is_empty()).then(|| service.table.clusters());
        found.send_if_modified(|old| {
            let changed = *old != clusters;
            *old = clusters;
            changed
        });
        let expiry = service
            .table
            .next_expiry()
            .map_or(next_look, Instant::from_std);
        tokio::select! {
            () = stop.cancelled() => break None,
            changed = config.changed() => break changed.ok(),
            Some(packet) = received.recv() => service.handle_packet(packet).await,
            () = sleep_until(next_look.min(next_send).min(expiry)) => {}
        }
    };
    // A changed configuration announces itself again at once, with the same names, and so does the
    // process after this one.
    if ended.is_some()
        && config
            .borrow()
            .as_ref()
            .is_none_or(|next| next.own.is_none())
    {
        service.send_own(0).await;
    }
    ended
}

impl LanService {
    /// Opens sockets on new interfaces, and closes those of interfaces that are gone. Returns
    /// whether there is a new one.
    fn update_sockets(&mut self) -> bool {
        let all = match node_interfaces() {
            Ok(all) => all,
            Err(error) => {
                tracing::warn!(%error, "cannot list the network interfaces, trying again");
                return false;
            }
        };
        let lan = all
            .iter()
            .filter(|interface| interface.is_lan(&self.config.interfaces, &self.config.pods));
        let mut wanted = BTreeSet::new();
        for interface in lan {
            for (is_v6, is_there) in [(false, interface.has_v4()), (true, interface.has_v6())] {
                if is_there {
                    wanted.insert(LanSocketKey {
                        interface: interface.name.clone(),
                        index: interface.index,
                        is_v6,
                    });
                }
            }
        }
        self.sockets.retain(|key, _| wanted.contains(key));
        self.failed.retain(|key| wanted.contains(key));
        let mut is_new = false;
        for key in wanted {
            if self.sockets.contains_key(&key) {
                continue;
            }
            match LanSocket::open(&key, self.sender.clone()) {
                Ok(socket) => {
                    tracing::info!(
                        interface = key.interface,
                        ipv6 = key.is_v6,
                        "listening for clusters on the local network"
                    );
                    self.failed.remove(&key);
                    self.sockets.insert(key, socket);
                    is_new = true;
                }
                Err(error) => {
                    if self.failed.insert(key.clone()) {
                        tracing::warn!(%error, interface = key.interface, ipv6 = key.is_v6, "cannot listen for multicast DNS, trying again");
                    }
                }
            }
        }
        is_new
    }

    async fn announce_and_browse(&self) {
        self.send_own(TTL).await;
        if let Some(question) = encode_browse_question() {
            for socket in self.sockets.values() {
                let _ = socket.send(&question).await;
            }
        }
    }

    async fn send_own(&self, ttl: u32) {
        let Some(bytes) = self
            .config
            .own
            .as_ref()
            .and_then(|own| own.encode_answer(ttl))
        else {
            return;
        };
        for (key, socket) in &self.sockets {
            if let Err(error) = socket.send(&bytes).await {
                tracing::debug!(%error, interface = key.interface, "an announcement was not sent");
            }
        }
    }

    async fn handle_packet(&mut self, packet: LanPacket) {
        let Ok(message) = parse_message(&packet.bytes, MAX_UDP_LEN) else {
            return;
        };
        let now = Instant::now();
        // Another node of this cluster stopped announcing it, or a liar said goodbye in its name.
        let mut is_contradicted = false;
        for one in read_notices(&message) {
            is_contradicted |= matches!(&one, LanNotice::Gone(id) if *id == self.config.own_id);
            let _ = self.table.record_notice(packet.sender, one, now.into_std());
        }
        let Some(own) = self
            .config
            .own
            .as_ref()
            .filter(|own| is_contradicted || own.is_asked(&message))
        else {
            return;
        };
        let recently = self
            .answered
            .get(&packet.key)
            .is_some_and(|at| now.duration_since(*at) < MIN_ANSWER_INTERVAL);
        if let (false, Some(bytes), Some(socket)) = (
            recently,
            own.encode_answer(TTL),
            self.sockets.get(&packet.key),
        ) {
            let _ = socket.send(&bytes).await;
            self.answered.insert(packet.key, now);
        }
    }
}
