//! Resumes the attachment of a program after the daemon has ended.
//!
//! ```text
//!              the connection ends           the daemon answers `resume`      … and `list`
//!  Attached ───────────────────────▶ Lost ─▶ Resuming(Attachment) ─▶ Resuming(Flows) ─▶ Attached
//!     │                               ▲ │          │  │ the connection ends
//!     │ no response in time           └─┼──────────┘◀─┘ or the daemon refuses
//!     ▼                                 ▼ the attachment has ended, or this is a child process
//!   Broken                            Ended
//! ```
//! Without a daemon the flows continue, because the driver serves them. The library connects again
//! when the program polls, waits or calls the daemon, at most once in [`FIRST_PAUSE`] (50 ms) and
//! after repeated failures once in [`LONGEST_PAUSE`] (5 s); a timer wakes a program that waits. No
//! step waits for the daemon, except in a call that needs the daemon anyway.
//!
//! The daemon grants the attachment to the process that attached, with its secret. A child process
//! does not try: the attachment is its parent's. After that the library requests the list of flows,
//! applies what has changed while there was no connection, and closes flows that the program does
//! not know, because an earlier daemon ended before its response arrived.
//!
//! No function here fails: what goes wrong changes the state.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use netnice_api::direct::{
    Attached, CloseFlow, Detached, DirectReply, DirectRequest, FlowList, FlowNotification,
    FlowState, ListFlows, Resume,
};
use netnice_api::{Client, ClientError, Request, Response, RuntimeDir};
use rustix::event::epoll;
use rustix::process::Pid;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::flows::Flows;

/// The state of the connection to the daemon.
#[derive(Debug)]
pub(super) enum State {
    /// The daemon serves the attachment.
    Attached,
    /// The connection has ended. The next attempt to connect is at `retry`, or from `earliest` on
    /// in a call that needs the daemon. A failure doubles the pause.
    Lost {
        retry: Instant,
        earliest: Instant,
        pause: Duration,
    },
    /// There is a new connection, on which a request waits for its response.
    Resuming { step: Step, pause: Duration },
    /// The attachment has ended, or belongs to the parent process: nothing follows.
    Ended,
    /// The daemon did not respond in time or broke the protocol. The connection stays open, because
    /// closing it would end the flows.
    Broken,
}

/// The request that waits for its response.
#[derive(Debug)]
pub(super) enum Step {
    /// `resume`.
    Attachment,
    /// `list`, with the flows so far.
    Flows(Vec<FlowState>),
    /// `close` of a flow that the program does not know; the numbers are those of further ones.
    Close(Vec<u32>),
}

impl State {
    /// The state after an error of the connection.
    pub(super) fn after(error: &ClientError) -> State {
        match error {
            ClientError::HungUp | ClientError::Io(_) => State::lost(),
            _ => State::Broken,
        }
    }

    /// The connection has just ended: connect at once.
    fn lost() -> State {
        let now = Instant::now();
        State::Lost {
            retry: now,
            earliest: now,
            pause: FIRST_PAUSE,
        }
    }

    /// True if messages of the daemon can arrive on the present connection.
    pub(super) fn is_connected(&self) -> bool {
        matches!(self, State::Attached | State::Resuming { .. })
    }
}

/// What the library needs to resume the attachment.
pub(super) struct Resumption {
    dir: RuntimeDir,
    request: Resume,
    /// The process that attached.
    owner: Pid,
    /// Becomes readable when the next attempt is due.
    timer: OwnedFd,
}

impl Resumption {
    /// Fails if the kernel gives no timer.
    pub(super) fn new(dir: &RuntimeDir, attached: &Attached) -> std::io::Result<Resumption> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Resumption {
            dir: dir.clone(),
            request: Resume {
                iface: attached.iface.clone(),
                secret: attached.secret.clone(),
                moves: true,
            },
            owner: rustix::process::getpid(),
            timer: timerfd_create(TimerfdClockId::Monotonic, flags)?,
        })
    }

    pub(super) fn dir(&self) -> &RuntimeDir {
        &self.dir
    }

    pub(super) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Makes the timer unreadable.
    pub(super) fn clear_timer(&self) {
        // The read fails only if the timer has not expired.
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
    }

    /// Makes the timer readable after `pause`.
    fn set_timer(&self, pause: Duration) {
        let after = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: pause.as_secs().try_into().unwrap_or(i64::MAX),
                // A timer of 0 would be off.
                tv_nsec: i64::from(pause.subsec_nanos()).max(1),
            },
        };
        // This fails only for an invalid time.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &after);
    }

    /// A connection on which the daemon has been asked to resume; `None` if there is no daemon.
    fn connect(&self) -> Option<Client> {
        let mut client = Client::connect(&self.dir).ok()?;
        let flags = rustix::process::PidfdFlags::empty();
        let pidfd = rustix::process::pidfd_open(self.owner, flags).ok()?;
        let request = DirectRequest::Resume(self.request.clone());
        let begun = client.begin(&Request::Direct(request), Some(pidfd.as_fd()));
        begun.ok().map(|()| client)
    }
}

