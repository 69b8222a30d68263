//! Writes the metrics page for Prometheus ([`page`]), in its text format, version 0.0.4, from
//! documents of the service. This cannot fail. A small HTTP server ([`http`]) serves the page.
//!
//! Every counter of targets is declared once, in [`netnice_core::meter::COUNTERS`]; its help text
//! states what it counts and, for a sum, the terms. All counters of one page are from one reading,
//! so each page satisfies
//!
//! ```text
//! offered = sent + dropped + queued        of every target and direction, in packets and in bytes
//! ```
//!
//! Counters are in the units that Prometheus recommends, seconds and bytes. Limits are in bit/s, as
//! users set them, and their names end in `_bits_per_second`. Amounts of quotas are counts, bytes
//! or nanoseconds, as the label `unit` of each limit states.

pub(crate) mod http;

use std::fmt::Write as _;

use netnice_api::{ProcessorStatusDoc, SliceDoc, TrafficQuotaDoc, UsersDoc, WatchDoc};
use netnice_core::contract::Direction;
use netnice_core::meter::{COUNTERS, Counter, Meter, Role, Unit};

/// Numbers of events since the start of the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Requests `set` and `run` that were carried out, also those that remove a clause or let a
    /// process join a name.
    pub grants: u64,
    /// Refused requests `set`, `run`, `link`, `clear` and `reload`: they did not fit, or the peer
    /// had no permission.
    pub refusals: u64,
    /// Objects of netnice that the daemon found missing or changed, and set out to restore.
    pub repairs: u64,
}

