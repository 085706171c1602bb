//! Clusters that reach our auth endpoint and our API server through the tunnel, because nothing else of this cluster is exposed.
//!
//! Each of them is a remote of the tunnel whose packets stay in this process: a stack of its own accepts streams, and each stream is
//! joined with a connection to one of two addresses. There is nothing else that it could reach.
//!
//! **Every gateway in use serves them.** Each has the same list and stacks of its own, and a guest speaks to the one that answered it first.
//!
//! **Bounds.** A guest costs a channel until it says something, and again when it has said nothing for a while. What it may take is
//! counted in packets: so it holds for whatever is in them. All guests together have so many stacks and so many connections, and those
//! that were only invited have others than those that have a tenancy: so they cannot take these from them.

mod allowance;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use data_encoding::HEXLOWER;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client};
use liqo_api::guests;
use liqo_datapath::tunnel::{Inward, PublicKey, Tunnel};
use liqo_passage::{API_PORT, AUTH_PORT, Accepted, Doors, End, MOST_STREAMS, MTU, Stack, Wire};
use tokio::{
    io::copy_bidirectional,
    net::TcpStream,
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::allowance::Allowance;

/// So many clusters are on the list at most.
const MOST: usize = 512;
/// So many with a tenancy, and so many that were invited, have a stack at a time: each may take a megabyte, beside its connections.
const MOST_AWAKE: (usize, usize) = (96, 32);
/// So many connections they have together, those that wait for a stream among them, one on each port of each guest that is awake: each
/// may take 180 KiB.
const MOST_TOGETHER: (usize, usize) = (640, 96);
/// So many connections one has that has not proved yet who it is.
const MOST_INVITED: usize = 8;
/// So many packets of a guest wait until they are looked at.
const WAITING: usize = 128;
/// A guest that says nothing for so long has no streams: those that stand ask every ten seconds.
const IDLE: Duration = Duration::from_secs(45);
/// What a guest may send, and be sent, in bytes a second: as each packet took [`LEAST`] at least.
const BYTES: u32 = 16 << 20;
/// What a packet counts for at least.
const LEAST: u32 = 512;
/// How many streams a guest may begin a second, and at once after a pause.
const BEGINNINGS: u32 = 20;
/// How long a connection to our own Services may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How often the Services are looked up, and while one is not known.
const LOOK_UP: Duration = Duration::from_secs(30);
const LOOK_UP_SOON: Duration = Duration::from_secs(2);

/// What a guest may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The API server and the auth endpoint: it has a tenancy here.
    All,
    /// The auth endpoint alone: it was invited, and has not proved yet who it is.
    Auth,
}

/// What guests of one scope share.
struct Room {
    sessions: Places,
    connections: Places,
}

/// So many of something may be had.
struct Places {
    free: Arc<Semaphore>,
    what: &'static str,
    /// None was free, and that was said.
    was_full: AtomicBool,
}

impl Places {
    fn new(what: &'static str, most: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(most)), what, was_full: AtomicBool::new(false) }
    }

    /// Says once that there is none free, until there is one again.
    fn tell(&self, is_full: bool) {
        if !self.was_full.swap(is_full, Ordering::Relaxed) && is_full {
            tracing::warn!("clusters that come through the tunnel have as many {} as they may have together", self.what);
        }
    }
}

/// What guests of each scope share.
struct Rooms {
    of_tenants: Room,
    of_invited: Room,
}

impl Rooms {
    fn new() -> Self {
        let room = |sessions, connections| Room {
            sessions: Places::new("sessions", sessions),
            connections: Places::new("connections", connections),
        };
        Self { of_tenants: room(MOST_AWAKE.0, MOST_TOGETHER.0), of_invited: room(MOST_AWAKE.1, MOST_TOGETHER.1) }
    }

    fn of(&self, scope: Scope) -> &Room {
        match scope {
            Scope::All => &self.of_tenants,
            Scope::Auth => &self.of_invited,
        }
    }

