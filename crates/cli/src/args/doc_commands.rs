//! Tests that the parser of `netnice` accepts each of its command lines in README.md, docs/ and
//! packaging/. The test fails if a line is refused, or if a document has fewer lines than expected.

use std::ffi::OsString;

use netnice_documents::CommandLine;

use super::{BadUsage, command, parse};

fn parses(shown: &CommandLine) -> Result<(), String> {
    match parse(shown.words.iter().map(OsString::from).collect()) {
        Ok(_) => Ok(()),
        // `--help` and `--version`.
        Err(BadUsage::Parser(answer)) if !answer.use_stderr() => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn the_command_lines_of_the_documents_are_read() {
    let verbs: Vec<_> = command()
        .get_subcommands()
        .map(|verb| verb.get_name().to_owned())
        .collect();
    let least = [("README.md", 15), ("docs/", 50), ("packaging/", 1)];
    netnice_documents::check("netnice", &least, &verbs, parses);
}
