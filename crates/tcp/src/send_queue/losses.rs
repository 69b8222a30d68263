//! Which pieces are lost.

use super::{Departure, SendQueue};
use crate::time::Instant;

impl SendQueue {
    /// Examines the pieces in flight from the earliest departure on. `is_lost` says whether a piece
    /// with that departure and end is lost; the first one that is not ends the examination. Returns
    /// the number of lost sequence numbers, and the departure of the piece that ended it.
    pub(crate) fn find_lost(
        &mut self,
        mut is_lost: impl FnMut(Instant, u64) -> bool,
    ) -> (u32, Option<Instant>) {
        let mut bytes = 0;
        while let Some(&Departure { at, start }) = self.departures.front() {
            let index = self.index_from(start);
            let piece = self.pieces.get(index).filter(|piece| {
                piece.start == start
                    && piece.is_in_flight()
                    && !piece.with_driver
                    && piece.departed == at
            });
            if let Some(piece) = piece {
                if !is_lost(at, piece.end()) {
                    return (bytes, Some(at));
                }
                bytes += piece.length();
                self.mark_lost_at(index);
            }
            self.departures.pop_front();
        }
        (bytes, None)
    }

    /// The earliest last departure of a piece in flight that the driver does not have.
    pub(crate) fn earliest_departure(&mut self) -> Option<Instant> {
        let mut earliest = None;
        // The first piece that is looked at ends the examination.
        self.find_lost(|at, _| {
            earliest = Some(at);
            false
        });
        earliest
    }

    /// True if the peer owes an acknowledgement: a piece has departed, or the first one is
    /// selectively acknowledged although the cumulative acknowledgement does not cover it (RFC
    /// 2018, section 8: the peer may have discarded it).
    pub(crate) fn awaits_acknowledgement(&mut self) -> bool {
        self.front().is_some_and(|front| front.sacked) || self.earliest_departure().is_some()
    }

    /// Marks all pieces that are in flight, and that the driver does not have, as lost.
    pub(crate) fn lose_all(&mut self) {
        for index in 0..self.sent_pieces {
            let piece = &self.pieces[index];
            if piece.is_in_flight() && !piece.with_driver {
                self.mark_lost_at(index);
            }
        }
        self.departures.clear();
    }

    /// Marks the pieces in flight whose payload is longer than `longest` bytes as lost, except
    /// those that the driver has.
    pub(crate) fn lose_longer(&mut self, longest: u32) {
        for index in 0..self.sent_pieces {
            let piece = &self.pieces[index];
            let too_long = piece.payload_length() > longest;
            if too_long && piece.is_in_flight() && !piece.with_driver {
                self.mark_lost_at(index);
            }
        }
    }

    /// Marks the piece with the lowest position as lost if it is in flight and the driver does not
    /// have it.
    pub(crate) fn lose_first(&mut self) -> bool {
        let first = self.pieces.front();
        let lost = first.is_some_and(|piece| piece.is_in_flight() && !piece.with_driver);
        if lost {
            self.mark_lost_at(0);
        }
        lost
    }

    /// Takes back that pieces were found lost.
    pub(crate) fn keep_all(&mut self) {
        for index in 0..self.sent_pieces {
            let piece = &mut self.pieces[index];
            if piece.lost {
                piece.lost = false;
                self.lost -= 1;
                self.in_flight += piece.length();
            }
        }
        self.rebuild_departures();
    }

    /// The peer has discarded what it had acknowledged selectively (RFC 2018, section 8).
    pub(crate) fn forget_sacks(&mut self) {
        for index in 0..self.sent_pieces {
            let piece = &mut self.pieces[index];
            if piece.sacked {
                piece.sacked = false;
                self.in_flight += piece.length();
            }
        }
        self.sacked = 0;
        self.sacked_pieces = 0;
        self.rebuild_departures();
    }

    pub(super) fn mark_lost_at(&mut self, index: usize) {
        let piece = &mut self.pieces[index];
        if piece.is_in_flight() {
            piece.lost = true;
            self.lost += 1;
            self.in_flight -= piece.length();
            self.lost_from = self.lost_from.min(piece.start);
        }
    }

    pub(super) fn rebuild_departures(&mut self) {
        let sent = self.pieces.range(..self.sent_pieces);
        let logged =
            sent.filter(|piece| piece.is_in_flight() && piece.has_departed && !piece.with_driver);
        let mut departures: Vec<Departure> = logged
            .map(|piece| Departure {
                at: piece.departed,
                start: piece.start,
            })
            .collect();
        departures.sort_by_key(|departure| departure.at);
        self.departures = departures.into();
    }
}