/// The page: contracts and counters of each target, links, quotas and their use, and the events.
/// `meters` has the counters of `doc.targets`, in the same order.
pub(crate) fn page(doc: &WatchDoc, meters: &[Meter], users: &UsersDoc, tally: &Tally) -> String {
    let mut page = Page(String::new());
    page.head(
        "netnice_build_info",
        "gauge",
        "the running netniced, by its version; always 1",
    );
    page.sample(
        "netnice_build_info",
        &[("version", env!("CARGO_PKG_VERSION"))],
        1,
    );
    page.head("netnice_targets", "gauge", "targets that hold a contract");
    page.sample("netnice_targets", &[], doc.targets.len() as u64);
    for (name, help, count) in [
        (
            "netnice_grants_total",
            "requests set and run carried out since netniced was started",
            tally.grants,
        ),
        (
            "netnice_refusals_total",
            "requests refused since netniced was started: they did not fit, or the user had no \
             permission",
            tally.refusals,
        ),
        (
            "netnice_repairs_total",
            "objects of netnice that other programs removed and netniced restored since it was \
             started",
            tally.repairs,
        ),
    ] {
        page.head(name, "counter", help);
        page.sample(name, &[], count);
    }
    page.counters(doc, meters);
    page.contracts(doc);
    page.links(doc);
    page.users(users);
    page.0
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(
            self.0,
            "# HELP {name} {}\n# TYPE {name} {kind}",
            escaped(help, false)
        );
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(label, text)| format!("{label}=\"{}\"", escaped(text, true)))
            .collect();
        let labels = match labels.is_empty() {
            true => String::new(),
            false => format!("{{{}}}", labels.join(",")),
        };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    /// Adds a sample for each of the amounts that exist, with the label of their owner and a label
    /// that distinguishes them.
    fn amounts(
        &mut self,
        name: &str,
        owner: (&str, &str),
        label: &str,
        amounts: &[(&str, Option<u64>)],
    ) {
        for (value, amount) in amounts {
            if let Some(amount) = amount {
                self.sample(name, &[owner, (label, value)], amount);
            }
        }
    }

    fn counters(&mut self, doc: &WatchDoc, meters: &[Meter]) {
        for counter in &COUNTERS {
            let name = name(counter);
            let kind = if counter.level { "gauge" } else { "counter" };
            self.head(&name, kind, &help(counter));
            for (target, meter) in doc.targets.iter().zip(meters) {
                for direction in Direction::ALL {
                    let value = (counter.read)(meter.counters(direction));
                    let labels = [
                        ("target", target.target.as_str()),
                        ("direction", direction.word()),
                    ];
                    match counter.unit {
                        Unit::Nanoseconds => self.sample(&name, &labels, value as f64 / 1e9),
                        _ => self.sample(&name, &labels, value),
                    }
                }
            }
        }
    }

    fn contracts(&mut self, doc: &WatchDoc) {
        let name = "netnice_limit_bits_per_second";
        self.head(
            name,
            "gauge",
            "the limit that holds for a target, by clause: up, down, or both for the two together",
        );
        for target in &doc.targets {
            let limits = [
                ("up", target.up),
                ("down", target.down),
                ("both", target.both),
            ];
            self.amounts(name, ("target", &target.target), "clause", &limits);
        }
        let name = "netnice_minimum_bits_per_second";
        self.head(
            name,
            "gauge",
            "what is guaranteed to a target on its link, by direction",
        );
        for target in &doc.targets {
            let minimums = [("up", target.min), ("down", target.min_down)];
            self.amounts(name, ("target", &target.target), "direction", &minimums);
        }
        for (name, help, read) in TRAFFIC_QUOTAS {
            self.head(name, "gauge", help);
            for target in &doc.targets {
                for quota in &target.quotas {
                    let uid = quota.uid.to_string();
                    let labels = [
                        ("target", target.target.as_str()),
                        ("quota", &quota.quota),
                        ("user", &uid),
                    ];
                    self.sample(name, &labels, read(quota));
                }
            }
        }
        self.processor_time(doc);
        let name = "netnice_degraded";
        self.head(
            name,
            "gauge",
            "1 if a target is not served as it should be; `netnice show` says why",
        );
        for target in &doc.targets {
            let degraded = u8::from(!target.degraded.is_empty());
            self.sample(name, &[("target", &target.target)], degraded);
        }
    }

    /// The reserved processor time, and what targets used of it.
    fn processor_time(&mut self, doc: &WatchDoc) {
        let reserved = || {
            let targets = doc.targets.iter();
            targets.filter_map(|target| Some((target, target.processor_time.as_ref()?)))
        };
        let name = "netnice_processor_reserved_ratio";
        let help = "the processor time that is reserved for a target, as a share of one processor";
        self.head(name, "gauge", help);
        for (target, time) in reserved() {
            let SliceDoc {
                slice_ns,
                period_ns,
                ..
            } = time.reserved;
            let share = slice_ns as f64 / period_ns.max(1) as f64;
            self.sample(name, &[("target", &target.target)], share);
        }
        for (name, kind, help, read) in PROCESSOR_TIME {
            self.head(name, kind, help);
            for (target, time) in reserved() {
                if let Some(status) = &time.status {
                    self.sample(name, &[("target", &target.target)], read(status));
                }
            }
        }
    }

    /// Amounts are counts, bytes or nanoseconds, as in the policy file.
    fn users(&mut self, doc: &UsersDoc) {
        let (limit, used, waiting) = (
            "netnice_quota_limit",
            "netnice_quota_used",
            "netnice_waiting_requests",
        );
        self.head(
            limit,
            "gauge",
            "what each user may have at a time, by quota",
        );
        for quota in &doc.quotas {
            let unit = [("quota", quota.quota.as_str()), ("unit", &quota.unit)];
            self.sample(limit, &unit, quota.limit);
        }
        self.head(used, "gauge", "what a user has of a quota");
        for user in &doc.users {
            let uid = user.uid.to_string();
            for (quota, amount) in &user.used {
                self.sample(used, &[("user", &uid), ("quota", quota)], amount);
            }
        }
        let help = "requests of a user that wait, because earlier ones took more than the quota \
            service-time";
        self.head(waiting, "gauge", help);
        for user in doc.users.iter().filter(|user| user.waiting > 0) {
            self.sample(waiting, &[("user", &user.uid.to_string())], user.waiting);
        }
        self.budgets(doc);
    }

    fn budgets(&mut self, doc: &UsersDoc) {
        let (budget, used) = (
            "netnice_budget_bits_per_second",
            "netnice_budget_used_bits_per_second",
        );
        let directions = |budget: &netnice_api::BudgetDoc| {
            [("up", budget.up.clone()), ("down", budget.down.clone())]
        };
        self.head(
            budget,
            "gauge",
            "the minimum that a user may divide, by direction",
        );
        for of in &doc.budgets {
            let rates = directions(of).map(|(word, part)| (word, part.map(|part| part.min)));
            self.amounts(budget, ("target", &of.target), "direction", &rates);
        }
        let help = "what of it is promised to programs inside, by direction";
        self.head(used, "gauge", help);
        for of in &doc.budgets {
            let rates = directions(of).map(|(word, part)| (word, part.map(|part| part.used)));
            self.amounts(used, ("target", &of.target), "direction", &rates);
        }
    }

    fn links(&mut self, doc: &WatchDoc) {
        let (capacity, promised) = (
            "netnice_link_capacity_bits_per_second",
            "netnice_link_promised_bits_per_second",
        );
        self.head(
            capacity,
            "gauge",
            "what a managed link carries, by direction; of an estimated link, the present estimate",
        );
        for link in &doc.links {
            let rates = [("up", link.up), ("down", link.down)];
            self.amounts(capacity, ("link", &link.link), "direction", &rates);
        }
        let estimated = "netnice_link_estimated";
        self.head(
            estimated,
            "gauge",
            "1 if the rate of a managed link is an estimate from delays, by direction",
        );
        for link in &doc.links {
            let flags = [
                ("up", link.up.map(|_| u64::from(link.up_estimated))),
                ("down", link.down.map(|_| u64::from(link.down_estimated))),
            ];
            self.amounts(estimated, ("link", &link.link), "direction", &flags);
        }
        self.head(
            promised,
            "gauge",
            "what of a managed link is promised to targets, by direction",
        );
        for link in &doc.links {
            let held = [
                ("up", link.up.map(|_| link.up_held)),
                ("down", link.down.map(|_| link.down_held)),
            ];
            self.amounts(promised, ("link", &link.link), "direction", &held);
        }
    }
}

