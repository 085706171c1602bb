//! The command line: flags and help.

use std::{collections::BTreeSet, path::PathBuf};

use clap::{Parser, ValueEnum};
use liqo_playground::CargoProfile;
use liqoctl::output::OutputFormat;
use serde::Serialize;

/// Make all artefacts of a release in a folder
#[derive(Debug, Parser)]
#[command(name = crate::PROGRAM, version)]
pub struct Arguments {
    /// Folder for the artefacts. Those of an earlier run are replaced
    #[arg(long, value_name = "FOLDER")]
    pub output: PathBuf,
    /// Make only these artefacts
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME")]
    pub only: Vec<ArtefactKind>,
    /// Profile of cargo in which programs are built
    #[arg(long, value_enum, default_value_t, value_name = "PROFILE")]
    pub profile: BuildProfile,
    /// Folder with programs that are already built, instead of building them
    #[arg(long, value_name = "FOLDER", conflicts_with = "profile")]
    pub programs: Option<PathBuf>,
    /// Accept changes that are not committed. The provenance then says so
    #[arg(long)]
    pub allow_dirty: bool,
    /// Identity of the machine or service that builds, a URI, for the provenance
    #[arg(long, value_name = "URI", default_value = "urn:liqo:builder:local")]
    pub builder: String,
    /// How the result is printed
    #[arg(short = 'o', long, value_enum, default_value_t, value_name = "FORMAT")]
    pub format: OutputFormat,
}

impl Arguments {
    /// The artefacts to make: those that `--only` names, or all.
    pub fn selected_kinds(&self) -> BTreeSet<ArtefactKind> {
        if self.only.is_empty() {
            ArtefactKind::value_variants().iter().copied().collect()
        } else {
            self.only.iter().copied().collect()
        }
    }
}

/// Artefacts that `--only` can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ArtefactKind {
    /// An archive of each program
    Binaries,
    /// An image of each program that runs in clusters
    Images,
    /// The Helm chart
    Chart,
    /// The custom resource definitions
    Crds,
    /// All objects of an installation
    Manifests,
    /// The software bill of materials
    Sbom,
    /// The licences of third parties
    Notices,
    /// The notes of this version
    Notes,
    /// What the other artefacts are made of
    Provenance,
}

/// The profile of cargo, as `--profile` names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BuildProfile {
    /// Compiled fast, for tests of this command
    Dev,
    /// Compiled for speed
    #[default]
    Release,
}

impl From<BuildProfile> for CargoProfile {
    fn from(profile: BuildProfile) -> Self {
        match profile {
            BuildProfile::Dev => Self::Dev,
            BuildProfile::Release => Self::Release,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_artefacts_are_made_unless_some_are_named() {
        let parse = |more: &[&str]| {
            let given = [&["dist", "--output", "x"], more].concat();
            Arguments::try_parse_from(given).unwrap()
        };
        assert_eq!(parse(&[]).selected_kinds().len(), 9);
        let named = parse(&["--only", "sbom,chart"]).selected_kinds();
        assert!(named.iter().eq(&[ArtefactKind::Chart, ArtefactKind::Sbom]));
    }

    #[test]
    fn programs_that_are_given_have_no_profile() {
        let given = ["dist", "--output", "x", "--programs", "y"];
        assert!(Arguments::try_parse_from(given).is_ok());
        let both = [&given[..], &["--profile", "dev"]].concat();
        assert!(Arguments::try_parse_from(both).is_err());
    }
}
