//! Counts writes out of audit logs. Pure.

use std::collections::BTreeMap;

use liqo_api::{ClusterId, FABRIC_NAMESPACE, SYSTEM_NAMESPACE, consumer_service_account};
use liqo_playground::Write;
use liqoctl::manifests::MANAGER;
use serde::Serialize;

/// Resources that do not belong to the cost of a pod: heartbeats, and queries that are sent as
/// writes.
const NOT_COUNTED: [&str; 3] = ["leases", "tokenreviews", "subjectaccessreviews"];

/// Resources that only contracts and metering need.
const FOR_CONTRACTS: [&str; 3] = ["contracts", "usagerecords", "receipts"];

/// The cluster whose API server was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum WriteLocation {
    Home,
    Provider,
}

/// A process of Liqo that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum WritingProcess {
    ManagerAtHome,
    ManagerAtProvider,
    FabricAtHome,
    FabricAtProvider,
}

impl WritingProcess {
    pub fn title(self) -> &'static str {
        match self {
            Self::ManagerAtHome => "manager at home",
            Self::ManagerAtProvider => "manager at the provider",
            Self::FabricAtHome => "fabric at home",
            Self::FabricAtProvider => "fabric at the provider",
        }
    }

    /// The agent behind a user of an API server; nothing for everybody who is not part of Liqo.
    fn of_user(user: &str, location: WriteLocation, home: &ClusterId) -> Option<Self> {
        let (namespace, account) = user
            .strip_prefix("system:serviceaccount:")?
            .split_once(':')?;
        match (namespace, location) {
            (FABRIC_NAMESPACE, WriteLocation::Home) => Some(Self::FabricAtHome),
            (FABRIC_NAMESPACE, WriteLocation::Provider) => Some(Self::FabricAtProvider),
            (SYSTEM_NAMESPACE, WriteLocation::Home) if account == MANAGER => {
                Some(Self::ManagerAtHome)
            }
            (SYSTEM_NAMESPACE, WriteLocation::Provider) if account == MANAGER => {
                Some(Self::ManagerAtProvider)
            }
            // The account that home's manager uses at the provider.
            (SYSTEM_NAMESPACE, WriteLocation::Provider)
                if account == consumer_service_account(home) =>
            {
                Some(Self::ManagerAtHome)
            }
            _ => None,
        }
    }
}

/// A kind of write, by which writes are counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WriteKind {
    pub agent: WritingProcess,
    /// The cluster that it wrote to.
    pub location: WriteLocation,
    /// `pods`, or `pods/status` for a subresource.
    pub resource: String,
    pub verb: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WriteCounts {
    /// Writes of everybody, Kubernetes included.
    pub all: u64,
    /// Liqo's own writes.
    pub own: BTreeMap<WriteKind, u64>,
}

impl WriteCounts {
    /// Liqo's own writes for contracts.
    pub fn for_contracts(self) -> BTreeMap<WriteKind, u64> {
        self.own
            .into_iter()
            .filter(|(kind, _)| {
                FOR_CONTRACTS.contains(&kind.resource.split('/').next().unwrap_or_default())
            })
            .collect()
    }
}

/// Counts the writes of both clusters, rejected ones included.
pub(super) fn count_writes(writes: &[(WriteLocation, Write)], home: &ClusterId) -> WriteCounts {
    let mut counted = WriteCounts::default();
    for (location, write) in writes
        .iter()
        .filter(|(_, write)| !NOT_COUNTED.contains(&write.resource.as_str()))
    {
        counted.all += 1;
        let Some(agent) = WritingProcess::of_user(&write.user, *location, home) else {
            continue;
        };
        let resource = match write.subresource.as_str() {
            "" => write.resource.clone(),
            subresource => format!("{}/{subresource}", write.resource),
        };
        let kind = WriteKind {
            agent,
            location: *location,
            resource,
            verb: write.verb.clone(),
        };
        *counted.own.entry(kind).or_insert(0) += 1;
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_counted_by_agent_cluster_and_resource() {
        let (home, other) = (
            ClusterId::of_public_key(&[1; 32]),
            ClusterId::of_public_key(&[2; 32]),
        );
        let write = |location, user: &str, verb: &str, resource: &str, subresource: &str| {
            let write = Write {
                user: user.to_owned(),
                verb: verb.to_owned(),
                resource: resource.to_owned(),
                subresource: subresource.to_owned(),
                ..Write::default()
            };
            (location, write)
        };
        let manager = "system:serviceaccount:liqo:liqo-controller-manager";
        let consumer = format!(
            "system:serviceaccount:liqo:{}",
            consumer_service_account(&home)
        );
        let stranger = format!(
            "system:serviceaccount:liqo:{}",
            consumer_service_account(&other)
        );
        let found = count_writes(
            &[
                write(WriteLocation::Home, manager, "update", "pods", "status"),
                write(WriteLocation::Home, manager, "update", "pods", "status"),
                write(WriteLocation::Home, manager, "update", "leases", ""),
                write(
                    WriteLocation::Home,
                    "system:kube-scheduler",
                    "create",
                    "pods",
                    "binding",
                ),
                write(WriteLocation::Provider, manager, "create", "pods", ""),
                write(
                    WriteLocation::Provider,
                    &consumer,
                    "create",
                    "shadowpods",
                    "",
                ),
                write(
                    WriteLocation::Provider,
                    &stranger,
                    "create",
                    "shadowpods",
                    "",
                ),
                write(
                    WriteLocation::Provider,
                    "system:serviceaccount:kube-system:replicaset-controller",
                    "create",
                    "pods",
                    "",
                ),
                write(
                    WriteLocation::Provider,
                    "system:serviceaccount:liqo-fabric:liqo-fabric",
                    "patch",
                    "tunnelendpoints",
                    "status",
                ),
            ],
            &home,
        );
        assert_eq!(found.all, 8);
        let shown: Vec<String> = found
            .own
            .iter()
            .map(|(kind, number)| {
                format!(
                    "{} {:?} {} {} {number}",
                    kind.agent.title(),
                    kind.location,
                    kind.verb,
                    kind.resource
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                "manager at home Home update pods/status 2",
                "manager at home Provider create shadowpods 1",
                "manager at the provider Provider create pods 1",
                "fabric at the provider Provider patch tunnelendpoints/status 1",
            ]
        );
        assert!(found.for_contracts().is_empty());
    }

    #[test]
    fn writes_for_contracts_are_told_apart() {
        let home = ClusterId::of_public_key(&[1; 32]);
        let write = |resource: &str, subresource: &str| {
            let user = "system:serviceaccount:liqo:liqo-controller-manager".to_owned();
            let (resource, subresource) = (resource.to_owned(), subresource.to_owned());
            (
                WriteLocation::Provider,
                Write {
                    user,
                    verb: "create".to_owned(),
                    resource,
                    subresource,
                    ..Write::default()
                },
            )
        };
        let all = [
            write("usagerecords", ""),
            write("receipts", "status"),
            write("pods", ""),
            write("contracts", ""),
        ];
        let found: Vec<String> = count_writes(&all, &home)
            .for_contracts()
            .into_keys()
            .map(|kind| kind.resource)
            .collect();
        assert_eq!(found, ["contracts", "receipts/status", "usagerecords"]);
    }
}
