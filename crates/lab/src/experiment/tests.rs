use super::*;

fn context(subject: Subject, quick: bool) -> Context {
    Context {
        subject,
        quick,
        only: None,
        keep: None,
        plots: None,
    }
}

#[test]
fn stolen_time_is_allowed_for_in_quick_runs_up_to_the_promise() {
    let (quick, full) = (
        context(Subject::Netnice, true),
        context(Subject::Netnice, false),
    );
    assert_eq!(quick.with_stolen(70.0, 100.0, 0.25), 95.0);
    assert_eq!(quick.with_stolen(90.0, 100.0, 0.25), 100.0);
    assert_eq!(quick.with_stolen(110.0, 100.0, 0.25), 110.0);
    assert_eq!(quick.with_stolen(70.0, 100.0, 0.0), 70.0);
    assert_eq!(full.with_stolen(70.0, 100.0, 0.25), 70.0);
    assert!(quick.with_stolen(f64::NAN, 100.0, 0.25).is_nan());
}

/// Experiments that measure netnice alone refuse at once, before they make a world.
#[test]
fn every_experiment_measures_the_subject_or_refuses_it() {
    let with_htb = ["accuracy", "change", "latency", "nice-fig3"];
    for experiment in REGISTRY.iter().filter(|one| !with_htb.contains(&one.id)) {
        let refused = experiment.run(&context(Subject::Htb, true));
        let refused = refused.expect_err(experiment.id);
        let text = format!("{refused:#}");
        assert!(text.ends_with("omit --subject"), "{text}");
    }
}
