//! Label selectors in the syntax of Kubernetes: `zone=a,gpu in (t4,l4),!spot`. Pure.

use std::{collections::BTreeMap, fmt, str::FromStr};

/// Requirements on labels. A selector matches if all of them are met.
///
/// | requirement | is met if the label |
/// |---|---|
/// | `a=b`, `a==b`, `a in (b,c)` | exists with one of these values |
/// | `a!=b`, `a notin (b,c)` | is absent, or has another value |
/// | `a` | exists |
/// | `!a` | is absent |
/// | `a>1`, `a<1` | exists with a larger or smaller integer |
///
/// A value may be empty, as in `node-role.kubernetes.io/worker=`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selector {
    requirements: Vec<LabelRequirement>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LabelRequirement {
    key: String,
    condition: LabelCondition,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum LabelCondition {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
    GreaterThan(i64),
    LessThan(i64),
}

/// The text is not a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("selector {text:?}: {problem}")]
pub struct SelectorError {
    text: String,
    problem: SelectorProblem,
}

/// What is wrong with a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorProblem {
    /// The selector, or one of its parts, is empty. (In Kubernetes an empty selector matches
    /// everything.)
    #[error("it is empty or has an empty part: name at least one label, and remove extra commas")]
    Empty,
    /// A part of an unknown form.
    #[error("{0:?} is none of a=b, a!=b, a in (b,c), a notin (b,c), a, !a, a>1, a<1")]
    Form(String),
    /// A parenthesis without its counterpart.
    #[error("its parentheses do not match")]
    Parentheses,
    /// Not a valid key of a label.
    #[error(
        "{0:?} cannot be the name of a label: use letters, digits, '-', '_', '.', at most 63, with an optional domain and '/' before it"
    )]
    Key(String),
    /// Not a valid value of a label.
    #[error("{0:?} cannot be the value of a label: use letters, digits, '-', '_', '.', at most 63")]
    Value(String),
    /// A comparison with something that is not an integer.
    #[error("{0:?} is not an integer")]
    Number(String),
}

impl Selector {
    /// The requirements in the form of Kubernetes' node selectors: key, operator and values.
    pub fn requirements(&self) -> impl Iterator<Item = (&str, &'static str, Vec<String>)> {
        self.requirements.iter().map(|requirement| {
            let (operator, values) = match &requirement.condition {
                LabelCondition::In(values) => ("In", values.clone()),
                LabelCondition::NotIn(values) => ("NotIn", values.clone()),
                LabelCondition::Exists => ("Exists", Vec::new()),
                LabelCondition::DoesNotExist => ("DoesNotExist", Vec::new()),
                LabelCondition::GreaterThan(bound) => ("Gt", vec![bound.to_string()]),
                LabelCondition::LessThan(bound) => ("Lt", vec![bound.to_string()]),
            };
            (requirement.key.as_str(), operator, values)
        })
    }

    /// Whether the selector matches these labels.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements
            .iter()
            .all(|requirement| requirement.is_met(labels.get(&requirement.key).map(String::as_str)))
    }
}

/// Whether one of the selectors matches these labels.
pub fn any_matches<'a>(
    selectors: impl IntoIterator<Item = &'a Selector>,
    labels: &BTreeMap<String, String>,
) -> bool {
    selectors
        .into_iter()
        .any(|selector| selector.matches(labels))
}

impl LabelRequirement {
    fn is_met(&self, value: Option<&str>) -> bool {
        let number = value.and_then(|value| value.parse::<i64>().ok());
        match &self.condition {
            LabelCondition::In(values) => is_among(values, value),
            LabelCondition::NotIn(values) => !is_among(values, value),
            LabelCondition::Exists => value.is_some(),
            LabelCondition::DoesNotExist => value.is_none(),
            LabelCondition::GreaterThan(bound) => number.is_some_and(|number| number > *bound),
            LabelCondition::LessThan(bound) => number.is_some_and(|number| number < *bound),
        }
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        split_requirements(text)
            .ok_or(SelectorProblem::Parentheses)
            .and_then(|parts| parts.into_iter().map(parse_requirement).collect())
            .map(|requirements| Self { requirements })
            .map_err(|problem| SelectorError {
                text: text.to_owned(),
                problem,
            })
    }
}

