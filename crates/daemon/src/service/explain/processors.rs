//! The rows about reserved processor time on a page of `explain`. Nothing here fails.

use netnice_core::admission::processors::{percent, processor_list, share_ppm};

use crate::ledger::{HeldTarget, Ledger};
use crate::page::Page;

/// A row for the processor time that a target has, and one for what is reserved on this host; none
/// if it has none.
pub(super) fn rows(ledger: &Ledger, held: &HeldTarget, page: &mut Page) {
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
    let all = ledger.processor_reservations();
    let sum = all.iter().map(|(_, one)| share_ppm(&one.slice)).sum();
    let noun = if all.len() == 1 { "target" } else { "targets" };
    let text = format!("{} are reserved for {} {noun}", percent(sum), all.len());
    page.row("processors", &text);
}
