use std::net::Ipv4Addr;

use liqo_api::{ClusterId, Key};
use tokio::task::JoinHandle;

use super::*;
use crate::directory::MappedNamespaceState;
use crate::limits::LimitReached;
use crate::message::tests::{Builder, name};
use crate::message::{id, set_id};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// `web.demo` as the pod knows it, and as it is called here.
const AT_HOME: &str = "web.demo.svc.cluster.local";
const MAPPED: &str = "web.demo-rome-1.svc.cluster.local";

fn question(id: u16, name: &str) -> Vec<u8> {
    Builder::new(id, 0x0100, [1, 0, 0, 1])
        .question(name, 1)
        .edns(1232)
        .done()
}

fn answer(id: u16, name: &str) -> Vec<u8> {
    Builder::new(id, 0x8580, [1, 1, 0, 1])
        .question(name, 1)
        .record(name, 1, &[10, 96, 7, 7])
        .edns(1232)
        .done()
}

/// Names and addresses in the answer, however it is compressed.
fn same(found: &[u8], wanted: &[u8]) -> bool {
    let whole = |message: &[u8]| {
        translate_answer(message, &[], |_| None)
            .unwrap()
            .whole_message()
    };
    whole(found) == whole(wanted)
}

/// A name server that answers what it is asked over UDP by a function.
async fn upstream(
    reply: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    upstream_at(UdpSocket::bind((HERE, 0)).await.unwrap(), reply)
}

/// The same at this socket.
fn upstream_at(
    socket: UdpSocket,
    reply: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    let address = socket.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut buffer = vec![0; 65535];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            for answer in reply(&buffer[..length]) {
                socket.send_to(&answer, from).await.unwrap();
            }
        }
    });
    (address, task)
}

/// Sockets for UDP and TCP with the same number.
async fn udp_and_tcp() -> (UdpSocket, TcpListener) {
    loop {
        let tcp = TcpListener::bind((HERE, 0)).await.unwrap();
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
            return (udp, tcp);
        }
    }
}

/// A name server that knows [`MAPPED`] alone, and repeats questions about other names.
fn knows(asked: &[u8]) -> Vec<Vec<u8>> {
    let query = Query::read(asked).unwrap();
    let mut found = if query.name == name(MAPPED) {
        answer(0, MAPPED)
    } else {
        answer_without_records(asked, ResponseCode::NoSuchName)
    };
    set_id(&mut found, id(asked));
    vec![found]
}

fn rome() -> ClusterId {
    ClusterId::of_public_key(&[1; 32])
}

fn know(known: &SharedDirectory, pod: IpAddr) {
    let rome = MappedNamespaceState {
        consumer: rome(),
        home: "demo".to_owned(),
        terminating: false,
    };
    known.change(|directory| directory.namespace_changed("demo-rome-1", None, Some(&rome)));
    known.change(|directory| directory.pod_changed(&Key::new("demo-rome-1", "web"), &[], &[pod]));
}

