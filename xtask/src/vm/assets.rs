//! Fetches the parts of the guest once, and keeps them: the kernel package (by apt, or the file in
//! the variable `NETNICE_VM_KERNEL`), virtme-ng, which boots the kernel, in a Python environment of
//! its own, and virtiofsd, which serves this machine's folders to the guest (the cloud kernel does
//! not support 9p). Fails if one of them cannot be fetched or unpacked; [`Assets::path`] fails if
//! the name of a folder contains a colon.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::setup;
use crate::step::{self, Step};

/// All parts that a boot needs, on disk.
pub struct Assets {
    folder: PathBuf,
    release: String,
}

impl Assets {
    /// Fetches the parts that are not in `folder` yet. Fails if one cannot be fetched.
    pub fn ensure(folder: &Path) -> Result<Assets> {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let release = kernel(&folder.join("kernel"))?;
        virtme(&folder.join("python"))?;
        virtiofsd(&folder.join("tools"))?;
        Ok(Assets {
            folder: folder.to_owned(),
            release,
        })
    }

    /// The kernel file to boot.
    pub fn kernel(&self) -> PathBuf {
        self.folder
            .join("kernel/boot")
            .join(format!("{IMAGE}{}", self.release))
    }

    /// The kernel's release, as in `uname -r`.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// This process's `PATH`, with the folders of `vng` and `virtiofsd` first. Fails if the name of
    /// a folder contains a colon.
    pub fn path(&self) -> Result<OsString> {
        let own = std::env::var_os("PATH").unwrap_or_default();
        let ours = ["python/bin", "tools/bin"].map(|name| self.folder.join(name));
        std::env::join_paths(ours.into_iter().chain(std::env::split_paths(&own)))
            .context("a folder of PATH has a colon in its name")
    }
}

/// The release of the unpacked kernel. Fetches the kernel if there is none.
fn kernel(folder: &Path) -> Result<String> {
    if let Some(release) = unpacked(folder) {
        return Ok(release);
    }
    // The kernel is unpacked beside its folder and renamed at the end, so an interrupted run leaves
    // no partial kernel.
    let part = folder.with_extension("part");
    if part.exists() {
        std::fs::remove_dir_all(&part)?;
    }
    std::fs::create_dir_all(&part)?;
    match std::env::var_os(OWN_PACKAGE) {
        Some(file) => setup::unpack(Path::new(&file), &part)?,
        None => setup::download(&newest_package()?, &part)?,
    }
    let release = unpacked(&part).context("the kernel's package holds no /boot/vmlinuz-...")?;
    Step::new("depmod")
        .args([Path::new("-b"), &part])
        .args([&release])
        .run()?;
    std::fs::rename(&part, folder).context("cannot put the kernel in its place")?;
    Ok(release)
}

fn unpacked(folder: &Path) -> Option<String> {
    let files = std::fs::read_dir(folder.join("boot")).ok()?;
    let mut names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    names.find_map(|name| name.strip_prefix(IMAGE).map(str::to_owned))
}

fn newest_package() -> Result<String> {
    setup::refresh_lists()?;
    let list = Step::new("apt-cache")
        .args(["search", "--names-only", PACKAGE_PATTERN])
        .capture()?;
    match newest(&list) {
        Some(name) => Ok(name.to_owned()),
        None => bail!(
            "this machine's package lists have no {PACKAGE_PATTERN}; take one from Debian 12 and \
             name the file: {OWN_PACKAGE}=FILE.deb"
        ),
    }
}

/// The package with the highest build number in the output of `apt-cache search`.
fn newest(list: &str) -> Option<&str> {
    let names = list
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    names
        .filter_map(|name| {
            let build = name
                .strip_prefix("linux-image-6.1.0-")?
                .strip_suffix("-cloud-amd64")?;
            Some((build.parse::<u32>().ok()?, name))
        })
        .max()
        .map(|(_, name)| name)
}

fn virtme(folder: &Path) -> Result<()> {
    if folder.join("bin/vng").is_file() {
        return Ok(());
    }
    Step::new("python3")
        .args(["-m", "venv"])
        .args([folder])
        .run()?;
    Step::new(folder.join("bin/pip"))
        .args(["install", "--quiet", VIRTME])
        .run()
}

fn virtiofsd(folder: &Path) -> Result<()> {
    if folder.join("bin/virtiofsd").is_file() {
        return Ok(());
    }
    Step::new(step::cargo())
        .args([
            "install",
            "--quiet",
            "--locked",
            "--version",
            VIRTIOFSD,
            "virtiofsd",
            "--root",
        ])
        .args([folder])
        .run()
}

const IMAGE: &str = "vmlinuz-";
const PACKAGE_PATTERN: &str = r"^linux-image-6\.1\.0-[0-9]+-cloud-amd64$";
/// Variable with the file of a kernel package, for machines whose package lists contain none.
const OWN_PACKAGE: &str = "NETNICE_VM_KERNEL";
const VIRTME: &str = "virtme-ng==1.42";
const VIRTIOFSD: &str = "1.14.0";

#[cfg(test)]
mod tests;
