//! Both ends with each other, over loopback.
#![allow(clippy::unwrap_used)]

mod support;

use std::{sync::Arc, time::Duration};

use liqo_resource_plugin::{
    Change, Fault, Generation, Options, PluginClient, Pool, ServeError, Server, Settings, State, arguments::resources,
};
use support::{PATIENCE, Plugin, Shelf, heard, loopback, next, reach, settings};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tonic::Code;

async fn client(settings: Settings) -> PluginClient {
    let client = PluginClient::new(settings).unwrap();
    reach(&mut client.state(), |state| *state == State::Connected).await;
    client
}

#[tokio::test]
async fn in_every_generation_what_is_offered_arrives() {
    for generation in [Generation::P1, Generation::P2, Generation::P3] {
        let shelf = Arc::new(Shelf::with(&["cpu=1500m", "memory=4Gi", "nvidia.com/gpu=1"]));
        let plugin = Plugin::start(shelf.clone(), &Options { generation, ..loopback() }).await;
        let client = client(Settings { generation, ..settings(plugin.address) }).await;
        let pools = client.read("rome").await.unwrap();
        assert_eq!(pools, *shelf.pools.lock().unwrap(), "{generation}");
        client.remove("rome").await.unwrap();
        client.remove("").await.unwrap();
        assert_eq!(*shelf.removed.lock().unwrap(), ["rome"], "{generation}");
        plugin.stop().await;
    }
}

#[tokio::test]
async fn changes_are_told_once_to_each_subscriber_and_the_newcomer_alone_is_told_all() {
    let shelf = Arc::new(Shelf::with(&["cpu=1"]));
    let plugin = Plugin::start(shelf.clone(), &loopback()).await;
    let first = client(settings(plugin.address)).await;
    let mut first_hears = first.changes();
    shelf.announcer.announce(&Change::Cluster("rome".to_owned()));
    assert_eq!(next(&mut first_hears).await, Change::Cluster("rome".to_owned()));

    let second = PluginClient::new(settings(plugin.address)).unwrap();
    let mut second_hears = second.changes();
    assert_eq!(next(&mut second_hears).await, Change::All);
    reach(&mut second.state(), |state| *state == State::Connected).await;
    shelf.announcer.announce(&Change::Cluster("milan".to_owned()));
    assert_eq!(next(&mut second_hears).await, Change::Cluster("milan".to_owned()));
    assert_eq!(next(&mut first_hears).await, Change::Cluster("milan".to_owned()), "nothing was said when the second came");
    assert_eq!((heard(&mut first_hears), heard(&mut second_hears)), (vec![], vec![]));
    plugin.stop().await;
}

#[tokio::test]
async fn a_first_generation_plugin_says_only_that_something_changed() {
    let shelf = Arc::new(Shelf::with(&["cpu=1"]));
    let plugin = Plugin::start(shelf.clone(), &Options { generation: Generation::P1, ..loopback() }).await;
    let client = client(Settings { generation: Generation::P1, ..settings(plugin.address) }).await;
    let mut changes = client.changes();
    shelf.announcer.announce(&Change::Cluster("rome".to_owned()));
    assert_eq!(next(&mut changes).await, Change::All);
    plugin.stop().await;
}

#[tokio::test]
async fn the_wrong_generation_is_named_with_the_plugin_and_the_cluster() {
    let plugin = Plugin::start(Shelf::with(&["cpu=1"]), &Options { generation: Generation::P2, ..loopback() }).await;
    let client = client(settings(plugin.address)).await;
    assert_eq!(
        client.read("rome").await.unwrap_err().to_string(),
        format!(
            "resource plugin {}, asked about cluster rome: its answer is not P3: is it a P2 plugin? Then set the generation to P2",
            plugin.address
        )
    );
    plugin.stop().await;
}

