//! Names of resources that are cheap to copy and to compare.

use std::cmp::Ordering;
use std::sync::Arc;

/// The name of a resource. Names are ordered by their text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Name {
    Known(Known),
    /// Any other name; never the text of a known one.
    Other(Arc<str>),
}

/// The names that every kubelet uses, in the order of their texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Known {
    Cpu,
    EphemeralStorage,
    Hugepages1Gi,
    Hugepages2Mi,
    Memory,
    Pods,
    Storage,
}

impl Known {
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

impl Name {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Known(known) => known.as_str(),
            Self::Other(name) => name,
        }
    }
}

impl From<&str> for Name {
    fn from(name: &str) -> Self {
        let known = Known::ALL.into_iter().find(|known| known.as_str() == name);
        known.map_or_else(|| Self::Other(name.into()), Self::Known)
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Known(one), Self::Known(other)) => one.cmp(other),
            _ => self.as_str().cmp(other.as_str()),
        }
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_are_recognised_and_ordered_by_text() {
        assert!(Known::ALL.is_sorted_by(|one, next| one < next && one.as_str() < next.as_str()));
        for known in Known::ALL {
            assert_eq!(Name::from(known.as_str()), Name::Known(known));
        }
        assert!(
            Name::from("a.example/gpu") < Name::Known(Known::Cpu)
                && Name::from("nvidia.com/gpu") < Name::Known(Known::Pods)
        );
    }
}
