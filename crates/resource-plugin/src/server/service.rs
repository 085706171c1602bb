//! The three methods of the protocol, for all generations and sources.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use bytes::Bytes;
use futures::{
    FutureExt as _, Stream, StreamExt as _, future::BoxFuture, stream, stream::BoxStream,
};
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Response, Status,
    body::Body,
    server::{Grpc, NamedService},
};
use tower::{Service, service_fn};

use crate::{
    changes::Announcer,
    codec::RawCodec,
    model::Change,
    source::{ResourceSource, SourceError},
    wire::{self, Generation},
};

use super::metrics::ServerMetrics;

/// Maximum size of a request in bytes. A request contains one cluster ID.
const MAX_REQUEST_LEN: usize = 4096;
/// Maximum number of subscribers. Liqo subscribes once, so many subscribers are a bug or an attack.
const MAX_SUBSCRIBERS: i64 = 64;

pub(crate) struct SharedService {
    pub(crate) source: Arc<dyn ResourceSource>,
    pub(crate) generation: Generation,
    pub(crate) announcer: Announcer,
    pub(crate) metrics: Arc<ServerMetrics>,
    pub(crate) stop: CancellationToken,
}

/// The gRPC service `resource_reader`.
#[derive(Clone)]
pub(crate) struct ResourceReader(pub(crate) Arc<SharedService>);

impl NamedService for ResourceReader {
    const NAME: &'static str = wire::SERVICE;
}

impl Service<http::Request<Body>> for ResourceReader {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let shared = self.0.clone();
        async move {
            let mut grpc = Grpc::new(RawCodec).max_decoding_message_size(MAX_REQUEST_LEN);
            let path = request.uri().path().to_owned();
            Ok(match path.as_str() {
                wire::READ_RESOURCES => {
                    let read =
                        service_fn(move |request| answer_call(read_offer(shared.clone(), request)));
                    grpc.unary(read, request).await
                }
                wire::REMOVE_CLUSTER => {
                    let remove =
                        service_fn(move |request| answer_call(remove(shared.clone(), request)));
                    grpc.unary(remove, request).await
                }
                wire::SUBSCRIBE => {
                    let subscribe = service_fn(move |_: Request<Bytes>| {
                        std::future::ready(subscribe_to_changes(shared.clone()).map(Response::new))
                    });
                    grpc.server_streaming(subscribe, request).await
                }
                _ => Status::unimplemented(format!("there is no method {path}")).into_http(),
            })
        }
        .boxed()
    }
}

async fn answer_call(
    bytes: impl Future<Output = Result<Bytes, Status>>,
) -> Result<Response<Bytes>, Status> {
    bytes.await.map(Response::new)
}

async fn read_offer(shared: Arc<SharedService>, request: Request<Bytes>) -> Result<Bytes, Status> {
    let started = Instant::now();
    let read = try_read(&shared, &request.into_inner()).await;
    shared.metrics.record_read(
        if read.is_ok() { "success" } else { "error" },
        started.elapsed(),
    );
    read
}

async fn try_read(shared: &SharedService, request: &[u8]) -> Result<Bytes, Status> {
    let cluster = cluster_of_request(request)?;
    if cluster.is_empty() {
        return Err(Status::invalid_argument(
            "the request contains no cluster ID",
        ));
    }
    let mut pools = shared.source.read(&cluster).await.map_err(|error| {
        match &error {
            SourceError::NotReady(_) | SourceError::UnknownCluster(_) => {
                tracing::debug!(cluster, %error, "the source cannot answer");
            }
            SourceError::Failed(_) => tracing::warn!(cluster, %error, "the source failed"),
        }
        status_of(&error)
    })?;
    if let Some(prices) = shared.source.prices(&cluster) {
        for pool in pools.iter_mut().filter(|pool| pool.prices.is_none()) {
            pool.prices = Some(prices.clone());
        }
    }
    tracing::debug!(cluster, pools = pools.len(), "read");
    wire::encode_answer(shared.generation, &pools).map_err(|error| {
        tracing::error!(cluster, %error, "cannot encode the source's answer");
        Status::internal(format!("the plugin cannot encode its answer: {error}"))
    })
}

async fn remove(shared: Arc<SharedService>, request: Request<Bytes>) -> Result<Bytes, Status> {
    let cluster = cluster_of_request(&request.into_inner())?;
    shared.metrics.record_removal();
    // Some versions of Liqo send an empty ID for a cluster that they do not know.
    if !cluster.is_empty() {
        tracing::info!(cluster, "peering ended");
        shared.source.removed(&cluster).await;
    }
    Ok(Bytes::new())
}

fn cluster_of_request(request: &[u8]) -> Result<String, Status> {
    wire::decode_cluster(request).map_err(|error| Status::invalid_argument(error.to_string()))
}

fn status_of(error: &SourceError) -> Status {
    match error {
        SourceError::NotReady(_) => Status::unavailable(error.to_string()),
        SourceError::UnknownCluster(_) => Status::not_found(error.to_string()),
        SourceError::Failed(_) => Status::internal(error.to_string()),
    }
}

/// A new subscriber first gets [`Change::All`], because it does not know what happened before. Then
/// it gets changes as fast as it reads them, until it leaves or the plugin ends.
fn subscribe_to_changes(
    shared: Arc<SharedService>,
) -> Result<BoxStream<'static, Result<Bytes, Status>>, Status> {
    let counted = CountedSubscriber::new(&shared.metrics).ok_or_else(|| {
        Status::resource_exhausted(format!("there are already {MAX_SUBSCRIBERS} subscribers"))
    })?;
    let first = stream::once(async { Change::All });
    let notifications = first
        .chain(shared.announcer.listen())
        .take_until(shared.stop.clone().cancelled_owned());
    let messages = notifications.map(move |change| {
        shared.metrics.notifications.inc();
        Ok(match change {
            Change::Cluster(cluster) if shared.generation != Generation::P1 => {
                wire::encode_cluster(&cluster)
            }
            Change::Cluster(_) | Change::All => Bytes::new(),
        })
    });
    Ok(Subscription {
        messages: messages.boxed(),
        _counted: counted,
    }
    .boxed())
}

/// The stream of one subscriber. The subscriber counts until the stream is dropped.
struct Subscription {
    messages: BoxStream<'static, Result<Bytes, Status>>,
    _counted: CountedSubscriber,
}

impl Stream for Subscription {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.messages.as_mut().poll_next(context)
    }
}

struct CountedSubscriber(Arc<ServerMetrics>);

impl CountedSubscriber {
    fn new(metrics: &Arc<ServerMetrics>) -> Option<Self> {
        let counted = Self(metrics.clone());
        (metrics.subscribers.inc() < MAX_SUBSCRIBERS).then_some(counted)
    }
}

impl Drop for CountedSubscriber {
    fn drop(&mut self) {
        self.0.subscribers.dec();
    }
}