/// The connection, as the steps below change it.
pub(super) struct Steps<'a> {
    pub(super) client: &'a mut Client,
    pub(super) state: &'a mut State,
    pub(super) resumption: &'a Resumption,
    /// The descriptor that waits for the connection.
    pub(super) poll_fd: &'a OwnedFd,
    pub(super) flows: &'a Flows,
    /// Receives what has changed while there was no connection.
    pub(super) notifications: &'a mut Vec<FlowNotification>,
}

impl Steps<'_> {
    /// Takes all steps that are possible now without waiting.
    pub(super) fn advance(&mut self, now: Instant) {
        loop {
            match self.state {
                State::Attached | State::Ended | State::Broken => return,
                State::Lost { retry, .. } if now < *retry => return,
                State::Lost { pause, .. } => {
                    let pause = *pause;
                    self.connect(now, pause);
                }
                State::Resuming { .. } => match self.client.poll_response() {
                    Ok(None) => return,
                    Ok(Some(response)) => self.handle(response, now),
                    Err(_) => self.lose(now),
                },
            }
        }
    }

    /// Connects to the daemon, and requests the attachment.
    fn connect(&mut self, now: Instant, pause: Duration) {
        let resumption = self.resumption;
        if rustix::process::getpid() != resumption.owner || resumption.request.secret.is_empty() {
            *self.state = State::Ended;
            return;
        }
        let watched = resumption.connect().and_then(|client| {
            let data = epoll::EventData::new_u64(0);
            epoll::add(self.poll_fd, client.as_fd(), data, epoll::EventFlags::IN).ok()?;
            Some(client)
        });
        match watched {
            Some(client) => {
                *self.client = client;
                let step = Step::Attachment;
                *self.state = State::Resuming { step, pause };
            }
            None => self.pause(now, pause),
        }
    }

    /// Handles the response to the request of the present step.
    fn handle(&mut self, response: Response, now: Instant) {
        let State::Resuming { step, .. } = &mut *self.state else {
            return;
        };
        match (step, response) {
            (Step::Attachment, Response::Direct(DirectReply::Attached(_))) => {
                self.list(Vec::new(), now);
            }
            (Step::Attachment, Response::Direct(DirectReply::Detached(Detached { why }))) => {
                let ended = FlowNotification::Ended { why };
                self.flows.apply(&ended);
                self.notifications.push(ended);
                self.unwatch();
                *self.state = State::Ended;
            }
            (Step::Flows(listed), Response::Direct(DirectReply::Flows(list))) => {
                let FlowList { flows, more } = list;
                let mut all = std::mem::take(listed);
                all.extend(flows);
                if more {
                    return self.list(all, now);
                }
                let unknown = self.flows.resynchronize(&all, self.notifications);
                self.close(unknown, now);
            }
            (Step::Close(further), _) => {
                let further = std::mem::take(further);
                self.close(further, now);
            }
            // The daemon refuses, or is of another version.
            _ => self.lose(now),
        }
    }

    fn list(&mut self, listed: Vec<FlowState>, now: Instant) {
        let after = listed.last().map_or(0, |flow| flow.flow);
        let request = DirectRequest::List(ListFlows { after });
        self.begin(request, Step::Flows(listed), now);
    }

    /// Closes flows that the program does not know. Then the attachment is resumed.
    fn close(&mut self, mut unknown: Vec<u32>, now: Instant) {
        match unknown.pop() {
            Some(flow) => {
                let request = DirectRequest::Close(CloseFlow { flow });
                self.begin(request, Step::Close(unknown), now);
            }
            None => *self.state = State::Attached,
        }
    }

    fn begin(&mut self, request: DirectRequest, step: Step, now: Instant) {
        match self.client.begin(&Request::Direct(request), None) {
            Ok(()) => {
                if let State::Resuming { step: present, .. } = &mut *self.state {
                    *present = step;
                }
            }
            Err(_) => self.lose(now),
        }
    }

    /// The new connection has failed.
    fn lose(&mut self, now: Instant) {
        let pause = match self.state {
            State::Resuming { pause, .. } => *pause,
            _ => FIRST_PAUSE,
        };
        self.unwatch();
        self.pause(now, pause);
    }

    fn pause(&mut self, now: Instant, pause: Duration) {
        self.resumption.set_timer(pause);
        *self.state = State::Lost {
            retry: now + pause,
            earliest: now + FIRST_PAUSE,
            pause: (2 * pause).min(LONGEST_PAUSE),
        };
    }

    fn unwatch(&self) {
        // The descriptor was added, so deleting it cannot fail.
        let _ = epoll::delete(self.poll_fd, self.client.as_fd());
    }
}

/// The pause after the first failure to connect. Each further failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
