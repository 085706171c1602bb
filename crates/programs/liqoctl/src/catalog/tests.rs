//! The command against a catalog over real sockets, and its pure parts.

use std::{fs, path::Path, sync::Arc};

use clap::Parser as _;
use k8s_openapi::api::core::v1::Pod;
use liqo_api::{ClusterId, ForeignCluster};
use liqo_signing::{ClusterIdentity, sign_in};
use rustls::{ServerConfig, pki_types::PrivatePkcs8KeyDer};
use serde_json::{from_value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use super::{
    credentials::{only_provider, token_in},
    plugin::{CatalogPodError, PORT_NAME, READER, SELECTOR, choose_ready_pod},
    *,
};
use crate::cli::{Cli, Command};

fn id(seed: u8) -> ClusterId {
    ClusterId::of_public_key(&[seed; 32])
}

fn entry(name: &str) -> Value {
    json!({
        "clusterID": id(2), "name": name, "pool": "default", "accepted": true, "path": [id(2)], "hops": 1,
        "capacity": { "cpu": "3700m", "memory": "8Gi" }, "labels": {},
    })
}

/// A catalog that gives these answers, one to each request, and sends what was asked of it.
struct Fake {
    url: CatalogUrl,
    /// Its certificate.
    ca_file: PathBuf,
    asked: tokio::sync::mpsc::UnboundedReceiver<String>,
    _directory: Scratch,
}

/// A directory that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("liqoctl-catalog-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Fake {
    async fn start(name: &str, answers: Vec<(u16, Value)>) -> Self {
        let directory = Scratch::new(name);
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let ca_file = directory.0.join("ca.pem");
        fs::write(&ca_file, cert.pem()).unwrap();
        let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der()).into();
        let tls =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let tls = tls
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth();
        let acceptor = TlsAcceptor::from(Arc::new(
            tls.with_single_cert(vec![cert.der().clone()], key).unwrap(),
        ));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!(
            "https://localhost:{}",
            listener.local_addr().unwrap().port()
        )
        .parse()
        .unwrap();
        let (sender, asked) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            for (status, body) in answers {
                let Ok(mut stream) = acceptor.accept(listener.accept().await.unwrap().0).await
                else {
                    continue;
                };
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                sender.send(String::from_utf8(head).unwrap()).unwrap();
                let body = body.to_string();
                let answer = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
                stream.shutdown().await.unwrap();
            }
        });
        Self {
            url,
            ca_file,
            asked,
            _directory: directory,
        }
    }

    async fn read(&self, credentials: &CatalogCredentials) -> anyhow::Result<Vec<Entry>> {
        let https =
            CatalogClient::for_url(&self.url, &CertificateTrust::File(self.ca_file.clone()))?;
        request_all_pages(
            &https,
            credentials,
            &Parameters {
                currency: Some("EUR".into()),
                ..Parameters::default()
            },
        )
        .await
    }
}

fn cluster() -> CatalogCredentials {
    CatalogCredentials::Cluster {
        identity: ClusterIdentity::generate().unwrap().into(),
        audience: id(9),
        broker: "milan".into(),
    }
}

#[tokio::test]
async fn all_pages_are_read_each_with_a_sign_in_for_the_broker() {
    let first = json!({ "offers": [entry("turin")], "total": 2, "next": 1 });
    let second = json!({ "offers": [entry("genoa")], "total": 2 });
    let busy = json!({ "error": "too many requests" });
    let mut fake = Fake::start("pages", vec![(200, first), (429, busy), (200, second)]).await;
    let credentials = cluster();
    let names: Vec<String> = fake
        .read(&credentials)
        .await
        .unwrap()
        .into_iter()
        .map(|entry| entry.name)
        .collect();
    assert_eq!(names, ["turin", "genoa"]);
    for offset in [0, 1, 1] {
        let head = fake.asked.recv().await.unwrap();
        let expected = format!(
            "GET /catalog/v1/offers?currency=EUR&limit=100&offset={offset}&sort=name HTTP/1.1"
        );
        assert_eq!(head.lines().next(), Some(expected.as_str()));
        let sign_in = head
            .lines()
            .find_map(|line| line.strip_prefix("authorization: LiqoCluster "))
            .unwrap();
        let CatalogCredentials::Cluster { identity, .. } = &credentials else {
            unreachable!()
        };
        assert_eq!(
            sign_in::verified_signer(sign_in, &id(9), SystemTime::now()).as_ref(),
            Ok(identity.id())
        );
    }
}

