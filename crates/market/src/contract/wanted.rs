//! The terms that a policy and the present offers mean.

use std::collections::BTreeMap;

use liqo_api::{
    ClusterId, Commitment, ContractClasses, ContractLimits, ContractPool, ContractTerms, PriceList,
    Provide, ProvideContract, ResourceList, Time,
};

/// One pool as it is offered now.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolOnOffer {
    pub name: String,
    /// The amounts that the provider offers.
    pub resources: ResourceList,
    pub prices: Option<PriceList>,
}

/// Terms that a contract should have now, without its name and its times.
#[derive(Clone, Debug, PartialEq)]
pub struct WantedTerms {
    pub contract: ProvideContract,
    pub pools: Vec<ContractPool>,
    pub prices: BTreeMap<String, PriceList>,
    pub classes: ContractClasses,
    pub limits: ContractLimits,
    pub notice_seconds: u32,
}

impl WantedTerms {
    /// The terms of these pools; `None` if the policy has no contracts, or nothing is offered.
    /// `limits` are the most of each named resource that the consumer may have in all pools
    /// together.
    pub fn of_policy(
        provide: &Provide,
        pools: Vec<PoolOnOffer>,
        limits: &[&ResourceList],
    ) -> Option<Self> {
        let contract = provide.contract.clone().filter(|_| !pools.is_empty())?;
        let usage = &provide.usage;
        let prices = pools
            .iter()
            .filter_map(|pool| Some((pool.name.clone(), pool.prices.clone()?)))
            .collect();
        Some(Self {
            contract,
            pools: limit_pools(pools, limits),
            prices,
            classes: ContractClasses {
                storage: usage.storage_classes.clone(),
                ingress: usage.ingress_classes.clone(),
                load_balancer: usage.load_balancer_classes.clone(),
            },
            limits: ContractLimits {
                pod_security: usage.pod_security,
                max_namespaces: usage.max_namespaces,
                max_services: usage.max_services,
                max_endpoints: usage.max_endpoints,
                charge: usage.charge,
                default_limit_percentage: usage.default_limit_percentage,
            },
            notice_seconds: provide.notice_seconds,
        })
    }

    /// Whether these terms need an amendment of `terms`. Amounts count only where they are
    /// guaranteed. A pool that is not offered now stays in the terms: its nodes may come back.
    pub fn differ_from(&self, terms: &ContractTerms) -> bool {
        self.contract.commitment != terms.commitment
            || self.contract.renewal != terms.renewal
            || self.contract.period_seconds.is_some() != terms.end.is_some()
            || self.classes != terms.classes
            || self.limits != terms.limits
            || self.notice_seconds != terms.notice_seconds
            || self
                .pools
                .iter()
                .any(|pool| self.pool_differs_from(terms, pool))
    }

    fn pool_differs_from(&self, terms: &ContractTerms, pool: &ContractPool) -> bool {
        let Some(promised) = terms.amounts_of_pool(&pool.name) else {
            return true;
        };
        let is_guaranteed = self.contract.commitment == Commitment::Guaranteed;
        self.prices.get(&pool.name) != terms.prices.get(&pool.name)
            || (is_guaranteed && *promised != pool.resources)
    }

    /// The terms with these names and times.
    pub fn with_names(&self, names: VersionNames, start: Time, end: Option<Time>) -> ContractTerms {
        let VersionNames {
            contract,
            version,
            previous,
            provider,
            consumer,
            peering,
        } = names;
        ContractTerms {
            contract,
            version,
            previous,
            provider,
            consumer,
            commitment: self.contract.commitment,
            pools: self.pools.clone(),
            classes: self.classes.clone(),
            prices: self.prices.clone(),
            notice_seconds: self.notice_seconds,
            limits: self.limits.clone(),
            start,
            end,
            renewal: self.contract.renewal,
            metering_period_seconds: self.metering_period_seconds(),
            peering,
            counts_after_seconds: None,
        }
    }

    /// Not longer than the contract: otherwise one period would see many renewals. Whole minutes.
    fn metering_period_seconds(&self) -> u32 {
        let longest = self
            .contract
            .period_seconds
            .map_or(u32::MAX, |period| (period - period % 60).max(60));
        self.contract.metering_period_seconds.min(longest)
    }
}

/// Fields that identify a version of a contract.
#[derive(Clone, Debug)]
pub struct VersionNames {
    pub contract: String,
    pub version: u32,
    pub previous: Option<String>,
    pub provider: ClusterId,
    pub consumer: ClusterId,
    /// The peering that the consumer's request names.
    pub peering: Option<String>,
}

