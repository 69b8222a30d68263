//! The program `netnice-lab traffic channels` has one end of several channels over the direct path
//! (`netnice-channel`), on command. [`ChannelProgram`] starts it. Both ends have the same
//! [`ChannelPlan`], as JSON.
//!
//! Each line of its standard input is a command, and the program answers with one line of JSON:
//!
//! - `run PLAN`, at the source: sends the messages of a [`SendPlan`], and waits until they have
//!   left. Answers with `channels`, a [`SentChannel`] for each, and `stops`, those of the thread of
//!   the handlers as text.
//! - `counts`, at the sink: answers with `channels`, a [`ReceivedChannel`] for each, and with what
//!   the port counted: `packets`, `foreign`, `invalid`, `lost`.
//!
//! A message has the bytes of its number, repeated. All times are ns of `CLOCK_MONOTONIC`. The
//! program ends with its input. It fails if a channel cannot be opened or ends, and for an unknown
//! command.

use std::collections::VecDeque;
use std::io::BufRead;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use netnice_channel::network::BLOCK;
use netnice_channel::{
    ChannelClass, ChannelError, ChannelId, ChannelOptions, Checksum, Encryption, ExecutorSettings,
    HandlerThread, HandlerThreadOptions, Listener, ListenerOptions, PacketHeader, Receiver,
    SendRefusal, Sender, SenderOptions, Stage, StageError, WhenFull, costs, messages_within,
};
use netnice_core::contract::{Contract, Slice, Weight};
use netnice_core::sched::EarlyOrder;
use netnice_core::units::{Bytes, Nanos};
use netnice_stack::{RuntimeDir, monotonic_ns, own};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::process::{self, EVENT_TIMEOUT, Proc};
use crate::sys;
use crate::world::Host;

/// The arguments of `netnice-lab traffic channels`.
#[derive(Debug, Clone, clap::Args)]
pub struct ChannelsArgs {
    /// The local endpoint.
    #[arg(long)]
    local: SocketAddr,
    /// The listener. Without it this is the sink.
    #[arg(long)]
    remote: Option<SocketAddr>,
    /// The daemon's folder.
    #[arg(long)]
    runtime_dir: PathBuf,
    /// The channels, as JSON.
    #[arg(long)]
    plan: String,
}

/// Channels between a source and a sink.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChannelPlan {
    /// The longest packet with the channel's header, in bytes.
    pub largest: u64,
    /// Packets between two preemption points at the source. The sink has the default, because it
    /// counts a switch for each packet, which may come alone.
    pub block: u32,
    /// How early a message may be processed, in ns.
    pub horizon_ns: u64,
    /// Such early messages come before best effort, not after it.
    pub early_before_best_effort: bool,
    /// Processor time of the first and of each later packet of a message at the source, in ns, in a
    /// stage that computes for so long; 0 for no such stage.
    pub computes_ns: (u64, u64),
    /// Time in ns for which that stage computes in addition if the packet before was another
    /// channel's.
    pub switch_ns: u64,
    /// Processor time to reserve at the source, for example `8ms/10ms`, and the least part of it
    /// that the thread of the handlers has, in ns.
    pub reservation: Option<(String, u64)>,
    /// The source records the stops of its handlers' thread, which costs a system call for each
    /// packet.
    pub records_stops: bool,
    /// The channels.
    pub channels: Vec<PlannedChannel>,
}

/// One channel of a plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlannedChannel {
    /// The contract with a `channel`; empty for best effort.
    pub contract: String,
    /// The longest message and the queue of best effort.
    pub best_effort: (u64, u32),
    /// Stages: `checksum`, `encryption`.
    pub stages: Vec<String>,
}

/// What a source sends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SendPlan {
    /// For how long, in ns.
    pub lasts_ns: u64,
    /// What each channel sends.
    pub channels: Vec<Messages>,
}

/// The messages of a channel: `count` at once, of `size` bytes, one group each `every_ns`. Messages
/// that find no room are dropped, or wait; a channel that waits offers nothing after the end. With
/// `count` 0 the channel sends nothing.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Messages {
    /// Bytes of a message, at least 8.
    pub size: usize,
    /// Messages of a group.
    pub count: u64,
    /// Time between groups.
    pub every_ns: u64,
    /// Time of the first group.
    pub first_ns: u64,
    /// Wait for room in place of dropping.
    pub waits: bool,
}

