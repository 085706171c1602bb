//! A hostile API server on loopback, and the clients and watches that read it.

use std::{collections::BTreeSet, convert::Infallible, net::SocketAddr, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{ConnectInfo, RawQuery},
    routing::get,
};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Event, Secret};
use kube::{Api, api::ListParams, runtime::watcher};
use liqo_api::{Claimed, ClusterId, Key, ResourceOffer};
use liqo_controller_runtime::{
    Cache, ConnectionHealth, PeerConnection, Peers, Tcp,
    cache::{parsed_len, without_managed_fields},
    follow::{FollowedObject, follow_objects},
    network::{AddressFilter, Listener},
    provider_limits::{MAX_ANSWER_LEN, MAX_EVENT_ANSWER_LEN, MAX_OBJECTS, MAX_PAGE_LEN, MAX_PAGES},
    queue::error_chain,
    watch,
};
use parking_lot::Mutex;
use tokio::{
    net::TcpListener,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::*;

const SECRETS: &str = "/api/v1/namespaces/t/secrets";
const EVENTS: &str = "/api/v1/namespaces/t/events";
const SPACES: [u8; 4096] = [b' '; 4096];
const OFFERS: &str = "/apis/sharing.liqo.io/v1alpha1/namespaces/t/resourceoffers";

async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn connect(peers: &Peers, seed: u8, server: SocketAddr) -> PeerConnection {
    let id = ClusterId::of_public_key(&[seed; 32]);
    let limits = peers.limits_of(&id);
    let token = BearerToken::default();
    token.set("t").unwrap();
    let config = Config::new(format!("http://{server}").parse().unwrap());
    PeerConnection {
        cluster_id: id,
        cluster_name: "milan".into(),
        foreign_cluster: "milan".into(),
        client: peer_client(&Tcp::network(), config, token, limits.clone(), None).unwrap(),
        tenant_namespace: "t".into(),
        protocol_version: 1,
        health: watch::channel(ConnectionHealth::Reachable).1,
        limits,
        ended: CancellationToken::new(),
    }
}

fn secrets(connection: &PeerConnection) -> Cache<Secret> {
    let stop = connection.ended.child_token();
    Cache::watch_provider(
        connection,
        watcher::Config::default(),
        stop,
        parsed_len::<Secret>,
        |secret: Claimed<_>| without_managed_fields(secret.into_unverified()),
        |_, _, _| (),
    )
}

/// A body without an end.
fn endless(piece: &'static [u8]) -> Body {
    let piece = Bytes::from_static(piece);
    Body::from_stream(stream::repeat_with(move || {
        Ok::<_, Infallible>(piece.clone())
    }))
}

fn secret(name: usize) -> String {
    format!(r#"{{"metadata":{{"name":"s{name}","namespace":"t","resourceVersion":"1"}}}}"#)
}

fn page(items: &[String], token: &str) -> String {
    let items = items.join(",");
    format!(
        r#"{{"kind":"List","apiVersion":"v1","metadata":{{"resourceVersion":"1","continue":"{token}"}},"items":[{items}]}}"#
    )
}

fn is_watch(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.contains("watch=true"))
}

/// Waits until the provider has exceeded a limit.
async fn exceeded_by(connection: &PeerConnection) -> LimitExceeded {
    let limit = async {
        loop {
            if let Some(limit) = connection.limits.exceeded_lately(Instant::now()) {
                return limit;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_mins(1), limit)
        .await
        .expect("no limit")
}

async fn hostile_secrets(
    answer: impl Fn(Option<&str>) -> Body + Clone + Send + Sync + 'static,
) -> SocketAddr {
    let answer = move |RawQuery(query): RawQuery| {
        let body = answer(query.as_deref());
        async move { body }
    };
    serve(Router::new().route(SECRETS, get(answer)).route(
        &format!("{SECRETS}/{{name}}"),
        get(|| async { endless(&SPACES) }),
    ))
    .await
}

#[tokio::test]
async fn a_name_that_resolves_to_this_machine_is_not_called() {
    let server = hostile_secrets(|_| Body::from(page(&[secret(1)], ""))).await;
    let connection = connect(&Peers::default(), 1, server);
    let secrets: Api<Secret> = Api::namespaced(connection.client.clone(), "t");
    assert_eq!(
        secrets
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .len(),
        1
    );
    // The name of the grant is checked before; this one stands for any name with such an address.
    let config = Config::new(
        format!("http://localhost:{}", server.port())
            .parse()
            .unwrap(),
    );
    let by_name = peer_client(
        &Tcp::network(),
        config,
        BearerToken::default(),
        connection.limits.clone(),
        None,
    )
    .unwrap();
    let error = Api::<Secret>::namespaced(by_name, "t")
        .list(&ListParams::default())
        .await
        .unwrap_err();
    assert!(
        error_chain(&error).contains("localhost resolves to"),
        "{}",
        error_chain(&error)
    );
}

#[tokio::test]
async fn an_answer_without_end_is_cut() {
    let connection = connect(
        &Peers::default(),
        1,
        hostile_secrets(|_| endless(&SPACES)).await,
    );
    let cache = secrets(&connection);
    assert_eq!(
        exceeded_by(&connection).await,
        LimitExceeded::AnswerLen(MAX_PAGE_LEN)
    );
    assert!(!cache.is_synced());

    let connection = connect(
        &Peers::default(),
        1,
        hostile_secrets(|_| endless(&SPACES)).await,
    );
    let one: Api<Secret> = Api::namespaced(connection.client.clone(), "t");
    assert!(one.get("a").await.is_err());
    assert_eq!(
        exceeded_by(&connection).await,
        LimitExceeded::AnswerLen(MAX_ANSWER_LEN)
    );
}

#[tokio::test]
async fn an_object_of_tiny_values_is_not_parsed() {
    let tiny = format!(
        r#"{{"metadata":{{"name":"a","resourceVersion":"1"}},"data":[{}]}}"#,
        "[],".repeat(100_000) + "[]"
    );
    let list = page(std::slice::from_ref(&tiny), "");
    let server = Router::new()
        .route(SECRETS, get(move || async move { list }))
        .route(&format!("{SECRETS}/a"), get(move || async move { tiny }));
    let server = serve(server).await;
    let connection = connect(&Peers::default(), 1, server);
    let one: Api<Secret> = Api::namespaced(connection.client.clone(), "t");
    assert!(one.get("a").await.is_err());
    assert_eq!(exceeded_by(&connection).await, LimitExceeded::Values);

    let connection = connect(&Peers::default(), 1, server);
    let cache = secrets(&connection);
    assert_eq!(exceeded_by(&connection).await, LimitExceeded::Values);
    let synced = timeout(Duration::from_millis(200), cache.wait_until_synced()).await;
    assert!(
        synced.is_err(),
        "the list would be complete without the object"
    );
}

#[tokio::test]
async fn an_object_that_grows_beyond_the_limit_does_not_count_as_deleted() {
    let values = "[],".repeat(100_000) + "[]";
    let object = format!(
        r#"{{"metadata":{{"name":"s1","namespace":"t","resourceVersion":"2"}},"data":[{values}]}}"#
    );
    let grown = format!(r#"{{"type":"MODIFIED","object":{object}}}"#) + "\n";
    let answer = move |query: Option<&str>| {
        if is_watch(query) {
            Body::from(grown.clone())
        } else {
            Body::from(page(&[secret(1)], ""))
        }
    };
    let connection = connect(&Peers::default(), 1, hostile_secrets(answer).await);
    let cache = secrets(&connection);
    assert!(cache.wait_until_synced().await);
    assert_eq!(exceeded_by(&connection).await, LimitExceeded::Values);
    assert!(
        cache.get(&Key::new("t", "s1")).is_some(),
        "the last state that was read stays"
    );
}

#[tokio::test]
async fn a_page_of_many_tiny_objects_is_not_parsed() {
    let tiny = page(&vec![r#"{"metadata":{}}"#.to_owned(); 100_000], "");
    let connection = connect(
        &Peers::default(),
        1,
        hostile_secrets(move |_| Body::from(tiny.clone())).await,
    );
    let cache = secrets(&connection);
    assert_eq!(exceeded_by(&connection).await, LimitExceeded::PageObjects);
    assert!(!cache.is_synced());
}

#[tokio::test]
async fn a_list_without_end_is_given_up() {
    let connection = connect(
        &Peers::default(),
        1,
        hostile_secrets(|_| Body::from(page(&[], "more"))).await,
    );
    let api: Api<Secret> = Api::namespaced(connection.client.clone(), "t");
    let first = kube::api::ListParams::default().limit(16);
    let next = first.clone().continue_token("more");
    assert!(api.list(&first).await.is_ok() && api.list(&next).await.is_ok());
    // As many pages as are allowed, counted here only: the pace would make this test slow.
    for _ in 2..MAX_PAGES {
        connection
            .limits
            .count_page(&format!("{SECRETS}?&limit=16"), false)
            .unwrap();
    }
    assert!(api.list(&next).await.is_err());
    assert_eq!(exceeded_by(&connection).await, LimitExceeded::Pages);
    assert!(api.list(&first).await.is_ok(), "a new list begins again");
}

#[tokio::test]
async fn objects_without_number_are_not_kept() {
    // Each page has other objects.
    let next = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let server = hostile_secrets(move |_| {
        let first = next.fetch_add(1_000, std::sync::atomic::Ordering::Relaxed);
        Body::from(page(
            &(first..first + 1_000).map(secret).collect::<Vec<_>>(),
            "more",
        ))
    });
    let connection = connect(&Peers::default(), 1, server.await);
    let cache = secrets(&connection);
    assert_eq!(exceeded_by(&connection).await, LimitExceeded::Objects);
    assert!(cache.all().is_empty() && connection.limits.kept_amount().objects <= MAX_OBJECTS);
}

#[tokio::test]
async fn a_watch_of_endless_events_keeps_so_many_objects_and_those_that_it_had() {
    let server = hostile_secrets(|query| {
        if !is_watch(query) {
            return Body::from(page(&[secret(0)], ""));
        }
        let events = stream::iter(0..).map(|name| {
            let event = format!("{{\"type\":\"ADDED\",\"object\":{}}}\n", secret(name));
            Ok::<_, Infallible>(Bytes::from(event))
        });
        Body::from_stream(events)
    });
    let connection = connect(&Peers::default(), 1, server.await);
    let cache = secrets(&connection);
    assert_eq!(exceeded_by(&connection).await, LimitExceeded::Objects);
    assert_eq!(
        (cache.all().len(), connection.limits.kept_amount().objects),
        (MAX_OBJECTS, MAX_OBJECTS)
    );
}

#[tokio::test]
async fn an_event_without_end_is_cut() {
    let server = hostile_secrets(|query| {
        if is_watch(query) {
            endless(&SPACES)
        } else {
            Body::from(page(&[secret(0)], ""))
        }
    });
    let connection = connect(&Peers::default(), 1, server.await);
    let cache = secrets(&connection);
    assert_eq!(
        exceeded_by(&connection).await,
        LimitExceeded::AnswerLen(MAX_ANSWER_LEN)
    );
    assert_eq!(cache.all().len(), 1, "what was read before stays");
}

/// A provider with Kubernetes events: `list` answers lists of pages, `watch` a watch from the
/// beginning. The version is 77 now, and later there is one more event.
async fn hostile_events(
    list: impl Fn() -> Body + Clone + Send + Sync + 'static,
    watch: fn() -> Body,
) -> SocketAddr {
    let answer = move |RawQuery(query): RawQuery| {
        let (list, query) = (list.clone(), query.unwrap_or_default());
        async move {
            match (is_watch(Some(&query)), query.contains("resourceVersion=77")) {
                (true, true) => Body::from(format!(
                    "{{\"type\":\"ADDED\",\"object\":{}}}\n",
                    event("late", "78")
                )),
                (true, false) => watch(),
                (false, _) if query.split('&').any(|pair| pair == "limit=1") => {
                    Body::from(page(&[event("one", "5")], "more").replacen(
                        r#""resourceVersion":"1""#,
                        r#""resourceVersion":"77""#,
                        1,
                    ))
                }
                (false, _) => list(),
            }
        }
    };
    let secrets = |RawQuery(query): RawQuery| async move {
        if is_watch(query.as_deref()) {
            Body::empty()
        } else {
            Body::from(page(&[secret(0)], ""))
        }
    };
    serve(
        Router::new()
            .route(EVENTS, get(answer))
            .route(SECRETS, get(secrets)),
    )
    .await
}

fn event(name: &str, version: &str) -> String {
    let metadata = format!(r#"{{"name":"{name}","namespace":"t","resourceVersion":"{version}"}}"#);
    format!(r#"{{"metadata":{metadata},"involvedObject":{{}}}}"#)
}

/// Follows the events until the one that is new after some were skipped. Returns the limit, and the
/// names of the others.
async fn followed(connection: &PeerConnection) -> (LimitExceeded, Vec<String>) {
    let events: Api<Event> = Api::namespaced(connection.client.clone(), "t");
    let mut followed = follow_objects(
        events,
        watcher::Config::default(),
        connection.limits.clone(),
    );
    let (mut limit, mut names) = (None, Vec::new());
    let late = async {
        while let Some(followed) = followed.next().await {
            match followed {
                FollowedObject::Skipped(exceeded) => limit = Some(exceeded),
                FollowedObject::Object(event) if event.metadata.name.as_deref() == Some("late") => {
                    return;
                }
                FollowedObject::Object(event) => names.extend(event.metadata.name),
            }
        }
    };
    timeout(Duration::from_mins(1), late)
        .await
        .expect("no new event");
    (limit.expect("no limit"), names)
}

#[tokio::test]
async fn more_events_than_are_read_are_skipped_and_the_provider_counts_as_before() {
    let server = hostile_events(
        || Body::from(page(&[event("old", "5")], "more")),
        Body::empty,
    )
    .await;
    let connection = connect(&Peers::default(), 1, server);
    let (limit, names) = followed(&connection).await;
    assert_eq!(
        (limit, names.len()),
        (LimitExceeded::Pages, MAX_PAGES),
        "those that were read before the limit count"
    );
    assert_eq!(
        connection.limits.exceeded_lately(Instant::now()),
        None,
        "PeerReachable would be False"
    );
    let cache = secrets(&connection);
    assert!(
        timeout(Duration::from_secs(10), cache.wait_until_synced())
            .await
            .unwrap(),
        "other objects are read"
    );
}

#[tokio::test]
async fn kubernetes_events_of_any_length_are_cut_and_newer_ones_are_read() {
    let cut = LimitExceeded::AnswerLen(MAX_EVENT_ANSWER_LEN);
    let connection = connect(
        &Peers::default(),
        1,
        hostile_events(|| endless(&SPACES), Body::empty).await,
    );
    assert_eq!(followed(&connection).await, (cut, Vec::new()), "in a list");
    let listed = || Body::from(page(&[event("old", "5")], ""));
    let connection = connect(
        &Peers::default(),
        1,
        hostile_events(listed, || endless(&SPACES)).await,
    );
    assert_eq!(
        followed(&connection).await,
        (cut, vec!["old".to_owned()]),
        "in a watch"
    );
    assert_eq!(connection.limits.exceeded_lately(Instant::now()), None);
}

#[tokio::test]
async fn one_page_is_read_at_a_time_and_a_slow_one_holds_up_no_other_provider() {
    // One byte a second.
    let slow = || {
        Body::from_stream(stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, Infallible>(Bytes::from_static(b" ")), ()))
        }))
    };
    let offers = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let asked = offers.clone();
    let offers_of = move || {
        asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        async { page(&[], "") }
    };
    let server = Router::new()
        .route(SECRETS, get(move || async move { slow() }))
        .route(OFFERS, get(offers_of));
    let peers = Peers::default();
    let hostile = connect(&peers, 1, serve(server).await);
    let _secrets = secrets(&hostile);
    while hostile.limits.pages.available_permits() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let api: Api<ResourceOffer> = Api::namespaced(hostile.client.clone(), "t");
    let parameters = kube::api::ListParams::default().limit(16);
    assert!(
        timeout(Duration::from_millis(300), api.list(&parameters))
            .await
            .is_err()
    );
    assert_eq!(
        offers.load(std::sync::atomic::Ordering::Relaxed),
        0,
        "two pages of a provider are read at the same time"
    );

    let honest = connect(
        &peers,
        2,
        hostile_secrets(|query| {
            if is_watch(query) {
                Body::empty()
            } else {
                Body::from(page(&[secret(0)], ""))
            }
        })
        .await,
    );
    let cache = secrets(&honest);
    assert!(
        timeout(Duration::from_secs(10), cache.wait_until_synced())
            .await
            .unwrap()
    );
    assert_eq!(honest.limits.exceeded_lately(Instant::now()), None);
}

#[tokio::test]
async fn a_peering_ends_while_its_provider_sends_without_end() {
    let server = hostile_secrets(|query| {
        if !is_watch(query) {
            return Body::from(page(&[secret(0)], ""));
        }
        endless(
            b"{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"name\":\"s0\",\"namespace\":\"t\",\"resourceVersion\":\"1\"}}}\n",
        )
    });
    let peers = Peers::default();
    let connection = connect(&peers, 1, server.await);
    let (limits, id) = (connection.limits.clone(), connection.cluster_id.clone());
    let cache = secrets(&connection);
    assert!(
        timeout(Duration::from_secs(10), cache.wait_until_synced())
            .await
            .unwrap()
    );
    peers.publish(connection);
    peers.withdraw(&id);
    let ended = async {
        while limits.kept_amount().objects > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(10), ended)
        .await
        .expect("the watch goes on");
}

#[tokio::test]
async fn a_long_log_is_read_to_its_end() {
    let long = "x".repeat(MAX_PAGE_LEN + 1);
    let server = serve(Router::new().route(
        "/api/v1/namespaces/m/pods/p/log",
        get(move || async move { long }),
    ))
    .await;
    let connection = connect(&Peers::default(), 1, server);
    let request = Request::get("/api/v1/namespaces/m/pods/p/log")
        .body(Vec::new())
        .unwrap();
    assert_eq!(
        connection.client.request_text(request).await.unwrap().len(),
        MAX_PAGE_LEN + 1
    );
}

/// A network on which nobody answers.
#[derive(Debug)]
struct Silent;

impl Network for Silent {
    fn connect(
        &self,
        _: &str,
        _: u16,
        _: AddressFilter,
    ) -> BoxFuture<'static, io::Result<(BoxNetworkStream, SocketAddr)>> {
        Box::pin(std::future::pending())
    }

    fn listen(&self, _: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_takes_too_long_is_given_up() {
    let mut config = Config::new("https://api.milan.example".parse().unwrap());
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    let limits = Peers::default().limits_of(&ClusterId::of_public_key(&[1; 32]));
    let network: Arc<dyn Network> = Arc::new(Silent);
    let started = Instant::now();
    let unanswered = peer_client(&network, config, BearerToken::default(), limits, None).unwrap();
    let error = Api::<Secret>::namespaced(unanswered, "t")
        .list(&ListParams::default())
        .await
        .unwrap_err();
    assert!(
        error_chain(&error).contains("no connection within 3s"),
        "{}",
        error_chain(&error)
    );
    assert_eq!(started.elapsed(), CONNECT_TIMEOUT);
}

#[tokio::test]
async fn an_idle_connection_ends_by_the_clock_that_tests_steer() {
    let callers = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = callers.clone();
    let answer = move |ConnectInfo(caller): ConnectInfo<SocketAddr>| async move {
        seen.lock().insert(caller);
        page(&[secret(0)], "")
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let router = Router::new()
        .route(SECRETS, get(answer))
        .into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let secrets = Api::<Secret>::namespaced(connect(&Peers::default(), 1, server).client, "t");
    for _ in 0..2 {
        secrets.list(&ListParams::default()).await.unwrap();
    }
    assert_eq!(
        callers.lock().len(),
        1,
        "the second request uses the connection of the first one"
    );
    tokio::time::pause();
    tokio::time::advance(Duration::from_mins(2)).await;
    tokio::time::resume();
    secrets.list(&ListParams::default()).await.unwrap();
    assert_eq!(callers.lock().len(), 2);
}
