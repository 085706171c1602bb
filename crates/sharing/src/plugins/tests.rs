//! A plugin and an API server, and what the plugin hears.

use liqo_api::PluginOvercommit;
use liqo_controller_runtime::{Clock, Informers, Peers, Tcp, events::EventRecorder};
use liqo_resource_plugin::{Options, Pool, ResourceSource, Server, SourceError, async_trait};
use liqo_simulation::{ApiServer, User};

use super::*;
use crate::tests::{cluster, list};

/// Which clusters a plugin was asked about, and of which it was told that the peering ended.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<[Vec<String>; 2]>>);

impl Heard {
    fn asked(&self) -> Vec<String> {
        self.0.lock().unwrap()[0].clone()
    }

    fn removed(&self) -> Vec<String> {
        self.0.lock().unwrap()[1].clone()
    }
}

#[async_trait]
impl ResourceSource for Heard {
    async fn read(&self, cluster: &str) -> Result<Vec<Pool>, SourceError> {
        self.0.lock().unwrap()[0].push(cluster.to_owned());
        Ok(vec![Pool::unnamed(list("cpu=1"))])
    }

    async fn removed(&self, cluster: &str) {
        self.0.lock().unwrap()[1].push(cluster.to_owned());
    }
}

/// Starts a plugin. It runs as long as the test.
async fn plugin() -> (PluginSource, Heard) {
    let options = Options {
        port: 0,
        address: [127, 0, 0, 1].into(),
        ..Options::default()
    };
    let (server, heard) = (Server::bind(&options).await.unwrap(), Heard::default());
    let address = server.address().unwrap().to_string();
    tokio::spawn(server.run(heard.clone(), std::future::pending()));
    (
        PluginSource {
            address,
            generation: PluginGeneration::P3,
            tls: None,
            overcommit: PluginOvercommit::Warn,
        },
        heard,
    )
}

async fn api_server() -> ApiServer {
    let server = ApiServer::new();
    let namespaces =
        Api::<k8s_openapi::api::core::v1::Namespace>::all(server.client(User::administrator()));
    let liqo = serde_json::from_value(json!({ "metadata": { "name": "liqo" } })).unwrap();
    namespaces
        .create(&PostParams::default(), &liqo)
        .await
        .unwrap();
    server
}

/// What a manager starts. Stopping its context ends it.
fn started(server: &ApiServer) -> Arc<Plugins> {
    let client = server.client(User::administrator());
    let config = json!({ "metadata": { "name": "liqo" }, "spec": { "clusterName": "milan" } });
    let stop = CancellationToken::new();
    let context = Context {
        namespace: "liqo".into(),
        pod_ip: [10, 0, 0, 1].into(),
        cluster_domain: None,
        cluster_id: cluster(3),
        clock: Clock::system(),
        network: Tcp::network(),
        config: watch::channel(Arc::new(serde_json::from_value(config).unwrap())).1,
        peers: Peers::default(),
        events: EventRecorder::new(client.clone(), Clock::system(), None),
        unwatched_since: None,
        informers: Informers::new(client.clone(), stop.clone()),
        stop,
        client,
    };
    let plugins = Plugins::new(context.clone(), Queue::new());
    let running = plugins.clone();
    tokio::spawn(async move { running.run(context.stop.clone()).await });
    plugins
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waits = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waits)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}

/// The clusters about which a plugin was asked, as it is stored.
fn recorded(server: &ApiServer) -> Vec<String> {
    let all = server.objects();
    let record = all.iter().find(|(key, _)| key.name == RECORD);
    let data = record.and_then(|(_, map)| map["data"].as_object());
    data.into_iter()
        .flatten()
        .map(|(id, _)| id.clone())
        .collect()
}

#[tokio::test]
async fn a_plugin_hears_once_that_a_peering_has_ended() {
    let ((source, heard), server) = (plugin().await, api_server().await);
    let plugins = started(&server);
    let (rome, turin) = (cluster(1), cluster(2));
    let both = WantedPlugins::from([
        (rome.clone(), Some(source.clone())),
        (turin.clone(), Some(source.clone())),
    ]);
    plugins.set_wanted(&both, vec![source.clone()]);
    until("the plugin is asked about both", || {
        plugins.answers().len() == 2
    })
    .await;
    assert_eq!((heard.removed(), recorded(&server).len()), (vec![], 2));
    plugins.set_wanted(
        &WantedPlugins::from([(turin.clone(), Some(source.clone()))]),
        vec![source],
    );
    until("the end of a peering is told", || {
        !heard.removed().is_empty() && recorded(&server) == [turin.to_string()]
    })
    .await;
    assert_eq!(heard.removed(), [rome.to_string()]);
    plugins.context.stop.cancel();
}

#[tokio::test]
async fn a_plugin_hears_that_a_peering_ended_while_the_manager_was_down() {
    let ((source, heard), server) = (plugin().await, api_server().await);
    let plugins = started(&server);
    plugins.set_wanted(
        &WantedPlugins::from([(cluster(1), Some(source.clone()))]),
        vec![source],
    );
    until("the plugin is asked", || !heard.asked().is_empty()).await;
    plugins.context.stop.cancel();

    let plugins = started(&server);
    plugins.set_wanted(&WantedPlugins::new(), Vec::new());
    until("the end of the peering is told", || {
        recorded(&server).is_empty()
    })
    .await;
    assert_eq!(heard.removed(), [cluster(1).to_string()]);
    plugins.context.stop.cancel();
}