struct Served {
    udp: SocketAddr,
    tcp: SocketAddr,
    known: Arc<SharedDirectory>,
    resolver: NameResolver,
    stop: CancellationToken,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn serve(upstreams: Vec<SocketAddr>) -> Served {
    serve_with(
        upstreams,
        Timeouts {
            new_pod: Duration::from_mins(1),
            answer: Duration::from_mins(1),
        },
    )
    .await
}

async fn serve_with(upstreams: Vec<SocketAddr>, timeouts: Timeouts) -> Served {
    let (known, stop) = (
        Arc::new(SharedDirectory::default()),
        CancellationToken::new(),
    );
    let resolver = NameResolver::new(
        known.clone(),
        NameServers::new(upstreams),
        Some(name("cluster.local")),
    );
    let resolver = NameResolver {
        timeouts,
        ..resolver
    };
    let udp = UdpSocket::bind((HERE, 0)).await.unwrap();
    let tcp = TcpListener::bind((HERE, 0)).await.unwrap();
    let (udp_address, tcp_address) = (udp.local_addr().unwrap(), tcp.local_addr().unwrap());
    tokio::spawn(resolver.clone().serve_udp(udp, stop.clone()));
    tokio::spawn(resolver.clone().serve_tcp(tcp, stop.clone()));
    Served {
        udp: udp_address,
        tcp: tcp_address,
        known,
        resolver,
        stop,
    }
}

async fn client(served: &Served) -> UdpSocket {
    let socket = UdpSocket::bind((HERE, 0)).await.unwrap();
    socket.connect(served.udp).await.unwrap();
    socket
}

async fn ask(socket: &UdpSocket, message: &[u8]) -> Vec<u8> {
    socket.send(message).await.unwrap();
    receive(socket).await
}

async fn receive(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 65535];
    let length = timeout(Duration::from_secs(20), socket.recv(&mut buffer))
        .await
        .expect("no answer")
        .unwrap();
    buffer[..length].to_vec()
}

#[tokio::test]
async fn a_name_of_home_is_answered_under_that_name_and_others_as_they_are() {
    let (cluster_dns, task) = upstream(knows).await;
    let served = serve(vec![cluster_dns]).await;
    know(&served.known, HERE);
    let socket = client(&served).await;
    for asked in [AT_HOME, "Web.Demo.svc.cluster.local"] {
        let found = ask(&socket, &question(4711, asked)).await;
        assert!(same(&found, &answer(4711, asked)), "{found:?}");
        assert_eq!(found[13..16], asked.as_bytes()[..3], "upper and lower case");
    }
    let unknown = question(4712, "example.org");
    assert_eq!(
        ask(&socket, &unknown).await,
        answer_without_records(&unknown, ResponseCode::NoSuchName)
    );
    // As the namespace is called here, nothing is changed, not even the way in which names are
    // compressed.
    assert_eq!(
        ask(&socket, &question(4713, MAPPED)).await,
        answer(4713, MAPPED)
    );
    task.abort();
}

#[tokio::test]
async fn a_question_of_a_new_pod_waits_until_the_pod_is_known() {
    let (cluster_dns, task) = upstream(knows).await;
    let served = serve(vec![cluster_dns]).await;
    know(&served.known, IpAddr::from([10, 0, 0, 9]));
    let socket = client(&served).await;
    socket.send(&question(1, AT_HOME)).await.unwrap();
    let other = ask(&socket, &question(2, "example.org")).await;
    assert_eq!(id(&other), 2, "questions about other names do not wait");
    served
        .known
        .change(|directory| directory.pod_changed(&Key::new("demo-rome-1", "new"), &[], &[HERE]));
    assert!(same(&receive(&socket).await, &answer(1, AT_HOME)));
    task.abort();
}

#[tokio::test]
async fn a_pod_that_stays_unknown_gets_no_service_of_another_namespace() {
    // The provider has a namespace of its own with that name.
    let (cluster_dns, task) = upstream(|asked| vec![answer(id(asked), AT_HOME)]).await;
    let timeouts = Timeouts {
        new_pod: Duration::from_millis(50),
        answer: Duration::from_mins(1),
    };
    let served = serve_with(vec![cluster_dns], timeouts).await;
    know(&served.known, IpAddr::from([10, 0, 0, 9]));
    let (socket, asked) = (client(&served).await, question(1, AT_HOME));
    let begin = Instant::now();
    assert_eq!(
        ask(&socket, &asked).await,
        answer_without_records(&asked, ResponseCode::NoSuchName)
    );
    assert!(begin.elapsed() >= timeouts.new_pod, "it waits first");
    assert!(
        !served
            .known
            .directory
            .read()
            .may_wait(HERE, Instant::now().into_std())
    );
    task.abort();
}

