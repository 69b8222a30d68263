//! Tests `cmd @rate` in real shells: command lines keep their usual meaning, and the command is
//! limited.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use netnice_lab::experiment::bench::R4M;
use netnice_lab::process::{Proc, binary};
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{Program, RunOptions, Tcp};
use netnice_lab::wire::WireFlow;

use crate::users::{ANN, setpriv};

/// How a shell gets its lines.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ShellMode {
    /// Typed, interactively.
    Typed,
    /// From a script file.
    Script,
}

/// A test bed with a program `probe`, which prints its arguments and its limit. The prompt does not
/// wait for a slow daemon, so the program asks up to three times.
struct Shells {
    /// A process with a limit, so that the eBPF programs stay loaded between cases.
    _standing: Proc,
    bed: TestBed,
}

impl Shells {
    fn new() -> Shells {
        let bed = TestBed::new().expect("a test bed");
        let probe = bed.world.folder().join("probe");
        let netnice = binary("netnice").expect("built");
        let text = format!(
            "#!/bin/sh\nout=\nfor w; do out=\"$out<$w>\"; done\n\
             for try in 1 2 3; do said=$({} shell-prompt); [ \"$said\" ] && break; done\n\
             echo \"$out$said\"\n\
             case $1 in -) cat ;; stay) exec sleep 60 ;; esac\n",
            netnice.display()
        );
        fs::write(&probe, text).expect("written");
        fs::set_permissions(&probe, fs::Permissions::from_mode(0o755)).expect("root may");
        let standing = bed.sleeper();
        bed.run_ok(&format!("set {} --up 1gbit", standing.pid()));
        Shells {
            _standing: standing,
            bed,
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.bed.world.client().ns.command(program);
        let path = std::env::var("PATH").unwrap_or_default();
        let netnice = binary("netnice").expect("built");
        let beside = netnice.parent().expect("a folder").display();
        let own = self.bed.world.folder().display();
        command
            .current_dir(self.bed.world.folder())
            .env("PATH", format!("{own}:{beside}:{path}"))
            .env("HOME", self.bed.world.folder())
            .env("NETNICE_RUNTIME_DIR", self.bed.netnice.runtime());
        command
    }

    /// Standard output and standard error of a shell with `@rate` support for these lines.
    fn run(&self, shell: &str, mode: ShellMode, lines: &str) -> (String, String) {
        let text = format!("eval \"$(netnice shell-init {shell})\"\n{lines}\n");
        let script = self.bed.world.folder().join("script");
        fs::write(&script, &text).expect("written");
        let mut command = self.command(shell);
        command.arg(if shell == "bash" { "--norc" } else { "-f" });
        match mode {
            ShellMode::Typed => command.arg("-i").arg("-s"),
            ShellMode::Script => command.arg(&script),
        };
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the shell is there");
        if mode == ShellMode::Typed {
            let mut stdin = child.stdin.take().expect("piped");
            stdin.write_all(text.as_bytes()).expect("it reads");
        }
        drop(child.stdin.take());
        let output = child.wait_with_output().expect("it ends");
        let read = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (read(&output.stdout), read(&output.stderr))
    }

    /// Fails unless both shells, interactive and with a script, print `expected`.
    fn assert_output(&self, lines: &str, expected: &str) {
        for shell in SHELLS {
            for mode in [ShellMode::Typed, ShellMode::Script] {
                let (out, err) = self.run(shell, mode, lines);
                assert_eq!(out, expected, "{shell}, {mode:?}, `{lines}` said: {err}");
            }
        }
    }
}

/// The shells with `@rate` support.
const SHELLS: [&str; 2] = ["bash", "zsh"];

#[test]
fn a_command_keeps_its_arguments_and_gets_its_limit() {
    let shells = Shells::new();
    // The paper's command line.
    shells.assert_output(
        "probe ftp.foo.com @128Kbyte/sec",
        "<ftp.foo.com> @128KiB/s\n",
    );
    // Quotes.
    shells.assert_output(
        r#"x='1  2'; probe 'a  b' "c \$d" e\ f '' "$x" "$(echo 'g  h')" '@4mbit' @4mbit"#,
        "<a  b><c $d><e f><><1  2><g  h><@4mbit> @4mbit\n",
    );
    // Pipelines: each command has its own limit.
    shells.assert_output(
        "probe a @4mbit | { cat; probe b @5mbit; probe c; }\necho in | probe - @6mbit | cat",
        "<a> @4mbit\n<b> @5mbit\n<c>\n<-> @6mbit\nin\n",
    );
    // Redirections, before and after the rate, and a here-document.
    shells.assert_output(
        "probe a >out @4mbit 2>&1; cat out\n2>/dev/null probe b @4mbit >>out; cat out\n\
         probe - @4mbit <<E\nx @5mbit\nE",
        "<a> @4mbit\n<a> @4mbit\n<b> @4mbit\n<-> @4mbit\nx @5mbit\n",
    );
}

#[test]
fn jobs_and_subshells_have_limits_of_their_own() {
    let shells = Shells::new();
    // Background: the job is the command itself, so its process id can be killed.
    shells.assert_output("probe a @4mbit & wait $!; probe b", "<a> @4mbit\n<b>\n");
    shells.assert_output(
        "rm -f out; probe stay @4mbit >out & for i in $(seq 100); do [ -s out ] && break; sleep 0.1; done; cat out; kill $!; wait $! 2>/dev/null; echo $?",
        "<stay> @4mbit\n143\n",
    );
    // Subshells and substitutions.
    shells.assert_output(
        "( probe a @4mbit; probe b )\nprobe c\nx=$(probe d @5mbit)\necho \"$x\"",
        "<a> @4mbit\n<b>\n<c>\n<d> @5mbit\n",
    );
    // Lists, loops, variables, and the exit status.
    shells.assert_output(
        "false || probe a @4mbit && echo yes\nfor r in 4 5; do probe $r @${r}mbit; done\n\
         p=probe\n$p v @4mbit\nV=1 probe w @4mbit\nsh -c 'exit 7' @4mbit; echo $?",
        "<a> @4mbit\nyes\n<4> @4mbit\n<5> @5mbit\n<v> @4mbit\n<w> @4mbit\n7\n",
    );
}

#[test]
fn builtins_functions_and_other_words_with_an_at_sign_are_unchanged() {
    let shells = Shells::new();
    // Builtins run in the shell itself; `command` and `exec` run a program.
    shells.assert_output(
        "echo x @4mbit; printf '%s\\n' @4mbit\ncommand probe a @4mbit\n( exec probe b @4mbit )",
        "x @4mbit\n@4mbit\n<a> @4mbit\n<b> @4mbit\n",
    );
    // Words with an @ that are no rate.
    shells.assert_output(
        "probe @; probe u@host @home @~3; probe @4; probe '@4mbit'; probe @4mbit x",
        "<@>\n<u@host><@home><@~3>\n<@4>\n<@4mbit>\n<@4mbit><x>\n",
    );
    // A function of the user: all its commands share one limit, and the function still exists
    // afterwards.
    shells.assert_output(
        "f() { probe \"$@\"; probe in; }\nf a @4mbit\nf b",
        "<a> @4mbit\n<in> @4mbit\n<b>\n<in>\n",
    );
}

#[test]
fn a_limit_on_the_shell_applies_to_its_commands_and_is_in_the_prompt() {
    let shells = Shells::new();
    shells.assert_output(
        "netnice $$ 8mbit >/dev/null\nprobe a\nprobe b @4mbit\nprobe c @9mbit\nnetnice_limit",
        "<a> @8mbit\n<b> @4mbit\n<c> @8mbit\n @8mbit\n",
    );
    let (_, shown) = shells.run(
        "bash",
        ShellMode::Typed,
        "PS1='[$(netnice_limit)]'\nnetnice $$ 8mbit >/dev/null\ntrue",
    );
    assert!(shown.contains("[ @8mbit]"), "the prompts are: {shown}");
}

#[test]
fn history_traps_and_errors_are_unchanged() {
    let shells = Shells::new();
    for shell in SHELLS {
        // Interactive: the history has the typed line; an invalid rate gives an error and runs
        // nothing.
        let (out, err) = shells.run(
            shell,
            ShellMode::Typed,
            "HISTSIZE=100; set -o history 2>/dev/null\nprobe a @4mbit\nfc -l | grep -c 'probe a @4mbit'\n\
             probe b @10mbps\nnosuch @4mbit\necho $?",
        );
        assert_eq!(out, "<a> @4mbit\n1\n<b><@10mbps>\n127\n", "{shell}: {err}");
        assert!(err.contains("10mbit (bits)"), "{shell}: {err}");
    }
    // Without a daemon, for a user that may not start one: the command is not run without its
    // limit.
    let netnice = shells.bed.copy_for_all("netnice").expect("a copy");
    let [program, options @ ..] = setpriv(ANN);
    let mut command = shells.command(&program);
    command
        .args(options)
        .arg(netnice)
        .args(["at", "touch", "made", "@4mbit"]);
    let status = command.env("NETNICE_RUNTIME_DIR", "/run/nobody").status();
    assert_eq!(status.expect("it runs").code(), Some(4));
    // An existing DEBUG trap goes on.
    let (out, err) = shells.run(
        "bash",
        ShellMode::Script,
        "trap - DEBUG; trap 'n=$((n + 1))' DEBUG\neval \"$(netnice shell-init bash)\"\nn=0\n\
         probe a @4mbit\ntrue\necho $((n > 2))",
    );
    assert_eq!(out, "<a> @4mbit\n1\n", "{err}");
}

#[test]
fn at_rate_limits_a_command_in_any_shell() {
    let shells = Shells::new();
    let named = shells.bed.world.folder().join("at-rate");
    std::os::unix::fs::symlink(binary("netnice").expect("built"), named).expect("a link");
    let lines = "at-rate probe a b @4mbit\nat-rate @8mbit probe 'c d'\n\
                 netnice at-rate probe e @2mbit | cat\nat-rate probe f\necho $?\n\
                 at-rate sh -c 'exit 7' @4mbit\necho $?";
    let expected = "<a><b> @4mbit\n<c d> @8mbit\n<e> @2mbit\n2\n7\n";
    for shell in ["sh", "fish"] {
        let lines = match shell {
            "fish" => lines.replace("$?", "$status"),
            _ => lines.to_owned(),
        };
        let output = shells.command(shell).args(["-c", &lines]).output();
        let output = output.unwrap_or_else(|error| panic!("{shell}: {error}"));
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            expected,
            "{shell}: {err}"
        );
        assert!(err.contains("no word is a rate"), "{shell}: {err}");
    }
    // In a shell with `cmd @rate`.
    let lines = "at-rate probe a @4mbit\nnetnice at-rate probe b @8mbit";
    for shell in SHELLS {
        let (out, err) = shells.run(shell, ShellMode::Script, lines);
        assert_eq!(out, "<a> @4mbit\n<b> @8mbit\n", "{shell}: {err}");
    }
}