#[tokio::test]
async fn a_catalog_that_goes_in_circles_or_answers_nonsense_is_left() {
    let token = || CatalogCredentials::Token("x".into());
    let circle = json!({ "offers": [entry("turin")], "total": 2, "next": 0 });
    let error = Fake::start("circle", vec![(200, circle)])
        .await
        .read(&token())
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("names 0 as the page after 0"), "{error}");
    let error = Fake::start("nonsense", vec![(200, json!([]))])
        .await
        .read(&token())
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("does not answer as a catalog"), "{error}");
}

#[tokio::test]
async fn a_certificate_that_nobody_signed_needs_a_flag() {
    let page = json!({ "offers": [], "total": 0 });
    let fake = Fake::start("trusted", vec![(200, page.clone()), (200, page)]).await;
    let other = Fake::start("other", Vec::new()).await;
    let get = async |trust: CertificateTrust| {
        CatalogClient::for_url(&fake.url, &trust)?
            .get(OFFERS, "Bearer x")
            .await
    };
    let error = get(CertificateTrust::File(other.ca_file.clone()))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("--ca-file") && error.contains("--insecure-skip-tls-verify"),
        "{error}"
    );
    assert_eq!(get(CertificateTrust::Any).await.unwrap().0, 200);
    let error = CatalogClient::for_url(&fake.url, &CertificateTrust::File("/nope".into()))
        .err()
        .unwrap()
        .to_string();
    assert_eq!(error, "cannot read the certificates in /nope");
}

#[test]
fn a_url_is_a_host_and_a_port() {
    for (text, shown) in [
        ("https://203.0.113.5:8443", "203.0.113.5:8443"),
        ("https://milan.example/", "milan.example:443"),
        ("https://[2001:db8::1]:8443", "[2001:db8::1]:8443"),
    ] {
        assert_eq!(text.parse::<CatalogUrl>().unwrap().to_string(), shown);
    }
    for text in [
        "",
        "milan",
        "http://milan",
        "https://",
        "https://milan/catalog",
        "https://milan?a",
        "https://u@milan",
        "https://a:b",
    ] {
        assert!(text.parse::<CatalogUrl>().is_err(), "{text:?}");
    }
}

#[test]
fn criteria_are_encoded_for_the_url() {
    let criteria = Parameters {
        label_selector: Some("region in (eu,us)&x".into()),
        capacity: Some("cpu=4,memory=8Gi".into()),
        accepted: Some(false),
        ..Parameters::default()
    };
    let expected = "accepted=false&capacity=cpu%3D4%2Cmemory%3D8Gi&labelSelector=region+in+%28eu%2Cus%29%26x&offset=0&sort=name";
    assert_eq!(query(&criteria).unwrap(), expected);
}

