//! Plugins that break connections, hang, lie, flood, or end at once.

use std::{
    future::pending,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::support::{TIMEOUT, next, raw, reach, received, settings};
use h2::Reason;
use liqo_resource_plugin::{CallFault, Change, PluginClient, Settings, SubscriptionState, wire};
use tokio::net::TcpListener;

const CPU: &[u8] = b"\n\x0c\n\x0a\n\x03cpu\x12\x03\n\x012";

fn client(address: SocketAddr) -> PluginClient {
    PluginClient::new(settings(address)).unwrap()
}

#[tokio::test]
async fn a_plugin_that_accepts_a_connection_and_never_answers_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let silent = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok(connection) = listener.accept().await {
            held.push(connection);
        }
    });
    let client = PluginClient::new(Settings {
        deadline: Duration::from_millis(200),
        ..settings(address)
    })
    .unwrap();
    assert!(matches!(
        client.read("rome").await.unwrap_err().fault,
        CallFault::Timeout(_)
    ));
    let state = reach(&mut client.subscription_state(), |state| {
        *state != SubscriptionState::Connecting
    })
    .await;
    assert_eq!(
        state,
        SubscriptionState::Unreachable("it did not answer within 200ms".to_owned())
    );
    silent.abort();
}

#[tokio::test]
async fn a_plugin_that_hangs_is_detected_and_subscribed_to_again() {
    let hangs = Arc::new(AtomicUsize::new(0));
    let (address, _server) = raw::server({
        let hangs = hangs.clone();
        move |request, respond| {
            let hangs = hangs.clone();
            async move {
                if hangs.load(Ordering::SeqCst) == 1 {
                    pending::<()>().await;
                }
                match request.uri().path() {
                    wire::SUBSCRIBE => {
                        let _open = raw::open(respond);
                        pending::<()>().await;
                    }
                    _ => raw::unimplemented(respond),
                }
            }
        }
    })
    .await;
    let client = PluginClient::new(Settings {
        deadline: Duration::from_millis(300),
        ..settings(address)
    })
    .unwrap();
    let (mut state, mut changes) = (client.subscription_state(), client.changes());
    reach(&mut state, |state| *state == SubscriptionState::Connected).await;
    assert_eq!(next(&mut changes).await, Change::All);
    hangs.store(1, Ordering::SeqCst);
    reach(&mut state, |state| {
        matches!(state, SubscriptionState::Unreachable(_))
    })
    .await;
    hangs.store(0, Ordering::SeqCst);
    reach(&mut state, |state| *state == SubscriptionState::Connected).await;
    assert_eq!(
        next(&mut changes).await,
        Change::All,
        "nobody knows what happened meanwhile"
    );
}

#[tokio::test]
async fn a_plugin_that_accepts_the_subscription_silently_counts_as_connected() {
    // Some servers send their headers only with the first message.
    let (address, _server) = raw::server(|request, respond| async move {
        match request.uri().path() {
            wire::SUBSCRIBE => pending().await,
            wire::READ_RESOURCES => raw::unary(respond, CPU),
            _ => raw::unimplemented(respond),
        }
    })
    .await;
    let client = PluginClient::new(Settings {
        deadline: Duration::from_millis(300),
        ..settings(address)
    })
    .unwrap();
    let mut changes = client.changes();
    reach(&mut client.subscription_state(), |state| {
        *state == SubscriptionState::Connected
    })
    .await;
    assert_eq!(next(&mut changes).await, Change::All);
    assert_eq!(
        client.read("rome").await.unwrap()[0].resources.to_string(),
        "cpu=2"
    );
}

