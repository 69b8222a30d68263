//! `netnice channel listen`: accepts channels, and passes their messages on. A thread for each
//! channel takes its messages, so that one channel does not delay another.

use std::io::Write;
use std::net::UdpSocket;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use netnice_api::{Exit, RuntimeDir};
use netnice_channel::ChannelError;
use netnice_channel::network::{IncomingChannel, NetworkError, ServiceOptions};

use super::replies::ReplyOptions;
use super::{Listen, Output, connect, hops_text, signal_flag, stages};
use crate::error::CommandError;
use crate::output::{output_error, write_bytes};
use crate::render::printable;

/// Listens until as many channels have ended as are asked for, or a signal comes.
pub(super) fn execute(dir: &RuntimeDir, listen: &Listen) -> Result<Exit, CommandError> {
    let stages = Arc::new(stages(&listen.end)?);
    let network = connect(dir, &listen.end)?;
    let passing = Passing {
        output: listen.output,
        quiet: listen.end.quiet,
        replies: listen.replies.then(|| ReplyOptions {
            network: network.clone(),
            stages: stages.clone(),
            processing: listen.end.processing,
            quiet: listen.end.quiet,
        }),
    };
    let options = ServiceOptions {
        stages: Box::new(move |channel| stages.stages(channel)),
        processing: listen.end.processing,
        mmax: listen.mmax,
        channels: listen.channels,
        ..ServiceOptions::default()
    };
    let ends = signal_flag()?;
    let service = network.listen(&listen.service, options)?;
    if !listen.end.quiet {
        let (name, host) = (printable(&listen.service), printable(service.host()));
        eprintln!("netnice: listens as {name}@{host}");
    }
    let (finished, results) = mpsc::channel();
    let mut ended = 0;
    loop {
        match service.accept(Some(LOOK)) {
            Ok(channel) => {
                let (passing, finished) = (passing.clone(), finished.clone());
                let take = move || {
                    // The receiver lives as long as this command.
                    let _ = finished.send(pass_on(channel, &passing));
                };
                let thread = std::thread::Builder::new().name("messages".into());
                let thread = thread.spawn(take);
                thread.map_err(|error| CommandError::io("a thread for a channel", error))?;
            }
            Err(NetworkError::Timeout) => {}
            Err(error) => return Err(error.into()),
        }
        while let Ok(result) = results.try_recv() {
            result?;
            ended += 1;
        }
        if ends.load(Ordering::Relaxed) || listen.count.is_some_and(|count| ended >= count) {
            return Ok(Exit::Done);
        }
    }
}

/// What happens to the messages of each channel.
#[derive(Clone)]
struct Passing {
    output: Output,
    /// True: print nothing about channels that begin or end.
    quiet: bool,
    /// How the datagrams of the program at the output go back; `None` if they do not.
    replies: Option<ReplyOptions>,
}

/// Passes the messages of a channel on until it ends. Fails if the output does.
fn pass_on(mut channel: IncomingChannel, passing: &Passing) -> Result<(), CommandError> {
    let (output, quiet) = (passing.output, passing.quiet);
    let name = channel.id().to_string();
    let name = &name[..8];
    if !quiet {
        let hops = hops_text(channel.hops());
        eprintln!("netnice: channel {name} begins: {hops}");
    }
    let socket = match output {
        Output::Udp(to) => Some(connected(to)?),
        _ => None,
    };
    let back = passing.replies.as_ref().zip(socket.as_ref());
    let back = back.map(|(options, socket)| options.send(&channel, socket));
    let _replies = back.transpose()?;
    let (mut messages, mut bytes, mut unsent) = (0_u64, 0_u64, 0_u64);
    let why = loop {
        let message = match channel.receive(None) {
            Ok(message) => message,
            Err(ChannelError::Ended(why)) => break why,
            Err(error) => return Err(super::of_channel(error)),
        };
        messages += 1;
        bytes += message.body.len() as u64;
        match (output, &socket) {
            (Output::Bytes, _) => write_bytes(&message.body)?,
            (Output::Lines, _) => {
                let mut out = std::io::stdout().lock();
                let written = out
                    .write_all(&message.body)
                    .and_then(|()| out.write_all(b"\n"));
                written.and_then(|()| out.flush()).map_err(output_error)?;
            }
            // The program may not run yet, or not any more.
            (_, Some(socket)) => unsent += u64::from(socket.send(&message.body).is_err()),
            (_, None) => {}
        }
        channel.reuse(message.body);
    };
    if !quiet {
        let counts = channel.counts();
        let lost = counts.incomplete + counts.dropped;
        let mut text = format!(
            "netnice: channel {name} has ended: {}; {messages} messages, {bytes} bytes, {lost} lost",
            printable(&why)
        );
        if unsent > 0 {
            text.push_str(&format!(", {unsent} not taken by the program"));
        }
        eprintln!("{text}");
    }
    Ok(())
}

/// A socket that sends to an address.
fn connected(to: std::net::SocketAddr) -> Result<UdpSocket, CommandError> {
    let any: std::net::SocketAddr = match to.is_ipv4() {
        true => ([0, 0, 0, 0], 0).into(),
        false => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any).and_then(|socket| socket.connect(to).map(|()| socket));
    socket.map_err(|error| CommandError::io(format!("--udp {to}"), error))
}

/// How often the command looks for signals and for channels that have ended.
const LOOK: Duration = Duration::from_millis(100);
