//! The program `netnice-peer`: parses the command line, and runs the signalling of this host until
//! a signal ends it. SIGHUP has it read its policy file again. The exit status is 0 after another
//! signal, 2 if the arguments are invalid, and 1 if a certificate, the policy file, an address or a
//! socket cannot be used.
//!
//! The log goes to standard error. The variable `NETNICE_LOG` sets its levels, as for netniced.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use netnice_api::RuntimeDir;
use netnice_core::units::Nanos;
use netnice_peer::host::{Host, HostOptions};
use netnice_peer::names::HostAddress;
use netnice_peer::policy::PolicyPath;
use netnice_peer::relay::RelayOptions;
use netnice_peer::transport::IdentityFiles;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// Agrees with netnice-peer on other hosts about real-time channels, and passes on the messages of
/// channels between them.
///
/// Programs use it by `netnice channel` or the libraries. It needs no privileges: it reaches
/// netniced as the user netnice-peer, whom netniced permits channels (`channel_users` in the policy
/// file).
#[derive(Parser)]
#[command(name = "netnice-peer", version)]
struct Arguments {
    /// Folder of netniced; the socket for programs is in DIR-peer [default: $NETNICE_RUNTIME_DIR,
    /// else /run/netnice]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
    /// Certificate of this host, in PEM. Its first DNS name is the name of the host
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/netnice/peer/host.pem"
    )]
    certificate: PathBuf,
    /// Private key of the certificate, in PEM
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/netnice/peer/host.key"
    )]
    key: PathBuf,
    /// Certificates of the authorities that neighbours' certificates are from, in PEM
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/netnice/peer/authority.pem"
    )]
    authority: PathBuf,
    /// Address and port for neighbours. All hosts have the same port
    #[arg(long, value_name = "ADDR", default_value = "[::]:4649")]
    listen: SocketAddr,
    /// Address of a host that the resolver is not asked for; can be repeated, also for one host
    #[arg(long, value_name = "NAME=ADDRESS")]
    host: Vec<HostAddress>,
    /// What this host, as a relay, takes of a deadline beside its link
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = relay_time)]
    relay_time: Nanos,
    /// What the thread that passes messages on has, exactly, of the processor time that is reserved
    /// for this process (`netnice set --cpu`, or a rule of the policy file). Without that
    /// reservation no channel passes this host
    #[arg(long, value_name = "TIME")]
    relay_cpu: Option<Nanos>,
    /// Largest number of flows of the relay on each interface: one for each channel that leaves by
    /// it, and one for each address that channels arrive at
    #[arg(
        long,
        value_name = "N",
        default_value_t = RelayOptions::default().flows,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_FLOWS))
    )]
    relay_flows: u32,
    /// Write the stops of the thread that passes messages on into `relay.stops` beside the socket
    /// for programs, one a line: when it began (ns of CLOCK_MONOTONIC), its length in ns, its kind
    #[arg(long)]
    relay_stops: bool,
    /// Policy file: what is before the interfaces of this host, and the quotas of its neighbours.
    /// Read again on SIGHUP [default: /etc/netnice/peer.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
}

fn relay_time(text: &str) -> Result<Nanos, String> {
    let time: Nanos = text.parse().map_err(|error| format!("{error}"))?;
    match (SHORTEST..=LONGEST).contains(&time) {
        true => Ok(time),
        false => Err(format!(
            "the time of a relay is {SHORTEST} to {LONGEST}, not {time}"
        )),
    }
}

/// What a relay may take of a deadline.
const SHORTEST: Nanos = Nanos::from_micros(100);
const LONGEST: Nanos = Nanos::from_secs(1);
/// The most flows that a program can have on an interface.
const MOST_FLOWS: u32 = 4_096;

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
    let variable = std::env::var_os(RuntimeDir::VARIABLE);
    let options = HostOptions {
        dir: RuntimeDir::choose(arguments.runtime_dir, variable),
        identity: IdentityFiles {
            certificate: arguments.certificate,
            key: arguments.key,
            authority: arguments.authority,
        },
        listen: arguments.listen,
        hosts: arguments.host,
        relay_time: arguments.relay_time,
        relay_cpu: arguments.relay_cpu,
        relay_flows: arguments.relay_flows,
        relay_stops: arguments.relay_stops,
        policy: PolicyPath::new(arguments.policy),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let served = match runtime {
        Ok(runtime) => runtime.block_on(serve(&options)),
        Err(error) => Err(error.to_string()),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netnice-peer: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until a signal comes. Fails with a sentence if the host cannot start.
async fn serve(options: &HostOptions) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| text(&error))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| text(&error))?;
    let mut hangup = signal(SignalKind::hangup()).map_err(|error| text(&error))?;
    let mut host = Host::start(options).await.map_err(|error| text(&error))?;
    tracing::info!(host = %host.name(), listen = %options.listen, "serves");
    loop {
        tokio::select! {
            () = host.run() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => {}
        }
        match host.reload() {
            Ok(()) => tracing::info!("has read the policy file"),
            Err(error) => tracing::error!(%error, "the policy stays as it was"),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_command_lines_of_the_documents_are_read() {
        netnice_documents::check(
            "netnice-peer",
            &[("packaging/netnice-peer.8", 1)],
            &[],
            |shown| match Arguments::try_parse_from(&shown.words) {
                Ok(_) => Ok(()),
                Err(answer) if !answer.use_stderr() => Ok(()),
                Err(error) => Err(error.to_string()),
            },
        );
    }

    #[test]
    fn a_time_of_a_relay_is_bounded() {
        assert_eq!(relay_time("2ms"), Ok(Nanos::from_millis(2)));
        for bad in ["0", "1ns", "2s", "x"] {
            relay_time(bad).expect_err(bad);
        }
    }
}
