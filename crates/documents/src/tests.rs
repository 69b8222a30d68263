use super::*;

/// The words of each command line in a document.
fn read(name: &str, text: &str) -> Vec<String> {
    let lines = of_text(name, text);
    lines.iter().map(|one| one.words.join(" ")).collect()
}

fn block(lines: &str) -> String {
    format!("Text\n\n```\n{lines}\n```\n")
}

fn in_block(lines: &str) -> Vec<String> {
    read("docs/a.md", &block(lines))
}

#[test]
fn commands_that_a_shell_would_run_are_found() {
    for (line, wanted) in [
        ("netnice show", &["netnice show"][..]),
        ("$ netnice show   # all targets", &["netnice show"]),
        ("# netnice show", &["netnice show"]),
        ("# netnice: a remark", &[]),
        ("sudo -n netnice show", &["netnice show"]),
        ("FOR=60 make fuzz", &["make fuzz"]),
        (
            "make build && sudo env A=b make test",
            &["make build", "make test"],
        ),
        (
            "tar c a | netnice run --up 1mbit -- ssh b 'cat > c' 2>&1 > log &",
            &["netnice run --up 1mbit -- ssh b cat > c"],
        ),
        (
            "eval \"$(netnice shell-init bash)\"",
            &["netnice shell-init bash"],
        ),
        (
            "for n in $(netnice show); do netnice clear $n; done",
            &["netnice show", "netnice clear $n"],
        ),
        (
            "netnice set \\\n    pid:7 --up 4mbit",
            &["netnice set pid:7 --up 4mbit"],
        ),
        ("netnice set $$ --up RATE", &["netnice set 1 --up 4mbit"]),
        ("netnice: /etc/a:1: up: `4mbps` is not a rate", &[]),
        ("refused: netnice cannot", &[]),
        ("a 'quote of no shell netnice", &[]),
    ] {
        assert_eq!(in_block(line), wanted, "{line}");
    }
}

#[test]
#[should_panic(expected = "docs/a.md:4: `netnice set 'a`: a ' is not closed")]
fn an_unclosed_quote_is_an_error_with_its_place() {
    in_block("netnice set 'a");
}

#[test]
fn a_usage_form_becomes_one_line_for_each_part() {
    for (form, wanted) in [
        (
            "netnice top [-d TIME] [--once | -n N]",
            &[
                "netnice top",
                "netnice top -d 30s",
                "netnice top --once",
                "netnice top -n 7",
            ][..],
        ),
        (
            "netniced [--metrics [ADDR [--metrics-open]]]",
            &[
                "netniced",
                "netniced --metrics",
                "netniced --metrics 127.0.0.1:9469",
                "netniced --metrics 127.0.0.1:9469 --metrics-open",
            ],
        ),
        (
            "netnice check FILE.pcap[ng] [--flow 'to [::1]:7']",
            &[
                "netnice check file.pcap",
                "netnice check file.pcapng",
                "netnice check file.pcap --flow to [::1]:7",
            ],
        ),
        (
            "netnice-driver --rate RATE [--mode native|generic]\n    IFACE",
            &[
                "netnice-driver --rate 4mbit eth0",
                "netnice-driver --rate 4mbit --mode native eth0",
                "netnice-driver --rate 4mbit --mode generic eth0",
            ],
        ),
        ("netnice share RATE TARGET…", &["netnice share 4mbit pid:1"]),
        ("netnice show [TARGET", &["netnice show [pid:1"]),
    ] {
        assert_eq!(in_block(form), wanted, "{form}");
    }
}

#[test]
fn placeholders_of_the_table_get_example_values() {
    for (word, wanted) in [
        ("--weight=N", "--weight=7"),
        ("@RATE", "@4mbit"),
        ("direct:IFACE", "direct:eth0"),
        ("128Kbyte/sec", "128Kbyte/sec"),
        ("NX", "NX"),
        ("7N", "7N"),
    ] {
        assert_eq!(example(word), wanted);
    }
}

