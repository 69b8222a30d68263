//! `netnice explain channel:N`: how long each host keeps the messages of a channel, and which of
//! them was late, as tables or JSON. Fails with a [`CommandError`] if netnice-peer does not tell.

use netnice_api::channels::{ExplainedChannel, ExplainedHop, HopCounts, LAXITIES};
use netnice_api::{Exit, RuntimeDir};
use netnice_channel::network;
use netnice_core::units::{Bytes, Nanos};

use super::list::aligned;
use crate::error::CommandError;
use crate::output::print_text;
use crate::render::printable;

/// Prints what the hosts of a channel have counted.
pub(super) fn execute(dir: &RuntimeDir, json: bool, digits: &str) -> Result<Exit, CommandError> {
    let explained = network::explain(dir, digits)?;
    match json {
        true => print_text(&serde_json::to_string_pretty(&explained).unwrap_or_default())?,
        false => print_text(&text(&explained))?,
    }
    Ok(Exit::Done)
}

fn text(explained: &ExplainedChannel) -> String {
    let contract = &explained.contract;
    let mut lines = vec![
        format!(
            "channel {} to {}@{}, seen from {}",
            printable(&explained.channel),
            printable(&explained.service),
            printable(&explained.sink),
            printable(&explained.host)
        ),
        format!(
            "mmax={},rmax={}/s,bmax={},deadline={}",
            Bytes(contract.mmax),
            contract.rmax,
            contract.bmax,
            Nanos(contract.deadline_ns)
        ),
        String::new(),
    ];
    let heads = [
        "HOST",
        "BOUND",
        "MESSAGES",
        "LATE",
        "EXCUSED",
        "LOST",
        "LEAST LAXITY",
    ];
    let mut rows = vec![heads.map(str::to_owned)];
    rows.extend(explained.hops.iter().map(row));
    lines.extend(aligned(&rows));
    lines.extend([
        String::new(),
        "messages by laxity: late, and on time by so many eighths of the bound".to_owned(),
    ]);
    let mut rows = vec![LAXITY_HEADS.map(str::to_owned)];
    let counted = explained.hops.iter();
    rows.extend(counted.filter_map(|hop| Some(laxities(hop, hop.counts.as_ref()?))));
    lines.extend(aligned(&rows));
    lines.push(String::new());
    lines.extend(verdict(&explained.hops));
    lines.join("\n")
}

fn row(hop: &ExplainedHop) -> [String; 7] {
    let (host, bound) = (printable(&hop.host), Nanos(hop.bound_ns).to_string());
    let Some(counts) = &hop.counts else {
        return [&host, &bound, "?", "?", "?", "?", "?"].map(str::to_owned);
    };
    [
        host,
        bound,
        counts.messages.to_string(),
        counts.late.to_string(),
        counts.excused.to_string(),
        counts.lost.to_string(),
        counts.least_laxity_ns.map_or("-".to_owned(), signed),
    ]
}

fn laxities(hop: &ExplainedHop, counts: &HopCounts) -> [String; 1 + LAXITIES] {
    let mut cells = [const { String::new() }; 1 + LAXITIES];
    cells[0] = printable(&hop.host);
    for (cell, count) in cells[1..].iter_mut().zip(counts.laxities) {
        *cell = count.to_string();
    }
    cells
}

/// Which hosts were late, which stops explain that, and which hosts did not say.
fn verdict(hops: &[ExplainedHop]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut silent = Vec::new();
    for hop in hops {
        let host = printable(&hop.host);
        let Some(counts) = &hop.counts else {
            let fault = printable(hop.fault.as_deref().unwrap_or("nothing is known of it"));
            silent.push(format!("{host}: not known: {fault}"));
            continue;
        };
        if counts.late > 0 {
            let (late, messages, excused) = (counts.late, counts.messages, counts.excused);
            let most = Nanos(counts.least_laxity_ns.unwrap_or(0).min(0).unsigned_abs());
            let bound = Nanos(hop.bound_ns);
            let stops = match counts.stops {
                Some(_) => format!("; stops of its thread cover {excused} of them"),
                None => String::new(),
            };
            lines.push(format!(
                "{host} was late: it kept {late} of {messages} messages for longer than {bound}, by \
                 up to {most}{stops}"
            ));
        }
        if let Some(stops) = counts.stops.filter(|stops| stops.number > 0) {
            let (number, longest) = (stops.number, Nanos(stops.longest_ns));
            let total = Nanos(stops.total_ns);
            lines.push(format!(
                "{host}: since its thread started, the machine did not let it run {number} times, \
                 {total} together, {longest} at most"
            ));
        }
    }
    let is_late = |hop: &ExplainedHop| hop.counts.is_some_and(|counts| counts.late > 0);
    if !hops.iter().any(is_late) {
        let text = match silent.is_empty() {
            true => "no host was late",
            false => "no host that said so was late",
        };
        lines.insert(0, text.to_owned());
    }
    lines.extend(silent);
    lines
}

