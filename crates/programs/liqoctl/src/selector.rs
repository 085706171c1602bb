//! `--selector`: which clusters may be used, in the syntax of kubectl's label selectors.

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use liqo_resource_plugin::selector::{self, Selector};

/// The selector cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SelectorError {
    /// It is not valid syntax.
    #[error(transparent)]
    Read(#[from] selector::SelectorError),
    /// Labels of clusters have values, so this is probably a typing error.
    #[error("selector {selector:?}: there is no value for {key}")]
    EmptyValue { selector: String, key: String },
}

/// Several selectors are alternatives; all expressions of one must match. No selector selects every
/// cluster.
pub fn parse_node_selectors<S: AsRef<str>>(
    selectors: &[S],
) -> Result<Option<NodeSelector>, SelectorError> {
    let terms: Vec<_> = selectors
        .iter()
        .map(|selector| parse_selector_term(selector.as_ref()))
        .collect::<Result<_, _>>()?;
    Ok((!terms.is_empty()).then_some(NodeSelector {
        node_selector_terms: terms,
    }))
}

fn parse_selector_term(text: &str) -> Result<NodeSelectorTerm, SelectorError> {
    let read: Selector = text.parse()?;
    if let Some((key, ..)) = read
        .requirements()
        .find(|(_, _, values)| values.iter().any(String::is_empty))
    {
        return Err(SelectorError::EmptyValue {
            selector: text.to_owned(),
            key: key.to_owned(),
        });
    }
    let expressions = read
        .requirements()
        .map(|(key, operator, values)| NodeSelectorRequirement {
            key: key.to_owned(),
            operator: operator.to_owned(),
            values: (!values.is_empty()).then_some(values),
        });
    Ok(NodeSelectorTerm {
        match_expressions: Some(expressions.collect()),
        match_fields: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(selectors: &[&str]) -> String {
        let terms = parse_node_selectors(selectors)
            .unwrap()
            .unwrap()
            .node_selector_terms;
        let one = |requirement: NodeSelectorRequirement| {
            format!(
                "{} {} {}",
                requirement.key,
                requirement.operator,
                requirement.values.unwrap_or_default().join("|")
            )
            .trim()
            .to_owned()
        };
        let term = |term: NodeSelectorTerm| {
            term.match_expressions
                .unwrap()
                .into_iter()
                .map(one)
                .collect::<Vec<_>>()
                .join(" and ")
        };
        terms.into_iter().map(term).collect::<Vec<_>>().join(" or ")
    }

    #[test]
    fn expressions_are_read_as_kubectl_reads_them() {
        assert_eq!(shown(&["region=eu"]), "region In eu");
        assert_eq!(
            shown(&["region==eu,!gpu"]),
            "region In eu and gpu DoesNotExist"
        );
        assert_eq!(
            shown(&["region in (eu, us),tier!=low", "gpu"]),
            "region In eu|us and tier NotIn low or gpu Exists"
        );
        assert_eq!(
            shown(&["topology.kubernetes.io/zone notin (a)"]),
            "topology.kubernetes.io/zone NotIn a"
        );
        assert_eq!(parse_node_selectors::<&str>(&[]).unwrap(), None);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for text in [
            "",
            "=eu",
            "region=",
            "region in eu",
            "region like (eu)",
            "a b",
            "region in ()",
            "a=b,,c=d",
            "region in (eu",
        ] {
            assert!(parse_node_selectors(&[text]).is_err(), "{text:?}");
        }
    }
}
