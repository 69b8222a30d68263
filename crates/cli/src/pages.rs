//! Generates man pages and shell completions from the description of the command line. Fails if the
//! folder for man pages cannot be written.

use std::io;
use std::path::Path;

use clap_complete::Shell;

use crate::args::command;
use crate::error::CommandError;

/// The completion script for a shell.
pub(crate) fn completions(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command(), "netnice", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Writes `netnice.1` and a page for each verb into a folder, and creates the folder if necessary.
/// Fails if the folder or a page cannot be written.
pub(crate) fn man(folder: &Path) -> Result<(), CommandError> {
    let error = |source: io::Error| CommandError::io(folder.display().to_string(), source);
    std::fs::create_dir_all(folder).map_err(error)?;
    clap_mangen::generate_to(command(), folder).map_err(error)
}
