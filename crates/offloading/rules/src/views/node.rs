//! Fields of Nodes and of their Leases.

use serde_json::{Map, Value};

use crate::views::{ConditionView, MetadataView, Views};

json_views! {
    /// A Node.
    NodeObjectView {
        metadata: MetadataView<'a> = "metadata",
        spec: NodeObjectSpecView<'a> = "spec",
        status: NodeObjectStatusView<'a> = "status",
    }

    /// The spec of a Node.
    NodeObjectSpecView {
        taints: &'a [Value] = "taints",
        unschedulable: Option<bool> = "unschedulable",
    }

    /// The status of a Node.
    NodeObjectStatusView {
        conditions: Views<'a, ConditionView<'a>> = "conditions",
        addresses: &'a [Value] = "addresses",
        allocatable: Option<&'a Map<String, Value>> = "allocatable",
    }

    /// A Lease.
    LeaseView {
        spec: LeaseSpecView<'a> = "spec",
    }

    /// The spec of a Lease.
    LeaseSpecView {
        renew_time: Option<&'a str> = "renewTime",
        lease_duration_seconds: Option<i64> = "leaseDurationSeconds",
    }

    /// A taint of a Node.
    TaintView {
        key: Option<&'a str> = "key",
        effect: Option<&'a str> = "effect",
    }
}

impl NodeObjectView<'_> {
    pub fn is_cordoned(self) -> bool {
        self.spec().unschedulable() == Some(true)
    }
}
