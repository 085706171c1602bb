//! Label selectors as values: compared, evaluated, and complemented.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Expression, SelectorExt as _};
use liqo_api::selectors::label_selector;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::views::LabelSelectorView;

/// Labels of a pod or a namespace.
pub type LabelMap = BTreeMap<String, String>;

/// A label selector: all of these must match. An empty one selects everything. Equal selectors are
/// equal values: one value is always written as [`Expression::In`].
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NormalizedSelector(pub(super) BTreeSet<Expression>);

/// The label has one of these values.
pub(crate) fn key_in_values(
    key: &str,
    values: impl IntoIterator<Item = impl Into<String>>,
) -> Expression {
    Expression::In(key.to_owned(), values.into_iter().map(Into::into).collect())
}

/// The label that the expression is about.
pub fn key(expression: &Expression) -> &str {
    use Expression::{DoesNotExist, Equal, Exists, In, NotEqual, NotIn};
    match expression {
        In(key, _)
        | NotIn(key, _)
        | Equal(key, _)
        | NotEqual(key, _)
        | Exists(key)
        | DoesNotExist(key) => key,
    }
}

/// Matches exactly when this expression does not.
fn negated_expression(expression: &Expression) -> Expression {
    match expression.clone() {
        Expression::In(key, values) => Expression::NotIn(key, values),
        Expression::NotIn(key, values) => Expression::In(key, values),
        Expression::Equal(key, value) => Expression::NotEqual(key, value),
        Expression::NotEqual(key, value) => Expression::Equal(key, value),
        Expression::Exists(key) => Expression::DoesNotExist(key),
        Expression::DoesNotExist(key) => Expression::Exists(key),
    }
}

impl NormalizedSelector {
    /// Exactly these labels.
    pub fn exactly(labels: &[(&str, &str)]) -> Self {
        Self(
            labels
                .iter()
                .map(|(key, value)| key_in_values(key, [*value]))
                .collect(),
        )
    }

    /// Reads JSON; `None` if Kubernetes would refuse it, or if it has an unknown field.
    pub fn from_json(value: &Value) -> Option<Self> {
        let is_known = has_only(value, &["matchLabels", "matchExpressions"])
            && LabelSelectorView::of(value)
                .match_expressions()
                .iter()
                .all(|one| has_only(one, &["key", "operator", "values"]));
        let selector = LabelSelector::deserialize(value)
            .ok()
            .filter(|_| is_known)?;
        let expressions =
            label_selector(&selector)?
                .into_iter()
                .map(|expression| match expression {
                    Expression::Equal(key, value) => key_in_values(&key, [value]),
                    expression => expression,
                });
        Some(Self(expressions.collect()))
    }

    /// As Kubernetes writes it; equal selectors give the same JSON.
    pub fn to_json(&self) -> Value {
        let mut keys = BTreeSet::new();
        let expressions = self.0.iter().cloned().map(|expression| match expression {
            Expression::In(key, values) if values.len() == 1 && keys.insert(key.clone()) => {
                Expression::Equal(key, values.into_iter().collect())
            }
            expression => expression,
        });
        json!(LabelSelector::from(
            expressions.collect::<kube::core::Selector>()
        ))
    }

    /// Whether it selects an object with these labels.
    pub fn matches(&self, labels: &LabelMap) -> bool {
        self.0.iter().all(|one| one.matches(labels))
    }

    /// The labels that it looks at.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(key)
    }

    /// Whether it selects everything, whatever its labels.
    pub(crate) fn selects_everything(&self) -> bool {
        self.0.is_empty()
    }

    /// Selects only what both select.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.0.extend(other.0.iter().cloned());
        self
    }
}

