//! Why pods of this cluster leave the node where they are, and which pods leave for which cause.
//! Pure.
//!
//! ```text
//!   a controller sees a refusal,       DepartureCause:             departures (liqo-controller-runtime):
//!   a notice, a price, ...       ──▶   which pods leave, how  ──▶  evicts or deletes them, and says why
//! ```
//!
//! Each controller knows its own cause and reads its own facts. This table says what may happen to
//! a pod for that cause, so all controllers treat a Job, a pod of a `DaemonSet` and a pod without a
//! controller alike. docs/reference/why-pods-leave.md shows the table; a test compares both.
//!
//! A provider ends pods of its consumers by other rules: `reclaim` and `remote` in
//! `liqo-offloading-rules`.

/// Why a pod leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DepartureCause {
    /// It cannot start where it was sent.
    NotStarted,
    /// It waits for a virtual node, and pods of its namespace may run in this cluster now, or have
    /// other nodes to choose from.
    Unplaced,
    /// It has a node of this cluster, and pods of its namespace run in other clusters only.
    RunsHere,
    /// The provider takes back the pool of its node.
    PoolWithdrawn,
    /// The provider takes back its node or its room, and keeps the pool.
    PlaceEnds,
    /// Another node costs less, and its namespace has `moveWhenCheaper`.
    Cheaper,
    /// A budget is spent that says `MoveHome`.
    BudgetSpent,
    /// This cluster is not tethered any more.
    ControlIsBack,
    /// Its namespace is not offloaded any more.
    Unoffloaded,
    /// Its virtual node goes.
    NodeRemoved,
}

/// Which pods leave for a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeavingPods {
    /// Those that a controller creates again at no cost: a `ReplicaSet`, `ReplicationController` or
    /// `StatefulSet`.
    Replaced,
    /// These, and those of a Job, as long as it goes on without them: whoever asks looks at the
    /// Job.
    Survived,
    /// Those that any controller creates again elsewhere: for a Job that is a failure, unless it
    /// ignores disruptions.
    Recreated,
    /// All but those that belong to their node, which would get them again.
    Movable,
    /// All of them.
    All,
}

/// Kind of a controller that counts each pod that ends.
pub const JOB: &str = "Job";

/// Whether a controller of this kind creates a deleted pod again at no cost. A Job counts it as a
/// failure.
pub fn recreates_pods(kind: &str) -> bool {
    ["ReplicaSet", "ReplicationController", "StatefulSet"].contains(&kind)
}

/// Whether a controller of this kind has one pod for each node, as a `DaemonSet` and, for static
/// pods, the Node itself do. These pods belong to their nodes: if one is evicted, the same node
/// gets it again.
pub fn has_pods_for_nodes(kind: &str) -> bool {
    ["DaemonSet", "Node"].contains(&kind)
}

impl LeavingPods {
    /// Whether a pod with a controller of this kind is among them.
    pub fn includes(self, controller: Option<&str>) -> bool {
        match self {
            Self::Replaced => controller.is_some_and(recreates_pods),
            Self::Survived => controller.is_some_and(|kind| recreates_pods(kind) || kind == JOB),
            Self::Recreated => controller.is_some_and(|kind| !has_pods_for_nodes(kind)),
            Self::Movable => !controller.is_some_and(has_pods_for_nodes),
            Self::All => true,
        }
    }
}

/// How a pod leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DepartureManner {
    /// As disruption budgets allow.
    Evicted,
    /// Nobody may wait for it, or it does not run.
    Deleted,
}

impl DepartureCause {
    /// All causes, in the order of the table.
    pub const ALL: [Self; 10] = [
        Self::NotStarted,
        Self::Unplaced,
        Self::RunsHere,
        Self::PoolWithdrawn,
        Self::PlaceEnds,
        Self::Cheaper,
        Self::BudgetSpent,
        Self::ControlIsBack,
        Self::Unoffloaded,
        Self::NodeRemoved,
    ];

    /// Which pods leave for it.
    pub fn leaving_pods(self) -> LeavingPods {
        match self {
            Self::NotStarted => LeavingPods::Recreated,
            Self::Unplaced => LeavingPods::Survived,
            Self::RunsHere
            | Self::PlaceEnds
            | Self::Cheaper
            | Self::BudgetSpent
            | Self::ControlIsBack => LeavingPods::Replaced,
            Self::PoolWithdrawn => LeavingPods::Movable,
            Self::Unoffloaded | Self::NodeRemoved => LeavingPods::All,
        }
    }

