//! Label selectors as values: compared, evaluated, and turned round.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// Labels of a pod or a namespace.
pub type Labels = BTreeMap<String, String>;

/// What is asked of one label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requirement {
    /// The label.
    pub key: String,
    /// What is asked of it.
    pub asks: Asks,
}

/// What is asked of a label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Asks {
    /// It has one of these values.
    In(BTreeSet<String>),
    /// It has none of these values, or is not there.
    NotIn(BTreeSet<String>),
    /// It is there.
    Exists,
    /// It is not there.
    DoesNotExist,
}

/// A label selector: all of these hold. None selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector(pub BTreeSet<Requirement>);

impl Requirement {
    /// One of these values.
    pub fn is_in(key: &str, values: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { key: key.to_owned(), asks: Asks::In(values.into_iter().map(Into::into).collect()) }
    }

    fn of(value: &Value) -> Option<Self> {
        let fields =
            value.as_object().filter(|all| all.keys().all(|key| ["key", "operator", "values"].contains(&key.as_str())))?;
        let values: BTreeSet<String> = match fields.get("values") {
            None | Some(Value::Null) => BTreeSet::new(),
            Some(values) => values.as_array()?.iter().map(|one| one.as_str().map(str::to_owned)).collect::<Option<_>>()?,
        };
        let asks = match (fields.get("operator")?.as_str()?, values.is_empty()) {
            ("In", false) => Asks::In(values),
            ("NotIn", false) => Asks::NotIn(values),
            ("Exists", true) => Asks::Exists,
            ("DoesNotExist", true) => Asks::DoesNotExist,
            _ => return None,
        };
        Some(Self { key: fields.get("key")?.as_str()?.to_owned(), asks })
    }

    fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match &self.asks {
            Asks::In(values) => value.is_some_and(|value| values.contains(value)),
            Asks::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Asks::Exists => value.is_some(),
            Asks::DoesNotExist => value.is_none(),
        }
    }

    /// What holds exactly when this does not.
    fn negated(&self) -> Self {
        let asks = match self.asks.clone() {
            Asks::In(values) => Asks::NotIn(values),
            Asks::NotIn(values) => Asks::In(values),
            Asks::Exists => Asks::DoesNotExist,
            Asks::DoesNotExist => Asks::Exists,
        };
        Self { key: self.key.clone(), asks }
    }

    fn to_json(&self) -> Value {
        let (operator, values) = match &self.asks {
            Asks::In(values) => ("In", Some(values)),
            Asks::NotIn(values) => ("NotIn", Some(values)),
            Asks::Exists => ("Exists", None),
            Asks::DoesNotExist => ("DoesNotExist", None),
        };
        match values {
            Some(values) => json!({ "key": self.key, "operator": operator, "values": values }),
            None => json!({ "key": self.key, "operator": operator }),
        }
    }
}

impl Selector {
    /// Exactly these labels.
    pub fn exactly(labels: &[(&str, &str)]) -> Self {
        Self(labels.iter().map(|(key, value)| Requirement::is_in(key, [*value])).collect())
    }

    /// What this JSON selects; nothing if it asks for something that is not known.
    pub fn of(value: &Value) -> Option<Self> {
        let mut all = BTreeSet::new();
        for (field, value) in value.as_object()? {
            match (field.as_str(), value) {
                ("matchLabels" | "matchExpressions", Value::Null) => {}
                ("matchLabels", Value::Object(labels)) => {
                    for (key, value) in labels {
                        all.insert(Requirement::is_in(key, [value.as_str()?]));
                    }
                }
                ("matchExpressions", Value::Array(expressions)) => {
                    for expression in expressions {
                        all.insert(Requirement::of(expression)?);
                    }
                }
                _ => return None,
            }
        }
        Some(Self(all))
    }

    /// As Kubernetes writes it, always in the same way.
    pub fn to_json(&self) -> Value {
        let (mut labels, mut expressions) = (Map::new(), Vec::new());
        for requirement in &self.0 {
            match &requirement.asks {
                Asks::In(values) if values.len() == 1 && !labels.contains_key(&requirement.key) => {
                    labels.extend(values.first().map(|value| (requirement.key.clone(), value.as_str().into())));
                }
                _ => expressions.push(requirement.to_json()),
            }
        }
        let mut all = Map::new();
        if !labels.is_empty() {
            all.insert("matchLabels".into(), labels.into());
        }
        if !expressions.is_empty() {
            all.insert("matchExpressions".into(), expressions.into());
        }
        all.into()
    }

    /// Whether it selects an object with these labels.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|one| one.holds(labels))
    }

    /// Whether it selects everything, whatever its labels.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    /// Selects only what both select.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.0.extend(other.0.iter().cloned());
        self
    }
}

