//! Closes flows and releases processor time in a thread of its own, because both wait for the
//! daemon ([`Closer`]). Only [`Closer::start`] fails, if the thread cannot be started.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// The thread that closes what it is given.
pub(super) struct Closer {
    things: Option<Sender<Closed>>,
    thread: Option<JoinHandle<()>>,
}

impl Closer {
    pub(super) fn start() -> io::Result<Closer> {
        let (things, closed) = channel();
        let thread = std::thread::Builder::new()
            .name("closer".into())
            .spawn(move || closed.into_iter().for_each(drop::<Closed>))?;
        Ok(Closer {
            things: Some(things),
            thread: Some(thread),
        })
    }

    /// Drops a thing, without waiting for that.
    pub(super) fn close(&self, thing: impl Send + 'static) {
        if let Some(things) = &self.things {
            // The thread ends only after this sender is dropped.
            let _ = things.send(Box::new(thing));
        }
    }

    /// Waits until all is dropped.
    pub(super) fn finish(&mut self) {
        self.things = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A thing whose drop waits for the daemon.
type Closed = Box<dyn Send>;
