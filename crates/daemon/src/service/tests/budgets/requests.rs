//! Random requests of two users with budgets, of root and of the link's rate, against a naive
//! record of who was promised what.

use std::collections::BTreeMap;

use netnice_core::contract::Direction;
use netnice_core::units::{Amount, Rate};
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Ask {
    Min(bool, u32, u64),
    Clear(bool, u32),
    Weight(bool, u32, u64),
    Budget(bool, u64),
    Root(u32, u64),
    Link(u64),
}

fn asks() -> impl Strategy<Value = Ask> {
    prop_oneof![
        12 => (any::<bool>(), 0..4_u32, 0..9_000_u64).prop_map(|(a, p, k)| Ask::Min(a, p, k)),
        3 => (any::<bool>(), 0..4_u32).prop_map(|(a, p)| Ask::Clear(a, p)),
        2 => (any::<bool>(), 0..4_u32, 1..1000_u64).prop_map(|(a, p, w)| Ask::Weight(a, p, w)),
        1 => (any::<bool>(), 1..12_000_u64).prop_map(|(a, k)| Ask::Budget(a, k)),
        1 => (0..2_u32, 1..4_000_u64).prop_map(|(p, k)| Ask::Root(p, k)),
        1 => (8_000..24_000_u64).prop_map(Ask::Link),
    ]
}

/// A naive record of who was promised what, in kbit/s.
#[derive(Default)]
struct Naive {
    budgets: BTreeMap<u32, u64>,
    promises: BTreeMap<u32, u64>,
}

impl Naive {
    fn sum(&self, uid: u32) -> u64 {
        let first = 10 * (uid - 999);
        self.promises.range(first..first + 10).map(|(_, k)| k).sum()
    }
}

struct Model {
    fixture: Fixture,
    naive: Naive,
    requests: u64,
}

impl Model {
    fn new() -> Model {
        let mut fixture = fixture();
        fixture.machine().spawn(30, 1002);
        fixture.machine().spawn(31, 1002);
        ok(fixture.set("user:1000", "min 6mbit delegate 1000"));
        ok(fixture.set("user:1001", "min 5mbit delegate 1001"));
        let budgets = BTreeMap::from([(1000, 6_000), (1001, 5_000)]);
        Model {
            fixture,
            naive: Naive {
                budgets,
                ..Naive::default()
            },
            requests: 0,
        }
    }

    /// The minimum in force, in kbit/s.
    fn minimum(&self, target: &str) -> u64 {
        let held = self.fixture.held(target);
        let min = held.and_then(|held| held.entry.contract.min(Direction::Up));
        min.map_or(0, |min: Rate| min.bits_per_second() / 1000)
    }

    fn everything(&self) -> BTreeMap<String, String> {
        let held = self.fixture.service.ledger().held();
        held.map(|held| {
            let contract = held.entry.contract.to_string();
            (held.entry.target.to_string(), contract)
        })
        .collect()
    }

