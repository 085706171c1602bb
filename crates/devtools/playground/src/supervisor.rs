//! Keeps the programs of an instance running: one process, or one thread, that is their parent and
//! restarts them when they exit.
//!
//! It reads the programs from the `components.json` of each cluster, and reads again when told so
//! through a socket. Its programs end with it, however it ends: each has a parent-death signal,
//! which is tied to the thread that started the program. So everything here runs on one thread,
//! which lives as long as the supervisor.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    process::{Child, Command},
    sync::{mpsc, watch},
    task::JoinHandle,
};

use crate::{
    api, binaries,
    components::Definition,
    error::{Error, Result},
    layout::{Instance, MARK},
    network::namespace_file,
    processes,
};

/// Environment variable with the name of the instance that a process should supervise.
const SUPERVISE: &str = "LIQO_PLAYGROUND_SUPERVISE";
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(10);
/// The longest start or stop. Most programs wait for the API server of their cluster, which a busy
/// machine starts in a minute.
const LIMIT: Duration = Duration::from_mins(3);
const MIN_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// A log that is larger, in bytes, is renamed when its program restarts.
const LOG_LIMIT: u64 = 50 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ComponentState {
    /// Waits for the API server or for a file.
    Waiting,
    Running,
    /// Has exited and will restart after a pause.
    Restarting,
    /// Was stopped on request.
    Stopped,
    /// There is no supervisor.
    Unsupervised,
}

/// One program of a cluster, as seen by its supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ComponentStatus {
    pub cluster: String,
    /// The program's name, followed by `@NODE` on every node except the first.
    pub component: String,
    pub state: ComponentState,
    pub pid: Option<i32>,
    /// How often it exited by itself.
    pub restarts: u32,
    // A supervisor of an earlier version uses this name.
    #[serde(alias = "last_exit")]
    pub last_exit: Option<String>,
    pub log: PathBuf,
}

impl ComponentStatus {
    pub(crate) fn new(definition: &Definition, state: ComponentState) -> Self {
        Self {
            cluster: definition.cluster.clone(),
            component: definition.component.clone(),
            state,
            pid: None,
            restarts: 0,
            last_exit: None,
            log: definition.log.clone(),
        }
    }
}

/// A command to the supervisor: one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Status,
    /// Reads the definitions again, and starts, restarts and stops programs accordingly.
    Reload,
    Stop {
        cluster: String,
        component: String,
    },
    Start {
        cluster: String,
        component: String,
    },
    /// Kills everything and ends.
    Shutdown,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Response {
    Done,
    Status {
        supervisor: i32,
        components: Vec<ComponentStatus>,
    },
    Refused {
        reason: String,
    },
}

/// The instance that this process should supervise, if it was started for that. A program that
/// starts detached supervisors calls this first in `main`, and calls [`run_supervisor`] with the
/// result.
pub fn supervised_instance() -> Option<String> {
    std::env::var(SUPERVISE).ok()
}

/// Supervises an instance until it is told to end.
pub fn run_supervisor(instance: &str) -> Result<()> {
    let instance = Instance::new(instance)?;
    // The terminal may close.
    let _ = rustix::process::setsid();
    let thread = start_thread(&instance)?;
    let _ = thread.join();
    Ok(())
}

/// Starts a supervisor as a separate process that outlives this one.
pub(crate) fn start_detached(instance: &Instance, program: &std::path::Path) -> Result<()> {
    let log = open_log(&instance.supervisor_log())?;
    let errors = log
        .try_clone()
        .map_err(Error::file("open", &instance.supervisor_log()))?;
    let spawned = std::process::Command::new(program)
        .env(SUPERVISE, &instance.name)
        .env(MARK, processes::supervisor_mark(instance))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .spawn();
    spawned.map(drop).map_err(|source| Error::Run {
        program: program.display().to_string(),
        source,
    })
}

/// Starts a supervisor as a thread of this process.
pub(crate) fn start_thread(instance: &Instance) -> Result<std::thread::JoinHandle<()>> {
    let socket = instance.supervisor_socket();
    let _ = fs::remove_file(&socket);
    let listener = std::os::unix::net::UnixListener::bind(&socket)
        .map_err(Error::file("listen on", &socket))?;
    listener
        .set_nonblocking(true)
        .map_err(Error::file("listen on", &socket))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::Run {
            program: "supervisor".to_owned(),
            source,
        })?;
    let root = instance.clone();
    let body = move || runtime.block_on(supervise(root, listener));
    std::thread::Builder::new()
        .name("supervisor".to_owned())
        .spawn(body)
        .map_err(|source| Error::Run {
            program: "supervisor".to_owned(),
            source,
        })
}

