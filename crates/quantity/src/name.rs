//! Names of resources that are cheap to copy and to compare.

use std::cmp::Ordering;
use std::sync::Arc;

/// The name of a resource. Names are ordered by their text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ResourceName {
    Known(KnownResource),
    /// Any other name; never the text of a known one.
    Other(Arc<str>),
}

/// The names that every kubelet uses, in the order of their texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum KnownResource {
    Cpu,
    EphemeralStorage,
    Hugepages1Gi,
    Hugepages2Mi,
    Memory,
    Pods,
    Storage,
}

impl KnownResource {
    const ALL: [Self; 7] = [
        Self::Cpu,
        Self::EphemeralStorage,
        Self::Hugepages1Gi,
        Self::Hugepages2Mi,
        Self::Memory,
        Self::Pods,
        Self::Storage,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::Hugepages1Gi => "hugepages-1Gi",
            Self::Hugepages2Mi => "hugepages-2Mi",
            Self::Memory => "memory",
            Self::Pods => "pods",
            Self::Storage => "storage",
        }
    }
}

impl ResourceName {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Known(known) => known.as_str(),
            Self::Other(name) => name,
        }
    }
}

impl From<&str> for ResourceName {
    fn from(name: &str) -> Self {
        let known = KnownResource::ALL
            .into_iter()
            .find(|known| known.as_str() == name);
        known.map_or_else(|| Self::Other(name.into()), Self::Known)
    }
}

impl Ord for ResourceName {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Known(one), Self::Known(other)) => one.cmp(other),
            _ => self.as_str().cmp(other.as_str()),
        }
    }
}

impl PartialOrd for ResourceName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_are_recognised_and_ordered_by_text() {
        assert!(
            KnownResource::ALL.is_sorted_by(|one, next| one < next && one.as_str() < next.as_str())
        );
        for known in KnownResource::ALL {
            assert_eq!(
                ResourceName::from(known.as_str()),
                ResourceName::Known(known)
            );
        }
        assert!(
            ResourceName::from("a.example/gpu") < ResourceName::Known(KnownResource::Cpu)
                && ResourceName::from("nvidia.com/gpu") < ResourceName::Known(KnownResource::Pods)
        );
    }
}
