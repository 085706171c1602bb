//! Amounts of several resources: what a pod requests, a node has, or an offer contains.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Add, AddAssign};
use std::slice;
use std::vec;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::name::ResourceName;
use crate::{Quantity, ResourceArgument, unit_of};

/// The amount of each resource, by name; like Kubernetes' `ResourceList`.
///
/// Every computation treats a missing resource as zero. Only `==` and [`ResourceList::is_empty`]
/// distinguish the two, because they are different in an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transparent)]
pub struct ResourceList(
    // Sorted by name, each name once. A vector, because lists are short, and are copied and added
    // by the hundred thousand.
    #[schemars(with = "BTreeMap<String, Quantity>")] Vec<(ResourceName, Quantity)>,
);

/// A resource with too little available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The resource's name.
    pub resource: String,
    /// The requested amount.
    pub requested: Quantity,
    /// The available amount.
    pub available: Quantity,
}

impl Shortage {
    /// The missing amount.
    pub fn missing_amount(&self) -> Quantity {
        self.requested - self.available
    }
}

/// Prints `cpu: 500m short (2 requested, 1500m available)`.
impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            resource,
            requested,
            available,
        } = self;
        write!(
            f,
            "{resource}: {} short ({requested} requested, {available} available)",
            self.missing_amount()
        )
    }
}

impl ResourceList {
    /// An empty list.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// The amount of a resource; zero if the list does not contain it.
    pub fn get(&self, resource: &str) -> Quantity {
        self.find(resource).unwrap_or_default()
    }

    /// Whether the list contains the resource, even with zero.
    pub fn contains(&self, resource: &str) -> bool {
        self.find(resource).is_some()
    }

    /// Sets the amount of one resource, and returns the previous one.
    pub fn insert(&mut self, resource: impl AsRef<str>, quantity: Quantity) -> Option<Quantity> {
        let resource = resource.as_ref();
        match self.position(resource) {
            Ok(at) => self
                .0
                .get_mut(at)
                .map(|(_, amount)| std::mem::replace(amount, quantity)),
            Err(at) => {
                self.0.insert(at, (resource.into(), quantity));
                None
            }
        }
    }

    /// Removes a resource, and returns its amount.
    pub fn remove(&mut self, resource: &str) -> Option<Quantity> {
        self.position(resource).ok().map(|at| self.0.remove(at).1)
    }

