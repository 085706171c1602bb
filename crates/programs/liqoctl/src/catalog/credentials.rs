//! The credentials that `liqoctl catalog` shows.

use std::{path::Path, time::SystemTime};

use anyhow::{Context as _, anyhow, bail};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt as _};
use liqo_api::{ClusterId, ForeignCluster};
use liqo_peering::identity::{self, IdentityError};
use liqo_signing::{ClusterIdentity, sign_in};

use crate::{
    cluster::{Cluster, explain_request_error},
    lists,
    manifests::NAMESPACE,
    output::existing_names,
    unpeer,
};

/// A token, or the key of a cluster.
pub enum CatalogCredentials {
    Token(String),
    Cluster {
        identity: Box<ClusterIdentity>,
        /// ID of the broker: the sign-in counts nowhere else.
        audience: ClusterId,
        /// Its name in this cluster.
        broker: String,
    },
}

impl CatalogCredentials {
    /// The value of the `Authorization` header.
    pub fn header(&self, now: SystemTime) -> anyhow::Result<String> {
        Ok(match self {
            Self::Token(token) => format!("Bearer {token}"),
            Self::Cluster {
                identity, audience, ..
            } => sign_in::authorization_header(identity, audience, now)?,
        })
    }
}

pub fn token_in(file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the token file {}", file.display()))?;
    let token = text.trim();
    if token.is_empty() || token.contains(char::is_whitespace) || !token.is_ascii() {
        bail!(
            "{} contains no token: `kubectl create token` prints one",
            file.display()
        );
    }
    Ok(token.to_owned())
}

/// The identity of this cluster, for the broker that the user means.
pub async fn identity_for_broker(
    cluster: &Cluster,
    broker: Option<&str>,
) -> anyhow::Result<CatalogCredentials> {
    cluster.require_installed().await?;
    let foreign = if let Some(name) = broker {
        unpeer::peer_by_name(cluster, name).await?
    } else {
        only_provider(lists::list_peers(cluster).await?)?
    };
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let identity = identity::load_identity(&secrets).await.map_err(|error| match error {
        IdentityError::Read(error) => explain_request_error(error).context(
            "cannot read this cluster's key, with which it signs in (Secret liqo-identity); a --token-file needs no key",
        ),
        error => anyhow!(error),
    })?;
    let identity = identity.ok_or_else(|| {
        anyhow!(
            "Liqo in cluster {} has no key yet: try again soon",
            cluster.context
        )
    })?;
    Ok(CatalogCredentials::Cluster {
        identity: identity.into(),
        broker: foreign.name_any(),
        audience: foreign.spec.cluster_id,
    })
}

/// The only cluster that this one borrows from.
pub(super) fn only_provider(peers: Vec<ForeignCluster>) -> anyhow::Result<ForeignCluster> {
    let mut providers: Vec<ForeignCluster> = peers
        .into_iter()
        .filter(ForeignCluster::wants_outgoing)
        .collect();
    match (providers.pop(), providers.as_slice()) {
        (Some(only), []) => Ok(only),
        (None, _) => {
            bail!(
                "this cluster borrows from nobody: borrow from the broker first (`liqoctl peer`), or use --token-file"
            )
        }
        (Some(last), others) => {
            let mut names: Vec<String> = others
                .iter()
                .chain([&last])
                .map(kube::ResourceExt::name_any)
                .collect();
            names.sort();
            bail!(
                "name the broker, because this cluster borrows from several clusters: {}",
                existing_names(&names)
            )
        }
    }
}
