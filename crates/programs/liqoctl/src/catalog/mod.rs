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
use clap::{Args, ValueEnum};
use liqo_api::catalog::{Entry, MAX_PAGE, OFFERS, Page, Parameters, Sort};
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

/// Options of `catalog`.
#[derive(Clone, Debug, Args)]
pub struct CatalogOptions {
    /// Name or ID of the broker: only there this sign-in counts
    /// [default: the only cluster that this one borrows from]
    #[arg(requires = "url", conflicts_with = "token_file")]
    pub peer: Option<String>,
    /// URL of the catalog, https://HOST:PORT
    /// [default: the plugin in the cluster of the kubeconfig, through its API server]
    #[arg(long, value_name = "URL")]
    pub url: Option<CatalogUrl>,
    /// Certificates (PEM) that signed the one of the catalog
    /// [default: those that this machine trusts]
    #[arg(long, value_name = "FILE", requires = "url")]
    pub ca_file: Option<PathBuf>,
    /// Accept any certificate of the catalog. Whoever is in between then reads along, and can use
    /// the sign-in for two minutes, or the token
    #[arg(long, requires = "url", conflicts_with = "ca_file")]
    pub insecure_skip_tls_verify: bool,
    /// File with a token of the broker for the audience liqo-broker-catalog, instead of a sign-in
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Only offers with prices in this currency, or that cost nothing
    #[arg(long, value_name = "CURRENCY")]
    pub currency: Option<String>,
    /// The highest price of resources for one hour, for example cpu=0.04,memory=0.01
    #[arg(long, value_name = "NAME=RATE,...", requires = "currency")]
    pub max_price: Option<String>,
    /// Only offers with these labels, as in `kubectl get --selector`
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// The highest latency between the broker and the provider
    #[arg(long, value_name = "MILLISECONDS")]
    pub max_latency: Option<u32>,
    /// Through how many clusters the resources may come to the broker
    #[arg(long, value_name = "NUMBER")]
    pub max_hops: Option<u8>,
    /// The least amounts, for example cpu=4,memory=8Gi. With --sort price, their price is compared;
    /// without, that of one core and one GiB
    #[arg(long, value_name = "NAME=QUANTITY,...")]
    pub capacity: Option<String>,
    /// Only offers that the broker accepted; with `=false`, only the others
    #[arg(long, value_name = "BOOLEAN", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub accepted: Option<bool>,
    /// The order of the offers; by price it needs --currency
    #[arg(long, value_enum, default_value_t = OfferOrder::Name, value_name = "ORDER", requires_if("price", "currency"))]
    pub sort: OfferOrder,
}

/// The order of the offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OfferOrder {
    Name,
    Price,
    Latency,
}

impl CatalogOptions {
    fn trust(&self) -> CertificateTrust {
        match (&self.ca_file, self.insecure_skip_tls_verify) {
            (Some(file), _) => CertificateTrust::File(file.clone()),
            (None, true) => CertificateTrust::Any,
            (None, false) => CertificateTrust::Machine,
        }
    }

    fn criteria(&self) -> Parameters {
        Parameters {
            currency: self.currency.clone(),
            max_price: self.max_price.clone(),
            label_selector: self.selector.clone(),
            max_latency_milliseconds: self.max_latency,
            max_hops: self.max_hops,
            capacity: self.capacity.clone(),
            accepted: self.accepted,
            sort: match self.sort {
                OfferOrder::Name => Sort::Name,
                OfferOrder::Price => Sort::Price,
                OfferOrder::Latency => Sort::Latency,
            },
            ..Parameters::default()
        }
    }
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
    let (https, credentials) = if let Some(url) = &options.url {
        let https = CatalogClient::for_url(url, &options.trust())?;
        let credentials = if let Some(token) = token {
            token
        } else {
            let cluster = Cluster::connect(access).await?;
            credentials::identity_for_broker(&cluster, options.peer.as_deref()).await?
        };
        (https, credentials)
    } else {
        let cluster = Cluster::connect(access).await?;
        let https = plugin::find_catalog_pod(&cluster).await?;
        let credentials = match token {
            Some(token) => token,
            None => CatalogCredentials::Token(plugin::request_catalog_token(&cluster).await?),
        };
        (https, credentials)
    };
    request_all_pages(&https, &credentials, &options.criteria()).await
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