    /// Keeps only the resources for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, Quantity) -> bool) {
        self.0
            .retain(|(name, quantity)| keep(name.as_str(), *quantity));
    }

    /// Whether the list contains no resource.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether every amount is zero.
    pub fn is_zero(&self) -> bool {
        self.0.iter().all(|(_, quantity)| quantity.is_zero())
    }

    /// The number of resources.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// All resources with their amounts, sorted by name.
    pub fn iter(&self) -> Iter<'_> {
        Iter(self.0.iter())
    }

    /// Short amounts for people, `cpu=2, memory=21.0Gi`; `nothing` for an empty list. See
    /// [`Quantity::rounded`].
    pub fn rounded(&self) -> String {
        let resources: Vec<String> = self
            .iter()
            .map(|(name, quantity)| format!("{name}={}", quantity.rounded(name)))
            .collect();
        if resources.is_empty() {
            "nothing".to_owned()
        } else {
            resources.join(", ")
        }
    }

    /// The names of all resources, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// `self - other`, no amount below zero. The result contains exactly the resources of `self`,
    /// also those that become zero.
    #[must_use]
    pub fn saturating_sub(&self, other: &Self) -> Self {
        Self(
            self.paired_with(other)
                .map(|(name, have, taken)| {
                    (name.clone(), have.saturating_sub(taken.unwrap_or_default()))
                })
                .collect(),
        )
    }

    /// `self - other`, or all shortages if an amount would be negative.
    pub fn checked_sub(&self, other: &Self) -> Result<Self, Vec<Shortage>> {
        other.fits_in(self)?;
        Ok(self.saturating_sub(other))
    }

    /// Whether `available` has enough of everything in this list; otherwise all shortages. A
    /// request for zero always fits.
    pub fn fits_in(&self, available: &Self) -> Result<(), Vec<Shortage>> {
        let of_each = self
            .paired_with(available)
            .map(|(name, requested, available)| (name, requested, available.unwrap_or_default()));
        let short: Vec<Shortage> = of_each
            .filter(|(_, requested, available)| {
                *requested > Quantity::ZERO && requested > available
            })
            .map(|(name, requested, available)| Shortage {
                resource: name.as_str().to_owned(),
                requested,
                available,
            })
            .collect();
        if short.is_empty() { Ok(()) } else { Err(short) }
    }

    /// `percent` per cent of every resource, by the rules of [`Quantity::percentage`].
    #[must_use]
    pub fn percentage(&self, percent: u32) -> Self {
        Self(
            self.0
                .iter()
                .map(|(name, quantity)| {
                    let share = quantity.percentage(percent, unit_of(name.as_str()));
                    (name.clone(), share)
                })
                .collect(),
        )
    }

    /// The smaller amount of each resource that both lists contain.
    #[must_use]
    pub fn min(&self, other: &Self) -> Self {
        Self(
            self.paired_with(other)
                .filter_map(|(name, one, other)| Some((name.clone(), one.min(other?))))
                .collect(),
        )
    }

    /// The larger amount of each resource that either list contains.
    #[must_use]
    pub fn max(&self, other: &Self) -> Self {
        self.joined(other, Quantity::max)
    }

    /// Limits each resource to its cap. A resource without a cap has no limit.
    #[must_use]
    pub fn capped_by(&self, caps: &Self) -> Self {
        Self(
            self.paired_with(caps)
                .map(|(name, quantity, cap)| {
                    (name.clone(), cap.map_or(quantity, |cap| quantity.min(cap)))
                })
                .collect(),
        )
    }

    /// Whether any resource of `other` differs from `self` by more than `percent` per cent. A
    /// resource that appears or disappears always differs.
    pub fn differs_by_more_than(&self, other: &Self, percent: u32) -> bool {
        self.names().chain(other.names()).any(|name| {
            let (before, after) = (self.get(name), other.get(name));
            before.is_zero() != after.is_zero() || before.differs_by_more_than(after, percent)
        })
    }

    fn find(&self, resource: &str) -> Option<Quantity> {
        self.position(resource)
            .ok()
            .and_then(|at| self.0.get(at))
            .map(|(_, amount)| *amount)
    }

    /// The position of a resource, or the position to insert it.
    fn position(&self, resource: &str) -> Result<usize, usize> {
        self.0
            .binary_search_by(|(name, _)| name.as_str().cmp(resource))
    }

    /// Each resource of this list, with its amount in `other`.
    fn paired_with<'a>(
        &'a self,
        other: &'a Self,
    ) -> impl Iterator<Item = (&'a ResourceName, Quantity, Option<Quantity>)> {
        let mut rest = other.0.as_slice();
        self.0.iter().map(move |(name, quantity)| {
            // Both lists are sorted, so smaller names are never needed again.
            while let [(before, _), after @ ..] = rest
                && before < name
            {
                rest = after;
            }
            let found = rest.first().filter(|(other, _)| other == name);
            (name, *quantity, found.map(|(_, quantity)| *quantity))
        })
    }

    /// The resources of both lists. `both` combines the amounts of a resource that is in both.
    fn joined(&self, other: &Self, both: impl Fn(Quantity, Quantity) -> Quantity) -> Self {
        let mut all = Vec::with_capacity(self.0.len().max(other.0.len()));
        let mut rest = other.0.iter().peekable();
        for (name, quantity) in &self.0 {
            while let Some(before) = rest.next_if(|(other, _)| other < name) {
                all.push(before.clone());
            }
            let same = rest.next_if(|(other, _)| other == name);
            all.push((
                name.clone(),
                same.map_or(*quantity, |(_, other)| both(*quantity, *other)),
            ));
        }
        all.extend(rest.cloned());
        Self(all)
    }
}

