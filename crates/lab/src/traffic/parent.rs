//! The program `netnice-lab traffic parent` starts other programs as its children while it runs. It
//! reads commands from standard input, prints what its children print, and fails for a line that is
//! none of these commands:
//!
//! ```text
//! run ["/path/of/program", "arg", …]   → {"child": pid}; later {"from": pid, "said": …} for each
//!                                        line, then {"from": pid, "said": {"ended": status}}
//!                                      → {"child": null, "error": …} if it cannot start
//! tell PID LINE                        writes LINE to the child's standard input; no output
//! ```

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// The arguments of `netnice-lab traffic parent`: none.
#[derive(Debug, Clone, clap::Args)]
pub struct ParentArgs {}

/// Executes commands from standard input until end of input. Fails for an unknown command. Fails
/// also if standard input cannot be read, or if `tell` has no process id or no text.
pub fn main() -> Result<()> {
    println!("{}", json!({"ready": true, "pid": std::process::id()}));
    let mut inputs: HashMap<u32, ChildStdin> = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match verb {
            "run" => match spawn_child(rest) {
                Ok((pid, stdin)) => {
                    inputs.insert(pid, stdin);
                }
                Err(e) => println!("{}", json!({"child": null, "error": format!("{e:#}")})),
            },
            "tell" => {
                let (pid, text) = rest.split_once(' ').context("tell PID LINE")?;
                if let Some(input) = inputs.get_mut(&pid.parse()?) {
                    // A write to a child that has ended fails; its end was reported.
                    let _ = writeln!(input, "{text}").and_then(|()| input.flush());
                }
            }
            _ => bail!("a parent understands run and tell, not `{verb}`"),
        }
    }
    Ok(())
}

fn spawn_child(words: &str) -> Result<(u32, ChildStdin)> {
    let words: Vec<String> = serde_json::from_str(words).context("run takes a JSON list")?;
    let (program, args) = words.split_first().context("run needs a program")?;
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    let pid = child.id();
    println!("{}", json!({"child": pid}));
    let stdin = child.stdin.take().context("stdin is piped")?;
    std::thread::spawn(move || report_child(pid, child));
    Ok((pid, stdin))
}

fn report_child(pid: u32, mut child: Child) {
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            let said = serde_json::from_str::<Value>(&line)
                .ok()
                .filter(Value::is_object)
                .unwrap_or(Value::String(line));
            println!("{}", json!({"from": pid, "said": said}));
        }
    }
    let status = child.wait().ok().and_then(|s| s.code());
    println!("{}", json!({"from": pid, "said": {"ended": status}}));
}
