//! The program `liqo-playground`: `liqoctl playground` runs it in place of this one, and
//! `test network --playground` asks it for the clusters.

use std::{
    env,
    ffi::OsString,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, anyhow, ensure};
use clap::ValueEnum as _;

use crate::{cli::GlobalFlags, cluster::ClusterAccess, output::OutputFormat};

const PROGRAM: &str = "liqo-playground";

/// Replaces this process by `liqo-playground`, so it returns only on failure.
pub fn exec_playground(global: &GlobalFlags, arguments: &[OsString]) -> anyhow::Result<()> {
    let program = installed_program()?;
    let error = Command::new(&program)
        .args(shared_flags(global))
        .args(arguments)
        .exec();
    Err(anyhow!(error).context(format!("cannot run {}", program.display())))
}

/// The clusters of a playground, in its order.
pub fn cluster_accesses(instance: &str) -> anyhow::Result<Vec<ClusterAccess>> {
    let program = installed_program()?;
    let listed = Command::new(&program)
        .args(["kubeconfig", &format!("--instance={instance}")])
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    ensure!(
        listed.status.success(),
        "{}\nIf that program is of another version: `cargo playground status` builds it anew.",
        String::from_utf8_lossy(&listed.stderr).trim()
    );
    let paths = String::from_utf8_lossy(&listed.stdout);
    Ok(paths
        .lines()
        .filter(|path| !path.is_empty())
        .map(ClusterAccess::from_file)
        .collect())
}

fn installed_program() -> anyhow::Result<PathBuf> {
    let own = env::current_exe().ok();
    let directories = own
        .as_deref()
        .and_then(Path::parent)
        .map(Path::to_owned)
        .into_iter();
    let path = env::var_os("PATH").unwrap_or_default();
    find_program(directories.chain(env::split_paths(&path))).with_context(|| {
        format!(
            "cannot find the program {PROGRAM} in the directory of liqoctl or on PATH: in the source tree, `cargo playground` builds and runs it"
        )
    })
}

fn find_program(mut directories: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    directories
        .find_map(|directory| Some(directory.join(PROGRAM)).filter(|program| program.is_file()))
}

/// The flags of `liqoctl` that `liqo-playground` has, too.
fn shared_flags(global: &GlobalFlags) -> Vec<String> {
    // The default is left out, because the flag may follow among the program's own arguments.
    let format = global
        .output
        .to_possible_value()
        .filter(|_| global.output != OutputFormat::default());
    let format = format.map(|format| format!("--output={}", format.get_name()));
    format
        .into_iter()
        .chain(global.verbose.then(|| "--verbose".to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn everything_behind_playground_reaches_its_program() {
        let parse = |arguments: &[&str]| {
            let cli = Cli::try_parse_from([&["liqoctl"], arguments].concat()).unwrap();
            let Command::Playground { arguments } = cli.command else {
                unreachable!()
            };
            (
                shared_flags(&cli.global),
                arguments
                    .into_iter()
                    .map(|argument| argument.into_string().unwrap())
                    .collect::<Vec<_>>(),
            )
        };
        for given in [
            vec!["up", "--fake-nodes", "20", "--fake-node-taint=false"],
            vec!["--help"],
            vec!["up", "--help"],
        ] {
            assert_eq!(
                parse(&[vec!["playground"], given.clone()].concat()),
                (Vec::new(), given_strings(&given))
            );
        }
        let (flags, arguments) = parse(&["-v", "-o", "json", "playground", "status"]);
        assert_eq!(
            (flags.join(" ").as_str(), arguments.join(" ").as_str()),
            ("--output=json --verbose", "status")
        );
    }

    fn given_strings(given: &[&str]) -> Vec<String> {
        given
            .iter()
            .map(|argument| (*argument).to_owned())
            .collect()
    }

    #[test]
    fn a_program_that_is_nowhere_is_not_found() {
        assert_eq!(
            find_program([PathBuf::from("/nonexistent"), PathBuf::from("/proc")].into_iter()),
            None
        );
    }
}
