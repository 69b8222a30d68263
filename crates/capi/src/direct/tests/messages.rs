//! Tests of messages beyond the contract of a channel.

use super::*;

/// The overload policies in C: EAGAIN, ENOBUFS, and the counts. The driver sees no message before
/// all are offered.
#[test]
fn messages_beyond_the_contract_follow_the_overload_policy() {
    let test = TestProgram::new("c-overload");
    let (here, _there) = test.pair();
    assert_eq!(netnice_flow_arrival(here, 1), 0);
    for (policy, sent, error) in [
        ("space", 1, libc::EAGAIN),
        ("block", 1, libc::EAGAIN),
        ("drop", 1, libc::ENOBUFS),
        ("decay", 2, 0),
    ] {
        let contract = format!("channel mmax=184B,rmax=1/s,bmax=1,deadline=9ms,overload={policy}");
        let contract = CString::new(contract).unwrap();
        let changed = netnice_flow_change(here, contract.as_ptr());
        assert_eq!(changed, 0, "{policy}: {}", last_error());
        let mut before: Messages = empty();
        assert_eq!(netnice_flow_messages(here, &mut before), 0);
        assert_eq!(before.waiting, 0, "{policy}");
        let mut packet = buffer();
        for number in 0..2 {
            assert_eq!(netnice_flow_packet(here, &mut packet), 0);
            let queued = netnice_flow_queue(here, &packet, 50, 0);
            assert_eq!(queued >= 0, number < sent, "{policy}: {}", last_error());
            if queued < 0 {
                assert_eq!(errno(), error, "{policy}");
                assert_eq!(netnice_flow_discard(here, &packet), 0);
            }
        }
        let mut after: Messages = empty();
        assert_eq!(netnice_flow_messages(here, &mut after), 0);
        assert_eq!(after.queued - before.queued, sent, "{policy}");
        assert_eq!(after.waiting, sent, "{policy}");
        let dropped = after.dropped - before.dropped;
        assert_eq!(dropped, u64::from(policy == "drop"), "{policy}");
        assert_eq!(after.retry_after > 0, policy == "space");
        assert_eq!(netnice_flow_drain(here, TIMEOUT), 0);
    }
    assert_eq!(netnice_flow_messages(here, null_mut()), -1);
    assert_eq!(errno(), libc::EFAULT);
}
