//! `--selector`: which clusters may be used, in the language of kubectl's label selectors.

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

/// The selector cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "selector {0:?}: use expressions such as region=eu, region!=eu, region in (eu,us), region notin (eu), region, !region, joined by commas"
)]
pub struct SelectorError(String);

/// Several selectors are alternatives; the expressions of one must all hold. None at all selects every cluster.
pub fn parse<S: AsRef<str>>(selectors: &[S]) -> Result<Option<NodeSelector>, SelectorError> {
    let terms: Vec<_> = selectors.iter().map(|selector| term(selector.as_ref())).collect::<Result<_, _>>()?;
    Ok((!terms.is_empty()).then_some(NodeSelector { node_selector_terms: terms }))
}

fn term(text: &str) -> Result<NodeSelectorTerm, SelectorError> {
    let failed = || SelectorError(text.to_owned());
    let expressions: Vec<_> =
        split(text).into_iter().map(|part| expression(part.trim()).ok_or_else(failed)).collect::<Result<_, _>>()?;
    Ok(NodeSelectorTerm { match_expressions: Some(expressions), match_fields: None })
}

/// Splits at commas that are not in parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut depth) = (0, 0_u32);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn expression(text: &str) -> Option<NodeSelectorRequirement> {
    if let Some(key) = text.strip_prefix('!') {
        return requirement(key, "DoesNotExist", None);
    }
    if let Some((key, value)) = text.split_once("!=") {
        return requirement(key, "NotIn", Some(vec![value]));
    }
    if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return requirement(key, "In", Some(vec![value]));
    }
    if let Some((left, values)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        let (key, operator) = left.trim().rsplit_once(char::is_whitespace)?;
        let operator = match operator.trim() {
            "in" => "In",
            "notin" => "NotIn",
            _ => return None,
        };
        return requirement(key, operator, Some(values.split(',').collect()));
    }
    requirement(text, "Exists", None)
}

fn requirement(key: &str, operator: &str, values: Option<Vec<&str>>) -> Option<NodeSelectorRequirement> {
    let good = |text: &str, more: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c) || more.contains(c));
    let key = key.trim();
    let values: Option<Vec<String>> = values.map(|values| values.iter().map(|value| value.trim().to_owned()).collect());
    let values_good = values.iter().flatten().all(|value| !value.is_empty() && good(value, ""));
    (!key.is_empty() && good(key, "/") && values_good).then(|| NodeSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(selectors: &[&str]) -> String {
        let terms = parse(selectors).unwrap().unwrap().node_selector_terms;
        let one = |requirement: NodeSelectorRequirement| {
            format!("{} {} {}", requirement.key, requirement.operator, requirement.values.unwrap_or_default().join("|"))
                .trim()
                .to_owned()
        };
        let term =
            |term: NodeSelectorTerm| term.match_expressions.unwrap().into_iter().map(one).collect::<Vec<_>>().join(" and ");
        terms.into_iter().map(term).collect::<Vec<_>>().join(" or ")
    }

    #[test]
    fn expressions_are_read_as_kubectl_reads_them() {
        assert_eq!(shown(&["region=eu"]), "region In eu");
        assert_eq!(shown(&["region==eu,!gpu"]), "region In eu and gpu DoesNotExist");
        assert_eq!(shown(&["region in (eu, us),tier!=low", "gpu"]), "region In eu|us and tier NotIn low or gpu Exists");
        assert_eq!(shown(&["topology.kubernetes.io/zone notin (a)"]), "topology.kubernetes.io/zone NotIn a");
        assert_eq!(parse::<&str>(&[]).unwrap(), None);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for text in ["", "=eu", "region=", "region in eu", "region like (eu)", "a b", "region in ()", "a=b,,c=d", "region in (eu"]
        {
            assert!(parse(&[text]).is_err(), "{text:?}");
        }
    }
}
