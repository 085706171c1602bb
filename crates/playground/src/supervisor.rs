//! Keeps the programs of an instance running: one process, or one thread, that is their parent and restarts what exits.
//!
//! It reads what to run from the `components.json` of each cluster and is told by a socket when that changes. Its programs end with it,
//! however it ends: each is started with a parent-death signal, and that belongs to the thread that started it. So everything here runs on
//! one thread, which lives as long as the supervisor.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

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

/// Names the instance that a process shall supervise.
const SUPERVISE: &str = "LIQO_PLAYGROUND_SUPERVISE";
/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A log that has grown beyond this is put aside when its program starts again.
const LOG_LIMIT: u64 = 50 << 20;

/// What a program is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ComponentState {
    /// Waits for what it needs: the API server, or a file.
    Waiting,
    /// Runs.
    Running,
    /// Has exited and will be started again after a pause.
    Restarting,
    /// Was stopped on request.
    Stopped,
    /// There is no supervisor that could run it.
    Unsupervised,
}

/// One program of a cluster, as seen by its supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ComponentStatus {
    /// The cluster it belongs to.
    pub cluster: String,
    /// Its name, with `@NODE` behind it on every node but the first.
    pub component: String,
    /// What it is doing.
    pub state: ComponentState,
    /// Its process, if it runs.
    pub pid: Option<i32>,
    /// How often it exited without being asked to.
    pub restarts: u32,
    /// How it ended the last time.
    // A supervisor that was started by a program before this one still says it so.
    #[serde(alias = "last_exit")]
    pub last_exit: Option<String>,
    /// Where it writes to.
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
    /// Reads the definitions again, and starts, restarts and stops accordingly.
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
    Status { supervisor: i32, components: Vec<ComponentStatus> },
    Refused { reason: String },
}

/// The instance that this process was started to supervise, if it was. A program that starts detached supervisors asks this first thing in
/// `main` and calls [`run_supervisor`] with the answer.
pub fn supervised_instance() -> Option<String> {
    std::env::var(SUPERVISE).ok()
}

/// Supervises an instance until it is told to end.
pub fn run_supervisor(instance: &str) -> Result<()> {
    let instance = Instance::new(instance)?;
    // The terminal from which it was started may close.
    let _ = rustix::process::setsid();
    let thread = start_thread(&instance)?;
    let _ = thread.join();
    Ok(())
}

/// Starts a supervisor that is a process of its own and outlives this one.
pub(crate) fn start_detached(instance: &Instance, program: &std::path::Path) -> Result<()> {
    let log = open_log(&instance.supervisor_log())?;
    let errors = log.try_clone().map_err(Error::file("open", &instance.supervisor_log()))?;
    let spawned = std::process::Command::new(program)
        .env(SUPERVISE, &instance.name)
        .env(MARK, processes::supervisor_mark(instance))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .spawn();
    spawned.map(drop).map_err(|source| Error::Run { program: program.display().to_string(), source })
}

/// Starts a supervisor that is a thread of this process and ends with it.
pub(crate) fn start_thread(instance: &Instance) -> Result<std::thread::JoinHandle<()>> {
    let socket = instance.supervisor_socket();
    let _ = fs::remove_file(&socket);
    let listener = std::os::unix::net::UnixListener::bind(&socket).map_err(Error::file("listen on", &socket))?;
    listener.set_nonblocking(true).map_err(Error::file("listen on", &socket))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::Run { program: "supervisor".to_owned(), source })?;
    let root = instance.clone();
    let body = move || runtime.block_on(supervise(root, listener));
    std::thread::Builder::new()
        .name("supervisor".to_owned())
        .spawn(body)
        .map_err(|source| Error::Run { program: "supervisor".to_owned(), source })
}

/// Sends one command and waits for the answer.
pub(crate) async fn ask(instance: &Instance, request: &Request) -> Result<Response> {
    let failed = |reason: String| Error::NoSupervisor { instance: instance.name.clone(), reason };
    let talk = async {
        let mut stream = UnixStream::connect(instance.supervisor_socket()).await?;
        stream.write_all(format!("{}\n", serde_json::to_string(request)?).as_bytes()).await?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).await?;
        std::io::Result::Ok(serde_json::from_str(&line)?)
    };
    match tokio::time::timeout(GRACE * 3, talk).await {
        Ok(Ok(Response::Refused { reason })) => Err(Error::Refused { instance: instance.name.clone(), reason }),
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(_) => Err(failed("no answer".to_owned())),
    }
}

