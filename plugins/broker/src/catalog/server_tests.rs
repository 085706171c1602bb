//! The catalog over real sockets, with an API server in memory.

use std::{collections::BTreeSet, net::Ipv4Addr};

use http_body_util::Full;
use liqo_api::ResourceOffer;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, from_str, from_value};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpSocket,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::sync::DropGuard;

use super::*;
use crate::catalog::connections::MAX_PER_ADDRESS;

/// An API server whose tokens are the names of their users. All but `stranger` may read. The token `elsewhere` is for another
/// audience, and whoever checks `unaware` ignores audiences.
fn api_server() -> Client {
    let answer = |request: http::Request<kube::client::Body>| async move {
        let is_token = request.uri().path().ends_with("/tokenreviews");
        let mut object: Value = serde_json::from_slice(&request.into_body().collect_bytes().await.unwrap()).unwrap();
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
            let is_allowed = spec["user"] != "stranger" && spec["nonResourceAttributes"] == wanted;
            json!({ "allowed": is_allowed })
        };
        Ok::<_, Infallible>(http::Response::new(Full::<axum::body::Bytes>::from(object.to_string())))
    };
    Client::new(tower::service_fn(answer), "default")
}

struct OneOffer;

impl Offered for OneOffer {
    fn entries(&self) -> Vec<Entry> {
        let id = liqo_api::ClusterId::of_public_key(&[1; 32]);
        let spec = json!({ "clusterID": id, "pool": "gold", "resourceQuota": { "hard": { "cpu": "4" } } });
        Entry::of(&ResourceOffer::new("gold", from_value(spec).unwrap()), None, None).into_iter().collect()
    }
}

struct Served {
    address: SocketAddr,
    connector: TlsConnector,
    _stop: DropGuard,
}

impl Served {
    async fn start() -> Self {
        let certified = Certified::self_signed(vec!["localhost".to_owned()]).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certified.chain[0].clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let connector = TlsConnector::from(Arc::new(versions.with_root_certificates(roots).with_no_client_auth()));
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let catalog = Catalog::bind(local, certified, api_server(), OneOffer).await.unwrap();
        let (address, stop) = (catalog.address().unwrap(), CancellationToken::new());
        tokio::spawn(catalog.run(stop.clone()));
        Self { address, connector, _stop: stop.drop_guard() }
    }

    /// A connection from this address.
    async fn connect(&self, from: Ipv4Addr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    async fn handshake(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.connector.connect("localhost".try_into().unwrap(), stream).await
    }

    /// Status and body of the answer.
    async fn ask(&self, method: &str, path: &str, token: Option<&str>) -> (u16, Value) {
        self.ask_on(self.connect(Ipv4Addr::LOCALHOST).await, method, path, token).await
    }

    async fn ask_on(&self, stream: TcpStream, method: &str, path: &str, token: Option<&str>) -> (u16, Value) {
        let mut stream = self.handshake(stream).await.unwrap();
        let authorization = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{authorization}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), from_str(body).unwrap_or_default())
    }
}

#[tokio::test]
async fn only_a_token_with_the_right_reads_offers() {
    let served = Served::start().await;
    let (status, page) = served.ask("GET", OFFERS, Some("reader")).await;
    assert_eq!((status, &page["total"], &page["offers"][0]["capacity"]["cpu"]), (200, &json!(1), &json!("4")), "{page}");
    let refused = [("unknown", 401), ("elsewhere", 401), ("unaware", 401), ("stranger", 403)];
    for (token, expected) in refused.map(|(token, expected)| (Some(token), expected)).into_iter().chain([(None, 401)]) {
        let (status, body) = served.ask("GET", OFFERS, token).await;
        assert_eq!((status, body["offers"].is_null()), (expected, true), "{token:?}: {body}");
    }
}

#[tokio::test]
async fn criteria_count_and_mistyped_ones_are_refused() {
    let served = Served::start().await;
    let query = |query: &str| format!("{OFFERS}?{query}");
    assert_eq!(served.ask("GET", &query("capacity=cpu=8"), Some("reader")).await.1["total"], 0);
    for wrong in ["maxprice=cpu=1", "sort=price", "limit=1000", "accepted=perhaps"] {
        let (status, body) = served.ask("GET", &query(wrong), Some("reader")).await;
        assert_eq!(status, 400, "{wrong}: {body}");
        assert!(body["error"].is_string());
        assert_eq!(served.ask("GET", &query(wrong), None).await.0, 401, "strangers learn nothing");
    }
}

#[tokio::test]
async fn nothing_can_be_written_and_requests_are_bounded() {
    let served = Served::start().await;
    assert_eq!(served.ask("POST", OFFERS, Some("reader")).await.0, 405);
    assert_eq!(served.ask("GET", "/api/v1/secrets", Some("reader")).await.0, 404);
    let mut statuses = BTreeSet::new();
    for _ in 0..40 {
        statuses.insert(served.ask("GET", OPENAPI, None).await.0);
    }
    // On a slow machine the caller never gets to its limit.
    assert!(statuses.contains(&200) && statuses.is_subset(&BTreeSet::from([200, 429])), "{statuses:?}");
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
        let read = timeout(TIMEOUT / 2, further.read(&mut [0])).await.expect("the connection is closed");
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
    let other = served.connect(Ipv4Addr::new(127, 0, 0, 2)).await;
    assert_eq!(served.ask_on(other, "GET", OFFERS, Some("reader")).await.0, 200);
    let last = idle.pop().unwrap();
    assert_eq!(served.ask_on(last, "GET", OFFERS, Some("reader")).await.0, 200, "it was let in");

    // The server notices a bit later that connections are closed.
    drop(idle);
    let again = async { while served.handshake(served.connect(Ipv4Addr::LOCALHOST).await).await.is_err() {} };
    timeout(TIMEOUT / 2, again).await.expect("the address may connect again");
}

#[tokio::test]
async fn the_description_names_every_parameter() {
    let served = Served::start().await;
    let (status, document) = served.ask("GET", OPENAPI, None).await;
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    let described = document["paths"][OFFERS]["get"]["parameters"].as_array().unwrap().iter();
    let described: BTreeSet<&str> = described.map(|parameter| parameter["name"].as_str().unwrap()).collect();
    // serde's error lists the fields.
    let error = from_value::<Parameters>(json!({ "unknown": 1 })).unwrap_err().to_string();
    let known: BTreeSet<&str> = error.split('`').skip(3).step_by(2).collect();
    assert_eq!(described, known, "{error}");
}
