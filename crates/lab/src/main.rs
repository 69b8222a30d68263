//! `netnice-lab`: the command line of the experiments, the simulator, the demo, and the programs
//! that experiments and tests start. The exit status is 1 if a measured check does not hold or an
//! error occurred, 2 for invalid arguments, and else 0.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};
use netnice_lab::evidence::{self, RunFile};
use netnice_lab::experiment::{self, Context, Experiment, Outcome, REGISTRY, Subject, figure};
use netnice_lab::storm;
use netnice_lab::traffic;
use netnice_lab::world::{self, Pair, World};

/// Experiments that show whether netnice keeps its promises, on real packets in private network
/// namespaces. Needs root. Exit status: 0 everything holds, 1 something does not or could not be
/// measured, 2 bad usage.
#[derive(Parser)]
#[command(name = "netnice-lab", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List the experiments
    List {
        /// One JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Run experiments by name
    Run {
        /// Names, see `list`
        #[arg(required = true, value_name = "ID", value_parser = names(), hide_possible_values = true)]
        ids: Vec<String>,
        #[command(flatten)]
        options: Options,
    },
    /// Run every experiment
    All {
        #[command(flatten)]
        options: Options,
    },
    /// Simulate a scenario file in virtual time (a link, contracts, sources); needs no root
    Play {
        /// The scenario, TOML; see crates/sim/scenarios
        file: PathBuf,
        /// Draw the bytes sent over time (SVG) into this folder
        #[arg(long, value_name = "DIR")]
        plot: Option<PathBuf>,
    },
    /// Run the same traffic twice, without and with netnice; write a report and a picture of it
    Demo {
        /// The file of the report, a page; the picture is beside it, with the ending .svg
        #[arg(long, value_name = "FILE", default_value = "netnice-demo.html")]
        out: PathBuf,
    },
    /// Write the page of all figures, from the files of runs in DIR/runs into DIR/index.html
    Report {
        /// The folder of the evidence
        dir: PathBuf,
        /// Measure first what has no file yet (hours; root). It can be broken off, and goes on
        #[arg(long)]
        measure: bool,
    },
    /// Make a client and a server with a direct cable, and keep them for a while
    World {
        /// Seconds until they are removed
        #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
        seconds: u64,
    },
    /// The programs that experiments run
    #[command(subcommand, hide = true)]
    Traffic(Box<traffic::program::Program>),
    /// The programs of a storm: hostile users, good users and concurrent clients
    #[command(subcommand, hide = true)]
    Storm(storm::Program),
}

#[derive(clap::Args)]
struct Options {
    /// Print each outcome as one JSON object per line
    #[arg(long)]
    json: bool,
    /// Draw figures (SVG) into this folder
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// A subset for a test run, with the tolerance of a test
    #[arg(long)]
    quick: bool,
    /// Only the cells that have all of these words: of accuracy's matrix as in 'down 64kbit v6', of
    /// queue 'netnice up 4mbit', of nice-fig6 to 8 'run 3 with'
    #[arg(long, value_name = "WORDS")]
    only: Option<String>,
    /// Keep each run of nice-fig6 to 8 in this folder, and measure only those that are not there
    /// yet
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Keep the result and its figures in DIR/runs, for `report DIR`
    #[arg(long, value_name = "DIR", conflicts_with_all = ["plot", "only", "subject"])]
    record: Option<PathBuf>,
    /// The limiter to measure
    #[arg(long, value_enum, default_value_t = Subject::Netnice)]
    subject: Subject,
}

