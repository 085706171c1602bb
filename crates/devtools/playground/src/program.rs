//! A program of a cluster: its version, where it is built, and where it is kept.

use std::{
    env,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::{Path, PathBuf},
};

/// The version of Kubernetes that the clusters run.
pub const KUBERNETES_VERSION: &str = "v1.34.4";

/// A folder with a go.mod file of ours that names programs as its tools, or holds their `main`
/// packages.
#[derive(Debug)]
pub(crate) struct Module {
    pub name: &'static str,
    /// Paths in the folder, and contents.
    pub files: &'static [(&'static str, &'static str)],
    pub linker_flags: &'static str,
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
        // The programs of Kubernetes share a folder, but for those with a package of ours.
        let folder = if self.version == KUBERNETES_VERSION {
            self.module.name
        } else {
            self.name
        };
        let revision = self.revision().unwrap_or_default();
        cache()
            .join(format!("{folder}-{}{revision}", self.version))
            .join(self.name)
    }

    /// Differs whenever the program's own package differs; nothing if the package is not ours.
    fn revision(&self) -> Option<String> {
        let package = self.package.strip_prefix("./")?;
        let mut hasher = DefaultHasher::new();
        for (path, text) in self
            .module
            .files
            .iter()
            .filter(|(path, _)| Path::new(path).starts_with(package))
        {
            (path, text).hash(&mut hasher);
        }
        Some(format!("-{:016x}", hasher.finish()))
    }

    /// The version among the words of a text, if it is one that may be used.
    pub fn accepted_version<'a>(&self, text: &'a str) -> Option<&'a str> {
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.'));
        let wanted = self.version.trim_start_matches('v');
        words
            .map(|word| word.trim_start_matches('v'))
            .find(|word| match self.accepted {
                Accepted::Exact => *word == wanted,
                Accepted::SameMinor => {
                    minor(word).is_some_and(|found| Some(found) == minor(wanted))
                }
            })
    }
}

/// `1.34` of `1.34.4`; nothing if this is no version of three numbers.
fn minor(version: &str) -> Option<&str> {
    let (minor, patch) = version.rsplit_once('.')?;
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    let (first, second) = minor.split_once('.')?;
    [first, second, patch]
        .into_iter()
        .all(is_number)
        .then_some(minor)
}

/// `$XDG_CACHE_HOME/liqo-playground`, by default `~/.cache/liqo-playground`. Only this directory
/// remains after `down`.
pub fn cache() -> PathBuf {
    let base = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute());
    let home = || PathBuf::from(env::var_os("HOME").unwrap_or_else(|| "/root".into()));
    base.unwrap_or_else(|| home().join(".cache"))
        .join("liqo-playground")
}

#[cfg(test)]
mod tests {
    use super::*;

    static FIRST: Module = Module {
        name: "x",
        files: &[("go.mod", "a"), ("e2e/main.go", "package main")],
        linker_flags: "",
    };
    static OTHER_VERSIONS: Module = Module {
        name: "x",
        files: &[("go.mod", "b"), ("e2e/main.go", "package main")],
        linker_flags: "",
    };
    static OTHER_PACKAGE: Module = Module {
        name: "x",
        files: &[("go.mod", "a"), ("e2e/main.go", "package other")],
        linker_flags: "",
    };

    #[test]
    fn a_program_of_ours_is_built_again_when_it_changes() {
        let cached = |module, package| {
            let accepted = Accepted::Exact;
            Program {
                name: "e2e",
                version: "v1.0.0",
                module,
                package,
                version_flag: "",
                accepted,
            }
            .cached()
        };
        let first = cached(&FIRST, "./e2e");
        assert_eq!(
            first,
            cached(&OTHER_VERSIONS, "./e2e"),
            "the version is in the path anyway"
        );
        assert_ne!(first, cached(&OTHER_PACKAGE, "./e2e"));
        assert_eq!(
            cached(&FIRST, "k8s.io/x"),
            cached(&OTHER_PACKAGE, "k8s.io/x")
        );
    }
}