    fn doors(&self, scope: Scope) -> Doors {
        let (ports, most) = match scope {
            Scope::All => (vec![AUTH_PORT, API_PORT], MOST_STREAMS),
            Scope::Auth => (vec![AUTH_PORT], MOST_INVITED),
        };
        Doors { ports, most, room: self.of(scope).connections.free.clone() }
    }
}

/// The guests in the list that the manager writes; what cannot be read lets nobody in.
pub fn of(list: &BTreeMap<String, String>) -> BTreeMap<PublicKey, Scope> {
    let one = |(key, scope): (&String, &String)| {
        let key = HEXLOWER.decode(key.as_bytes()).ok()?.try_into().ok()?;
        let scope = match scope.as_str() {
            guests::AUTH => Scope::Auth,
            guests::ALL => Scope::All,
            _ => return None,
        };
        Some((PublicKey(key), scope))
    };
    list.iter().filter_map(one).collect()
}

/// Where streams lead to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// The auth endpoint.
    pub auth: Option<SocketAddr>,
    /// The API server.
    pub api: Option<SocketAddr>,
}

impl Targets {
    /// Looks the Services up. While that fails, what was known holds.
    async fn look_up(self, client: &Client, namespace: &str) -> Self {
        let of = async |namespace: &str, name: &str, known: Option<SocketAddr>| match Api::<Service>::namespaced(
            client.clone(),
            namespace,
        )
        .get_opt(name)
        .await
        {
            Ok(found) => found.and_then(|service| address(&service)),
            Err(error) => {
                tracing::warn!(%error, name, "cannot look up a Service");
                known
            }
        };
        let (auth, api) = tokio::join!(of(namespace, "liqo-auth", self.auth), of("default", "kubernetes", self.api));
        Self { auth, api }
    }

    fn of(self, port: u16) -> Option<SocketAddr> {
        match port {
            AUTH_PORT => self.auth,
            API_PORT => self.api,
            _ => None,
        }
    }
}

fn address(service: &Service) -> Option<SocketAddr> {
    let spec = service.spec.as_ref()?;
    let port = u16::try_from(spec.ports.as_ref()?.first()?.port).ok()?;
    Some(SocketAddr::new(spec.cluster_ip.as_ref()?.parse().ok()?, port))
}

/// The guests, and what they come for.
pub struct House<T> {
    guests: Guests<T>,
    targets: watch::Sender<Targets>,
    looking: Option<DropGuard>,
}

impl<T: Tunnel + 'static> House<T> {
    /// Nobody yet.
    pub fn new(tunnel: Arc<T>) -> Self {
        let targets = watch::Sender::new(Targets::default());
        Self { guests: Guests::new(tunnel, targets.subscribe()), targets, looking: None }
    }

    /// Lets in who is in this list, and nobody else; returns where the packets of each go.
    pub fn keep(
        &mut self,
        list: Option<&BTreeMap<String, String>>,
        client: &Client,
        namespace: &str,
    ) -> BTreeMap<PublicKey, Inward> {
        let wanted = list.map(of).unwrap_or_default();
        if wanted.is_empty() {
            self.looking = None;
        } else if self.looking.is_none() {
            let stop = CancellationToken::new();
            let looking = look(self.targets.clone(), client.clone(), namespace.to_owned());
            tokio::spawn(stop.clone().run_until_cancelled_owned(looking));
            self.looking = Some(stop.drop_guard());
        }
        self.guests.keep(&wanted)
    }
}

/// Keeps in mind where the Services are. Nobody waits for it.
async fn look(targets: watch::Sender<Targets>, client: Client, namespace: String) {
    loop {
        let known = *targets.borrow();
        let now = known.look_up(&client, &namespace).await;
        targets.send_replace(now);
        let is_complete = now.auth.is_some() && now.api.is_some();
        tokio::time::sleep(if is_complete { LOOK_UP } else { LOOK_UP_SOON }).await;
    }
}

