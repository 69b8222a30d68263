use netnice_core::link::{Capacity, CapacitySource, Link};
use netnice_core::units::{Amount, Bytes, Nanos};
use proptest::prelude::*;

use super::*;

fn capacity(mbit: u64) -> LinkCapacity {
    let link = Link {
        name: "eth0".parse().expect("a name"),
        up: Some(Capacity {
            rate: Rate::new(mbit * 1_000_000).expect("a rate"),
            source: CapacitySource::Operator,
        }),
        down: None,
        overhead: Bytes(24),
        horizon: Nanos(0),
    };
    LinkCapacity::on(&link, Amount(0), 1500, None).expect("room")
}

/// Contracts of all kinds. Some are above what a link of 20 Mbit/s can keep.
const CONTRACTS: [&str; 6] = [
    "cell pcr=1mbit,cdvt=40ms",
    "min 700kbit",
    "slice 1ms/40ms",
    "slice 39ms/40ms",
    "cell pcr=30mbit,cdvt=1s",
    "channel mmax=3000B,rmax=20/s,bmax=2,deadline=60ms",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn sums_are_those_of_the_present_contracts_and_accept_no_more_than_the_exact_test(
        changes in prop::collection::vec((0u32..12, prop::option::of(0..CONTRACTS.len())), 1..40),
        mbit in 20u64..200,
    ) {
        let capacity = capacity(mbit);
        let rate = capacity.max_direct;
        let mut promised = PromisedFlows::default();
        for (flow, contract) in changes {
            let contract = contract.map(|n| Rc::new(CONTRACTS[n].parse().expect("a contract")));
            promised.set(PromiseHolder::Flow(flow), contract.as_ref());
            let at = (rate, WorkAhead::SHORTEST, Further::default());
            let fits = promised.fit_at_once(&capacity, at, std::iter::empty());
            let all = promised.contracts.values().map(|one| (**one).clone());
            let all: Vec<Contract> = all.collect();
            let exact = capacity.carries(rate, &all);
            prop_assert!(!fits || exact.is_ok(), "{exact:?} {all:?}");
            let sums = promised.sums.first().expect("they were needed");
            let fresh = RateSums::of(&capacity, rate, &promised.contracts);
            prop_assert_eq!(&sums.demands, &fresh.demands);
            prop_assert_eq!(sums.impossible, fresh.impossible);
            let with_deadline = all.iter().filter(|one| admission::has_deadline(one)).count();
            prop_assert_eq!(promised.with_deadline, with_deadline);
            let exact = all.iter().filter(|one| admission::has_exact_times(one)).count();
            prop_assert_eq!(promised.with_exact_times, exact);
        }
    }
}
