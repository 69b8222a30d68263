//! Reads the speed of an interface: what its driver reports by the ethtool ioctl
//! ([`crate::ethtool`]), else the bit rate of a wireless station by nl80211, the generic netlink
//! family of wireless interfaces. [`Speeds::read`] fails as [`crate::ethtool::speed`]. If nl80211
//! is missing or refuses, the interface has no bit rate.
//!
//! The bit rate of a wireless station changes with nearly every packet, and is the rate of the
//! radio while a frame is sent. The rest of the time passes with waiting for the medium,
//! acknowledgements and other stations. So the speed is half of the bit rate to the access point,
//! rounded down to one of two steps in each octave, and the smallest of the last ten readings. With
//! two readings a second, a fall is followed at once, and a rise when it has lasted for five
//! seconds.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use netnice_core::units::Rate;

use crate::netlink::{
    Attributes, GENERIC_HEAD, Message, NetlinkClient, Request, attributes, find, number,
};
use crate::{device, ethtool};

/// Reads speeds, and keeps the last readings of wireless interfaces.
#[derive(Debug, Default)]
pub struct Speeds {
    recent: BTreeMap<String, Recent>,
}

impl Speeds {
    /// The speed of an interface; `None` if its driver reports none, for example without a carrier,
    /// and it is not a wireless station with an access point.
    ///
    /// # Errors
    /// If there is no such interface, or the kernel refuses the ethtool ioctl.
    pub fn read(&mut self, name: &str) -> io::Result<Option<Rate>> {
        let reported = ethtool::speed(name)?;
        if reported.is_some() {
            self.recent.remove(name);
            return Ok(reported);
        }
        let Some(bit_rate) = bit_rate(name) else {
            self.recent.remove(name);
            return Ok(None);
        };
        let recent = self.recent.entry(name.to_owned()).or_default();
        Ok(Some(recent.add(usable(bit_rate))))
    }
}

/// The last readings of one interface, latest last.
#[derive(Debug, Default)]
struct Recent(VecDeque<Rate>);

impl Recent {
    /// Adds a reading, and returns the smallest of the last [`READINGS`].
    fn add(&mut self, rate: Rate) -> Rate {
        if self.0.len() == READINGS {
            self.0.pop_front();
        }
        self.0.push_back(rate);
        self.0.iter().min().copied().unwrap_or(rate)
    }
}

/// What a radio of this bit rate is taken to carry: half, rounded down to a power of two of bit/s,
/// or to one and a half times it.
fn usable(bit_rate: Rate) -> Rate {
    let half = bit_rate.bits_per_second() / 2;
    let octave = 1 << half.max(1).ilog2();
    let step = match half >= octave + octave / 2 {
        true => octave + octave / 2,
        false => octave,
    };
    Rate::new(step).unwrap_or(Rate::MIN)
}

/// The bit rate at which an interface sends to its access point. `None` if it is not a wireless
/// one, or if it has no peer or several, as an access point has.
fn bit_rate(name: &str) -> Option<Rate> {
    let mut route = NetlinkClient::open().ok()?;
    let index = device::list(&mut route).ok()?;
    let index = index.into_iter().find(|device| device.name == name)?.index;
    let mut generic = NetlinkClient::open_generic().ok()?;
    let family = generic.family("nl80211")?;
    let head = [NL80211_CMD_GET_STATION, 0, 0, 0];
    let of_interface = Attributes::new().u32(NL80211_ATTR_IFINDEX, index);
    let request = Request::new(family, 0, &head).with(&of_interface);
    let stations = generic.dump("read the stations of an interface", request);
    match stations.ok()?.as_slice() {
        [station] => sending_rate(station),
        _ => None,
    }
}

/// The bit rate for sending in a message about a station; `None` if it has none.
fn sending_rate(station: &Message) -> Option<Rate> {
    let row = station.attributes(GENERIC_HEAD);
    let station = attributes(find(&row, NL80211_ATTR_STA_INFO)?);
    let rate = attributes(find(&station, NL80211_STA_INFO_TX_BITRATE)?);
    let wide = find(&rate, NL80211_RATE_INFO_BITRATE32).and_then(number);
    let narrow = || {
        let value = find(&rate, NL80211_RATE_INFO_BITRATE)?;
        Some(u32::from(u16::from_ne_bytes(*value.first_chunk()?)))
    };
    Rate::new(u64::from(wide.or_else(narrow)?) * BIT_RATE_UNIT)
}