/// All guests of this gateway.
pub struct Guests<T> {
    house: Arc<Shared<T>>,
    present: BTreeMap<PublicKey, Guest>,
    are_too_many: bool,
}

/// What guests share.
struct Shared<T> {
    tunnel: Arc<T>,
    targets: watch::Receiver<Targets>,
    rooms: Rooms,
}

struct Guest {
    scope: watch::Sender<Scope>,
    doors: watch::Sender<Doors>,
    inward: Inward,
    _until: DropGuard,
}

impl<T: Tunnel + 'static> Guests<T> {
    /// Nobody yet.
    pub fn new(tunnel: Arc<T>, targets: watch::Receiver<Targets>) -> Self {
        let house = Arc::new(Shared { tunnel, targets, rooms: Rooms::new() });
        Self { house, present: BTreeMap::new(), are_too_many: false }
    }

    /// Lets these in and nobody else; returns where the packets of each go. Who stays is not disturbed, but by what it may not reach any
    /// more. Where there are too many, who has a tenancy comes first, and then who is there already.
    pub fn keep(&mut self, wanted: &BTreeMap<PublicKey, Scope>) -> BTreeMap<PublicKey, Inward> {
        let order: BTreeSet<_> = wanted.iter().map(|(&key, &scope)| (scope, !self.present.contains_key(&key), key)).collect();
        let chosen: BTreeMap<PublicKey, Scope> = order.into_iter().take(MOST).map(|(scope, _, key)| (key, scope)).collect();
        self.present.retain(|key, _| chosen.contains_key(key));
        for (&key, &scope) in &chosen {
            match self.present.get(&key) {
                Some(guest) if *guest.scope.borrow() == scope => {}
                Some(guest) => {
                    guest.scope.send_replace(scope);
                    guest.doors.send_replace(self.house.rooms.doors(scope));
                }
                None => {
                    let guest = self.welcome(key, scope);
                    self.present.insert(key, guest);
                }
            }
        }
        let are_too_many = wanted.len() > MOST;
        if are_too_many && !self.are_too_many {
            tracing::warn!(
                wanted = wanted.len(),
                most = MOST,
                "more clusters may come through the tunnel than this gateway serves"
            );
        }
        self.are_too_many = are_too_many;
        self.present.iter().map(|(key, guest)| (*key, guest.inward.clone())).collect()
    }

    fn welcome(&self, key: PublicKey, scope: Scope) -> Guest {
        let (sender, packets) = mpsc::channel(WAITING);
        let (scope, doors) = (watch::Sender::new(scope), watch::Sender::new(self.house.rooms.doors(scope)));
        let stop = CancellationToken::new();
        let work = attend(self.house.clone(), key, packets, scope.subscribe(), doors.subscribe());
        tokio::spawn(stop.clone().run_until_cancelled_owned(work));
        Guest { scope, doors, inward: Inward(sender), _until: stop.drop_guard() }
    }
}

/// Serves a guest whenever it says something.
async fn attend<T: Tunnel + 'static>(
    house: Arc<Shared<T>>,
    key: PublicKey,
    mut packets: mpsc::Receiver<Vec<u8>>,
    scope: watch::Receiver<Scope>,
    doors: watch::Receiver<Doors>,
) {
    while let Some(first) = packets.recv().await {
        let room = house.rooms.of(*scope.borrow());
        let awake = room.sessions.free.try_acquire();
        room.sessions.tell(awake.is_err());
        let Ok(_awake) = awake else { continue };
        let (inside, mut outside) = Wire::pair();
        let (_, accepted) = Stack::start(End::Far(doors.clone()), inside);
        let hear = async {
            let (mut allowance, mut next) = (Allowance::of_bytes(BYTES), Some(first));
            while let Some(packet) = next {
                allowance.take(size(&packet)).await;
                // A larger one is none of a stack's, and what waits is counted in packets.
                if packet.len() <= MTU && outside.outgoing.send(packet).await.is_err() {
                    return;
                }
                next = timeout(IDLE, packets.recv()).await.ok().flatten();
            }
        };
        let say = async {
            let mut allowance = Allowance::of_bytes(BYTES);
            while let Some(packet) = outside.incoming.recv().await {
                allowance.take(size(&packet)).await;
                house.tunnel.send(key, &packet);
            }
        };
        tokio::select! {
            () = hear => {}
            () = say => {}
            () = host(accepted, house.targets.clone(), doors.clone(), &room.connections) => {}
        }
    }
}