fn main() -> ExitCode {
    let verb = Arguments::parse().verb;
    match execute(verb) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("netnice-lab: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the verb of the command line. Returns `false` if a measured check does not hold.
fn execute(verb: Verb) -> Result<bool> {
    match verb {
        Verb::Traffic(program) => {
            traffic::program::main(&program)?;
        }
        Verb::Storm(program) => storm::main(&program)?,
        Verb::List { json } => {
            world::begin()?;
            list(json)?;
        }
        Verb::Demo { out } => {
            world::begin()?;
            return netnice_lab::demo::run(&out);
        }
        Verb::Report { dir, measure } => return report(&dir, measure),
        Verb::Play { file, plot } => return netnice_lab::simulate::run(&file, plot.as_deref()),
        Verb::World { seconds } => {
            world::begin()?;
            keep_world(seconds)?;
        }
        Verb::All { options } => return run(&REGISTRY.iter().collect::<Vec<_>>(), &options),
        Verb::Run { ids, options } => {
            if let Some(held) = restart_with_huge_pages(&ids)? {
                return Ok(held);
            }
            let found: Vec<_> = ids.iter().filter_map(|id| experiment::find(id)).collect();
            return run(&found, &options);
        }
    }
    Ok(true)
}

/// Runs this program again with its memory in pages of 2 MiB, where the system has them, if all
/// experiments count cycles. The scheduler's benchmark runs the same way. The C library's allocator
/// reads the setting when a process starts, hence the new process. Returns whether all checks of
/// the new process hold. Returns `None` if the setting is already there, as in the new process, or
/// if an experiment does not count cycles: it would pass the setting on to the programs that it
/// starts. Fails if the new process cannot start.
fn restart_with_huge_pages(ids: &[String]) -> Result<Option<bool>> {
    let count = |id: &String| matches!(id.as_str(), "cell-fig5" | "cell-fig6");
    if std::env::var_os(TUNABLES).is_some() || !ids.iter().all(count) {
        return Ok(None);
    }
    let program = std::env::current_exe().context("the running executable has no path")?;
    let mut again = std::process::Command::new(program);
    again
        .args(std::env::args_os().skip(1))
        .env(TUNABLES, HUGE_PAGES);
    let status = again
        .status()
        .context("cannot start again with huge pages")?;
    Ok(Some(status.success()))
}

/// The environment variable of the C library's allocator, and its value for huge pages.
const TUNABLES: &str = "GLIBC_TUNABLES";
const HUGE_PAGES: &str = "glibc.malloc.hugetlb=1";

/// The experiment names that the command line accepts.
fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(REGISTRY.iter().map(|e| e.id))
}

fn list(json: bool) -> Result<()> {
    for e in REGISTRY {
        if json {
            let object = serde_json::json!({"id": e.id, "what": e.what, "minutes": e.minutes.0, "quick": e.minutes.1});
            println!("{object}");
        } else {
            println!("{:<16}{:>5} min  {}", e.id, e.minutes.0, e.what);
        }
    }
    Ok(())
}

fn run(experiments: &[&Experiment], options: &Options) -> Result<bool> {
    world::begin()?;
    let record = options.record.as_deref().map(evidence::runs);
    for folder in options.plot.iter().chain(&options.keep).chain(&record) {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    let context = Context {
        subject: options.subject,
        quick: options.quick,
        only: options.only.clone(),
        keep: options.keep.clone(),
        plots: record.clone().or_else(|| options.plot.clone()),
    };
    let mut broken = Vec::new();
    for e in experiments {
        let minutes = if options.quick {
            e.minutes.1
        } else {
            e.minutes.0
        };
        eprintln!("{}: {} (about {minutes} min)", e.id, e.what);
        let began = jiff::Timestamp::now();
        match e.run(&context) {
            Ok(outcome) => {
                if let Some(folder) = &record {
                    RunFile::new(outcome.clone(), began, options.quick)?.write(folder)?;
                }
                if options.json {
                    println!("{}", serde_json::to_string(&outcome)?);
                } else {
                    print(&outcome);
                }
                if !outcome.holds {
                    broken.push(e.id);
                }
            }
            // An experiment that cannot be measured does not prevent the measurement of the others.
            Err(error) if experiments.len() > 1 => {
                eprintln!("netnice-lab: {error:#}");
                broken.push(e.id);
            }
            Err(error) => return Err(error),
        }
    }
    if experiments.len() > 1 {
        let kept = experiments.len() - broken.len();
        eprintln!(
            "{kept} of {} hold{}",
            experiments.len(),
            match broken.as_slice() {
                [] => String::new(),
                ids => format!("; not: {}", ids.join(", ")),
            }
        );
    }
    Ok(broken.is_empty())
}

/// Writes the page of the evidence. Returns whether everything that was to be measured was.
fn report(folder: &Path, measure: bool) -> Result<bool> {
    let measured = !measure || evidence::measure(folder)?;
    let said = evidence::report(folder)?;
    println!(
        "{}: of {} figures of the papers {} hold, {} fall short, {} have no whole run",
        evidence::index(folder).display(),
        said.all,
        said.hold,
        said.short,
        said.all - said.hold - said.short
    );
    Ok(measured)
}

fn print(outcome: &Outcome) {
    for check in &outcome.checks {
        println!(
            "  {} {:<62} {:>10} {:<7} {}",
            if check.holds { "ok  " } else { "FAIL" },
            check.what,
            figure(check.value),
            check.unit,
            check.bound
        );
    }
    for note in &outcome.notes {
        println!("  note: {note}");
    }
    for plot in &outcome.plots {
        println!("  drawn: {plot}");
    }
    let verdict = if outcome.holds {
        "holds"
    } else {
        "DOES NOT HOLD"
    };
    println!("{}: {verdict} ({:.0} s)\n", outcome.id, outcome.seconds);
}

/// Makes a world, prints how to enter it, and keeps it for `seconds`.
fn keep_world(seconds: u64) -> Result<()> {
    let world = World::pair(Pair::default())?;
    let mut command = world.client().ns.command("sleep");
    command.arg(seconds.to_string());
    let inside = netnice_lab::process::Proc::start(command)?;
    println!("{}", serde_json::json!({"inside": inside.pid()}));
    for ns in world.namespaces() {
        println!("nsenter --net={}", ns.path().display());
    }
    std::thread::sleep(Duration::from_secs(seconds));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use netnice_documents::CommandLine;

    use super::*;

    fn parses(shown: &CommandLine) -> Result<(), String> {
        let read = Arguments::try_parse_from(&shown.words);
        let scenario = match read.map_err(|error| error.to_string())?.verb {
            Verb::Play { file, .. } => file,
            _ => return Ok(()),
        };
        // `file` is a placeholder in the documents and not a file of the tree.
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(&scenario);
        match scenario == Path::new("file") || file.is_file() {
            true => Ok(()),
            false => Err(format!("there is no scenario {}", scenario.display())),
        }
    }

    #[test]
    fn a_world_lasts_at_least_a_second() {
        let parse = |seconds: &str| {
            Arguments::try_parse_from(["netnice-lab", "world", "--seconds", seconds])
        };
        assert!(parse("1").is_ok());
        let refused = parse("0").err().expect("it is refused").to_string();
        assert!(refused.contains("'--seconds <SECONDS>'"), "{refused}");
    }

    #[test]
    fn a_direct_program_has_one_role_and_only_the_options_of_it() {
        let parse = |line: &str| {
            let words = "netnice-lab traffic direct --local 10.0.0.1:7".split(' ');
            Arguments::try_parse_from(words.chain(line.split_whitespace())).is_ok()
        };
        for line in [
            "--source --remote 10.0.0.2:7 --rate 1000 --size 100 --count 3",
            "--sink",
            "--sink --group 239.0.0.1:7",
            "--echo",
        ] {
            assert!(parse(line), "{line}");
        }
        for line in [
            "",
            "--source",
            "--sink --echo",
            "--echo --rate 1000",
            "--echo --group 239.0.0.1:7",
            "--sink --size 100",
            "--sink --count 3",
        ] {
            assert!(!parse(line), "{line}");
        }
    }

    #[test]
    fn the_command_lines_of_the_documents_are_read() {
        let verbs: Vec<_> = Arguments::command()
            .get_subcommands()
            .map(|verb| verb.get_name().to_owned())
            .collect();
        netnice_documents::check("netnice-lab", &[("docs/", 10)], &verbs, parses);
    }
}