/// Sends one command and waits for the answer.
pub(crate) async fn ask(instance: &Instance, request: &Request) -> Result<Response> {
    let failed = |reason: String| Error::NoSupervisor {
        instance: instance.name.clone(),
        reason,
    };
    let talk = async {
        let mut stream = UnixStream::connect(instance.supervisor_socket()).await?;
        stream
            .write_all(format!("{}\n", serde_json::to_string(request)?).as_bytes())
            .await?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).await?;
        std::io::Result::Ok(serde_json::from_str(&line)?)
    };
    let limit = if matches!(request, Request::Start { .. } | Request::Stop { .. }) {
        LIMIT + GRACE
    } else {
        GRACE * 3
    };
    match tokio::time::timeout(limit, talk).await {
        Ok(Ok(Response::Refused { reason })) => Err(Error::Refused {
            instance: instance.name.clone(),
            reason,
        }),
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(_) => Err(failed("no answer".to_owned())),
    }
}

/// The state that a component should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DesiredState {
    Running,
    Stopped,
    Killed,
}

struct Supervised {
    definition: Definition,
    wanted: watch::Sender<DesiredState>,
    status: watch::Receiver<ComponentStatus>,
    task: JoinHandle<()>,
}

type Components = Arc<Mutex<BTreeMap<(String, String), Supervised>>>;

async fn supervise(instance: Instance, listener: std::os::unix::net::UnixListener) {
    let Ok(listener) = UnixListener::from_std(listener) else {
        return;
    };
    let components = Components::default();
    let (end, mut ended) = mpsc::channel(1);
    if let Err(error) = reload(&instance, &components).await {
        tracing::error!(%error, "no program is started");
    }
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                tokio::spawn(serve(instance.clone(), components.clone(), stream, end.clone()));
            },
            _ = ended.recv() => return,
        }
    }
}

async fn serve(
    instance: Instance,
    components: Components,
    stream: UnixStream,
    end: mpsc::Sender<()>,
) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    if stream.read_line(&mut line).await.is_err() {
        return;
    }
    let request = serde_json::from_str(&line);
    let ending = matches!(request, Ok(Request::Shutdown));
    let response = match request {
        Ok(request) => answer(&instance, &components, request).await,
        Err(error) => Response::Refused {
            reason: format!("unknown command: {error}"),
        },
    };
    let response = serde_json::to_string(&response).unwrap_or_default();
    let _ = stream
        .get_mut()
        .write_all(format!("{response}\n").as_bytes())
        .await;
    if ending {
        let _ = end.send(()).await;
    }
}

async fn answer(instance: &Instance, components: &Components, request: Request) -> Response {
    match request {
        Request::Status => {
            let components = components
                .lock()
                .values()
                .map(|supervised| supervised.status.borrow().clone())
                .collect();
            Response::Status {
                supervisor: std::process::id().cast_signed(),
                components,
            }
        }
        Request::Reload => match reload(instance, components).await {
            Ok(()) => Response::Done,
            Err(error) => Response::Refused {
                reason: error.to_string(),
            },
        },
        Request::Stop { cluster, component } => {
            set(
                components,
                cluster,
                component,
                DesiredState::Stopped,
                ComponentState::Stopped,
            )
            .await
        }
        Request::Start { cluster, component } => {
            set(
                components,
                cluster,
                component,
                DesiredState::Running,
                ComponentState::Running,
            )
            .await
        }
        Request::Shutdown => {
            let all = std::mem::take(&mut *components.lock());
            end_all(all.into_values().collect(), DesiredState::Killed).await;
            Response::Done
        }
    }
}