#[tokio::test]
async fn the_name_of_an_address_is_told_only_to_those_who_may_know_it() {
    // The name server knows the names of all addresses: each is that of the Service in the
    // namespace that its first number stands for.
    let (cluster_dns, task) = upstream(|asked| {
        let query = Query::read(asked).unwrap();
        let target = match query.name.labels()[0].as_slice() {
            b"1" => "web.demo-rome-1.svc.cluster.local",
            b"2" => "web.demo-turin-2.svc.cluster.local",
            b"3" => "kube-dns.kube-system.svc.cluster.local",
            _ => "dns.example.org",
        };
        let asked_name = format!(
            "{}.0.96.10.in-addr.arpa",
            String::from_utf8_lossy(&query.name.labels()[0])
        );
        let answer =
            Builder::new(id(asked), 0x8580, [1, 1, 0, 1]).question(&asked_name, query.kind);
        vec![
            answer
                .record(&asked_name, 12, &wire(target))
                .edns(1232)
                .done(),
        ]
    })
    .await;
    let timeouts = Timeouts {
        new_pod: Duration::from_millis(50),
        answer: Duration::from_mins(1),
    };
    let served = serve_with(vec![cluster_dns], timeouts).await;
    know(&served.known, HERE);
    let turin = MappedNamespaceState {
        consumer: ClusterId::of_public_key(&[2; 32]),
        home: "demo".to_owned(),
        terminating: false,
    };
    served
        .known
        .change(|directory| directory.namespace_changed("demo-turin-2", None, Some(&turin)));
    let socket = client(&served).await;
    let asked = |number: u8, kind: u16| {
        Builder::new(5, 0x0100, [1, 0, 0, 1])
            .question(&format!("{number}.0.96.10.in-addr.arpa"), kind)
            .edns(1232)
            .done()
    };
    let named = |number: u8, target: &str| {
        let name = format!("{number}.0.96.10.in-addr.arpa");
        Builder::new(5, 0x8580, [1, 1, 0, 1])
            .question(&name, 12)
            .record(&name, 12, &wire(target))
            .edns(1232)
            .done()
    };
    for (number, target) in [(1, AT_HOME), (9, "dns.example.org")] {
        assert!(
            same(
                &ask(&socket, &asked(number, 12)).await,
                &named(number, target)
            ),
            "{number}"
        );
    }
    for (number, kind) in [(2, 12), (3, 12), (3, 255)] {
        let asked = asked(number, kind);
        assert_eq!(
            ask(&socket, &asked).await,
            answer_without_records(&asked, ResponseCode::NoSuchName),
            "{number} {kind}"
        );
    }
    // Nor to an address that belongs to no known pod.
    served
        .known
        .change(|directory| directory.pod_changed(&Key::new("demo-rome-1", "web"), &[HERE], &[]));
    let asked = asked(3, 12);
    assert_eq!(
        ask(&socket, &asked).await,
        answer_without_records(&asked, ResponseCode::NoSuchName)
    );
    task.abort();
}

fn know_external_name(known: &SharedDirectory, service: &str, target: &str) {
    let (service, target) = (Key::new("demo-rome-1", service), name(target));
    known.change(|directory| directory.external_name_changed(&service, Some(&target)));
}

fn wire(text: &str) -> Vec<u8> {
    Builder::new(0, 0, [0; 4]).name(text).done()[12..].to_vec()
}

