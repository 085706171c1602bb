use tokio::net::{TcpListener, UdpSocket};

use super::*;
use crate::{
    datagram::{self, MIN_LEN, padded_datagram},
    serve::{AnnouncedIdentity, serve_on},
};

/// Starts a server on loopback and returns its address.
async fn server() -> SocketAddr {
    server_for(None).await
}

/// The same with a token.
async fn server_for(token: Option<&str>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let socket = UdpSocket::bind(address).await.unwrap();
    tokio::spawn(serve_on(
        listener,
        socket,
        AnnouncedIdentity {
            pod: "p".into(),
            node: "n".into(),
            token: token.map(Into::into),
        },
    ));
    address
}

async fn asked(to: &str, what: QuestionKind) -> Result<MeasuredAnswer, AnswerProblem> {
    asked_with(None, 2000, to, what).await
}

async fn asked_with(
    token: Option<&str>,
    timeout_millis: u64,
    to: &str,
    what: QuestionKind,
) -> Result<MeasuredAnswer, AnswerProblem> {
    let questions = vec![AskedQuestion {
        to: to.to_owned(),
        what,
    }];
    let mut reports = ask_questions(AskRequest {
        questions,
        timeout_millis,
        at_once: 4,
        token: token.map(Into::into),
    });
    let report = reports.recv().await.unwrap();
    assert_eq!((report.question, reports.recv().await), (0, None));
    report.outcome
}

fn by(finding: MeasuredAnswer) -> ServerIdentity {
    let MeasuredAnswer::Answered { by, .. } = finding else {
        panic!("{finding:?}")
    };
    by
}

#[tokio::test]
async fn the_server_is_identified_over_tcp_and_udp_by_address_and_name() {
    let server = server().await;
    for to in [server.to_string(), format!("localhost:{}", server.port())] {
        for what in [
            QuestionKind::Tcp,
            QuestionKind::Udp { bytes: 0 },
            QuestionKind::Udp { bytes: 4000 },
            QuestionKind::Bulk { bytes: 1_000_001 },
        ] {
            let by = by(asked(&to, what).await.unwrap());
            assert_eq!(
                (by.pod.as_str(), by.node.as_str(), by.source.ip()),
                ("p", "n", server.ip())
            );
        }
    }
    let addresses = vec![server.ip()];
    assert_eq!(
        asked(&server.to_string(), QuestionKind::Resolve).await,
        Ok(MeasuredAnswer::Addresses { addresses })
    );
}

#[tokio::test]
async fn the_next_address_is_asked_when_one_does_not_answer() {
    let server = server().await;
    let deaf = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let silence = deaf.local_addr().unwrap();
    let refused = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let asked = |addresses: Vec<SocketAddr>, what: QuestionKind| async move {
        first_answer(&addresses, &what, None, Duration::from_millis(600)).await
    };
    assert_eq!(
        by(asked(vec![refused, server], QuestionKind::Tcp)
            .await
            .unwrap())
        .pod,
        "p"
    );
    assert_eq!(
        by(asked(vec![silence, server], QuestionKind::Udp { bytes: 0 })
            .await
            .unwrap())
        .pod,
        "p"
    );
    assert_eq!(
        asked(vec![server, refused], QuestionKind::Tcp)
            .await
            .map(by)
            .unwrap()
            .pod,
        "p"
    );
    assert_eq!(
        asked(vec![silence, refused], QuestionKind::Tcp)
            .await
            .unwrap_err()
            .kind,
        ProblemKind::Refused
    );
}

#[tokio::test]
async fn the_path_mtu_is_that_of_the_devices() {
    let server = server().await;
    let found = asked(&server.to_string(), QuestionKind::Path { largest: 1500 }).await;
    assert_eq!(
        found,
        Ok(MeasuredAnswer::Passes {
            largest: 1500,
            vanished: None
        })
    );
}

