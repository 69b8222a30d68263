//! Tests the package's units under systemd: the socket starts the service, a limit outlives it, and
//! `stop` ends it.
//!
//! A systemd runs in the guest of `make test-vm`, which sets `NETNICE_SYSTEMD=1`. There the
//! programs and units are installed in the package's places; the guest's file system is discarded
//! afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use netnice_lab::process;
use netnice_lab::testbed::{becomes_true, skip};
use serde_json::Value;

/// The installed units and programs. Dropping it clears all limits, stops the units and removes the
/// unit files; the programs stay.
struct Installed {
    units: Vec<PathBuf>,
}

impl Installed {
    fn new() -> Result<Installed> {
        for (program, place) in PROGRAMS {
            let from = process::binary(program)?;
            fs::copy(&from, place).with_context(|| format!("cannot write {place}"))?;
        }
        let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
        let mut installed = Installed { units: Vec::new() };
        for unit in UNITS {
            let place = Path::new("/run/systemd/system").join(unit);
            fs::copy(packaging.join(unit), &place)
                .with_context(|| format!("cannot write {}", place.display()))?;
            installed.units.push(place);
        }
        systemctl(&["daemon-reload"])?;
        Ok(installed)
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = netnice(&["clear", "--all"]);
        for unit in ["netniced.socket", "netniced.service", DEMO] {
            let _ = systemctl(&["stop", unit]);
        }
        for unit in &self.units {
            let _ = fs::remove_file(unit);
        }
        let _ = systemctl(&["daemon-reload"]);
    }
}

fn systemctl(words: &[&str]) -> Result<String> {
    process::run(Command::new("systemctl").args(words))
}

fn netnice(words: &[&str]) -> Result<String> {
    process::run(Command::new("/usr/bin/netnice").args(words))
}

/// A property of a unit (`systemctl show --property`).
fn property(unit: &str, name: &str) -> Result<String> {
    let said = systemctl(&["show", "--value", "--property", name, unit])?;
    Ok(said.trim().to_owned())
}

/// The send limit of the demo unit in `show`.
fn limit() -> Result<Value> {
    let shown: Value = serde_json::from_str(&netnice(&["show", "--json"])?)?;
    let targets = shown["targets"].as_array().context("a list of targets")?;
    let target = targets
        .iter()
        .find(|target| target["target"] == format!("unit:{DEMO}"));
    Ok(target.map_or(Value::Null, |target| target["effective"]["up"].clone()))
}

/// Whether the limit stage is in the kernel.
fn stage() -> bool {
    Path::new("/sys/class/net/nn0").exists()
}

fn install_to_removal() -> Result<()> {
    let _installed = Installed::new()?;
    systemctl(&["start", "netniced.socket"])?;
    ensure!(
        property("netniced.service", "ActiveState")? == "inactive",
        "the service runs before the first request"
    );
    // The first request starts it.
    netnice(&["show"])?;
    ensure!(property("netniced.service", "ActiveState")? == "active");
    let pid = property("netniced.service", "MainPID")?;
    process::run(Command::new("systemd-run").args(["--unit", DEMO, "sleep", "600"]))?;
    netnice(&["set", &format!("unit:{DEMO}"), "--up", "4mbit"])?;
    ensure!(limit()? == 4_000_000, "{}", limit()?);
    systemctl(&["reload", "netniced.service"])?;
    systemctl(&["restart", "netniced.service"])?;
    ensure!(property("netniced.service", "MainPID")? != pid);
    ensure!(limit()? == 4_000_000, "after a restart: {}", limit()?);
    // The service is stopped, and the limit stays in the kernel.
    systemctl(&["stop", "netniced.socket", "netniced.service"])?;
    for unit in UNITS {
        let state = property(unit, "ActiveState")?;
        ensure!(state == "inactive", "{unit} is {state} after stop");
    }
    ensure!(property("netniced.service", "Result")? == "success");
    ensure!(stage(), "the limit went with the daemon");
    systemctl(&["start", "netniced.socket"])?;
    ensure!(limit()? == 4_000_000, "started again: {}", limit()?);
    netnice(&["clear", "--all"])?;
    ensure!(becomes_true(|| !stage()), "`clear --all` leaves nn0");
    Ok(())
}

#[test]
fn the_packages_units_start_reload_restart_and_stop() {
    if std::env::var_os("NETNICE_SYSTEMD").is_none_or(|v| v != "1") {
        skip("no systemd runs here (`make test-vm` starts one)");
        return;
    }
    install_to_removal().unwrap_or_else(|error| panic!("{error:#}"));
}

const PROGRAMS: [(&str, &str); 3] = [
    ("netnice", "/usr/bin/netnice"),
    ("netniced", "/usr/sbin/netniced"),
    ("netnice-driver", "/usr/sbin/netnice-driver"),
];
const UNITS: [&str; 2] = ["netniced.service", "netniced.socket"];
/// A unit that does nothing, as a target.
const DEMO: &str = "netnice-demo.service";