#[tokio::test]
async fn an_external_name_is_answered_with_what_it_stands_for() {
    let host = "db.example.org";
    let (cluster_dns, task) = upstream(move |asked| {
        if Query::read(asked).unwrap().name != name(host) {
            return knows(asked);
        }
        let found = Builder::new(id(asked), 0x8180, [1, 1, 0, 0])
            .question(host, 1)
            .record(host, 1, &[192, 0, 2, 1]);
        vec![found.done()]
    })
    .await;
    let served = serve(vec![cluster_dns]).await;
    know(&served.known, HERE);
    for (service, target) in [
        ("db", host),
        ("db-2", "DB.demo.svc.cluster.local"),
        ("own", AT_HOME),
        ("gone", "gone.example.org"),
    ] {
        know_external_name(&served.known, service, target);
    }
    let socket = client(&served).await;
    let full = |service: &str| format!("{service}.demo.svc.cluster.local");
    let ask_for = async |service: &str, kind| {
        ask(
            &socket,
            &Builder::new(5, 0x0100, [1, 0, 0, 0])
                .question(&full(service), kind)
                .done(),
        )
        .await
    };
    let answers = |service: &str, count| {
        Builder::new(5, 0x8180, [1, count, 0, 0]).question(&full(service), 1)
    };

    let wanted = answers("db", 2)
        .record(&full("db"), 5, &wire(host))
        .record(host, 1, &[192, 0, 2, 1])
        .done();
    assert!(same(&ask_for("db", 1).await, &wanted));
    // One that stands for another one.
    let wanted = answers("db-2", 3)
        .record(&full("db-2"), 5, &wire(&full("DB")))
        .record(&full("DB"), 5, &wire(host));
    assert!(same(
        &ask_for("db-2", 1).await,
        &wanted.record(host, 1, &[192, 0, 2, 1]).done()
    ));
    // A Service of home, which has another name here.
    let wanted = Builder::new(5, 0x8580, [1, 2, 0, 1])
        .question(&full("own"), 1)
        .record(&full("own"), 5, &wire(AT_HOME));
    assert!(same(
        &ask_for("own", 1).await,
        &wanted.record(AT_HOME, 1, &[10, 96, 7, 7]).edns(1232).done()
    ));
    // The alias itself, without asking anybody.
    let wanted = Builder::new(5, 0x8180, [1, 1, 0, 0]).question(&full("gone"), 5);
    assert!(same(
        &ask_for("gone", 5).await,
        &wanted
            .record(&full("gone"), 5, &wire("gone.example.org"))
            .done()
    ));
    let wanted = Builder::new(5, 0x8183, [1, 1, 0, 0]).question(&full("gone"), 1);
    assert!(same(
        &ask_for("gone", 1).await,
        &wanted
            .record(&full("gone"), 5, &wire("gone.example.org"))
            .done()
    ));
    task.abort();
}

#[tokio::test]
async fn an_answer_follows_eight_aliases_and_more_are_a_failure_of_the_server() {
    let (cluster_dns, task) = upstream(knows).await;
    let served = serve(vec![cluster_dns]).await;
    know(&served.known, HERE);
    let full = |service: &str| format!("{service}.demo.svc.cluster.local");
    // `a1` stands for the Service of home, `a2` for `a1`, and so on.
    know_external_name(&served.known, "a1", AT_HOME);
    for number in 2..=9 {
        know_external_name(
            &served.known,
            &format!("a{number}"),
            &full(&format!("a{}", number - 1)),
        );
    }
    know_external_name(&served.known, "b", &full("c"));
    know_external_name(&served.known, "c", &full("b"));
    let socket = client(&served).await;
    let mut wanted = Builder::new(5, 0x8580, [1, 9, 0, 1]).question(&full("a8"), 1);
    for number in (2..=8).rev() {
        wanted = wanted.record(
            &full(&format!("a{number}")),
            5,
            &wire(&full(&format!("a{}", number - 1))),
        );
    }
    let wanted = wanted
        .record(&full("a1"), 5, &wire(AT_HOME))
        .record(AT_HOME, 1, &[10, 96, 7, 7])
        .edns(1232)
        .done();
    assert!(same(
        &ask(&socket, &question(5, &full("a8"))).await,
        &wanted
    ));
    for service in ["a9", "b"] {
        let asked = question(6, &full(service));
        assert_eq!(
            ask(&socket, &asked).await,
            answer_without_records(&asked, ResponseCode::ServerFailure),
            "{service}"
        );
    }
    task.abort();
}

