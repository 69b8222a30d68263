//! Tries the packages in a fresh chroot of Debian 12: installs them, uses the service, upgrades
//! them while a limit is in force, removes and purges them. `trial.sh` checks each step and fails
//! at the first error; the chroot is then kept. The trial also fails without root, or if the chroot
//! cannot be made.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::bare::Machine;
use crate::lock::MachineLock;
use crate::setup::{self, Use};
use crate::step;
use crate::tree::Tree;

/// Runs `trial.sh` in a chroot with `packages` and with `later`, the packages of a later version.
/// Fails without root, if the chroot cannot be made, or if the script fails.
pub fn run(tree: &Tree, packages: &[PathBuf], later: &[PathBuf]) -> Result<()> {
    step::require_root(
        "cargo xtask deb --try",
        "it makes a chroot and mounts in it",
    )?;
    setup::ensure(tree, Use::Bare)?;
    let _lock = MachineLock::take()?;
    let machine = Machine::new(tree, "bookworm")?;
    let folder = machine.root.join(FOLDER);
    for (packages, name) in [(packages, "first"), (later, "later")] {
        let to = folder.join(name);
        std::fs::create_dir_all(&to)?;
        for from in packages {
            std::fs::copy(from, to.join(from.file_name().unwrap_or_default()))
                .with_context(|| format!("cannot copy {}", from.display()))?;
        }
    }
    std::fs::write(folder.join("trial.sh"), SCRIPT)?;
    machine.run(FOLDER, &["bash", "trial.sh"])?;
    machine.remove()
}

const FOLDER: &str = "root/trial";
const SCRIPT: &str = include_str!("trial.sh");
