//! Tests of messages beyond the contract of a channel.

use super::*;

/// The overload policies in C: EAGAIN, ENOBUFS, and the counts.
#[test]
fn messages_beyond_the_contract_follow_the_overload_policy() {
    let test = TestProgram::new("c-overload");
    let (here, _there) = test.pair();
    assert_eq!(netnice_flow_arrival(here, 1), 0);
    for (policy, sent, error) in [
        (
            c"channel mmax=184B,rmax=1/s,bmax=1,deadline=10ms,overload=drop",
            1,
            libc::ENOBUFS,
        ),
        (
            c"channel mmax=184B,rmax=1/s,bmax=1,deadline=10ms,overload=space",
            0,
            libc::EAGAIN,
        ),
        (
            c"channel mmax=184B,rmax=1/s,bmax=1,deadline=10ms,overload=decay",
            2,
            0,
        ),
    ] {
        assert_eq!(
            netnice_flow_change(here, policy.as_ptr()),
            0,
            "{}",
            last_error()
        );
        assert_eq!(netnice_flow_drain(here, TIMEOUT), 0);
        let mut before: Messages = empty();
        assert_eq!(netnice_flow_messages(here, &mut before), 0);
        let bytes = [0_u8; 50];
        let part = iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        for number in 0..2 {
            let done = netnice_flow_send_message(here, &part, 1, 0);
            assert_eq!(done == 0, number < sent, "{policy:?}: {}", last_error());
            if done != 0 {
                assert_eq!(errno(), error, "{policy:?}");
            }
        }
        let mut after: Messages = empty();
        assert_eq!(netnice_flow_messages(here, &mut after), 0);
        assert_eq!(after.queued - before.queued, sent, "{policy:?}");
        assert_eq!(after.retry_after > 0, error == libc::EAGAIN);
    }
    assert_eq!(netnice_flow_messages(here, std::ptr::null_mut()), -1);
    assert_eq!(errno(), libc::EFAULT);
}
