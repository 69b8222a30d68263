//! Tests of the clause `cpu` of targets: the limits of the kernel, and contracts without it.

use super::*;

#[test]
fn processor_time_is_within_the_limits_of_the_kernel() {
    for text in [
        "cpu 10us/100us",
        "cpu 1s/1s cpu-extra",
        "cpu 2ms/10ms yield on",
    ] {
        assert_eq!(target_support(&contract(text)), Ok(()), "{text}");
    }
    for (text, fault) in [
        (
            "cpu 50us/99us",
            "cpu: the period 99us is shorter than 100us",
        ),
        (
            "cpu 50us/1001ms",
            "cpu: the period 1.001s is longer than 1s",
        ),
        ("cpu 9999ns/1ms", "cpu: 9.999us is less than 10us"),
    ] {
        let error = target_support(&contract(text)).expect_err(text).to_string();
        assert!(error.starts_with(fault), "{error}");
    }
    let all = contract("up 1mbit cpu 1ms/2ms");
    assert_eq!(all.without_processor_time(), contract("up 1mbit"));
    assert_eq!(
        all.without_guarantees(),
        all,
        "it does not depend on a link"
    );
}

#[test]
fn the_time_of_flows_parses_and_prints() {
    for text in ["slice 1ms/10ms cpu auto", "cpu auto cpu-extra"] {
        let contract = contract(text);
        assert_eq!(contract.to_string(), text);
        assert!(contract.has_auto_time());
        assert_eq!(contract.cpu().and_then(|time| time.slice()), None);
        assert_eq!(target_support(&contract), Ok(()));
    }
    let cases = [
        ("cpu auto extra", "extra belongs to slice"),
        ("cpu some", ", or auto"),
        ("cpu auto/10ms", "auto"),
    ];
    for (text, why) in cases {
        let error = text.parse::<Contract>().expect_err(text).to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}
