//! Checks the command lines in the documents that xtask, cargo and make are to execute.

use std::path::Path;

use netnice_documents::CommandLine;

use crate::VERBS;
use crate::tree::{Crate, Tree};

#[test]
fn the_command_lines_of_the_documents_are_read() {
    let tree = Tree::find().expect("cargo metadata");
    let least = [("docs/", 15), ("crates/core/README.md", 3)];
    // The steps of the check, and cargo-fuzz, which `cargo xtask fuzz --learn` calls.
    let mentions = ["clippy", "deny", "doc", "fmt", "fuzz"].map(str::to_owned);
    netnice_documents::check("cargo", &least, &mentions, |shown| {
        let words: Vec<&str> = shown.words[1..].iter().map(String::as_str).collect();
        match words.as_slice() {
            ["xtask", verb, rest @ ..] => xtask(verb, rest),
            [verb, rest @ ..] => Cargo::new(&tree, verb).reads(rest),
            [] => Err("no verb".to_owned()),
        }
    });
}

#[test]
fn the_targets_that_the_documents_make_are_there() {
    let tree = Tree::find().expect("cargo metadata");
    let makefile = std::fs::read_to_string(tree.root.join("Makefile")).expect("a Makefile");
    let least = [("README.md", 5), ("docs/", 12)];
    netnice_documents::check("make", &least, &[], |shown| makes(&makefile, shown));
}

fn xtask(verb: &str, rest: &[&str]) -> Result<(), String> {
    let verb = VERBS.iter().find(|one| one.name == verb);
    let verb = verb.ok_or("no such verb")?;
    (verb.reads)(rest).map_err(|error| format!("{error:#}"))
}

fn makes(makefile: &str, shown: &CommandLine) -> Result<(), String> {
    for word in shown.words[1..].iter().chain(&shown.settings) {
        let (wanted, what) = match word.split_once('=') {
            Some((variable, _)) => (format!("$({variable})"), "variable"),
            None => (format!("{word}:"), "target"),
        };
        let is_there = match what {
            "target" => makefile.lines().any(|line| line.starts_with(&wanted)),
            _ => makefile.contains(&wanted),
        };
        if !is_there {
            return Err(format!("the Makefile has no {what} for '{word}'"));
        }
    }
    Ok(())
}

/// A cargo command line, as far as its meaning depends on the tree.
struct Cargo<'a> {
    tree: &'a Tree,
    verb: &'a str,
    package: Option<&'a Crate>,
    /// Kind and name of the target.
    target: Option<(&'a str, &'a str)>,
}

impl<'a> Cargo<'a> {
    fn new(tree: &'a Tree, verb: &'a str) -> Cargo<'a> {
        Cargo {
            tree,
            verb,
            package: None,
            target: None,
        }
    }

    fn reads(mut self, words: &[&'a str]) -> Result<(), String> {
        if !["bench", "build", "doc", "run", "test"].contains(&self.verb) {
            return Err(format!("{} is not a verb that is known here", self.verb));
        }
        let (own, program) = match words.iter().position(|word| *word == "--") {
            Some(at) => (&words[..at], &words[at + 1..]),
            None => (words, &[][..]),
        };
        let mut own = own.iter();
        while let Some(word) = own.next() {
            let mut value = || own.next().ok_or(format!("{word} needs a value"));
            match *word {
                "-p" | "--package" => {
                    let name = value()?;
                    let package = self.tree.crates.iter().find(|one| one.name == **name);
                    self.package = Some(package.ok_or(format!("no package {name}"))?);
                }
                "--bench" => self.target = Some(("bench", value()?)),
                "--bin" => self.target = Some(("bin", value()?)),
                "--example" => self.target = Some(("example", value()?)),
                "--test" => self.target = Some(("test", value()?)),
                "--release" | "--open" => {}
                other => return Err(format!("{other} is not an argument that is known here")),
            }
        }
        self.target_is_there()?;
        match self.verb {
            "test" => self.tests_are_there(program),
            _ => Ok(()),
        }
    }

    fn target_is_there(&self) -> Result<(), String> {
        let Some((kind, name)) = self.target else {
            return Ok(());
        };
        let package = self.package.ok_or("name the package, with -p")?;
        let wanted = (kind.to_owned(), name.to_owned());
        match package.targets.contains(&wanted) {
            true => Ok(()),
            false => Err(format!("{} has no {kind} {name}", package.name)),
        }
    }

    /// Fails for a filter that matches no test, because cargo passes without running one.
    fn tests_are_there(&self, program: &[&str]) -> Result<(), String> {
        let filters = program.iter().filter(|word| !word.starts_with('-'));
        let (Some(package), Some(("test", name))) = (self.package, self.target) else {
            return Ok(());
        };
        let folder = package.folder.join("tests");
        let mut source = text(&folder.join(format!("{name}.rs")));
        let mut modules = Vec::new();
        for file in folder.join(name).read_dir().into_iter().flatten().flatten() {
            source.push_str(&text(&file.path()));
            modules.push(file.file_name().to_string_lossy().replace(".rs", "::"));
        }
        for filter in filters {
            let is_test = |line: &str| {
                let name = line.trim_start().strip_prefix("fn ");
                name.is_some_and(|name| name.split('(').next().unwrap_or("").contains(filter))
            };
            let is_module = modules.iter().any(|module| module.contains(filter));
            if !is_module && !source.lines().any(is_test) {
                return Err(format!("no test of {name} has '{filter}' in its name"));
            }
        }
        Ok(())
    }
}

fn text(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}

#[test]
fn what_is_not_there_is_refused() {
    let tree = Tree::find().expect("cargo metadata");
    for (line, wanted) in [
        ("test -p netnice-lab --test system -- --nocapture", None),
        ("test -p netnice-lab --test system -- driver::", None),
        (
            "test -p netnice-lab --test drivel",
            Some("netnice-lab has no test drivel"),
        ),
        (
            "test -p netnice-lab --test system -- percentile",
            Some("no test of system has 'percentile' in its name"),
        ),
        ("bench -p netnice-cor", Some("no package netnice-cor")),
        ("run --example pace_udp", Some("name the package, with -p")),
        (
            "test --fast",
            Some("--fast is not an argument that is known here"),
        ),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let said = Cargo::new(&tree, words[0]).reads(&words[1..]);
        assert_eq!(said.err().as_deref(), wanted, "{line}");
    }
    assert!(xtask("deb", &["--try"]).is_ok());
    assert!(xtask("deb", &["--tyr"]).is_err());
    assert!(xtask("dep", &[]).is_err());
}

#[test]
fn a_target_and_a_variable_are_looked_for_in_the_makefile() {
    let makefile = "fuzz: | cargo\n\tcargo xtask fuzz --for $(or $(FOR),600)\n";
    for (words, fits) in [
        (&["make", "fuzz"][..], true),
        (&["make", "fuzz", "FOR=60"], true),
        (&["make", "fuz"], false),
        (&["make", "fuzz", "FORR=60"], false),
        (&["make", "cargo"], false),
    ] {
        let shown = CommandLine {
            location: String::new(),
            text: String::new(),
            words: words.iter().map(|word| (*word).to_owned()).collect(),
            settings: Vec::new(),
            refused: false,
            mention: false,
        };
        assert_eq!(makes(makefile, &shown).is_ok(), fits, "{words:?}");
    }
}
