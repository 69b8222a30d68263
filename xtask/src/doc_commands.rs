//! Tests that command lines in the documents are valid. A line that calls cargo must have an
//! existing verb, package, target and test name; one that calls `cargo xtask`, a verb with valid
//! arguments; one that calls make, targets and variables of the Makefile. A test fails with the
//! document, the line and the reason.

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
            ["xtask", verb, rest @ ..] => check_xtask(verb, rest),
            [verb, rest @ ..] => Cargo::new(&tree, verb).check_args(rest),
            [] => Err("no verb".to_owned()),
        }
    });
}

#[test]
fn the_makefile_has_the_targets_in_the_documents() {
    let tree = Tree::find().expect("cargo metadata");
    let makefile = std::fs::read_to_string(tree.root.join("Makefile")).expect("a Makefile");
    let least = [("README.md", 5), ("docs/", 12)];
    netnice_documents::check("make", &least, &[], |shown| check_make(&makefile, shown));
}

fn check_xtask(verb: &str, rest: &[&str]) -> Result<(), String> {
    let verb = VERBS.iter().find(|one| one.name == verb);
    let verb = verb.ok_or("unknown verb")?;
    (verb.check_args)(rest).map_err(|error| format!("{error:#}"))
}

fn check_make(makefile: &str, shown: &CommandLine) -> Result<(), String> {
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

    fn check_args(mut self, words: &[&'a str]) -> Result<(), String> {
        if !["bench", "build", "doc", "run", "test"].contains(&self.verb) {
            return Err(format!("{} is not a verb that this test knows", self.verb));
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
                other => return Err(format!("{other} is not an argument that this test knows")),
            }
        }
        self.check_target()?;
        match self.verb {
            "test" => self.check_test_filters(program),
            _ => Ok(()),
        }
    }

    fn check_target(&self) -> Result<(), String> {
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
    fn check_test_filters(&self, program: &[&str]) -> Result<(), String> {
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
fn unknown_packages_targets_and_verbs_are_refused() {
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
            Some("--fast is not an argument that this test knows"),
        ),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let result = Cargo::new(&tree, words[0]).check_args(&words[1..]);
        assert_eq!(result.err().as_deref(), wanted, "{line}");
    }
    assert!(check_xtask("deb", &["--try"]).is_ok());
    assert!(check_xtask("deb", &["--tyr"]).is_err());
    assert!(check_xtask("dep", &[]).is_err());
}

#[test]
fn targets_and_variables_must_be_in_the_makefile() {
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
        assert_eq!(check_make(makefile, &shown).is_ok(), fits, "{words:?}");
    }
}