/// What a channel sent in a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SentChannel {
    /// Messages that were offered, and those that the channel accepted.
    pub offered: u64,
    /// Messages that the channel accepted.
    pub accepted: u64,
    /// Messages that found no room.
    pub dropped: u64,
    /// Of these, messages that came too soon after those before: the queue was full of messages
    /// whose processing was not due.
    pub too_soon: u64,
    /// The longest time from that of a group to its offer.
    pub offered_late_ns: u64,
    /// Packets that did not leave.
    pub unsent: u64,
    /// Bytes of the messages that have left before the end of the run.
    pub bytes: u64,
    /// The deadline of each message that has left, and when it left; in order. Empty for best
    /// effort.
    pub left_ns: Vec<(u64, u64)>,
}

/// What a channel has received.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReceivedChannel {
    /// Messages.
    pub messages: u64,
    /// Of these, messages whose content is not that of their number.
    pub wrong: u64,
    /// Packets.
    pub packets: u64,
    /// Messages that the sink gave up, and packets that it dropped for any reason.
    pub lost: u64,
}

/// Runs the program until its input ends. Fails as the module says.
pub fn main(args: &ChannelsArgs) -> Result<()> {
    let plan: ChannelPlan = serde_json::from_str(&args.plan).context("the plan")?;
    let dir = RuntimeDir::choose(Some(args.runtime_dir.clone()), None);
    match args.remote {
        Some(remote) => source(&plan, &dir, (args.local, remote)),
        None => sink(&plan, &dir, args.local),
    }
}

fn source(plan: &ChannelPlan, dir: &RuntimeDir, ends: (SocketAddr, SocketAddr)) -> Result<()> {
    let mut options = plan.options()?;
    options.records_stops = plan.records_stops;
    if let Some((time, least)) = &plan.reservation {
        own::change(dir, &format!("cpu {time}"))?;
        options.reservation = Some(slice(time)?);
        options.least_part = Nanos(*least);
    }
    let thread = HandlerThread::attach(dir, &options)?;
    let mut senders = Vec::new();
    let last = Arc::new(AtomicUsize::new(0));
    for number in 0..plan.channels.len() {
        let mut channel = plan.channel(number)?;
        if plan.computes_ns != (0, 0) {
            let computes = Computes {
                packets_ns: plan.computes_ns,
                switch_ns: plan.switch_ns,
                own: number,
                last: last.clone(),
            };
            channel.stages.insert(0, Box::new(computes));
        }
        let options = SenderOptions {
            local: SocketAddr::new(ends.0.ip(), ends.0.port() + number as u16),
            ..SenderOptions::to(ends.1, channel)
        };
        let sender = thread.open(options);
        let sender = sender.with_context(|| plan.channels[number].contract.clone())?;
        senders.push(Arc::new(Mutex::new(sender)));
    }
    println!("{}", json!({"ready": true}));
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let Some(("run", sends)) = line.split_once(' ') else {
            bail!("{line:?} is no command");
        };
        let sends: SendPlan = serde_json::from_str(sends).context("what to send")?;
        thread.take_stops();
        let begin = monotonic_ns() + LEAD_NS;
        let mut runs = Vec::new();
        for ((sender, messages), planned) in
            std::iter::zip(&senders, sends.channels).zip(&plan.channels)
        {
            let (sender, queue) = (sender.clone(), planned.queue()?);
            let span = (begin, begin + sends.lasts_ns);
            runs.push(std::thread::spawn(move || {
                let mut sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
                send(&mut sender, &messages, queue, span)
            }));
        }
        let mut channels = Vec::new();
        for run in runs {
            channels.push(run.join().expect("no panic")?);
        }
        let stops: Vec<String> = thread
            .take_stops()
            .iter()
            .map(ToString::to_string)
            .collect();
        println!("{}", json!({"channels": channels, "stops": stops}));
    }
    Ok(())
}

