//! `liqoctl catalog`: shows what other clusters offer to a broker.
//!
//! ```text
//!   at a customer   Secret liqo-identity ──▶ a signed sign-in ─┐
//!   with a token    --token-file ──────────▶ bearer token ─────┼─▶ GET https://HOST:PORT/catalog/v1/offers, page by page ──▶ table
//!   at the broker   ServiceAccount ────────▶ bearer token ─────┴─▶ the same, in the plugin's pod, through the API server
//! ```
//!
//! The catalog says which offers meet the criteria. The broker is another cluster, so the length
//! and the number of its answers are limited.

mod credentials;
mod https;
mod plugin;
mod text;

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, bail};
use liqo_api::catalog::{Entry, MAX_PAGE, OFFERS, Page, Parameters};
use serde_json::Value;
use tokio::time::sleep;

pub use https::{CatalogUrl, CertificateTrust};
pub use text::render_catalog_offers;

use crate::{
    cluster::{Cluster, ClusterAccess},
    output::strip_control_characters,
};
use credentials::CatalogCredentials;
use https::CatalogClient;

/// Maximum number of offers that are read: a broker that goes on for ever is not listened to.
const MAX_OFFERS: usize = 10_000;
/// Limit of repetitions of a request that comes too soon after others, and the delay before each.
/// The catalog answers five in a second.
const MAX_REPETITIONS: u32 = 10;
const REPETITION_DELAY: Duration = Duration::from_secs(1);
/// Maximum length of a refusal that is shown, in characters.
const MAX_REFUSAL_LEN: usize = 500;

/// The location of the catalog, and how to read it.
#[derive(Clone, Debug)]
pub enum CatalogLocation {
    /// The plugin in the cluster of the kubeconfig.
    Here,
    At {
        url: CatalogUrl,
        trust: CertificateTrust,
        /// Name or ID of the broker; nothing for the only cluster that this one borrows from.
        broker: Option<String>,
    },
}

/// The options of `liqoctl catalog`.
#[derive(Clone, Debug)]
pub struct CatalogOptions {
    pub place: CatalogLocation,
    /// A file with a token for the catalog; nothing to sign in, or at the broker to get one.
    pub token_file: Option<PathBuf>,
    pub criteria: Parameters,
}

/// The offers that meet the criteria, in their order.
pub async fn read_catalog(
    access: &ClusterAccess,
    options: &CatalogOptions,
) -> anyhow::Result<Vec<Entry>> {
    let token = options
        .token_file
        .as_deref()
        .map(credentials::token_in)
        .transpose()?
        .map(CatalogCredentials::Token);
    let (https, credentials) = match &options.place {
        CatalogLocation::At { url, trust, broker } => {
            let https = CatalogClient::for_url(url, trust)?;
            let credentials = match token {
                Some(token) => token,
                None => {
                    credentials::identity_for_broker(
                        &Cluster::connect(access).await?,
                        broker.as_deref(),
                    )
                    .await?
                }
            };
            (https, credentials)
        }
        CatalogLocation::Here => {
            let cluster = Cluster::connect(access).await?;
            let https = plugin::find_catalog_pod(&cluster).await?;
            let credentials = match token {
                Some(token) => token,
                None => CatalogCredentials::Token(plugin::request_catalog_token(&cluster).await?),
            };
            (https, credentials)
        }
    };
    request_all_pages(&https, &credentials, &options.criteria).await
}

/// All pages of the answer.
async fn request_all_pages(
    https: &CatalogClient,
    credentials: &CatalogCredentials,
    criteria: &Parameters,
) -> anyhow::Result<Vec<Entry>> {
    let (mut offers, mut offset) = (Vec::new(), 0);
    loop {
        let parameters = Parameters {
            offset,
            limit: Some(MAX_PAGE),
            ..criteria.clone()
        };
        let page = request_page(https, credentials, &parameters).await?;
        offers.extend(page.offers);
        match page.next {
            None => return Ok(offers),
            Some(_) if offers.len() >= MAX_OFFERS => {
                bail!(
                    "the catalog at {} has more than {MAX_OFFERS} such offers: add criteria",
                    https.address()
                );
            }
            Some(next) if next > offset => offset = next,
            Some(next) => bail!(
                "the catalog at {} names {next} as the page after {offset}",
                https.address()
            ),
        }
    }
}

async fn request_page(
    https: &CatalogClient,
    credentials: &CatalogCredentials,
    parameters: &Parameters,
) -> anyhow::Result<Page> {
    let path = format!("{OFFERS}?{}", query(parameters)?);
    let mut repetitions = 0;
    loop {
        // Each request has a sign-in of its own, because they count for a short time.
        let (status, body) = https
            .get(&path, &credentials.header(SystemTime::now())?)
            .await?;
        match status {
            200 => {
                return serde_json::from_slice(&body).with_context(|| {
                    format!(
                        "{} does not answer as a catalog of Liqo does",
                        https.address()
                    )
                });
            }
            429 if repetitions < MAX_REPETITIONS => {
                repetitions += 1;
                sleep(REPETITION_DELAY).await;
            }
            _ => bail!(explain_refusal(https.address(), status, &body, credentials)),
        }
    }
}

/// The query of a URL.
fn query(parameters: &Parameters) -> anyhow::Result<String> {
    let Value::Object(parameters) = serde_json::to_value(parameters)? else {
        bail!("parameters are an object")
    };
    let pairs = parameters.into_iter().map(|(name, value)| match value {
        Value::String(text) => (name, text),
        other => (name, other.to_string()),
    });
    Ok(form_urlencoded::Serializer::new(String::new())
        .extend_pairs(pairs)
        .finish())
}

/// Explains a refusal, with the next step. The catalog's own words name the next step at the
/// broker.
fn explain_refusal(
    address: &str,
    status: u16,
    body: &[u8],
    credentials: &CatalogCredentials,
) -> String {
    let words = serde_json::from_slice::<Value>(body).ok();
    let words = words.as_ref().and_then(|body| body["error"].as_str());
    let words: String = words
        .map(strip_control_characters)
        .unwrap_or_default()
        .chars()
        .take(MAX_REFUSAL_LEN)
        .collect();
    if words.is_empty() {
        return format!(
            "{address} answers with status {status}, and not as a catalog of Liqo does: is it the right URL?"
        );
    }
    match (status, credentials) {
        (400, _) => format!("the catalog at {address} does not understand the criteria: {words}"),
        (401, CatalogCredentials::Token(_)) => {
            format!("the catalog at {address} does not accept the token: {words}")
        }
        (403, CatalogCredentials::Token(_)) => {
            format!("the user of the token may not read the catalog at {address}: {words}")
        }
        (401, CatalogCredentials::Cluster { broker, .. }) => {
            format!(
                "the catalog at {address} does not accept the sign-in of this cluster: {words}. Is it the catalog of {broker}?"
            )
        }
        (403, CatalogCredentials::Cluster { .. }) => {
            format!("this cluster may not read the catalog at {address}: {words}")
        }
        _ => format!("the catalog at {address} answers with status {status}: {words}"),
    }
}

#[cfg(test)]
mod tests;
