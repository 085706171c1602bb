//! The provenance: an in-toto statement (v1) with the predicate of SLSA (provenance v1).
//!
//! It says which files were made, from which commit and materials, by whom and how. It is not
//! signed: it proves nothing until whoever publishes the release signs it. It has no time of the
//! build, so that two builds of one commit write the same statement.

use serde_json::{Value, json};

use crate::{arguments::ArtefactKind, checksums::FileChecksum};

/// Describes how `dist` builds; verifiers compare it.
const BUILD_TYPE: &str = "urn:liqo:dist:v1";

/// How the artefacts were made.
#[derive(Clone, Debug)]
pub struct BuildFacts<'a> {
    pub version: &'a str,
    pub commit: &'a str,
    /// True if the work tree had changes that are not in the commit.
    pub is_dirty: bool,
    /// `release` or `dev`; nothing if the programs were given, or none was needed.
    pub profile: Option<&'a str>,
    pub artefacts: Vec<ArtefactKind>,
    /// A URI.
    pub builder: &'a str,
    /// Whether the programs were given, so that nothing here says what they were built from.
    pub has_given_programs: bool,
    /// What `rustc --version` prints.
    pub toolchain: &'a str,
    pub materials: Vec<Material>,
}

/// A thing that artefacts are made from, other than the commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Material {
    /// Its name, or a package URL.
    pub name: String,
    /// Nothing if its name says which version it is.
    pub sha256: Option<String>,
}

/// The statement about these files.
pub fn render_provenance(facts: &BuildFacts<'_>, files: &[FileChecksum]) -> Value {
    let mut dependencies = vec![json!({
        "name": "liqo",
        "digest": { "gitCommit": facts.commit },
        "annotations": { "uncommittedChanges": facts.is_dirty },
    })];
    dependencies.extend(facts.materials.iter().map(material_descriptor));
    let mut subjects: Vec<&FileChecksum> = files.iter().collect();
    subjects.sort();
    let subjects: Vec<Value> = subjects
        .into_iter()
        .map(|file| json!({ "name": file.name, "digest": { "sha256": file.sha256 } }))
        .collect();
    json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "version": facts.version,
                    "profile": facts.profile,
                    "programsBuiltElsewhere": facts.has_given_programs,
                    "artefacts": facts.artefacts,
                },
                "resolvedDependencies": dependencies,
            },
            "runDetails": {
                "builder": {
                    "id": facts.builder,
                    "version": { "liqo-dist": facts.version, "rustc": facts.toolchain },
                },
            },
        },
    })
}

fn material_descriptor(material: &Material) -> Value {
    let mut descriptor = if material.name.starts_with("pkg:") {
        json!({ "uri": material.name })
    } else {
        json!({ "name": material.name })
    };
    if let Some(sha256) = &material.sha256 {
        descriptor["digest"] = json!({ "sha256": sha256 });
    }
    descriptor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_names_the_commit_the_materials_the_builder_and_every_file() {
        let materials = vec![
            Material {
                name: "Cargo.lock".to_owned(),
                sha256: Some("1".to_owned()),
            },
            Material {
                name: "pkg:deb/debian/libc6@2.36".to_owned(),
                sha256: None,
            },
        ];
        let facts = BuildFacts {
            has_given_programs: false,
            version: "0.1.0",
            commit: "c0ffee",
            is_dirty: false,
            profile: Some("release"),
            artefacts: vec![ArtefactKind::Chart],
            builder: "urn:example:builder",
            toolchain: "rustc 1",
            materials,
        };
        let file = |name: &str, sha256: &str| FileChecksum {
            name: name.to_owned(),
            size: 1,
            sha256: sha256.to_owned(),
        };
        let statement = render_provenance(&facts, &[file("b", "2"), file("a", "3")]);
        assert_eq!(
            statement["subject"],
            json!([
                { "name": "a", "digest": { "sha256": "3" } },
                { "name": "b", "digest": { "sha256": "2" } },
            ])
        );
        let definition = &statement["predicate"]["buildDefinition"];
        assert_eq!(
            definition["resolvedDependencies"],
            json!([
                {
                    "name": "liqo",
                    "digest": { "gitCommit": "c0ffee" },
                    "annotations": { "uncommittedChanges": false },
                },
                { "name": "Cargo.lock", "digest": { "sha256": "1" } },
                { "uri": "pkg:deb/debian/libc6@2.36" },
            ])
        );
        assert_eq!(
            definition["externalParameters"]["artefacts"],
            json!(["chart"])
        );
        let builder = &statement["predicate"]["runDetails"]["builder"];
        assert_eq!(builder["id"], "urn:example:builder");
    }
}