#[tokio::test]
async fn what_the_source_says_instead_of_an_answer_arrives() {
    let shelf = Arc::new(Shelf::default());
    let plugin = Plugin::start(shelf.clone(), &Options { generation: Generation::P2, ..loopback() }).await;
    let client =
        client(Settings { generation: Generation::P2, deadline: Duration::from_millis(300), ..settings(plugin.address) }).await;
    for (cluster, expected) in
        [("unknown", Code::NotFound), ("early", Code::Unavailable), ("broken", Code::Internal), ("", Code::InvalidArgument)]
    {
        let error = client.read(cluster).await.unwrap_err();
        assert!(matches!(error.fault, Fault::Refused { code, .. } if code == expected), "{error}");
    }
    let error = client.read("hanging").await.unwrap_err();
    assert!(error.to_string().ends_with("asked about cluster hanging: it did not answer within 300ms"), "{error}");
    assert!(client.read("rome").await.unwrap_err().to_string().ends_with("its answer is empty: it offers nothing"));
    *shelf.pools.lock().unwrap() = ["a", "b"].map(|name| Pool::named(name, resources(["cpu=1"]).unwrap())).into();
    let error = client.read("rome").await.unwrap_err();
    assert!(error.to_string().contains("P2 can tell of one pool, not of 2"), "{error}");
    plugin.stop().await;
}

#[tokio::test]
async fn an_absent_plugin_is_waited_for_and_one_that_comes_back_is_found_again() {
    let reserved = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = reserved.local_addr().unwrap();
    drop(reserved);
    let client = PluginClient::new(settings(address)).unwrap();
    let (mut state, mut changes) = (client.state(), client.changes());
    let unreachable = reach(&mut state, |state| matches!(state, State::Unreachable(_))).await;
    assert!(format!("{unreachable:?}").contains("refused"), "{unreachable:?}");
    assert!(matches!(client.read("rome").await.unwrap_err().fault, Fault::Unreachable(_)));
    assert_eq!(heard(&mut changes), []);

    for _ in 0..2 {
        let plugin = Plugin::start(Shelf::with(&["cpu=1"]), &Options { port: address.port(), ..loopback() }).await;
        reach(&mut state, |state| *state == State::Connected).await;
        assert_eq!(next(&mut changes).await, Change::All);
        assert_eq!(client.read("rome").await.unwrap().len(), 1);
        plugin.stop().await;
        reach(&mut state, |state| *state != State::Connected).await;
        heard(&mut changes);
    }
}

#[tokio::test]
async fn open_subscriptions_do_not_keep_a_plugin_from_ending() {
    let plugin = Plugin::start(Shelf::with(&["cpu=1"]), &loopback()).await;
    // So slow to subscribe again that it stays visible how the first time ended.
    let patient = || Settings { shortest_delay: PATIENCE, longest_delay: PATIENCE, ..settings(plugin.address) };
    let clients = [client(patient()).await, client(patient()).await];
    plugin.stop().await;
    for client in clients {
        let end = reach(&mut client.state(), |state| *state != State::Connected).await;
        assert_eq!(end, State::NotSubscribed("it ended the subscription".to_owned()), "in order, not cut off");
    }
}

#[tokio::test]
async fn a_port_that_is_taken_is_said_in_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = Server::bind(&Options { port, ..loopback() }).await.unwrap_err();
    assert!(matches!(&error, ServeError::Listen { .. }), "{error}");
    assert!(error.to_string().starts_with(&format!("cannot listen on 127.0.0.1:{port}: ")), "{error}");
}

#[tokio::test]
async fn what_a_plugin_does_shows_in_its_metrics_and_probes() {
    let reserved = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let metrics_port = reserved.local_addr().unwrap().port();
    drop(reserved);
    let shelf = Arc::new(Shelf::with(&["cpu=1"]));
    let plugin = Plugin::start(shelf, &Options { metrics_port, ..loopback() }).await;
    let client = client(settings(plugin.address)).await;
    client.read("rome").await.unwrap();
    client.read("broken").await.unwrap_err();
    client.remove("rome").await.unwrap();
    let text = get(metrics_port, "/metrics").await;
    for line in [
        r#"liqo_plugin_reads_total{outcome="success"} 1"#,
        r#"liqo_plugin_reads_total{outcome="error"} 1"#,
        "liqo_plugin_removals_total 1",
        "liqo_plugin_notifications_total 1",
        "liqo_plugin_subscribers 1",
    ] {
        assert!(text.contains(line), "no {line} in {text}");
    }
    assert!(get(metrics_port, "/healthz").await.starts_with("HTTP/1.1 200"));
    assert!(get(metrics_port, "/readyz").await.starts_with("HTTP/1.1 200"));
    plugin.stop().await;
}

async fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: plugin\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}
