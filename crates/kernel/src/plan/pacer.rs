//! The filter above all classes of a link ([`Pacer`]): its rate and its bucket. Pure; nothing
//! fails.

use super::Link;

/// The filter above all classes of a link, a token bucket filter: in an interval of length t it
/// passes on at most its bucket and `rate` · t.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pacer {
    /// The rate in bytes per second.
    pub rate: u64,
    /// The bucket in bytes. [`Pacer::bucket_for`] raises it to the longest packet.
    pub bucket: u64,
    /// Bytes that each packet takes on the link beyond those that the kernel counts.
    pub overhead: u16,
}

impl Pacer {
    /// The filter of a link; `None` if the link needs none, or is not managed for sending.
    pub(super) fn of(link: &Link) -> Option<Pacer> {
        let (rate, bucket) = (super::tree::bytes_per_second(link.up?), link.bucket?);
        Some(Pacer {
            rate,
            bucket: super::tree::bytes_in(rate, bucket.0),
            overhead: link.overhead,
        })
    }

    /// The bucket in bytes on an interface of this MTU. The filter drops packets that are longer
    /// than its bucket, so it has room for the longest one, with its header and a VLAN tag.
    pub(crate) fn bucket_for(&self, mtu: u32) -> u32 {
        let longest = u64::from(mtu) + LONGEST_HEADER;
        u32::try_from(self.bucket.max(longest)).unwrap_or(u32::MAX)
    }
}

/// Bytes of an Ethernet header and a VLAN tag.
const LONGEST_HEADER: u64 = 18;

#[cfg(test)]
mod tests {
    use super::*;
    use netnice_core::units::{Nanos, Rate};

    #[test]
    fn the_bucket_is_a_time_at_the_rate_and_holds_the_longest_packet() {
        let link = |up: u64, bucket: Option<u64>| Link {
            name: "eth0".into(),
            up: Rate::new(up),
            down: None,
            overhead: 24,
            bucket: bucket.map(Nanos),
            has_redirects: false,
        };
        let pacer = Pacer::of(&link(100_000_000, Some(250_000))).expect("a filter");
        assert_eq!(
            (pacer.rate, pacer.bucket, pacer.overhead),
            (12_500_000, 3_125, 24)
        );
        assert_eq!(pacer.bucket_for(1_500), 3_125);
        assert_eq!(pacer.bucket_for(9_000), 9_018);
        assert_eq!(Pacer::of(&link(100_000_000, None)), None);
        assert_eq!(
            Pacer::of(&link(0, Some(250_000))),
            None,
            "not managed for sending"
        );
    }
}
