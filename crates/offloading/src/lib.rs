//! Offloading: pods of this cluster that run in another one, and the other way round.
//!
//! A pod that the scheduler binds to a virtual node (a Node object that stands for a pool of a provider) is a *home pod*.
//! What of it may travel is carried in a `ShadowPod`, in the one namespace of the provider where both clusters talk; the
//! provider checks it again and creates the *remote pod*, of the same name, in the mapped namespace. The remote pod's
//! status comes back the same way and is merged into the home pod. `ConfigMap`s and Secrets that the pod names go along,
//! `NetworkPolicy`s of offloaded namespaces, and their Services where there is a network.
//! For `kubectl logs` and `exec` the home API server calls the virtual node's kubelet API, which is served here.
//!
//! ```text
//!   home (consumer)                                        provider
//!
//!   Deployment -> Pod --webhook--> scheduler
//!                  |
//!                  v bound to a virtual node
//!     home pod --travel--> ShadowPod  ~~~~~~~~~~~~~~~~>  ShadowPod --travel--> remote pod
//!     home pod <--home_status--  status  <~~~~~~~~~~~~~  status <---------------   |
//!        ^                                                                         |
//!   kubectl logs, exec --> kubelet API of the node ~~~ spliced ~~~> API server -> kubelet
//! ```
//!
//! The provider's `PeeringPolicy` says what remote pods may be and use, its `ResourceOffer`s how much. What it takes back it
//! ends, the youngest pods first, after a notice in which home moves its pods away; a pod that is ended so has failed at home,
//! for its controller to bring up another one elsewhere.
//!
//! Decisions are in [`decide`]: pure functions over JSON, no client, no clock. The files around it read, call and apply.

pub mod consumer;
pub mod decide;
mod eviction;
pub mod kubelet;
mod networks;
mod provider;
pub mod server;
pub mod webhook;

use liqo_kit::Context;

/// A side of offloading ended although nothing asked it to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The side for clusters that we borrow from.
    #[error("the consumer's side of offloading ended by itself; the process must be started again")]
    ConsumerEnded,
    /// The side for clusters that borrow from us.
    #[error("the provider's side of offloading ended by itself; the process must be started again")]
    ProviderEnded,
    /// The webhook's configuration is not kept in line with the offloaded namespaces any more.
    #[error("the admission webhook's configuration is not kept any more; the process must be started again")]
    WebhookEnded,
    /// It could not be.
    #[error(transparent)]
    Webhook(#[from] webhook::Error),
}

/// Runs both sides, and the webhook's configuration, until the context's `stop`. Only on the leader.
pub async fn run(context: Context) -> Result<(), Error> {
    let stop = context.stop.clone();
    let ended = |error| if stop.is_cancelled() { Ok(()) } else { Err(error) };
    tokio::select! {
        () = consumer::run(context.clone()) => ended(Error::ConsumerEnded),
        () = provider::run(context.clone()) => ended(Error::ProviderEnded),
        kept = webhook::keep_configured(context) => { kept?; ended(Error::WebhookEnded) }
    }
}
