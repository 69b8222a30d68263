use super::{Name, limited};

/// The names in a text: literal names as they are, names to expand after `=`.
fn names(text: &str) -> Vec<String> {
    read(text, false)
}

fn read(text: &str, inside: bool) -> Vec<String> {
    let named = limited(text, inside).names.into_iter();
    named
        .map(|name| match name {
            Name::Literal(name) => name,
            Name::Job(name) => name,
            Name::Expand(raw) => format!("={raw}"),
        })
        .collect()
}

#[test]
fn the_last_word_of_a_simple_command_is_a_rate() {
    for (text, name) in [
        ("ftp ftp.foo.com @128Kbyte/sec", "ftp"),
        ("curl -s x @4mbit > out 2>&1", "curl"),
        ("curl -s x >out @4mbit", "curl"),
        ("2>/dev/null <in curl x @4mbit", "curl"),
        ("A=1 B+=2 c[3]=4 curl x @4mbit", "curl"),
        ("/usr/bin/curl 'a b' \"c d\" @4mbit", "/usr/bin/curl"),
        ("'curl' x @4mbit", "curl"),
        ("cu\\rl x @4mbit", "curl"),
        ("\\curl x @4mbit", "curl"),
        ("\"$P\"/curl x @4mbit", "=\"$P\"/curl"),
        ("~/bin/get x @4mbit", "=~/bin/get"),
        ("curl ${x:-a b} @4mbit", "curl"),
        ("curl x @$R", "curl"),
        ("curl x @${R}mbit", "curl"),
        ("time curl x @1.5gbit", "curl"),
        ("! curl x @4mbit", "curl"),
        ("exec curl x @4mbit", "exec"),
        ("cat @4mbit <<E\nnothing @5mbit\nE\n", "cat"),
        ("{fd}>x curl y @4mbit", "curl"),
        ("curl y @4mbit &>x", "curl"),
        ("curl $'it\\'s' @4mbit", "curl"),
    ] {
        assert_eq!(names(text), [name], "{text}");
    }
}

#[test]
fn a_last_word_that_is_no_rate_is_ignored() {
    for text in [
        "git show @",
        "git log @~3",
        "git diff @{u}",
        "mail ann@example.org",
        "curl -d @body.json x",
        "curl -d @body",
        "ssh x @host",
        "echo @4",
        "echo @0",
        "echo @none",
        "curl x '@4mbit'",
        "curl x \"@4mbit\"",
        "curl x \\@4mbit",
        "curl x @'4mbit'",
        "curl @4mbit x",
        "@4mbit",
        "echo \"a @4mbit\"",
        "for x in a @4mbit",
        "case @4mbit in x) y;; esac",
        "command -v curl @4mbit",
        "x=(a @4mbit)",
        "cat <<E\nfoo @5mbit\nE",
    ] {
        assert_eq!(names(text), [""; 0], "{text}");
    }
}

#[test]
fn every_simple_command_of_a_text_is_found() {
    for (text, all) in [
        ("a x @4mbit | b y @5mbit |& c z", &["a", "b"][..]),
        (
            "a x @4mbit && b y || c z @4mbit; d w @4mbit &",
            &["a", "c", "d"],
        ),
        ("(\n\ta x @4mbit\n)", &["a"]),
        ("{ a x @4mbit; }", &["a"]),
        ("for i in 1 2\ndo\n\ta $i @4mbit\ndone", &["a"]),
        (
            "if a x @4mbit; then b y @4mbit; else c z @4mbit; fi",
            &["a", "b", "c"],
        ),
        ("while a x @4mbit; do b y @4mbit; done", &["a", "b"]),
        ("f() { a x @4mbit; }", &["a"]),
        ("case x in y) a x @4mbit ;; esac", &["a"]),
        ("a *(.) @4mbit", &["a"]),
        ("a x @4mbit; a y @5mbit", &["a"]),
        ("a <(b x @4mbit) @4mbit", &["a"]),
        ("a x @4mbit & b y", &["a"]),
        ("a x @4mbit & a y @4mbit & a z @4mbit", &["a"]),
        ("a x @4mbit && b y @4mbit &", &["a", "b"]),
        ("(a x @4mbit) &", &["a"]),
    ] {
        assert_eq!(names(text), all, "{text}");
    }
}

#[test]
fn a_command_is_a_job_if_its_process_runs_nothing_else() {
    let job = |name: &str| Name::Job(name.to_string());
    let other = |name: &str| Name::Literal(name.to_string());
    for (text, names) in [
        ("a x @4mbit", vec![job("a")]),
        ("(a x @4mbit) &", vec![job("a")]),
        ("a x @4mbit & b y", vec![job("a")]),
        ("a x @4mbit && b y @4mbit &", vec![other("a"), job("b")]),
        ("a x @4mbit & a y @4mbit", vec![other("a")]),
        ("a x @4mbit; a y @4mbit &", vec![other("a")]),
        ("(a x @4mbit; b) &", vec![other("a")]),
        ("for i in 1 2; do a $i @4mbit; done &", vec![other("a")]),
        ("for i in 1 2\n{\n\ta $i @4mbit\n}", vec![other("a")]),
    ] {
        assert_eq!(limited(text, true).names, names, "{text}");
    }
}

#[test]
fn commands_in_substitutions_are_found_on_request() {
    for (text, all) in [
        ("x=$(a y @4mbit)", &["a"][..]),
        ("echo \"`a y @4mbit`\"", &["a"]),
        ("echo \"$(b \"$(a y @4mbit)\" @5mbit)\"", &["b", "a"]),
        ("cat <(a y @4mbit) >(b z @4mbit)", &["a", "b"]),
        ("echo '$(a y @4mbit)'", &[]),
    ] {
        assert_eq!(read(text, true), all, "{text}");
        assert_eq!(read(text, false), [""; 0], "{text}");
    }
}

#[test]
fn a_malformed_rate_and_an_unknown_name_give_a_remark() {
    for (text, part) in [
        ("curl x @10mbps", "10mbit (bits)"),
        ("curl x @10MB", "write 10MB/s"),
        ("curl x @128K", "write 128kbit"),
        ("$(which curl) x @4mbit", "limits nothing"),
    ] {
        let found = limited(text, false);
        assert_eq!(found.names, [], "{text}");
        let remark = found.remarks.join("\n");
        assert!(remark.contains(part), "{text}: {remark}");
    }
    assert_eq!(limited("git log @~3", false).remarks, [""; 0]);
}

#[test]
fn the_scanner_accepts_incomplete_text() {
    for text in [
        "",
        "'",
        "\"",
        "`",
        "$(",
        "${",
        "<(",
        "\\",
        "a '@4mbit",
        "a \"$(b",
        "a <<",
        "a <<E",
        "a >",
        "((",
        "))",
        "a $'\\",
        "a `\\",
        "@",
        "a @",
        "a @$",
        "a @$(b)",
        "ü @4mbit",
    ] {
        limited(text, true);
    }
}
