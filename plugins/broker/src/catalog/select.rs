//! The contents of the catalog, and the search in it. Pure.

use std::{cmp::Ordering, fmt::Display};

use liqo_api::{
    ForeignCluster, OfferPhase, ResourceOffer, TunnelEndpoint,
    catalog::{Entry, MAX_PAGE, Page, Parameters, Sort},
};
use liqo_quantity::{Money, RateArgument, Rates, ResourceList, is_currency, per_hour};
use liqo_resource_plugin::{arguments::resources, selector::Selector};

/// Offers on one page, if the query does not say how many.
const DEFAULT_PAGE: usize = 50;
/// Maximum length of one parameter in bytes.
pub const MAX_PARAMETER_LEN: usize = 1024;
/// Maximum number of labels of one offer that the catalog shows. Providers choose them.
const MAX_LABELS: usize = 64;
/// Maximum length of the key of a label, and of its value, in bytes: those of Kubernetes.
const MAX_LABEL_LEN: (usize, usize) = (317, 63);
/// Maximum size of the offers on one page, as JSON, in bytes. The first one always fits.
const MAX_PAGE_LEN: usize = 1 << 20;
const MICROSECONDS_PER_MILLISECOND: u32 = 1000;

/// The entry of an offer that this cluster received; `None` if it is being taken back.
pub fn entry_of(
    offer: &ResourceOffer,
    peer: Option<&ForeignCluster>,
    tunnel: Option<&TunnelEndpoint>,
) -> Option<Entry> {
    let spec = &offer.spec;
    if spec.withdrawal_timestamp.is_some() || offer.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let labels = spec
        .labels
        .iter()
        .filter(|(key, value)| key.len() <= MAX_LABEL_LEN.0 && value.len() <= MAX_LABEL_LEN.1)
        .take(MAX_LABELS);
    // Each gateway of this cluster reports. Packets may go through any of them.
    let reports = tunnel
        .and_then(|tunnel| tunnel.status.as_ref())
        .map(|status| status.gateways.as_slice())
        .unwrap_or_default();
    let connected = reports.iter().filter(|report| report.connected);
    Some(Entry {
        cluster_id: spec.cluster_id.clone(),
        name: peer
            .and_then(|peer| peer.metadata.name.clone())
            .unwrap_or_else(|| spec.cluster_id.to_string()),
        pool: spec.pool.clone(),
        accepted: offer
            .status
            .as_ref()
            .is_some_and(|status| status.phase == OfferPhase::Accepted),
        path: spec.path.clone(),
        hops: spec.hops,
        capacity: spec.resource_quota.hard.clone(),
        prices: spec.prices.clone(),
        labels: labels
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        latency_microseconds: connected
            .filter_map(|report| report.latency_microseconds)
            .max(),
    })
}

/// The price of these amounts for one hour, if all prices of the entry are in this currency.
fn hourly_price(entry: &Entry, amounts: &ResourceList, currency: &str) -> Option<Money> {
    match &entry.prices {
        Some(prices) if prices.rates.iter().any(|(_, rate)| !rate.is_zero()) => {
            (prices.currency == currency).then(|| per_hour(&prices.rates, amounts))
        }
        _ => Some(Money::ZERO),
    }
}

fn resource_price(entry: &Entry, resource: &str) -> Money {
    entry
        .prices
        .as_ref()
        .and_then(|prices| prices.rates.get(resource))
        .unwrap_or(Money::ZERO)
}

/// Criteria that every offer of the answer meets.
#[derive(Clone, Debug)]
pub struct OfferQuery {
    currency: Option<String>,
    max_price: Rates,
    labels: Option<Selector>,
    max_latency_microseconds: Option<u32>,
    max_hops: Option<u8>,
    capacity: ResourceList,
    accepted: Option<bool>,
    sort: Sort,
    offset: usize,
    limit: usize,
}

/// Parameters that are no query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{parameter}: {problem}")]
pub struct QueryError {
    parameter: &'static str,
    problem: String,
}

fn invalid_parameter(parameter: &'static str, problem: &dyn Display) -> QueryError {
    QueryError {
        parameter,
        problem: problem
            .to_string()
            .chars()
            .take(MAX_PARAMETER_LEN)
            .collect(),
    }
}