#[tokio::test]
async fn streams_that_end_at_once_are_retried_with_growing_delays_and_count_as_changes() {
    let attempts = Arc::new(AtomicUsize::new(0));
    for implemented in [true, false] {
        let counted = attempts.clone();
        counted.store(0, Ordering::SeqCst);
        let (address, _server) = raw::server(move |request, respond| {
            let counted = counted.clone();
            async move {
                if request.uri().path() == wire::SUBSCRIBE {
                    counted.fetch_add(1, Ordering::SeqCst);
                    if implemented {
                        raw::close(raw::open(respond));
                    } else {
                        raw::unimplemented(respond);
                    }
                } else {
                    raw::unary(respond, CPU);
                }
            }
        })
        .await;
        let client = client(address);
        let (mut state, mut changes) = (client.subscription_state(), client.changes());
        let found = reach(&mut state, |state| *state != SubscriptionState::Connecting).await;
        let reason = if implemented {
            "it ended the subscription"
        } else {
            "it has no method Subscribe"
        };
        assert_eq!(found, SubscriptionState::NotSubscribed(reason.to_owned()));
        assert_eq!(
            (next(&mut changes).await, next(&mut changes).await),
            (Change::All, Change::All)
        );
        state.mark_unchanged();
        // Delays of 20, 40, 80, 160, 200, 200 ms, each at least half of that: at most nine attempts
        // in a second.
        attempts.store(0, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let attempts = attempts.load(Ordering::SeqCst);
        assert!(
            (2..=13).contains(&attempts),
            "{attempts} attempts in a second"
        );
        assert!(!state.has_changed().unwrap(), "the state does not flicker");
        assert_eq!(
            client.read("rome").await.unwrap().len(),
            1,
            "reading still works"
        );
    }
}

#[tokio::test]
async fn a_broken_connection_is_opened_again() {
    let kill = Arc::new(tokio::sync::Notify::new());
    let (address, _server) = raw::server({
        let kill = kill.clone();
        move |request, mut respond| {
            let kill = kill.clone();
            async move {
                match request.uri().path() {
                    wire::SUBSCRIBE => {
                        let mut stream = raw::open(respond);
                        let _ = stream.send_data(raw::frame(b"\n\x05milan"), false);
                        kill.notified().await;
                        stream.send_reset(Reason::INTERNAL_ERROR);
                    }
                    wire::READ_RESOURCES => respond.send_reset(Reason::INTERNAL_ERROR),
                    _ => raw::unimplemented(respond),
                }
            }
        }
    })
    .await;
    let client = client(address);
    let (mut state, mut changes) = (client.subscription_state(), client.changes());
    for _ in 0..2 {
        assert_eq!(
            next(&mut changes).await,
            Change::Cluster("milan".to_owned())
        );
        assert_eq!(next(&mut changes).await, Change::All);
        reach(&mut state, |state| *state == SubscriptionState::Connected).await;
        assert!(matches!(
            client.read("rome").await.unwrap_err().fault,
            CallFault::Unreachable(_) | CallFault::Refused { .. }
        ));
        kill.notify_one();
        reach(&mut state, |state| *state != SubscriptionState::Connected).await;
    }
}

#[tokio::test]
async fn a_flood_of_notifications_is_one_change_for_each_cluster() {
    let sent = Arc::new(AtomicUsize::new(0));
    let (address, _server) = raw::server({
        let sent = sent.clone();
        move |request, respond| {
            let sent = sent.clone();
            async move {
                if request.uri().path() != wire::SUBSCRIBE {
                    return raw::unimplemented(respond);
                }
                let mut stream = raw::open(respond);
                while raw::send(&mut stream, raw::frame(b"\n\x04rome")).await
                    && raw::send(&mut stream, raw::frame(b"\n\x05milan")).await
                {
                    sent.fetch_add(2, Ordering::SeqCst);
                }
            }
        }
    })
    .await;
    let client = client(address);
    let mut changes = client.changes();
    reach(&mut client.subscription_state(), |state| {
        *state == SubscriptionState::Connected
    })
    .await;
    tokio::time::timeout(TIMEOUT, async {
        while sent.load(Ordering::SeqCst) < 2000 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("a flood");
    let pending = received(&mut changes);
    assert!(pending.len() <= 2, "{} changes wait", pending.len());
}

#[tokio::test]
async fn the_error_says_what_is_wrong_with_an_answer() {
    for (message, expected) in [
        (
            vec![b'\n'; (1 << 20) + 1],
            "it sent a message that is too large",
        ),
        (vec![0xff; 40], "its answer cannot be read as P3"),
        (vec![], "its answer is empty"),
        (
            b"\n\x0c\n\x0a\n\x03cpu\x12\x03\n\x01x".to_vec(),
            "the pool without a name has \"x\" of cpu",
        ),
        (
            b"\n\x0d\n\x0b\n\x03cpu\x12\x04\n\x02-1".to_vec(),
            "the pool without a name has -1 of cpu: an amount cannot be negative",
        ),
        (
            CPU.repeat(2),
            "the pool without a name appears more than once",
        ),
        ([CPU; 17].concat(), "there are 17 pools; the maximum is 16"),
        (
            b"\n\x0a\n\x03cpu\x12\x03\n\x012".to_vec(),
            "is it a P2 plugin?",
        ),
        (b"\n\x08\n\x03cpu\x12\x012".to_vec(), "is it a P1 plugin?"),
    ] {
        let (address, _server) = raw::server(move |request, respond| {
            let message = message.clone();
            async move {
                if request.uri().path() != wire::READ_RESOURCES {
                    return raw::unimplemented(respond);
                }
                let mut stream = raw::open(respond);
                if raw::send(&mut stream, raw::frame(&message)).await {
                    raw::close(stream);
                }
            }
        })
        .await;
        let error = client(address).read("rome").await.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!(
                "resource plugin {address}, asked about cluster rome: "
            )),
            "{error}"
        );
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn a_notification_that_cannot_be_decoded_means_that_anything_may_have_changed() {
    for (notification, ends) in [
        (b"\n\x7f".to_vec(), false),
        ([b"\n\xfe\x01".to_vec(), vec![b'a'; 254]].concat(), false),
        (vec![b'\n'; 5000], true),
    ] {
        let (address, _server) = raw::server(move |request, respond| {
            let notification = notification.clone();
            async move {
                if request.uri().path() != wire::SUBSCRIBE {
                    return raw::unimplemented(respond);
                }
                let mut stream = raw::open(respond);
                raw::send(&mut stream, raw::frame(&notification)).await;
                pending::<()>().await;
            }
        })
        .await;
        let client = client(address);
        let mut changes = client.changes();
        assert_eq!(next(&mut changes).await, Change::All);
        let state = reach(&mut client.subscription_state(), |state| {
            *state != SubscriptionState::Connecting
        })
        .await;
        assert_eq!(
            matches!(state, SubscriptionState::NotSubscribed(_)),
            ends,
            "{state:?}"
        );
    }
}