fn size(packet: &[u8]) -> u32 {
    u32::try_from(packet.len()).unwrap_or(u32::MAX).max(LEAST)
}

/// Joins streams with what they are for, until the session ends.
async fn host(
    mut accepted: mpsc::Receiver<Accepted>,
    targets: watch::Receiver<Targets>,
    doors: watch::Receiver<Doors>,
    connections: &Places,
) {
    let (mut streams, mut allowance) = (JoinSet::new(), Allowance::of_streams(BEGINNINGS));
    while let Some(Accepted { port, mut stream, place }) = accepted.recv().await {
        while streams.try_join_next().is_some() {}
        connections.tell(connections.free.available_permits() == 0);
        allowance.take(1).await;
        let target = targets.borrow().of(port);
        let mut doors = doors.clone();
        streams.spawn(async move {
            let joined = async {
                let target = target.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "its Service is not known yet"))?;
                let mut service = timeout(CONNECT, TcpStream::connect(target)).await??;
                service.set_nodelay(true)?;
                copy_bidirectional(&mut stream, &mut service).await
            };
            let shut = doors.wait_for(|doors| !doors.ports.contains(&port));
            tokio::select! {
                joined = joined => if let Err(error) = joined {
                    tracing::debug!(%error, port, "a stream of a cluster that comes through the tunnel ended");
                },
                _ = shut => {}
            }
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use liqo_datapath::tunnel::{FakeTunnel, PrivateKey};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// The auth endpoint, the API server, and where they are.
    async fn services() -> (TcpListener, TcpListener, watch::Receiver<Targets>) {
        let auth = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let targets = Targets { auth: auth.local_addr().ok(), api: api.local_addr().ok() };
        (auth, api, watch::channel(targets).1)
    }

    fn serve(doors: &watch::Sender<Doors>, targets: &watch::Receiver<Targets>) -> Stack {
        let (near, far) = Wire::pair();
        let (_, accepted) = Stack::start(End::Far(doors.subscribe()), far);
        let (targets, doors) = (targets.clone(), doors.subscribe());
        tokio::spawn(async move { host(accepted, targets, doors, &Places::new("connections", 1)).await });
        Stack::start(End::Near, near).0
    }

    fn keys(count: usize) -> Vec<PublicKey> {
        let mut keys: Vec<_> = (0..count).map(|_| PrivateKey::generate().public()).collect();
        keys.sort();
        keys
    }

    #[tokio::test]
    async fn an_invited_cluster_reaches_the_auth_endpoint_and_nothing_else() {
        let (auth, _api, targets) = services().await;
        for (scope, may_call_api) in [(Scope::Auth, false), (Scope::All, true)] {
            let doors = watch::Sender::new(Rooms::new().doors(scope));
            let near = serve(&doors, &targets);
            let mut stream = near.connect(AUTH_PORT).await.unwrap();
            let mut served = auth.accept().await.unwrap().0;
            served.write_all(b"hello").await.unwrap();
            let mut heard = [0; 5];
            stream.read_exact(&mut heard).await.unwrap();
            assert_eq!(&heard, b"hello");
            assert_eq!(near.connect(API_PORT).await.is_ok(), may_call_api);
        }
    }

    #[tokio::test]
    async fn a_tenancy_that_ends_takes_the_api_server_away_and_leaves_the_auth_endpoint() {
        let (auth, api, targets) = services().await;
        let rooms = Rooms::new();
        let doors = watch::Sender::new(rooms.doors(Scope::All));
        let near = serve(&doors, &targets);
        let mut of_api = near.connect(API_PORT).await.unwrap();
        let mut of_auth = near.connect(AUTH_PORT).await.unwrap();
        let (_api, mut auth) = (api.accept().await.unwrap().0, auth.accept().await.unwrap().0);
        doors.send_replace(rooms.doors(Scope::Auth));
        assert!(matches!(of_api.read(&mut [0; 1]).await, Ok(0) | Err(_)));
        assert!(near.connect(API_PORT).await.is_err());
        auth.write_all(b"!").await.unwrap();
        assert_eq!(of_auth.read_u8().await.unwrap(), b'!');
    }

    #[tokio::test]
    async fn all_invited_together_have_so_many_connections_and_take_none_of_those_that_have_a_tenancy() {
        let (auth, _api, targets) = services().await;
        let rooms = Rooms::new();
        let _others = rooms.of_invited.connections.free.clone().try_acquire_many_owned(95).unwrap();
        let [invited, tenant] = [Scope::Auth, Scope::All].map(|scope| watch::Sender::new(rooms.doors(scope)));
        let (invited, tenant) = (serve(&invited, &targets), serve(&tenant, &targets));
        let mut first = invited.connect(AUTH_PORT).await.unwrap();
        let mut served = auth.accept().await.unwrap().0;
        assert!(invited.connect(AUTH_PORT).await.is_err());
        drop(tenant.connect(AUTH_PORT).await.unwrap());
        served.write_all(b"!").await.unwrap();
        assert_eq!(first.read_u8().await.unwrap(), b'!');
    }

    #[tokio::test]
    async fn where_too_many_may_come_those_with_a_tenancy_do_and_then_those_that_are_there() {
        let (_known, targets) = watch::channel(Targets::default());
        let mut guests = Guests::new(Arc::new(FakeTunnel::default()), targets);
        let keys = keys(MOST + 2);
        let invited = |keys: &[PublicKey]| keys.iter().map(|&key| (key, Scope::Auth)).collect::<BTreeMap<_, _>>();
        let first = guests.keep(&invited(&keys[1..=MOST]));
        assert_eq!(first, guests.keep(&invited(&keys)), "a lower key is no better one");
        let mut wanted = invited(&keys);
        wanted.insert(keys[MOST + 1], Scope::All);
        let now = guests.keep(&wanted);
        assert!(now.len() == MOST && now.contains_key(&keys[MOST + 1]));
    }

    #[tokio::test]
    async fn who_stays_is_not_disturbed() {
        let (_known, targets) = watch::channel(Targets::default());
        let mut guests = Guests::new(Arc::new(FakeTunnel::default()), targets);
        let keys = [PrivateKey::generate().public(), PrivateKey::generate().public()];
        let first = guests.keep(&keys.map(|key| (key, Scope::Auth)).into());
        let again = guests.keep(&[(keys[0], Scope::All), (keys[1], Scope::Auth)].into());
        assert_eq!(first, again);
        assert!(guests.keep(&BTreeMap::new()).is_empty());
    }

    #[test]
    fn what_cannot_be_read_lets_nobody_in() {
        let key = HEXLOWER.encode(&PrivateKey::generate().public().0);
        let list = [(key.as_str(), "All"), ("zz", "All"), (&key[2..], "All"), (&key.to_uppercase(), "Everything")];
        let list = list.map(|(key, scope)| (key.to_owned(), scope.to_owned())).into();
        assert_eq!(of(&list).into_values().collect::<Vec<_>>(), [Scope::All]);
    }
}
