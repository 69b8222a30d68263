//! Formats links, targets and direct flows as tables, for `show` and for the plain tables of `top`.
//! Documents of the daemon come in, text goes out. No function fails.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use netnice_api::{
    CapacityDoc, ContractDoc, CountersDoc, LinkDoc, LinkServerDoc, ScheduleDoc, ShowDoc, TargetDoc,
    TrafficQuotaDoc, WatchDoc, Watched,
};
use netnice_core::contract::{Contract, Direction, Schedule};
use netnice_core::units::{Amount, Nanos};

use super::Style;
use super::budgets;
use super::contract::sharing;
use super::flows::flows;
use super::printable;
use super::processors;
use super::table::{Cell, Table, wrap};

/// Formats the state of links, targets and direct flows. If it is that of another network namespace
/// than this process's, the first line says so.
pub(super) fn state(doc: &ShowDoc, style: &Style) -> String {
    let mut parts: Vec<String> = other_network(doc).into_iter().collect();
    if !doc.links.is_empty() {
        parts.push(links(&doc.links, style));
    }
    match doc.targets.is_empty() {
        true => parts.push("no target is limited or guaranteed".to_string()),
        false => parts.push(targets(&doc.targets, style)),
    }
    if !doc.direct.is_empty() {
        parts.push(flows(&doc.direct, style));
    }
    parts.join("\n\n")
}

/// A remark if the shown state is that of another network namespace than this process's; `None` if
/// it is that of the same one, or if either namespace is unknown.
pub(super) fn other_network(doc: &ShowDoc) -> Option<String> {
    let its = doc.network_namespace?;
    let own = std::fs::metadata("/proc/thread-self/ns/net").ok()?.ino();
    let text = format!(
        "This state belongs to the netniced of another network namespace ({its}; here it is {own}); \
         its limits do not apply here."
    );
    (own != its).then(|| wrap(&text, "", "").join("\n"))
}

/// Formats the managed links without the targets.
pub(crate) fn managed_links(doc: &ShowDoc, style: &Style) -> String {
    let shown = match doc.links.is_empty() {
        true => "no link is managed".to_string(),
        false => links(&doc.links, style),
    };
    [other_network(doc), Some(shown)]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join("\n\n")
}

/// Each target with its contract, and each managed link, as one line.
pub(crate) fn clearable(doc: &ShowDoc) -> Vec<String> {
    let target = |target: &TargetDoc| {
        let contract = contract_line(&target.contract);
        let name = printable(&target.target);
        match command_of(&target.command, &target.user) {
            Some(command) => format!("{name} ({command})  {contract}"),
            None => format!("{name}  {contract}"),
        }
    };
    let link = |link: &LinkDoc| format!("link {} (--all by root)", printable(&link.link));
    let targets = doc.targets.iter().map(target);
    targets.chain(doc.links.iter().map(link)).collect()
}

fn links(links: &[LinkDoc], style: &Style) -> String {
    let mut table = Table::new(&["LINK", "DIR", "CAPACITY", "PROMISED", "NOW"]);
    for link in links {
        let mut name = printable(&link.link);
        let mut sources = Vec::new();
        for direction in Direction::ALL {
            let Some(capacity) = capacity(link, direction) else {
                continue;
            };
            table.row(vec![
                Cell::new(std::mem::take(&mut name)),
                Cell::new(direction.word()),
                rate_cell(Some(Amount(capacity.rate))),
                rate_cell(Some(Amount(capacity.held))),
                Cell::new(measured_rate(link.counters.rate(direction))),
            ]);
            sources.push(capacity_source(direction, capacity));
        }
        if link.overhead > 0 {
            sources.push(format!("{} bytes are added to each packet", link.overhead));
        }
        if link.horizon_ns > 0 {
            let horizon = Nanos(link.horizon_ns);
            sources.push(format!("packets of channels leave up to {horizon} early"));
        }
        table.note(&sources.join(", "));
        if !link.probes.is_empty() {
            let hosts: Vec<String> = link.probes.iter().map(|host| printable(host)).collect();
            table.note(&format!("probes go to {}", hosts.join(", ")));
        }
        for line in link.server.iter().flat_map(server) {
            table.note(&line);
        }
        if !link.installed {
            table.note("not installed");
        }
        for why in &link.degraded {
            table.note(&format!("degraded: {}", printable(why)));
        }
    }
    table.render(style)
}

