use super::*;
use crate::tree::Crate;

fn one(name: &str, uses: &[&str]) -> Crate {
    Crate {
        name: name.to_owned(),
        folder: PathBuf::new(),
        dependencies: uses.iter().map(|used| (*used).to_owned()).collect(),
        build_dependencies: uses.iter().map(|used| (*used).to_owned()).collect(),
        targets: Vec::new(),
    }
}

fn edge(name: &str, used: &str) -> Vec<Complaint> {
    layers::edges(&[one(name, &[used])])
}

#[test]
fn this_tree_is_tidy() {
    let tree = Tree::find().expect("cargo metadata");
    let complaints: Vec<_> = inspect(&tree)
        .expect("readable")
        .iter()
        .map(ToString::to_string)
        .collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn a_crate_uses_only_lower_layers() {
    for (name, used) in [
        ("netnice-api", "netnice-core"),
        ("netnice-daemon", "netnice-kernel"),
        ("netnice-cli", "netnice-share"),
        ("netnice-lab", "netnice-daemon"),
        ("netnice-kernel", "aya"),
        ("netnice-lab", "aya"),
        ("netnice-core", "proptest"),
    ] {
        assert!(edge(name, used).is_empty(), "{name} may use {used}");
    }
    for (name, used) in [
        ("netnice-core", "netnice-api"),
        ("netnice-core", "netnice-ring"),
        ("netnice-cli", "netnice-kernel"),
        ("netnice-cli", "netnice-daemon"),
        ("netnice-daemon", "netnice-lab"),
        ("netnice-lab", "xtask"),
        ("netnice-daemon", "aya"),
        ("netnice-kernel", "tokio"),
        ("netnice-cases", "netnice-core"),
    ] {
        assert_eq!(edge(name, used).len(), 1, "{name} may not use {used}");
    }
    assert_eq!(
        edge("netnice-unknown", "serde").len(),
        1,
        "a crate without a layer"
    );
}

#[test]
fn a_crate_for_tests_is_used_only_by_tests() {
    for name in ["netnice-core", "netnice-capi", "netnice-lab"] {
        assert_eq!(
            edge(name, "netnice-cases").len(),
            1,
            "{name} uses it in built code"
        );
        let in_tests = Crate {
            build_dependencies: Vec::new(),
            ..one(name, &["netnice-cases"])
        };
        assert!(layers::edges(&[in_tests]).is_empty(), "{name}'s tests");
    }
}

#[test]
fn a_file_of_701_lines_is_too_long() {
    assert_eq!(size("a.rs", &"x\n".repeat(700)), None);
    assert!(size("a.rs", &"x\n".repeat(701)).is_some());
    let of_daemon = "crates/daemon/src/a.rs";
    assert_eq!(size(of_daemon, &"x\n".repeat(500)), None);
    assert!(size(of_daemon, &"x\n".repeat(501)).is_some());
}

#[test]
fn a_comment_of_101_columns_is_too_long() {
    let line = |columns: usize| format!("    // {}\n", "x".repeat(columns - 7));
    assert_eq!(comments("a.rs", &line(100)).count(), 0);
    assert_eq!(comments("a.rs", &line(101)).count(), 1);
    assert_eq!(comments("a.md", &line(101)).count(), 0);
    let code = format!("let a = \"{}\";\n", "x".repeat(100));
    assert_eq!(comments("a.rs", &code).count(), 0);
}

#[test]
fn module_names_without_a_subject_are_refused() {
    for place in [
        "crates/core/src/utils.rs",
        "crates/core/src/common/rate.rs",
        "crates/lab/src/helpers.rs",
        "crates/kernel/bpf/common.h",
        "crates/capi/tests/util.c",
        "xtask/src/deb/helpers.sh",
        "docs/types.md",
    ] {
        assert!(refused_name(place).is_some(), "{place}");
    }
    for place in [
        "crates/core/src/units.rs",
        "crates/api/src/types_of_service.rs",
    ] {
        assert!(refused_name(place).is_none(), "{place}");
    }
}

#[test]
fn a_crate_opens_with_its_three_lines() {
    let good = "//! Answers: a.\n//! May touch: b.\n//! Must never: c.\n//!\n//! More.";
    assert!(opening_lines("lib.rs", good).is_empty());
    for bad in [
        "",
        "//! A crate.\n//! Answers: a.\n//! May touch: b.\n//! Must never: c.",
        "//! Answers: a.\n//! Must never: c.\n//! May touch: b.",
        "//! Answers:\n//! May touch: b.\n//! Must never: c.",
    ] {
        assert!(!opening_lines("lib.rs", bad).is_empty(), "{bad}");
    }
}

#[test]
fn unsafe_is_refused_outside_the_listed_files() {
    let text = "fn f() {\n    unsafe { g() }\n}\n";
    assert_eq!(
        rust("crates/core/src/units.rs", text)[0].place,
        "crates/core/src/units.rs:2"
    );
    assert!(rust("crates/core/src/prefetch.rs", text).is_empty());
    assert!(rust("crates/kernel/src/tc.rs", text).is_empty());
    let no_code = "#![forbid(unsafe_code)]\n// unsafe is refused\nconst A: &str = \"unsafe\";\n";
    assert!(rust("crates/core/src/units.rs", no_code).is_empty());
}

#[test]
fn stubs_and_postponed_work_are_refused() {
    let place = "crates/core/src/units.rs";
    assert_eq!(rust(place, "fn f() {\n    todo!()\n}").len(), 1);
    assert_eq!(rust(place, "fn f() { unimplemented!(\"later\") }").len(), 1);
    assert_eq!(rust(place, "// TODO: rounding\n").len(), 1);
    assert!(rust(place, "fn todo() { print(\"TODO\") }").is_empty());
}

#[test]
fn anyhow_is_refused_outside_binaries_and_test_crates() {
    let text = "use anyhow::Result;";
    assert_eq!(rust("crates/daemon/src/server.rs", text).len(), 1);
    assert!(rust("crates/daemon/src/main.rs", text).is_empty());
    assert!(rust("crates/lab/src/world.rs", text).is_empty());
    assert!(rust("xtask/src/step.rs", text).is_empty());
}

#[test]
fn paths_of_one_machine_are_refused() {
    let own = ["/srv/somebody/netnice".to_owned()];
    let folder = MACHINE_FOLDERS[0];
    for bad in [
        format!("see /{folder}/main"),
        format!("\"/{folder}/x\""),
        "cd /srv/somebody/netnice".to_owned(),
    ] {
        assert_eq!(machine_paths("a", &bad, &own).len(), 1, "{bad}");
    }
    for good in [
        format!("net{folder}/x"),
        format!("some/{folder}/x"),
        "/srv/netnice".to_owned(),
    ] {
        assert!(machine_paths("a", &good, &own).is_empty(), "{good}");
    }
}

#[test]
fn conflict_marks_are_refused() {
    let mark = "<".repeat(7);
    assert!(conflict_marks("README.md", &format!("one\n{mark} HEAD\ntwo")).is_some());
    assert!(conflict_marks("README.md", &format!("one {mark} HEAD\n{mark}\n")).is_none());
}

#[test]
fn ebpf_sources_name_their_licence() {
    let good = format!("// {BPF_LICENCE}\nint x;\n");
    assert_eq!(bpf_licence("a.bpf.c", &good), None);
    assert!(bpf_licence("a.bpf.c", "// GPL\n").is_some());
}

#[test]
fn the_lexer_separates_code_comments_and_literals() {
    let text = r##"
let a = "unsafe \" unsafe"; // unsafe
/* unsafe /* nested */ unsafe */ let b = r#"unsafe " unsafe"#;
let c = 'u'; let d: &'static str = b"unsafe"; let e = '\''; unsafe {}
let r = br"unsafe"; let attr = "x"; let n = c"unsafe";
"##;
    let parts = lexer::split(text);
    assert_eq!(lexer::lines_with_word(&parts.code, "unsafe"), [4]);
    assert_eq!(lexer::lines_with_word(&parts.comments, "unsafe"), [2, 3]);
    assert_eq!(parts.code.lines().count(), text.lines().count());
    assert!(parts.code.contains("&'static str"));
}