/// Sends messages from one time to another on a channel with such a queue, and waits until all have
/// left.
fn send(
    sender: &mut Sender,
    messages: &Messages,
    mut queue: Option<NotDue>,
    (begin, end): (u64, u64),
) -> Result<SentChannel> {
    let before = sender.counts();
    let mut sent = SentChannel::default();
    let mut at = begin + messages.first_ns;
    let is_over = || messages.waits && monotonic_ns() >= end;
    while messages.count > 0 && at < end && !is_over() {
        sys::sleep_until(at);
        sent.offered_late_ns = sent.offered_late_ns.max(monotonic_ns() - at);
        for _ in 0..messages.count {
            sent.offered += 1;
            let number = (before.accepted + sent.accepted).to_be_bytes();
            let body: Vec<u8> = number.into_iter().cycle().take(messages.size).collect();
            let accepted = match messages.waits {
                true => sender.send(body, None),
                false => sender.try_send(body).map_err(|(_, error)| error),
            };
            match accepted {
                Ok(accepted) => {
                    sent.accepted += 1;
                    if let Some(queue) = &mut queue {
                        queue.logical_ns.push_back(accepted.logical.0);
                    }
                }
                Err(
                    ChannelError::WouldBlock | ChannelError::Refused(SendRefusal::Dropped { .. }),
                ) => {
                    sent.dropped += 1;
                    let is_full = queue
                        .as_mut()
                        .is_some_and(|queue| queue.is_full(monotonic_ns()));
                    sent.too_soon += u64::from(is_full);
                }
                Err(error) => return Err(error.into()),
            }
        }
        collect(sender, messages, end, &mut sent);
        at += messages.every_ns;
    }
    sys::sleep_until(end);
    collect(sender, messages, end, &mut sent);
    sender.drain(Some(EVENT_TIMEOUT / 2))?;
    collect(sender, messages, end, &mut sent);
    sent.unsent = sender.counts().unsent - before.unsent;
    Ok(sent)
}

/// Notes the messages that have left.
fn collect(sender: &mut Sender, messages: &Messages, end: u64, sent: &mut SentChannel) {
    while let Some(departure) = sender.departure() {
        let Some(left) = departure.left else {
            continue;
        };
        if left.0 <= end {
            sent.bytes += messages.size as u64;
        }
        if let Some(deadline) = departure.deadline {
            sent.left_ns.push((deadline.0, left.0));
        }
    }
}

fn sink(plan: &ChannelPlan, dir: &RuntimeDir, local: SocketAddr) -> Result<()> {
    let mut options = ChannelPlan {
        block: BLOCK.get(),
        ..plan.clone()
    }
    .options()?;
    // All of a second at 100 Mbit/s.
    let buffers = 8_192;
    options.bytes = 64 << 20;
    let thread = HandlerThread::attach(dir, &options)?;
    let listener = thread.listen(&ListenerOptions {
        buffers,
        ..ListenerOptions::at(local)
    })?;
    let mut receivers = Vec::new();
    for number in 0..plan.channels.len() {
        let mut channel = plan.channel(number)?;
        if let ChannelClass::RealTime(_) = channel.class {
            channel.queue = Some(SINK_QUEUE);
        }
        if let ChannelClass::BestEffort { queue, .. } = &mut channel.class {
            *queue = SINK_QUEUE;
        }
        if plan.computes_ns != (0, 0) {
            channel.stages.insert(0, Box::new(Computes::default()));
        }
        let receiver = listener.open(channel)?;
        let count = Arc::new(Mutex::new(ReceivedChannel::default()));
        let counted = count.clone();
        std::thread::spawn(move || receive(receiver, &counted));
        receivers.push(count);
    }
    println!("{}", json!({"ready": true}));
    for line in std::io::stdin().lock().lines() {
        match line?.as_str() {
            "counts" => println!("{}", counts(&receivers, &listener)),
            other => bail!("{other:?} is no command"),
        }
    }
    Ok(())
}

/// Receives and checks messages until the channel ends.
fn receive(mut receiver: Receiver, count: &Mutex<ReceivedChannel>) {
    while let Ok(message) = receiver.receive(None) {
        let number = message.message.to_be_bytes();
        let is_right = message
            .body
            .iter()
            .eq(number.iter().cycle().take(message.body.len()));
        receiver.reuse(message.body);
        let counts = receiver.counts();
        let mut count = count.lock().unwrap_or_else(PoisonError::into_inner);
        count.messages += 1;
        count.wrong += u64::from(!is_right);
        count.packets = counts.packets;
        count.lost = counts.dropped
            + counts.overflowed
            + counts.corrupted
            + counts.malformed
            + counts.duplicates
            + counts.too_late
            + counts.incomplete;
    }
}

