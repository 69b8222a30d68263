//! `netnice-lab`: experiments and the demo from the command line.

use std::time::Duration;

use clap::Parser;
use netnice_lab::traffic;
use netnice_lab::world::{self, Pair, World};

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Lists the experiments.
    List,
    /// Makes a world (client and server with a direct cable) to look around in, for a while.
    World {
        /// How long it stands.
        #[arg(long, default_value_t = 600)]
        seconds: u64,
    },
    /// The programs that experiments run.
    #[command(subcommand, hide = true)]
    Traffic(traffic::program::Program),
}

fn main() -> anyhow::Result<()> {
    let verb = Arguments::parse().verb;
    if let Verb::Traffic(program) = verb {
        return traffic::program::main(&program);
    }
    world::begin()?;
    match verb {
        Verb::Traffic(_) => unreachable!("handled above"),
        Verb::List => Ok(()),
        Verb::World { seconds } => stand(seconds),
    }
}

/// A world with a shell's worth of time to look around in.
fn stand(seconds: u64) -> anyhow::Result<()> {
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
