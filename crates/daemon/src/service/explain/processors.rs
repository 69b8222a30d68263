//! The rows about reserved processor time on a page of `explain`. Nothing here fails.

use std::time::Duration;

use netnice_core::admission::processors::{Reservation, percent, processor_list, share_ppm};

use netnice_core::contract::Slice;
use netnice_core::units::Nanos;

use crate::ledger::{HeldTarget, Ledger};
use crate::page::Page;
use crate::processors::{ProcessorStatus, Way};

/// Rows for the processor time that a target has, how it is kept (`status`), and what is reserved
/// on this host; none if it has none.
pub(super) fn rows(
    ledger: &Ledger,
    held: &HeldTarget,
    status: Option<ProcessorStatus>,
    page: &mut Page,
) {
    let Some(own) = held.reservation() else {
        return;
    };
    let slice = own.slice;
    let on = match own.processors.len() {
        0 => "all processors".to_owned(),
        1 => format!("processor {}", processor_list(&own.processors)),
        _ => format!("processors {}", processor_list(&own.processors)),
    };
    let extra = match slice.extra() {
        true => ", and a share of what is left",
        false => ", and no more",
    };
    let text = format!(
        "{} of one processor in every {} ({}), for all its threads together, on {on}{extra}",
        slice.slice(),
        slice.period(),
        percent(share_ppm(&slice))
    );
    page.row("processor", &text);
    if let Some(status) = status {
        status_rows(&status, page);
        part_rows(&status, slice, page);
    }
    let all = ledger.processor_reservations();
    let sum = all.iter().map(|(_, one)| share_ppm(&one.slice)).sum();
    let noun = if all.len() == 1 { "target" } else { "targets" };
    let facts = ledger.processors();
    let text = format!(
        "{} are reserved for {} {noun}, of {} that can be ({} of each processor)",
        percent(sum),
        all.len(),
        percent(facts.online.len() as u64 * u64::from(facts.admitted_ppm)),
        percent(facts.admitted_ppm.into())
    );
    page.row("processors", &text);
    for other in &facts.others {
        let Reservation { holder, slice, .. } = other;
        let share = percent(share_ppm(slice));
        page.row("processors", &format!("{share} are reserved for {holder}"));
    }
}

fn status_rows(status: &ProcessorStatus, page: &mut Page) {
    let way = match status.way {
        Way::Exact => "exactly: it has its time by the end of each period (SCHED_DEADLINE)",
        Way::Group => "by a control group: it has its share on average, not in each period",
    };
    page.row("kept", &format!("{way}; {}", status.reason));
    let noun = if status.threads == 1 {
        "thread"
    } else {
        "threads"
    };
    let text = format!(
        "{:.3?} since the reservation began, by {} {noun} now; used up in {} periods, wanted and \
         not given in {}",
        Duration::from(status.used),
        status.threads,
        status.exhausted,
        status.missed
    );
    page.row("used", &text);
}

/// Rows for the threads to which the program gave a part of a slice, and what is left.
fn part_rows(status: &ProcessorStatus, slice: Slice, page: &mut Page) {
    if status.parts.is_empty() {
        return;
    }
    for (thread, time) in &status.parts {
        let text = format!("{time} exactly (SCHED_DEADLINE), as its program asked");
        page.row("thread", &format!("{thread}: {text}"));
    }
    let divided: u64 = status.parts.iter().map(|(_, time)| time.0).sum();
    let text = match Nanos(slice.slice().0.saturating_sub(divided)) {
        Nanos(0) => "nothing is left: the kernel's smallest quota, 1ms in every 1s".to_owned(),
        left => format!("{left} in every {}, by the control group", slice.period()),
    };
    page.row("threads", &format!("all others: {text}"));
}
