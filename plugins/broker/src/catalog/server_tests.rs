//! The catalog over real sockets, with an API server in memory.

use std::{
    collections::{BTreeSet, HashMap},
    convert::Infallible,
    net::Ipv4Addr,
    sync::atomic::{AtomicUsize, Ordering},
    time::SystemTime,
};

use http_body_util::Full;
use liqo_api::{ClusterId, ForeignCluster, ResourceOffer};
use liqo_signing::{ClusterIdentity, sign_in};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, from_str, from_value};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpSocket,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::sync::DropGuard;

use super::*;
use crate::catalog::{connections::MAX_PER_ADDRESS, entry_of};

/// An API server whose tokens are the names of their users, and the number of its answers. All
/// users but `stranger` may read, and the group of customers. The token `elsewhere` is for another
/// audience, and whoever checks `unaware` ignores audiences.
fn api_server() -> (Client, Arc<AtomicUsize>) {
    let answers = Arc::new(AtomicUsize::new(0));
    let count = answers.clone();
    let answer = move |request: http::Request<kube::client::Body>| {
        count.fetch_add(1, Ordering::Relaxed);
        judge(request)
    };
    (Client::new(tower::service_fn(answer), "default"), answers)
}

async fn judge(
    request: http::Request<kube::client::Body>,
) -> Result<http::Response<Full<axum::body::Bytes>>, Infallible> {
    let is_token = request.uri().path().ends_with("/tokenreviews");
    let mut object: Value =
        serde_json::from_slice(&request.into_body().collect_bytes().await.unwrap()).unwrap();
    let spec = &object["spec"];
    object["status"] = if is_token {
        let token = spec["token"].as_str().unwrap();
        let (is_known, audiences) = match token {
            "reader" | "stranger" => (true, spec["audiences"].clone()),
            "elsewhere" => (true, json!(["elsewhere"])),
            "unaware" => (true, Value::Null),
            _ => (false, Value::Null),
        };
        json!({ "authenticated": is_known, "audiences": audiences, "user": { "username": token } })
    } else {
        let wanted = json!({ "path": OFFERS, "verb": "get" });
        let may_read = if spec["user"].as_str().unwrap().starts_with("liqo:cluster:") {
            spec["groups"] == json!(["liqo:customers"])
        } else {
            spec["user"] != "stranger"
        };
        json!({ "allowed": may_read && spec["nonResourceAttributes"] == wanted })
    };
    Ok(http::Response::new(Full::from(object.to_string())))
}

/// The catalog of milan, which has one offer and knows these clusters.
#[derive(Default)]
struct OneOffer(HashMap<ClusterId, Arc<ForeignCluster>>);

fn milan() -> ClusterId {
    ClusterId::of_public_key(&[9; 32])
}

impl KnownClusters for OneOffer {
    fn own_id(&self) -> Option<ClusterId> {
        Some(milan())
    }

    fn record(&self, id: &ClusterId) -> Option<Arc<ForeignCluster>> {
        self.0.get(id).cloned()
    }
}

impl CatalogSource for OneOffer {
    fn entries(&self) -> Vec<Entry> {
        let id = ClusterId::of_public_key(&[1; 32]);
        let spec =
            json!({ "clusterID": id, "pool": "gold", "resourceQuota": { "hard": { "cpu": "4" } } });
        entry_of(
            &ResourceOffer::new("gold", from_value(spec).unwrap()),
            None,
            None,
        )
        .into_iter()
        .collect()
    }
}

struct Served {
    address: SocketAddr,
    connector: TlsConnector,
    /// Number of answers of the API server.
    asked: Arc<AtomicUsize>,
    _stop: DropGuard,
}

impl Served {
    async fn start() -> Self {
        Self::start_with(OneOffer::default()).await
    }

    async fn start_with(offered: OneOffer) -> Self {
        let certified = CatalogCertificate::self_signed(vec!["localhost".to_owned()]).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certified.chain[0].clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let connector = TlsConnector::from(Arc::new(
            versions.with_root_certificates(roots).with_no_client_auth(),
        ));
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (client, asked) = api_server();
        let catalog = Catalog::bind(local, certified, client, offered)
            .await
            .unwrap();
        let (address, stop) = (catalog.address().unwrap(), CancellationToken::new());
        tokio::spawn(catalog.run(stop.clone()));
        Self {
            address,
            connector,
            asked,
            _stop: stop.drop_guard(),
        }
    }