/// Maximum number of selectors in a complement.
const MAX_SELECTORS: usize = 32;
/// Maximum number of requirements that one step of a complement tries.
const MAX_STEPS: usize = 256;
/// Maximum number of pairs of selectors that a complement compares. A hostile consumer may send
/// selectors that take long.
const MAX_COMPARISONS: usize = 200_000;
/// Maximum length of all selectors together, in bytes of JSON: each selector of a complement may
/// repeat them all.
const MAX_LEN: usize = 256 * 1024;

/// Selectors that together select exactly what none of these does; `None` if there would be too
/// many, or if it would take too long.
///
/// What a selector does not select fails at least one of its requirements. So for each selector the
/// algorithm negates one of its requirements, and each combination of these choices is a selector.
/// It drops selectors that another one contains, so ordinary sets of applications need very few.
pub fn complement(selectors: &BTreeSet<NormalizedSelector>) -> Option<Vec<NormalizedSelector>> {
    selectors.iter().try_fold(MAX_LEN, |left, selector| {
        left.checked_sub(selector.to_json().to_string().len())
    })?;
    // Requirements are numbered, so that copying and comparing them is cheap however long they are.
    let all = selectors
        .iter()
        .flat_map(|selector| &selector.0)
        .flat_map(|one| [one.clone(), negated_expression(one)]);
    let all: Vec<Expression> = all.collect::<BTreeSet<_>>().into_iter().collect();
    let mut ordered = Vec::new();
    for selector in selectors {
        let mut numbers = Vec::new();
        for one in &selector.0 {
            let requirement = all.binary_search(one).ok()?;
            let negated = all.binary_search(&negated_expression(one)).ok()?;
            numbers.push((requirement, negated));
        }
        ordered.push(numbers);
    }
    ordered.sort_by_key(Vec::len);
    let mut found = BTreeSet::from([BTreeSet::new()]);
    let mut comparisons_left = MAX_COMPARISONS;
    for selector in ordered {
        if found.len() * selector.len() > MAX_STEPS {
            return None;
        }
        let mut next = BTreeSet::new();
        for (one, (requirement, negated)) in found
            .iter()
            .flat_map(|one| selector.iter().map(move |numbers| (one, numbers)))
        {
            // What meets the requirement cannot fail it.
            if !one.contains(requirement) {
                let mut narrower: BTreeSet<usize> = one.clone();
                narrower.insert(*negated);
                next.insert(narrower);
            }
        }
        comparisons_left = comparisons_left.checked_sub(next.len() * next.len())?;
        let kept: BTreeSet<BTreeSet<usize>> = next
            .iter()
            .filter(|one| {
                next.iter()
                    .all(|other| other == *one || !other.is_subset(one))
            })
            .cloned()
            .collect();
        if kept.len() > MAX_SELECTORS {
            return None;
        }
        found = kept;
    }
    Some(
        found
            .into_iter()
            .map(|numbers| {
                merge_requirements(
                    numbers
                        .into_iter()
                        .filter_map(|number| all.get(number))
                        .cloned(),
                )
            })
            .collect(),
    )
}

/// The selector of these requirements, with one list of the values that a label must not have.
fn merge_requirements(requirements: impl Iterator<Item = Expression>) -> NormalizedSelector {
    let mut excluded: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut all = BTreeSet::new();
    for requirement in requirements {
        match requirement {
            Expression::NotIn(key, values) => excluded.entry(key).or_default().extend(values),
            requirement => _ = all.insert(requirement),
        }
    }
    all.extend(
        excluded
            .into_iter()
            .map(|(key, values)| Expression::NotIn(key, values)),
    );
    NormalizedSelector(all)
}

fn has_only(value: &Value, known: &[&str]) -> bool {
    value
        .as_object()
        .is_some_and(|fields| fields.keys().all(|field| known.contains(&field.as_str())))
}

