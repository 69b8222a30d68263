//! `netnice channel open`, `test` and `carry`: opens a channel, sends messages until the input
//! ends, and waits until the last one has arrived.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use netnice_api::{Exit, RuntimeDir};
use netnice_channel::network::{Hop, OutgoingChannel, RemoteChannel};
use netnice_channel::{ChannelClass, ChannelError, ChannelId, ChannelOptions, SendRefusal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;

use super::input::{Messages, Next};
use super::replies::{Replies, ReplyOptions};
use super::{Input, Open, ReservedTime, connect, hops_text, of_channel, signal_flag, stages};
use crate::error::CommandError;
use crate::output::print_text;
use crate::render::printable;

/// What `netnice channel test` reports.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// Messages that the channel accepted, and those that it dropped.
    accepted: u64,
    dropped: u64,
    /// Messages whose last packet left this host after this host's bound.
    late_here: u64,
    /// Packets that did not leave.
    unsent_packets: u64,
    /// Time between the departure of a message from this host and this host's bound, in
    /// nanoseconds: the least, and of half of the messages at least so much.
    least_laxity_ns: Option<i64>,
    median_laxity_ns: Option<i64>,
    /// The hosts with their bounds in nanoseconds.
    hops: Vec<(String, u64)>,
    /// The hosts before whose interface nothing is declared, with the interface.
    unguarded: Vec<(String, String)>,
}

/// Sends the messages of the input.
pub(super) fn execute(dir: &RuntimeDir, json: bool, open: Open) -> Result<Exit, CommandError> {
    let stages = Arc::new(stages(&open.end)?);
    let network = connect(dir, &open.end)?;
    let id = ChannelId::random().map_err(|error| CommandError::io("random numbers", error))?;
    let mut options = ChannelOptions::new(id, ChannelClass::RealTime(open.channel));
    options.stages = stages.stages(id);
    let mmax = usize::try_from(open.channel.mmax().0).unwrap_or(usize::MAX);
    let mut messages = Messages::new(open.input, mmax)?;
    let port = messages.datagram_port().filter(|_| open.replies);
    let replies = port.map(|port| {
        let options = ReplyOptions {
            network: network.clone(),
            stages: stages.clone(),
            processing: open.end.processing,
            quiet: open.end.quiet,
        };
        Replies::offer(options, id, port.clone())
    });
    let _replies = replies.transpose()?;
    let mut channel = network.open(RemoteChannel {
        service: open.service.clone(),
        host: open.host.clone(),
        options,
    })?;
    let is_test = matches!(open.input, Input::Test(_));
    let is_datagram = matches!(open.input, Input::Udp(_));
    let hops = hops_text(channel.hops());
    if !open.end.quiet && !json {
        let to = printable(&format!("{}@{}", open.service, open.host));
        eprintln!("netnice: channel {} to {to}: {hops}", &id.to_string()[..8]);
        for warning in channel.hops().iter().filter_map(unguarded_text) {
            eprintln!("netnice: {warning}");
        }
        if open.end.cpu == ReservedTime::None {
            eprintln!(
                "netnice: no processor time is reserved for this end (--cpu), so it is no promise"
            );
        }
    }
    let ends = signal_flag()?;
    let mut too_long = 0_u64;
    let mut laxities = Vec::new();
    let mut is_readable = false;
    while !ends.load(Ordering::Relaxed) {
        match messages.next(is_readable)? {
            Next::End => break,
            Next::Wait => is_readable = wait(&mut channel, &messages)?,
            Next::Message(message) => {
                is_readable = false;
                send(&mut channel, message, is_datagram, &mut too_long)?;
            }
        }
        take_departures(&mut channel, &mut laxities);
    }
    channel.drain(Some(DRAIN)).map_err(of_channel)?;
    take_departures(&mut channel, &mut laxities);
    let report = report(&channel, laxities);
    channel.finish(Some(DRAIN))?;
    if is_test {
        match json {
            true => print_text(&serde_json::to_string(&report).unwrap_or_default())?,
            false => print_text(&text_of(&report))?,
        }
    } else if !open.end.quiet {
        let (sent, dropped) = (report.accepted, report.dropped);
        eprintln!(
            "netnice: {sent} messages sent, {dropped} dropped, {} late here",
            report.late_here
        );
        if too_long > 0 {
            eprintln!("netnice: {too_long} datagrams were longer than --mmax, and were not sent");
        }
    }
    Ok(match report.unsent_packets {
        0 => Exit::Done,
        _ => Exit::Error,
    })
}

