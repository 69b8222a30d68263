//! Clients that change limits concurrently, each over a connection of its own, and record each
//! change and its outcome. Between the changes they request `show` and `ping`.
//!
//! Each client has a target that no other client of the same user has. So if only the log lines of
//! one user and one target are counted, the n-th line belongs to the n-th logged change of one
//! client. The clients begin when the program reads the first line from standard input. After they
//! have ended, each further line is a command (`TARGET up 4mbit` or `TARGET clear`); the program
//! sends it to a second daemon (`--second`) and prints its outcome. With these commands a test
//! repeats the changes of all clients one after the other, in the order of the first daemon's log,
//! and compares the outcomes. The program fails if it cannot start the targets' processes, if the
//! number of targets is not that of the clients, if standard input ends before the first line or
//! has an invalid command, or if a daemon does not respond to a change.

use std::io::BufRead;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use netnice_api::{ClearWhat, Client, Ping, Request, Response, RuntimeDir, Set, Show};
use netnice_sim::Random;
use serde::{Deserialize, Serialize};

use super::hostile::sleeper;
use super::{Common, clear_request, pidfd};

/// The arguments of `netnice-lab storm client`.
#[derive(Debug, Clone, clap::Args)]
pub struct ClientArgs {
    #[command(flatten)]
    common: Common,
    /// Number of clients.
    #[arg(long)]
    clients: usize,
    /// Number of requests of each client.
    #[arg(long)]
    requests: u64,
    /// The target of each client; the default is a process of its own.
    #[arg(long, value_delimiter = ',')]
    targets: Vec<String>,
    /// Guarantees are requested too.
    #[arg(long)]
    promises: bool,
    /// The folder of the daemon that gets the commands.
    #[arg(long)]
    second: PathBuf,
}

/// The changes, the number of requests and the failures of one client. When all clients have ended,
/// the program prints the records of all of them as one line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientRecord {
    /// The target.
    pub target: String,
    /// The client's changes for which the daemon logs a line with the target, in order.
    pub changes: Vec<Change>,
    /// Number of requests that the client made: changes, `show` and `ping`.
    pub requests: u64,
    /// Wrong or missing responses to `show` and `ping`.
    pub failures: Vec<String>,
}

/// A change and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The change: text such as `up 4mbit`, or `clear`.
    pub request: String,
    /// The outcome of the change.
    pub outcome: ChangeOutcome,
}

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeOutcome {
    /// The daemon made the change.
    Done,
    /// The daemon refused the change, or could not make it.
    Refused,
    /// The request was invalid, or the daemon did not clear the target: the log has no line with
    /// the target.
    Nothing,
}

/// One client's target.
struct ClientTarget {
    target: String,
    handle: Option<OwnedFd>,
}

/// Runs the program: its arguments come in, and JSON lines go out on standard output. Fails for the
/// reasons that the module names.
pub(crate) fn main(args: &ClientArgs) -> Result<()> {
    let mut children: Vec<Child> = Vec::new();
    let mut targets = args.targets.clone();
    if targets.is_empty() {
        for _ in 0..args.clients {
            let child = sleeper()?;
            targets.push(format!("pid:{}", child.id()));
            children.push(child);
        }
    }
    if targets.len() != args.clients {
        bail!("{} targets for {} clients", targets.len(), args.clients);
    }
    println!("{}", serde_json::json!({"ready": targets}));
    let mut commands = std::io::stdin().lock().lines();
    commands.next().context("no line to begin")??;
    let records: Vec<Result<ClientRecord>> = std::thread::scope(|scope| {
        let clients: Vec<_> = targets
            .iter()
            .enumerate()
            .map(|(n, target)| {
                let random = Random::new(args.common.seed.wrapping_add(n as u64));
                scope.spawn(move || run_client(args, target, random))
            })
            .collect();
        let ended = clients.into_iter().map(|client| client.join());
        ended
            .map(|ended| ended.unwrap_or_else(|_| bail!("a client panicked")))
            .collect()
    });
    let records: Vec<ClientRecord> = records.into_iter().collect::<Result<_>>()?;
    println!("{}", serde_json::json!({"records": records}));
    let second = RuntimeDir::choose(Some(args.second.clone()), None);
    let mut client = None;
    for command in commands {
        let command = command?;
        let (target, change) = command.split_once(' ').context("a command has two parts")?;
        let client = match &mut client {
            Some(client) => client,
            none => none.insert(Client::connect(&second)?),
        };
        let outcome = make_change(client, &resolve_target(target)?, change)?;
        println!("{}", serde_json::json!({"outcome": outcome}));
    }
    for mut child in children {
        child.kill()?;
        child.wait()?;
    }
    Ok(())
}

