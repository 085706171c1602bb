//! `liqoctl generate`: a command that lets another cluster peer with this one, and files that are
//! generated from the code.

use std::path::Path;

use anyhow::Context as _;
use kube::ResourceExt as _;
use serde::Serialize;

use crate::{cluster::Cluster, gateways, manifests, output, peer, rights_table, token};

/// The data that another cluster needs to borrow from this one.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BorrowingInvitation {
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
    pub cluster_name: String,
    /// URL of its auth endpoint.
    #[serde(rename = "authURL")]
    pub auth_url: String,
    /// The token for the first contact.
    pub token: String,
    /// The command to run for the other cluster.
    pub command: String,
}

/// Creates a token and the command that uses it.
pub async fn peer_command(
    cluster: &Cluster,
    token: &token::TokenCreateOptions,
    through_tunnel: bool,
) -> anyhow::Result<BorrowingInvitation> {
    let target = peer::PeeringTarget::of_cluster(cluster).await?;
    let tunnel = if through_tunnel {
        gateways::gateways_of_cluster(cluster, &cluster.require_installed().await?).await?
    } else {
        Vec::new()
    };
    let tunnel = tunnel
        .iter()
        .flat_map(|gateway| [" --tunnel ".to_owned(), gateways::gateway_argument(gateway)])
        .collect::<String>();
    let created = token::create_token(cluster, token).await?;
    Ok(BorrowingInvitation {
        command: format!(
            "liqoctl peer --id {} --cluster-name {} --auth-url {}{tunnel} --token {}",
            target.cluster_id, target.cluster_name, target.auth_url, created.token
        ),
        cluster_id: target.cluster_id.to_string(),
        cluster_name: target.cluster_name,
        auth_url: target.auth_url,
        token: created.token,
    })
}

/// The files of the custom resource definitions: name and content.
pub fn definition_files() -> anyhow::Result<Vec<(String, String)>> {
    manifests::custom_resource_definitions()?
        .iter()
        .map(|definition| {
            let name = definition.name_any();
            let (plural, group) = name.split_once('.').unwrap_or((&name, ""));
            let file = format!("{group}_{plural}.yaml");
            let text = format!(
                "# Generated from crates/api by `cargo run -p liqoctl -- generate crds`.\n{}",
                output::to_yaml(definition)?
            );
            Ok((file, text.trim_end().to_owned() + "\n"))
        })
        .collect()
}

/// Writes the custom resource definitions into a directory, and removes files of kinds that no
/// longer exist.
pub fn write_definitions(directory: &Path) -> anyhow::Result<()> {
    let files = definition_files()?;
    replace_definition_files(directory, &files)
        .with_context(|| format!("cannot write the definitions into {}", directory.display()))
}

fn replace_definition_files(directory: &Path, files: &[(String, String)]) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let known = path
            .file_name()
            .is_some_and(|name| files.iter().any(|(file, _)| name == file.as_str()));
        if !known
            && path
                .extension()
                .is_some_and(|extension| extension == "yaml")
        {
            std::fs::remove_file(&path)?;
        }
    }
    for (file, text) in files {
        std::fs::write(directory.join(file), text)?;
    }
    Ok(())
}

/// Writes the table of rights into a page.
pub fn write_rights(page: &Path) -> anyhow::Result<()> {
    let table = rights_table::installed_rights_table()?;
    replace_rights_table(page, &table)
        .with_context(|| format!("cannot write the rights into {}", page.display()))
}

fn replace_rights_table(page: &Path, table: &str) -> anyhow::Result<()> {
    let old = std::fs::read_to_string(page)?;
    Ok(std::fs::write(
        page,
        rights_table::page_with_table(&old, table)?,
    )?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_definitions_in_deploy_are_current() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy/liqo/crds");
        let hint = "run `cargo run -p liqoctl -- generate crds` and commit the result";
        let files = definition_files().unwrap();
        for (file, text) in &files {
            let found = std::fs::read_to_string(directory.join(file)).unwrap_or_default();
            assert!(
                found == *text,
                "deploy/liqo/crds/{file} is not current: {hint}"
            );
        }
        let expected: BTreeSet<String> = files.into_iter().map(|(file, _)| file).collect();
        let found: BTreeSet<String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(found, expected, "{hint}");
    }

    #[test]
    fn no_column_shows_the_first_of_several_values() {
        for (file, text) in definition_files().unwrap() {
            let column = text
                .lines()
                .find(|line| line.contains("jsonPath:") && line.contains("[*]"));
            assert_eq!(
                column, None,
                "{file}: kubectl shows only the first value of it"
            );
        }
    }
}
