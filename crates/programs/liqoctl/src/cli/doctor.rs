//! `doctor`.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;

use crate::{cluster::ClusterAccess, doctor::ShownDetails};

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// Kubeconfig file of another cluster to check, and to compare with this one; may be repeated
    #[arg(long, value_name = "FILE")]
    pub remote_kubeconfig: Vec<PathBuf>,
    /// Context of another cluster in that kubeconfig (or in this cluster's, if none is given); may
    /// be repeated
    #[arg(long, value_name = "NAME")]
    pub remote_context: Vec<String>,
    /// Also check what must hold in all these clusters together, once nothing changes: each pod
    /// runs once, nothing is left of ended peerings, leases are fresh
    #[arg(long)]
    pub invariants: bool,
    /// Also show the details of what works
    #[arg(short, long)]
    pub all: bool,
}

impl DoctorArguments {
    pub fn shown_details(&self) -> ShownDetails {
        if self.all {
            ShownDetails::All
        } else {
            ShownDetails::OfFaults
        }
    }

    /// All clusters to check, `own` first.
    pub fn clusters(&self, own: &ClusterAccess) -> anyhow::Result<Vec<ClusterAccess>> {
        let others: Vec<ClusterAccess> = match (
            self.remote_kubeconfig.as_slice(),
            self.remote_context.as_slice(),
        ) {
            (files, []) => files
                .iter()
                .map(|file| ClusterAccess {
                    kubeconfig: Some(file.clone()),
                    context: None,
                })
                .collect(),
            ([] | [_], names) => names
                .iter()
                .map(|name| ClusterAccess {
                    kubeconfig: self
                        .remote_kubeconfig
                        .first()
                        .or(own.kubeconfig.as_ref())
                        .cloned(),
                    context: Some(name.clone()),
                })
                .collect(),
            (_, _) => bail!(
                "--remote-context works with only one --remote-kubeconfig: it is not clear which one it belongs to"
            ),
        };
        Ok([vec![own.clone()], others].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clusters(files: &[&str], contexts: &[&str]) -> Option<Vec<String>> {
        let doctor = DoctorArguments {
            remote_kubeconfig: files.iter().map(PathBuf::from).collect(),
            remote_context: contexts.iter().map(ToString::to_string).collect(),
            invariants: false,
            all: false,
        };
        Some(
            doctor
                .clusters(&ClusterAccess::from_file("own"))
                .ok()?
                .iter()
                .map(ClusterAccess::flags)
                .collect(),
        )
    }

    #[test]
    fn other_clusters_are_named_by_file_or_by_context() {
        let own = " --kubeconfig own".to_owned();
        assert_eq!(clusters(&[], &[]).unwrap(), std::slice::from_ref(&own));
        assert_eq!(
            clusters(&["a", "b"], &[]).unwrap(),
            [
                own.clone(),
                " --kubeconfig a".into(),
                " --kubeconfig b".into()
            ]
        );
        assert_eq!(
            clusters(&[], &["x"]).unwrap(),
            [own.clone(), " --kubeconfig own --context x".into()]
        );
        assert_eq!(
            clusters(&["a"], &["x", "y"]).unwrap(),
            [
                own,
                " --kubeconfig a --context x".into(),
                " --kubeconfig a --context y".into()
            ]
        );
        assert_eq!(clusters(&["a", "b"], &["x"]), None);
    }
}
