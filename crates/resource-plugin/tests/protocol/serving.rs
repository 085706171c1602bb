//! Features of the SDK: TLS, health checks, reflection.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use super::support::{FakeSource, Plugin, TIMEOUT, loopback, reach, settings};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use liqo_resource_plugin::{
    CallFault, ClientTls, Generation, Options, Pem, PluginClient, Pool, ResourceSource, ServeError,
    Server, Settings, SourceError, SubscriptionState, async_trait,
};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

/// Certificates in a folder that is removed when the test ends.
struct Certificates(PathBuf);

impl Certificates {
    fn create(test: &str) -> Self {
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let certificates = Self(folder);
        for authority in ["plugin", "liqo"] {
            let mut params = CertificateParams::new([]).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().unwrap();
            certificates.write(
                &format!("{authority}-ca.pem"),
                &params.self_signed(&key).unwrap().pem(),
            );
            let issuer = Issuer::new(params, key);
            let mut params = CertificateParams::new(["plugin.liqo".to_owned()]).unwrap();
            params.extended_key_usages = vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ];
            let key = KeyPair::generate().unwrap();
            certificates.write(
                &format!("{authority}.pem"),
                &params.signed_by(&key, &issuer).unwrap().pem(),
            );
            certificates.write(&format!("{authority}.key"), &key.serialize_pem());
        }
        certificates
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn pair(&self, name: &str) -> (Pem, Pem) {
        (
            self.file(&format!("{name}.pem")).into(),
            self.file(&format!("{name}.key")).into(),
        )
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn both_ends_check_the_certificate_of_the_other() {
    let files = Certificates::create("mutual");
    let options = Options {
        tls_cert: Some(files.file("plugin.pem")),
        tls_key: Some(files.file("plugin.key")),
        tls_client_ca: Some(files.file("liqo-ca.pem")),
        ..loopback()
    };
    let plugin = Plugin::start(FakeSource::with(&["cpu=1"]), &options).await;
    let tls = |authority: &str, identity, name: &str| ClientTls {
        authority: files.file(authority).into(),
        identity,
        server_name: Some(name.to_owned()),
    };
    let client = |tls| {
        PluginClient::new(Settings {
            tls,
            ..settings(plugin.address)
        })
        .unwrap()
    };

    let good = client(Some(tls(
        "plugin-ca.pem",
        Some(files.pair("liqo")),
        "plugin.liqo",
    )));
    assert_eq!(good.read("rome").await.unwrap().len(), 1);
    reach(&mut good.subscription_state(), |state| {
        *state == SubscriptionState::Connected
    })
    .await;
    for (what, wrong) in [
        ("plain text", None),
        (
            "no client certificate",
            Some(tls("plugin-ca.pem", None, "plugin.liqo")),
        ),
        (
            "a client certificate of another authority",
            Some(tls(
                "plugin-ca.pem",
                Some(files.pair("plugin")),
                "plugin.liqo",
            )),
        ),
        (
            "a plugin of another authority",
            Some(tls("liqo-ca.pem", Some(files.pair("liqo")), "plugin.liqo")),
        ),
        (
            "a plugin of another name",
            Some(tls("plugin-ca.pem", Some(files.pair("liqo")), "other.liqo")),
        ),
    ] {
        let error = client(wrong).read("rome").await.unwrap_err();
        assert!(
            matches!(
                error.fault,
                CallFault::Unreachable(_) | CallFault::Timeout(_)
            ),
            "{what}: {error}"
        );
    }
    let error = client(Some(tls("nothing.pem", None, "plugin.liqo")))
        .read("rome")
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("nothing.pem"), "{error}");
    plugin.stop().await;
}

#[tokio::test]
async fn invalid_certificates_are_reported_at_the_start() {
    let files = Certificates::create("unusable");
    let bind = |cert: &str, key: &str| {
        let options = Options {
            tls_cert: Some(files.file(cert)),
            tls_key: Some(files.file(key)),
            ..loopback()
        };
        async move { Server::bind(&options).await.map(drop) }
    };
    let error = bind("nothing.pem", "plugin.key").await.unwrap_err();
    assert!(
        matches!(
            &error,
            ServeError::File {
                flag: "--tls-cert",
                ..
            }
        ),
        "{error}"
    );
    for (cert, key) in [
        ("plugin.pem", "liqo.key"),
        ("plugin.key", "plugin.key"),
        ("plugin.pem", "plugin.pem"),
    ] {
        let error = bind(cert, key).await.unwrap_err();
        assert!(
            matches!(&error, ServeError::Tls(_)),
            "{cert} {key}: {error}"
        );
    }
}

fn channel(plugin: &Plugin) -> Channel {
    Endpoint::from_shared(format!("http://{}", plugin.address))
        .unwrap()
        .connect_lazy()
}

/// A source that is ready when the test says so.
struct Slow(watch::Receiver<bool>);

#[async_trait]
impl ResourceSource for Slow {
    async fn read(&self, _: &str) -> Result<Vec<Pool>, SourceError> {
        Err(SourceError::NotReady("not listed yet".to_owned()))
    }

