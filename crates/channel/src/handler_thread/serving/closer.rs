//! Closes flows in a thread of its own, because that waits for the daemon ([`Closer`]). Only
//! [`Closer::start`] fails, if the thread cannot be started.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use netnice_stack::Socket;

/// The thread that closes flows.
pub(super) struct Closer {
    sockets: Option<Sender<Socket>>,
    thread: Option<JoinHandle<()>>,
}

impl Closer {
    pub(super) fn start() -> io::Result<Closer> {
        let (sockets, closed) = channel();
        let thread = std::thread::Builder::new()
            .name("closer".into())
            .spawn(move || closed.into_iter().for_each(drop::<Socket>))?;
        Ok(Closer {
            sockets: Some(sockets),
            thread: Some(thread),
        })
    }

    /// Closes a flow, without waiting for that.
    pub(super) fn close(&self, socket: Socket) {
        if let Some(sockets) = &self.sockets {
            // The thread ends only after this sender is dropped.
            let _ = sockets.send(socket);
        }
    }

    /// Waits until all flows are closed.
    pub(super) fn finish(&mut self) {
        self.sockets = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