async fn set(
    components: &Components,
    cluster: String,
    component: String,
    wanted: DesiredState,
    state: ComponentState,
) -> Response {
    let key = (cluster, component);
    let found = components
        .lock()
        .get(&key)
        .map(|supervised| (supervised.wanted.clone(), supervised.status.clone()));
    let Some((sender, mut status)) = found else {
        return Response::Refused {
            reason: format!("cluster {} has no component {}", key.0, key.1),
        };
    };
    sender.send_replace(wanted);
    let reached =
        tokio::time::timeout(LIMIT, status.wait_for(|status| status.state == state)).await;
    match reached {
        Ok(Ok(_)) => Response::Done,
        _ => Response::Refused {
            reason: format!(
                "{} of cluster {} did not become {state:?}; see its log",
                key.1, key.0
            ),
        },
    }
}

/// Stops, restarts and starts programs to match the definitions. Unchanged programs keep running.
async fn reload(instance: &Instance, components: &Components) -> Result<()> {
    let wanted = read_definitions(instance)?;
    let outdated: Vec<_> = {
        let mut components = components.lock();
        let keys: Vec<_> = components
            .iter()
            .filter(|(key, old)| wanted.get(*key) != Some(&old.definition))
            .map(|(key, _)| key.clone())
            .collect();
        keys.into_iter()
            .filter_map(|key| components.remove(&key))
            .collect()
    };
    end_all(outdated, DesiredState::Stopped).await;
    let mut components = components.lock();
    for (key, definition) in wanted {
        components
            .entry(key)
            .or_insert_with(|| start(instance, definition));
    }
    Ok(())
}

/// Ends all programs in parallel.
async fn end_all(all: Vec<Supervised>, how: DesiredState) {
    for supervised in &all {
        let _ = supervised.wanted.send(how);
    }
    for supervised in all {
        drop(supervised.wanted);
        let _ = supervised.task.await;
    }
}

fn read_definitions(instance: &Instance) -> Result<BTreeMap<(String, String), Definition>> {
    let mut all = BTreeMap::new();
    for cluster in fs::read_dir(&instance.root).into_iter().flatten().flatten() {
        let path = cluster.path().join("components.json");
        let Ok(text) = fs::read(&path) else { continue };
        let definitions: Vec<Definition> =
            serde_json::from_slice(&text).map_err(|error| Error::Damaged {
                path,
                reason: error.to_string(),
            })?;
        all.extend(definitions.into_iter().map(|definition| {
            (
                (definition.cluster.clone(), definition.component.clone()),
                definition,
            )
        }));
    }
    Ok(all)
}

fn start(instance: &Instance, definition: Definition) -> Supervised {
    let (wanted, changes) = watch::channel(DesiredState::Running);
    let (report, status) =
        watch::channel(ComponentStatus::new(&definition, ComponentState::Waiting));
    let task = tokio::spawn(keep_running(
        instance.clone(),
        definition.clone(),
        changes,
        report,
    ));
    Supervised {
        definition,
        wanted,
        status,
        task,
    }
}

/// Runs one program and restarts it when it exits. Returns when the program should be killed, or
/// when the sender is gone.
async fn keep_running(
    instance: Instance,
    definition: Definition,
    mut changes: watch::Receiver<DesiredState>,
    report: watch::Sender<ComponentStatus>,
) {
    let mut pause = MIN_PAUSE;
    loop {
        let wanted = *changes.borrow_and_update();
        match wanted {
            DesiredState::Killed => return,
            DesiredState::Stopped => {
                report.send_modify(|status| status.state = ComponentState::Stopped);
                if changes.changed().await.is_err() {
                    return;
                }
                continue;
            }
            DesiredState::Running => {}
        }
        if definition.needs_api || definition.needs_file.is_some() {
            report.send_modify(|status| status.state = ComponentState::Waiting);
            tokio::select! {
                () = is_startable(&instance, &definition) => {}
                outcome = changes.changed() => if outcome.is_err() { return } else { continue },
            }
        }
        let began = Instant::now();
        let exit = match spawn(&instance, &definition) {
            Ok(mut child) => {
                let pid = child.id().map(u32::cast_signed);
                report.send_modify(|status| {
                    (status.state, status.pid) = (ComponentState::Running, pid);
                });
                tokio::select! {
                    exit = child.wait() => Some(exit.map_or_else(|error| error.to_string(), describe)),
                    outcome = changes.changed() => {
                        end(&mut child, if outcome.is_ok() { *changes.borrow() } else { DesiredState::Killed }).await;
                        if outcome.is_err() { return }
                        None
                    }
                }
            }
            Err(error) => Some(error.to_string()),
        };
        let Some(exit) = exit else {
            report.send_modify(|status| {
                (status.pid, status.last_exit) = (None, Some("stopped on request".to_owned()));
            });
            continue;
        };
        tracing::warn!(
            cluster = definition.cluster,
            component = definition.component,
            exit,
            "component exited"
        );
        report.send_modify(|status| {
            (status.state, status.pid, status.last_exit) =
                (ComponentState::Restarting, None, Some(exit));
            status.restarts += 1;
        });
        pause = if began.elapsed() > MAX_PAUSE {
            MIN_PAUSE
        } else {
            (pause * 2).min(MAX_PAUSE)
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            outcome = changes.changed() => if outcome.is_err() { return },
        }
    }
}

