//! Starts and stops the threads that estimate links ([`Estimators`]), and passes their messages to
//! the event loop ([`Mailbox`], [`take`]).
//!
//! The mailbox has one place for each thread; a message replaces the one before that the loop has
//! not taken. Nothing fails: if a thread cannot be started, the loop gets a message with that
//! fault, and the next change of the link starts the thread again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use netnice_core::contract::IfName;
use netnice_core::units::Rate;
use tokio::sync::Notify;

use super::{EstimateState, Estimated, EstimatedLink, prober};

/// The messages that the event loop has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    messages: Mutex<BTreeMap<u64, Estimated>>,
    notify: Notify,
}

impl Mailbox {
    /// Puts a message in place of an earlier one of the same thread.
    pub(super) fn post(&self, message: Estimated) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.insert(message.number, message);
        drop(messages);
        self.notify.notify_one();
    }
}

/// Waits for a message.
pub(crate) async fn take(mailbox: &Mailbox) -> Estimated {
    loop {
        {
            let messages = mailbox.messages.lock();
            let mut messages = messages.unwrap_or_else(PoisonError::into_inner);
            if let Some((_, message)) = messages.pop_first() {
                return message;
            }
        }
        mailbox.notify.notified().await;
    }
}

/// The running threads.
#[derive(Debug, Default)]
pub(crate) struct Estimators {
    mailbox: Arc<Mailbox>,
    running: BTreeMap<IfName, Running>,
    next_number: u64,
}

#[derive(Debug)]
struct Running {
    link: EstimatedLink,
    number: u64,
    stop: Arc<AtomicBool>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Estimators {
    /// The mailbox of all threads.
    pub(crate) fn mailbox(&self) -> Arc<Mailbox> {
        Arc::clone(&self.mailbox)
    }

    /// Makes the threads those of `wanted`, with the rates from which a new one continues. A thread
    /// whose link has changed is replaced.
    pub(crate) fn update(&mut self, wanted: Vec<(EstimatedLink, [Option<Rate>; 2])>) {
        if wanted.is_empty() && self.running.is_empty() {
            return;
        }
        self.running
            .retain(|_, running| wanted.iter().any(|(link, _)| *link == running.link));
        for (link, rates) in wanted {
            if self.running.contains_key(&link.name) {
                continue;
            }
            self.next_number += 1;
            let (number, stop) = (self.next_number, Arc::new(AtomicBool::new(false)));
            let running = Running {
                link: link.clone(),
                number,
                stop: Arc::clone(&stop),
            };
            let (name, mailbox) = (link.name.clone(), Arc::clone(&self.mailbox));
            let started = thread::Builder::new()
                .name("estimate".to_owned())
                .spawn(move || prober::run(link, rates, number, &mailbox, &stop));
            if let Err(error) = started {
                self.mailbox.post(Estimated {
                    number,
                    name: name.clone(),
                    rates: [None; 2],
                    state: EstimateState {
                        replying: 0,
                        fault: Some(format!("cannot start a thread: {error}")),
                    },
                });
            }
            self.running.insert(name, running);
        }
    }

    /// True if a message is of the present thread of its link.
    pub(crate) fn is_present(&self, message: &Estimated) -> bool {
        let running = self.running.get(&message.name);
        running.is_some_and(|running| running.number == message.number)
    }
}
