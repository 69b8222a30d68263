//! `netnice peer`: issues certificates for the hosts of a laboratory, and lists the neighbours of
//! this host. It fails if a file exists or cannot be written, if the authority in the folder cannot
//! be used, or if no netnice-peer answers.

use std::path::PathBuf;

use netnice_api::{Exit, RuntimeDir};
use netnice_peer::issue::{self, Validity, Written};
use netnice_peer::message::HostName;

use crate::channel;
use crate::error::CommandError;
use crate::output::print_text;
use crate::render::printable;

/// What `netnice peer` does.
#[derive(Debug)]
pub(crate) enum PeerCommand {
    /// Issue certificates for hosts by the authority in a folder.
    Issue {
        folder: PathBuf,
        /// How long certificates are valid: 1 to 36,500 days.
        days: u32,
        hosts: Vec<HostName>,
    },
    /// List the neighbours and services of this host, and the ports before its interfaces.
    List,
}

/// Executes the command and prints what was written, or the list. Fails for the reasons in the
/// module's documentation, and if standard output cannot be written.
pub(crate) fn execute(
    dir: &RuntimeDir,
    json: bool,
    command: &PeerCommand,
) -> Result<Exit, CommandError> {
    let (folder, days, hosts) = match command {
        PeerCommand::List => return channel::list::neighbours(dir, json),
        PeerCommand::Issue {
            folder,
            days,
            hosts,
        } => (folder, days, hosts),
    };
    let written = issue::into_folder(folder, hosts, Validity::days(*days))?;
    print_text(&printable(&text(&written)))?;
    Ok(Exit::Done)
}

/// The files, one a line, and where those of a host belong.
fn text(written: &Written) -> String {
    let mut lines: Vec<String> = Vec::new();
    for file in &written.files {
        let is_authority = written.new_authority.as_ref() == Some(file);
        let note = if is_authority { NEW_AUTHORITY } else { "" };
        lines.push(format!("wrote {}{note}", file.display()));
    }
    lines.push(PLACES.to_owned());
    lines.join("\n")
}

/// Where the program `netnice-peer` reads the files.
const PLACES: &str = "Copy to each host, as root: HOST.pem to /etc/netnice/peer/host.pem, HOST.key \
                      to /etc/netnice/peer/host.key, authority.pem to \
                      /etc/netnice/peer/authority.pem";
const NEW_AUTHORITY: &str = " (a new authority: keep this key here)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_names_the_files_and_their_places() {
        let files: Vec<PathBuf> = ["authority.key", "authority.pem", "a.key", "a.pem"]
            .map(|name| PathBuf::from("lab").join(name))
            .into();
        let written = Written {
            new_authority: Some(files[0].clone()),
            files,
        };
        let text = text(&written);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert_eq!(
            lines[0],
            "wrote lab/authority.key (a new authority: keep this key here)"
        );
        assert_eq!(lines[3], "wrote lab/a.pem");
        for name in ["host.pem", "host.key", "authority.pem"] {
            assert!(
                lines[4].contains(&format!("/etc/netnice/peer/{name}")),
                "{text}"
            );
        }
    }
}