async fn is_startable(instance: &Instance, definition: &Definition) {
    while definition
        .needs_file
        .as_ref()
        .is_some_and(|file| !file.exists())
    {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    if !definition.needs_api {
        return;
    }
    let kubeconfig = instance.root.join(&definition.cluster).join("kubeconfig");
    loop {
        if let Ok(client) = api::client(&definition.cluster, &kubeconfig).await
            && api::is_ready(&client).await
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn spawn(instance: &Instance, definition: &Definition) -> Result<Child> {
    let log = open_log(&definition.log)?;
    let errors = log
        .try_clone()
        .map_err(Error::file("open", &definition.log))?;
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--net={}", namespace_file(&definition.namespace)))
        // Each program gets a session of its own, as from an init system: Ctrl-C in the terminal of
        // a test must not reach it, and a kernel that divides the processors between sessions
        // (autogroup) must not take all control planes for one program.
        .args(["--", "setsid", "setpriv", "--pdeathsig", "KILL", "--"])
        .args(first_served(&definition.component))
        .args(&definition.command)
        .env_clear()
        .env("PATH", binaries::search_path())
        .env(
            MARK,
            format!(
                "{}/{}/{}",
                instance.name, definition.cluster, definition.component
            ),
        )
        // Many clusters share few cores here, and the garbage collector of Go takes less processor
        // time if it may use more memory.
        .env("GOGC", "300")
        // On a machine that is busy for a minute, a client would give up its connection and list
        // everything again, which makes the machine busier still.
        .env("HTTP2_PING_TIMEOUT_SECONDS", "60")
        .envs(
            definition
                .processors
                .map(|count| ("GOMAXPROCS", count.to_string())),
        )
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .kill_on_drop(true);
    command.spawn().map_err(|source| Error::Run {
        program: definition.component.clone(),
        source,
    })
}

/// The command that starts a program before others, if all of them wait for it. On a busy machine,
/// etcd and API servers that answer late lose their clients, who then list everything
/// again. Kernels that divide the processors between sessions (autogroup) weigh the session only.
fn first_served(component: &str) -> Vec<String> {
    let nice = match component {
        "etcd" => -10,
        "kube-apiserver" => -5,
        _ => return Vec::new(),
    };
    let script = format!(
        "[ ! -w /proc/self/autogroup ] || echo {nice} >/proc/self/autogroup; exec nice -n {nice} \"$@\""
    );
    ["sh", "-c", &script, "sh"].map(str::to_owned).to_vec()
}

fn open_log(path: &std::path::Path) -> Result<File> {
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() > LOG_LIMIT) {
        let _ = fs::rename(path, path.with_extension("log.old"));
    }
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(Error::file("open", path))
}

async fn end(child: &mut Child, wanted: DesiredState) {
    if wanted == DesiredState::Stopped
        && let Some(pid) = child.id()
    {
        processes::signal(pid.cast_signed(), Signal::TERM);
        // A paused process handles the signal only after SIGCONT.
        processes::signal(pid.cast_signed(), Signal::CONT);
        if tokio::time::timeout(GRACE, child.wait()).await.is_ok() {
            return;
        }
    }
    let _ = child.kill().await;
}

fn describe(exit: ExitStatus) -> String {
    match (exit.code(), exit.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => exit.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_is_described_by_code_or_signal() {
        assert_eq!(describe(ExitStatus::from_raw(1 << 8)), "exited with code 1");
        assert_eq!(describe(ExitStatus::from_raw(9)), "killed by signal 9");
    }
}