    /// How they leave.
    pub fn manner(self) -> DepartureManner {
        match self {
            Self::Unoffloaded | Self::NodeRemoved => DepartureManner::Deleted,
            Self::NotStarted
            | Self::Unplaced
            | Self::RunsHere
            | Self::PoolWithdrawn
            | Self::PlaceEnds
            | Self::Cheaper
            | Self::BudgetSpent
            | Self::ControlIsBack => DepartureManner::Evicted,
        }
    }

    /// Reason of the event on a pod that leaves, if it gets one for that. Others had one before, or
    /// their node has it.
    pub fn event_reason(self) -> Option<&'static str> {
        match self {
            Self::RunsHere | Self::PlaceEnds => Some("MovedAway"),
            Self::Cheaper => Some("MovedWhenCheaper"),
            Self::BudgetSpent | Self::ControlIsBack => Some("MovedHome"),
            Self::NodeRemoved => Some("VirtualNodeRemoved"),
            Self::NotStarted | Self::Unplaced | Self::PoolWithdrawn | Self::Unoffloaded => None,
        }
    }

    /// Whether a pod with a controller of this kind leaves.
    pub fn takes_pods_of(self, controller: Option<&str>) -> bool {
        self.leaving_pods().includes(controller)
    }
}

#[cfg(test)]
mod tests {
    use super::DepartureCause::{NodeRemoved, NotStarted, PoolWithdrawn, Unoffloaded, Unplaced};
    use super::*;

    /// In words of the page.
    fn words(cause: DepartureCause) -> [String; 4] {
        let leaving = match cause.leaving_pods() {
            LeavingPods::Replaced => "of a ReplicaSet, ReplicationController or StatefulSet",
            LeavingPods::Survived => {
                "of a ReplicaSet, ReplicationController or StatefulSet, or of a Job that goes on without it"
            }
            LeavingPods::Recreated => "of any controller but DaemonSets",
            LeavingPods::Movable => "all but those of DaemonSets, and static ones",
            LeavingPods::All => "all",
        };
        let manner = match cause.manner() {
            DepartureManner::Evicted => "evicted",
            DepartureManner::Deleted => "deleted",
        };
        let event = cause
            .event_reason()
            .map_or("none".to_owned(), |event| format!("`{event}`"));
        [
            format!("`{cause:?}`"),
            leaving.to_owned(),
            manner.to_owned(),
            event,
        ]
    }

    #[test]
    fn the_page_has_the_table_of_all_causes() {
        let page = include_str!("../../../docs/reference/why-pods-leave.md");
        let (_, part) = page
            .split_once("## Why pods leave")
            .expect("the page has the table");
        let (part, _) = part.split_once("\n## ").unwrap_or((part, ""));
        let rows = part.lines().filter(|line| line.starts_with("| `"));
        let shown: Vec<Vec<&str>> = rows
            .map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        let expected: Vec<[String; 4]> = DepartureCause::ALL.into_iter().map(words).collect();
        // The second column says the cause in words, the last one the pace.
        let shown: Vec<Vec<&str>> = shown
            .into_iter()
            .map(|row| [&row[..1], &row[2..5]].concat())
            .collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_pod_that_nobody_creates_again_leaves_only_where_its_place_ends() {
        let leaves = |kind: Option<&str>| -> Vec<DepartureCause> {
            DepartureCause::ALL
                .into_iter()
                .filter(|cause| cause.takes_pods_of(kind))
                .collect()
        };
        assert_eq!(leaves(None), [PoolWithdrawn, Unoffloaded, NodeRemoved]);
        assert_eq!(leaves(Some("DaemonSet")), [Unoffloaded, NodeRemoved]);
        assert_eq!(
            leaves(Some(JOB)),
            [
                NotStarted,
                Unplaced,
                PoolWithdrawn,
                Unoffloaded,
                NodeRemoved
            ]
        );
        assert_eq!(leaves(Some("StatefulSet")), DepartureCause::ALL);
    }
}