    async fn ready(&self) {
        let _ = self.0.clone().wait_for(|ready| *ready).await;
    }
}

#[tokio::test]
async fn a_plugin_is_alive_at_once_and_ready_when_its_source_is() {
    let (ready, source) = watch::channel(false);
    let plugin = Plugin::start(Slow(source), &loopback()).await;
    let mut health = HealthClient::new(channel(&plugin));
    let status = |service: &str| HealthCheckRequest {
        service: service.to_owned(),
    };
    assert_eq!(
        health.check(status("")).await.unwrap().into_inner().status,
        1,
        "alive"
    );
    let mut watched = health
        .watch(status("resource_reader"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        watched.message().await.unwrap().unwrap().status,
        2,
        "not ready"
    );
    ready.send_replace(true);
    assert_eq!(
        tokio::time::timeout(TIMEOUT, watched.message())
            .await
            .unwrap()
            .unwrap()
            .unwrap()
            .status,
        1,
        "ready"
    );
    plugin.stop().await;
}

#[tokio::test]
async fn reflection_describes_the_generation_of_the_plugin() {
    for generation in [Generation::P1, Generation::P2, Generation::P3] {
        let plugin = Plugin::start(
            FakeSource::with(&["cpu=1"]),
            &Options {
                generation,
                ..loopback()
            },
        )
        .await;
        let mut reflection = ServerReflectionClient::new(channel(&plugin));
        let question = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::FileContainingSymbol(
                "resource_reader.ReadResources".to_owned(),
            )),
        };
        let mut answers = reflection
            .server_reflection_info(stream::iter([question]))
            .await
            .unwrap()
            .into_inner();
        let Some(MessageResponse::FileDescriptorResponse(files)) =
            answers.next().await.unwrap().unwrap().message_response
        else {
            unreachable!("reflection answers with a file")
        };
        let file = Bytes::from(files.file_descriptor_proto.concat());
        let name = format!("{generation}.proto").to_lowercase();
        assert!(
            file.windows(name.len()).any(|part| part == name.as_bytes()),
            "{file:?}"
        );
        plugin.stop().await;
    }
}

#[tokio::test]
async fn many_subscribers_are_served_and_too_many_are_refused() {
    let plugin = Plugin::start(FakeSource::with(&["cpu=1"]), &loopback()).await;
    let clients: Vec<_> = (0..64)
        .map(|_| PluginClient::new(settings(plugin.address)).unwrap())
        .collect();
    for client in &clients {
        reach(&mut client.subscription_state(), |state| {
            *state == SubscriptionState::Connected
        })
        .await;
    }
    let one_more = PluginClient::new(Settings {
        longest_delay: Duration::from_millis(50),
        ..settings(plugin.address)
    })
    .unwrap();
    let refused = reach(&mut one_more.subscription_state(), |state| {
        *state != SubscriptionState::Connecting
    })
    .await;
    assert!(
        matches!(&refused, SubscriptionState::NotSubscribed(reason) if reason.contains("64 subscribers")),
        "{refused:?}"
    );
    drop(clients);
    reach(&mut one_more.subscription_state(), |state| {
        *state == SubscriptionState::Connected
    })
    .await;
    plugin.stop().await;
}

#[tokio::test]
async fn a_plugin_that_is_told_to_stop_is_not_ready_at_once_and_still_answers_for_a_while() {
    let linger = Duration::from_secs(2);
    let server = Server::bind(&loopback()).await.unwrap().lingering(linger);
    let address = server.address().unwrap();
    let (ask, asked) = tokio::sync::oneshot::channel::<()>();
    let serving =
        tokio::spawn(server.run(FakeSource::with(&["cpu=1"]), async { drop(asked.await) }));
    let subscribed = PluginClient::new(settings(address)).unwrap();
    reach(&mut subscribed.subscription_state(), |state| {
        *state == SubscriptionState::Connected
    })
    .await;
    let mut health = HealthClient::new(
        Endpoint::from_shared(format!("http://{address}"))
            .unwrap()
            .connect_lazy(),
    );
    let service = HealthCheckRequest {
        service: "resource_reader".to_owned(),
    };
    let mut watched = health.watch(service).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status, 1, "ready");

    let began = std::time::Instant::now();
    ask.send(()).unwrap();
    assert_eq!(
        watched.message().await.unwrap().unwrap().status,
        2,
        "not ready any more"
    );
    let newcomer = PluginClient::new(settings(address)).unwrap();
    assert_eq!(newcomer.read("rome").await.unwrap().len(), 1);
    assert!(
        began.elapsed() < linger,
        "the test was too slow to check anything"
    );
    assert_eq!(
        *subscribed.subscription_state().borrow(),
        SubscriptionState::Connected,
        "open subscriptions stay"
    );

    tokio::time::timeout(TIMEOUT, serving)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(began.elapsed() >= linger);
    reach(&mut subscribed.subscription_state(), |state| {
        *state != SubscriptionState::Connected
    })
    .await;
}
