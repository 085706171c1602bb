//! Amounts on a plugin's command line: `--resource name=quantity`.

use std::collections::BTreeSet;

use liqo_quantity::{ResourceArgument, ResourceArgumentError, ResourceList};

/// What a pod cannot run without: an offer that lacks one of these is of no use to a consumer.
pub const NEEDED: [&str; 3] = ["cpu", "memory", "pods"];

/// Amounts that cannot be offered together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResourcesError {
    /// There are none.
    #[error("no resource is given: use name=quantity, as in cpu=2")]
    Nothing,
    /// One of them is none.
    #[error(transparent)]
    Argument(#[from] ResourceArgumentError),
    /// The same resource twice.
    #[error("{0} is given more than once")]
    Twice(String),
    /// Nothing of what every pod needs.
    #[error("{0} is zero, so no pod could ever run: give it an amount")]
    Zero(String),
}

/// Reads `cpu=2`, `memory=4Gi`. Each text may hold several, separated by commas. At least one resource, none twice, and
/// something of what each pod needs, where that is named.
pub fn resources<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Result<ResourceList, ResourcesError> {
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
    if list.is_empty() { Err(ResourcesError::Nothing) } else { Ok(list) }
}

/// Those of [`NEEDED`] that are not named.
pub fn missing(resources: &ResourceList) -> Vec<&'static str> {
    NEEDED.into_iter().filter(|needed| !resources.contains(needed)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_one_by_one_or_separated_by_commas() {
        let list = resources(["cpu=2000m", "memory=2G,pods=10", "nvidia.com/gpu=0"]).unwrap();
        assert_eq!(list.to_string(), "cpu=2, memory=2G, nvidia.com/gpu=0, pods=10");
        assert_eq!(missing(&list), Vec::<&str>::new());
        assert_eq!(missing(&resources(["memory=2G"]).unwrap()), ["cpu", "pods"]);
    }

    #[test]
    fn what_cannot_be_offered_is_refused_in_one_clear_line() {
        for (texts, expected) in [
            (&[][..], "no resource is given: use name=quantity, as in cpu=2"),
            (&[""], "no resource is given: use name=quantity, as in cpu=2"),
            (&["cpu=1,"], "no resource is given: use name=quantity, as in cpu=2"),
            (&["cpu"], "\"cpu\" is not of the form name=quantity, as in nvidia.com/gpu=1"),
            (&["cpu=1", "cpu=2"], "cpu is given more than once"),
            (&["cpu=1,cpu=1"], "cpu is given more than once"),
            (&["cpu=0"], "cpu is zero, so no pod could ever run: give it an amount"),
            (&["pods=0"], "pods is zero, so no pod could ever run: give it an amount"),
            (&["memory=-1Gi"], "the quantity of memory is -1Gi; it can't be negative"),
        ] {
            assert_eq!(resources(texts).unwrap_err().to_string(), expected, "{texts:?}");
        }
        for text in [" cpu=1", "cpu =1", "cpu= 1", "ram=1Gi", "gpu=1", "cpu=1=2", "memory=1GB", "pods=1.5"] {
            assert!(resources([text]).is_err(), "{text:?} was taken");
        }
    }
}
