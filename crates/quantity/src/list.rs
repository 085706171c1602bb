//! Amounts of several resources at once: what a pod requests, what a node has, what an offer holds.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::fmt;
use std::ops::{Add, AddAssign};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Quantity, ResourceArgument, unit_of};

/// How much there is of each resource, by name; as in Kubernetes' `ResourceList`.
///
/// A resource that is not named counts as zero in every computation. Only `==` and [`ResourceList::is_empty`]
/// distinguish the two, because what is written into an object differs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ResourceList(BTreeMap<String, Quantity>);

/// One resource of which there is too little.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The resource's name.
    pub resource: String,
    /// What was asked for.
    pub requested: Quantity,
    /// What there is.
    pub available: Quantity,
}

impl Shortage {
    /// By how much it is short.
    pub fn missing(&self) -> Quantity {
        self.requested - self.available
    }
}

/// As in `cpu: 500m short (2 requested, 1500m available)`.
impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, requested, available } = self;
        write!(f, "{resource}: {} short ({requested} requested, {available} available)", self.missing())
    }
}

impl ResourceList {
    /// A list that names no resource.
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// How much there is of this resource; zero if it is not named.
    pub fn get(&self, resource: &str) -> Quantity {
        self.0.get(resource).copied().unwrap_or_default()
    }

    /// Whether the resource is named, be it with zero.
    pub fn contains(&self, resource: &str) -> bool {
        self.0.contains_key(resource)
    }

    /// Sets the amount of one resource, and returns the earlier one.
    pub fn insert(&mut self, resource: impl Into<String>, quantity: Quantity) -> Option<Quantity> {
        self.0.insert(resource.into(), quantity)
    }

    /// Forgets a resource, and returns its amount.
    pub fn remove(&mut self, resource: &str) -> Option<Quantity> {
        self.0.remove(resource)
    }

    /// Keeps only the resources for which `keep` says so.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, Quantity) -> bool) {
        self.0.retain(|name, quantity| keep(name, *quantity));
    }

    /// Whether no resource is named.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is nothing of any resource.
    pub fn is_zero(&self) -> bool {
        self.0.values().all(|quantity| quantity.is_zero())
    }

    /// The number of resources named.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// All resources with their amounts, by name.
    pub fn iter(&self) -> Iter<'_> {
        Iter(self.0.iter())
    }

    /// The names of all resources, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// `self - other`, no resource below zero. Names exactly the resources of `self`: what is used up is there with zero.
    #[must_use]
    pub fn saturating_sub(&self, other: &Self) -> Self {
        self.map(|name, quantity| quantity.saturating_sub(other.get(name)))
    }

    /// `self - other`, or what is short if a resource would fall below zero.
    pub fn checked_sub(&self, other: &Self) -> Result<Self, Vec<Shortage>> {
        other.fits_in(self)?;
        Ok(self.saturating_sub(other))
    }

    /// Whether `available` has enough of everything that this list asks for; otherwise every resource that is short.
    /// Asking for nothing always fits.
    pub fn fits_in(&self, available: &Self) -> Result<(), Vec<Shortage>> {
        let short: Vec<Shortage> = self
            .iter()
            .filter(|(name, requested)| *requested > Quantity::ZERO && *requested > available.get(name))
            .map(|(name, requested)| Shortage { resource: name.to_owned(), requested, available: available.get(name) })
            .collect();
        if short.is_empty() { Ok(()) } else { Err(short) }
    }

    /// `percent` per cent of every resource, each by the rule of its unit: see [`Quantity::percentage`].
    #[must_use]
    pub fn percentage(&self, percent: u32) -> Self {
        self.map(|name, quantity| quantity.percentage(percent, unit_of(name)))
    }

    /// The smaller amount of each resource. One that either list does not name is zero in it, and is left out.
    #[must_use]
    pub fn min(&self, other: &Self) -> Self {
        self.iter()
            .filter(|(name, _)| other.contains(name))
            .map(|(name, quantity)| (name.to_owned(), quantity.min(other.get(name))))
            .collect()
    }

    /// The larger amount of each resource that either list names.
    #[must_use]
    pub fn max(&self, other: &Self) -> Self {
        let mut larger = self.clone();
        for (name, quantity) in other {
            larger.0.entry(name.to_owned()).and_modify(|have| *have = (*have).max(quantity)).or_insert(quantity);
        }
        larger
    }

    /// No more than the caps allow; a resource for which there is no cap is not limited.
    #[must_use]
    pub fn capped_by(&self, caps: &Self) -> Self {
        self.map(|name, quantity| caps.0.get(name).map_or(quantity, |cap| quantity.min(*cap)))
    }

    /// Whether going from `self` to `other` changes any resource by more than `percent` per cent of what it was.
    /// A resource that appears or disappears is a change whatever the percentage.
    pub fn differs_by_more_than(&self, other: &Self, percent: u32) -> bool {
        let changed = |name: &str| {
            let (before, after) = (self.get(name), other.get(name));
            before.is_zero() != after.is_zero() || before.differs_by_more_than(after, percent)
        };
        self.names().chain(other.names()).any(changed)
    }

    fn map(&self, new: impl Fn(&str, Quantity) -> Quantity) -> Self {
        self.iter().map(|(name, quantity)| (name.to_owned(), new(name, quantity))).collect()
    }
}