#[tokio::test]
async fn an_alias_that_is_too_long_for_udp_comes_over_tcp() {
    let served = serve(Vec::new()).await;
    know(&served.known, HERE);
    let domain = vec!["a".repeat(61); 3].join(".");
    served
        .known
        .change(|directory| directory.domain_changed(&rome(), Some(&name(&domain))));
    let (service, target) = ("d".repeat(54), vec!["b".repeat(62); 4].join("."));
    know_external_name(&served.known, &service, &target);
    let full = format!("{service}.demo.svc.{domain}");
    let asked = Builder::new(5, 0x0100, [1, 0, 0, 0])
        .question(&full, 5)
        .done();
    let cut = Builder::new(5, 0x8380, [1, 0, 0, 0])
        .question(&full, 5)
        .done();
    assert_eq!(ask(&client(&served).await, &asked).await, cut);
    let mut stream = TcpStream::connect(served.tcp).await.unwrap();
    write_message(&mut stream, &asked).await.unwrap();
    let wanted = Builder::new(5, 0x8180, [1, 1, 0, 0])
        .question(&full, 5)
        .record(&full, 5, &wire(&target))
        .done();
    assert!(same(
        &read_message(&mut stream, 65535).await.unwrap(),
        &wanted
    ));
}

#[tokio::test]
async fn a_name_that_nobody_has_in_the_domain_of_home_is_answered_with_that_zone() {
    let missing = |id: u16, asked: &str, zone: &str| {
        let soa = [
            wire("ns.dns.cluster.local"),
            wire("hostmaster.cluster.local"),
            vec![0; 20],
        ]
        .concat();
        Builder::new(id, 0x8583, [1, 0, 1, 0])
            .question(asked, 1)
            .record(zone, 6, &soa)
            .done()
    };
    let (cluster_dns, task) = upstream(move |asked| {
        let name = Query::read(asked).unwrap().name.labels().join(&b'.');
        let name = String::from_utf8(name).unwrap();
        assert!(name.ends_with("cluster.local"), "{name} leaves the cluster");
        vec![missing(id(asked), &name, "cluster.local")]
    })
    .await;
    let served = serve(vec![cluster_dns]).await;
    know(&served.known, HERE);
    served
        .known
        .change(|directory| directory.domain_changed(&rome(), Some(&name("corp.local"))));
    let socket = client(&served).await;
    for (asked, zone) in [
        ("api.example.org.corp.local", "corp.local"),
        ("gone.demo.svc.corp.local", "corp.local"),
        // A pod that was created before the domain was announced.
        ("gone.demo.svc.cluster.local", "cluster.local"),
    ] {
        let found = ask(
            &socket,
            &Builder::new(5, 0x0100, [1, 0, 0, 0])
                .question(asked, 1)
                .done(),
        )
        .await;
        assert!(same(&found, &missing(5, asked, zone)), "{asked}: {found:?}");
    }
    task.abort();
}

#[tokio::test]
async fn an_external_name_leads_to_no_name_of_another_consumer() {
    // Another consumer and the provider have a namespace `demo`, too.
    let (cluster_dns, task) = upstream(|asked| {
        let query = Query::read(asked).unwrap();
        assert!(query.name == name(MAPPED), "{query:?}");
        knows(asked)
    })
    .await;
    let served = serve(vec![cluster_dns]).await;
    know(&served.known, HERE);
    let turin = MappedNamespaceState {
        consumer: ClusterId::of_public_key(&[2; 32]),
        home: "demo".to_owned(),
        terminating: false,
    };
    served
        .known
        .change(|directory| directory.namespace_changed("demo-turin-2", None, Some(&turin)));
    know_external_name(&served.known, "a", AT_HOME);
    let found = ask(
        &client(&served).await,
        &question(5, "a.demo.svc.cluster.local"),
    )
    .await;
    let wanted = Builder::new(5, 0x8580, [1, 2, 0, 1]).question("a.demo.svc.cluster.local", 1);
    let wanted = wanted
        .record("a.demo.svc.cluster.local", 5, &wire(AT_HOME))
        .record(AT_HOME, 1, &[10, 96, 7, 7]);
    assert!(same(&found, &wanted.edns(1232).done()), "{found:?}");
    task.abort();
}