/// The pools, limited by lists that apply to all of them together: the first pools get most.
fn limit_pools(pools: Vec<PoolOnOffer>, limits: &[&ResourceList]) -> Vec<ContractPool> {
    let mut left: Vec<ResourceList> = limits.iter().map(|&limit| limit.clone()).collect();
    let mut all = Vec::new();
    for PoolOnOffer {
        name,
        mut resources,
        ..
    } in pools
    {
        for limit in &mut left {
            resources = resources.capped_by(limit);
        }
        for limit in &mut left {
            *limit = limit.saturating_sub(&resources);
        }
        all.push(ContractPool { name, resources });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        contract::fixtures::{PEERING, Parties, at, terms},
        tests::list,
    };

    fn wanted(change: impl FnOnce(&mut Provide), resources: &str) -> WantedTerms {
        let mut provide = Provide {
            contract: Some(ProvideContract::default()),
            ..Provide::default()
        };
        change(&mut provide);
        let pool = PoolOnOffer {
            name: "default".to_owned(),
            resources: list(resources),
            prices: None,
        };
        WantedTerms::of_policy(&provide, vec![pool], &[]).unwrap()
    }

    #[test]
    fn amounts_of_best_effort_need_no_amendment() {
        let terms = terms(&Parties::new());
        assert!(!wanted(|_| (), "cpu=1").differ_from(&terms));
        let guaranteed = ContractTerms {
            commitment: Commitment::Guaranteed,
            ..terms
        };
        let guarantee = |provide: &mut Provide| {
            provide.contract.as_mut().unwrap().commitment = Commitment::Guaranteed;
        };
        assert!(wanted(guarantee, "cpu=1").differ_from(&guaranteed));
        assert!(!wanted(guarantee, "cpu=4, memory=8Gi, pods=10").differ_from(&guaranteed));
    }

    #[test]
    fn prices_notice_classes_limits_and_new_pools_need_an_amendment() {
        let terms = terms(&Parties::new());
        let prices = BTreeMap::from([(
            "default".to_owned(),
            PriceList {
                currency: "EUR".to_owned(),
                ..PriceList::default()
            },
        )]);
        assert!(
            WantedTerms {
                prices,
                ..wanted(|_| (), "cpu=1")
            }
            .differ_from(&terms)
        );
        assert!(wanted(|provide| provide.notice_seconds = 60, "cpu=1").differ_from(&terms));
        assert!(
            wanted(
                |provide| provide.usage.storage_classes = vec!["fast".to_owned()],
                "cpu=1"
            )
            .differ_from(&terms)
        );
        assert!(wanted(|provide| provide.usage.max_services = 1, "cpu=1").differ_from(&terms));
        let more = vec![ContractPool {
            name: "gold".to_owned(),
            resources: list("cpu=1"),
        }];
        assert!(
            WantedTerms {
                pools: more,
                ..wanted(|_| (), "cpu=1")
            }
            .differ_from(&terms)
        );
        assert!(
            !WantedTerms {
                pools: Vec::new(),
                ..wanted(|_| (), "cpu=1")
            }
            .differ_from(&terms),
            "its nodes may come back"
        );
    }

    #[test]
    fn the_terms_say_what_is_wanted() {
        let parties = Parties::new();
        let wanted = wanted(|_| (), "cpu=4, memory=8Gi, pods=10");
        let names = VersionNames {
            contract: terms(&parties).contract,
            version: 1,
            previous: None,
            provider: parties.provider.id().clone(),
            consumer: parties.consumer.id().clone(),
            peering: Some(PEERING.to_owned()),
        };
        assert_eq!(
            wanted.with_names(names, Time(at(1000)), None),
            terms(&parties)
        );
    }

    #[test]
    fn use_is_measured_in_periods_that_are_not_longer_than_the_contract() {
        let period = |contract: Option<u32>| {
            wanted(
                |provide| provide.contract.as_mut().unwrap().period_seconds = contract,
                "cpu=1",
            )
            .metering_period_seconds()
        };
        assert_eq!(
            [None, Some(86_400), Some(1000), Some(60)].map(period),
            [3600, 3600, 960, 60]
        );
    }

    #[test]
    fn limits_apply_to_all_pools_together() {
        let pool = |name: &str| PoolOnOffer {
            name: name.to_owned(),
            resources: list("cpu=4, memory=8Gi"),
            prices: None,
        };
        let pools = limit_pools(
            vec![pool("a"), pool("b")],
            &[&list("cpu=6"), &list("memory=1Gi")],
        );
        assert_eq!(pools[0].resources, list("cpu=4, memory=1Gi"));
        assert_eq!(pools[1].resources, list("cpu=2, memory=0"));
    }
}
