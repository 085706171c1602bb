//! The crates that shipped programs are made of, with their dependencies.
//!
//! Only normal dependencies count: those of tests and of build scripts are not in the programs.
//! Procedural macros and what they need run in the compiler. They are named, and marked as
//! [`CrateUse::Compiler`].

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    cargo_metadata::{CargoMetadata, CargoPackage, ShippedProgram},
    lock_file::LockedPackage,
};

/// A crate of at least one shipped program.
#[derive(Clone, Debug)]
pub struct ShippedCrate {
    pub package: CargoPackage,
    /// SHA-256 of its package; nothing for crates of the workspace.
    pub checksum: Option<String>,
    pub usage: CrateUse,
    /// Identities of the crates that it needs, sorted.
    pub dependencies: Vec<String>,
}

impl ShippedCrate {
    pub fn is_third_party(&self) -> bool {
        self.package.source.is_some()
    }

    /// Name and version.
    pub fn title(&self) -> String {
        format!("{} {}", self.package.name, self.package.version)
    }

    /// Its licence as an SPDX expression, also if its manifest has the old form with slashes.
    pub fn licence_expression(&self) -> Option<String> {
        let given = self.package.license.as_ref()?;
        let alternatives: Vec<&str> = given.split('/').map(str::trim).collect();
        Some(alternatives.join(" OR "))
    }
}

/// Where the code of a crate runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrateUse {
    /// It is part of a program.
    Program,
    /// It only runs in the compiler.
    Compiler,
}

/// The crates of these programs, sorted by name and version.
pub fn shipped_crates(
    metadata: &CargoMetadata,
    programs: &[ShippedProgram],
    checksums: &BTreeMap<LockedPackage, String>,
) -> Vec<ShippedCrate> {
    let graph = CrateGraph::of_metadata(metadata);
    let roots: Vec<&str> = programs
        .iter()
        .map(|program| program.package.as_str())
        .collect();
    let in_programs = graph.reachable_crates(&roots, |package| !package.is_procedural_macro());
    let mut crates: Vec<ShippedCrate> = graph
        .reachable_crates(&roots, |_| true)
        .into_iter()
        .filter_map(|id| {
            let package = (*graph.packages.get(id)?).clone();
            let locked = LockedPackage {
                name: package.name.clone(),
                version: package.version.clone(),
            };
            Some(ShippedCrate {
                checksum: checksums.get(&locked).cloned(),
                usage: if in_programs.contains(id) {
                    CrateUse::Program
                } else {
                    CrateUse::Compiler
                },
                dependencies: graph.dependencies_of(id).map(str::to_owned).collect(),
                package,
            })
        })
        .collect();
    crates.sort_by(|a, b| {
        let by_name = a.package.name.cmp(&b.package.name);
        by_name.then_with(|| a.package.version.cmp(&b.package.version))
    });
    crates
}

struct CrateGraph<'a> {
    packages: BTreeMap<&'a str, &'a CargoPackage>,
    dependencies: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> CrateGraph<'a> {
    fn of_metadata(metadata: &'a CargoMetadata) -> Self {
        let mut dependencies: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for node in &metadata.resolve.nodes {
            let normal = node.deps.iter().filter(|needed| needed.is_normal());
            let needed = normal.map(|needed| needed.pkg.as_str()).collect();
            dependencies.insert(&node.id, needed);
        }
        Self {
            packages: metadata
                .packages
                .iter()
                .map(|package| (package.id.as_str(), package))
                .collect(),
            dependencies,
        }
    }

    fn dependencies_of(&self, id: &str) -> impl Iterator<Item = &'a str> {
        self.dependencies.get(id).into_iter().flatten().copied()
    }

    /// The crates that can be reached from the roots through crates that `follow` accepts.
    fn reachable_crates<'b>(
        &self,
        roots: &[&'b str],
        follow: impl Fn(&CargoPackage) -> bool,
    ) -> BTreeSet<&'b str>
    where
        'a: 'b,
    {
        let (mut found, mut open) = (BTreeSet::new(), roots.to_vec());
        while let Some(id) = open.pop() {
            let is_followed = self.packages.get(id).is_some_and(|package| follow(package));
            if is_followed && found.insert(id) {
                open.extend(self.dependencies_of(id));
            }
        }
        found
    }
}

#[cfg(test)]
pub mod fixtures {
    use super::*;
    use crate::cargo_metadata::{fixtures::small_metadata, shipped_programs};

    /// The crates of [`small_metadata`]. Only `tunnel` has a checksum.
    pub fn small_crates() -> Vec<ShippedCrate> {
        let metadata = small_metadata();
        let tunnel = LockedPackage {
            name: "tunnel".to_owned(),
            version: "1.0.0".to_owned(),
        };
        let checksums = BTreeMap::from([(tunnel, "abc".to_owned())]);
        shipped_crates(&metadata, &shipped_programs(&metadata), &checksums)
    }
}

#[cfg(test)]
mod tests {
    use super::{fixtures::small_crates, *};

    #[test]
    fn crates_of_tests_and_build_scripts_are_left_out_and_macros_stay_in_the_compiler() {
        let crates = small_crates();
        let found: Vec<_> = crates
            .iter()
            .map(|one| (one.package.name.as_str(), one.usage))
            .collect();
        assert_eq!(
            found,
            [
                ("derive", CrateUse::Compiler),
                ("liqo-fabric", CrateUse::Program),
                ("liqoctl", CrateUse::Program),
                ("parser", CrateUse::Compiler),
                ("tunnel", CrateUse::Program),
            ]
        );
        assert_eq!(crates[1].dependencies, ["derive", "tunnel"]);
        assert_eq!(crates[4].checksum.as_deref(), Some("abc"));
    }

    #[test]
    fn old_licences_with_slashes_become_expressions() {
        let derive = &small_crates()[0];
        assert_eq!(derive.licence_expression().unwrap(), "MIT OR Apache-2.0");
    }
}
