//! A program of a cluster: its version, where it is built, and where it is kept.

use std::{
    env,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::PathBuf,
};

/// The version of Kubernetes that the clusters run.
pub const KUBERNETES_VERSION: &str = "v1.34.4";

/// A folder with a go.mod file of ours that names programs as its tools, or holds their `main` packages.
#[derive(Debug)]
pub(crate) struct Module {
    pub name: &'static str,
    /// Paths in the folder, and contents.
    pub files: &'static [(&'static str, &'static str)],
    pub linker_flags: &'static str,
}

impl Module {
    /// Differs whenever a package of ours in it differs; nothing if it holds none.
    fn revision(&self) -> Option<String> {
        let own: Vec<_> = self.files.iter().filter(|(path, _)| !path.starts_with("go.")).collect();
        let mut hasher = DefaultHasher::new();
        own.hash(&mut hasher);
        (!own.is_empty()).then(|| format!("-{:016x}", hasher.finish()))
    }
}

/// A program of a cluster, or one that only tests and users run.
#[derive(Debug)]
pub(crate) struct Program {
    pub name: &'static str,
    pub version: &'static str,
    pub module: &'static Module,
    pub package: &'static str,
    pub version_flag: &'static str,
    pub accepted: Accepted,
}

/// The versions of a program on PATH or in `$KUBEBUILDER_ASSETS` that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accepted {
    Exact,
    /// Any patch level of the same minor version.
    SameMinor,
}

impl Program {
    /// Where it is kept after it was built.
    pub fn cached(&self) -> PathBuf {
        // The programs of Kubernetes share a folder.
        let folder = if self.version == KUBERNETES_VERSION { self.module.name } else { self.name };
        let revision = self.module.revision().unwrap_or_default();
        cache().join(format!("{folder}-{}{revision}", self.version)).join(self.name)
    }

    /// The version among the words of a text, if it is one that may be used.
    pub fn accepted_version<'a>(&self, text: &'a str) -> Option<&'a str> {
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.'));
        let wanted = self.version.trim_start_matches('v');
        words.map(|word| word.trim_start_matches('v')).find(|word| match self.accepted {
            Accepted::Exact => *word == wanted,
            Accepted::SameMinor => minor(word).is_some_and(|found| Some(found) == minor(wanted)),
        })
    }
}

/// `1.34` of `1.34.4`; nothing if this is no version of three numbers.
fn minor(version: &str) -> Option<&str> {
    let (minor, patch) = version.rsplit_once('.')?;
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    let (first, second) = minor.split_once('.')?;
    [first, second, patch].into_iter().all(is_number).then_some(minor)
}

/// `$XDG_CACHE_HOME/liqo-playground`, by default `~/.cache/liqo-playground`. Only this directory remains after `down`.
pub fn cache() -> PathBuf {
    let base = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || PathBuf::from(env::var_os("HOME").unwrap_or_else(|| "/root".into()));
    base.unwrap_or_else(|| home().join(".cache")).join("liqo-playground")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_ours_is_built_again_when_it_changes() {
        let revision = |files| Module { name: "x", files, linker_flags: "" }.revision();
        assert_eq!(revision(&[("go.mod", "a"), ("go.sum", "b")]), None);
        let first = revision(&[("go.mod", "a"), ("e2e/main.go", "package main")]);
        assert_eq!(first, revision(&[("go.mod", "b"), ("e2e/main.go", "package main")]));
        assert!(first.is_some() && first != revision(&[("go.mod", "a"), ("e2e/main.go", "package other")]));
    }
}