impl AddAssign<&ResourceList> for ResourceList {
    fn add_assign(&mut self, other: &ResourceList) {
        // Usually both lists contain the same resources.
        if self.0.len() == other.0.len()
            && self
                .0
                .iter()
                .zip(&other.0)
                .all(|((one, _), (other, _))| one == other)
        {
            for ((_, sum), (_, quantity)) in self.0.iter_mut().zip(&other.0) {
                *sum += *quantity;
            }
        } else {
            *self = self.joined(other, Add::add);
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
pub struct Iter<'a>(slice::Iter<'a, (ResourceName, Quantity)>);

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a str, Quantity);

    fn next(&mut self) -> Option<Self::Item> {
        self.0
            .next()
            .map(|(name, quantity)| (name.as_str(), *quantity))
    }
}

impl<'a> IntoIterator for &'a ResourceList {
    type Item = (&'a str, Quantity);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Iterator over names and amounts by value.
#[derive(Clone, Debug)]
pub struct IntoIter(vec::IntoIter<(ResourceName, Quantity)>);

impl Iterator for IntoIter {
    type Item = (String, Quantity);

    fn next(&mut self) -> Option<Self::Item> {
        self.0
            .next()
            .map(|(name, quantity)| (name.as_str().to_owned(), quantity))
    }
}

impl IntoIterator for ResourceList {
    type Item = (String, Quantity);
    type IntoIter = IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        IntoIter(self.0.into_iter())
    }
}

/// If a resource appears several times, the last amount counts.
impl<N: AsRef<str>> FromIterator<(N, Quantity)> for ResourceList {
    fn from_iter<I: IntoIterator<Item = (N, Quantity)>>(resources: I) -> Self {
        let mut all: Vec<(ResourceName, Quantity)> = resources
            .into_iter()
            .map(|(name, quantity)| (ResourceName::from(name.as_ref()), quantity))
            .collect();
        if !all.is_sorted_by(|(one, _), (next, _)| one < next) {
            all.sort_by(|(one, _), (next, _)| one.cmp(next));
            // The sort is stable, and `dedup_by` keeps the first of two equal names.
            all.dedup_by(|(name, quantity), (kept, amount)| {
                let same = name == kept;
                if same {
                    *amount = *quantity;
                }
                same
            });
        }
        Self(all)
    }
}

/// If a resource appears several times, the last argument counts.
impl FromIterator<ResourceArgument> for ResourceList {
    fn from_iter<I: IntoIterator<Item = ResourceArgument>>(arguments: I) -> Self {
        arguments
            .into_iter()
            .map(ResourceArgument::into_parts)
            .collect()
    }
}

impl<N: AsRef<str>, const COUNT: usize> From<[(N, Quantity); COUNT]> for ResourceList {
    fn from(resources: [(N, Quantity); COUNT]) -> Self {
        resources.into_iter().collect()
    }
}

/// Prints `cpu=2, memory=4Gi`, or `nothing` for an empty list.
impl fmt::Display for ResourceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resources: Vec<String> = self
            .iter()
            .map(|(name, quantity)| format!("{name}={quantity}"))
            .collect();
        f.pad(
            if resources.is_empty() {
                "nothing".to_owned()
            } else {
                resources.join(", ")
            }
            .as_str(),
        )
    }
}

impl Serialize for ResourceList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