/// So many selectors a complement may have.
const MOST_SELECTORS: usize = 32;
/// So many requirements are tried for one step of it.
const MOST_STEPS: usize = 256;
/// So many pairs of selectors are compared for all of it. What selectors say may come from somebody who wants this to take long.
const MOST_COMPARISONS: usize = 200_000;
/// So long are the selectors together for which it is tried, in bytes of JSON: each selector of a complement may repeat them all.
const LONGEST: usize = 256 * 1024;

/// Selectors that together select exactly what none of these does; nothing where it takes too many, or too long.
///
/// What a selector does not select fails at least one of its requirements. So for each selector there is a choice of
/// requirements turned round, and each combination of choices is a selector. One that is contained in another is left out, so
/// the selectors of ordinary sets of applications come to very few.
pub fn complement(selectors: &BTreeSet<Selector>) -> Option<Vec<Selector>> {
    selectors.iter().try_fold(LONGEST, |left, selector| left.checked_sub(selector.to_json().to_string().len()))?;
    // Requirements are numbered, so that copying and comparing them is cheap however long they are.
    let all = selectors.iter().flat_map(|selector| &selector.0).flat_map(|one| [one.clone(), one.negated()]);
    let all: Vec<Requirement> = all.collect::<BTreeSet<_>>().into_iter().collect();
    let numbers = |one: &Requirement| Some((all.binary_search(one).ok()?, all.binary_search(&one.negated()).ok()?));
    let numbered = selectors.iter().map(|selector| selector.0.iter().map(numbers).collect::<Option<Vec<_>>>());
    let mut ordered = numbered.collect::<Option<Vec<_>>>()?;
    ordered.sort_by_key(Vec::len);
    let mut found = BTreeSet::from([BTreeSet::new()]);
    let mut comparisons_left = MOST_COMPARISONS;
    for selector in ordered {
        if found.len() * selector.len() > MOST_STEPS {
            return None;
        }
        let mut next = BTreeSet::new();
        for (one, (requirement, negated)) in found.iter().flat_map(|one| selector.iter().map(move |numbers| (one, numbers))) {
            // What meets the requirement cannot fail it.
            if !one.contains(requirement) {
                let mut narrower: BTreeSet<usize> = one.clone();
                narrower.insert(*negated);
                next.insert(narrower);
            }
        }
        comparisons_left = comparisons_left.checked_sub(next.len() * next.len())?;
        let contained = |one: &BTreeSet<usize>| next.iter().any(|other| other != one && other.is_subset(one));
        let kept: BTreeSet<BTreeSet<usize>> = next.iter().filter(|one| !contained(one)).cloned().collect();
        if kept.len() > MOST_SELECTORS {
            return None;
        }
        found = kept;
    }
    Some(found.into_iter().map(|numbers| merged(numbers.into_iter().filter_map(|number| all.get(number)).cloned())).collect())
}

