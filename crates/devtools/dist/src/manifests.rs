//! The custom resource definitions, and all objects of an installation, each as one YAML file.
//!
//! Both come from `liqoctl`'s library, which the tests compare with `deploy/liqo`. The objects of
//! an installation are those that `liqoctl install --dry-run` prints for a cluster without Liqo.

use anyhow::{Context as _, Result};
use liqoctl::{
    generate, install,
    output::to_yaml,
    settings::{InstallSettings, InstallValues, InstalledState},
};

/// The cluster's name in the manifests.
const CLUSTER_NAME: &str = "liqo";

/// All custom resource definitions.
pub fn definitions_document() -> Result<String> {
    let files = generate::definition_files().context("cannot write the definitions of kinds")?;
    let texts: Vec<String> = files.into_iter().map(|(_, text)| text).collect();
    Ok(join_documents(&texts))
}

/// All objects of an installation with default settings.
pub fn installation_document(version: &str) -> Result<String> {
    let values = InstallValues::resolve(
        &InstallSettings::default(),
        &InstalledState::default(),
        CLUSTER_NAME,
    );
    let objects = install::installation_objects(&values, true)?;
    let texts: Vec<String> = objects.iter().map(to_yaml).collect::<Result<_>>()?;
    Ok(format!(
        "# Liqo {version} with default settings. Before you apply it, give the cluster a name:\n\
         # spec.clusterName of the ClusterConfig. Apply it twice: kinds come before objects.\n{}",
        join_documents(&texts)
    ))
}

fn join_documents(texts: &[String]) -> String {
    let trimmed: Vec<&str> = texts.iter().map(|text| text.trim_end()).collect();
    trimmed.join("\n---\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_part_of_an_installation() {
        let count = |text: &str| text.matches("kind: CustomResourceDefinition\n").count();
        let definitions = count(&definitions_document().unwrap());
        let installation = installation_document("0.1.0").unwrap();
        assert!(definitions > 10);
        assert_eq!(count(&installation), definitions);
        assert!(installation.contains("\nkind: DaemonSet\n"));
        assert!(installation.contains("clusterName: liqo\n"));
    }
}