fn signed(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    format!("{sign}{}", Nanos(ns.unsigned_abs()))
}

/// The columns of [`HopCounts::laxities`].
const LAXITY_HEADS: [&str; 1 + LAXITIES] = [
    "HOST",
    "> bound late",
    "late",
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "7",
];

#[cfg(test)]
mod tests {
    use netnice_api::channels::{HopStops, RemoteContract};

    use super::*;

    fn hop(host: &str, counts: Option<HopCounts>, fault: Option<&str>) -> ExplainedHop {
        ExplainedHop {
            host: host.to_owned(),
            bound_ns: 20_000_000,
            counts,
            fault: fault.map(str::to_owned),
        }
    }

    fn explained(hops: Vec<ExplainedHop>) -> ExplainedChannel {
        ExplainedChannel {
            channel: "0011aabb".to_owned(),
            host: "client".to_owned(),
            service: "camera".to_owned(),
            sink: "server".to_owned(),
            contract: RemoteContract {
                mmax: 1_024,
                rmax: 50,
                bmax: 2,
                deadline_ns: 60_000_000,
                packet: 1_400,
            },
            hops,
        }
    }

    #[test]
    fn the_late_host_is_named_with_its_excuses() {
        let good = HopCounts {
            messages: 200,
            least_laxity_ns: Some(9_800_000),
            laxities: [0, 0, 0, 0, 0, 3, 0, 0, 0, 197],
            ..HopCounts::default()
        };
        let late = HopCounts {
            messages: 200,
            late: 12,
            excused: 11,
            lost: 1,
            least_laxity_ns: Some(-80_000_000),
            laxities: [5, 7, 0, 0, 0, 0, 0, 0, 0, 188],
            stops: Some(HopStops {
                number: 3,
                total_ns: 100_000_000,
                longest_ns: 90_000_000,
            }),
        };
        let hops = vec![
            hop("client", Some(good), None),
            hop("router", Some(late), None),
            hop(
                "server\u{1b}[31m",
                None,
                Some("it did not answer within 600ms"),
            ),
        ];
        let text = text(&explained(hops));
        let expected = "\
channel 0011aabb to camera@server, seen from client
mmax=1KiB,rmax=50/s,bmax=2,deadline=60ms

HOST        BOUND  MESSAGES  LATE  EXCUSED  LOST  LEAST LAXITY
client      20ms   200       0     0        0     9.8ms
router      20ms   200       12    11       1     -80ms
server[31m  20ms   ?         ?     ?        ?     ?

messages by laxity: late, and on time by so many eighths of the bound
HOST    > bound late  late  0  1  2  3  4  5  6  7
client  0             0     0  0  0  3  0  0  0  197
router  5             7     0  0  0  0  0  0  0  188

router was late: it kept 12 of 200 messages for longer than 20ms, by up to 80ms; stops of its \
thread cover 11 of them
router: since its thread started, the machine did not let it run 3 times, 100ms together, 90ms \
at most
server[31m: not known: it did not answer within 600ms";
        assert_eq!(text, expected);
    }

    #[test]
    fn without_a_late_host_that_is_said_of_those_that_answered() {
        let quiet = HopCounts::default();
        let all = vec![
            hop("client", Some(quiet), None),
            hop("server", Some(quiet), None),
        ];
        let text = text(&explained(all.clone()));
        assert!(text.ends_with("\n\nno host was late"), "{text}");
        assert!(
            text.contains("client  20ms   0         0     0        0     -"),
            "{text}"
        );
        let mut some = all;
        some[1] = hop("server", None, Some("its program has closed the channel"));
        let text = super::text(&explained(some));
        assert!(text.contains("no host that said so was late"), "{text}");
    }
}
