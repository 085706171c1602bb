//! Measures how soon a change of a Service is in the local `EndpointSlices`, which Kubernetes
//! writes, and then in those at the peer, which Liqo writes.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use futures::TryStreamExt as _;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use liqoctl::cluster::{Cluster, ExplainFailure as _};
use serde::Serialize;
use serde_json::json;
use tokio::sync::mpsc;

/// Name of the Service.
const NAME: &str = "changing";
const CHANGES: u16 = 100;
/// Target port before the first change; each change adds one.
const FIRST_PORT: u16 = 20_000;
/// Time between two changes: Kubernetes delays changes that come in quick succession.
const CHANGE_INTERVAL: Duration = Duration::from_millis(200);
/// Time limit for one change.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Times from changes of a Service to `EndpointSlices` that show them, in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SliceDelays {
    pub count: usize,
    /// To the slices at home.
    pub home: DelayPercentiles,
    /// To the slices at the peer.
    pub peer: DelayPercentiles,
    /// From the slices at home to those at the peer: Liqo's share.
    pub between: DelayPercentiles,
}

/// Times, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DelayPercentiles {
    /// Half are shorter.
    pub p50: f64,
    /// All but one of a hundred are shorter.
    pub p99: f64,
}

impl DelayPercentiles {
    fn from_delays(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        Self {
            p50: percentile(&all, 50),
            p99: percentile(&all, 99),
        }
    }
}

fn percentile(sorted: &[f64], hundredths: usize) -> f64 {
    let index = (sorted.len() * hundredths / 100).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or_default()
}

/// The cluster whose slices are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WatchedCluster {
    Home,
    Peer,
}

/// Changes a Service of pods of `group` in this namespace, one change after another.
pub async fn measure_slice_delays(
    home: (&Cluster, &str),
    peer: (&Cluster, &str),
    group: &str,
    mut news: impl FnMut(String),
) -> anyhow::Result<SliceDelays> {
    let (cluster, namespace) = home;
    let api: Api<Service> = Api::namespaced(cluster.client.clone(), namespace);
    let mut service = json!({ "metadata": { "name": NAME }, "spec": service_ports(0) });
    service["spec"]["selector"] = json!({ "group": group });
    api.create(&PostParams::default(), &serde_json::from_value(service)?)
        .await
        .doing(format!("create Service {NAME}"))?;
    let (seen, mut arrivals) = mpsc::unbounded_channel();
    let watching = async {
        tokio::try_join!(
            watch_slice_ports(home, WatchedCluster::Home, seen.clone()),
            watch_slice_ports(peer, WatchedCluster::Peer, seen.clone())
        )
        .map(drop)
    };
    let changing = async {
        // Creating everything takes time: it does not count.
        wait_for_arrival(&mut arrivals, 0).await?;
        let mut all: [Vec<f64>; 3] = Default::default();
        for number in 1..=CHANGES {
            // Without a terminal, each of these is a line.
            if number % 10 == 0 {
                news(format!("change {number} of {CHANGES} of a Service"));
            }
            tokio::time::sleep(CHANGE_INTERVAL).await;
            let begun = Instant::now();
            let patch = Patch::Merge(json!({ "spec": service_ports(number) }));
            api.patch(NAME, &PatchParams::default(), &patch)
                .await
                .doing(format!("change Service {NAME}"))?;
            let arrived = wait_for_arrival(&mut arrivals, number).await?;
            let [home, peer] = [WatchedCluster::Home, WatchedCluster::Peer]
                .map(|side| arrived[&side].duration_since(begun).as_secs_f64() * 1e3);
            for (all, time) in all.iter_mut().zip([home, peer, peer - home]) {
                all.push(time);
            }
        }
        let [home, peer, between] = all.map(DelayPercentiles::from_delays);
        anyhow::Ok(SliceDelays {
            count: usize::from(CHANGES),
            home,
            peer,
            between,
        })
    };
    tokio::select! {
        changes = changing => changes,
        watched = watching => Err(watched.err().unwrap_or_else(|| anyhow::anyhow!("the watches of the EndpointSlices ended"))),
    }
}