/// Splits a selector at the commas that are not in parentheses.
fn split_requirements(text: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (at, character) in text.char_indices() {
        match character {
            '(' | ')' if inside == (character == '(') => return None,
            '(' | ')' => inside = !inside,
            ',' if !inside => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    (!inside).then_some(parts)
}

fn parse_requirement(text: &str) -> Result<LabelRequirement, SelectorProblem> {
    let text = text.trim();
    if text.is_empty() {
        return Err(SelectorProblem::Empty);
    }
    if let Some(key) = text.strip_prefix('!') {
        return Ok(LabelRequirement {
            key: checked_key(key.trim())?,
            condition: LabelCondition::DoesNotExist,
        });
    }
    let end = text
        .find(|c: char| c.is_whitespace() || "=!<>(".contains(c))
        .unwrap_or(text.len());
    let (key, rest) = (&text[..end], text[end..].trim_start());
    let condition = if rest.is_empty() {
        LabelCondition::Exists
    } else if let Some(value) = rest.strip_prefix("!=") {
        LabelCondition::NotIn(vec![checked_value(value)?])
    } else if let Some(value) = rest.strip_prefix("==").or_else(|| rest.strip_prefix('=')) {
        LabelCondition::In(vec![checked_value(value)?])
    } else if let Some(bound) = rest.strip_prefix('>') {
        LabelCondition::GreaterThan(parse_number(bound)?)
    } else if let Some(bound) = rest.strip_prefix('<') {
        LabelCondition::LessThan(parse_number(bound)?)
    } else if let Some(values) = rest.strip_prefix("notin") {
        LabelCondition::NotIn(parse_set(values, text)?)
    } else if let Some(values) = rest.strip_prefix("in") {
        LabelCondition::In(parse_set(values, text)?)
    } else {
        return Err(SelectorProblem::Form(text.to_owned()));
    };
    Ok(LabelRequirement {
        key: checked_key(key)?,
        condition,
    })
}

fn parse_set(text: &str, whole: &str) -> Result<Vec<String>, SelectorProblem> {
    let inner = text
        .trim()
        .strip_prefix('(')
        .and_then(|text| text.strip_suffix(')'));
    inner
        .ok_or_else(|| SelectorProblem::Form(whole.to_owned()))?
        .split(',')
        .map(checked_value)
        .collect()
}

fn parse_number(text: &str) -> Result<i64, SelectorProblem> {
    text.trim()
        .parse()
        .map_err(|_| SelectorProblem::Number(text.trim().to_owned()))
}

fn checked_key(key: &str) -> Result<String, SelectorProblem> {
    let (domain, name) = key
        .split_once('/')
        .map_or((None, key), |(domain, name)| (Some(domain), name));
    let fits = domain.is_none_or(is_domain) && !name.is_empty() && is_word(name);
    if fits {
        Ok(key.to_owned())
    } else {
        Err(SelectorProblem::Key(key.to_owned()))
    }
}

fn checked_value(value: &str) -> Result<String, SelectorProblem> {
    let value = value.trim();
    if is_word(value) {
        Ok(value.to_owned())
    } else {
        Err(SelectorProblem::Value(value.to_owned()))
    }
}

/// Whether this is a valid value of a label, or a valid name in its key. The empty text is a valid
/// value.
fn is_word(text: &str) -> bool {
    let ends = [text.bytes().next(), text.bytes().last()];
    text.len() <= 63
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && ends
            .into_iter()
            .flatten()
            .all(|end| end.is_ascii_alphanumeric())
}

fn is_domain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_domain_label)
}