impl OfferQuery {
    /// Checks the parameters.
    pub fn from_parameters(parameters: Parameters) -> Result<Self, QueryError> {
        let Parameters {
            currency,
            max_price,
            label_selector,
            capacity,
            sort,
            offset,
            limit,
            ..
        } = parameters;
        for (name, value) in [
            ("currency", &currency),
            ("maxPrice", &max_price),
            ("labelSelector", &label_selector),
            ("capacity", &capacity),
        ] {
            if value
                .as_ref()
                .is_some_and(|value| value.len() > MAX_PARAMETER_LEN)
            {
                return Err(invalid_parameter(
                    name,
                    &format!("it is longer than {MAX_PARAMETER_LEN} bytes"),
                ));
            }
        }
        if currency
            .as_ref()
            .is_some_and(|currency| !is_currency(currency))
        {
            return Err(invalid_parameter(
                "currency",
                &"a currency has letters, digits and dashes, at most 12, and begins with a letter",
            ));
        }
        if currency.is_none() && (max_price.is_some() || sort == Sort::Price) {
            return Err(invalid_parameter(
                "currency",
                &"prices in different currencies are never compared: name one",
            ));
        }
        let labels = label_selector
            .map(|text| {
                text.parse::<Selector>()
                    .map_err(|error| invalid_parameter("labelSelector", &error))
            })
            .transpose()?;
        let capacity = capacity
            .map(|text| resources([text]).map_err(|error| invalid_parameter("capacity", &error)))
            .transpose()?;
        let limit = limit.unwrap_or(DEFAULT_PAGE);
        if !(1..=MAX_PAGE).contains(&limit) {
            return Err(invalid_parameter(
                "limit",
                &format!("it is 1 to {MAX_PAGE}"),
            ));
        }
        Ok(Self {
            currency,
            max_price: max_price
                .iter()
                .flat_map(|text| text.split(','))
                .map(|text| {
                    text.parse::<RateArgument>()
                        .map_err(|error| invalid_parameter("maxPrice", &error))
                })
                .collect::<Result<_, _>>()?,
            labels,
            max_latency_microseconds: parameters
                .max_latency_milliseconds
                .map(|most| most.saturating_mul(MICROSECONDS_PER_MILLISECOND)),
            max_hops: parameters.max_hops,
            capacity: capacity.unwrap_or_default(),
            accepted: parameters.accepted,
            sort,
            offset,
            limit,
        })
    }

    /// Whether an offer meets all criteria. What is not known is not met.
    fn fits(&self, entry: &Entry) -> bool {
        let currency = self.currency.as_deref();
        currency
            .is_none_or(|currency| hourly_price(entry, &self.priced_amounts(), currency).is_some())
            && self
                .max_price
                .iter()
                .all(|(resource, most)| resource_price(entry, resource) <= most)
            && self
                .labels
                .as_ref()
                .is_none_or(|selector| selector.matches(&entry.labels))
            && self.max_latency_microseconds.is_none_or(|most| {
                entry
                    .latency_microseconds
                    .is_some_and(|latency| latency <= most)
            })
            && self.max_hops.is_none_or(|most| entry.hops <= most)
            && self
                .capacity
                .iter()
                .all(|(name, least)| entry.capacity.get(name) >= least)
            && self
                .accepted
                .is_none_or(|accepted| entry.accepted == accepted)
    }

    /// The amounts whose price is compared.
    fn priced_amounts(&self) -> ResourceList {
        if self.capacity.is_empty() {
            resources(["cpu=1,memory=1Gi"]).unwrap_or_default()
        } else {
            self.capacity.clone()
        }
    }

    fn compare(&self, one: &Entry, other: &Entry) -> Ordering {
        let by_criterion = match self.sort {
            Sort::Name => one.name.cmp(&other.name),
            Sort::Price => {
                let (amounts, currency) = (
                    self.priced_amounts(),
                    self.currency.as_deref().unwrap_or_default(),
                );
                hourly_price(one, &amounts, currency).cmp(&hourly_price(other, &amounts, currency))
            }
            // What is not known comes last.
            Sort::Latency => {
                let [one, other] = [one, other].map(|entry| entry.latency_microseconds);
                (one.is_none(), one).cmp(&(other.is_none(), other))
            }
        };
        by_criterion
            .then_with(|| (&one.cluster_id, &one.pool).cmp(&(&other.cluster_id, &other.pool)))
    }
}

/// The offers that meet the criteria, in the order of the query.
pub fn select_offers(mut entries: Vec<Entry>, query: &OfferQuery) -> Page {
    entries.retain(|entry| query.fits(entry));
    entries.sort_by(|one, other| query.compare(one, other));
    let total = entries.len();
    let (mut offers, mut len) = (Vec::new(), 0);
    for entry in entries.into_iter().skip(query.offset).take(query.limit) {
        len += serde_json::to_vec(&entry).map_or(MAX_PAGE_LEN, |json| json.len());
        if len > MAX_PAGE_LEN && !offers.is_empty() {
            break;
        }
        offers.push(entry);
    }
    let next = query.offset.saturating_add(offers.len());
    Page {
        next: (next < total).then_some(next),
        offers,
        total,
    }
}

#[cfg(test)]
#[path = "select_tests.rs"]
mod tests;
