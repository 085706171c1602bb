//! Amounts on a plugin's command line: `--resource name=quantity`.

use std::collections::BTreeSet;

use liqo_quantity::{ResourceArgument, ResourceArgumentError, ResourceList};

/// Resources that every pod needs: a consumer cannot use an offer without one of these.
pub const NEEDED: [&str; 3] = ["cpu", "memory", "pods"];

/// Arguments that cannot become an offer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResourcesError {
    /// No amount, or an empty one.
    #[error("no resource is given: use name=quantity, as in cpu=2")]
    Nothing,
    /// An argument is not `name=quantity`.
    #[error(transparent)]
    Argument(#[from] ResourceArgumentError),
    /// Two amounts of the same resource.
    #[error("{0} is given more than once")]
    Twice(String),
    /// An amount of zero of a resource that every pod needs.
    #[error("{0} is zero, so no pod can run: set an amount")]
    Zero(String),
}

/// Parses amounts such as `cpu=2` and `memory=4Gi`. Each text may contain several, separated by
/// commas. At least one resource is required, and none may appear twice. Amounts of [`NEEDED`]
/// resources must not be zero.
pub fn resources<T: AsRef<str>>(
    texts: impl IntoIterator<Item = T>,
) -> Result<ResourceList, ResourcesError> {
    let mut list = ResourceList::new();
    let mut seen = BTreeSet::new();
    for text in texts {
        for one in text.as_ref().split(',') {
            if one.trim().is_empty() {
                return Err(ResourcesError::Nothing);
            }
            let (name, quantity) = one.parse::<ResourceArgument>()?.into_parts();
            if !seen.insert(name.clone()) {
                return Err(ResourcesError::Twice(name));
            }
            if quantity.is_zero() && NEEDED.contains(&name.as_str()) {
                return Err(ResourcesError::Zero(name));
            }
            list.insert(name, quantity);
        }
    }
    if list.is_empty() {
        Err(ResourcesError::Nothing)
    } else {
        Ok(list)
    }
}

/// The [`NEEDED`] resources that the list lacks.
pub fn missing_resources(resources: &ResourceList) -> Vec<&'static str> {
    NEEDED
        .into_iter()
        .filter(|needed| !resources.contains(needed))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_single_arguments_or_separated_by_commas() {
        let list = resources(["cpu=2000m", "memory=2G,pods=10", "nvidia.com/gpu=0"]).unwrap();
        assert_eq!(
            list.to_string(),
            "cpu=2, memory=2G, nvidia.com/gpu=0, pods=10"
        );
        assert_eq!(missing_resources(&list), Vec::<&str>::new());
        assert_eq!(
            missing_resources(&resources(["memory=2G"]).unwrap()),
            ["cpu", "pods"]
        );
    }

    #[test]
    fn an_invalid_argument_has_an_error_of_one_line() {
        for (texts, expected) in [
            (
                &[][..],
                "no resource is given: use name=quantity, as in cpu=2",
            ),
            (
                &[""],
                "no resource is given: use name=quantity, as in cpu=2",
            ),
            (
                &["cpu=1,"],
                "no resource is given: use name=quantity, as in cpu=2",
            ),
            (
                &["cpu"],
                "\"cpu\" is not of the form name=quantity, as in nvidia.com/gpu=1",
            ),
            (&["cpu=1", "cpu=2"], "cpu is given more than once"),
            (&["cpu=1,cpu=1"], "cpu is given more than once"),
            (&["cpu=0"], "cpu is zero, so no pod can run: set an amount"),
            (
                &["pods=0"],
                "pods is zero, so no pod can run: set an amount",
            ),
            (
                &["memory=-1Gi"],
                "the quantity of memory is -1Gi; it can't be negative",
            ),
        ] {
            assert_eq!(
                resources(texts).unwrap_err().to_string(),
                expected,
                "{texts:?}"
            );
        }
        for text in [
            " cpu=1",
            "cpu =1",
            "cpu= 1",
            "ram=1Gi",
            "gpu=1",
            "cpu=1=2",
            "memory=1GB",
            "pods=1.5",
        ] {
            assert!(resources([text]).is_err(), "{text:?} was accepted");
        }
    }
}
