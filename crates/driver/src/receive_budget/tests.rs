use super::shared::{ActiveSet, FlowBudget, SharedBudget};
use super::*;

/// One flow of the only program.
struct Alone(SharedBudget, ActiveSet, FlowBudget);

impl Alone {
    fn new(budget: ReceiveBudget) -> Alone {
        let mut shared = SharedBudget::default();
        let member = shared.add_flow(budget);
        Alone(shared, ActiveSet::default(), member)
    }

    fn admit(&mut self, lookup: Nanos, delivery: Nanos, now: Instant) -> Result<(), Instant> {
        let Alone(shared, program, member) = self;
        member.admit((shared, program), (lookup, delivery), (0, now))
    }

    fn is_nearly_exhausted(&self) -> bool {
        self.2.is_nearly_exhausted()
    }
}

#[test]
fn a_flow_gets_its_part_of_the_time_and_its_burst() {
    // A tenth of the time, with a burst of one microsecond: a packet of 100 ns every microsecond.
    let mut flow = Alone::new(ReceiveBudget::new(100_000, Nanos(1000)));
    let mut admit = |now| flow.admit(Nanos(0), Nanos(100), Instant(now)).is_ok();
    let at_once = (0..20).filter(|_| admit(0)).count();
    assert_eq!(at_once, 10);
    let later = (1..=1000_u64)
        .flat_map(|k| [k * 1000; 3])
        .filter(|now| admit(*now))
        .count();
    assert_eq!(later, 1000);
    assert_eq!((0..20).filter(|_| admit(1_000_000_000)).count(), 10);
}

#[test]
fn look_ups_are_charged_and_debt_is_bounded() {
    let mut flow = Alone::new(ReceiveBudget::new(500_000, Nanos(1000)));
    let mut admit = |lookup, delivery, now| {
        flow.admit(Nanos(lookup), Nanos(delivery), Instant(now))
            .is_ok()
    };
    for k in 0..1_000_000 {
        // It takes 100 of every 10 ns: far more than it has.
        admit(50, 50, 10 * k);
    }
    let end = 10_000_000;
    assert!(!admit(0, 1, end));
    assert!(admit(0, 1, end + 2_100));
    // Time that goes back earns nothing.
    assert!(!admit(0, 1000, 0));
}

#[test]
fn the_prices_of_iterations_and_look_ups_are_learnt() {
    // Few frames: 9 us in all. Many: 160 ns for each, and the price of the iteration.
    let mut cost = Cost::default();
    cost.learn(0, Nanos(1_000_000));
    assert_eq!(cost, Cost::default());
    for _ in 0..1000 {
        cost.learn(1, Nanos(9_000));
        cost.learn(64, Nanos(8_800 + 64 * 260));
    }
    assert!((8_700..=8_900).contains(&cost.iteration.0), "{cost:?}");
    assert!((140..=180).contains(&cost.lookup.0), "{cost:?}");
    // An iteration in which the driver was stopped for a second changes little, with one frame or
    // many.
    let before = cost;
    cost.learn(1, Nanos(1_000_000_000));
    assert!(cost.iteration.0 <= before.iteration.0 + 2_000, "{cost:?}");
    cost.learn(64, Nanos(1_000_000_000));
    assert!(cost.lookup.0 <= before.lookup.0 + 100, "{cost:?}");
    // A lasting change is learnt soon.
    (0..200).for_each(|_| cost.learn(1, Nanos(3_000)));
    assert!((2_600..=2_900).contains(&cost.iteration.0), "{cost:?}");
}

#[test]
fn the_first_frame_of_an_iteration_pays_for_it() {
    let mut cost = Cost::default();
    let (iteration, lookup) = (cost.iteration.0, cost.lookup.0);
    cost.begin(Nanos(7_000));
    assert_eq!(cost.lookup(), Nanos(iteration + 7_000 + lookup));
    assert_eq!(cost.lookup(), Nanos(lookup));
    cost.begin(Nanos(7_000));
    cost.begin(Nanos(0));
    assert_eq!(cost.lookup(), Nanos(iteration + lookup));
}

#[test]
fn a_refusal_gives_the_time_when_half_of_the_burst_is_back() {
    // A tenth of the time, with a burst of a millisecond.
    let mut flow = Alone::new(ReceiveBudget::new(100_000, Nanos::from_millis(1)));
    let mut now = Instant(1_000_000_000);
    let then = loop {
        match flow.admit(Nanos(100), Nanos(900), now) {
            Ok(()) => now.0 += 1,
            Err(then) => break then,
        }
    };
    assert!(flow.is_nearly_exhausted());
    let wait = then.0 - now.0;
    assert!((4_900_000..=5_010_000).contains(&wait), "{wait}");
    // Half a millisecond of work, and no more.
    assert_eq!(flow.admit(Nanos(0), Nanos(0), then), Ok(()));
    assert!(!flow.is_nearly_exhausted());
    let paid = (0..1000)
        .filter(|_| flow.admit(Nanos(100), Nanos(900), then).is_ok())
        .count();
    assert!((498..=500).contains(&paid), "{paid}");
}

#[test]
fn a_budget_without_a_part_admits_nothing() {
    let mut flow = Alone::new(ReceiveBudget::new(0, Nanos(0)));
    let refused = flow.admit(Nanos(1), Nanos(1), Instant(5));
    assert!(refused.is_err_and(|until| until >= Instant(5)));
}