/// A gauge of traffic quotas: its name, its help and its value.
type QuotaGauge = (&'static str, &'static str, fn(&TrafficQuotaDoc) -> u64);

const TRAFFIC_QUOTAS: [QuotaGauge; 3] = [
    (
        "netnice_traffic_quota_bytes",
        "the bytes that may pass in a period of a traffic quota, by target, quota and user",
        |quota| quota.bytes,
    ),
    (
        "netnice_traffic_quota_used_bytes",
        "the layer-2 bytes that have passed in the present period of a traffic quota",
        |quota| quota.used,
    ),
    (
        "netnice_traffic_quota_refused_packets",
        "the packets that did not fit into the present period of a traffic quota",
        |quota| quota.refused,
    ),
];

/// A metric of processor time: its name, its type, its help and its value.
type ProcessorMetric = (
    &'static str,
    &'static str,
    &'static str,
    fn(&ProcessorStatusDoc) -> f64,
);

const PROCESSOR_TIME: [ProcessorMetric; 5] = [
    (
        "netnice_processor_exact",
        "gauge",
        "1 if the time of a target is kept in each period (SCHED_DEADLINE), 0 if by a group",
        |status| f64::from(u8::from(status.way == "exact")),
    ),
    (
        "netnice_processor_threads",
        "gauge",
        "the threads of a target with reserved processor time",
        |status| status.threads as f64,
    ),
    (
        "netnice_processor_used_seconds_total",
        "counter",
        "the processor time that a target used since its reservation began",
        |status| status.used_ns as f64 / 1e9,
    ),
    (
        "netnice_processor_exhausted_periods_total",
        "counter",
        "periods in which a target used up its reserved time",
        |status| status.exhausted as f64,
    ),
    (
        "netnice_processor_missed_periods_total",
        "counter",
        "periods in which a target wanted reserved time and did not get it",
        |status| status.missed as f64,
    ),
];

/// A counter's name by Prometheus' conventions: a counter ends in `_total`, times are in seconds.
fn name(counter: &Counter) -> String {
    let stem = counter.name.strip_suffix("_ns").unwrap_or(counter.name);
    let unit = if counter.unit == Unit::Nanoseconds {
        "_seconds"
    } else {
        ""
    };
    let total = if counter.level { "" } else { "_total" };
    format!("netnice_{stem}{unit}{total}")
}

fn help(counter: &Counter) -> String {
    let of = "by target and direction";
    let bytes = match counter.unit {
        Unit::Bytes => ", in layer-2 bytes",
        _ => "",
    };
    let sum = match counter.role {
        Role::Total => "; the sum of what was sent, was dropped and is queued",
        Role::Part | Role::Alone => "",
    };
    format!("{}{bytes}, {of}{sum}", counter.description)
}

/// Escapes a text for the format: backslash, newline and, in labels, quotes.
fn escaped(text: &str, label: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if label => out.push_str("\\\""),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests;