/// Number of kept readings; the smallest of them counts.
const READINGS: usize = 10;
/// The unit of bit rates, in bit/s.
const BIT_RATE_UNIT: u64 = 100_000;
const NL80211_CMD_GET_STATION: u8 = 17;
const NL80211_ATTR_IFINDEX: u16 = 3;
const NL80211_ATTR_STA_INFO: u16 = 21;
const NL80211_STA_INFO_TX_BITRATE: u16 = 8;
const NL80211_RATE_INFO_BITRATE: u16 = 1;
const NL80211_RATE_INFO_BITRATE32: u16 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn mbit(mbit: u64) -> Rate {
        Rate::new(mbit * 1_000_000).expect("a rate")
    }

    /// The body of a message about a station, as cfg80211 writes it: the sending rate between other
    /// values.
    fn station(rate: &Attributes) -> Vec<u8> {
        let info = Attributes::new()
            .u32(1, 40)
            .nested(NL80211_STA_INFO_TX_BITRATE, rate)
            .u32(10, 7_000);
        let all = Attributes::new()
            .u32(NL80211_ATTR_IFINDEX, 3)
            .nested(NL80211_ATTR_STA_INFO, &info);
        let mut body = vec![19, 1, 0, 0];
        body.extend_from_slice(all.as_slice());
        body
    }

    fn rate_in(body: Vec<u8>) -> Option<Rate> {
        sending_rate(&Message::of(body))
    }

    #[test]
    fn the_wide_bit_rate_counts_before_the_narrow_one() {
        let narrow = Attributes::new().bytes(NL80211_RATE_INFO_BITRATE, &540_u16.to_ne_bytes());
        assert_eq!(rate_in(station(&narrow)), Some(mbit(54)));
        let both = narrow.u32(NL80211_RATE_INFO_BITRATE32, 8_667);
        let wide = Rate::new(866_700_000);
        assert_eq!(rate_in(station(&both)), wide);
    }

    #[test]
    fn a_message_without_a_valid_bit_rate_has_none() {
        assert_eq!(rate_in(station(&Attributes::new())), None);
        let zero = Attributes::new().u32(NL80211_RATE_INFO_BITRATE32, 0);
        assert_eq!(rate_in(station(&zero)), None);
        let short = Attributes::new().bytes(NL80211_RATE_INFO_BITRATE, &[1]);
        assert_eq!(rate_in(station(&short)), None);
        let whole = station(&Attributes::new().u32(NL80211_RATE_INFO_BITRATE32, 540));
        for length in 0..whole.len() {
            // A truncated message has either no rate or, without its last attribute, the same one.
            let rate = rate_in(whole[..length].to_vec());
            assert!(
                rate.is_none() || rate == Some(mbit(54)),
                "{length}: {rate:?}"
            );
        }
    }

    #[test]
    fn half_of_the_bit_rate_counts_in_two_steps_an_octave() {
        for (bit_rate, half) in [
            (1, 393_216),
            (54, 25_165_824),
            (130, 50_331_648),
            (866, 402_653_184),
        ] {
            let usable = usable(mbit(bit_rate)).bits_per_second();
            assert_eq!(usable, half, "{bit_rate}");
            assert!(usable * 3 > bit_rate * 1_000_000 && usable * 2 <= bit_rate * 1_000_000);
        }
        assert_eq!(usable(Rate::MIN), Rate::MIN);
    }

    #[test]
    fn a_fall_counts_at_once_and_a_rise_after_ten_readings() {
        let mut recent = Recent::default();
        assert_eq!(recent.add(mbit(100)), mbit(100));
        assert_eq!(recent.add(mbit(20)), mbit(20));
        for _ in 0..READINGS - 1 {
            assert_eq!(recent.add(mbit(50)), mbit(20));
        }
        assert_eq!(recent.add(mbit(80)), mbit(50));
    }

    #[test]
    fn lo_has_no_speed_and_a_missing_interface_is_an_error() {
        let mut speeds = Speeds::default();
        assert_eq!(speeds.read("lo").expect("it is there"), None);
        assert!(speeds.recent.is_empty());
        assert!(speeds.read("nosuch0").is_err());
    }
}
