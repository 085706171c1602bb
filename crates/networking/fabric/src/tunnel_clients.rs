//! Tunnel clients: clusters that reach our auth endpoint and our API server through the tunnel,
//! because nothing else of this cluster is exposed.
//!
//! Each client is a remote of the tunnel whose packets stay in this process: a TCP/IP stack of its
//! own accepts streams, and each stream is joined with a connection to one of two addresses. The
//! client cannot reach anything else.
//!
//! **Every gateway in use serves them.** All gateways have the same list, each with its own stacks,
//! and a client speaks to the gateway that answered first.
//!
//! **Limits.** An idle client only costs a channel. Rate limits count packets, whatever they
//! contain. Clients with a tenancy and clients that were only invited have separate quotas of
//! sessions and connections, so the invited ones cannot exhaust those of the others.

mod rate_limit;

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
use liqo_api::tunnel_client_scopes as scopes;
use liqo_datapath::tunnel::{InwardChannel, PublicKey, Tunnel};
use liqo_tunnel_client::{
    API_PORT, AUTH_PORT, IncomingStream, ListenPolicy, MAX_STREAMS, MTU, PacketLink, Stack,
    StackRole,
};
use tokio::{
    io::copy_bidirectional,
    net::TcpStream,
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::rate_limit::RateLimit;

const MAX_CLIENTS: usize = 512;
/// For clients with a tenancy.
const TENANT_QUOTA: ClientQuota = ClientQuota {
    sessions: 96,
    connections: 640,
};
/// For clients that were only invited.
const INVITED_QUOTA: ClientQuota = ClientQuota {
    sessions: 32,
    connections: 96,
};
/// Maximum number of connections of one client that was only invited.
const MAX_INVITED_CONNECTIONS: usize = 8;
/// Maximum number of packets of one client that wait.
const MAX_WAITING_PACKETS: usize = 128;
/// A session ends after this silence. Existing streams send keepalives every ten seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);
/// Bytes a second that a client may send, and that it may be sent. Each packet counts as
/// [`MIN_PACKET_COST`] at least.
const BYTE_RATE: u32 = 16 << 20;
/// In bytes.
const MIN_PACKET_COST: u32 = 512;
/// New streams of a client, per second.
const STREAM_RATE: u32 = 20;
/// For connections to our own Services.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const LOOK_UP_PERIOD: Duration = Duration::from_secs(30);
/// While the address of a Service is not known.
const LOOK_UP_RETRY_DELAY: Duration = Duration::from_secs(2);

/// The limits of all clients of one scope together.
struct ClientQuota {
    /// Clients that have a stack at the same time. A session may take a megabyte, without its
    /// connections.
    sessions: usize,
    /// TCP connections, including one that waits for a stream on each port of each session. Each
    /// may take 180 KiB.
    connections: usize,
}

/// The ports that a client may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientScope {
    /// The API server and the auth endpoint: the client has a tenancy here.
    All,
    /// Only the auth endpoint: the client was invited, and has not proved its identity yet.
    Auth,
}

/// The permits that clients of one scope share.
struct ScopePermits {
    sessions: PermitPool,
    connections: PermitPool,
}

impl ScopePermits {
    fn new(quota: &ClientQuota) -> Self {
        Self {
            sessions: PermitPool::new("sessions", quota.sessions),
            connections: PermitPool::new("connections", quota.connections),
        }
    }
}

/// A number of permits for one thing.
struct PermitPool {
    free: Arc<Semaphore>,
    what: &'static str,
    /// Whether the last check found no free permit, so that the warning is logged once.
    was_exhausted: AtomicBool,
}

impl PermitPool {
    fn new(what: &'static str, count: usize) -> Self {
        Self {
            free: Arc::new(Semaphore::new(count)),
            what,
            was_exhausted: AtomicBool::new(false),
        }
    }

    /// Warns when the last permit is taken.
    fn warn_if(&self, is_exhausted: bool) {
        if !self.was_exhausted.swap(is_exhausted, Ordering::Relaxed) && is_exhausted {
            tracing::warn!("tunnel clients have used up their quota of {}", self.what);
        }
    }
}

/// The permits of all scopes.
struct AllPermits {
    tenants: ScopePermits,
    invited: ScopePermits,
}