#[cfg(test)]
mod tests {
    use liqo_byte_mutations::mutated_text;
    use proptest::prelude::{Just, prop, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn selector(value: &Value) -> NormalizedSelector {
        NormalizedSelector::from_json(value).unwrap()
    }

    fn labels(pairs: &[(&str, &str)]) -> LabelMap {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    /// All pods that differ in the labels a, b and c, each absent or 1 or 2.
    fn every_pod() -> Vec<LabelMap> {
        let choices = |key: &'static str| [None, Some((key, "1")), Some((key, "2"))];
        let all = choices("a").into_iter().flat_map(move |a| {
            choices("b")
                .into_iter()
                .flat_map(move |b| choices("c").into_iter().map(move |c| [a, b, c]))
        });
        all.map(|pod| labels(&pod.into_iter().flatten().collect::<Vec<_>>()))
            .collect()
    }

    #[test]
    fn what_is_not_known_makes_no_selector() {
        for unknown in [
            json!(null),
            json!({ "matchFields": [] }),
            json!({ "matchLabels": { "a": 1 } }),
            json!({ "matchExpressions": [{ "key": "a", "operator": "Gt", "values": ["1"] }] }),
            json!({ "matchExpressions": ["a"] }),
            json!({ "matchExpressions": [{ "key": "a", "operator": "Exists", "more": true }] }),
        ] {
            assert_eq!(NormalizedSelector::from_json(&unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_selector_is_written_in_one_way_and_read_back_the_same() {
        let written = json!({ "matchLabels": { "a": "1" }, "matchExpressions": [
            { "key": "a", "operator": "In", "values": ["2"] }, { "key": "b", "operator": "NotIn", "values": ["1", "2"] },
            { "key": "c", "operator": "Exists" }] });
        let other = json!({ "matchExpressions": [
            { "key": "c", "operator": "Exists" }, { "key": "b", "operator": "NotIn", "values": ["2", "1"] },
            { "key": "a", "operator": "In", "values": ["2"] }, { "key": "a", "operator": "In", "values": ["1"] }] });
        assert_eq!(selector(&written), selector(&other));
        assert_eq!(selector(&written).to_json(), written);
    }

    #[test]
    fn the_complement_selects_exactly_what_no_selector_does() {
        for selectors in [
            vec![],
            vec![json!({})],
            vec![json!({ "matchLabels": { "a": "1" } })],
            vec![
                json!({ "matchLabels": { "a": "1" } }),
                json!({ "matchLabels": { "a": "2" } }),
            ],
            vec![
                json!({ "matchLabels": { "a": "1", "b": "1" } }),
                json!({ "matchLabels": { "a": "2", "b": "1" } }),
            ],
            vec![
                json!({ "matchLabels": { "a": "1", "b": "1" } }),
                json!({ "matchLabels": { "b": "2", "c": "1" } }),
            ],
            vec![
                json!({ "matchExpressions": [{ "key": "a", "operator": "Exists" }, { "key": "c", "operator": "NotIn", "values": ["1"] }] }),
                json!({ "matchExpressions": [{ "key": "a", "operator": "DoesNotExist" }, { "key": "b", "operator": "In", "values": ["1", "2"] }] }),
            ],
            vec![
                json!({ "matchExpressions": [{ "key": "a", "operator": "Exists" }] }),
                json!({ "matchExpressions": [{ "key": "a", "operator": "DoesNotExist" }] }),
            ],
        ] {
            let selectors: BTreeSet<NormalizedSelector> = selectors.iter().map(selector).collect();
            let others = complement(&selectors).unwrap();
            for pod in every_pod() {
                let selected = selectors.iter().any(|one| one.matches(&pod));
                assert_ne!(
                    selected,
                    others.iter().any(|one| one.matches(&pod)),
                    "{pod:?} with {selectors:?}"
                );
            }
        }
    }

    #[test]
    fn the_usual_labels_of_many_applications_come_to_few_selectors() {
        let application = |number: usize| {
            let number = number.to_string();
            selector(
                &json!({ "matchLabels": { "app.kubernetes.io/instance": "shop", "app.kubernetes.io/name": number } }),
            )
        };
        let others = complement(&(0..200).map(application).collect()).unwrap();
        assert_eq!(others.len(), 2);
        assert!(others.iter().any(|one| {
            one.to_json()["matchExpressions"][0]["values"]
                .as_array()
                .unwrap()
                .len()
                == 200
        }));
    }

    #[test]
    fn what_would_take_too_many_selectors_is_not_tried() {
        let pair = |number: usize| {
            selector(
                &json!({ "matchLabels": { format!("a{number}"): "1", format!("b{number}"): "1" } }),
            )
        };
        assert_eq!(complement(&(0..6).map(pair).collect()), None);
        assert!(complement(&(0..5).map(pair).collect()).is_some());
        let long = |start: usize| {
            NormalizedSelector(
                (start..start + 300)
                    .map(|key| key_in_values(&key.to_string(), ["x"]))
                    .collect(),
            )
        };
        assert_eq!(
            complement(&(0..5000).map(|number| long(number * 300)).collect()),
            None
        );
    }

    /// `{y, z}`, and so many that ask for both and for as many more labels: `{not y}` and `{not z}`
    /// are all that none selects.
    fn wide(count: usize, labels: usize) -> BTreeSet<NormalizedSelector> {
        let both = [key_in_values("y", ["1"]), key_in_values("z", ["1"])];
        let more = |number: usize| {
            (0..labels).map(move |label| key_in_values(&format!("k{label}"), [number.to_string()]))
        };
        let wide = (0..count)
            .map(|number| NormalizedSelector(both.iter().cloned().chain(more(number)).collect()));
        wide.chain([NormalizedSelector(both.clone().into())])
            .collect()
    }

    #[test]
    fn what_would_take_too_long_is_not_tried_however_few_selectors_it_came_to() {
        assert_eq!(complement(&wide(4, 60)).map(|others| others.len()), Some(2));
        assert_eq!(
            complement(&wide(100, 60)),
            None,
            "each step is small, all together are not"
        );
        assert_eq!(
            complement(&wide(199, 1000)),
            None,
            "as much as a namespace may have of what a consumer sends"
        );
    }

    #[test]
    fn what_is_too_long_is_not_tried_however_few_requirements_it_has() {
        let listed = |number: usize| {
            key_in_values(
                "a",
                (0..2000)
                    .chain([9000 + number])
                    .map(|value| value.to_string()),
            )
        };
        let pair =
            |number: usize| NormalizedSelector([key_in_values("y", ["1"]), listed(number)].into());
        assert!(complement(&(0..10).map(pair).collect()).is_some());
        assert_eq!(complement(&(0..200).map(pair).collect()), None);
    }

    /// The text of a selector of every form.
    fn valid() -> String {
        json!({ "matchLabels": { "app": "web" }, "matchExpressions": [
            { "key": "tier", "operator": "In", "values": ["a", "b"] }, { "key": "stage", "operator": "NotIn", "values": ["x"] },
            { "key": "new", "operator": "Exists" }, { "key": "old", "operator": "DoesNotExist" }] })
        .to_string()
    }

    proptest! {
        #[test]
        fn a_mutated_selector_is_refused_or_written_as_it_was_read(texts in prop::collection::vec(mutated_text(Just(valid())), 1..4)) {
            let read = |text: &String| NormalizedSelector::from_json(&serde_json::from_str(text).ok()?);
            let selectors: BTreeSet<NormalizedSelector> = texts.iter().filter_map(read).collect();
            for selector in &selectors {
                prop_assert_eq!(NormalizedSelector::from_json(&selector.to_json()), Some(selector.clone()));
            }
            let nothing = LabelMap::new();
            if let Some(others) = complement(&selectors) {
                prop_assert!(others.len() <= MAX_SELECTORS);
                let selected = selectors.iter().any(|one| one.matches(&nothing));
                prop_assert!(selected != others.iter().any(|one| one.matches(&nothing)));
            }
        }
    }
}