fn counts(receivers: &[Arc<Mutex<ReceivedChannel>>], listener: &Listener) -> Value {
    let of_one = |one: &Arc<Mutex<ReceivedChannel>>| {
        one.lock().unwrap_or_else(PoisonError::into_inner).clone()
    };
    let channels: Vec<ReceivedChannel> = receivers.iter().map(of_one).collect();
    let port = listener.counts();
    json!({
        "channels": channels, "packets": port.packets, "foreign": port.foreign,
        "invalid": port.invalid, "lost": port.lost,
    })
}

/// The messages of a real-time channel whose processing is not due: they can be in its queue
/// however well netnice works.
struct NotDue {
    /// The room in the queue.
    room: u64,
    processing_ns: u64,
    /// The logical arrivals of the messages that were accepted.
    logical_ns: VecDeque<u64>,
}

impl NotDue {
    /// Whether these messages take all the room.
    fn is_full(&mut self, now: u64) -> bool {
        let is_due = |logical: &u64| logical + self.processing_ns <= now;
        while self.logical_ns.front().is_some_and(is_due) {
            self.logical_ns.pop_front();
        }
        self.logical_ns.len() as u64 >= self.room
    }
}

impl PlannedChannel {
    /// The source's queue before it has messages; `None` for best effort. Fails if the contract
    /// does not parse.
    fn queue(&self) -> Result<Option<NotDue>> {
        if self.contract.is_empty() {
            return Ok(None);
        }
        let contract: Contract = self.contract.parse()?;
        let channel = contract.channel().context("no channel")?;
        // The queue's theorem (docs/reference/channels.md, section 5).
        let during = messages_within(channel.processing(), channel.rmax());
        Ok(Some(NotDue {
            room: u64::from(channel.bmax()) + during,
            processing_ns: channel.processing().0,
            logical_ns: VecDeque::new(),
        }))
    }

    /// The deadline in ns; 0 for best effort. Fails if the contract does not parse.
    pub(crate) fn deadline_ns(&self) -> Result<u64> {
        if self.contract.is_empty() {
            return Ok(0);
        }
        let contract: Contract = self.contract.parse()?;
        let channel = contract.channel().context("no channel")?;
        Ok(channel.deadline().0)
    }
}

impl ChannelPlan {
    fn options(&self) -> Result<HandlerThreadOptions> {
        let largest = Bytes(self.largest);
        let block = NonZeroU32::new(self.block).context("a block of 0 packets")?;
        let mut settings = costs::measure(largest, block)?;
        let (first, later) = self.computes_ns;
        // The stage states the cost of a later packet.
        settings.processor.first.0 += first.saturating_sub(later);
        settings.processor.cache_miss.0 += self.switch_ns;
        Ok(HandlerThreadOptions::new(ExecutorSettings {
            horizon: Nanos(self.horizon_ns),
            early: match self.early_before_best_effort {
                true => EarlyOrder::BeforeLeftOver,
                false => EarlyOrder::AfterLeftOver,
            },
            ..settings
        }))
    }

    fn channel(&self, number: usize) -> Result<ChannelOptions> {
        let planned = &self.channels[number];
        let class = if planned.contract.is_empty() {
            let (mmax, queue) = planned.best_effort;
            ChannelClass::BestEffort {
                weight: Weight::default(),
                mmax: Bytes(mmax),
                queue,
                when_full: WhenFull::Wait,
            }
        } else {
            let contract: Contract = planned.contract.parse()?;
            ChannelClass::RealTime(contract.channel().context("no channel")?)
        };
        // The program is the only one with these identifiers.
        let id = ChannelId([number as u8 + 1; 16]);
        let mut options = ChannelOptions::new(id, class);
        for stage in &planned.stages {
            options.stages.push(match stage.as_str() {
                "checksum" => Box::new(Checksum::new(Nanos(1_000))) as Box<dyn Stage>,
                "encryption" => Box::new(Encryption::new(&[number as u8; 32], Nanos(5_000))),
                other => bail!("{other:?} is no stage"),
            });
        }
        Ok(options)
    }
}

/// A stage that computes for some processor time: for the first packet of a message, for each later
/// one, and in addition after a packet of another channel.
#[derive(Default)]
struct Computes {
    packets_ns: (u64, u64),
    switch_ns: u64,
    /// The number of the channel.
    own: usize,
    /// The number of the channel that had the last packet of all. The channels share it, and one
    /// thread runs them.
    last: Arc<AtomicUsize>,
}

