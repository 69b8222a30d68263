use super::*;

fn complaint_texts(files: &[(&str, &str)]) -> Vec<String> {
    let complaints = complaints("crates/x", files).into_iter();
    complaints.map(|complaint| complaint.what).collect()
}

#[test]
fn uses_in_one_direction_are_no_circle() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c; pub use a::A;"),
        ("a.rs", "use crate::{b::{self, B}, c};"),
        (
            "a/inner.rs",
            "use super::A; use crate::a::A; use super::super::c::C;",
        ),
        ("b.rs", "use super::c::C; fn f() -> crate::c::C {}"),
        ("c.rs", "use std::fmt; use other_crate::a;"),
    ];
    assert_eq!(complaint_texts(&files), [""; 0]);
}

#[test]
fn a_circle_is_reported_with_the_place_of_each_use() {
    let files = [
        ("a.rs", "use std::fmt;\nuse crate::b::B;"),
        ("b.rs", "mod inner;"),
        ("b/inner.rs", "\n\nfn f() { super::super::c::g() }"),
        ("c.rs", "use crate::{d,\n    a::A};"),
        ("d.rs", ""),
    ];
    assert_eq!(
        complaint_texts(&files),
        [
            "modules use each other in a circle: a uses b (a.rs:2), b uses c (b/inner.rs:3), \
             c uses a (c.rs:1); move what both sides need to a third module"
        ]
    );
}

#[test]
fn two_modules_that_use_each_other_are_reported_once() {
    let files = [
        ("a.rs", "use super::b;"),
        ("b.rs", "use super::a;"),
        ("c.rs", "use crate::a; use crate::b;"),
    ];
    assert_eq!(complaint_texts(&files).len(), 1);
}

#[test]
fn tests_literals_and_comments_are_no_uses() {
    let files = [
        ("a.rs", "use crate::b;"),
        (
            "b.rs",
            "//! See [`crate::a`].\nconst TEXT: &str = \"crate::a\";\nfn f() { not_crate::a() }\n\
             #[cfg(test)]\nuse crate::a;\n#[cfg(test)]\nmod tests {\n    use crate::a;\n    fn g() {}\n}\n\
             #[cfg(test)]\nimpl B {\n    fn h(a: [u8; 2]) { crate::a::i() }\n}\n",
        ),
        ("b/tests.rs", "use crate::a;"),
        ("b/tests/fake.rs", "use crate::a;"),
    ];
    assert_eq!(complaint_texts(&files), [""; 0]);
    let beyond = [
        ("a.rs", "use crate::b;"),
        ("b.rs", "#[cfg(test)]\nmod tests;\nuse crate::a;\n"),
    ];
    assert_eq!(
        complaint_texts(&beyond).len(),
        1,
        "code after an item for tests is checked"
    );
}
