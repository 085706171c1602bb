//! The fields of `cargo metadata` that artefacts need, and the programs that a release ships.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Folders below the workspace whose programs are shipped. Those of `crates/devtools` stay here.
const SHIPPED_FOLDERS: [&str; 3] = ["crates/programs", "crates/networking/fabric", "plugins"];
/// The program for the user's machine. All others run in clusters.
const COMMAND_LINE: &str = "liqoctl";

/// What `cargo metadata` prints.
#[derive(Clone, Debug, Deserialize)]
pub struct CargoMetadata {
    pub packages: Vec<CargoPackage>,
    pub resolve: Resolve,
    pub workspace_root: PathBuf,
}

/// A crate: its manifest, and where it is.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct CargoPackage {
    pub id: String,
    pub name: String,
    pub version: String,
    /// An SPDX expression, or the old form `MIT/Apache-2.0`.
    pub license: Option<String>,
    #[serde(default)]
    pub authors: Vec<String>,
    pub repository: Option<String>,
    /// Nothing for crates of the workspace.
    pub source: Option<String>,
    pub manifest_path: PathBuf,
    #[serde(default)]
    pub targets: Vec<CargoTarget>,
}

impl CargoPackage {
    pub fn is_procedural_macro(&self) -> bool {
        self.targets
            .iter()
            .any(|target| target.kind.iter().any(|kind| kind == "proc-macro"))
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct CargoTarget {
    pub name: String,
    pub kind: Vec<String>,
}

/// The dependencies with their versions.
#[derive(Clone, Debug, Deserialize)]
pub struct Resolve {
    pub nodes: Vec<ResolveNode>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ResolveNode {
    pub id: String,
    pub deps: Vec<ResolvedDependency>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ResolvedDependency {
    pub pkg: String,
    pub dep_kinds: Vec<DependencyKind>,
}

impl ResolvedDependency {
    /// True unless only tests or build scripts use it.
    pub fn is_normal(&self) -> bool {
        self.dep_kinds.iter().any(|kind| kind.kind.is_none())
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct DependencyKind {
    /// `dev` or `build`; nothing for a normal dependency.
    pub kind: Option<String>,
}

/// A program of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShippedProgram {
    pub name: String,
    /// Identity of its crate in [`CargoMetadata`].
    pub package: String,
    /// The name of its image, without registry and tag; nothing if it does not run in clusters.
    pub image: Option<String>,
}

/// The programs below [`SHIPPED_FOLDERS`], by name.
pub fn shipped_programs(metadata: &CargoMetadata) -> Vec<ShippedProgram> {
    let mut programs: Vec<ShippedProgram> = metadata
        .packages
        .iter()
        .filter_map(|package| program_of_package(package, &metadata.workspace_root))
        .collect();
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    programs
}

fn program_of_package(package: &CargoPackage, root: &Path) -> Option<ShippedProgram> {
    let folder = package.manifest_path.parent()?.strip_prefix(root).ok()?;
    if !SHIPPED_FOLDERS
        .iter()
        .any(|shipped| folder.starts_with(shipped))
    {
        return None;
    }
    let target = package
        .targets
        .iter()
        .find(|target| target.kind.iter().any(|kind| kind == "bin"))?;
    let image = folder.file_name()?.to_str()?.to_owned();
    Some(ShippedProgram {
        name: target.name.clone(),
        package: package.id.clone(),
        image: Some(image).filter(|_| target.name != COMMAND_LINE),
    })
}

#[cfg(test)]
pub mod fixtures {
    use serde_json::{Value, json};

    use super::*;

    fn package(name: &str, manifest: &str, kind: &str, license: &str) -> Value {
        json!({
            "id": name, "name": name, "version": "1.0.0", "license": license,
            "authors": [format!("Author of {name}")],
            "repository": format!("https://example.org/{name}"),
            "source": if manifest.starts_with("/w/") { Value::Null } else { json!("registry") },
            "manifest_path": manifest, "targets": [{ "name": name, "kind": [kind] }],
        })
    }

    fn node(name: &str, dependencies: &[(&str, Value)]) -> Value {
        let mut found = Vec::new();
        for (needed, kind) in dependencies {
            let kinds = json!([{ "kind": kind, "target": null }]);
            found.push(json!({ "name": needed, "pkg": needed, "dep_kinds": kinds }));
        }
        json!({ "id": name, "deps": found })
    }

    /// A workspace in `/w` with the programs `liqo-fabric` and `liqoctl`. The first one needs the
    /// crate `tunnel` and the macro `derive`, which needs `parser`.
    pub fn small_metadata() -> CargoMetadata {
        let normal = Value::Null;
        let fabric_dependencies = [
            ("tunnel", normal.clone()),
            ("derive", normal.clone()),
            ("tester", json!("dev")),
            ("compiler", json!("build")),
        ];
        let document = json!({
            "workspace_root": "/w",
            "packages": [
                package("liqoctl", "/w/crates/programs/liqoctl/Cargo.toml", "bin", "Apache-2.0"),
                package("playground", "/w/crates/devtools/play/Cargo.toml", "bin", "Apache-2.0"),
                package(
                    "liqo-fabric", "/w/crates/networking/fabric/Cargo.toml", "bin", "Apache-2.0"
                ),
                package("tunnel", "/r/tunnel/Cargo.toml", "lib", "MPL-2.0"),
                package("derive", "/r/derive/Cargo.toml", "proc-macro", "MIT/Apache-2.0"),
                package("parser", "/r/parser/Cargo.toml", "lib", "MIT"),
                package("tester", "/r/tester/Cargo.toml", "lib", "MIT"),
                package("compiler", "/r/compiler/Cargo.toml", "lib", "MIT"),
            ],
            "resolve": { "nodes": [
                node("liqoctl", &[]),
                node("playground", &[("tester", normal.clone())]),
                node("liqo-fabric", &fabric_dependencies),
                node("tunnel", &[]),
                node("derive", &[("parser", normal)]),
                node("parser", &[]),
                node("tester", &[]),
                node("compiler", &[]),
            ] },
        });
        serde_json::from_value(document).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::{fixtures::small_metadata, *};

    #[test]
    fn programs_for_developers_are_not_shipped_and_the_command_line_has_no_image() {
        let programs = shipped_programs(&small_metadata());
        let named: Vec<_> = programs
            .iter()
            .map(|program| (program.name.as_str(), program.image.as_deref()))
            .collect();
        assert_eq!(named, [("liqo-fabric", Some("fabric")), ("liqoctl", None)]);
    }
}