impl AllPermits {
    fn new() -> Self {
        Self {
            tenants: ScopePermits::new(&TENANT_QUOTA),
            invited: ScopePermits::new(&INVITED_QUOTA),
        }
    }

    fn permits_of_scope(&self, scope: ClientScope) -> &ScopePermits {
        match scope {
            ClientScope::All => &self.tenants,
            ClientScope::Auth => &self.invited,
        }
    }

    fn listen_policy(&self, scope: ClientScope) -> ListenPolicy {
        let (ports, max_connections) = match scope {
            ClientScope::All => (vec![AUTH_PORT, API_PORT], MAX_STREAMS),
            ClientScope::Auth => (vec![AUTH_PORT], MAX_INVITED_CONNECTIONS),
        };
        ListenPolicy {
            ports,
            max_connections,
            permits: self.permits_of_scope(scope).connections.free.clone(),
        }
    }
}

/// Reads the list of clients that the manager writes. Entries that cannot be read are left out.
fn parse_list(list: &BTreeMap<String, String>) -> BTreeMap<PublicKey, ClientScope> {
    list.iter()
        .filter_map(|(key, scope)| parse_entry(key, scope))
        .collect()
}

fn parse_entry(key: &str, scope: &str) -> Option<(PublicKey, ClientScope)> {
    let key = HEXLOWER.decode(key.as_bytes()).ok()?.try_into().ok()?;
    let scope = match scope {
        scopes::AUTH => ClientScope::Auth,
        scopes::ALL => ClientScope::All,
        _ => return None,
    };
    Some((PublicKey(key), scope))
}

/// The addresses that streams lead to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamTargets {
    pub auth: Option<SocketAddr>,
    pub api: Option<SocketAddr>,
}

impl StreamTargets {
    /// Looks the Services up. If that fails, the known addresses stay.
    async fn look_up(self, client: &Client, namespace: &str) -> Self {
        let own = Api::<Service>::namespaced(client.clone(), namespace);
        let default = Api::<Service>::namespaced(client.clone(), "default");
        let (auth, api) = tokio::join!(
            look_up_service(&own, "liqo-auth", self.auth),
            look_up_service(&default, "kubernetes", self.api)
        );
        Self { auth, api }
    }

    fn target_of_port(self, port: u16) -> Option<SocketAddr> {
        match port {
            AUTH_PORT => self.auth,
            API_PORT => self.api,
            _ => None,
        }
    }
}

/// The address of a Service; the `known` one if the Service cannot be read.
async fn look_up_service(
    services: &Api<Service>,
    name: &str,
    known: Option<SocketAddr>,
) -> Option<SocketAddr> {
    match services.get_opt(name).await {
        Ok(service) => service.as_ref().and_then(service_address),
        Err(error) => {
            tracing::warn!(%error, name, "cannot look up a Service");
            known
        }
    }
}

fn service_address(service: &Service) -> Option<SocketAddr> {
    let spec = service.spec.as_ref()?;
    let port = u16::try_from(spec.ports.as_ref()?.first()?.port).ok()?;
    Some(SocketAddr::new(
        spec.cluster_ip.as_ref()?.parse().ok()?,
        port,
    ))
}

/// The clients of this gateway, and the addresses of the Services that they reach.
pub struct ClientRegistry<T> {
    clients: TunnelClients<T>,
    targets: watch::Sender<StreamTargets>,
    /// Stops looking Services up.
    look_up: Option<DropGuard>,
}

impl<T: Tunnel + 'static> ClientRegistry<T> {
    pub fn new(tunnel: Arc<T>) -> Self {
        let targets = watch::Sender::new(StreamTargets::default());
        Self {
            clients: TunnelClients::new(tunnel, targets.subscribe()),
            targets,
            look_up: None,
        }
    }

    /// Admits the clients in this list, and no others. Returns where the tunnel delivers the
    /// packets of each.
    pub fn admit_listed(
        &mut self,
        list: Option<&BTreeMap<String, String>>,
        client: &Client,
        namespace: &str,
    ) -> BTreeMap<PublicKey, InwardChannel> {
        let wanted = list.map(parse_list).unwrap_or_default();
        if wanted.is_empty() {
            self.look_up = None;
        } else if self.look_up.is_none() {
            let stop = CancellationToken::new();
            let look_up =
                refresh_targets(self.targets.clone(), client.clone(), namespace.to_owned());
            tokio::spawn(stop.clone().run_until_cancelled_owned(look_up));
            self.look_up = Some(stop.drop_guard());
        }
        self.clients.admit_clients(&wanted)
    }
}

