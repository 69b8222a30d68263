//! Proportional rate reduction (PRR): how much a sender sends during fast recovery.
//!
//! At the start of recovery the congestion control lowers the slow start threshold. PRR spreads the
//! reduction over the round trip: it lets the sender send a share of each delivered byte, so that
//! the bytes in flight reach the threshold at the end of recovery. If losses lower the bytes in
//! flight below the threshold, PRR lets them grow to the threshold, at most as fast as slow start
//! does.
//!
//! This is the algorithm of RFC 9937, which replaces RFC 6937. Where they differ, RFC 9937 applies:
//!
//! - An ACK that advances and shows no further loss ("safe ACK") gives one more MSS than was
//!   delivered (slow start reduction bound). Every other ACK gives what was delivered (conservative
//!   reduction bound). RFC 6937 fixes one of the two bounds for the whole recovery.
//! - The conservative bound is `max(prr_delivered - prr_out, DeliveredData)`. RFC 6937 has
//!   `prr_delivered - prr_out`.
//! - The first retransmission is always allowed.
//!
//! Two rules differ from RFC 9937, section 6.2:
//!
//! - The first retransmission is a whole MSS also if the bound is between 0 and one MSS. RFC 9937
//!   raises a bound of 0 only. A sender of whole segments would wait for the next ACK otherwise.
//! - An ACK that delivers nothing leaves the number of bytes that may be sent as it is. RFC 9937
//!   leaves the congestion window as it is. The difference shows if the ACK, or a timer, marks
//!   segments as lost. Then the bytes in flight fall, and with an unchanged window the sender could
//!   fill the gap at once.

/// State of one fast recovery.
#[derive(Clone, Debug)]
pub struct Prr {
    /// `RecoverFS`: bytes that recovery is expected to deliver. At least 1.
    flight: u64,
    /// `ssthresh`: bytes in flight at the end of recovery.
    threshold: u32,
    mss: u32,
    /// `prr_delivered`: bytes delivered since the start of recovery.
    delivered: u64,
    /// `prr_out`: bytes sent since the start of recovery.
    out: u64,
    /// `SndCnt`: bytes that may be sent now.
    allowance: u32,
}

impl Prr {
    /// Starts a recovery.
    ///
    /// `in_flight` is `RecoverFS` of RFC 9937, section 6.1: the bytes sent and not cumulatively
    /// acknowledged before the ACK that starts recovery, without the bytes that earlier ACKs
    /// selectively acknowledged. `threshold` is the slow start threshold after the reduction.
    ///
    /// The ACK that starts recovery counts: the caller passes it to [`Prr::acknowledged`] next. If
    /// a timer starts recovery, the caller passes 0 delivered bytes.
    pub fn new(in_flight: u32, threshold: u32, mss: u32) -> Prr {
        Prr {
            flight: u64::from(in_flight.max(1)),
            threshold,
            mss,
            delivered: 0,
            out: 0,
            allowance: 0,
        }
    }

    /// Handles an ACK during recovery, except the one that ends recovery. Returns the bytes that
    /// may be sent now; the congestion window is `in_flight` plus the result. The number is valid
    /// until the next call and falls by what [`Prr::sent`] reports. What is not sent is part of the
    /// next result, as far as the bound of the next ACK permits.
    ///
    /// `delivered` is the number of bytes that this ACK newly acknowledges, cumulatively or
    /// selectively. `in_flight` is the estimate of bytes in the network after this ACK (`pipe`).
    /// `loss_seen` is true if this ACK marked more bytes as lost, or did not advance the cumulative
    /// acknowledgment.
    pub fn acknowledged(&mut self, delivered: u32, in_flight: u32, loss_seen: bool) -> u32 {
        self.delivered += u64::from(delivered);
        if delivered > 0 {
            self.allowance = if in_flight > self.threshold {
                self.proportional()
            } else {
                self.reduction_bound(delivered, in_flight, loss_seen)
            };
        }
        // RFC 9937, section 6.2: "Force a fast retransmit upon entering recovery".
        if self.out == 0 {
            self.allowance = self.allowance.max(self.mss);
        }
        self.allowance
    }

    /// Records that the sender sent `bytes` during this recovery, new or retransmitted.
    pub fn sent(&mut self, bytes: u32) {
        self.out += u64::from(bytes);
        self.allowance = self.allowance.saturating_sub(bytes);
    }

    /// The share of the delivered bytes that brings the bytes in flight to the threshold.
    fn proportional(&self) -> u32 {
        let share = u128::from(self.delivered) * u128::from(self.threshold);
        let target = share.div_ceil(u128::from(self.flight));
        u32::try_from(target.saturating_sub(u128::from(self.out))).unwrap_or(u32::MAX)
    }

    /// The bytes by which the bytes in flight may grow towards the threshold.
    fn reduction_bound(&self, delivered: u32, in_flight: u32, loss_seen: bool) -> u32 {
        let unsent = self.delivered.saturating_sub(self.out);
        let conservative = unsent.max(u64::from(delivered));
        let growth = if loss_seen { 0 } else { u64::from(self.mss) };
        let missing = self.threshold.saturating_sub(in_flight);
        u32::try_from(conservative.saturating_add(growth))
            .map_or(missing, |bound| bound.min(missing))
    }
}

#[cfg(test)]
mod tests;
