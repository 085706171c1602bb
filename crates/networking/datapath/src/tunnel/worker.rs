//! Threads that wait for the kernel and can be stopped.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Stops a thread, even while it waits.
#[derive(Debug)]
pub(super) struct StopSignal {
    requested: AtomicBool,
    event: OwnedFd,
}

impl StopSignal {
    pub(super) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Acquire)
    }

    /// Waits until the descriptor is readable, the timeout is over, or the thread must stop.
    pub(super) fn wait(
        &self,
        readable: Option<BorrowedFd<'_>>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut fds = vec![PollFd::new(&self.event, PollFlags::IN)];
        fds.extend(readable.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// A running thread. Dropping this stops it and waits for its end.
#[derive(Debug)]
pub(super) struct WorkerThread {
    stop: Arc<StopSignal>,
    thread: Option<thread::JoinHandle<()>>,
}

impl WorkerThread {
    /// Starts a thread. If its work fails, the error is logged and the worker is
    /// [finished](Self::is_finished).
    pub(super) fn start(
        name: &str,
        work: impl FnOnce(&StopSignal) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(StopSignal {
            requested: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC)?,
        });
        let theirs = Arc::clone(&stop);
        let builder = thread::Builder::new().name(name.to_owned());
        let thread = builder.spawn(move || {
            if let Err(error) = work(&theirs) {
                tracing::error!(%error, thread = thread::current().name(), "a thread of the tunnel failed");
            }
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    pub(super) fn is_finished(&self) -> bool {
        self.thread
            .as_ref()
            .is_none_or(thread::JoinHandle::is_finished)
    }
}

impl Drop for WorkerThread {
    fn drop(&mut self) {
        self.stop.requested.store(true, Ordering::Release);
        // This fails only when the counter is full, which wakes the thread, too.
        let _ = rustix::io::write(self.stop.event.as_fd(), &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_thread_can_be_stopped() {
        let work = |stop: &StopSignal| {
            while !stop.is_requested() {
                stop.wait(None, None)?;
            }
            Ok(())
        };
        let worker = WorkerThread::start("test", work).unwrap();
        assert!(!worker.is_finished());
        drop(worker);
    }

    #[test]
    fn a_thread_that_failed_is_finished() {
        let worker = WorkerThread::start("test", |_| Err(io::Error::other("on purpose"))).unwrap();
        while !worker.is_finished() {
            thread::yield_now();
        }
    }
}
