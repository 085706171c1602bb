//! The client and the SDK with each other, over loopback.

use std::{sync::Arc, time::Duration};

use super::support::{FakeSource, Plugin, TIMEOUT, loopback, next, reach, received, settings};
use liqo_resource_plugin::{
    CallFault, Change, Generation, Options, PluginClient, Pool, ServeError, Server, Settings,
    SubscriptionState, arguments::resources,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tonic::Code;

async fn client(settings: Settings) -> PluginClient {
    let client = PluginClient::new(settings).unwrap();
    reach(&mut client.subscription_state(), |state| {
        *state == SubscriptionState::Connected
    })
    .await;
    client
}

#[tokio::test]
async fn offers_arrive_in_every_generation() {
    for generation in [Generation::P1, Generation::P2, Generation::P3] {
        let source = Arc::new(FakeSource::with(&[
            "cpu=1500m",
            "memory=4Gi",
            "nvidia.com/gpu=1",
        ]));
        let plugin = Plugin::start(
            source.clone(),
            &Options {
                generation,
                ..loopback()
            },
        )
        .await;
        let client = client(Settings {
            generation,
            ..settings(plugin.address)
        })
        .await;
        let pools = client.read("rome").await.unwrap();
        assert_eq!(pools, *source.pools.lock().unwrap(), "{generation}");
        client.remove("rome").await.unwrap();
        client.remove("").await.unwrap();
        assert_eq!(*source.removed.lock().unwrap(), ["rome"], "{generation}");
        plugin.stop().await;
    }
}

#[tokio::test]
async fn each_subscriber_gets_each_change_once_and_only_a_new_one_gets_all() {
    let source = Arc::new(FakeSource::with(&["cpu=1"]));
    let plugin = Plugin::start(source.clone(), &loopback()).await;
    let first = client(settings(plugin.address)).await;
    let mut first_changes = first.changes();
    source
        .announcer
        .announce(&Change::Cluster("rome".to_owned()));
    assert_eq!(
        next(&mut first_changes).await,
        Change::Cluster("rome".to_owned())
    );

    let second = PluginClient::new(settings(plugin.address)).unwrap();
    let mut second_changes = second.changes();
    assert_eq!(next(&mut second_changes).await, Change::All);
    reach(&mut second.subscription_state(), |state| {
        *state == SubscriptionState::Connected
    })
    .await;
    source
        .announcer
        .announce(&Change::Cluster("milan".to_owned()));
    assert_eq!(
        next(&mut second_changes).await,
        Change::Cluster("milan".to_owned())
    );
    assert_eq!(
        next(&mut first_changes).await,
        Change::Cluster("milan".to_owned()),
        "the first got nothing when the second came"
    );
    assert_eq!(
        (received(&mut first_changes), received(&mut second_changes)),
        (vec![], vec![])
    );
    plugin.stop().await;
}

#[tokio::test]
async fn a_notification_of_the_first_generation_names_no_cluster() {
    let source = Arc::new(FakeSource::with(&["cpu=1"]));
    let plugin = Plugin::start(
        source.clone(),
        &Options {
            generation: Generation::P1,
            ..loopback()
        },
    )
    .await;
    let client = client(Settings {
        generation: Generation::P1,
        ..settings(plugin.address)
    })
    .await;
    let mut changes = client.changes();
    source
        .announcer
        .announce(&Change::Cluster("rome".to_owned()));
    assert_eq!(next(&mut changes).await, Change::All);
    plugin.stop().await;
}

#[tokio::test]
async fn the_error_of_a_wrong_generation_names_the_plugin_and_the_cluster() {
    let plugin = Plugin::start(
        FakeSource::with(&["cpu=1"]),
        &Options {
            generation: Generation::P2,
            ..loopback()
        },
    )
    .await;
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
async fn errors_of_the_source_arrive() {
    let source = Arc::new(FakeSource::default());
    let plugin = Plugin::start(
        source.clone(),
        &Options {
            generation: Generation::P2,
            ..loopback()
        },
    )
    .await;
    let client = client(Settings {
        generation: Generation::P2,
        deadline: Duration::from_millis(300),
        ..settings(plugin.address)
    })
    .await;
    for (cluster, expected) in [
        ("unknown", Code::NotFound),
        ("early", Code::Unavailable),
        ("broken", Code::Internal),
        ("", Code::InvalidArgument),
    ] {
        let error = client.read(cluster).await.unwrap_err();
        assert!(
            matches!(error.fault, CallFault::Refused { code, .. } if code == expected),
            "{error}"
        );
    }
    let error = client.read("hanging").await.unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("asked about cluster hanging: it did not answer within 300ms"),
        "{error}"
    );
    assert!(
        client
            .read("rome")
            .await
            .unwrap_err()
            .to_string()
            .ends_with("its answer is empty: it offers nothing")
    );
    *source.pools.lock().unwrap() = ["a", "b"]
        .map(|name| Pool::named(name, resources(["cpu=1"]).unwrap()))
        .into();
    let error = client.read("rome").await.unwrap_err();
    assert!(
        error.to_string().contains("P2 supports one pool, not 2"),
        "{error}"
    );
    plugin.stop().await;
}

#[tokio::test]
async fn the_client_subscribes_to_a_plugin_that_starts_later_or_comes_back() {
    let reserved = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = reserved.local_addr().unwrap();
    drop(reserved);
    let client = PluginClient::new(settings(address)).unwrap();
    let (mut state, mut changes) = (client.subscription_state(), client.changes());
    let unreachable = reach(&mut state, |state| {
        matches!(state, SubscriptionState::Unreachable(_))
    })
    .await;
    assert!(
        format!("{unreachable:?}").contains("refused"),
        "{unreachable:?}"
    );
    assert!(matches!(
        client.read("rome").await.unwrap_err().fault,
        CallFault::Unreachable(_)
    ));
    assert_eq!(received(&mut changes), []);

    for _ in 0..2 {
        let plugin = Plugin::start(
            FakeSource::with(&["cpu=1"]),
            &Options {
                port: address.port(),
                ..loopback()
            },
        )
        .await;
        reach(&mut state, |state| *state == SubscriptionState::Connected).await;
        assert_eq!(next(&mut changes).await, Change::All);
        assert_eq!(client.read("rome").await.unwrap().len(), 1);
        plugin.stop().await;
        reach(&mut state, |state| *state != SubscriptionState::Connected).await;
        received(&mut changes);
    }
}

#[tokio::test]
async fn open_subscriptions_do_not_keep_a_plugin_from_ending() {
    let plugin = Plugin::start(FakeSource::with(&["cpu=1"]), &loopback()).await;
    // They subscribe again so late that the test sees how the first subscription ended.
    let slow = || Settings {
        shortest_delay: TIMEOUT,
        longest_delay: TIMEOUT,
        ..settings(plugin.address)
    };
    let clients = [client(slow()).await, client(slow()).await];
    plugin.stop().await;
    for client in clients {
        let end = reach(&mut client.subscription_state(), |state| {
            *state != SubscriptionState::Connected
        })
        .await;
        assert_eq!(
            end,
            SubscriptionState::NotSubscribed("it ended the subscription".to_owned()),
            "the stream ended, the connection did not break"
        );
    }
}

#[tokio::test]
async fn the_error_names_a_port_that_is_in_use() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = Server::bind(&Options { port, ..loopback() })
        .await
        .unwrap_err();
    assert!(matches!(&error, ServeError::Listen { .. }), "{error}");
    assert!(
        error
            .to_string()
            .starts_with(&format!("cannot listen on 127.0.0.1:{port}: ")),
        "{error}"
    );
}

#[tokio::test]
async fn metrics_and_probes_show_what_a_plugin_does() {
    let reserved = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let metrics_port = reserved.local_addr().unwrap().port();
    drop(reserved);
    let source = Arc::new(FakeSource::with(&["cpu=1"]));
    let plugin = Plugin::start(
        source,
        &Options {
            metrics_port,
            ..loopback()
        },
    )
    .await;
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
    assert!(
        get(metrics_port, "/healthz")
            .await
            .starts_with("HTTP/1.1 200")
    );
    assert!(
        get(metrics_port, "/readyz")
            .await
            .starts_with("HTTP/1.1 200")
    );
    plugin.stop().await;
}

async fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream
        .write_all(
            format!("GET {path} HTTP/1.1\r\nHost: plugin\r\nConnection: close\r\n\r\n").as_bytes(),
        )
        .await
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}
