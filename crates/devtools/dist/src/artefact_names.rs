//! The names of the files of a release.

use std::collections::BTreeSet;

use clap::ValueEnum as _;
use liqo_playground::image_architecture;

use crate::{arguments::ArtefactKind, cargo_metadata::ShippedProgram, checksums::CHECKSUMS_FILE};

/// The folder in the archive of a program, and the name of that archive without its ending.
pub fn binary_folder(program: &str, version: &str) -> String {
    format!("{program}-{version}-linux-{}", image_architecture())
}

pub fn binary_file(program: &str, version: &str) -> String {
    binary_folder(program, version) + ".tar.gz"
}

pub fn image_file(image: &str, version: &str) -> String {
    format!("{image}-image-{version}-linux-{}.tar", image_architecture())
}

/// The file of a kind that has only one; nothing for those that have one for each program.
pub fn single_file(kind: ArtefactKind, version: &str) -> Option<String> {
    Some(match kind {
        ArtefactKind::Binaries | ArtefactKind::Images => return None,
        ArtefactKind::Chart => format!("liqo-{version}.tgz"),
        ArtefactKind::Crds => format!("liqo-crds-{version}.yaml"),
        ArtefactKind::Manifests => format!("liqo-install-{version}.yaml"),
        ArtefactKind::Sbom => format!("liqo-sbom-{version}.cdx.json"),
        ArtefactKind::Notices => format!("liqo-third-party-licences-{version}.txt"),
        ArtefactKind::Notes => format!("liqo-release-notes-{version}.md"),
        ArtefactKind::Provenance => format!("liqo-provenance-{version}.intoto.json"),
    })
}

/// The names of all files that a release with these programs can have.
pub fn release_files(programs: &[ShippedProgram], version: &str) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = ArtefactKind::value_variants()
        .iter()
        .filter_map(|kind| single_file(*kind, version))
        .collect();
    names.insert(CHECKSUMS_FILE.to_owned());
    for program in programs {
        names.insert(binary_file(&program.name, version));
        names.extend(program.image.iter().map(|image| image_file(image, version)));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo_metadata::{fixtures::small_metadata, shipped_programs};

    #[test]
    fn every_kind_and_every_program_has_a_name_of_its_own() {
        let names = release_files(&shipped_programs(&small_metadata()), "0.1.0");
        // Seven documents, the checksums, two programs and one image.
        assert_eq!(names.len(), 7 + 1 + 2 + 1);
        let image = image_file("fabric", "0.1.0");
        assert!(names.contains(&image), "{names:?}");
    }
}