/// The overbooked server of a link and its classes, in a line each.
fn server(server: &LinkServerDoc) -> Vec<String> {
    let from = if server.named {
        ""
    } else {
        ", from the minimums of its classes"
    };
    let mut lines = vec![match server.slice.as_str() {
        "" => "server of direct flows".to_owned(),
        slice => format!("server of direct flows: slice {}{from}", printable(slice)),
    }];
    for class in &server.classes {
        let mut line = format!("class {}", class.class);
        if let Some(min) = class.min {
            line.push_str(&format!(" min {:#}", Amount(min)));
        }
        if class.overbook {
            line.push_str(" overbooked");
        }
        let contracts = Amount(class.contracted);
        line.push_str(&match class.members {
            0 => ": no flows".to_owned(),
            1 => format!(": 1 flow, contract {contracts:#}"),
            members => format!(": {members} flows, contracts {contracts:#}"),
        });
        lines.push(line);
    }
    if let Some(why) = &server.suspended {
        lines.push(format!("suspended: {}", printable(why)));
    }
    lines
}

fn capacity(link: &LinkDoc, direction: Direction) -> Option<&CapacityDoc> {
    match direction {
        Direction::Up => link.up.as_ref(),
        Direction::Down => link.down.as_ref(),
    }
}

/// The source of a capacity, and how much of it can be promised if that is less than all.
fn capacity_source(direction: Direction, capacity: &CapacityDoc) -> String {
    let from = match capacity.source.as_str() {
        "operator" => "given by the operator".to_string(),
        "driver" => "reported by the driver".to_string(),
        "estimate" => estimate(capacity),
        other => printable(other),
    };
    let word = direction.word();
    match capacity.usable == capacity.rate {
        true => format!("{word} {from}"),
        false => {
            let usable = Amount(capacity.usable).bits_text();
            format!("{word} {from} ({usable} of it can be promised)")
        }
    }
}

/// The source of an estimated capacity.
fn estimate(capacity: &CapacityDoc) -> String {
    let [min, max] = [capacity.min, capacity.max].map(|bound| Amount(bound.unwrap_or_default()));
    format!(
        "an estimate from delays, from {} to {}",
        min.bits_text(),
        max.bits_text()
    )
}

/// Formats targets as a table.
pub(super) fn targets(targets: &[TargetDoc], style: &Style) -> String {
    let mut table = Table::new(&["TARGET", "DIR", "LIMIT", "GUARANTEE", "NOW"]);
    for target in targets {
        let mut name = printable(&target.target);
        for row in rows(&target.effective) {
            table.row(vec![
                Cell::new(std::mem::take(&mut name)),
                Cell::new(row.word),
                limit_cell(&target.effective, row.limit),
                rate_cell(row.guarantee),
                Cell::new(measured_rate(row.rate(&target.counters))),
            ]);
        }
        if let Some(text) = command_of(&target.command, &target.user) {
            table.note(&text);
        }
        notes(target, &mut table);
    }
    table.render(style)
}

/// The command and the user of a target that consists of processes.
fn command_of(command: &Option<String>, user: &Option<String>) -> Option<String> {
    let command = printable(command.as_deref()?);
    Some(match user {
        Some(user) => format!("{command} of {}", printable(user)),
        None => command,
    })
}

/// Formats a contract on one line.
pub(super) fn contract_line(contract: &ContractDoc) -> String {
    let rates = [
        ("up", contract.up),
        ("down", contract.down),
        ("both", contract.both),
        ("min", contract.min),
        ("min-down", contract.min_down),
    ];
    let rates = rates
        .into_iter()
        .filter_map(|(word, rate)| Some(format!("{word} {}", Amount(rate?))));
    let clauses: Vec<String> = rates.chain(sharing(contract)).collect();
    match clauses.is_empty() {
        true => "best effort".to_string(),
        false => clauses.join(", "),
    }
}