/// A warning about a host whose port is not declared; `None` if the port is guarded.
fn unguarded_text(hop: &Hop) -> Option<String> {
    let iface = printable(hop.unguarded.as_deref()?);
    let host = printable(&hop.host);
    Some(format!(
        "unguarded: {host} has no declaration of the port before its {iface}, so traffic of other \
         hosts can delay messages there: see [[port]] in netnice-peer(8)"
    ))
}

/// Waits until the input is readable, or something has happened on the channel. True if the input
/// is readable. Fails if the channel has ended.
fn wait(channel: &mut OutgoingChannel, messages: &Messages) -> Result<bool, CommandError> {
    let (mut readable, mut failed) = (false, None);
    if channel.arm() {
        let fds = [Some(channel.as_fd()), messages.fd()].into_iter().flatten();
        let mut fds: Vec<PollFd<'_>> = fds
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut fds, Some(&LOOK)) {
            Ok(_) => readable = fds.get(1).is_some_and(|fd| !fd.revents().is_empty()),
            Err(Errno::INTR) => {}
            Err(error) => failed = Some(CommandError::io("poll", error.into())),
        }
    }
    channel.disarm();
    match (failed, channel.end_reason()) {
        (Some(error), _) => Err(error),
        (None, Some(why)) => Err(of_channel(ChannelError::Ended(why))),
        (None, None) => Ok(readable),
    }
}

/// Sends a message, and waits for room as the overload policy says. Counts a datagram that is too
/// long; fails for another message that is, and if the channel has ended.
fn send(
    channel: &mut OutgoingChannel,
    message: Vec<u8>,
    is_datagram: bool,
    too_long: &mut u64,
) -> Result<(), CommandError> {
    match channel.send(message, None) {
        Ok(_) => Ok(()),
        Err(ChannelError::Refused(SendRefusal::TooLong { .. })) if is_datagram => {
            *too_long += 1;
            Ok(())
        }
        Err(ChannelError::Refused(SendRefusal::Dropped { .. })) => Ok(()),
        Err(error) => Err(of_channel(error)),
    }
}

fn take_departures(channel: &mut OutgoingChannel, laxities: &mut Vec<i64>) {
    while let Some(departure) = channel.departure() {
        laxities.extend(departure.laxity());
    }
}

fn report(channel: &OutgoingChannel, mut laxities: Vec<i64>) -> Report {
    let counts = channel.counts();
    laxities.sort_unstable();
    let hop = |hop: &Hop| (hop.host.clone(), hop.bound.0);
    let unguarded = |hop: &Hop| Some((hop.host.clone(), hop.unguarded.clone()?));
    Report {
        accepted: counts.accepted,
        dropped: counts.dropped,
        late_here: counts.late,
        unsent_packets: counts.unsent,
        least_laxity_ns: laxities.first().copied(),
        median_laxity_ns: laxities.get(laxities.len() / 2).copied(),
        hops: channel.hops().iter().map(hop).collect(),
        unguarded: channel.hops().iter().filter_map(unguarded).collect(),
    }
}

fn text_of(report: &Report) -> String {
    let millis = |laxity: Option<i64>| match laxity {
        Some(laxity) => format!("{:.3} ms", laxity as f64 / 1e6),
        None => "-".to_owned(),
    };
    format!(
        "messages    {} sent, {} dropped\nat this host {} late, {} packets not sent\nlaxity      {} \
         least, {} median, to this host's bound",
        report.accepted,
        report.dropped,
        report.late_here,
        report.unsent_packets,
        millis(report.least_laxity_ns),
        millis(report.median_laxity_ns),
    )
}

/// The longest time that the last messages may take to leave.
const DRAIN: Duration = Duration::from_secs(10);
/// How long the command sleeps before it looks for signals.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

#[cfg(test)]
mod tests {
    use netnice_core::units::Nanos;

    use super::*;

    #[test]
    fn an_unguarded_port_is_named_in_plain_words() {
        let mut hop = Hop {
            host: "recorder".to_owned(),
            bound: Nanos::from_millis(1),
            unguarded: None,
        };
        assert_eq!(unguarded_text(&hop), None);
        assert_eq!(hops_text(std::slice::from_ref(&hop)), "recorder 1ms");
        hop.unguarded = Some("eth0\u{1b}".to_owned());
        let text = unguarded_text(&hop).expect("a warning");
        assert!(
            text.starts_with("unguarded: recorder has no declaration of the port before its eth0")
                && !text.contains('\u{1b}'),
            "{text}"
        );
        let hops = hops_text(&[hop]);
        assert!(hops.starts_with("recorder 1ms (unguarded: eth0"), "{hops}");
    }
}