#[test]
fn spans_of_a_sentence_are_lines_or_mentions() {
    let text = "Type `netnice set pid:7 --up 4mbit`, or\n`netnice\ninetd`; `netnice` runs, \
                `cargo xtask miri [FILTER]`.\n\n| `make test` |\n|---|\n";
    let lines = of_text("docs/a.md", text);
    let short: Vec<_> = lines
        .iter()
        .map(|one| (one.location.as_str(), one.words.join(" "), one.mention))
        .collect();
    let wanted = [
        ("docs/a.md:1", "netnice set pid:7 --up 4mbit", false),
        ("docs/a.md:2", "netnice inetd", true),
        ("docs/a.md:3", "cargo xtask miri", false),
        ("docs/a.md:3", "cargo xtask miri name", false),
        ("docs/a.md:5", "make test", true),
    ];
    let wanted = wanted.map(|(place, words, mention)| (place, words.to_owned(), mention));
    assert_eq!(short, wanted);
}

#[test]
fn blocks_of_other_languages_are_not_read() {
    let rust = "```rust\nmake test\n```\n\n```text\nmake test\n```\n\n```sh\nmake build\n```\n";
    assert_eq!(read("docs/a.md", rust), ["make build"]);
}

#[test]
fn a_manual_page_yields_its_synopsis_examples_and_bold_lines() {
    let page = r#".TH NETNICED 8
.SH NAME
netniced \- keeps
.SH SYNOPSIS
.B netniced
.RB [ \-\-policy
.IR FILE ]
.br
.B netniced \-\-probe
.RB [ \-\-json
|
.BR \-\-stay ]
.SH DESCRIPTION
.B netnice clear \-\-all
lifts.
.BR netnice (1)
.EX
netnice show
.EE
.BI \-\-linger " TIME"
"#;
    let lines = of_text("packaging/a.8", page);
    let short: Vec<_> = lines
        .iter()
        .map(|one| format!("{}: {}", one.location, one.words.join(" ")))
        .collect();
    let wanted = [
        "packaging/a.8:5: netniced",
        "packaging/a.8:5: netniced --policy file",
        "packaging/a.8:9: netniced --probe",
        "packaging/a.8:9: netniced --probe --json",
        "packaging/a.8:9: netniced --probe --stay",
        "packaging/a.8:14: netnice clear --all",
        "packaging/a.8:18: netnice show",
    ];
    assert_eq!(short, wanted);
}

/// A parser that accepts `show` and `set TARGET`.
fn parses(one: &CommandLine) -> Result<(), String> {
    match one.words[1..]
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()[..]
    {
        ["show"] | ["set", _] => Ok(()),
        _ => Err("what?\n".to_owned()),
    }
}

fn errors_of(text: &str, minimum: &[(&str, usize)]) -> Vec<String> {
    let verbs = ["show", "set"].map(str::to_owned);
    errors(&of_text("docs/a.md", text), minimum, &verbs, parses)
}

#[test]
fn a_line_that_does_not_parse_is_reported_with_its_place() {
    assert_eq!(errors_of(&block("netnice show"), &[("docs/", 1)]), [""; 0]);
    let wanted = "docs/a.md:5: `netnice shwo PID`\n  read as: netnice shwo 1\n  netnice: what?";
    assert_eq!(
        errors_of(&block("netnice show\nnetnice shwo PID"), &[]),
        [wanted]
    );
    // A line of its own is an error; in a sentence it names the verb.
    assert_eq!(errors_of(&block("netnice set"), &[]).len(), 1);
    assert_eq!(errors_of("`netnice set`", &[]), [""; 0]);
    assert_eq!(errors_of("`netnice sit`", &[]).len(), 1);
    assert_eq!(errors_of("`netnice show 7`", &[]).len(), 1);
}

#[test]
fn a_line_marked_as_refused_must_be_refused() {
    assert_eq!(
        errors_of(&block("netnice shwo   # refused: no verb"), &[]),
        [""; 0]
    );
    let found = errors_of(&block("netnice show   # refused"), &[]);
    assert!(
        found[0].contains("says that the program refuses it"),
        "{found:?}"
    );
}

#[test]
fn too_few_lines_are_an_error() {
    let text = block("netnice show\nnetnice set 7");
    assert_eq!(errors_of(&text, &[("docs/", 2)]), [""; 0]);
    let found = errors_of(&text, &[("docs/", 3), ("README.md", 1)]);
    assert_eq!(found.len(), 2, "{found:?}");
    // The lines of a form are one place.
    assert_eq!(
        errors_of(&block("netnice set TARGET[x]"), &[("docs/", 2)]).len(),
        1
    );
}