#[test]
fn variables_of_the_last_command_are_unchanged() {
    let shells = Shells::new();
    let lines = "true u v\necho $_\nfalse\necho $?\ntrue w\nprobe $_ @4mbit\nsh -c 'exit 3' @4mbit || echo $?\n\
                 set -eu\nprobe x @4mbit\necho end";
    let expected = "v\n1\n<w> @4mbit\n3\n<x> @4mbit\nend\n";
    for shell in SHELLS {
        let (out, err) = shells.run(shell, ShellMode::Script, lines);
        assert_eq!(out, expected, "{shell}: {err}");
    }
}

#[test]
fn a_command_sends_at_the_typed_rate() {
    let shells = Shells::new();
    let options = RunOptions::at_once();
    let lab = binary("netnice-lab").expect("built");
    // Each shell has a port of its own, because packets of the first may still arrive.
    for (shell, port) in SHELLS.into_iter().zip(5001..) {
        let to = shells.bed.sink(port).expect("a sink");
        let words = [Tcp::connect(to, 2).source().args(), options.args()].concat();
        // In a terminal of its own, as for a person.
        let mut command = shells.command("script");
        let rc = if shell == "bash" { "--norc" } else { "-f" };
        command.args(["-qfec", &format!("{shell} {rc} -i"), "/dev/null"]);
        let mut terminal = Proc::start(command).expect("a terminal");
        let init = format!("eval \"$(netnice shell-init {shell})\"");
        terminal.write_line(&init).expect("it reads");
        let line = format!("{} traffic {} @4mbit", lab.display(), words.join(" "));
        terminal.write_line(&line).expect("it reads");
        // It starts as soon as the shell and netnice have started.
        let server = &shells.bed.world.server().ns;
        let received = || server.counters("eth0").expect("counters").rx_bytes;
        let before = received();
        let flows = || received() > before + 400_000;
        assert!(
            becomes_true(flows),
            "{shell}: nothing is sent: {}",
            terminal.take_stderr()
        );
        let its = |flow: &WireFlow| flow.has_port(port);
        let rate = || shells.bed.sent_rate_of(0.2, 1.0, its).expect("a rate");
        shells.bed.await_limited(rate, R4M, shell);
    }
}