impl AddAssign<&ResourceList> for ResourceList {
    fn add_assign(&mut self, other: &ResourceList) {
        for (name, quantity) in other {
            if let Some(have) = self.0.get_mut(name) {
                *have += quantity;
            } else {
                self.0.insert(name.to_owned(), quantity);
            }
        }
    }
}

impl Add<&ResourceList> for ResourceList {
    type Output = Self;

    fn add(mut self, other: &ResourceList) -> Self {
        self += other;
        self
    }
}

impl<'a> std::iter::Sum<&'a ResourceList> for ResourceList {
    fn sum<I: Iterator<Item = &'a ResourceList>>(lists: I) -> Self {
        lists.fold(Self::new(), Add::add)
    }
}

/// Borrowing iterator over names and amounts.
#[derive(Clone, Debug)]
pub struct Iter<'a>(btree_map::Iter<'a, String, Quantity>);

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a str, Quantity);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(name, quantity)| (name.as_str(), *quantity))
    }
}

impl<'a> IntoIterator for &'a ResourceList {
    type Item = (&'a str, Quantity);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for ResourceList {
    type Item = (String, Quantity);
    type IntoIter = btree_map::IntoIter<String, Quantity>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<N: Into<String>> FromIterator<(N, Quantity)> for ResourceList {
    fn from_iter<I: IntoIterator<Item = (N, Quantity)>>(resources: I) -> Self {
        Self(resources.into_iter().map(|(name, quantity)| (name.into(), quantity)).collect())
    }
}

/// Of several arguments for one resource, the last one counts.
impl FromIterator<ResourceArgument> for ResourceList {
    fn from_iter<I: IntoIterator<Item = ResourceArgument>>(arguments: I) -> Self {
        arguments.into_iter().map(ResourceArgument::into_parts).collect()
    }
}

impl<N: Into<String>, const COUNT: usize> From<[(N, Quantity); COUNT]> for ResourceList {
    fn from(resources: [(N, Quantity); COUNT]) -> Self {
        resources.into_iter().collect()
    }
}

/// As in `cpu=2, memory=4Gi`; `nothing` if no resource is named.
impl fmt::Display for ResourceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resources: Vec<String> = self.iter().map(|(name, quantity)| format!("{name}={quantity}")).collect();
        f.pad(if resources.is_empty() { "nothing".to_owned() } else { resources.join(", ") }.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `cpu=2, memory=4Gi`.
    fn list(text: &str) -> ResourceList {
        let pair = |pair: &str| {
            let (name, quantity) = pair.split_once('=').unwrap();
            (name.to_owned(), quantity.parse::<Quantity>().unwrap())
        };
        text.split(", ").filter(|pair| !pair.is_empty()).map(pair).collect()
    }

    #[test]
    fn it_is_printed_as_people_type_it() {
        assert_eq!(list("memory=4096Mi, cpu=2").to_string(), "cpu=2, memory=4Gi");
        assert_eq!(ResourceList::new().to_string(), "nothing");
    }

    #[test]
    fn a_sum_names_the_resources_of_both() {
        let sum = list("cpu=1, memory=1Gi") + &list("cpu=500m, pods=3");
        assert_eq!(sum.to_string(), "cpu=1500m, memory=1Gi, pods=3");
    }

    #[test]
    fn a_remainder_is_never_negative_and_keeps_what_is_used_up() {
        let rest = list("cpu=1, memory=1Gi").saturating_sub(&list("cpu=2, memory=1Gi, pods=1"));
        assert_eq!(rest.to_string(), "cpu=0, memory=0");
        assert!(rest.is_zero());
        assert!(!rest.is_empty());
    }

    #[test]
    fn what_does_not_fit_says_what_is_short_by_how_much() {
        let available = list("cpu=1500m, memory=4Gi");
        let short = list("cpu=2, memory=4Gi, nvidia.com/gpu=1, pods=0").fits_in(&available).unwrap_err();
        let texts: Vec<String> = short.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            ["cpu: 500m short (2 requested, 1500m available)", "nvidia.com/gpu: 1 short (1 requested, 0 available)"]
        );
        assert_eq!(available.checked_sub(&list("cpu=2")).unwrap_err()[0].missing().to_string(), "500m");
        assert_eq!(available.checked_sub(&list("cpu=1500m")).unwrap().to_string(), "cpu=0, memory=4Gi");
    }

    #[test]
    fn asking_for_nothing_fits_even_where_less_than_nothing_is_left() {
        assert_eq!(list("cpu=0").fits_in(&list("cpu=-1")), Ok(()));
    }

    #[test]
    fn each_resource_is_shared_by_its_own_rule() {
        let share = list("cpu=3333m, memory=1Ki, hugepages-2Mi=4Mi, nvidia.com/gpu=1, pods=110").percentage(90);
        assert_eq!(share.to_string(), "cpu=2999m, hugepages-2Mi=2Mi, memory=921, nvidia.com/gpu=1, pods=99");
        assert!(list("nvidia.com/gpu=1").percentage(0).is_zero());
    }

    #[test]
    fn smaller_larger_and_capped_amounts() {
        let (one, two) = (list("cpu=1, memory=4Gi, pods=1"), list("cpu=2, memory=1Gi, storage=1Gi"));
        assert_eq!(one.min(&two).to_string(), "cpu=1, memory=1Gi");
        assert_eq!(one.max(&two).to_string(), "cpu=2, memory=4Gi, pods=1, storage=1Gi");
        assert_eq!(one.capped_by(&two).to_string(), "cpu=1, memory=1Gi, pods=1");
    }

    #[test]
    fn small_changes_are_no_difference_but_appearing_is() {
        let before = list("cpu=100, memory=100Gi");
        assert!(!before.differs_by_more_than(&list("cpu=105, memory=95Gi"), 5));
        assert!(before.differs_by_more_than(&list("cpu=106, memory=100Gi"), 5));
        assert!(before.differs_by_more_than(&list("cpu=100"), 1000));
        assert!(before.differs_by_more_than(&list("cpu=100, memory=100Gi, pods=1"), 1000));
        assert!(!before.differs_by_more_than(&list("cpu=100, memory=100Gi, pods=0"), 5));
    }

    #[test]
    fn in_json_it_is_a_plain_map() {
        let json = r#"{"cpu":"2","memory":"4Gi"}"#;
        let read: ResourceList = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), json);
    }
}
