//! Completion of names that only the cluster knows: `unpeer <TAB>`, `offload namespace <TAB>`. The
//! script of `completion` calls the hidden command `__complete` with the words of the command line.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use clap::{Arg, Command, CommandFactory as _};
use clap_complete::Shell;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use kube::{Api, ResourceExt as _, api::ListParams, config::Kubeconfig, core::PartialObjectMeta};
use liqo_api::{ForeignCluster, NamespaceOffloading, SYSTEM_NAMESPACE, labels, may_be_offloaded};

use crate::{
    cli::Cli,
    cluster::{Cluster, ClusterAccess},
    manifests::NAMESPACE,
};

/// A shell that waits longer feels stuck.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The names that can stand at the cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompletableNames {
    Contexts,
    Peers,
    Namespaces,
    OffloadedNamespaces,
    /// Pods of this namespace, or of that of the context.
    Pods(Option<String>),
    Tokens,
}

/// What to complete.
#[derive(Clone, Debug)]
pub struct CompletionRequest {
    pub names: CompletableNames,
    /// What the user has typed of it.
    pub prefix: String,
    pub access: ClusterAccess,
}

/// What can be completed after these words, the last of which is the one at the cursor; nothing if
/// the cluster knows no names for it.
pub fn completion_request(words: &[String]) -> Option<CompletionRequest> {
    let mut root = Cli::command();
    root.build();
    let (current, before) = words.split_last()?;
    let line = PartialCommandLine::parse_words(&root, before);
    let names = match (&line.open_flag, current.starts_with('-')) {
        (Some(flag), _) => names_of_flag(&line.path, flag)?,
        (None, true) => return None,
        (None, false) => line.names_of_argument()?,
    };
    let access = ClusterAccess {
        kubeconfig: line.values.get("kubeconfig").map(PathBuf::from),
        context: line.values.get("context").cloned(),
    };
    Some(CompletionRequest {
        names,
        prefix: current.clone(),
        access,
    })
}

/// A command line up to the cursor.
struct PartialCommandLine<'a> {
    command: &'a Command,
    path: Vec<&'a str>,
    /// Arguments of the command that are no flags.
    arguments: usize,
    /// Values of flags, by the name of the field.
    values: BTreeMap<String, String>,
    /// A flag whose value is at the cursor.
    open_flag: Option<String>,
}

impl<'a> PartialCommandLine<'a> {
    fn parse_words(root: &'a Command, words: &[String]) -> Self {
        let mut line = Self {
            command: root,
            path: Vec::new(),
            arguments: 0,
            values: BTreeMap::new(),
            open_flag: None,
        };
        for word in words {
            if let Some(flag) = line.open_flag.take() {
                line.values.insert(flag, word.clone());
            } else if let Some((arg, value)) = line.flag_with_value(word) {
                match value {
                    Some(value) => drop(line.values.insert(arg, value)),
                    None => line.open_flag = Some(arg),
                }
            } else if word.starts_with('-') {
                // A flag without a value.
            } else if let Some(command) = line
                .command
                .find_subcommand(word)
                .filter(|_| line.arguments == 0)
            {
                line.command = command;
                line.path.push(command.get_name());
            } else {
                line.arguments += 1;
            }
        }
        line
    }

    /// A flag that takes a value, and its value if that is in the same word.
    fn flag_with_value(&self, word: &str) -> Option<(String, Option<String>)> {
        let (name, value) = word
            .split_once('=')
            .map_or((word, None), |(name, value)| (name, Some(value.to_owned())));
        let arg = self
            .command
            .get_arguments()
            .find(|arg| is_flag(arg, name))
            .filter(|arg| arg.get_action().takes_values())?;
        Some((arg.get_id().to_string(), value))
    }

