use std::{
    borrow::Cow,
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{Namespace, Pod},
};
use kube::{
    Api, Client, Config, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{io::AsyncWriteExt as _, process::Command};

use crate::{
    eventually,
    get::Kinds,
    wait::{PATIENCE, show_long},
};

/// Timeout of a command.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(10);
/// How long each step of a command of liqoctl that waits for managers may take.
const LIQOCTL_TIMEOUT: &str = "6m";
/// Environment of kubectl, which ends before it pays to collect garbage, or to use several
/// processors. The limit is for commands that move much data.
pub const SHORT_LIVED: [(&str, &str); 3] = [
    ("GOGC", "off"),
    ("GOMEMLIMIT", "200MiB"),
    ("GOMAXPROCS", "1"),
];

/// The outcome of a command.
#[derive(Debug, Clone)]
pub struct Output {
    /// Whether its exit code was 0.
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

/// A cluster, with the programs that a user would use.
#[derive(Clone)]
pub struct Cluster {
    pub name: String,
    /// Path of the administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// The administrator's client.
    pub client: Client,
    /// Audit log of the API server: one JSON document on each line.
    pub audit_log: PathBuf,
    programs: Programs,
    kinds: Kinds,
    /// Namespaces that scenarios have ended.
    ended: Arc<Mutex<Vec<EndedNamespace>>>,
}

/// Later another one may have the same name.
#[derive(Clone, PartialEq, Eq)]
struct EndedNamespace {
    name: String,
    uid: Option<String>,
}

/// Paths of the programs.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub kubectl: PathBuf,
    pub liqoctl: PathBuf,
}

impl Cluster {
    pub(crate) async fn new(
        name: &str,
        kubeconfig: PathBuf,
        audit_log: PathBuf,
        programs: Programs,
    ) -> Result<Self> {
        let client = client(&kubeconfig).await?;
        Ok(Self {
            name: name.to_owned(),
            kubeconfig,
            client,
            audit_log,
            programs,
            kinds: Kinds::default(),
            ended: Arc::default(),
        })
    }

    /// An API for the objects of a namespace.
    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Runs kubectl and returns its standard output. Fails if it fails.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        succeed("kubectl", arguments, self.try_kubectl(arguments).await?)
    }

    /// Runs kubectl, which may fail. A timeout is for a machine that is as fast as those of the
    /// developers.
    pub async fn try_kubectl(&self, arguments: &[&str]) -> Result<Output> {
        let patient: Vec<_> = arguments.iter().map(|argument| patient(argument)).collect();
        let patient: Vec<_> = patient.iter().map(AsRef::as_ref).collect();
        run(&self.programs.kubectl, &self.kubeconfig, &patient, None).await
    }

    /// Applies manifests with kubectl.
    pub async fn apply(&self, yaml: &str) -> Result<()> {
        let arguments = ["apply", "-f", "-"];
        let output = run(
            &self.programs.kubectl,
            &self.kubeconfig,
            &arguments,
            Some(yaml),
        )
        .await?;
        succeed("kubectl", &arguments, output).map(drop)
    }

    /// Asks the API server whether it would accept a manifest.
    pub async fn try_dry_run(&self, yaml: &str) -> Result<Output> {
        let arguments = ["apply", "--dry-run=server", "-f", "-"];
        run(
            &self.programs.kubectl,
            &self.kubeconfig,
            &arguments,
            Some(yaml),
        )
        .await
    }

    /// Runs liqoctl and returns its standard output. Fails if it fails.
    pub async fn liqoctl(&self, arguments: &[&str]) -> Result<String> {
        succeed("liqoctl", arguments, self.try_liqoctl(arguments).await?)
    }

    /// Peers with a provider as a user would; returns when its virtual node is Ready.
    pub async fn peer_with(&self, provider: &Self) -> Result<()> {
        self.liqoctl(&[
            "peer",
            "--remote-kubeconfig",
            &provider.kubeconfig.display().to_string(),
        ])
        .await?;
        self.wait_for(&[&format!("node/{}", provider.name)], "condition=Ready", 90)
            .await
    }

    /// Runs liqoctl, which may fail.
    pub async fn try_liqoctl(&self, arguments: &[&str]) -> Result<Output> {
        let waits = matches!(arguments.first(), Some(&("peer" | "offload")));
        let is_limited = arguments
            .iter()
            .any(|argument| ["--timeout", "--no-wait"].contains(argument));
        let patient = if waits && !is_limited {
            [arguments, &["--timeout", LIQOCTL_TIMEOUT]].concat()
        } else {
            arguments.to_vec()
        };
        run(&self.programs.liqoctl, &self.kubeconfig, &patient, None).await
    }

    /// Runs a command line that the docs print, in this directory, and returns its standard output.
    /// Fails if it fails.
    pub async fn printed(&self, line: &str, directory: &Path) -> Result<String> {
        let programs = [
            ("kubectl", &self.programs.kubectl),
            ("liqoctl", &self.programs.liqoctl),
        ];
        let functions = programs.map(|(name, program)| {
            format!(
                "{name}() {{ '{}' --kubeconfig '{}' \"$@\"; }}\n",
                program.display(),
                self.kubeconfig.display()
            )
        });
        let mut command = Command::new("sh");
        command
            .envs(SHORT_LIVED)
            .args(["-c", &format!("{}{line}", functions.concat())])
            .current_dir(directory);
        succeed("sh -c", &[line], outcome(command, line, None).await?)
    }

    /// A kubectl command line for a shell.
    pub fn kubectl_line(&self, arguments: &str) -> String {
        format!(
            "{} --kubeconfig {} {arguments}",
            self.programs.kubectl.display(),
            self.kubeconfig.display()
        )
    }

    /// Creates a namespace, offloads it with this strategy, and waits until every selected provider
    /// has it.
    pub async fn offloaded_namespace(&self, name: &str, strategy: &str) -> Result<()> {
        // A scenario before this one may have had a namespace of this name, in a run before this
        // one if the clusters were kept.
        let namespaces = Api::<Namespace>::all(self.client.clone());
        eventually(
            &format!("no former namespace {}/{name} ends any more", self.name),
            Duration::from_mins(2),
            || async {
                let former = namespaces.get_metadata_opt(name).await?;
                Ok(former
                    .is_none_or(|former| former.metadata.deletion_timestamp.is_none())
                    .then_some(()))
            },
        )
        .await?;
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(name.to_owned());
        namespaces
            .create(&PostParams::default(), &namespace)
            .await?;
        // It returns when the NamespaceOffloading is Ready.
        self.liqoctl(&[
            "offload",
            "namespace",
            name,
            "--pod-offloading-strategy",
            strategy,
        ])
        .await
        .map(drop)
    }

    /// `kubectl wait` on what `target` names.
    pub async fn wait_for(&self, target: &[&str], condition: &str, seconds: u32) -> Result<()> {
        let (condition, timeout) = (
            format!("--for={condition}"),
            format!("--timeout={seconds}s"),
        );
        let mut arguments = vec!["wait", condition.as_str(), timeout.as_str()];
        arguments.extend(target);
        let until = Instant::now() + Duration::from_secs((seconds * PATIENCE).into());
        loop {
            match self.kubectl(&arguments).await.map(drop) {
                // `kubectl wait` fails at once if the object does not exist yet.
                Err(error)
                    if format!("{error:#}").contains("NotFound") && Instant::now() < until =>
                {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Deletes a namespace and waits until it is gone, here and wherever it was offloaded to.
    pub async fn delete_namespace(&self, name: &str) -> Result<()> {
        self.kubectl(&["delete", "namespace", name, "--wait", "--timeout=120s"])
            .await
            .map(drop)
    }

    /// Ends a scenario's namespace: deletes it, and waits until its pods are gone. Kubernetes then
    /// needs 5 to 20 seconds more, because its namespace controller looks again so rarely;
    /// [`Self::ended_namespaces_are_gone`] waits for that.
    pub async fn end_namespace(&self, name: &str) -> Result<()> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let uid = namespaces.get_metadata(name).await?.uid();
        namespaces.delete(name, &DeleteParams::default()).await?;
        self.ended.lock().push(EndedNamespace {
            name: name.to_owned(),
            uid,
        });
        let pods = self.api::<Pod>(name);
        eventually(
            &format!("the pods of {}/{name} are gone", self.name),
            Duration::from_mins(2),
            || async {
                // Until the namespace controller has started, a Deployment may have pods whose
                // creation was under way.
                pods.delete_collection(&DeleteParams::default(), &ListParams::default())
                    .await?;
                Ok(pods
                    .list_metadata(&ListParams::default())
                    .await?
                    .items
                    .is_empty()
                    .then_some(()))
            },
        )
        .await
    }

    /// Waits until the namespaces that scenarios have ended are gone, here and wherever they were
    /// offloaded to.
    pub async fn ended_namespaces_are_gone(&self) -> Result<()> {
        let ended = self.ended.lock().clone();
        let namespaces = Api::<Namespace>::all(self.client.clone());
        for namespace in &ended {
            let EndedNamespace { name, uid } = namespace;
            eventually(
                &format!("the namespace {}/{name} is gone", self.name),
                Duration::from_mins(2),
                || async {
                    let now = namespaces.get_metadata_opt(name).await?;
                    Ok(now.is_none_or(|now| now.uid() != *uid).then_some(()))
                },
            )
            .await?;
            self.ended.lock().retain(|other| other != namespace);
        }
        Ok(())
    }

    /// The object or list that `kubectl get` with these arguments finds, as JSON. For the arguments
    /// see `get.rs`.
    pub async fn object(&self, arguments: &[&str]) -> Result<Option<Value>> {
        self.kinds.get(&self.client, arguments).await
    }

    /// The pods that match this label selector.
    pub async fn pods(&self, namespace: &str, selector: &str) -> Result<Vec<Pod>> {
        Ok(self
            .api::<Pod>(namespace)
            .list(&ListParams::default().labels(selector))
            .await?
            .items)
    }

    /// Waits until exactly `count` pods match this selector and all are Ready, and returns them.
    pub async fn ready_pods(
        &self,
        namespace: &str,
        selector: &str,
        count: usize,
    ) -> Result<Vec<Pod>> {
        let what = format!("{count} ready pods {selector} in {}/{namespace}", self.name);
        eventually(&what, Duration::from_secs(90), || async {
            let pods = self.pods(namespace, selector).await?;
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            if ready == count && pods.len() == count {
                return Ok(Some(pods));
            }
            let states: Vec<_> = pods.iter().map(state).collect();
            bail!("{ready} of {} are ready: {states:?}", pods.len())
        })
        .await
    }

    /// The objects of the list that `kubectl get` with these arguments finds, as JSON.
    pub async fn items(&self, arguments: &[&str]) -> Result<Vec<Value>> {
        let list = self.object(arguments).await?.unwrap_or_default();
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// The name of this namespace at `provider`.
    pub async fn remote_namespace(&self, namespace: &str, provider: &Self) -> Result<String> {
        let offloading = self
            .object(&["-n", namespace, "namespaceoffloading", "offloading"])
            .await?
            .context("the namespace is not offloaded")?;
        let id = provider.cluster_id().await?;
        let remote = offloading["status"]["remoteNamespaces"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|remote| remote["clusterID"] == id.as_str())
            .and_then(|remote| remote["namespace"].as_str())
            .with_context(|| {
                format!(
                    "{namespace} is not mapped at {}: {offloading:#}",
                    provider.name
                )
            })?;
        Ok(remote.to_owned())
    }

    /// The replica of a consumer's `ConfigMap` or Secret (`kind` is `configmaps` or `secrets`) in a
    /// namespace of this cluster. Its name begins with the one at home.
    pub async fn replica(&self, namespace: &str, kind: &str, home: &str) -> Result<Option<Value>> {
        let start = format!("{home}-liqo-");
        let replicas = self
            .items(&["-n", namespace, kind, "-l", "liqo.io/reflected=true"])
            .await?;
        Ok(replicas.into_iter().find(|replica| {
            replica["metadata"]["name"]
                .as_str()
                .is_some_and(|name| name.starts_with(&start))
        }))
    }

    /// This cluster's ID.
    pub async fn cluster_id(&self) -> Result<String> {
        let config = self
            .object(&["clusterconfig", "liqo"])
            .await?
            .context("Liqo is not installed")?;
        config["status"]["clusterID"]
            .as_str()
            .map(str::to_owned)
            .context("the cluster has no ID yet")
    }

    /// Restarts the manager, and waits until the new one is available.
    pub async fn restart_manager(&self) -> Result<()> {
        self.kubectl(&[
            "-n",
            "liqo",
            "rollout",
            "restart",
            "deployment/liqo-controller-manager",
        ])
        .await?;
        self.start_manager().await
    }

    /// Scales the manager to zero and waits until it is gone. It releases its lease.
    pub async fn stop_manager(&self) -> Result<()> {
        self.ended_namespaces_are_gone().await?;
        self.kubectl(&[
            "-n",
            "liqo",
            "scale",
            "deployment/liqo-controller-manager",
            "--replicas=0",
        ])
        .await?;
        let gone = [
            "-n",
            "liqo",
            "pods",
            "-l",
            "app.kubernetes.io/name=liqo-controller-manager",
        ];
        self.wait_for(&gone, "delete", 60).await?;
        let lease = self
            .object(&["-n", "liqo", "lease", "liqo-controller-manager"])
            .await?
            .unwrap_or_default();
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        ensure!(
            holder.is_empty(),
            "the manager of {} ended and still holds its lease as {holder}",
            self.name
        );
        Ok(())
    }

    /// Scales the manager to one and waits until it is available.
    pub async fn start_manager(&self) -> Result<()> {
        self.kubectl(&[
            "-n",
            "liqo",
            "scale",
            "deployment/liqo-controller-manager",
            "--replicas=1",
        ])
        .await?;
        self.kubectl(&[
            "-n",
            "liqo",
            "rollout",
            "status",
            "deployment/liqo-controller-manager",
            "--timeout=90s",
        ])
        .await
        .map(drop)
    }

    /// The same cluster with the rights of this token only.
    pub async fn with_token(&self, token: &str, kubeconfig: &Path) -> Result<Self> {
        let mut text = serde_json::to_value(Kubeconfig::read_from(&self.kubeconfig)?)?;
        for user in text["users"].as_array_mut().into_iter().flatten() {
            user["user"] = serde_json::json!({ "token": token });
        }
        std::fs::write(kubeconfig, text.to_string())?;
        Self::new(
            &self.name,
            kubeconfig.to_owned(),
            self.audit_log.clone(),
            self.programs.clone(),
        )
        .await
    }

    /// How many bytes the audit log has now.
    pub fn audit_length(&self) -> Result<u64> {
        Ok(std::fs::metadata(&self.audit_log)?.len())
    }

    /// The writes of Liqo's service accounts after this position in the audit log, except writes of
    /// leases and reviews.
    pub fn liqo_writes(&self, from: u64) -> Result<Vec<String>> {
        let mut writes = Vec::new();
        for event in self.audited(from, "system:serviceaccount:liqo")? {
            let text = |pointer: &str| {
                event
                    .pointer(pointer)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            let namespaces = ["liqo:", "liqo-fabric:"];
            let account = text("/user/username").strip_prefix("system:serviceaccount:");
            let is_ours = account.is_some_and(|account| {
                namespaces
                    .iter()
                    .any(|namespace| account.starts_with(namespace))
            });
            let is_write = matches!(
                text("/verb"),
                "create" | "update" | "patch" | "delete" | "deletecollection"
            );
            let is_question = text("/objectRef/resource").ends_with("reviews");
            let is_exempt = is_question || text("/objectRef/resource") == "leases";
            if is_ours && is_write && !is_exempt && text("/stage") == "ResponseComplete" {
                let part = text("/objectRef/subresource");
                let code = event
                    .pointer("/responseStatus/code")
                    .and_then(Value::as_u64)
                    .unwrap_or_default();
                writes.push(format!(
                    "{} {} {}/{}{} by {}{}",
                    text("/verb"),
                    text("/objectRef/resource"),
                    text("/objectRef/namespace"),
                    text("/objectRef/name"),
                    if part.is_empty() {
                        String::new()
                    } else {
                        format!("/{part}")
                    },
                    text("/user/username"),
                    if code < 400 {
                        String::new()
                    } else {
                        format!(", which failed with {code}")
                    }
                ));
            }
        }
        Ok(writes)
    }

    /// The names of the pods that Kubernetes declared as not ready after this position in the audit
    /// log, because their node was silent.
    pub fn marked_not_ready(&self, from: u64) -> Result<Vec<String>> {
        let is_mark = |event: &Value| {
            event["user"]["username"] == "system:serviceaccount:kube-system:node-controller"
                && event["objectRef"]["resource"] == "pods"
                && event["objectRef"]["subresource"] == "status"
        };
        let name = |event: Value| event["objectRef"]["name"].as_str().map(str::to_owned);
        Ok(self
            .audited(from, "node-controller")?
            .into_iter()
            .filter(is_mark)
            .filter_map(name)
            .collect())
    }

    /// The audited requests after this position in the audit log in whose lines this text occurs.
    fn audited(&self, from: u64, text: &str) -> Result<Vec<Value>> {
        let mut log = File::open(&self.audit_log)?;
        log.seek(SeekFrom::Start(from))?;
        let mut lines = String::new();
        log.read_to_string(&mut lines)?;
        // The API server may not have finished the last line, now or when the position was taken.
        Ok(lines
            .lines()
            .filter(|line| line.contains(text))
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect())
    }

    /// The requests that wanted to change something after this position in the audit log and were
    /// denied (401 or 403): those of consumers, and those of which nobody knows whose they are.
    pub fn denied_consumers(&self, from: u64) -> Result<Vec<String>> {
        let mut denied = Vec::new();
        for event in self.audited(from, "responseStatus")? {
            let text = |pointer: &str| {
                event
                    .pointer(pointer)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            let code = event
                .pointer("/responseStatus/code")
                .and_then(Value::as_u64)
                .unwrap_or_default();
            let user = text("/user/username");
            let is_consumer = user.starts_with("system:serviceaccount:liqo:liqo-consumer-");
            if matches!(code, 401 | 403) && (is_consumer || user.is_empty()) {
                denied.push(format!(
                    "{code}: {} {} by {user:?}",
                    text("/verb"),
                    text("/requestURI")
                ));
            }
        }
        Ok(denied)
    }
}

/// The argument as it is, or `--timeout=` with [`PATIENCE`] times as many seconds.
fn patient(argument: &str) -> Cow<'_, str> {
    let seconds = argument
        .strip_prefix("--timeout=")
        .and_then(|timeout| timeout.strip_suffix('s')?.parse::<u32>().ok());
    seconds.map_or(Cow::Borrowed(argument), |seconds| {
        Cow::Owned(format!("--timeout={}s", seconds * PATIENCE))
    })
}

/// A client for the cluster of this kubeconfig.
pub(crate) async fn client(kubeconfig: &Path) -> Result<Client> {
    let read = Kubeconfig::read_from(kubeconfig)
        .with_context(|| format!("reading {}", kubeconfig.display()))?;
    Ok(Client::try_from(
        Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?,
    )?)
}

async fn run(
    program: &Path,
    kubeconfig: &Path,
    arguments: &[&str],
    input: Option<&str>,
) -> Result<Output> {
    let mut command = Command::new(program);
    command
        .envs(SHORT_LIVED)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(arguments);
    outcome(
        command,
        &format!("{} {}", program.display(), arguments.join(" ")),
        input,
    )
    .await
}

/// Runs a command until it ends. `what` names it in messages.
async fn outcome(mut command: Command, what: &str, input: Option<&str>) -> Result<Output> {
    let begun = Instant::now();
    command.kill_on_drop(true);
    command
        .stdin(if input.is_some() {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .with_context(|| format!("starting {what}"))?;
    if let (Some(mut stdin), Some(text)) = (child.stdin.take(), input) {
        stdin.write_all(text.as_bytes()).await?;
    }
    let output = tokio::time::timeout(COMMAND_TIMEOUT, child.wait_with_output())
        .await
        .with_context(|| format!("{what} did not end"))??;
    show_long(what, begun);
    Ok(Output {
        success: output.status.success(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

fn succeed(program: &str, arguments: &[&str], output: Output) -> Result<String> {
    if !output.success {
        bail!(
            "{program} {}: {}{}",
            arguments.join(" "),
            output.stdout,
            output.stderr
        );
    }
    Ok(output.stdout)
}

/// Whether a pod is ready.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    pod.metadata.deletion_timestamp.is_none()
        && conditions
            .into_iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn state(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let node = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.node_name.clone())
        .unwrap_or_default();
    let unmet: Vec<String> = status
        .conditions
        .iter()
        .flatten()
        .filter(|condition| condition.status != "True")
        .map(|condition| {
            format!(
                "{}: {} {}",
                condition.type_,
                condition.reason.as_deref().unwrap_or("-"),
                condition.message.as_deref().unwrap_or("")
            )
        })
        .collect();
    format!(
        "{} on {node:?} {} {unmet:?}",
        pod.metadata.name.clone().unwrap_or_default(),
        status.phase.unwrap_or_default()
    )
}