#[tokio::test]
async fn an_address_that_stayed_unknown_does_not_wait_again() {
    let (cluster_dns, task) = upstream(knows).await;
    let served = serve(vec![cluster_dns]).await;
    know(&served.known, IpAddr::from([10, 0, 0, 9]));
    served
        .known
        .change(|directory| directory.note_wait(HERE, Instant::now().into_std()));
    // Otherwise, the wait would be longer than that for the answer.
    let asked = question(1, AT_HOME);
    assert_eq!(
        ask(&client(&served).await, &asked).await,
        answer_without_records(&asked, ResponseCode::NoSuchName)
    );
    task.abort();
}

#[tokio::test]
async fn a_name_that_is_too_long_here_does_not_exist() {
    let (cluster_dns, task) = upstream(|asked| vec![answer(id(asked), AT_HOME)]).await;
    let served = serve(vec![cluster_dns]).await;
    know(&served.known, HERE);
    let long = format!(
        "{0}.{0}.{0}.{1}.demo.svc.cluster.local",
        "a".repeat(63),
        "b".repeat(38)
    );
    let asked = question(1, &long);
    assert_eq!(
        ask(&client(&served).await, &asked).await,
        answer_without_records(&asked, ResponseCode::NoSuchName)
    );
    task.abort();
}

#[tokio::test]
async fn an_answer_takes_no_longer_than_the_client_waits() {
    let (silent, quiet) = upstream(|_| Vec::new()).await;
    let timeouts = Timeouts {
        new_pod: Duration::from_mins(1),
        answer: Duration::from_millis(50),
    };
    let served = serve_with(vec![silent], timeouts).await;
    know(&served.known, IpAddr::from([10, 0, 0, 9]));
    let socket = client(&served).await;
    // One waits for the name server, the other one for the pod.
    for name in ["example.org", AT_HOME] {
        let asked = question(1, name);
        assert_eq!(
            ask(&socket, &asked).await,
            answer_without_records(&asked, ResponseCode::ServerFailure),
            "{name}"
        );
    }
    quiet.abort();
}

#[tokio::test]
async fn an_unchanged_answer_is_cut_off_where_the_client_or_the_resolver_says() {
    // It answers with as much as EDNS allows, and a little more.
    let (cluster_dns, task) = upstream(|asked| {
        let allowed = u16::from_be_bytes([asked[asked.len() - 14], asked[asked.len() - 13]]);
        let data = vec![7; usize::from(allowed)];
        vec![
            Builder::new(id(asked), 0x8180, [1, 1, 0, 0])
                .question("example.org", 1)
                .record("x", 16, &data)
                .done(),
        ]
    })
    .await;
    let served = serve(vec![cluster_dns]).await;
    let socket = client(&served).await;
    for allowed in [1232, u16::MAX] {
        let asked = Builder::new(7, 0x0100, [1, 0, 0, 1])
            .question("example.org", 1)
            .edns(allowed)
            .done();
        let wanted = Builder::new(7, 0x8380, [1, 0, 0, 0])
            .question("example.org", 1)
            .done();
        assert_eq!(ask(&socket, &asked).await, wanted);
    }
    task.abort();
}

#[tokio::test]
async fn forged_answers_are_ignored_and_each_question_has_another_id() {
    let seen = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let ids = seen.clone();
    let (cluster_dns, task) = upstream(move |asked| {
        ids.lock().push(id(asked));
        let mut forged = answer(id(asked).wrapping_add(1), MAPPED);
        let other = answer(id(asked), "web.evil.svc.cluster.local");
        forged.truncate(forged.len() - 1);
        [vec![forged, other, b"x".to_vec(), Vec::new()], knows(asked)].concat()
    })
    .await;
    let served = serve(vec![cluster_dns]).await;
    know(&served.known, HERE);
    let socket = client(&served).await;
    for _ in 0..8 {
        assert!(same(
            &ask(&socket, &question(5, AT_HOME)).await,
            &answer(5, AT_HOME)
        ));
    }
    let mut ids = seen.lock().clone();
    ids.sort_unstable();
    ids.dedup();
    assert!(ids.len() >= 7, "{ids:?}");
    task.abort();
}

