//! The software bill of materials: `CycloneDX` 1.5 in JSON.
//!
//! A component is a crate. Crates of a registry have the checksum of `Cargo.lock`; crates that only
//! run in the compiler have the scope `excluded`. The libraries of Debian in the images are not
//! here: each image has a list of them.
//!
//! `cargo metadata` chooses features for the whole workspace. So a crate that a program needs only
//! with a feature of the tests is listed, too: the list may be too long by a few, never too short.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    cargo_metadata::ShippedProgram,
    crate_graph::{CrateUse, ShippedCrate},
};

/// The release that a bill of materials is about.
#[derive(Clone, Debug)]
pub struct SbomSubject<'a> {
    pub version: &'a str,
    /// In RFC 3339.
    pub time: &'a str,
    pub programs: &'a [ShippedProgram],
}

/// The bill of materials of these crates.
pub fn render_sbom(subject: &SbomSubject<'_>, crates: &[ShippedCrate]) -> Value {
    let purls: BTreeMap<&str, String> = crates
        .iter()
        .map(|one| (one.package.id.as_str(), package_url(one)))
        .collect();
    let root = format!("pkg:generic/liqo@{}", subject.version);
    let program_ids = subject
        .programs
        .iter()
        .map(|program| program.package.as_str());
    let mut dependencies = vec![dependency_entry(&root, program_ids, &purls)];
    for one in crates {
        let needed = one.dependencies.iter().map(String::as_str);
        dependencies.push(dependency_entry(&package_url(one), needed, &purls));
    }
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": subject.time,
            "tools": { "components": [
                { "type": "application", "name": "liqo-dist", "version": subject.version },
            ] },
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": "liqo",
                "version": subject.version,
                "purl": root,
                "licenses": [{ "expression": "Apache-2.0" }],
            },
        },
        "components": crates
            .iter()
            .map(|one| crate_component(one, subject.programs))
            .collect::<Vec<_>>(),
        "dependencies": dependencies,
    })
}

/// Crates of the workspace are in no registry: a package of the same name there is another one.
fn package_url(one: &ShippedCrate) -> String {
    let kind = if one.is_third_party() {
        "cargo"
    } else {
        "generic"
    };
    // The only character of versions that a package URL must escape.
    let version = one.package.version.replace('+', "%2B");
    format!("pkg:{kind}/{}@{version}", one.package.name)
}

fn crate_component(one: &ShippedCrate, programs: &[ShippedProgram]) -> Value {
    let is_program = programs
        .iter()
        .any(|program| program.package == one.package.id);
    let purl = package_url(one);
    let mut component = json!({
        "type": if is_program { "application" } else { "library" },
        "bom-ref": purl,
        "name": one.package.name,
        "version": one.package.version,
        "purl": purl,
        "scope": match one.usage {
            CrateUse::Program => "required",
            CrateUse::Compiler => "excluded",
        },
    });
    if let Some(expression) = one.licence_expression() {
        component["licenses"] = json!([{ "expression": expression }]);
    }
    if let Some(checksum) = &one.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    if let Some(repository) = &one.package.repository {
        component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    component
}

fn dependency_entry<'a>(
    dependent: &str,
    needed: impl Iterator<Item = &'a str>,
    purls: &BTreeMap<&str, String>,
) -> Value {
    let mut needed: Vec<&String> = needed.filter_map(|id| purls.get(id)).collect();
    needed.sort();
    json!({ "ref": dependent, "dependsOn": needed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cargo_metadata::{fixtures::small_metadata, shipped_programs},
        crate_graph::fixtures::small_crates,
    };

    fn small_sbom() -> Value {
        let programs = shipped_programs(&small_metadata());
        let subject = SbomSubject {
            version: "0.1.0",
            time: "2026-01-02T03:04:05Z",
            programs: &programs,
        };
        render_sbom(&subject, &small_crates())
    }

    #[test]
    fn a_component_has_its_package_url_licence_and_checksum() {
        let sbom = small_sbom();
        assert_eq!(
            sbom["components"][4],
            json!({
                "type": "library",
                "bom-ref": "pkg:cargo/tunnel@1.0.0",
                "name": "tunnel",
                "version": "1.0.0",
                "purl": "pkg:cargo/tunnel@1.0.0",
                "scope": "required",
                "licenses": [{ "expression": "MPL-2.0" }],
                "hashes": [{ "alg": "SHA-256", "content": "abc" }],
                "externalReferences": [{ "type": "vcs", "url": "https://example.org/tunnel" }],
            })
        );
        assert_eq!(sbom["components"][0]["scope"], "excluded");
        assert_eq!(sbom["components"][1]["type"], "application");
        assert_eq!(sbom["components"][1]["hashes"], Value::Null);
    }

    #[test]
    fn the_graph_leads_from_the_release_to_every_crate() {
        let sbom = small_sbom();
        let dependencies = sbom["dependencies"].as_array().unwrap();
        assert_eq!(
            dependencies[0],
            json!({
                "ref": "pkg:generic/liqo@0.1.0",
                "dependsOn": ["pkg:generic/liqo-fabric@1.0.0", "pkg:generic/liqoctl@1.0.0"],
            })
        );
        assert_eq!(
            dependencies[2]["dependsOn"],
            json!(["pkg:cargo/derive@1.0.0", "pkg:cargo/tunnel@1.0.0"])
        );
        assert_eq!(
            dependencies.len(),
            1 + sbom["components"].as_array().unwrap().len()
        );
    }
}