#[test]
fn a_refusal_names_the_next_step() {
    let body = |error: &str| json!({ "error": error }).to_string();
    let said = |status, error: &str, credentials: &CatalogCredentials| {
        explain_refusal("milan:8443", status, body(error).as_bytes(), credentials)
    };
    let token = CatalogCredentials::Token("x".into());
    assert_eq!(
        said(400, "capacity: no", &token),
        "the catalog at milan:8443 does not understand the criteria: capacity: no"
    );
    assert!(said(401, "no token", &token).ends_with("does not accept the token: no token"));
    assert!(
        said(403, "bind it", &token).contains("may not read the catalog at milan:8443: bind it")
    );
    assert!(said(401, "too old", &cluster()).ends_with("too old. Is it the catalog of milan?"));
    assert!(
        said(403, "unknown\u{1b}", &cluster())
            .ends_with("this cluster may not read the catalog at milan:8443: unknown")
    );
    assert!(said(503, &"x".repeat(9999), &token).len() < 600);
    let other = explain_refusal("milan:8443", 404, b"<html>", &token);
    assert!(
        other.contains("status 404") && other.contains("right URL"),
        "{other}"
    );
}

#[test]
fn the_broker_is_the_only_cluster_that_this_one_borrows_from_or_is_named() {
    let peer = |name: &str, outgoing: &str| -> ForeignCluster {
        let spec = json!({ "clusterID": id(1), "outgoingPeering": outgoing, "authURL": "https://203.0.113.5:30443" });
        from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
    };
    let only = only_provider(vec![peer("rome", "No"), peer("milan", "Yes")]).unwrap();
    assert_eq!(only.metadata.name.as_deref(), Some("milan"));
    let error = |peers| only_provider(peers).unwrap_err().to_string();
    assert!(error(vec![peer("rome", "No")]).contains("`liqoctl peer`"));
    let several = error(vec![peer("turin", "Yes"), peer("milan", "Yes")]);
    assert!(several.ends_with("there are milan, turin"), "{several}");
}

#[test]
fn a_token_file_has_one_token() {
    let directory = Scratch::new("token");
    let file = directory.0.join("token");
    let read = |text: &str| {
        fs::write(&file, text).unwrap();
        token_in(&file)
    };
    assert_eq!(read("abc.def\n").unwrap(), "abc.def");
    for text in ["", "\n", "a b", "a\nb", "ä"] {
        assert!(
            read(text)
                .unwrap_err()
                .to_string()
                .contains("contains no token"),
            "{text:?}"
        );
    }
    assert!(token_in(Path::new("/nope")).is_err());
}

#[test]
fn the_pod_of_the_plugin_is_a_ready_one_with_the_port_of_the_catalog() {
    let pod = |name: &str, ready: &str, ports: Value| -> Pod {
        from_value(json!({
            "metadata": { "name": name }, "spec": { "containers": [{ "name": "plugin", "ports": ports }] },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        }))
        .unwrap()
    };
    let ports = json!([{ "name": "grpc", "containerPort": 7000 }, { "name": "catalog", "containerPort": 8443 }]);
    let both = [
        pod("old", "False", ports.clone()),
        pod("new", "True", ports.clone()),
    ];
    assert_eq!(choose_ready_pod(&both), Ok(("new".to_owned(), 8443)));
    assert_eq!(choose_ready_pod(&[]), Err(CatalogPodError::NoPlugin));
    assert!(
        CatalogPodError::NoPlugin.to_string().contains("--url"),
        "a customer has no plugin"
    );
    assert_eq!(
        choose_ready_pod(&both[..1]),
        Err(CatalogPodError::NotReady { pod: "old".into() })
    );
    assert_eq!(
        choose_ready_pod(&[pod("new", "True", json!([]))]),
        Err(CatalogPodError::NoPort { pod: "new".into() })
    );
}

#[test]
fn the_manifests_have_what_the_command_looks_for() {
    let account = include_str!("../../../../../deploy/broker/account.yaml");
    assert!(account.contains(&format!(
        "kind: ServiceAccount\nmetadata:\n  name: {READER}\n"
    )));
    assert!(account.contains(&format!("kind: ServiceAccount\n    name: {READER}\n")));
    let deployment = include_str!("../../../../../deploy/broker/deployment.yaml");
    assert!(deployment.contains(&format!("{}: {}\n", SELECTOR.0, SELECTOR.1)));
    assert!(
        deployment.contains(&format!("- name: {PORT_NAME}\n"))
            && deployment.contains("--catalog-port=")
    );
}