#[tokio::test]
async fn a_malformed_answer_is_a_failure_of_the_server() {
    let (cluster_dns, task) = upstream(|asked| {
        let mut broken = answer(id(asked), MAPPED);
        broken.truncate(broken.len() - 20);
        vec![broken]
    })
    .await;
    let served = serve(vec![cluster_dns]).await;
    know(&served.known, HERE);
    let asked = question(5, AT_HOME);
    assert_eq!(
        ask(&client(&served).await, &asked).await,
        answer_without_records(&asked, ResponseCode::ServerFailure)
    );
    task.abort();
}

#[tokio::test]
async fn hostile_packets_are_refused_or_dropped_and_disturb_nobody() {
    let (cluster_dns, task) = upstream(knows).await;
    let served = serve(vec![cluster_dns]).await;
    know(&served.known, HERE);
    let socket = client(&served).await;
    let pointer = Builder::new(9, 0x0100, [1, 0, 0, 0])
        .bytes(b"\xc0\x0c\0\x01\0\x01")
        .done();
    assert_eq!(
        ask(&socket, &pointer).await,
        Builder::new(9, 0x8181, [0; 4]).done()
    );
    for dropped in [
        b"x".to_vec(),
        answer(3, AT_HOME),
        vec![0; MAX_QUESTION_LEN + 1],
    ] {
        socket.send(&dropped).await.unwrap();
    }
    assert_eq!(
        id(&ask(&socket, &question(5, AT_HOME)).await),
        5,
        "nothing answers the packets before"
    );
    task.abort();
}

#[tokio::test]
async fn the_next_name_server_is_asked_if_one_is_silent() {
    let (silent, quiet) = upstream(|_| Vec::new()).await;
    let (cluster_dns, task) = upstream(knows).await;
    let served = serve(vec![silent, cluster_dns]).await;
    know(&served.known, HERE);
    assert!(same(
        &ask(&client(&served).await, &question(5, AT_HOME)).await,
        &answer(5, AT_HOME)
    ));
    quiet.abort();
    task.abort();
}

#[tokio::test]
async fn truncation_is_passed_on_and_the_whole_answer_comes_over_tcp() {
    let big = |id| {
        let records = (0..100_u8).fold(
            Builder::new(id, 0x8580, [1, 100, 0, 0]).question(MAPPED, 1),
            |message, last| message.record(MAPPED, 1, &[10, 0, 0, last]),
        );
        records.done()
    };
    let (socket, listener) = udp_and_tcp().await;
    let (cluster_dns, task) = upstream_at(socket, |asked| {
        vec![
            Builder::new(id(asked), 0x8780, [1, 0, 0, 0])
                .question(MAPPED, 1)
                .done(),
        ]
    });
    let tcp = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let asked = read_message(&mut stream, 65535).await.unwrap();
            assert!(Query::read(&asked).unwrap().name == name(MAPPED));
            write_message(&mut stream, &big(id(&asked))).await.unwrap();
        }
    });
    let served = serve(vec![cluster_dns]).await;
    know(&served.known, HERE);
    let found = ask(&client(&served).await, &question(5, AT_HOME)).await;
    assert_eq!(
        found,
        Builder::new(5, 0x8780, [1, 0, 0, 0])
            .question(AT_HOME, 1)
            .done()
    );

    // Two questions over one connection.
    let mut stream = TcpStream::connect(served.tcp).await.unwrap();
    for number in [6, 7] {
        write_message(&mut stream, &question(number, AT_HOME))
            .await
            .unwrap();
        let found = read_message(&mut stream, 65535).await.unwrap();
        let home = |found: &DomainName| (*found == name(MAPPED)).then(|| name(AT_HOME));
        assert_eq!(
            found,
            translate_answer(&big(number), &[], home)
                .unwrap()
                .whole_message()
        );
    }
    task.abort();
    tcp.abort();
}

