//! The command line of `netnice-driver`: parses the arguments, runs the driver, and prints an error
//! and exits with failure if the driver fails.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use netnice_api::RuntimeDir;
use netnice_core::units::{Nanos, Rate};
use netnice_driver::link::Mode;
use netnice_driver::run::{Options, run};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// Serves direct flows on one interface: programs submit packets through shared memory, and the
/// driver sends each at the time that its contract gives.
///
/// netniced starts a driver when the first program attaches to a managed link, and sends it
/// requests over DIR/drivers/IFACE.sock. A driver ends some time after its last program (see
/// --linger).
#[derive(Parser)]
#[command(name = "netnice-driver", version)]
struct Arguments {
    /// Runtime folder, for the socket and the lock [default: $NETNICE_RUNTIME_DIR, else
    /// /run/netnice]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
    /// Rate of the link for direct flows, for example 100mbit
    #[arg(long, value_name = "RATE")]
    rate: Rate,
    /// Bytes that the wire adds to each packet
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    overhead: u64,
    /// How frames pass between the interface and the driver [default: the first of these that
    /// works]
    #[arg(long)]
    mode: Option<ModeArgument>,
    /// Run the thread that sends and receives on processor N [default: any processor]
    #[arg(long, value_name = "N")]
    processor: Option<usize>,
    /// Let processors sleep between packets of `cell` contracts, which saves power and makes
    /// departures less exact
    #[arg(long)]
    may_sleep: bool,
    /// End after TIME without a program
    #[arg(
        long,
        value_name = "TIME",
        default_value = "10s",
        conflicts_with = "stay"
    )]
    linger: Nanos,
    /// Do not end without a program
    #[arg(long)]
    stay: bool,
    /// Write when the packet thread stood still, a line for each time, to DIR/driver-IFACE.stops
    #[arg(long)]
    stops: bool,
    /// After set-up, try in each thread the system calls that must be refused, and log the results
    #[arg(long, hide = true)]
    self_check: bool,
    /// The interface
    iface: String,
}

/// [`Mode`], on the command line.
#[derive(Clone, Copy, ValueEnum)]
enum ModeArgument {
    /// AF_XDP, with XDP in the NIC driver
    Native,
    /// AF_XDP, with XDP behind the NIC driver
    Generic,
    /// AF_PACKET
    Fallback,
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
    let variable = std::env::var_os(RuntimeDir::VARIABLE);
    let options = Options {
        runtime: RuntimeDir::choose(arguments.runtime_dir, variable),
        iface: arguments.iface,
        rate: arguments.rate.bits_per_second(),
        overhead: arguments.overhead,
        mode: arguments.mode.map(|how| match how {
            ModeArgument::Native => Mode::Native,
            ModeArgument::Generic => Mode::Generic,
            ModeArgument::Fallback => Mode::Fallback,
        }),
        processor: arguments.processor,
        keep_awake: !arguments.may_sleep,
        write_stops: arguments.stops,
        self_check: arguments.self_check,
        linger: (!arguments.stay).then(|| Duration::from_nanos(arguments.linger.0)),
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netnice-driver: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_lines_of_the_documents_are_read() {
        let least = [
            ("docs/manual/operations.md", 1),
            ("packaging/netnice-driver.8", 1),
        ];
        netnice_documents::check("netnice-driver", &least, &[], |shown| {
            let read = Arguments::try_parse_from(&shown.words);
            read.map(drop).map_err(|error| error.to_string())
        });
    }
}
