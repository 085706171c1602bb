//! The packages of Debian whose files are in images, and their licences.
//!
//! An image holds shared libraries and programs of the machine that builds it. Some have licences
//! that ask whoever distributes them to pass on the licence and to say where the source is. So
//! each image has the copyright files of these packages and a list with their versions.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{files::read_bytes, source_tree::run_to_end};

/// Copyright files of Debian refer to the texts of frequent licences in this folder.
const COMMON_LICENCES: &str = "/usr/share/common-licenses/";

/// An installed package.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DebianPackage {
    pub name: String,
    pub version: String,
    /// The package that it was built from, and that has its source.
    pub source: String,
    pub source_version: String,
}

impl DebianPackage {
    /// For the provenance.
    pub fn package_url(&self) -> String {
        let version = self.version.replace('+', "%2B").replace(':', "%3A");
        format!("pkg:deb/debian/{}@{version}", self.name.replace('+', "%2B"))
    }
}

/// The packages that own these files, sorted. Files without a package are left out.
pub fn owning_packages(paths: &[PathBuf]) -> Result<Vec<DebianPackage>> {
    let mut names = BTreeSet::new();
    for path in paths {
        names.extend(owner_name(path)?);
    }
    names.iter().map(|name| read_package(name)).collect()
}

/// The package of a file. Directories such as `/lib` may be links, so that packages know the file
/// by another path.
fn owner_name(path: &Path) -> Result<Option<String>> {
    let real = path
        .canonicalize()
        .with_context(|| format!("cannot find {}", path.display()))?;
    let without_usr = real
        .strip_prefix("/usr")
        .map(|rest| Path::new("/").join(rest));
    for candidate in [Some(path.to_owned()), Some(real), without_usr.ok()]
        .into_iter()
        .flatten()
    {
        let output = Command::new("dpkg-query")
            .arg("--search")
            .arg(&candidate)
            .output()
            .context("cannot run dpkg-query: images hold libraries of Debian, build them there")?;
        let printed = String::from_utf8_lossy(&output.stdout);
        if let Some(name) = parse_owner(&printed) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// The package in a line `libc6:amd64: /lib/x86_64-linux-gnu/libc.so.6`. Diversions have none.
fn parse_owner(printed: &str) -> Option<String> {
    printed
        .lines()
        .filter(|line| !line.starts_with("diversion "))
        .find_map(|line| line.split_once(": "))
        .map(|(name, _)| name.to_owned())
}

fn read_package(name: &str) -> Result<DebianPackage> {
    let format = "${Package}\t${Version}\t${source:Package}\t${source:Version}";
    let mut command = Command::new("dpkg-query");
    command.args(["--show", "--showformat", format, name]);
    let printed = run_to_end(&mut command, "dpkg-query")?;
    parse_package(&printed).with_context(|| format!("dpkg-query says nothing about {name}"))
}

fn parse_package(printed: &str) -> Option<DebianPackage> {
    let mut fields = printed.split('\t').map(str::to_owned);
    Some(DebianPackage {
        name: fields.next()?,
        version: fields.next()?,
        source: fields.next()?,
        source_version: fields.next()?,
    })
}

/// The list of packages that is in each image.
pub fn package_list(packages: &[DebianPackage]) -> String {
    let lines: Vec<String> = packages
        .iter()
        .map(|package| {
            format!(
                "{} {} (source: {} {})\n",
                package.name, package.version, package.source, package.source_version
            )
        })
        .collect();
    format!(
        "Packages of Debian that files of this image come from, unchanged. Their licences are in \
         /usr/share/doc/PACKAGE/copyright.\n\n{}",
        lines.concat()
    )
}

/// The copyright files of packages and the licences that they refer to: path and text.
pub fn copyright_files(packages: &[DebianPackage]) -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    for package in packages {
        let path = format!("/usr/share/doc/{}/copyright", package.name);
        let text = read_lossy(&path)?;
        for licence in referenced_licences(&text) {
            let path = format!("{COMMON_LICENCES}{licence}");
            // Texts also mention the folder in sentences.
            if Path::new(&path).is_file() && !files.contains_key(&path) {
                files.insert(path.clone(), read_lossy(&path)?);
            }
        }
        files.insert(path, text);
    }
    Ok(files)
}

fn read_lossy(path: &str) -> Result<String> {
    let bytes = read_bytes(Path::new(path))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The names of licences that a copyright file refers to in [`COMMON_LICENCES`].
fn referenced_licences(copyright: &str) -> BTreeSet<&str> {
    copyright
        .split(COMMON_LICENCES)
        .skip(1)
        .map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"-.".contains(c));
            let end = end.unwrap_or(rest.len());
            rest[..end].trim_end_matches('.')
        })
        .filter(|name| !name.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_file_is_the_package_that_did_not_divert_it() {
        assert_eq!(
            parse_owner("libc6:amd64: /lib/libc.so.6\n").as_deref(),
            Some("libc6:amd64")
        );
        let diverted = "diversion by x from: /usr/bin/nft\nnftables: /usr/sbin/nft\n";
        assert_eq!(parse_owner(diverted).as_deref(), Some("nftables"));
        assert_eq!(parse_owner(""), None);
    }

    #[test]
    fn a_package_names_its_source() {
        let package = parse_package("libgcc-s1\t12.2.0-14+deb12u1\tgcc-12\t12.2.0-14").unwrap();
        assert_eq!(
            package.package_url(),
            "pkg:deb/debian/libgcc-s1@12.2.0-14%2Bdeb12u1"
        );
        let list = package_list(&[package]);
        assert!(list.ends_with("\n\nlibgcc-s1 12.2.0-14+deb12u1 (source: gcc-12 12.2.0-14)\n"));
    }

    #[test]
    fn licences_are_found_in_copyright_files() {
        let text = "see /usr/share/common-licenses/GPL-2.\n`/usr/share/common-licenses/LGPL-2.1'";
        assert!(
            referenced_licences(text)
                .into_iter()
                .eq(["GPL-2", "LGPL-2.1"])
        );
    }
}