#[tokio::test]
async fn connections_that_say_nothing_useful_are_closed_and_their_number_is_limited() {
    let (cluster_dns, task) = upstream(knows).await;
    let served = serve(vec![cluster_dns]).await;
    know(&served.known, HERE);
    for message in [&b"x"[..], &[0; MAX_QUESTION_LEN + 1]] {
        let mut stream = TcpStream::connect(served.tcp).await.unwrap();
        let _ = write_message(&mut stream, message).await;
        assert!(read_message(&mut stream, 65535).await.is_err());
    }
    let enter = |_| {
        served
            .resolver
            .connections
            .acquire_permit(HERE, Some(rome()))
            .unwrap()
    };
    let all: Vec<LimitPermit> = (0..MAX_CONNECTIONS.per_source).map(enter).collect();
    let mut refused = TcpStream::connect(served.tcp).await.unwrap();
    let _ = write_message(&mut refused, &question(5, AT_HOME)).await;
    assert!(read_message(&mut refused, 65535).await.is_err());
    drop(all);
    task.abort();
}

#[tokio::test]
async fn a_pod_that_asks_too_much_gets_no_answer_and_others_do() {
    let (cluster_dns, task) = upstream(knows).await;
    let served = serve(vec![cluster_dns]).await;
    know(&served.known, HERE);
    let enter = |_| {
        served
            .resolver
            .questions
            .acquire_permit(HERE, Some(rome()))
            .unwrap()
    };
    let all: Vec<LimitPermit> = (0..MAX_QUESTIONS.per_source).map(enter).collect();
    let socket = client(&served).await;
    socket.send(&question(1, AT_HOME)).await.unwrap();
    // The server reads one question after another, so it has read the one before when it answers
    // this one.
    let other = UdpSocket::bind("127.0.0.2:0").await.unwrap();
    other.connect(served.udp).await.unwrap();
    assert_eq!(id(&ask(&other, &question(2, "example.org")).await), 2);
    let nothing = socket.try_recv(&mut [0; 512]).unwrap_err();
    assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    drop(all);
    assert_eq!(id(&ask(&socket, &question(3, AT_HOME)).await), 3);
    task.abort();
}

#[tokio::test]
async fn the_pods_of_a_consumer_share_its_part() {
    let served = serve(Vec::new()).await;
    know(&served.known, HERE);
    let other = |number: usize| {
        IpAddr::from([
            10,
            0,
            1,
            u8::try_from(number / MAX_QUESTIONS.per_source).unwrap(),
        ])
    };
    let enter = |number| {
        served
            .resolver
            .questions
            .acquire_permit(other(number), Some(rome()))
            .unwrap()
    };
    let all: Vec<LimitPermit> = (0..MAX_QUESTIONS.per_consumer).map(enter).collect();
    assert!(
        served
            .resolver
            .acquire_permit(&served.resolver.questions, "question", HERE)
            .is_none()
    );
    assert_eq!(
        served
            .resolver
            .questions
            .acquire_permit(HERE, Some(rome()))
            .unwrap_err(),
        LimitReached::Consumer
    );
    let unknown = IpAddr::from([10, 0, 0, 9]);
    assert!(
        served
            .resolver
            .acquire_permit(&served.resolver.questions, "question", unknown)
            .is_some()
    );
    assert!(
        liqo_controller_runtime::metrics::render()
            .contains("liqo_dns_refused_total{what=\"question\",reason=\"consumer\"}")
    );
    drop(all);
}