fn service_ports(number: u16) -> serde_json::Value {
    json!({ "ports": [{ "name": "tcp", "port": 80, "targetPort": FIRST_PORT + number }] })
}

/// Waits until both sides have this change; returns when each had it.
async fn wait_for_arrival(
    arrivals: &mut mpsc::UnboundedReceiver<(WatchedCluster, u16, Instant)>,
    number: u16,
) -> anyhow::Result<BTreeMap<WatchedCluster, Instant>> {
    let mut arrived = BTreeMap::new();
    let both = async {
        while arrived.len() < 2 {
            let (side, port, moment) = arrivals.recv().await.context("the watches ended")?;
            if port == FIRST_PORT + number {
                arrived.entry(side).or_insert(moment);
            }
        }
        anyhow::Ok(())
    };
    match tokio::time::timeout(TIMEOUT, both).await {
        Ok(done) => done.map(|()| arrived),
        Err(_) if arrived.contains_key(&WatchedCluster::Home) => bail!(
            "a change of Service {NAME} is in the EndpointSlices at home, but after {} s not in those at the peer: look for events with the reason \
             NotReflected",
            TIMEOUT.as_secs()
        ),
        Err(_) => bail!(
            "a change of Service {NAME} is not in its EndpointSlices after {} s",
            TIMEOUT.as_secs()
        ),
    }
}

/// Sends each port that the slices of the Service show, with the time.
async fn watch_slice_ports(
    (cluster, namespace): (&Cluster, &str),
    side: WatchedCluster,
    seen: mpsc::UnboundedSender<(WatchedCluster, u16, Instant)>,
) -> anyhow::Result<()> {
    let api: Api<EndpointSlice> = Api::namespaced(cluster.client.clone(), namespace);
    let ours = WatchParams::default().labels(&format!("kubernetes.io/service-name={NAME}"));
    let what = format!("watch the EndpointSlices of namespace {namespace}");
    let mut events = Box::pin(api.watch(&ours, "0").await.doing(&what)?);
    while let Some(event) = events.try_next().await.doing(&what)? {
        let slice = match event {
            WatchEvent::Added(slice) | WatchEvent::Modified(slice) => slice,
            WatchEvent::Deleted(_) | WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(status) => return Err(kube::Error::Api(status)).doing(&what),
        };
        if slice.endpoints.is_empty() {
            continue;
        }
        let ports = slice
            .ports
            .iter()
            .flatten()
            .filter_map(|port| u16::try_from(port.port?).ok());
        for port in ports {
            // The receiver is gone once the measurement is over.
            let _ = seen.send((side, port, Instant::now()));
        }
    }
    bail!("the watch of the EndpointSlices of namespace {namespace} ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_hundred_times_the_longest_is_the_hundredth() {
        let times = DelayPercentiles::from_delays((1..=100).rev().map(f64::from).collect());
        assert_eq!(
            times,
            DelayPercentiles {
                p50: 51.0,
                p99: 100.0
            }
        );
        assert_eq!(
            DelayPercentiles::from_delays(Vec::new()),
            DelayPercentiles { p50: 0.0, p99: 0.0 }
        );
    }

    #[tokio::test]
    async fn a_change_has_arrived_when_both_sides_have_it() {
        let (seen, mut arrivals) = mpsc::unbounded_channel();
        let moments: Vec<Instant> = (0..4)
            .map(|ms| Instant::now() + Duration::from_millis(ms))
            .collect();
        for (side, number, moment) in [
            (WatchedCluster::Home, 1, 0),
            (WatchedCluster::Home, 2, 1),
            (WatchedCluster::Peer, 1, 2),
            (WatchedCluster::Peer, 2, 3),
        ] {
            seen.send((side, FIRST_PORT + number, moments[moment]))
                .unwrap();
        }
        let arrived = wait_for_arrival(&mut arrivals, 2).await.unwrap();
        assert_eq!(
            arrived,
            BTreeMap::from([
                (WatchedCluster::Home, moments[1]),
                (WatchedCluster::Peer, moments[3])
            ])
        );
    }
}