    fn apply(&mut self, ask: &Ask) {
        let before = self.everything();
        let user = |ann: bool| if ann { ANN } else { BOB };
        let pid = |peer: &Peer, n: u32| 10 * (peer.uid - 999) + n;
        self.requests += 1;
        match ask {
            Ask::Min(ann, n, kbit) => {
                let peer = user(*ann);
                let pid = pid(&peer, *n);
                let others = self.naive.sum(peer.uid) - self.naive.promises.get(&pid).unwrap_or(&0);
                let in_force = self.minimum(&format!("user:{}", peer.uid)) > 0;
                let fits = in_force && others + kbit <= self.naive.budgets[&peer.uid];
                let known = self.fixture.held(&format!("pid:{pid}")).is_some();
                let change = match kbit {
                    0 => "min none".to_owned(),
                    kbit => format!("min {kbit}kbit"),
                };
                let answer = self.fixture.set_as(&peer, &format!("pid:{pid}"), &change);
                // What is set aside comes back with the requests of others, so the naive record
                // judges only while nothing is.
                let aside = self.fixture.service.ledger().held();
                let aside = aside.filter(|held| held.aside.is_some()).count();
                if aside == 0 && *kbit > 0 {
                    assert_eq!(
                        matches!(answer, Response::Done(_)),
                        fits,
                        "{ask:?} {answer:?}"
                    );
                }
                if matches!(answer, Response::Done(_)) {
                    self.naive.promises.insert(pid, *kbit);
                } else if known {
                    assert_eq!(before, self.everything(), "{answer:?}");
                }
                self.only_own_changed(&before, peer.uid);
            }
            Ask::Clear(ann, n) => {
                let peer = user(*ann);
                let pid = pid(&peer, *n);
                self.fixture.clear_as(&peer, &format!("pid:{pid}"));
                self.naive.promises.remove(&pid);
                self.only_own_changed(&before, peer.uid);
            }
            Ask::Weight(ann, n, weight) => {
                let peer = user(*ann);
                let target = format!("pid:{}", pid(&peer, *n));
                self.fixture
                    .set_as(&peer, &target, &format!("weight {weight}"));
                self.only_own_changed(&before, peer.uid);
            }
            Ask::Budget(ann, kbit) => {
                let uid = user(*ann).uid;
                let change = format!("min {kbit}kbit");
                let answer = self.fixture.set(&format!("user:{uid}"), &change);
                if matches!(answer, Response::Done(_)) {
                    self.naive.budgets.insert(uid, *kbit);
                }
            }
            Ask::Root(n, kbit) => {
                let change = format!("min {kbit}kbit");
                self.fixture.set(&format!("pid:{}", 30 + n), &change);
            }
            Ask::Link(kbit) => {
                self.fixture.link("eth0", &format!("{kbit}kbit"), "20mbit");
            }
        }
        // What is in force is what the ledger says; what is set aside counts nothing.
        for uid in [1000, 1001] {
            for pid in 10 * (uid - 999)..10 * (uid - 999) + 4 {
                let min = self.minimum(&format!("pid:{pid}"));
                self.naive.promises.insert(pid, min);
            }
        }
        self.check();
    }

    /// Checks that a user's request has changed no target of anybody else.
    fn only_own_changed(&self, before: &BTreeMap<String, String>, uid: u32) {
        let first = 10 * (uid - 999);
        let own = |target: &str| {
            let pid = target
                .strip_prefix("pid:")
                .and_then(|pid| pid.parse::<u32>().ok());
            pid.is_some_and(|pid| (first..first + 10).contains(&pid))
        };
        let others = |all: &BTreeMap<String, String>| -> Vec<(String, String)> {
            let all = all.iter().filter(|(target, _)| !own(target));
            all.map(|(a, b)| (a.clone(), b.clone())).collect()
        };
        assert_eq!(others(before), others(&self.everything()), "of uid {uid}");
    }

    fn check(&mut self) {
        for uid in [1000, 1001] {
            let budget = self.minimum(&format!("user:{uid}"));
            let sum = self.naive.sum(uid);
            assert!(sum <= budget, "{sum} of {budget} kbit/s of {uid}");
        }
        let all: u64 = ["user:1000", "user:1001", "pid:30", "pid:31"]
            .map(|target| self.minimum(target))
            .iter()
            .sum();
        let ledger = self.fixture.service.ledger();
        let link = ledger.link("eth0").expect("managed").link.clone();
        let rate = link
            .usable(Direction::Up)
            .expect("a rate")
            .bits_per_second()
            / 1000;
        assert!(all <= rate, "{all} of {rate} kbit/s");
        assert_eq!(ledger.promised(&link)[0], Amount(all * 1000));
        self.fixture.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]
    /// 50 cases of 200 requests each.
    #[test]
    fn ten_thousand_requests_of_two_users_never_exceed_their_budgets(
        asks in prop::collection::vec(asks(), 200)
    ) {
        let mut model = Model::new();
        for ask in &asks {
            model.apply(ask);
        }
        prop_assert_eq!(model.requests, 200);
    }
}