fn resolve_target(target: &str) -> Result<ClientTarget> {
    let pid = target.strip_prefix("pid:");
    let handle = pid.map(|pid| anyhow::Ok(pidfd(pid.parse()?)?));
    Ok(ClientTarget {
        target: target.to_owned(),
        handle: handle.transpose()?,
    })
}

/// Makes one client's requests.
fn run_client(args: &ClientArgs, target: &str, mut random: Random) -> Result<ClientRecord> {
    let mut client = Client::connect(&args.common.dir())?;
    let client_target = resolve_target(target)?;
    let mut record = ClientRecord {
        target: target.to_owned(),
        changes: Vec::new(),
        requests: 0,
        failures: Vec::new(),
    };
    for _ in 0..args.requests {
        record.requests += 1;
        let change = match random.below(10) {
            0 => format!("up {}kbit", 10_000 + random.below(90_000)),
            1 if args.promises => format!("min {}kbit", 500 + random.below(8_000)),
            1 => format!("down {}kbit", 10_000 + random.below(90_000)),
            2 => "clear".to_owned(),
            3 => {
                let shown =
                    client.call_within(RESPONSE_TIMEOUT, &Request::Show(Show::default()), None);
                if !matches!(shown, Ok(Response::Shown(_))) {
                    record.failures.push(format!("show: {shown:?}"));
                }
                continue;
            }
            _ => {
                let pong = client.call_within(RESPONSE_TIMEOUT, &Request::Ping(Ping {}), None);
                if !matches!(pong, Ok(Response::Pong(_))) {
                    record.failures.push(format!("ping: {pong:?}"));
                }
                continue;
            }
        };
        let outcome = make_change(&mut client, &client_target, &change)?;
        if outcome != ChangeOutcome::Nothing {
            record.changes.push(Change {
                request: change,
                outcome,
            });
        }
    }
    Ok(record)
}

/// Requests one change.
fn make_change(
    client: &mut Client,
    client_target: &ClientTarget,
    change: &str,
) -> Result<ChangeOutcome> {
    let clears = change == "clear";
    let request = match clears {
        true => clear_request(ClearWhat::Target(client_target.target.clone())),
        false => Request::Set(Set {
            target: client_target.target.clone(),
            change: Some(change.to_owned()),
            ..Set::default()
        }),
    };
    let handle = client_target
        .handle
        .as_ref()
        .filter(|_| !clears)
        .map(AsFd::as_fd);
    let answer = client.call_within(RESPONSE_TIMEOUT, &request, handle);
    Ok(
        match answer.with_context(|| format!("{} {change}", client_target.target))? {
            Response::Done(_) => ChangeOutcome::Done,
            // The log has a line with the target of a `set` that is refused or fails. It has no
            // such line of a `clear` that is refused, or of an invalid request.
            Response::Refused(_) if !clears => ChangeOutcome::Refused,
            Response::Failed(failed) if !clears && !failed.bad_usage => ChangeOutcome::Refused,
            Response::Refused(_) | Response::Failed(_) => ChangeOutcome::Nothing,
            other => bail!("{} {change}: {other:?}", client_target.target),
        },
    )
}

/// Time limit for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