#[test]
fn the_table_shows_what_offers_are_chosen_by() {
    let mut far = entry("gen\u{1b}oa");
    far["path"] = json!([id(2), id(3)]);
    far["hops"] = json!(2);
    far["accepted"] = json!(false);
    far["prices"] = json!({ "currency": "EUR", "rates": { "cpu": "0.04", "memory": "0.005" } });
    far["latencyMicroseconds"] = json!(12_345);
    let entries: Vec<Entry> = [entry("turin"), far]
        .map(|entry| from_value(entry).unwrap())
        .into();
    let behind = id(3);
    let expected = format!(
        "\
PROVIDER   POOL      AMOUNTS                 PRICES                       LATENCY   HOPS           ACCEPTED
turin      default   cpu=3700m, memory=8Gi   -                            -         1              yes
genoa      default   cpu=3700m, memory=8Gi   cpu=0.04, memory=0.005 EUR   12.3 ms   2 via {}   no",
        behind.short_id()
    );
    assert_eq!(render_catalog_offers(&entries), expected);
    assert_eq!(render_catalog_offers(&[]), "No offer meets these criteria.");
}

fn options(arguments: &[&str]) -> Result<CatalogOptions, String> {
    let cli = Cli::try_parse_from([&["liqoctl", "catalog"], arguments].concat())
        .map_err(|error| error.to_string())?;
    let Command::Catalog(options) = cli.command else {
        unreachable!()
    };
    Ok(*options)
}

#[test]
fn every_criterion_has_a_flag() {
    let line = "--currency EUR --max-price cpu=0.04 -l region=eu --max-latency 20 --max-hops 2 --capacity cpu=4 --accepted --sort price";
    let arguments: Vec<&str> = line.split(' ').collect();
    let criteria = options(&arguments).unwrap().criteria();
    let all = json!({
        "currency": "EUR", "maxPrice": "cpu=0.04", "labelSelector": "region=eu", "maxLatencyMilliseconds": 20, "maxHops": 2,
        "capacity": "cpu=4", "accepted": true, "sort": "price", "offset": 0,
    });
    assert_eq!(serde_json::to_value(criteria).unwrap(), all);
    assert_eq!(
        options(&["--accepted=false"]).unwrap().accepted,
        Some(false)
    );
    assert_eq!(options(&[]).unwrap().criteria(), Parameters::default());
    for wrong in [
        &["--max-price", "cpu=1"][..],
        &["--sort", "price"],
        &["--sort", "size"],
        &["--max-hops", "many"],
    ] {
        assert!(options(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn a_catalog_is_at_a_url_or_in_this_cluster() {
    assert!(options(&[]).unwrap().url.is_none());
    assert!(options(&["--token-file", "f"]).unwrap().url.is_none());
    let url = ["--url", "https://203.0.113.5:8443"];
    let at_url = |more: &[&str]| options(&[&url, more].concat());
    let trust = |more: &[&str]| at_url(more).unwrap().trust();
    assert_eq!(trust(&[]), CertificateTrust::Machine);
    assert_eq!(
        trust(&["--ca-file", "f"]),
        CertificateTrust::File("f".into())
    );
    assert_eq!(
        trust(&["--insecure-skip-tls-verify"]),
        CertificateTrust::Any
    );
    assert_eq!(at_url(&["milan"]).unwrap().peer.as_deref(), Some("milan"));
    assert!(at_url(&["--ca-file", "f", "--insecure-skip-tls-verify"]).is_err());
    assert!(
        at_url(&["milan", "--token-file", "f"]).is_err(),
        "a token says itself for whom it is"
    );
    for wrong in [
        &["milan"][..],
        &["--ca-file", "f"],
        &["--insecure-skip-tls-verify"],
        &["--url", "http://milan"],
    ] {
        assert!(options(wrong).is_err(), "{wrong:?}");
    }
}
