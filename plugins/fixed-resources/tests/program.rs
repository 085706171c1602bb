//! Tests of the program with a client that uses none of our code: HTTP/2, and bytes written by
//! hand.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    future::poll_fn,
    io::{BufRead as _, BufReader},
    net::TcpListener,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use h2::{RecvStream, client::SendRequest};
use http::Request;
use tokio::net::TcpStream;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fixed-resources");
const TIMEOUT: Duration = Duration::from_secs(20);

/// The running program. It ends with the test.
struct Program {
    child: Child,
    port: u16,
}

impl Program {
    /// Starts the program and waits until it listens.
    fn start(arguments: &[&str]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let mut child = Command::new(PROGRAM)
            .args(["--address=127.0.0.1", &format!("--port={port}")])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let listens = lines
            .by_ref()
            .map_while(Result::ok)
            .any(|line| line.contains("listening"));
        assert!(listens, "the program ended: {:?}", child.wait());
        // A full pipe would block the program.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, port }
    }

    async fn call(&self, path: &str, message: &[u8]) -> RecvStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut client: SendRequest<Bytes> = client.ready().await.unwrap();
        let request = Request::post(format!(
            "http://127.0.0.1:{}/resource_reader/{path}",
            self.port
        ))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
        let (answer, mut body) = client.send_request(request, false).unwrap();
        let length = u32::try_from(message.len()).unwrap();
        body.send_data(
            [&[0], &length.to_be_bytes()[..], message].concat().into(),
            true,
        )
        .unwrap();
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(
            answer.headers().get("grpc-status"),
            None,
            "{:?}",
            answer.headers()
        );
        answer.into_body()
    }

    async fn ask(&self, path: &str, message: &[u8]) -> Vec<u8> {
        let mut body = self.call(path, message).await;
        let message = next_message(&mut body, &mut BytesMut::new())
            .await
            .expect("an answer");
        assert_eq!(
            body.trailers()
                .await
                .unwrap()
                .unwrap()
                .get("grpc-status")
                .unwrap(),
            "0"
        );
        message
    }

    fn terminate(mut self) -> bool {
        let asked = Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status()
            .unwrap();
        assert!(asked.success());
        let started = Instant::now();
        while started.elapsed() < TIMEOUT {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it does not end");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the next message from frames of gRPC.
async fn next_message(body: &mut RecvStream, buffer: &mut BytesMut) -> Option<Vec<u8>> {
    loop {
        if buffer.len() >= 5 {
            let length = u32::from_be_bytes(buffer[1..5].try_into().unwrap()) as usize;
            if buffer.len() >= 5 + length {
                return Some(buffer.split_to(5 + length)[5..].to_vec());
            }
        }
        let data = poll_fn(|context| body.poll_data(context)).await?.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        buffer.extend_from_slice(&data);
    }
}

const ARGUMENTS: [&str; 3] = [
    "--resource=cpu=2000m",
    "--resource=memory=2G,pods=10",
    "--resource=nvidia.com/gpu=1",
];

#[tokio::test]
async fn each_generation_has_its_golden_bytes_for_every_cluster() {
    let text =
        b"\n\x08\n\x03cpu\x12\x012\n\x0c\n\x06memory\x12\x022G\n\x13\n\x0envidia.com/gpu\x12\x011\n\x0a\n\x04pods\x12\x0210";
    let list =
        b"\n\x0a\n\x03cpu\x12\x03\n\x012\n\x0e\n\x06memory\x12\x04\n\x022G\n\x15\n\x0envidia.com/gpu\x12\x03\n\x011\n\x0c\n\x04pods\x12\x04\n\x0210";
    let pools = [b"\n\x41", &list[..]].concat();
    for (generation, expected) in [("p1", &text[..]), ("p2", list), ("p3", &pools)] {
        let program = Program::start(&[&ARGUMENTS[..], &["--generation", generation]].concat());
        for cluster in [&b"\n\x04rome"[..], b"\n\x05milan"] {
            assert_eq!(
                program.ask("ReadResources", cluster).await,
                expected,
                "{generation}"
            );
        }
        assert_eq!(
            program.ask("RemoveCluster", b"\n\x04rome").await,
            b"",
            "{generation}"
        );
    }
}

#[tokio::test]
async fn prices_follow_the_amounts_of_the_pool() {
    let program = Program::start(&[
        "--resource=cpu=2,memory=2G,pods=10",
        "--price=cpu=0.040,memory=1",
        "--currency=EUR",
    ]);
    let amounts = b"\n\x0a\n\x03cpu\x12\x03\n\x012\n\x0e\n\x06memory\x12\x04\n\x022G\n\x0c\n\x04pods\x12\x04\n\x0210";
    let prices = b"\n\x03EUR\x12\x0b\n\x03cpu\x12\x040.04\x12\x0b\n\x06memory\x12\x011";
    let pool = [&amounts[..], b"\x22\x1f", prices].concat();
    assert_eq!(
        program.ask("ReadResources", b"\n\x04rome").await,
        [&[b'\n', u8::try_from(pool.len()).unwrap()], &pool[..]].concat()
    );
}

#[tokio::test]
async fn a_subscriber_gets_all_once_and_its_stream_ends_with_the_program() {
    let program = Program::start(&ARGUMENTS);
    let mut body = program.call("Subscribe", b"").await;
    let mut buffer = BytesMut::new();
    assert_eq!(
        next_message(&mut body, &mut buffer).await.unwrap(),
        b"",
        "an empty ID means every cluster"
    );
    let nothing = tokio::time::timeout(
        Duration::from_millis(200),
        next_message(&mut body, &mut buffer),
    )
    .await;
    assert!(nothing.is_err(), "the stream stays open and silent");
    assert!(
        tokio::task::spawn_blocking(|| program.terminate())
            .await
            .unwrap(),
        "it exits with success"
    );
    let end = tokio::time::timeout(TIMEOUT, next_message(&mut body, &mut buffer))
        .await
        .unwrap();
    assert_eq!(end, None, "no more messages");
    assert_eq!(
        body.trailers()
            .await
            .unwrap()
            .unwrap()
            .get("grpc-status")
            .unwrap(),
        "0"
    );
}

fn run(arguments: &[&str]) -> (Output, String) {
    let output = Command::new(PROGRAM).args(arguments).output().unwrap();
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    (output, errors)
}

#[test]
fn the_error_of_an_invalid_argument_is_one_line() {
    for (arguments, expected) in [
        (&["--resource="][..], "no resource is given"),
        (
            &["--resource=ram=1Gi"],
            "\"ram\" is not the name of a resource",
        ),
        (
            &["--resource=cpu=-1"],
            "the quantity of cpu is -1; it can't be negative",
        ),
        (&["--resource=cpu=0"], "cpu is zero"),
        (
            &["--resource=cpu=1", "--resource=cpu=2"],
            "cpu is given more than once",
        ),
        (&["--resource=cpu=much"], "the quantity of cpu"),
    ] {
        let (output, errors) = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(
            errors.starts_with("fixed-resources: --resource: ") && errors.contains(expected),
            "{arguments:?}: {errors}"
        );
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    let (output, errors) = run(&[
        "--resource=cpu=1",
        "--price=cpu=1",
        "--currency=EUR",
        "--generation=p2",
    ]);
    assert_eq!(
        (output.status.code(), errors.as_str()),
        (
            Some(2),
            "fixed-resources: --price: only generation p3 of the protocol has prices\n"
        )
    );
    for arguments in [
        &[][..],
        &["--resource=cpu=1", "--port=65536"],
        &["--resource=cpu=1", "--port=0"],
        &["--resource=cpu=1", "--tls-key=f"],
        &["--resource=cpu=1", "--price=cpu=1"],
        &["--resource=cpu=1", "--currency=EUR"],
        &["--resource=cpu=1", "--price=cpu=-1", "--currency=EUR"],
        &["--resource=cpu=1", "--price=gpu=1", "--currency=EUR"],
        &["--resource=cpu=1", "--price=cpu=1", "--currency=E R"],
    ] {
        let (output, errors) = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.starts_with("error: "), "{errors}");
    }
}

#[test]
fn a_port_that_is_in_use_is_a_failure_with_a_hint() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (output, errors) = run(&[
        "--resource=cpu=1,memory=1,pods=1",
        "--address=127.0.0.1",
        "--port",
        &port,
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        errors.contains(&format!("cannot listen on 127.0.0.1:{port}")),
        "{errors}"
    );
}

#[test]
fn there_is_a_warning_if_a_resource_that_pods_need_is_not_offered() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut child = Command::new(PROGRAM)
        .args([
            "--resource=memory=2G",
            "--address=127.0.0.1",
            &format!("--port={port}"),
        ])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let said: Vec<String> = lines
        .map_while(Result::ok)
        .take_while(|line| !line.contains("listening"))
        .collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        said.iter()
            .any(|line| line.contains("WARN") && line.contains("no cpu, pods is offered")),
        "{said:?}"
    );
}