impl Stage for Computes {
    fn overhead(&self) -> usize {
        0
    }

    fn cost(&self) -> Nanos {
        Nanos(self.packets_ns.1)
    }

    fn seal(&mut self, header: &PacketHeader, _: &mut [u8], _: usize) {
        let (first, later) = self.packets_ns;
        let mut time = if header.part == 0 { first } else { later };
        if self.last.swap(self.own, Ordering::Relaxed) != self.own {
            time += self.switch_ns;
        }
        sys::burn(Duration::from_nanos(time));
    }

    fn open(&mut self, _: &PacketHeader, payload: &mut [u8]) -> Result<usize, StageError> {
        Ok(payload.len())
    }
}

/// A running program with one end of the channels of a plan. It ends when it is dropped.
pub struct ChannelProgram {
    proc: Proc,
}

impl ChannelProgram {
    /// Starts the program on `host`, with channels of the daemon with this runtime folder: the
    /// source if there is a remote endpoint, else the sink. The source has a port for each channel,
    /// from that of `local` on. Fails if the program is not ready within 60 s, for example because
    /// a contract does not fit.
    pub fn start(
        host: &Host,
        runtime: &Path,
        (local, remote): (SocketAddr, Option<SocketAddr>),
        plan: &ChannelPlan,
    ) -> Result<ChannelProgram> {
        let mut command = host.ns.command(process::binary("netnice-lab")?);
        command
            .args(["traffic", "channels", "--runtime-dir"])
            .arg(runtime);
        command.args(["--local", &local.to_string()]);
        if let Some(remote) = remote {
            command.args(["--remote", &remote.to_string()]);
        }
        command.args(["--plan", &serde_json::to_string(plan)?]);
        let mut proc = Proc::start(command)?;
        proc.next_json("ready", EVENT_TIMEOUT)?;
        Ok(ChannelProgram { proc })
    }

    /// Sends messages, and returns what each channel sent and the stops of the handlers' thread.
    /// Fails if the program does.
    pub fn run(&mut self, plan: &SendPlan) -> Result<(Vec<SentChannel>, Vec<String>)> {
        let plan_text = serde_json::to_string(plan)?;
        self.proc.write_line(&format!("run {plan_text}"))?;
        let within = Duration::from_nanos(plan.lasts_ns) + EVENT_TIMEOUT;
        let answer = self.proc.next_json("channels", within)?;
        let channels = serde_json::from_value(answer["channels"].clone())?;
        Ok((channels, serde_json::from_value(answer["stops"].clone())?))
    }

    /// What the sink's channels have received, and the counts of its port. Fails if the program
    /// does.
    pub fn counts(&mut self) -> Result<(Vec<ReceivedChannel>, Value)> {
        self.proc.write_line("counts")?;
        let answer = self.proc.next_json("channels", EVENT_TIMEOUT)?;
        Ok((serde_json::from_value(answer["channels"].clone())?, answer))
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.proc.pid()
    }
}

pub(super) fn slice(text: &str) -> Result<Slice> {
    let contract: Contract = format!("slice {text}").parse()?;
    contract.slice().context("no slice")
}

/// Time from the command to the first message.
const LEAD_NS: u64 = 20_000_000;
/// Messages that a receiver of the sink queues.
const SINK_QUEUE: u32 = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_full_of_messages_that_are_not_due_until_one_of_them_is() {
        let planned = |contract: &str| PlannedChannel {
            contract: contract.to_owned(),
            best_effort: (1, 1),
            stages: Vec::new(),
        };
        let contract = "channel mmax=1KiB,rmax=100/s,bmax=2,deadline=30ms,processing=20ms";
        let queue = planned(contract).queue().expect("a contract");
        let mut queue = queue.expect("real-time");
        // Bmax, and two messages in the time for processing.
        assert_eq!(queue.room, 4);
        let ms = |time: u64| time * 1_000_000;
        queue.logical_ns.extend([0, 10, 20].map(ms));
        assert!(!queue.is_full(ms(1)));
        queue.logical_ns.push_back(ms(30));
        assert!(queue.is_full(ms(1)));
        assert!(queue.is_full(ms(20) - 1));
        assert!(!queue.is_full(ms(20)));
        assert!(planned("").queue().expect("best effort").is_none());
    }
}
