//! Formats the reserved processor time of a target as lines of `show`. No function fails.

use std::time::Duration;

use netnice_api::{ProcessorTimeDoc, SliceDoc};
use netnice_core::admission::processors::{ProcessorSet, processor_list};
use netnice_core::units::Nanos;

use super::printable;

/// Where the processor time of a target is reserved, if not on all processors, how it is kept, and
/// what was used of it.
pub(super) fn notes(doc: &ProcessorTimeDoc) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(needed) = &doc.needed {
        let text = |slice: &SliceDoc| {
            let (time, period) = (Nanos(slice.slice_ns), Nanos(slice.period_ns));
            format!("{time} in every {period}")
        };
        let has = text(&doc.reserved);
        lines.push(match text(needed) {
            needed if needed == has => format!("processor time {has}, as its flows need"),
            needed => format!("processor time {has}; its flows need {needed}"),
        });
    }
    let processors: ProcessorSet = doc.processors.iter().copied().collect();
    if !processors.is_empty() {
        let noun = if processors.len() == 1 {
            "processor"
        } else {
            "processors"
        };
        let list = processor_list(&processors);
        lines.push(format!("processor time on {noun} {list} only"));
    }
    let Some(status) = &doc.status else {
        return lines;
    };
    let way = match status.way.as_str() {
        "exact" => "processor time by a deadline".to_owned(),
        "group" => "processor time by a control group".to_owned(),
        other => format!("processor time: {}", printable(other)),
    };
    let threads = match status.threads {
        1 => "1 thread".to_owned(),
        threads => format!("{threads} threads"),
    };
    let used = Duration::from_nanos(status.used_ns);
    lines.push(format!("{way} ({}); {threads}", printable(&status.reason)));
    lines.push(format!(
        "used {used:.3?}; used up in {} periods, wanted and not given in {}",
        status.exhausted, status.missed
    ));
    lines
}

/// The reserved processor time of a target, and how it is kept, in a few words.
pub(crate) fn reserved_time(doc: &ProcessorTimeDoc) -> String {
    let way = match doc.status.as_ref().map(|status| status.way.as_str()) {
        Some("exact") => " by a deadline",
        Some("group") => " by a control group",
        _ => "",
    };
    let reserved = &doc.reserved;
    let extra = if reserved.extra { " with extra" } else { "" };
    let (slice, period) = (Nanos(reserved.slice_ns), Nanos(reserved.period_ns));
    format!("cpu {slice}/{period}{extra}{way}")
}

#[cfg(test)]
mod tests {
    use netnice_api::ProcessorStatusDoc;

    use super::*;

    #[test]
    fn the_way_the_use_and_the_processors_are_shown() {
        let status = |way: &str, threads| {
            Some(ProcessorStatusDoc {
                way: way.into(),
                reason: "a reason".into(),
                threads,
                used_ns: 1_234_567_890,
                exhausted: 7,
                missed: 1,
                parts: vec![],
            })
        };
        let doc = |status, processors: &[u32]| ProcessorTimeDoc {
            processors: processors.to_vec(),
            status,
            ..ProcessorTimeDoc::default()
        };
        let slice = |millis: u64| SliceDoc {
            slice_ns: millis * 1_000_000,
            period_ns: 10_000_000,
            extra: false,
        };
        let used = "used 1.235s; used up in 7 periods, wanted and not given in 1";
        let table = [
            (doc(None, &[]), vec![]),
            (
                ProcessorTimeDoc {
                    reserved: slice(2),
                    needed: Some(slice(2)),
                    ..ProcessorTimeDoc::default()
                },
                vec!["processor time 2ms in every 10ms, as its flows need"],
            ),
            (
                ProcessorTimeDoc {
                    reserved: slice(2),
                    needed: Some(slice(3)),
                    ..ProcessorTimeDoc::default()
                },
                vec!["processor time 2ms in every 10ms; its flows need 3ms in every 10ms"],
            ),
            (doc(None, &[1]), vec!["processor time on processor 1 only"]),
            (
                doc(status("exact", 1), &[0, 1, 3]),
                vec![
                    "processor time on processors 0-1,3 only",
                    "processor time by a deadline (a reason); 1 thread",
                    used,
                ],
            ),
            (
                doc(status("group", 4), &[]),
                vec![
                    "processor time by a control group (a reason); 4 threads",
                    used,
                ],
            ),
        ];
        for (doc, expected) in table {
            assert_eq!(notes(&doc), expected);
        }
    }
}