#[tokio::test]
async fn throughput_counts_what_arrived() {
    let server = server().await.to_string();
    let carried = |found: Result<MeasuredAnswer, AnswerProblem>| {
        let Ok(MeasuredAnswer::Carried {
            bytes,
            seconds,
            sent,
        }) = found
        else {
            panic!("{found:?}")
        };
        assert!(
            bytes > 0 && bytes <= sent && seconds >= 0.1,
            "{bytes} of {sent} in {seconds}"
        );
        (bytes, sent)
    };
    let (bytes, sent) = carried(
        asked(
            &server,
            QuestionKind::Stream {
                seconds: 0.1,
                connections: 3,
            },
        )
        .await,
    );
    assert_eq!(bytes, sent, "TCP loses nothing");
    carried(
        asked(
            &server,
            QuestionKind::Flood {
                seconds: 0.1,
                bytes: 1200,
            },
        )
        .await,
    );
    let found = asked(&server, QuestionKind::Latency { seconds: 0.1 }).await;
    let Ok(MeasuredAnswer::Latency { p50, p99, count }) = found else {
        panic!("{found:?}")
    };
    assert!(count > 0 && p50 > 0.0 && p50 <= p99);
}

#[tokio::test]
async fn each_failure_has_its_kind() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = listener.local_addr().unwrap().to_string();
    let kind = async |what| asked_with(None, 400, &silent, what).await.unwrap_err().kind;
    assert_eq!(
        kind(QuestionKind::Bulk { bytes: 10_000_000 }).await,
        ProblemKind::NoAnswer
    );
    drop(listener);
    assert_eq!(kind(QuestionKind::Tcp).await, ProblemKind::Refused);
    assert_eq!(
        kind(QuestionKind::Udp { bytes: 0 }).await,
        ProblemKind::Refused
    );
    assert_eq!(
        asked("nobody.invalid:1", QuestionKind::Tcp)
            .await
            .unwrap_err()
            .kind,
        ProblemKind::UnknownName
    );
}

#[tokio::test]
async fn requests_without_the_token_are_not_answered() {
    let server = server_for(Some("open")).await.to_string();
    let all = [
        QuestionKind::Tcp,
        QuestionKind::Udp { bytes: 0 },
        QuestionKind::Bulk { bytes: 1000 },
        QuestionKind::Path { largest: 1500 },
        QuestionKind::Latency { seconds: 0.1 },
        QuestionKind::Stream {
            seconds: 0.1,
            connections: 1,
        },
        QuestionKind::Flood {
            seconds: 0.1,
            bytes: 1200,
        },
    ];
    for what in all {
        let found = asked_with(Some("open"), 2000, &server, what.clone()).await;
        assert!(found.is_ok(), "{what:?}: {found:?}");
    }
    for token in [None, Some("ope"), Some("opener")] {
        for what in [
            QuestionKind::Tcp,
            QuestionKind::Udp { bytes: 0 },
            QuestionKind::Bulk { bytes: 1000 },
        ] {
            assert!(
                asked_with(token, 100, &server, what).await.is_err(),
                "{token:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_datagram_that_is_shorter_than_its_answer_is_not_answered() {
    let socket = datagram::connect_socket(server().await).await.unwrap();
    socket.send(b"who short").await.unwrap();
    socket
        .send(&padded_datagram("who long", MIN_LEN))
        .await
        .unwrap();
    let mut buffer = [0; 2048];
    let length = timeout(Duration::from_secs(5), socket.recv(&mut buffer))
        .await
        .unwrap()
        .unwrap();
    assert!(buffer.starts_with(b"long ") && length <= MIN_LEN);
    assert!(
        timeout(Duration::from_millis(100), socket.recv(&mut buffer))
            .await
            .is_err()
    );
}

#[tokio::test]
async fn a_plain_http_client_is_answered() {
    let mut stream = BufReader::new(TcpStream::connect(server().await).await.unwrap());
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    let mut text = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut text)
        .await
        .unwrap();
    assert!(
        text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains(r#""pod":"p""#),
        "{text}"
    );
}
