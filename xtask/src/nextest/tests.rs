use std::time::Duration;

use super::*;
use crate::results::Outcome;

#[test]
fn a_filter_expression_selects_each_test_by_program_and_name() {
    let test = |program: &str, name: &str| TestResult {
        program: program.to_owned(),
        name: name.to_owned(),
        outcome: Outcome::Failed,
        took: Duration::ZERO,
    };
    let (one, other) = (
        test("netnice-lab::limits", "a"),
        test("netnice-core", "b::c"),
    );
    assert_eq!(
        filter_expression(&[&one, &other]),
        "(binary_id(=netnice-lab::limits) & test(=a)) | (binary_id(=netnice-core) & test(=b::c))"
    );
}