/// The selector of these requirements, with one list of the values that a label must not have.
fn merged(requirements: impl Iterator<Item = Requirement>) -> Selector {
    let mut excluded: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut all = BTreeSet::new();
    for requirement in requirements {
        match requirement.asks {
            Asks::NotIn(values) => excluded.entry(requirement.key).or_default().extend(values),
            asks => _ = all.insert(Requirement { key: requirement.key, asks }),
        }
    }
    all.extend(excluded.into_iter().map(|(key, values)| Requirement { key, asks: Asks::NotIn(values) }));
    Selector(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(value: &Value) -> Selector {
        Selector::of(value).unwrap()
    }

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// All pods that differ in the labels a, b and c, each absent or 1 or 2.
    fn every_pod() -> Vec<Labels> {
        let choices = |key: &'static str| [None, Some((key, "1")), Some((key, "2"))];
        let all = choices("a")
            .into_iter()
            .flat_map(move |a| choices("b").into_iter().flat_map(move |b| choices("c").into_iter().map(move |c| [a, b, c])));
        all.map(|pod| labels(&pod.into_iter().flatten().collect::<Vec<_>>())).collect()
    }

    #[test]
    fn every_operator_means_what_it_means_in_kubernetes() {
        let pod = labels(&[("app", "web"), ("empty", "")]);
        for (expression, there, absent) in [
            (json!({ "operator": "In", "values": ["web", "db"] }), true, false),
            (json!({ "operator": "In", "values": ["db"] }), false, false),
            (json!({ "operator": "NotIn", "values": ["web"] }), false, true),
            (json!({ "operator": "Exists" }), true, false),
            (json!({ "operator": "DoesNotExist", "values": [] }), false, true),
        ] {
            let with = |key: &str| {
                let mut expression = expression.clone();
                expression["key"] = key.into();
                selector(&json!({ "matchExpressions": [expression] })).matches(&pod)
            };
            assert_eq!((with("app"), with("other")), (there, absent), "{expression}");
        }
        assert!(selector(&json!({ "matchLabels": { "empty": "" } })).matches(&pod));
        assert!(selector(&json!({})).matches(&labels(&[])), "an empty selector selects everything");
    }

    #[test]
    fn what_is_not_known_makes_no_selector() {
        for unknown in [
            json!(null),
            json!({ "matchFields": [] }),
            json!({ "matchLabels": { "a": 1 } }),
            json!({ "matchExpressions": [{ "key": "a", "operator": "Gt", "values": ["1"] }] }),
            json!({ "matchExpressions": [{ "key": "a", "operator": "In", "values": [] }] }),
            json!({ "matchExpressions": [{ "key": "a", "operator": "Exists", "values": ["x"] }] }),
            json!({ "matchExpressions": [{ "key": "a", "operator": "Exists", "more": true }] }),
        ] {
            assert_eq!(Selector::of(&unknown), None, "{unknown}");
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
            vec![json!({ "matchLabels": { "a": "1" } }), json!({ "matchLabels": { "a": "2" } })],
            vec![json!({ "matchLabels": { "a": "1", "b": "1" } }), json!({ "matchLabels": { "a": "2", "b": "1" } })],
            vec![json!({ "matchLabels": { "a": "1", "b": "1" } }), json!({ "matchLabels": { "b": "2", "c": "1" } })],
            vec![
                json!({ "matchExpressions": [{ "key": "a", "operator": "Exists" }, { "key": "c", "operator": "NotIn", "values": ["1"] }] }),
                json!({ "matchExpressions": [{ "key": "a", "operator": "DoesNotExist" }, { "key": "b", "operator": "In", "values": ["1", "2"] }] }),
            ],
            vec![
                json!({ "matchExpressions": [{ "key": "a", "operator": "Exists" }] }),
                json!({ "matchExpressions": [{ "key": "a", "operator": "DoesNotExist" }] }),
            ],
        ] {
            let selectors: BTreeSet<Selector> = selectors.iter().map(selector).collect();
            let others = complement(&selectors).unwrap();
            for pod in every_pod() {
                let selected = selectors.iter().any(|one| one.matches(&pod));
                assert_ne!(selected, others.iter().any(|one| one.matches(&pod)), "{pod:?} with {selectors:?}");
            }
        }
    }

    #[test]
    fn the_usual_labels_of_many_applications_come_to_few_selectors() {
        let application = |number: usize| {
            let number = number.to_string();
            selector(&json!({ "matchLabels": { "app.kubernetes.io/instance": "shop", "app.kubernetes.io/name": number } }))
        };
        let others = complement(&(0..200).map(application).collect()).unwrap();
        assert_eq!(others.len(), 2);
        assert!(others.iter().any(|one| one.to_json()["matchExpressions"][0]["values"].as_array().unwrap().len() == 200));
    }

    #[test]
    fn what_would_take_too_many_selectors_is_not_tried() {
        let pair = |number: usize| selector(&json!({ "matchLabels": { format!("a{number}"): "1", format!("b{number}"): "1" } }));
        assert_eq!(complement(&(0..6).map(pair).collect()), None);
        assert!(complement(&(0..5).map(pair).collect()).is_some());
        let long = |start: usize| Selector((start..start + 300).map(|key| Requirement::is_in(&key.to_string(), ["x"])).collect());
        assert_eq!(complement(&(0..5000).map(|number| long(number * 300)).collect()), None);
    }

    /// `{y, z}`, and so many that ask for both and for as many more labels: `{not y}` and `{not z}` are all that none selects.
    fn wide(count: usize, labels: usize) -> BTreeSet<Selector> {
        let both = [Requirement::is_in("y", ["1"]), Requirement::is_in("z", ["1"])];
        let more = |number: usize| (0..labels).map(move |label| Requirement::is_in(&format!("k{label}"), [number.to_string()]));
        let wide = (0..count).map(|number| Selector(both.iter().cloned().chain(more(number)).collect()));
        wide.chain([Selector(both.clone().into())]).collect()
    }

    #[test]
    fn what_would_take_too_long_is_not_tried_however_few_selectors_it_came_to() {
        assert_eq!(complement(&wide(4, 60)).map(|others| others.len()), Some(2));
        assert_eq!(complement(&wide(100, 60)), None, "each step is small, all together are not");
        assert_eq!(complement(&wide(199, 1000)), None, "as much as a namespace may have of what a consumer sends");
    }

    #[test]
    fn what_is_too_long_is_not_tried_however_few_requirements_it_has() {
        let listed = |number: usize| Requirement::is_in("a", (0..2000).chain([9000 + number]).map(|value| value.to_string()));
        let pair = |number: usize| Selector([Requirement::is_in("y", ["1"]), listed(number)].into());
        assert!(complement(&(0..10).map(pair).collect()).is_some());
        assert_eq!(complement(&(0..200).map(pair).collect()), None);
    }
}