    /// A connection from this address.
    async fn connect(&self, from: Ipv4Addr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    async fn handshake(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.connector
            .connect("localhost".try_into().unwrap(), stream)
            .await
    }

    /// Status and body of the answer.
    async fn ask(&self, method: &str, path: &str, token: Option<&str>) -> (u16, Value) {
        self.ask_on(self.connect(Ipv4Addr::LOCALHOST).await, method, path, token)
            .await
    }

    async fn ask_on(
        &self,
        stream: TcpStream,
        method: &str,
        path: &str,
        token: Option<&str>,
    ) -> (u16, Value) {
        let bearer = token.map(|token| format!("Bearer {token}"));
        self.ask_as(stream, method, path, bearer.as_deref()).await
    }

    async fn ask_as(
        &self,
        stream: TcpStream,
        method: &str,
        path: &str,
        authorization: Option<&str>,
    ) -> (u16, Value) {
        let mut stream = self.handshake(stream).await.unwrap();
        let authorization = authorization
            .map(|value| format!("authorization: {value}\r\n"))
            .unwrap_or_default();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{authorization}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (
            head.split(' ').nth(1).unwrap().parse().unwrap(),
            from_str(body).unwrap_or_default(),
        )
    }
}

#[tokio::test]
async fn only_a_token_with_the_right_reads_offers() {
    let served = Served::start().await;
    let (status, page) = served.ask("GET", OFFERS, Some("reader")).await;
    assert_eq!(
        (
            status,
            &page["total"],
            &page["offers"][0]["capacity"]["cpu"]
        ),
        (200, &json!(1), &json!("4")),
        "{page}"
    );
    let refused = [
        ("unknown", 401),
        ("elsewhere", 401),
        ("unaware", 401),
        ("stranger", 403),
    ];
    for (token, expected) in refused
        .map(|(token, expected)| (Some(token), expected))
        .into_iter()
        .chain([(None, 401)])
    {
        let (status, body) = served.ask("GET", OFFERS, token).await;
        assert_eq!(
            (status, body["offers"].is_null()),
            (expected, true),
            "{token:?}: {body}"
        );
    }
}

/// The record of a cluster in milan.
fn record(
    cluster: &ClusterIdentity,
    incoming: &str,
    authorized: &str,
) -> (ClusterId, Arc<ForeignCluster>) {
    let condition = json!({ "type": "ConsumerAuthorized", "status": authorized, "reason": "R", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let object = json!({ "metadata": { "name": "peer" }, "spec": { "clusterID": cluster.id(), "incomingPeering": incoming },
        "status": { "conditions": [condition] } });
    (cluster.id().clone(), Arc::new(from_value(object).unwrap()))
}

#[tokio::test]
async fn a_customer_reads_offers_with_its_key_and_no_other_cluster_does() {
    let [rome, refused, waiting, stranger] = [(); 4].map(|()| ClusterIdentity::generate().unwrap());
    let known = [
        record(&rome, "Auto", "True"),
        record(&refused, "No", "True"),
        record(&waiting, "Auto", "False"),
    ];
    let served = Served::start_with(OneOffer(known.into())).await;
    let ask = async |header: &str| {
        let stream = served.connect(Ipv4Addr::LOCALHOST).await;
        let (status, body) = served.ask_as(stream, "GET", OFFERS, Some(header)).await;
        (
            status,
            body["offers"][0]["pool"] == "gold",
            body["error"].as_str().unwrap_or_default().to_owned(),
        )
    };
    let now = SystemTime::now();
    let sign =
        |cluster: &ClusterIdentity| sign_in::authorization_header(cluster, &milan(), now).unwrap();

    assert_eq!(ask(&sign(&rome)).await, (200, true, String::new()));
    assert_eq!(
        served.asked.load(Ordering::Relaxed),
        1,
        "whether rome may read"
    );
    for (cluster, problem) in [
        (&refused, "does not lend to"),
        (&waiting, "does not borrow from"),
        (&stranger, "does not know"),
    ] {
        let (status, has_offers, error) = ask(&sign(cluster)).await;
        assert!(
            (status, has_offers) == (403, false)
                && error.contains(problem)
                && error.contains(cluster.id().as_str()),
            "{error}"
        );
    }
    let (long, hour) = (
        format!("{} {}", sign_in::SCHEME, "A".repeat(sign_in::MAX_LEN + 1)),
        Duration::from_hours(1),
    );
    let tampered = sign(&rome).replace("LiqoCluster e", "LiqoCluster f");
    let for_turin = sign_in::authorization_header(&rome, stranger.id(), now).unwrap();
    let [old, future] = [now - hour, now + hour]
        .map(|time| sign_in::authorization_header(&rome, &milan(), time).unwrap());
    for (header, problem) in [
        (long, "longer"),
        (tampered, "malformed"),
        (for_turin, "another cluster"),
        (old, "s old"),
        (future, "future"),
    ] {
        let (status, has_offers, error) = ask(&header).await;
        assert!(
            (status, has_offers) == (401, false) && error.contains(problem),
            "{problem}: {status} {error}"
        );
    }
    assert_eq!(
        served.asked.load(Ordering::Relaxed),
        1,
        "the API server is not asked about the others"
    );
}

#[tokio::test]
async fn criteria_count_and_mistyped_ones_are_refused() {
    let served = Served::start().await;
    let query = |query: &str| format!("{OFFERS}?{query}");
    assert_eq!(
        served
            .ask("GET", &query("capacity=cpu=8"), Some("reader"))
            .await
            .1["total"],
        0
    );
    for wrong in [
        "maxprice=cpu=1",
        "sort=price",
        "limit=1000",
        "accepted=perhaps",
    ] {
        let (status, body) = served.ask("GET", &query(wrong), Some("reader")).await;
        assert_eq!(status, 400, "{wrong}: {body}");
        assert!(body["error"].is_string());
        assert_eq!(
            served.ask("GET", &query(wrong), None).await.0,
            401,
            "strangers learn nothing"
        );
    }
}

#[tokio::test]
async fn nothing_can_be_written_and_requests_are_bounded() {
    let served = Served::start().await;
    assert_eq!(served.ask("POST", OFFERS, Some("reader")).await.0, 405);
    assert_eq!(
        served.ask("GET", "/api/v1/secrets", Some("reader")).await.0,
        404
    );
    let mut statuses = BTreeSet::new();
    for _ in 0..40 {
        statuses.insert(served.ask("GET", OPENAPI, None).await.0);
    }
    // On a slow machine the caller never gets to its limit.
    assert!(
        statuses.contains(&200) && statuses.is_subset(&BTreeSet::from([200, 429])),
        "{statuses:?}"
    );
}

#[tokio::test]
async fn one_address_does_not_hold_the_places_of_others() {
    let served = Served::start().await;
    let mut idle = Vec::new();
    for _ in 0..=MAX_CONNECTIONS {
        idle.push(served.connect(Ipv4Addr::LOCALHOST).await);
    }
    for mut further in idle.split_off(MAX_PER_ADDRESS) {
        // Others are closed only after `TIMEOUT`.
        let read = timeout(TIMEOUT / 2, further.read(&mut [0]))
            .await
            .expect("the connection is closed");
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
    let other = served.connect(Ipv4Addr::new(127, 0, 0, 2)).await;
    assert_eq!(
        served.ask_on(other, "GET", OFFERS, Some("reader")).await.0,
        200
    );
    let last = idle.pop().unwrap();
    assert_eq!(
        served.ask_on(last, "GET", OFFERS, Some("reader")).await.0,
        200,
        "it was let in"
    );

    // The server notices a bit later that connections are closed.
    drop(idle);
    let again = async {
        while served
            .handshake(served.connect(Ipv4Addr::LOCALHOST).await)
            .await
            .is_err()
        {}
    };
    timeout(TIMEOUT / 2, again)
        .await
        .expect("the address may connect again");
}

#[tokio::test]
async fn the_description_names_every_parameter() {
    let served = Served::start().await;
    let (status, document) = served.ask("GET", OPENAPI, None).await;
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    let described = document["paths"][OFFERS]["get"]["parameters"]
        .as_array()
        .unwrap()
        .iter();
    let described: BTreeSet<&str> = described
        .map(|parameter| parameter["name"].as_str().unwrap())
        .collect();
    // serde's error lists the fields.
    let error = from_value::<Parameters>(json!({ "unknown": 1 }))
        .unwrap_err()
        .to_string();
    let known: BTreeSet<&str> = error.split('`').skip(3).step_by(2).collect();
    assert_eq!(described, known, "{error}");
}