/// Adds the lines for what has no column: other clauses, claimed limits that differ from those in
/// force, and faults.
fn notes(target: &TargetDoc, table: &mut Table) {
    let sharing = sharing(&target.effective);
    if !sharing.is_empty() {
        table.note(&sharing.join(", "));
    }
    let claimed = [
        ("up", target.contract.up, target.effective.up),
        ("down", target.contract.down, target.effective.down),
        ("both", target.contract.both, target.effective.both),
    ];
    let looser: Vec<String> = claimed
        .into_iter()
        .filter(|(_, claimed, effective)| claimed.is_some() && claimed != effective)
        .filter_map(|(word, claimed, _)| Some(format!("{word} {}", Amount(claimed?))))
        .collect();
    let dormant = target.schedules.iter().any(|schedule| !schedule.active);
    if !looser.is_empty() && !dormant {
        table.note(&format!("asked: {}", looser.join(", ")));
    }
    if target.effective.burst_ns.is_some() && !is_limited(&target.effective) {
        table.note("a burst has no effect without a limit");
    }
    for line in target.budget.iter().flat_map(budgets::notes) {
        table.note(&line);
    }
    for schedule in &target.schedules {
        table.note(&schedule_line(schedule));
    }
    for quota in &target.quotas {
        table.note(&quota_line(quota));
    }
    for line in target.processor_time.iter().flat_map(processors::notes) {
        table.note(&line);
    }
    let has_time = target.processor_time.is_some();
    if target.installed.is_none() && !dormant && target.quotas.is_empty() && !has_time {
        table.note("not installed");
    }
    for why in &target.degraded {
        table.note(&format!("degraded: {}", printable(why)));
    }
}

/// A traffic quota, what is used and left of it, and what comes next.
pub(crate) fn quota_line(doc: &TrafficQuotaDoc) -> String {
    let amount = |bytes: u64| {
        let (size, unit) = [
            (1_000_000_000_000, "TB"),
            (1_000_000_000, "GB"),
            (1_000_000, "MB"),
            (1_000, "kB"),
        ]
        .into_iter()
        .find(|(size, _)| bytes >= *size)
        .unwrap_or((1, "B"));
        match size {
            1 => format!("{bytes} {unit}"),
            _ => format!("{:.2} {unit}", bytes as f64 / size as f64),
        }
    };
    let ends = printable(&doc.ends);
    let then = doc.then.map(Amount);
    let next = match (doc.spent, then) {
        (true, None) => format!("nothing passes until {ends}"),
        (true, Some(rate)) => format!("{rate} until {ends}"),
        (false, None) => format!("then nothing, until {ends}"),
        (false, Some(rate)) => format!("then {rate}, until {ends}"),
    };
    let (used, left) = (amount(doc.used), amount(doc.left));
    format!(
        "quota {}: {used} used, {left} left; {next}",
        printable(&doc.quota)
    )
}

/// A claim with its schedule, whether it counts now, and when that changes.
fn schedule_line(schedule: &ScheduleDoc) -> String {
    let contract: Option<Contract> = schedule.contract.parse().ok();
    let contract = contract.map_or_else(
        || printable(&schedule.contract),
        |contract| contract_line(&ContractDoc::from(&contract)),
    );
    let when: Option<Schedule> = schedule.when.parse().ok();
    let when = when.map_or_else(|| printable(&schedule.when), |when| when.readable());
    let now = match (schedule.active, &schedule.next) {
        (true, Some(next)) => format!("in force until {}", printable(next)),
        (true, None) => "in force".to_string(),
        (false, Some(next)) => format!("next from {}", printable(next)),
        (false, None) => "not in force".to_string(),
    };
    format!("{contract} in {when}: {now}")
}

/// One direction of a target, or both together.
struct Row {
    word: &'static str,
    /// The directions whose counters the row sums; empty if the row's traffic is not counted
    /// separately.
    directions: &'static [Direction],
    limit: Option<Amount>,
    guarantee: Option<Amount>,
}

impl Row {
    fn is_counted(&self) -> bool {
        !self.directions.is_empty()
    }

    fn rate(&self, counters: &CountersDoc) -> Option<Amount> {
        let rates = self.directions.iter().map(|d| counters.rate(*d));
        rates.sum::<Option<Amount>>().filter(|_| self.is_counted())
    }
}