async fn refresh_targets(targets: watch::Sender<StreamTargets>, client: Client, namespace: String) {
    loop {
        let known = *targets.borrow();
        let now = known.look_up(&client, &namespace).await;
        targets.send_replace(now);
        let is_complete = now.auth.is_some() && now.api.is_some();
        tokio::time::sleep(if is_complete {
            LOOK_UP_PERIOD
        } else {
            LOOK_UP_RETRY_DELAY
        })
        .await;
    }
}

/// The admitted clients.
struct TunnelClients<T> {
    shared: Arc<SharedByClients<T>>,
    admitted: BTreeMap<PublicKey, TunnelClient>,
    /// Whether the list was too long, so that the warning is logged once.
    are_too_many: bool,
}

struct SharedByClients<T> {
    tunnel: Arc<T>,
    targets: watch::Receiver<StreamTargets>,
    permits: AllPermits,
}

struct TunnelClient {
    scope: watch::Sender<ClientScope>,
    policy: watch::Sender<ListenPolicy>,
    inward: InwardChannel,
    _stop: DropGuard,
}

impl<T: Tunnel + 'static> TunnelClients<T> {
    fn new(tunnel: Arc<T>, targets: watch::Receiver<StreamTargets>) -> Self {
        let shared = Arc::new(SharedByClients {
            tunnel,
            targets,
            permits: AllPermits::new(),
        });
        Self {
            shared,
            admitted: BTreeMap::new(),
            are_too_many: false,
        }
    }

    /// Admits these clients and no others. Clients that stay only lose the streams that their scope
    /// no longer allows. If there are too many, those with a tenancy come first, then those that
    /// are already admitted.
    fn admit_clients(
        &mut self,
        wanted: &BTreeMap<PublicKey, ClientScope>,
    ) -> BTreeMap<PublicKey, InwardChannel> {
        let order: BTreeSet<_> = wanted
            .iter()
            .map(|(&key, &scope)| (scope, !self.admitted.contains_key(&key), key))
            .collect();
        let chosen: BTreeMap<PublicKey, ClientScope> = order
            .into_iter()
            .take(MAX_CLIENTS)
            .map(|(scope, _, key)| (key, scope))
            .collect();
        self.admitted.retain(|key, _| chosen.contains_key(key));
        for (&key, &scope) in &chosen {
            match self.admitted.get(&key) {
                Some(client) if *client.scope.borrow() == scope => {}
                Some(client) => {
                    client.scope.send_replace(scope);
                    client
                        .policy
                        .send_replace(self.shared.permits.listen_policy(scope));
                }
                None => {
                    let client = self.start_client(key, scope);
                    self.admitted.insert(key, client);
                }
            }
        }
        let are_too_many = wanted.len() > MAX_CLIENTS;
        if are_too_many && !self.are_too_many {
            tracing::warn!(
                wanted = wanted.len(),
                max = MAX_CLIENTS,
                "more tunnel clients are listed than this gateway serves"
            );
        }
        self.are_too_many = are_too_many;
        self.admitted
            .iter()
            .map(|(key, client)| (*key, client.inward.clone()))
            .collect()
    }

    fn start_client(&self, key: PublicKey, scope: ClientScope) -> TunnelClient {
        let (sender, packets) = mpsc::channel(MAX_WAITING_PACKETS);
        let policy = watch::Sender::new(self.shared.permits.listen_policy(scope));
        let scope = watch::Sender::new(scope);
        let stop = CancellationToken::new();
        let work = serve_client(
            self.shared.clone(),
            key,
            packets,
            scope.subscribe(),
            policy.subscribe(),
        );
        tokio::spawn(stop.clone().run_until_cancelled_owned(work));
        TunnelClient {
            scope,
            policy,
            inward: InwardChannel(sender),
            _stop: stop.drop_guard(),
        }
    }
}

