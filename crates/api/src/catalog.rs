//! The catalog of a broker: the types that its server, a resource plugin, and its reader,
//! `liqoctl catalog`, share. `openapi.json` of the plugin describes the same for other programs.

use std::collections::BTreeMap;

use liqo_quantity::ResourceList;
use serde::{Deserialize, Serialize};

use crate::{ClusterId, PriceList};

/// Path of the offers.
pub const OFFERS: &str = "/catalog/v1/offers";
/// The audience of tokens for the catalog. Those for the API server are refused, so nobody has a
/// reason to send one.
pub const AUDIENCE: &str = "liqo-broker-catalog";
/// Maximum number of offers on one page.
pub const MAX_PAGE: usize = 100;

/// One offer that the broker received.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// ID of the provider.
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    /// Name of the provider in the broker.
    pub name: String,
    /// Name of the pool.
    pub pool: String,
    /// Whether the broker accepted it, so that it has a virtual node there.
    pub accepted: bool,
    /// IDs of the provider and of all clusters behind it.
    pub path: Vec<ClusterId>,
    /// How many clusters the resources come through, with the provider.
    pub hops: u8,
    /// The offered amounts.
    pub capacity: ResourceList,
    /// Without prices, the resources cost nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prices: Option<PriceList>,
    /// Labels of the offer.
    pub labels: BTreeMap<String, String>,
    /// Time between a probe through the tunnel to the provider and its answer. Absent if there is
    /// no network to the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_microseconds: Option<u32>,
}

/// A part of the offers that meet the criteria.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Page {
    /// In the order of the query.
    pub offers: Vec<Entry>,
    /// How many offers meet the criteria.
    pub total: usize,
    /// The offset of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<usize>,
}

/// The parameters of a query. An offer of the answer meets all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Parameters {
    /// The currency of its prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// The highest price of some resources, for example `cpu=0.04,memory=0.01`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_price: Option<String>,
    /// Labels, in the syntax of `kubectl get --selector`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<String>,
    /// The highest latency between the broker and the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_latency_milliseconds: Option<u32>,
    /// Through how many clusters its resources may come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_hops: Option<u8>,
    /// The least amounts, for example `cpu=4,memory=8Gi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<String>,
    /// Whether the broker accepted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted: Option<bool>,
    /// The order of the offers.
    pub sort: Sort,
    /// How many offers to leave out.
    pub offset: usize,
    /// Maximum number of offers in the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The order of the offers. Equal ones are in the order of their providers' IDs and pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sort {
    /// By the name of the provider.
    #[default]
    Name,
    /// By the price of the requested capacity, or of one core and one GiB.
    Price,
    /// By the latency between the broker and the provider.
    Latency,
}
