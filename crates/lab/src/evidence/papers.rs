//! What the five papers did and saw, figure by figure, and what must hold for us. [`PAPERS`] has
//! them in the order of the page; no call fails. The numbers here are the papers' and those of our
//! promises. What was measured comes from the files of runs.

mod cell;
mod nice;
mod ntcp;
mod rtc;
mod vert;

/// A paper, with the figures that are repeated.
pub(super) struct Paper {
    /// The short name.
    pub name: &'static str,
    pub title: &'static str,
    pub authors: &'static str,
    /// Its subject, in one or two sentences.
    pub about: &'static str,
    /// Words of the paper, and what they mean.
    pub terms: &'static [(&'static str, &'static str)],
    pub figures: &'static [Figure],
}

/// A figure, a table or a claim of a paper.
pub(super) struct Figure {
    /// The experiments that repeat it: on packets, and simulated where there are two.
    pub ids: &'static [&'static str],
    pub name: &'static str,
    /// What is set up.
    pub setup: &'static str,
    /// What the paper's figure shows: its axes with units and ranges, and its curves. Empty if the
    /// paper has no figure.
    pub drawn: &'static str,
    /// What the paper saw.
    pub saw: &'static str,
    /// What must hold for us.
    pub holds: &'static str,
    /// How our set-up or measurement differs from the paper's, and why. Empty if it does not.
    pub differs: &'static str,
}

/// Whether a figure of a paper has the experiment.
pub(super) fn have(id: &str) -> bool {
    let figures = PAPERS.iter().flat_map(|paper| paper.figures);
    figures.into_iter().any(|figure| figure.ids.contains(&id))
}

/// The papers.
pub(super) const PAPERS: &[Paper] = &[nice::NICE, ntcp::NTCP, vert::VERT, cell::CELL, rtc::RTC];
