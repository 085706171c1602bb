//! Test data for several modules.

use std::collections::BTreeMap;

use liqo_api::{
    ClusterId, DEFAULT_POOL, LargestPods, Quantity, ResourceList, ResourceOfferSpec, ResourceQuota,
};

/// The ID of a test cluster. A higher number gives a higher ID.
pub fn cluster(number: u8) -> ClusterId {
    let letter = char::from(b'a' + number % 26);
    std::iter::repeat_n(letter, ClusterId::LENGTH)
        .collect::<String>()
        .parse()
        .unwrap()
}

/// Parses `cpu=2, memory=4Gi`.
pub fn list(text: &str) -> ResourceList {
    let pair = |pair: &str| {
        let (name, quantity) = pair.split_once('=').unwrap();
        (name.to_owned(), quantity.parse::<Quantity>().unwrap())
    };
    text.split(", ")
        .filter(|pair| !pair.is_empty())
        .map(pair)
        .collect()
}

/// An ordinary offer of the default pool.
pub fn offer_of(provider: u8, hard: &str) -> ResourceOfferSpec {
    ResourceOfferSpec {
        cluster_id: cluster(provider),
        pool: DEFAULT_POOL.to_owned(),
        resource_quota: ResourceQuota { hard: list(hard) },
        largest_pods: LargestPods::default(),
        labels: BTreeMap::new(),
        path: vec![cluster(provider)],
        hops: 1,
        storage_classes: Vec::new(),
        ingress_classes: Vec::new(),
        load_balancer_classes: Vec::new(),
        node_selector: None,
        notice_seconds: Some(300),
        withdrawal_timestamp: None,
        reclaim_timestamp: None,
        reclaim_to: None,
        drain_timestamp: None,
        prices: None,
        contract: None,
    }
}
