//! The program `netnice-lab traffic segments` opens flows of TCP, and passes on the frames that a
//! test makes and reads. [`Commanded::segments`] starts it.
//!
//! Each line of its standard input is a command. The program answers each with one line of JSON,
//! whose member `answer` is the error as text, or has these members:
//!
//! - `connection LOCAL REMOTE CONTRACT…`, `requests LOCAL CONTRACT…`, `listener LOCAL CONTRACT…`:
//!   opens a flow, with the rest of the line as its contract: `opened`, its place among the flows
//!   that the program has opened; `number`, the daemon's number; `local`; `mac`; `next_hop`, or
//!   null; `mtu`; and `key`.
//! - `send PLACE FRAME`: `sent`.
//! - `recv PLACE MILLISECONDS`: `frame`, the next one, or null after that time.
//! - `close PLACE`: `closed`.
//! - `notification`: `notification`, the oldest one from the daemon, or null.
//!
//! Frames, keys and Ethernet addresses are in hexadecimal. The program ends with its input. It
//! fails if it cannot attach, and for an unknown command.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use netnice_stack::segments::{SegmentEndpoint, SegmentFlow};
use netnice_stack::udp::Buffers;
use netnice_stack::{Program, RuntimeDir, StackError};
use serde_json::{Value, json};

use super::Commanded;
use crate::process::{self, EVENT_TIMEOUT, Proc};
use crate::world::Host;

/// The arguments of `netnice-lab traffic segments`.
#[derive(Debug, Clone, clap::Args)]
pub struct SegmentsArgs {
    /// The daemon's folder.
    #[arg(long)]
    runtime_dir: PathBuf,
    /// The interface.
    #[arg(long)]
    iface: String,
}

/// Runs the program. Fails if it cannot attach, and for an unknown command.
pub fn main(args: &SegmentsArgs) -> Result<()> {
    let dir = RuntimeDir::choose(Some(args.runtime_dir.clone()), None);
    let bytes = u64::from(FLOWS) * BUFFERS.region_bytes()?;
    let program = Program::attach(&dir, Some(&args.iface), FLOWS, bytes)
        .context("cannot attach to the direct path")?;
    println!("{}", json!({"ready": true, "pid": std::process::id()}));
    let mut flows: Vec<Option<SegmentFlow>> = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let answer = match execute(&program, &mut flows, &line) {
            Ok(answer) => answer,
            Err(error) => match error.downcast::<StackError>() {
                Ok(refused) => json!(refused.to_string()),
                Err(error) => return Err(error),
            },
        };
        println!("{}", json!({"answer": answer}));
    }
    // The end of a process, and not of its flows.
    std::process::exit(0)
}

fn execute(program: &Program, flows: &mut Vec<Option<SegmentFlow>>, line: &str) -> Result<Value> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["connection", local, remote, ref contract @ ..] => {
            let (local, remote) = (local.parse()?, remote.parse()?);
            let endpoint = SegmentEndpoint::Connection { local, remote };
            open(program, flows, endpoint, contract)
        }
        ["requests", local, ref contract @ ..] => {
            let local = local.parse()?;
            let endpoint = SegmentEndpoint::ConnectionRequests { local };
            open(program, flows, endpoint, contract)
        }
        ["listener", local, ref contract @ ..] => {
            let local = local.parse()?;
            open(
                program,
                flows,
                SegmentEndpoint::Listener { local },
                contract,
            )
        }
        ["send", place, frame] => {
            flow(flows, place)?.send(&bytes_of(frame)?)?;
            Ok(json!({"sent": true}))
        }
        ["recv", place, milliseconds] => {
            let timeout = Duration::from_millis(milliseconds.parse()?);
            match flow(flows, place)?.recv(Some(timeout)) {
                Ok(frame) => Ok(json!({"frame": text_of(&frame)})),
                Err(StackError::WouldBlock) => Ok(json!({"frame": null})),
                Err(error) => Err(error.into()),
            }
        }
        ["close", place] => {
            let place: usize = place.parse()?;
            let closed = flows.get_mut(place).and_then(Option::take);
            closed.context("no such flow")?.close();
            Ok(json!({"closed": true}))
        }
        ["notification"] => {
            let next = program.next_notification();
            let next = next.map(|notification| format!("{notification:?}"));
            Ok(json!({"notification": next}))
        }
        _ => bail!("`{line}` is no command"),
    }
}

fn open(
    program: &Program,
    flows: &mut Vec<Option<SegmentFlow>>,
    endpoint: SegmentEndpoint,
    contract: &[&str],
) -> Result<Value> {
    let contract = contract.join(" ");
    let contract = (!contract.is_empty()).then_some(contract.as_str());
    let flow = program.open_segments(endpoint, contract, BUFFERS)?;
    let answer = json!({
        "opened": flows.len(),
        "number": flow.number(),
        "local": flow.local().to_string(),
        "mac": text_of(&flow.mac()),
        "next_hop": flow.next_hop().map(|mac| text_of(&mac)),
        "mtu": flow.mtu(),
        "key": text_of(&flow.key()),
    });
    flows.push(Some(flow));
    Ok(answer)
}

fn flow<'a>(flows: &'a mut [Option<SegmentFlow>], place: &str) -> Result<&'a mut SegmentFlow> {
    let place: usize = place.parse()?;
    let flow = flows.get_mut(place).and_then(Option::as_mut);
    flow.context("no such flow")
}

/// Bytes in hexadecimal.
pub fn text_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of a text in hexadecimal. Fails if it is none.
pub fn bytes_of(text: &str) -> Result<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    let bytes = pairs.map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?));
    bytes.collect()
}

impl Commanded {
    /// Starts `netnice-lab traffic segments` on `host`, attached to its device `iface` by the
    /// daemon with this runtime folder. `through` is a command that executes the copy `lab` of
    /// `netnice-lab`, such as `setpriv … --`; `None`: the program under test is executed. Fails if
    /// the program cannot attach.
    pub fn segments(
        host: &Host,
        (iface, runtime): (&str, &Path),
        through: Option<(Command, &Path)>,
    ) -> Result<Commanded> {
        let mut command = match through {
            None => host.ns.command(process::binary("netnice-lab")?),
            Some((mut command, lab)) => {
                command.arg(lab);
                command
            }
        };
        command
            .args(["traffic", "segments", "--iface", iface, "--runtime-dir"])
            .arg(runtime);
        let mut proc = Proc::start(command)?;
        proc.next_json("ready", EVENT_TIMEOUT)?;
        Ok(Commanded { proc })
    }

    /// Gives the program a command, and returns its answer. Fails with the error of the command, or
    /// if there is no answer within `within`.
    pub fn ask(&mut self, line: &str, within: Duration) -> Result<Value> {
        self.command(line)?;
        let mut answer = self.answer("answer", within)?;
        match answer["answer"].take() {
            Value::String(error) => bail!(error),
            answer => Ok(answer),
        }
    }

    /// Gives the program a command that must fail, and returns the error of the command.
    pub fn refusal(&mut self, line: &str) -> Result<String> {
        let answer = self.run(line, "answer")?;
        let error = answer["answer"].as_str();
        Ok(error
            .with_context(|| format!("{line}: {answer}"))?
            .to_owned())
    }

    /// Ends the program at once, by SIGKILL.
    pub fn kill(&mut self) {
        self.proc.kill();
    }
}

/// Flows that the program can have open at the same time.
const FLOWS: u32 = 8;
const BUFFERS: Buffers = Buffers {
    bytes: 2048,
    sending: 16,
    receiving: 16,
};
