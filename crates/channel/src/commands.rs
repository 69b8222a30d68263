//! Commands to a thread that sleeps for other things too ([`CommandQueue`]). The thread never waits
//! for a lock: if another thread is adding a command, that thread wakes it afterwards.
//! [`CommandQueue::new`] fails if no eventfd can be made; a command to a thread that has ended is
//! dropped.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};

use crate::waker::Waker;

/// The commands to a thread.
pub(crate) struct CommandQueue<C> {
    waker: Waker,
    commands: Mutex<VecDeque<C>>,
    has_commands: AtomicBool,
    /// The reason for which the thread ended.
    end: OnceLock<String>,
}

impl<C> CommandQueue<C> {
    pub(crate) fn new() -> io::Result<CommandQueue<C>> {
        Ok(CommandQueue {
            waker: Waker::new()?,
            commands: Mutex::default(),
            has_commands: AtomicBool::new(false),
            end: OnceLock::new(),
        })
    }

    /// Wakes the thread.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Gives the thread a command.
    pub(crate) fn push(&self, command: C) {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        if self.end.get().is_some() {
            return;
        }
        commands.push_back(command);
        drop(commands);
        self.has_commands.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Gives the thread a command, and waits for its reply; `None` if the thread ends without one.
    pub(crate) fn ask<T>(&self, command: impl FnOnce(SyncSender<T>) -> C) -> Option<T> {
        let (reply, answer) = sync_channel(1);
        self.push(command(reply));
        // The thread drops the command when it ends, and so the reply.
        answer.recv().ok()
    }

    /// The oldest command. `None` also while another thread adds one, which wakes this thread then.
    pub(crate) fn next(&self) -> Option<C> {
        if !self.has_commands.load(Ordering::Acquire) {
            return None;
        }
        let mut commands = match self.commands.try_lock() {
            Ok(commands) => commands,
            Err(TryLockError::Poisoned(commands)) => commands.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let next = commands.pop_front();
        if commands.is_empty() {
            self.has_commands.store(false, Ordering::Relaxed);
        }
        next
    }

    /// False if there may be a command.
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_commands.load(Ordering::Acquire)
    }

    /// Ends the thread's part: commands that come later are dropped, as are those in the list.
    pub(crate) fn end(&self, why: &str) {
        let _ = self.end.set(why.to_owned());
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let dropped = std::mem::take(&mut *commands);
        drop(commands);
        drop(dropped);
    }

    /// Why the thread has ended.
    pub(crate) fn end_reason(&self) -> String {
        let why = self.end.get().map(String::as_str);
        why.unwrap_or("its thread has ended").to_owned()
    }
}
