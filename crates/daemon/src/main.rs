//! The program `netniced`: parses the command line, and runs the daemon, the front process, a test
//! of the front's confinement, or a probe of the kernel. The exit status is 0 on success, 2 if the
//! arguments are invalid, and 1 if the chosen part fails or a probe finds that the kernel lacks a
//! required feature.
//!
//! The log goes to standard error. The variable `NETNICE_LOG` sets its levels, in the syntax of
//! [`Targets`]; without it, or if it does not parse, the level is info.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use netnice_api::{Exit, RuntimeDir, Status};
use netnice_core::units::Nanos;
use netnice_daemon::{Address, AddressError, Options};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// Keeps network contracts on this host: serves netnice(1), and keeps limits and guarantees in the
/// kernel.
#[derive(Parser)]
#[command(name = "netniced", version)]
struct Arguments {
    /// Folder of the socket, the state and the pins [default: $NETNICE_RUNTIME_DIR, else
    /// /run/netnice]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
    /// Policy file
    #[arg(long, value_name = "FILE", default_value = "/etc/netnice/policy.toml")]
    policy: PathBuf,
    /// Docker's data folder, for the names of containers [default: from daemon.json, else
    /// /var/lib/docker]
    #[arg(long, value_name = "DIR")]
    docker_root: Option<PathBuf>,
    /// Podman's storage [default: from storage.conf, else /var/lib/containers/storage]
    #[arg(long, value_name = "DIR")]
    podman_root: Option<PathBuf>,
    /// Print what this kernel offers and what would be used, and exit
    #[arg(long)]
    probe: bool,
    /// Measure for TIME what this machine takes from a real-time thread, print the value of the
    /// policy's key `stops`, and exit. Uses nine tenths of a processor
    #[arg(long, value_name = "TIME", conflicts_with = "probe", value_parser = measured_time)]
    stops: Option<Nanos>,
    /// With --probe: print JSON
    #[arg(long, requires = "probe")]
    json: bool,
    /// Serve metrics for Prometheus, over HTTP at /metrics [default ADDR: 127.0.0.1:9469]
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "127.0.0.1:9469")]
    metrics: Option<Address>,
    /// With --metrics: at an address that other machines can reach
    #[arg(long, requires = "metrics")]
    metrics_open: bool,
    /// Run as the front process of the daemon that started this process, as this user and group
    #[arg(long, value_name = "UID:GID", hide = true, value_parser = user)]
    front: Option<(u32, u32)>,
    /// Confine this process as with --front, try what must then be impossible, and print each
    /// result
    #[arg(long, value_name = "UID:GID", hide = true, value_parser = user)]
    try_front: Option<(u32, u32)>,
    /// Let drivers write when their packet threads stood still, to DIR/driver-IFACE.stops; for
    /// experiments
    #[arg(long)]
    driver_stops: bool,
    /// Accept file descriptors from clients, as on kernels before Linux 6.16; for tests
    #[arg(long, hide = true)]
    take_descriptors: bool,
    /// Continue with the options of the daemon that served this folder, if it was killed
    #[arg(long, hide = true)]
    resume: bool,
    /// No effect: the daemon always stays in the foreground; for unit files that name the option
    #[arg(long)]
    foreground: bool,
}

impl Arguments {
    /// The address to serve metrics at; `None` if metrics are off.
    ///
    /// # Errors
    /// If the address is reachable from other machines and `--metrics-open` is not given.
    fn metrics(&self) -> Result<Option<Address>, AddressError> {
        let checked = self.metrics.map(|it| it.check(self.metrics_open));
        checked.transpose()
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let levels = std::env::var("NETNICE_LOG").ok();
    let levels = levels.and_then(|text| text.parse().ok());
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .finish()
        .with(levels.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO)))
        .init();
    if arguments.probe {
        return probe(arguments.json);
    }
    if let Some(duration) = arguments.stops {
        return match netnice_daemon::measure_stops(duration) {
            Ok(report) => {
                print!("{report}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("netniced: --stops: cannot run a real-time thread (needs root): {error}");
                ExitCode::FAILURE
            }
        };
    }
    let takes = arguments.take_descriptors;
    let front = arguments
        .front
        .map(|user| netnice_daemon::front::run(user, takes));
    let tried = arguments
        .try_front
        .map(netnice_daemon::front::try_confinement);
    if let Some(done) = front.or(tried) {
        return match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("netniced: the front process: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let metrics = match arguments.metrics() {
        Ok(metrics) => metrics,
        Err(error) => {
            eprintln!("netniced: --metrics: {error}");
            return ExitCode::from(Exit::BadUsage.code());
        }
    };
    let variable = std::env::var_os(RuntimeDir::VARIABLE);
    let options = Options {
        runtime: RuntimeDir::choose(arguments.runtime_dir, variable),
        policy: arguments.policy,
        metrics,
        docker_root: arguments.docker_root,
        podman_root: arguments.podman_root,
        take_descriptors: arguments.take_descriptors,
        write_stops: arguments.driver_stops,
        resume: arguments.resume,
    };
    match netnice_daemon::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netniced: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Parses the time of a measurement, 1 s to 1 h.
fn measured_time(text: &str) -> Result<Nanos, String> {
    let time: Nanos = text.parse().map_err(|error| format!("{error}"))?;
    match (Nanos::from_secs(1)..=Nanos::from_secs(3_600)).contains(&time) {
        true => Ok(time),
        false => Err(format!("{time} is out of range: write 1s to 1h")),
    }
}

/// Parses `UID:GID`, two numbers.
fn user(text: &str) -> Result<(u32, u32), String> {
    let numbers = text.split_once(':');
    let numbers = numbers.and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    numbers.ok_or_else(|| format!("`{text}` is not UID:GID"))
}

/// Prints what this kernel offers. The exit status is 1 if a required feature is missing, else 0.
fn probe(json: bool) -> ExitCode {
    let report = netnice_daemon::examine();
    if json {
        match serde_json::to_string_pretty(&report) {
            Ok(text) => println!("{text}"),
            Err(error) => eprintln!("netniced: {error}"),
        }
    } else {
        for item in &report.items {
            let standing = match item.status {
                Status::Good => "good",
                Status::Fallback => "instead",
                Status::Missing => "missing",
            };
            println!("{standing:<8} {:<24} {}", item.name, item.detail);
            if let Some(hint) = &item.hint {
                println!("{:<33} {hint}", "");
            }
        }
    }
    match report
        .items
        .iter()
        .any(|item| item.status == Status::Missing)
    {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    use netnice_documents::CommandLine;

    use super::*;

    fn parses(shown: &CommandLine) -> Result<(), String> {
        let arguments = Arguments::try_parse_from(&shown.words);
        let arguments = arguments.map_err(|error| error.to_string())?;
        let metrics = arguments.metrics();
        metrics.map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_lines_of_the_documents_are_read() {
        let least = [("docs/", 4), ("packaging/netniced.8", 2)];
        netnice_documents::check("netniced", &least, &[], parses);
    }
}