    fn names_of_argument(&self) -> Option<CompletableNames> {
        // The last argument may be repeated.
        let arguments: Vec<&Arg> = self.command.get_positionals().collect();
        let argument = arguments
            .get(self.arguments)
            .or(arguments.last().filter(|last| is_repeated(last)))?;
        match (self.path.as_slice(), argument.get_id().as_str()) {
            (["offload", "namespace"], "names") => Some(CompletableNames::Namespaces),
            (["unoffload", "namespace"], "names") => Some(CompletableNames::OffloadedNamespaces),
            (["explain", "pod"], "pod") | (["move", "pods"], "names") => Some(
                CompletableNames::Pods(self.values.get("namespace").cloned()),
            ),
            (["token", "delete"], "name") => Some(CompletableNames::Tokens),
            (["unpeer"], "name") | (_, "peer") => Some(CompletableNames::Peers),
            _ => None,
        }
    }
}

/// Whether this is the flag, with its dashes.
fn is_flag(arg: &Arg, name: &str) -> bool {
    match name.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => name
            .strip_prefix('-')
            .is_some_and(|short| arg.get_short().is_some_and(|own| short == own.to_string())),
    }
}

fn is_repeated(arg: &Arg) -> bool {
    arg.get_num_args()
        .is_some_and(|range| range.max_values() > 1)
}

fn names_of_flag(path: &[&str], flag: &str) -> Option<CompletableNames> {
    match (path, flag) {
        (_, "context" | "remote_context") => Some(CompletableNames::Contexts),
        (["unoffload", _], "namespace") => Some(CompletableNames::OffloadedNamespaces),
        (_, "namespace") => Some(CompletableNames::Namespaces),
        (_, "provider" | "peer") | (["broker", _], "peers") | (["move", _], "from" | "to") => {
            Some(CompletableNames::Peers)
        }
        _ => None,
    }
}

/// The names, in order. None where the cluster does not answer soon.
pub async fn complete_names(wanted: &CompletionRequest) -> Vec<String> {
    let found = tokio::time::timeout(TIMEOUT, read_names(wanted)).await;
    let mut names = found.ok().and_then(Result::ok).unwrap_or_default();
    // A name is one word for the shell.
    names.retain(|name| name.starts_with(&wanted.prefix) && !name.contains(char::is_whitespace));
    names.sort();
    names
}

async fn read_names(wanted: &CompletionRequest) -> anyhow::Result<Vec<String>> {
    if wanted.names == CompletableNames::Contexts {
        let kubeconfig = match &wanted.access.kubeconfig {
            Some(path) => Kubeconfig::read_from(path)?,
            None => Kubeconfig::read()?,
        };
        return Ok(kubeconfig
            .contexts
            .into_iter()
            .map(|context| context.name)
            .collect());
    }
    let cluster = Cluster::connect(&wanted.access).await?;
    let (client, all) = (cluster.client.clone(), ListParams::default());
    Ok(match &wanted.names {
        CompletableNames::Contexts => Vec::new(),
        CompletableNames::Peers => names_of_objects(
            &Api::<ForeignCluster>::all(client)
                .list_metadata(&all)
                .await?
                .items,
        ),
        CompletableNames::Namespaces => {
            let mut found = Api::<Namespace>::all(client)
                .list_metadata(&all)
                .await?
                .items;
            found.retain(|one| !one.labels().contains_key(labels::NAMESPACE_KIND));
            found.retain(|one| may_be_offloaded(&one.name_any(), SYSTEM_NAMESPACE));
            names_of_objects(&found)
        }
        CompletableNames::OffloadedNamespaces => {
            let found = Api::<NamespaceOffloading>::all(client)
                .list_metadata(&all)
                .await?
                .items;
            found
                .iter()
                .filter_map(kube::ResourceExt::namespace)
                .collect()
        }
        CompletableNames::Pods(namespace) => {
            let namespace = namespace
                .as_deref()
                .unwrap_or_else(|| cluster.client.default_namespace())
                .to_owned();
            names_of_objects(
                &Api::<Pod>::namespaced(client, &namespace)
                    .list_metadata(&all)
                    .await?
                    .items,
            )
        }
        CompletableNames::Tokens => {
            let tokens = ListParams::default().labels(labels::PEERING_TOKEN);
            names_of_objects(
                &Api::<Secret>::namespaced(client, NAMESPACE)
                    .list_metadata(&tokens)
                    .await?
                    .items,
            )
        }
    })
}