/// The rows of a contract: one for `both` if the contract has it, and one for each direction with a
/// limit or a minimum. Without any of these, one for both directions together. The counters of a
/// target with `both` do not distinguish the directions.
fn rows(contract: &ContractDoc) -> Vec<Row> {
    let row = |word, directions, limit: Option<u64>, guarantee: Option<u64>| Row {
        word,
        directions,
        limit: limit.map(Amount),
        guarantee: guarantee.map(Amount),
    };
    let mut rows = Vec::new();
    if contract.both.is_some() {
        rows.push(row("both", &Direction::ALL, contract.both, None));
    }
    let up = (contract.up, contract.min);
    let down = (contract.down, contract.min_down);
    for (word, directions, (limit, guarantee)) in [
        ("up", &Direction::ALL[..1], up),
        ("down", &Direction::ALL[1..], down),
    ] {
        let counted = match contract.both {
            Some(_) => &[],
            None => directions,
        };
        if limit.is_some() || guarantee.is_some() {
            rows.push(row(word, counted, limit, guarantee));
        }
    }
    if rows.is_empty() {
        rows.push(row("both", &Direction::ALL, None, None));
    }
    rows
}

/// Formats the current traffic of targets as a table, highest rate first.
pub(crate) fn rate_table(doc: &WatchDoc, style: &Style) -> String {
    let rate = |target: &Watched| target.sends.rate.saturating_add(target.receives.rate);
    let mut by_rate: Vec<&Watched> = doc.targets.iter().collect();
    by_rate.sort_by_key(|target| (std::cmp::Reverse(rate(target)), &target.target));
    let mut table = Table::new(&["TARGET", "DIR", "NOW", "LIMIT", "WAIT", "DROPS/S"]);
    for target in by_rate {
        let mut name = printable(&target.target);
        let limits = ContractDoc {
            up: target.up,
            down: target.down,
            both: target.both,
            min: target.min,
            min_down: target.min_down,
            ..ContractDoc::default()
        };
        for row in rows(&limits) {
            let moving = || row.directions.iter().map(|d| target.traffic(*d));
            let rate = moving().map(|moving| Amount(moving.rate)).sum();
            let wait = moving().map(|moving| moving.wait_ns).max();
            let drops = moving().map(|moving| moving.drops).sum::<u64>();
            let counted = |text: String| match row.is_counted() {
                true => Cell::new(text),
                false => Cell::new("-"),
            };
            table.row(vec![
                Cell::new(std::mem::take(&mut name)),
                Cell::new(row.word),
                rate_cell(row.is_counted().then_some(rate)),
                rate_cell(row.limit),
                counted(milliseconds(Nanos(wait.unwrap_or(0)))),
                counted(drops.to_string()),
            ]);
        }
        if let Some(text) = command_of(&target.command, &target.user) {
            table.note(&text);
        }
        if let Some(time) = &target.processor_time {
            let status = time.status.as_ref();
            let used = status.map(|status| Duration::from_nanos(status.used_ns));
            let used = used.map_or(String::new(), |used| format!("; used {used:.3?}"));
            table.note(&format!("{}{used}", processors::reserved_time(time)));
        }
        for why in &target.degraded {
            table.note(&format!("degraded: {}", printable(why)));
        }
    }
    let mut lines = Vec::new();
    for link in &doc.links {
        for why in &link.degraded {
            let why = format!("{} degraded: {}", printable(&link.link), printable(why));
            lines.extend(wrap(&why, "", "  "));
        }
    }
    lines.push(match doc.targets.is_empty() {
        true => "no target is limited or guaranteed".to_string(),
        false => table.render(style),
    });
    lines.join("\n")
}

/// A limit as [`rate_cell`]; `none` if the contract limits nothing.
fn limit_cell(contract: &ContractDoc, limit: Option<Amount>) -> Cell {
    match is_limited(contract) {
        true => rate_cell(limit),
        false => Cell::new("none"),
    }
}

fn is_limited(contract: &ContractDoc) -> bool {
    contract.up.or(contract.down).or(contract.both).is_some()
}

/// A rate in both forms, with the first one as the short text; `-` for none.
fn rate_cell(rate: Option<Amount>) -> Cell {
    match rate {
        Some(rate) => Cell::with_short(rate.to_string(), rate.bits_text()),
        None => Cell::new("-"),
    }
}

/// A measured rate in its first form; `-` for none.
fn measured_rate(rate: Option<Amount>) -> String {
    rate.map_or("-".to_string(), Amount::bits_text)
}

/// A waiting time in ms with one decimal, rounded down.
pub(super) fn milliseconds(time: Nanos) -> String {
    let tenths = time.0 / 100_000;
    format!("{}.{} ms", tenths / 10, tenths % 10)
}
