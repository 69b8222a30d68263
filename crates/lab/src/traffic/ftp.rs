//! Prepares FTP sessions of real programs: vsftpd at one end, curl at the other. The ranges of the
//! clients' ports identify the sessions in a record of the wire. [`needed`] fails if vsftpd or curl
//! is not installed, and [`Server::configure`] if a file or folder cannot be written.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::process;
use crate::wire::WireFlow;
use crate::world::Netns;

/// Fails if vsftpd or curl is not installed.
pub fn needed() -> Result<()> {
    for program in ["vsftpd", "curl"] {
        if !process::installed(program) {
            bail!("{program} is not installed: run `cargo xtask setup`");
        }
    }
    Ok(())
}

/// The configuration of a vsftpd that serves one sparse file, so that no disk is read.
#[derive(Debug, Clone, Copy)]
pub struct Server<'a> {
    /// A folder of the world.
    pub folder: &'a Path,
    /// Bytes of the file that [`fetch`] fetches.
    pub bytes: u64,
    /// The address on which it listens; `None`: a super-server starts it for each session.
    pub listen: Option<Ipv4Addr>,
}

impl Server<'_> {
    /// Writes the configuration and the file; returns the configuration's path, the one argument of
    /// vsftpd. Fails if a file or folder cannot be made.
    pub fn configure(self) -> Result<PathBuf> {
        let (root, empty) = (self.folder.join("ftp"), self.folder.join("empty"));
        for folder in [&root, &empty] {
            fs::create_dir_all(folder)?;
            fs::set_permissions(folder, fs::Permissions::from_mode(0o555))?;
        }
        fs::File::create(root.join("file"))?.set_len(self.bytes)?;
        let (root, empty) = (root.display(), empty.display());
        let mut text = format!(
            "anonymous_enable=YES\nlocal_enable=NO\nno_anon_password=YES\nftp_username=daemon\n\
             nopriv_user=nobody\nanon_root={root}\nsecure_chroot_dir={empty}\nseccomp_sandbox=NO\n\
             xferlog_enable=NO\nconnect_from_port_20=NO\n"
        );
        let _ = match self.listen {
            None => writeln!(text, "listen=NO"),
            Some(address) => writeln!(text, "listen=YES\nbackground=NO\nlisten_address={address}"),
        };
        let file = self.folder.join("vsftpd.conf");
        fs::write(&file, text)?;
        Ok(file)
    }
}

/// Makes a command: a curl in `client` that fetches the file from the server at `from`, for at most
/// `seconds`. Its control and its data connection use ports of the range `ports`.
pub fn fetch(client: &Netns, from: Ipv4Addr, ports: &Range<u16>, seconds: f64) -> Command {
    let mut curl = client.command("curl");
    let local = format!("{}-{}", ports.start, ports.end - 1);
    curl.args(["-sS", "-o", "/dev/null"])
        .args(["--max-time", &seconds.to_string()])
        .args(["--local-port", &local])
        .arg(format!("ftp://{from}/file"));
    curl
}

/// The client ports of a session: 100 of them; session 0 begins at 41,000.
pub fn ports(session: u16) -> Range<u16> {
    let first = 41_000 + session * 100;
    first..first + 100
}

/// Selects both directions of a session's connections in a record that was made at the FTP client's
/// end.
pub fn of_session(session: u16) -> impl Fn(&WireFlow) -> bool + Copy {
    move |flow| {
        let client = match flow.inbound {
            true => flow.target.1,
            false => flow.source.1,
        };
        ports(session).contains(&client)
    }
}