fn names_of_objects<K>(objects: &[PartialObjectMeta<K>]) -> Vec<String> {
    objects
        .iter()
        .filter_map(|object| object.metadata.name.clone())
        .collect()
}

/// The completion script of a shell. Bash, zsh and fish also complete names that only the cluster
/// knows.
pub fn completion_script(shell: Shell) -> anyhow::Result<String> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "liqoctl", &mut script);
    let names = match shell {
        Shell::Bash => BASH,
        Shell::Zsh => ZSH,
        Shell::Fish => FISH,
        _ => "",
    };
    Ok(String::from_utf8(script)? + names)
}

const BASH: &str = r#"
_liqoctl_with_names() {
    local names
    names=$("${COMP_WORDS[0]}" __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if [[ -n "${names}" ]]; then
        COMPREPLY=( $(compgen -W "${names}" -- "${COMP_WORDS[COMP_CWORD]}") )
    else
        _liqoctl "$@"
    fi
}
complete -F _liqoctl_with_names -o bashdefault -o default liqoctl
"#;

const ZSH: &str = r#"
_liqoctl_with_names() {
    local -a names
    names=(${(f)"$(${words[1]} __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( ${#names} )); then
        compadd -a names
    else
        _liqoctl "$@"
    fi
}
compdef _liqoctl_with_names liqoctl
"#;

const FISH: &str = r#"
complete -c liqoctl -f -n 'not string match -q -- "-*" (commandline -ct)' -a '(liqoctl __complete -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<CompletableNames> {
        completion_request(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
            .map(|wanted| wanted.names)
    }

    #[test]
    fn names_of_the_cluster_are_completed_where_a_command_takes_them() {
        for (line, names) in [
            ("unpeer ", Some(CompletableNames::Peers)),
            ("unpeer mi", Some(CompletableNames::Peers)),
            ("unpeer milan ", None),
            ("approve ", Some(CompletableNames::Peers)),
            ("offer accept ", Some(CompletableNames::Peers)),
            ("usage ", Some(CompletableNames::Peers)),
            ("receipt list ", Some(CompletableNames::Peers)),
            ("policy explain ", Some(CompletableNames::Peers)),
            ("catalog ", Some(CompletableNames::Peers)),
            ("offload namespace ", Some(CompletableNames::Namespaces)),
            ("offload ns a b ", Some(CompletableNames::Namespaces)),
            (
                "unoffload namespace --yes ",
                Some(CompletableNames::OffloadedNamespaces),
            ),
            (
                "unoffload ns -n ",
                Some(CompletableNames::OffloadedNamespaces),
            ),
            ("offload ns --namespace-selector ", None),
            ("unoffload ns --namespace-selector ", None),
            (
                "move pods -n demo web-a ",
                Some(CompletableNames::Pods(Some("demo".into()))),
            ),
            ("move pods --from ", Some(CompletableNames::Peers)),
            ("move pods --to ", Some(CompletableNames::Peers)),
            ("explain pod ", Some(CompletableNames::Pods(None))),
            (
                "explain pod -n demo ",
                Some(CompletableNames::Pods(Some("demo".into()))),
            ),
            ("explain pod -n ", Some(CompletableNames::Namespaces)),
            ("token delete ", Some(CompletableNames::Tokens)),
            ("status --context ", Some(CompletableNames::Contexts)),
            ("status ", None),
            ("unpeer --", None),
            ("unpeer --timeout ", None),
            ("", None),
        ] {
            assert_eq!(of(line), names, "{line:?}");
        }
    }

    #[test]
    fn the_cluster_that_the_line_names_is_asked() {
        let words = ["--kubeconfig=file", "unpeer", "--context", "rome", "mi"].map(str::to_owned);
        let wanted = completion_request(&words).unwrap();
        assert_eq!(
            (wanted.prefix.as_str(), wanted.access.flags().as_str()),
            ("mi", " --kubeconfig file --context rome")
        );
    }

    #[test]
    fn the_scripts_ask_for_names() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = completion_script(shell).unwrap();
            assert!(
                script.contains("liqoctl") && script.contains("__complete --"),
                "{shell}"
            );
        }
    }
}