impl<'de> Deserialize<'de> for ResourceList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(BTreeMap::<String, Quantity>::deserialize(deserializer)?
            .into_iter()
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::{collection::btree_map, prelude::*};

    use super::*;

    /// Reads `cpu=2, memory=4Gi`.
    fn list(text: &str) -> ResourceList {
        let pair = |pair: &str| {
            let (name, quantity) = pair.split_once('=').unwrap();
            (name.to_owned(), quantity.parse::<Quantity>().unwrap())
        };
        text.split(", ")
            .filter(|pair| !pair.is_empty())
            .map(pair)
            .collect()
    }

    #[test]
    fn a_list_is_printed_as_users_type_it() {
        assert_eq!(
            list("memory=4096Mi, cpu=2").to_string(),
            "cpu=2, memory=4Gi"
        );
        assert_eq!(ResourceList::new().to_string(), "nothing");
        assert_eq!(
            list("memory=22053474Ki, cpu=2").rounded(),
            "cpu=2, memory=21.0Gi"
        );
        assert_eq!(ResourceList::new().rounded(), "nothing");
    }

    #[test]
    fn a_sum_contains_the_resources_of_both_lists() {
        let sum = list("cpu=1, memory=1Gi") + &list("cpu=500m, pods=3");
        assert_eq!(sum.to_string(), "cpu=1500m, memory=1Gi, pods=3");
    }

    #[test]
    fn a_difference_is_never_negative_and_keeps_used_up_resources() {
        let rest = list("cpu=1, memory=1Gi").saturating_sub(&list("cpu=2, memory=1Gi, pods=1"));
        assert_eq!(rest.to_string(), "cpu=0, memory=0");
        assert!(rest.is_zero());
        assert!(!rest.is_empty());
    }

    #[test]
    fn a_request_that_does_not_fit_lists_its_shortages() {
        let available = list("cpu=1500m, memory=4Gi");
        let short = list("cpu=2, memory=4Gi, nvidia.com/gpu=1, pods=0")
            .fits_in(&available)
            .unwrap_err();
        let texts: Vec<String> = short.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "cpu: 500m short (2 requested, 1500m available)",
                "nvidia.com/gpu: 1 short (1 requested, 0 available)"
            ]
        );
        assert_eq!(
            available.checked_sub(&list("cpu=2")).unwrap_err()[0]
                .missing_amount()
                .to_string(),
            "500m"
        );
        assert_eq!(
            available
                .checked_sub(&list("cpu=1500m"))
                .unwrap()
                .to_string(),
            "cpu=0, memory=4Gi"
        );
    }

    #[test]
    fn a_request_for_zero_fits_even_into_a_negative_amount() {
        assert_eq!(list("cpu=0").fits_in(&list("cpu=-1")), Ok(()));
    }

    #[test]
    fn each_resource_is_shared_in_its_own_unit() {
        let share = list("cpu=3333m, memory=1Ki, hugepages-2Mi=4Mi, nvidia.com/gpu=1, pods=110")
            .percentage(90);
        assert_eq!(
            share.to_string(),
            "cpu=2999m, hugepages-2Mi=2Mi, memory=921, nvidia.com/gpu=1, pods=99"
        );
        assert!(list("nvidia.com/gpu=1").percentage(0).is_zero());
    }

    #[test]
    fn smaller_larger_and_capped_amounts() {
        let (one, two) = (
            list("cpu=1, memory=4Gi, pods=1"),
            list("cpu=2, memory=1Gi, storage=1Gi"),
        );
        assert_eq!(one.min(&two).to_string(), "cpu=1, memory=1Gi");
        assert_eq!(
            one.max(&two).to_string(),
            "cpu=2, memory=4Gi, pods=1, storage=1Gi"
        );
        assert_eq!(one.capped_by(&two).to_string(), "cpu=1, memory=1Gi, pods=1");
    }

    #[test]
    fn small_changes_are_no_difference_but_a_new_resource_is() {
        let before = list("cpu=100, memory=100Gi");
        assert!(!before.differs_by_more_than(&list("cpu=105, memory=95Gi"), 5));
        assert!(before.differs_by_more_than(&list("cpu=106, memory=100Gi"), 5));
        assert!(before.differs_by_more_than(&list("cpu=100"), 1000));
        assert!(before.differs_by_more_than(&list("cpu=100, memory=100Gi, pods=1"), 1000));
        assert!(!before.differs_by_more_than(&list("cpu=100, memory=100Gi, pods=0"), 5));
    }

    #[test]
    fn a_list_is_a_plain_map_in_json() {
        let json = r#"{"cpu":"2","memory":"4Gi"}"#;
        let read: ResourceList = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), json);
    }

    #[test]
    fn the_schema_of_a_list_is_that_of_a_map() {
        let mut generator = schemars::SchemaGenerator::default();
        let mut schema = ResourceList::json_schema(&mut generator);
        let description = schema.remove("description");
        assert_eq!(
            schema,
            BTreeMap::<String, Quantity>::json_schema(&mut generator)
        );
        assert!(description.is_some_and(|text| {
            text.as_str()
                .is_some_and(|text| text.starts_with("The amount of each resource"))
        }));
    }

    #[test]
    fn names_are_sorted_and_unique_whatever_the_input() {
        let made =
            list("pods=1, example.com/b=2, cpu=1, memory=1Gi, example.com/a=1, cpu=3, pods=2");
        let text = "cpu=3, example.com/a=1, example.com/b=2, memory=1Gi, pods=2";
        assert_eq!(made.to_string(), text);
        let mut grown = ResourceList::new();
        for (name, quantity) in [
            ("pods", 9),
            ("memory", 2),
            ("cpu", 1),
            ("example.com/gpu", 7),
            ("pods", 3),
        ] {
            grown.insert(name, Quantity::from_units(quantity));
        }
        assert_eq!(
            grown.to_string(),
            "cpu=1, example.com/gpu=7, memory=2, pods=3"
        );
        assert_eq!(
            (grown.remove("memory"), grown.remove("memory")),
            (Some(Quantity::from_units(2)), None)
        );
        assert_eq!(
            (grown.get("pods"), grown.get("poda")),
            (Quantity::from_units(3), Quantity::ZERO)
        );
        let read: ResourceList =
            serde_json::from_str(r#"{"pods":"1","cpu":"2","cpu":"3"}"#).unwrap();
        assert_eq!(read, list("cpu=3, pods=1"));
    }

    proptest! {
        #[test]
        fn lists_compute_as_maps_would(one in any_map(), other in any_map()) {
            let (a, b) = (ResourceList::from_iter(one.clone()), ResourceList::from_iter(other.clone()));
            let map = |list: ResourceList| BTreeMap::from_iter(list);
            let of = |map: &BTreeMap<String, Quantity>, name: &str| map.get(name).copied();
            let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            let of_both = |made: &dyn Fn(Option<Quantity>, Option<Quantity>) -> Option<Quantity>| {
                let made = |name: &&String| Some(((*name).clone(), made(of(&one, name), of(&other, name))?));
                names.iter().filter_map(made).collect::<BTreeMap<_, _>>()
            };
            let either = |a: Option<Quantity>, b: Option<Quantity>| a.or(b);
            prop_assert_eq!(map(a.clone()), one.clone());
            prop_assert_eq!(map(a.clone() + &b), of_both(&|a, b| Some(a.unwrap_or_default() + b.unwrap_or_default())));
            prop_assert_eq!(map(a.max(&b)), of_both(&|a, b| Some(either(a, b)?.max(either(b, a)?))));
            prop_assert_eq!(map(a.min(&b)), of_both(&|a, b| Some(a?.min(b?))));
            prop_assert_eq!(map(a.saturating_sub(&b)), of_both(&|a, b| Some(a?.saturating_sub(b.unwrap_or_default()))));
            prop_assert_eq!(map(a.capped_by(&b)), of_both(&|a, b| Some(a?.min(either(b, a)?))));
            let short: Vec<String> = a.fits_in(&b).err().into_iter().flatten().map(|short| short.resource).collect();
            let expected = of_both(&|a, b| a.filter(|a| *a > b.unwrap_or_default().max(Quantity::ZERO)));
            prop_assert_eq!(short, expected.into_keys().collect::<Vec<_>>());
        }
    }

    /// Well-known names and others.
    fn any_map() -> impl Strategy<Value = BTreeMap<String, Quantity>> {
        let name = prop_oneof![
            "cpu|memory|pods|storage|ephemeral-storage|hugepages-2Mi",
            "[a-z]{1,3}/[a-z]"
        ];
        btree_map(name, (-2..9_i64).prop_map(Quantity::from_units), 0..7)
    }
}
