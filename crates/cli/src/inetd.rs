//! `netnice inetd`: runs the super-server of `netnice-share`.
//!
//! Input is a configuration file and optionally the total rate to divide among the sessions. The
//! super-server starts `netnice inetd-session` for each session. That helper process, the start
//! gate, waits until the session's limit is in force and then executes the session's program. The
//! command fails if the configuration cannot be read or is invalid, a port cannot be bound, the
//! user is not root, no daemon can be reached, or waiting for connections fails. With `--check` it
//! only checks configuration and ports, for any user, and fails if standard output cannot be
//! written. The start gate fails if the super-server does not open it, if it cannot take the
//! session's user and limits, or if the program cannot be executed.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process;

use netnice_api::{Exit, RuntimeDir};
use netnice_core::units::Rate;
use netnice_share::config::{Config, ConfigError, ConfigErrorKind};
use netnice_share::inetd::{self, InetdError, StartGateCommand};
use rustix::process::{Gid, Resource, Rlimit, Uid, getrlimit, setrlimit};

use crate::error::CommandError;
use crate::render::printable;
use crate::{daemon, output};

/// The two commands of this module, with their options.
#[derive(Debug)]
pub(crate) enum InetdCommand {
    /// Serve a configuration.
    Serve {
        config: PathBuf,
        /// The total rate from the command line; replaces the one in the file.
        total: Option<Rate>,
        /// True: only check the configuration and the ports.
        check: bool,
    },
    /// The start gate: wait until the limit is in force, then execute the session's program.
    Session(SessionArgs),
}

/// A program, and the user and groups that it runs as.
#[derive(Debug, clap::Args)]
pub(crate) struct SessionArgs {
    /// Largest number of files that the program may have open
    #[arg(long)]
    files: Option<u64>,
    /// The user
    uid: u32,
    /// The group
    gid: u32,
    /// groups=N,N…
    groups: String,
    /// The program
    program: OsString,
    /// The name that it runs under, its first argument
    argv0: OsString,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Executes the command. The start gate returns only if it fails. Fails for the reasons in the
/// module's documentation; most of them are printed here, and only their exit status is returned.
pub(crate) fn execute(dir: &RuntimeDir, command: InetdCommand) -> Result<Exit, CommandError> {
    match command {
        InetdCommand::Serve {
            config,
            total,
            check,
        } => match super_server(dir, &config, total, check) {
            Ok(exit) => Ok(exit),
            Err(Failure::Command(error)) => Err(error),
            Err(Failure::Inetd(error)) => {
                eprintln!("netnice: {}", printable(&error.to_string()));
                Ok(exit_status(&error))
            }
        },
        InetdCommand::Session(session) => Ok(become_program(&session)),
    }
}

enum Failure {
    Command(CommandError),
    Inetd(InetdError),
}

fn super_server(
    dir: &RuntimeDir,
    file: &std::path::Path,
    total: Option<Rate>,
    check: bool,
) -> Result<Exit, Failure> {
    let inetd = |error: ConfigError| Failure::Inetd(InetdError::Config(error));
    let config = Config::read(file, total).map_err(inetd)?;
    if check {
        inetd::check(&config).map_err(inetd)?;
        let services = match config.service_count() {
            1 => "1 service".to_string(),
            count => format!("{count} services"),
        };
        let printed = output::print_text(&format!("{}: {services}, good", file.display()));
        return printed.map(|()| Exit::Done).map_err(Failure::Command);
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("netnice: inetd starts programs with the rights of their users: run it as root");
        return Ok(Exit::Refused);
    }
    // Starts the daemon if none runs.
    drop(daemon::connect(dir).map_err(Failure::Command)?);
    let helper = std::env::current_exe()
        .map_err(|source| Failure::Command(CommandError::io("this program's own path", source)))?;
    let mut words = vec![OsString::from("inetd-session")];
    words.extend(raise_file_limit().map(|before| format!("--files={before}").into()));
    words.push("--".into());
    let gate = StartGateCommand {
        helper,
        args: words,
    };
    let mut report = |line: &str| eprintln!("netnice: {}", printable(line));
    let ended = inetd::serve(config, dir, gate, &mut report);
    ended.map(|()| Exit::Done).map_err(Failure::Inetd)
}

/// Raises this process's soft limit of open files to its hard limit, because each session takes one
/// file. Returns the earlier soft limit, which each session's program gets back, because programs
/// rely on it. `None` if there was no limit, or if the limit cannot be raised.
fn raise_file_limit() -> Option<u64> {
    let before = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: before.maximum,
        ..before
    };
    // If the limit cannot be raised, it bounds the number of sessions.
    setrlimit(Resource::Nofile, most).ok()?;
    before.current
}

fn exit_status(error: &InetdError) -> Exit {
    match error {
        InetdError::Config(ConfigError {
            kind: ConfigErrorKind::CannotBind { .. } | ConfigErrorKind::Unreadable(_),
            ..
        })
        | InetdError::Wait(_) => Exit::Error,
        InetdError::Config(_) => Exit::BadUsage,
        InetdError::Daemon(error) => Exit::from(error),
    }
}

/// Waits for one byte on standard error, which the super-server sends when the limit is in force.
/// Then makes standard error a copy of standard input (the connection, as in inetd(8)), and
/// executes the program. Returns only after a failure, and prints nothing: the super-server reads
/// the exit status.
fn become_program(session: &SessionArgs) -> Exit {
    let mut byte = [0];
    if !matches!(rustix::io::read(rustix::stdio::stderr(), &mut byte), Ok(1)) {
        return Exit::Error;
    }
    let ready = rustix::stdio::dup2_stderr(rustix::stdio::stdin())
        .and_then(|()| restore_file_limit(session))
        .and_then(|()| switch_user(session));
    if ready.is_err() {
        return Exit::CannotRun;
    }
    // `exec` returns only if it fails.
    let _error = process::Command::new(&session.program)
        .arg0(&session.argv0)
        .args(&session.args)
        .exec();
    Exit::NotFound
}

fn restore_file_limit(session: &SessionArgs) -> rustix::io::Result<()> {
    let Some(files) = session.files else {
        return Ok(());
    };
    let limit = Rlimit {
        current: Some(files),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, limit)
}

/// Takes the groups, gid and uid of the session's user; the uid last, because the others need root.
/// Does nothing if this process has that uid and gid already.
fn switch_user(session: &SessionArgs) -> rustix::io::Result<()> {
    if rustix::process::getuid().as_raw() == session.uid
        && rustix::process::getgid().as_raw() == session.gid
    {
        return Ok(());
    }
    let listed = session.groups.strip_prefix("groups=").unwrap_or_default();
    let groups: Vec<Gid> = listed
        .split(',')
        .filter_map(|group| group.parse().ok().map(Gid::from_raw))
        .collect();
    let (uid, gid) = (Uid::from_raw(session.uid), Gid::from_raw(session.gid));
    rustix::thread::set_thread_groups(&groups)?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)
}