/// What a component is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Running,
    Stopped,
    Killed,
}

struct Supervised {
    definition: Definition,
    wanted: watch::Sender<Wanted>,
    status: watch::Receiver<ComponentStatus>,
    task: JoinHandle<()>,
}

type Components = Arc<Mutex<BTreeMap<(String, String), Supervised>>>;

async fn supervise(instance: Instance, listener: std::os::unix::net::UnixListener) {
    let Ok(listener) = UnixListener::from_std(listener) else { return };
    let components = Components::default();
    let (end, mut ended) = mpsc::channel(1);
    if let Err(error) = reload(&instance, &components).await {
        tracing::error!(%error, "nothing is started");
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

async fn serve(instance: Instance, components: Components, stream: UnixStream, end: mpsc::Sender<()>) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    if stream.read_line(&mut line).await.is_err() {
        return;
    }
    let request = serde_json::from_str(&line);
    let ending = matches!(request, Ok(Request::Shutdown));
    let response = match request {
        Ok(request) => answer(&instance, &components, request).await,
        Err(error) => Response::Refused { reason: format!("unknown command: {error}") },
    };
    let response = serde_json::to_string(&response).unwrap_or_default();
    let _ = stream.get_mut().write_all(format!("{response}\n").as_bytes()).await;
    if ending {
        let _ = end.send(()).await;
    }
}

async fn answer(instance: &Instance, components: &Components, request: Request) -> Response {
    match request {
        Request::Status => {
            let components = lock(components).values().map(|supervised| supervised.status.borrow().clone()).collect();
            Response::Status { supervisor: std::process::id().cast_signed(), components }
        }
        Request::Reload => match reload(instance, components).await {
            Ok(()) => Response::Done,
            Err(error) => Response::Refused { reason: error.to_string() },
        },
        Request::Stop { cluster, component } => {
            set(components, cluster, component, Wanted::Stopped, ComponentState::Stopped).await
        }
        Request::Start { cluster, component } => {
            set(components, cluster, component, Wanted::Running, ComponentState::Running).await
        }
        Request::Shutdown => {
            let all = std::mem::take(&mut *lock(components));
            end_all(all.into_values().collect(), Wanted::Killed).await;
            Response::Done
        }
    }
}

async fn set(components: &Components, cluster: String, component: String, wanted: Wanted, state: ComponentState) -> Response {
    let key = (cluster, component);
    let found = lock(components).get(&key).map(|supervised| (supervised.wanted.clone(), supervised.status.clone()));
    let Some((sender, mut status)) = found else {
        return Response::Refused { reason: format!("cluster {} has no component {}", key.0, key.1) };
    };
    sender.send_replace(wanted);
    let reached = tokio::time::timeout(GRACE * 2, status.wait_for(|status| status.state == state)).await;
    match reached {
        Ok(Ok(_)) => Response::Done,
        _ => Response::Refused { reason: format!("{} of cluster {} did not become {state:?}; see its log", key.1, key.0) },
    }
}

fn lock(components: &Components) -> std::sync::MutexGuard<'_, BTreeMap<(String, String), Supervised>> {
    components.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Brings what runs in line with the definitions. What did not change goes on.
async fn reload(instance: &Instance, components: &Components) -> Result<()> {
    let wanted = read_definitions(instance)?;
    let outdated: Vec<_> = {
        let mut components = lock(components);
        let keys: Vec<_> = components
            .iter()
            .filter(|(key, old)| wanted.get(*key) != Some(&old.definition))
            .map(|(key, _)| key.clone())
            .collect();
        keys.into_iter().filter_map(|key| components.remove(&key)).collect()
    };
    end_all(outdated, Wanted::Stopped).await;
    let mut components = lock(components);
    for (key, definition) in wanted {
        components.entry(key).or_insert_with(|| start(instance, definition));
    }
    Ok(())
}

/// All at the same time.
async fn end_all(all: Vec<Supervised>, how: Wanted) {
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
            serde_json::from_slice(&text).map_err(|error| Error::Damaged { path, reason: error.to_string() })?;
        all.extend(
            definitions.into_iter().map(|definition| ((definition.cluster.clone(), definition.component.clone()), definition)),
        );
    }
    Ok(all)
}

