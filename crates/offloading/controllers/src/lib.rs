//! Offloading: pods of this cluster run in another one, and pods of others run here.
//!
//! A *local pod* is a pod that the scheduler bound to a virtual node: a Node object that represents
//! a pool of a provider. The consumer copies those of its fields that may travel into a
//! `ShadowPod`, in its tenant namespace at the provider. The provider checks them again and creates
//! the *remote pod*, with the same name, in the mapped namespace. The status of the remote pod
//! comes back through the `ShadowPod` and is merged into the local pod. `ConfigMap`s and Secrets
//! that the pod names travel too, and so do the `NetworkPolicy`s of its namespace and, where there
//! is a network, Services and Ingresses.
//!
//! ```text
//!   consumer                                                provider
//!
//!   Deployment ─▶ Pod ─ webhook ─▶ scheduler
//!                  │ bound to a virtual node
//!                  ▼
//!     local pod ─── carry ────────▶ ShadowPod ─ ─ ─ ─ ─ ─ ─▶ ShadowPod ─── carry ──▶ remote pod
//!     local pod ◀── local_status ── status   ◀─ ─ ─ ─ ─ ─ ─  status   ◀─────────────     │
//!        ▲                                                                               │
//!   kubectl logs, exec ─▶ kubelet API of the virtual node ─── spliced ─▶ API server ─▶ kubelet
//! ```
//!
//! The provider's `PeeringPolicy` limits what remote pods may be, its `ResourceOffer`s limit how
//! much they use. When the provider takes resources back, the consumer gets a notice and evicts its
//! pods in time. After the notice the provider ends the rest, the youngest pods first. Such a pod
//! is Failed at home, so its controller creates another one elsewhere.
//!
//! The rules are in `liqo_offloading_rules`, as pure functions. The modules here read objects, ask
//! the rules, and write:
//! - [`consumer`]: the side that sends pods. Begin here: its page has the list of controllers,
//! - `provider`: the side that runs them,
//! - [`webhook`]: adds tolerations and node affinity to new pods of offloaded namespaces,
//! - [`kubelet`]: the kubelet API of the virtual nodes, for `kubectl logs`, `exec` and the like,
//! - `metering`: stores what pods used, for both sides,
//! - `networks`: addresses as peers see them; [`https_listener`]: HTTPS for webhook and kubelet API;
//!   [`cluster_domain`].
//!
//! The leader of the manager calls [`run_controllers`]. Every replica serves the webhook. This crate does not
//! create `VirtualNode`s: `liqo-sharing` writes them from offers.

pub mod cluster_domain;
pub mod consumer;
pub mod https_listener;
pub mod kubelet;
mod metering;
mod networks;
mod provider;
#[cfg(test)]
mod testing;
pub mod webhook;

use liqo_controller_runtime::Context;
pub use liqo_metering::VoucherKey;
use provider::ProviderState;
use tokio_util::sync::CancellationToken;

/// A part of offloading ended although nobody stopped it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the consumer's side of offloading ended by itself; restart the process")]
    ConsumerEnded,
    #[error("the provider's side of offloading ended by itself; restart the process")]
    ProviderEnded,
    #[error(
        "the controller of the admission webhook's configuration ended by itself; restart the process"
    )]
    WebhookEnded,
    #[error(transparent)]
    Webhook(#[from] webhook::WebhookError),
}

/// Runs both sides, and the webhook's configuration, until the context's `stop`. Only on the
/// leader.
pub async fn run_controllers(context: Context, voucher_key: VoucherKey) -> Result<(), Error> {
    let stop = context.stop.clone();
    let configured = webhook::keep_configured(context.clone());
    let provider = ProviderState::start(context.clone());
    let consumer = Box::pin(consumer::run_consumer(
        context,
        voucher_key,
        provider.remote_pods(),
    ));
    let provider = Box::pin(provider::run_provider(provider));
    until_all_ended(&stop, consumer, provider, Box::pin(configured)).await
}

/// Runs the parts until all of them have ended, which they do after `stop`. None is dropped then:
/// the consumer's side still tells whoever follows a command or a log that its stream was cut. A
/// part that ends before is an error, and ends the others.
async fn until_all_ended(
    stop: &CancellationToken,
    consumer: impl Future<Output = ()>,
    provider: impl Future<Output = ()>,
    configured: impl Future<Output = Result<(), webhook::WebhookError>>,
) -> Result<(), Error> {
    let consumer = async {
        consumer.await;
        expect_stop(stop, Error::ConsumerEnded)
    };
    let provider = async {
        provider.await;
        expect_stop(stop, Error::ProviderEnded)
    };
    let configured = async {
        configured.await?;
        expect_stop(stop, Error::WebhookEnded)
    };
    tokio::try_join!(consumer, provider, configured).map(drop)
}

fn expect_stop(stop: &CancellationToken, otherwise: Error) -> Result<(), Error> {
    if stop.is_cancelled() {
        Ok(())
    } else {
        Err(otherwise)
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, time::Duration};

    use super::*;

    #[tokio::test]
    async fn after_the_stop_every_part_may_end_in_its_own_time() {
        let (stop, mut told) = (CancellationToken::new(), false);
        let consumer = async {
            stop.cancelled().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            told = true;
        };
        let configured = async {
            stop.cancel();
            Ok(())
        };
        until_all_ended(&stop, consumer, stop.cancelled(), configured)
            .await
            .unwrap();
        assert!(told, "the others ended first");
    }

    #[tokio::test]
    async fn a_part_that_ends_by_itself_ends_the_others() {
        let stop = CancellationToken::new();
        let ended = until_all_ended(&stop, pending(), async {}, pending()).await;
        assert!(matches!(ended, Err(Error::ProviderEnded)), "{ended:?}");
    }
}