/// Serves a client: it gets a session whenever it sends something.
async fn serve_client<T: Tunnel + 'static>(
    shared: Arc<SharedByClients<T>>,
    key: PublicKey,
    mut packets: mpsc::Receiver<Vec<u8>>,
    scope: watch::Receiver<ClientScope>,
    policy: watch::Receiver<ListenPolicy>,
) {
    while let Some(first) = packets.recv().await {
        let permits = shared.permits.permits_of_scope(*scope.borrow());
        let session = permits.sessions.free.try_acquire();
        permits.sessions.warn_if(session.is_err());
        let Ok(_session) = session else { continue };
        let (inside, mut outside) = PacketLink::pair();
        let (_, accepted) = Stack::start(StackRole::Server(policy.clone()), inside);
        let receive = async {
            let (mut limit, mut next) = (RateLimit::of_bytes(BYTE_RATE), Some(first));
            while let Some(packet) = next {
                limit.take_amount(packet_cost(&packet)).await;
                // No stack sends larger packets, and the queue's limit is a number of packets.
                if packet.len() <= MTU && outside.outgoing.send(packet).await.is_err() {
                    return;
                }
                next = timeout(IDLE_TIMEOUT, packets.recv()).await.ok().flatten();
            }
        };
        let send = async {
            let mut limit = RateLimit::of_bytes(BYTE_RATE);
            while let Some(packet) = outside.incoming.recv().await {
                limit.take_amount(packet_cost(&packet)).await;
                shared.tunnel.send(key, &packet);
            }
        };
        tokio::select! {
            () = receive => {}
            () = send => {}
            () = join_streams(accepted, shared.targets.clone(), policy.clone(), &permits.connections) => {}
        }
    }
}

fn packet_cost(packet: &[u8]) -> u32 {
    u32::try_from(packet.len())
        .unwrap_or(u32::MAX)
        .max(MIN_PACKET_COST)
}

