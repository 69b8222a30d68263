//! The life of the daemon: start, serve, stop.
//!
//! ```text
//!   lock the folder ─> adopt what the kernel holds ─> read the state ─> listen ─> serve ─> SIGTERM: stop listening
//! ```
//!
//! Stopping lifts nothing: the kernel goes on, and the next daemon finds it all again.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use netnice_api::RuntimeDir;
use netnice_kernel::enforce::Kernel;
use netnice_kernel::plan::Leaves;
use netnice_kernel::process::PidFd;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::clerk::{Clerk, Named};
use crate::clock::Now;
use crate::enforce::Host;
use crate::enforce::kernel::KernelHost;
use crate::runtime::Runtime;
use crate::server::{Ask, Server};

/// How the daemon is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its runtime folder.
    pub runtime: RuntimeDir,
    /// The policy file.
    pub policy: PathBuf,
}

/// Runs the daemon until it is told to stop.
pub fn run(options: &Options) -> Result<()> {
    let folder = options.runtime.path();
    let _runtime = Runtime::take(folder)?;
    let kernel = Kernel::open(folder, Leaves::Fifo).context("cannot open the kernel's side")?;
    let host = KernelHost::new(kernel).context("cannot open the kernel's side")?;
    let clerk = Clerk::new(host);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    LocalSet::new().block_on(&runtime, serve(options, clerk))
}

async fn serve(options: &Options, mut clerk: Clerk<KernelHost>) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (to_clerk, mut asks) = mpsc::channel::<Ask>(WAITING);
    let path = options.runtime.socket();
    let server =
        Server::bind(&path).with_context(|| format!("cannot listen at {}", path.display()))?;
    tracing::info!(socket = %path.display(), "serving");
    let listening = server.serve(to_clerk);
    tokio::pin!(listening);
    loop {
        tokio::select! {
            biased;
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            Some(ask) = asks.recv() => answer(&mut clerk, ask),
            _ = ticks.tick() => clerk.tick(Now::read()),
            () = &mut listening => break,
        }
    }
    tracing::info!("stopping; what is in force stays in force");
    Ok(())
}

fn answer<H: Host>(clerk: &mut Clerk<H>, ask: Ask) {
    let named = ask.fd.and_then(PidFd::received).map(|(handle, pid)| Named {
        pid,
        lives: Box::new(move || handle.lives()),
    });
    let response = clerk.handle(&ask.peer, &ask.request, named, Now::read());
    // A peer that has gone meanwhile misses its answer; what was done stays done.
    let _ = ask.reply.send(response);
}

/// How often the clerk looks at what changes by itself.
const TICK: Duration = Duration::from_secs(1);
/// Requests that wait for the clerk; more of them wait in their connections.
const WAITING: usize = 64;
