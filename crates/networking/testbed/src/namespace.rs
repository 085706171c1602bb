//! Unnamed network namespaces.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::AsRawFd,
    process::{Command, Stdio},
    thread,
};

use nix::sched::{CloneFlags, setns, unshare};

/// A network namespace. It lives as long as this or a process in it.
#[derive(Debug)]
pub struct NetworkNamespace(File);

impl NetworkNamespace {
    /// Creates a namespace. Its loopback device is down.
    pub fn new() -> io::Result<Self> {
        let make = || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        };
        thread::scope(|scope| scope.spawn(make).join())
            .map_err(|_| io::Error::other("the thread ended"))?
            .map(Self)
    }

    /// A path to the namespace for other programs.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Runs `work` in a thread in the namespace. Threads and processes that it starts are in the
    /// namespace, too.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let inside = || {
            setns(&self.0, CloneFlags::CLONE_NEWNET)?;
            Ok(work())
        };
        thread::scope(|scope| scope.spawn(inside).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Runs a program in the namespace and returns its standard output.
    pub fn command(&self, program: &str, arguments: &[&str], input: &str) -> io::Result<String> {
        self.run(|| {
            let mut child = Command::new(program)
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()?;
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(input.as_bytes())?;
            }
            let output = child.wait_with_output()?;
            if output.status.success() {
                return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
            }
            let said = String::from_utf8_lossy(&output.stderr);
            Err(io::Error::other(format!(
                "{program} {}: {} {said}",
                arguments.join(" "),
                input.trim()
            )))
        })?
    }

    /// Runs `ip -batch`: one command per line.
    pub fn ip(&self, commands: &str) -> io::Result<()> {
        self.command("ip", &["-batch", "-"], commands).map(drop)
    }
}