/// Joins streams with connections to their Services, until the session ends.
async fn join_streams(
    mut accepted: mpsc::Receiver<IncomingStream>,
    targets: watch::Receiver<StreamTargets>,
    policy: watch::Receiver<ListenPolicy>,
    connections: &PermitPool,
) {
    let (mut streams, mut limit) = (JoinSet::new(), RateLimit::of_streams(STREAM_RATE));
    while let Some(IncomingStream {
        port,
        mut stream,
        permit,
    }) = accepted.recv().await
    {
        while streams.try_join_next().is_some() {}
        connections.warn_if(connections.free.available_permits() == 0);
        limit.take_amount(1).await;
        let target = targets.borrow().target_of_port(port);
        let mut policy = policy.clone();
        streams.spawn(async move {
            let joined = async {
                let target = target.ok_or_else(|| {
                    io::Error::new(io::ErrorKind::NotFound, "its Service is not known yet")
                })?;
                let mut service = timeout(CONNECT_TIMEOUT, TcpStream::connect(target)).await??;
                service.set_nodelay(true)?;
                copy_bidirectional(&mut stream, &mut service).await
            };
            let closed = policy.wait_for(|policy| !policy.ports.contains(&port));
            tokio::select! {
                joined = joined => if let Err(error) = joined {
                    tracing::debug!(%error, port, "a stream of a tunnel client ended");
                },
                _ = closed => {}
            }
            drop(permit);
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
    async fn services() -> (TcpListener, TcpListener, watch::Receiver<StreamTargets>) {
        let auth = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let targets = StreamTargets {
            auth: auth.local_addr().ok(),
            api: api.local_addr().ok(),
        };
        (auth, api, watch::channel(targets).1)
    }

    fn serve(
        policy: &watch::Sender<ListenPolicy>,
        targets: &watch::Receiver<StreamTargets>,
    ) -> Stack {
        let (near, far) = PacketLink::pair();
        let (_, accepted) = Stack::start(StackRole::Server(policy.subscribe()), far);
        let (targets, policy) = (targets.clone(), policy.subscribe());
        tokio::spawn(async move {
            join_streams(
                accepted,
                targets,
                policy,
                &PermitPool::new("connections", 1),
            )
            .await;
        });
        Stack::start(StackRole::Client, near).0
    }

    fn keys(count: usize) -> Vec<PublicKey> {
        let mut keys: Vec<_> = (0..count)
            .map(|_| PrivateKey::generate().public_key())
            .collect();
        keys.sort();
        keys
    }

    #[tokio::test]
    async fn an_invited_cluster_reaches_the_auth_endpoint_and_nothing_else() {
        let (auth, _api, targets) = services().await;
        for (scope, may_call_api) in [(ClientScope::Auth, false), (ClientScope::All, true)] {
            let policy = watch::Sender::new(AllPermits::new().listen_policy(scope));
            let near = serve(&policy, &targets);
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
        let permits = AllPermits::new();
        let policy = watch::Sender::new(permits.listen_policy(ClientScope::All));
        let near = serve(&policy, &targets);
        let mut of_api = near.connect(API_PORT).await.unwrap();
        let mut of_auth = near.connect(AUTH_PORT).await.unwrap();
        let (_api, mut auth) = (
            api.accept().await.unwrap().0,
            auth.accept().await.unwrap().0,
        );
        policy.send_replace(permits.listen_policy(ClientScope::Auth));
        assert!(matches!(of_api.read(&mut [0; 1]).await, Ok(0) | Err(_)));
        assert!(near.connect(API_PORT).await.is_err());
        auth.write_all(b"!").await.unwrap();
        assert_eq!(of_auth.read_u8().await.unwrap(), b'!');
    }

    #[tokio::test]
    async fn invited_clients_share_a_quota_and_take_nothing_from_those_with_a_tenancy() {
        let (auth, _api, targets) = services().await;
        let permits = AllPermits::new();
        let _others = permits
            .invited
            .connections
            .free
            .clone()
            .try_acquire_many_owned(95)
            .unwrap();
        let [invited, tenant] = [ClientScope::Auth, ClientScope::All]
            .map(|scope| watch::Sender::new(permits.listen_policy(scope)));
        let (invited, tenant) = (serve(&invited, &targets), serve(&tenant, &targets));
        let mut first = invited.connect(AUTH_PORT).await.unwrap();
        let mut served = auth.accept().await.unwrap().0;
        assert!(invited.connect(AUTH_PORT).await.is_err());
        drop(tenant.connect(AUTH_PORT).await.unwrap());
        served.write_all(b"!").await.unwrap();
        assert_eq!(first.read_u8().await.unwrap(), b'!');
    }

    #[tokio::test]
    async fn if_too_many_are_listed_those_with_a_tenancy_come_first_and_then_those_already_admitted()
     {
        let (_known, targets) = watch::channel(StreamTargets::default());
        let mut clients = TunnelClients::new(Arc::new(FakeTunnel::default()), targets);
        let keys = keys(MAX_CLIENTS + 2);
        let invited = |keys: &[PublicKey]| {
            keys.iter()
                .map(|&key| (key, ClientScope::Auth))
                .collect::<BTreeMap<_, _>>()
        };
        let first = clients.admit_clients(&invited(&keys[1..=MAX_CLIENTS]));
        assert_eq!(
            first,
            clients.admit_clients(&invited(&keys)),
            "a lower key is no better one"
        );
        let mut wanted = invited(&keys);
        wanted.insert(keys[MAX_CLIENTS + 1], ClientScope::All);
        let now = clients.admit_clients(&wanted);
        assert!(now.len() == MAX_CLIENTS && now.contains_key(&keys[MAX_CLIENTS + 1]));
    }

    #[tokio::test]
    async fn clients_that_stay_are_not_disturbed() {
        let (_known, targets) = watch::channel(StreamTargets::default());
        let mut clients = TunnelClients::new(Arc::new(FakeTunnel::default()), targets);
        let keys = [
            PrivateKey::generate().public_key(),
            PrivateKey::generate().public_key(),
        ];
        let first = clients.admit_clients(&keys.map(|key| (key, ClientScope::Auth)).into());
        let again = clients
            .admit_clients(&[(keys[0], ClientScope::All), (keys[1], ClientScope::Auth)].into());
        assert_eq!(first, again);
        assert!(clients.admit_clients(&BTreeMap::new()).is_empty());
    }

    #[test]
    fn entries_that_cannot_be_read_admit_nobody() {
        let key = HEXLOWER.encode(&PrivateKey::generate().public_key().0);
        let list = [
            (key.as_str(), "All"),
            ("zz", "All"),
            (&key[2..], "All"),
            (&key.to_uppercase(), "Everything"),
        ];
        let list = list
            .map(|(key, scope)| (key.to_owned(), scope.to_owned()))
            .into();
        assert_eq!(
            parse_list(&list).into_values().collect::<Vec<_>>(),
            [ClientScope::All]
        );
    }
}