fn is_domain_label(label: &str) -> bool {
    let ends = [label.bytes().next(), label.bytes().last()];
    label.len() <= 63
        && ends
            .into_iter()
            .all(|end| end.is_some_and(is_lower_alphanumeric))
        && label
            .bytes()
            .all(|byte| is_lower_alphanumeric(byte) || byte == b'-')
}

fn is_lower_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn is_among(values: &[String], value: Option<&str>) -> bool {
    value.is_some_and(|value| values.iter().any(|one| one == value))
}

/// The syntax that [`FromStr`] parses.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, LabelRequirement { key, condition }) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            match condition {
                LabelCondition::Exists => f.write_str(key)?,
                LabelCondition::DoesNotExist => write!(f, "!{key}")?,
                LabelCondition::GreaterThan(bound) => write!(f, "{key}>{bound}")?,
                LabelCondition::LessThan(bound) => write!(f, "{key}<{bound}")?,
                LabelCondition::In(values) => match values.as_slice() {
                    [value] => write!(f, "{key}={value}")?,
                    values => write!(f, "{key} in ({})", values.join(","))?,
                },
                LabelCondition::NotIn(values) => match values.as_slice() {
                    [value] => write!(f, "{key}!={value}")?,
                    values => write!(f, "{key} notin ({})", values.join(","))?,
                },
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use liqo_byte_mutations::mutated_text;
    use proptest::prelude::*;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn selects(selector: &str, pairs: &[(&str, &str)]) -> bool {
        selector
            .parse::<Selector>()
            .unwrap()
            .matches(&labels(pairs))
    }

    #[test]
    fn every_form_means_what_it_means_in_kubernetes() {
        // Whether it matches if the label zone is a, is b, is absent.
        for (selector, a, b, absent) in [
            ("zone=a", true, false, false),
            ("zone==a", true, false, false),
            ("zone = a", true, false, false),
            ("zone!=a", false, true, true),
            ("zone in (a,b)", true, true, false),
            ("zone in(a)", true, false, false),
            ("zone notin ( a , c )", false, true, true),
            ("zone", true, true, false),
            ("!zone", false, false, true),
            ("! zone", false, false, true),
            ("zone=", false, false, false),
            ("zone!=", true, true, true),
            ("zone>1", false, false, false),
        ] {
            let found = [
                selects(selector, &[("zone", "a")]),
                selects(selector, &[("zone", "b")]),
                selects(selector, &[]),
            ];
            assert_eq!(found, [a, b, absent], "{selector}");
        }
    }

    #[test]
    fn an_empty_value_is_a_value() {
        let worker = [("node-role.kubernetes.io/worker", "")];
        for selector in [
            "node-role.kubernetes.io/worker=",
            "node-role.kubernetes.io/worker",
            "node-role.kubernetes.io/worker in ()",
        ] {
            assert!(selects(selector, &worker), "{selector}");
            assert!(!selects(selector, &[]), "{selector}");
        }
    }

    #[test]
    fn numbers_are_compared_as_numbers() {
        assert!(selects("cores>9", &[("cores", "10")]) && selects("cores<10", &[("cores", "9")]));
        assert!(
            !selects("cores>10", &[("cores", "10")]) && !selects("cores<10", &[("cores", "many")])
        );
    }

    #[test]
    fn all_requirements_must_be_met_and_several_selectors_are_alternatives() {
        assert!(selects(
            "a=b,c in (x,y),!d,e",
            &[("a", "b"), ("c", "y"), ("e", "")]
        ));
        assert!(!selects(
            "a=b,c in (x,y),!d,e",
            &[("a", "b"), ("c", "y"), ("d", ""), ("e", "")]
        ));
        assert!(
            !selects("a=1,a=2", &[("a", "2")]),
            "a label has only one value"
        );
        let either: Vec<Selector> = ["a=1", "a=2"].map(|text| text.parse().unwrap()).into();
        assert!(
            any_matches(&either, &labels(&[("a", "2")]))
                && !any_matches(&either, &labels(&[("a", "3")]))
        );
        assert!(
            !any_matches([], &labels(&[])),
            "without a selector nothing matches"
        );
    }

    #[test]
    fn other_texts_are_refused_with_a_reason() {
        use SelectorProblem as P;
        type Expected = fn(&P) -> bool;
        let refused: [(&str, Expected); 22] = [
            ("", |p| matches!(p, P::Empty)),
            (" ", |p| matches!(p, P::Empty)),
            ("a,", |p| matches!(p, P::Empty)),
            (",a", |p| matches!(p, P::Empty)),
            ("a in (b", |p| matches!(p, P::Parentheses)),
            ("a in b)", |p| matches!(p, P::Parentheses)),
            ("a in ((b))", |p| matches!(p, P::Parentheses)),
            ("a b", |p| matches!(p, P::Form(_))),
            ("a in b", |p| matches!(p, P::Form(_))),
            ("a in (b) c", |p| matches!(p, P::Form(_))),
            ("a like (b)", |p| matches!(p, P::Form(_))),
            ("a (b)", |p| matches!(p, P::Form(_))),
            ("=b", |p| matches!(p, P::Key(_))),
            ("!", |p| matches!(p, P::Key(_))),
            ("!a=b", |p| matches!(p, P::Key(_))),
            ("-a", |p| matches!(p, P::Key(_))),
            ("A.io/b", |p| matches!(p, P::Key(_))),
            ("a/b/c", |p| matches!(p, P::Key(_))),
            ("a=b=c", |p| matches!(p, P::Value(_))),
            ("a=b c", |p| matches!(p, P::Value(_))),
            ("a in (b,-c)", |p| matches!(p, P::Value(_))),
            ("a>b", |p| matches!(p, P::Number(_))),
        ];
        for (text, expected) in refused {
            let error = text.parse::<Selector>().unwrap_err();
            assert!(expected(&error.problem), "{text:?}: {error}");
        }
        assert!(format!("a={}", "b".repeat(64)).parse::<Selector>().is_err());
        assert!("b".repeat(64).parse::<Selector>().is_err());
    }

    proptest! {
        #[test]
        fn a_printed_selector_parses_to_the_same(text in "!?[a-c]( in \\([a-c]{0,2}(,[a-c])?\\)| notin \\([a-c]\\)|=[a-c]?|!=[a-c]|>-?[0-9]|<[0-9])?(,[d-f](=[a-c])?)?") {
            if let Ok(selector) = text.parse::<Selector>() {
                prop_assert_eq!(selector.to_string().parse::<Selector>().unwrap(), selector);
            }
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,40}") {
            let _ = text.parse::<Selector>();
        }

        #[test]
        fn a_mutated_selector_is_refused_or_printed_as_it_was_read(text in mutated_text(Just("zone=a,gpu in (t4,l4),!spot,cores>9".to_owned()))) {
            if let Ok(selector) = text.parse::<Selector>() {
                let printed = selector.to_string();
                prop_assert!(printed.len() <= 2 * text.len() + 16, "{}", printed);
                prop_assert_eq!(printed.parse::<Selector>().unwrap(), selector);
            }
        }

        #[test]
        fn either_a_requirement_or_its_opposite_is_met(value in prop::option::of("[ab]{0,1}"), wanted in "[ab]{0,1}") {
            let labels = value.map(|value| ("k".to_owned(), value)).into_iter().collect();
            let selects = |text: String| text.parse::<Selector>().unwrap().matches(&labels);
            prop_assert_ne!(selects(format!("k={wanted}")), selects(format!("k!={wanted}")));
            prop_assert_ne!(selects(format!("k in (a,{wanted})")), selects(format!("k notin (a,{wanted})")));
            prop_assert_ne!(selects("k".to_owned()), selects("!k".to_owned()));
        }
    }
}