fn start(instance: &Instance, definition: Definition) -> Supervised {
    let (wanted, told) = watch::channel(Wanted::Running);
    let (report, status) = watch::channel(ComponentStatus::new(&definition, ComponentState::Waiting));
    let task = tokio::spawn(keep_running(instance.clone(), definition.clone(), told, report));
    Supervised { definition, wanted, status, task }
}

/// Runs one program again and again; ends when nobody can tell it anything any more, or when it is told to kill it.
async fn keep_running(
    instance: Instance,
    definition: Definition,
    mut told: watch::Receiver<Wanted>,
    report: watch::Sender<ComponentStatus>,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let wanted = *told.borrow_and_update();
        match wanted {
            Wanted::Killed => return,
            Wanted::Stopped => {
                report.send_modify(|status| status.state = ComponentState::Stopped);
                if told.changed().await.is_err() {
                    return;
                }
                continue;
            }
            Wanted::Running => {}
        }
        if definition.needs_api || definition.needs_file.is_some() {
            report.send_modify(|status| status.state = ComponentState::Waiting);
            tokio::select! {
                () = is_startable(&instance, &definition) => {}
                changed = told.changed() => if changed.is_err() { return } else { continue },
            }
        }
        let began = Instant::now();
        let exit = match spawn(&instance, &definition) {
            Ok(mut child) => {
                let pid = child.id().map(u32::cast_signed);
                report.send_modify(|status| (status.state, status.pid) = (ComponentState::Running, pid));
                tokio::select! {
                    exit = child.wait() => Some(exit.map_or_else(|error| error.to_string(), describe)),
                    changed = told.changed() => {
                        end(&mut child, if changed.is_ok() { *told.borrow() } else { Wanted::Killed }).await;
                        if changed.is_err() { return }
                        None
                    }
                }
            }
            Err(error) => Some(error.to_string()),
        };
        let Some(exit) = exit else {
            report.send_modify(|status| (status.pid, status.last_exit) = (None, Some("stopped on request".to_owned())));
            continue;
        };
        tracing::warn!(cluster = definition.cluster, component = definition.component, exit, "component exited");
        report.send_modify(|status| {
            (status.state, status.pid, status.last_exit) = (ComponentState::Restarting, None, Some(exit));
            status.restarts += 1;
        });
        pause = if began.elapsed() > LONGEST_PAUSE { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            changed = told.changed() => if changed.is_err() { return },
        }
    }
}

async fn is_startable(instance: &Instance, definition: &Definition) {
    while definition.needs_file.as_ref().is_some_and(|file| !file.exists()) {
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
    let errors = log.try_clone().map_err(Error::file("open", &definition.log))?;
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--net={}", namespace_file(&definition.namespace)))
        .args(["--", "setpriv", "--pdeathsig", "KILL", "--"])
        .args(&definition.command)
        .env_clear()
        .env("PATH", binaries::search_path())
        .env(MARK, format!("{}/{}/{}", instance.name, definition.cluster, definition.component))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .kill_on_drop(true)
        // Ctrl-C in the terminal of a test is not for them.
        .process_group(0);
    command.spawn().map_err(|source| Error::Run { program: definition.component.clone(), source })
}

fn open_log(path: &std::path::Path) -> Result<File> {
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() > LOG_LIMIT) {
        let _ = fs::rename(path, path.with_extension("log.old"));
    }
    OpenOptions::new().create(true).append(true).open(path).map_err(Error::file("open", path))
}

async fn end(child: &mut Child, wanted: Wanted) {
    if wanted == Wanted::Stopped
        && let Some(pid) = child.id()
    {
        processes::signal(pid.cast_signed(), Signal::TERM);
        // A paused process hears nothing until it goes on.
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
    fn an_exit_says_how() {
        assert_eq!(describe(ExitStatus::from_raw(1 << 8)), "exited with code 1");
        assert_eq!(describe(ExitStatus::from_raw(9)), "killed by signal 9");
    }
}
