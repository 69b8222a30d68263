//! Tests of cell contracts of targets: what they reserve and contradict.

use alloc::format;

use super::contract;
use crate::contract::{Clause, Contract, ContractError, Direction};
use crate::units::Rate;

#[test]
fn a_cell_contract_reserves_its_rate_and_limits_to_its_peak() {
    let link = Rate::new(100_000_000).unwrap();
    let rate = |bits| Rate::new(bits).unwrap();
    let peak = contract("cell pcr=10mbit,cdvt=100us");
    let sustained = contract("cell pcr=10mbit,cdvt=100us,scr=2mbit,mbs=64KiB");
    for (cell, min) in [(&peak, 10_000_000), (&sustained, 2_000_000)] {
        assert!(cell.is_guaranteed() && cell.reserves(Direction::Up));
        assert!(!cell.reserves(Direction::Down));
        assert_eq!(cell.link_min(Direction::Up, link), Some(Some(rate(min))));
        assert_eq!(cell.link_min(Direction::Down, link), None);
        assert_eq!(cell.link_max(Direction::Up, link), Some(rate(10_000_000)));
        assert_eq!(cell.link_max(Direction::Down, link), None);
        assert!(cell.without_guarantees().is_empty());
    }
    let cell = "cell pcr=10mbit,cdvt=100us";
    for (other, clause) in [("slice 1ms/2ms", Clause::Slice), ("min 1mbit", Clause::Min)] {
        let text = format!("{cell} {other}");
        let error = text.parse::<Contract>().expect_err("a contradiction");
        assert_eq!(error, ContractError::CellAndShare(clause));
    }
    let yields = format!("{cell} yield on").parse::<Contract>();
    assert_eq!(yields, Err(ContractError::YieldAndShare(Clause::Cell)));
}
