//! Reads the policy file, in which the administrator names links to manage, contracts, quotas and
//! settings. The daemon puts them into force whenever it runs. The result is a [`Policy`].
//!
//! ```toml
//! input_meter = true             # netnice PID RATE limits the sum of up and down; false: up
//! direct_users = true            # all users may have direct flows; false: root and group netnice
//! dscp_users = ["CS0", "LE", "CS1"]  # code points that all users may set on their packets
//! channel_users = ["netnice-peer"]   # users whose direct flows may have channels
//! stops = "2ms/100ms"            # what the machine takes from drivers; doctor --stops measures it
//! direct_awake = true            # no processor sleeps while a cell contract sends; false: it may
//!
//! [[link]]
//! name = "eth0"
//! rate = "100mbit"               # without rate and down-rate: what the driver reports
//! down-rate = "50mbit"
//! overhead = 24
//! horizon = "2ms"                # packets of channels may leave so long before their time
//! discard = ["12=0800 23=11 36=0035"]  # frames that netnice-driver drops: offset and bytes
//!
//! [[rule]]
//! name = "backup"
//! match = "unit:backup.service"  # or cgroup, container, app, user, name
//! up = "4mbit"                   # the clauses of a contract, as on the command line
//!
//! [dscp]                         # code points that drivers write, by the contract of the flow
//! cell = "EF"
//!
//! [quotas]                       # what each user may have at a time; left out: the defaults
//! targets = 1024
//! ```
//!
//! Of two rules for one target, the first counts.
//!
//! A file with an error has no effect at all: [`PolicyError`] has the file, the reason, and the
//! line if the file could be read. Whether a contract fits is checked when the policy is put into
//! force (`service::reload`).

mod classes;
mod delegates;
mod direct;
mod discard;
mod quotas;
mod rules;
pub(crate) mod units;

pub(crate) use rules::Rules;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use netnice_api::direct::Term;
use netnice_core::contract::{Change, Clause, Contract, ContractError, Dscp, IfName, Yield};
use netnice_core::link::Link;
use netnice_core::target::Target;
use netnice_core::units::{Nanos, Rate};
use serde::Deserialize;
use toml::Spanned;

use crate::policy::units::SECTION;
use crate::quotas::Quotas;
use crate::schedule;
use direct::{CodePointNames, DirectSettings};
use quotas::QuotasDoc;

/// The content of a policy file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// True if the short form `netnice TARGET RATE` limits the sum of both directions, false if it
    /// limits sending alone.
    pub input_meter: bool,
    /// True if every user may have flows of the direct path.
    pub direct_users: bool,
    /// True if drivers keep processors awake while packets of `cell` contracts are sent.
    pub direct_awake: bool,
    /// The code points that every user may set on packets.
    pub dscp_users: BTreeSet<Dscp>,
    /// The settings of the direct path's drivers.
    pub direct: DirectSettings,
    /// The links to manage.
    pub links: Vec<LinkRule>,
    /// The contracts, in the order of the file. Of two rules for one target, the first counts.
    pub rules: Vec<Rule>,
    /// The quotas of each user.
    pub quotas: Quotas,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            input_meter: true,
            direct_users: true,
            direct_awake: true,
            dscp_users: BTreeSet::from(DSCP_USERS),
            direct: DirectSettings::default(),
            links: Vec::new(),
            rules: Vec::new(),
            quotas: Quotas::default(),
        }
    }
}

/// A link to manage. Without a rate in either direction, both rates are what the interface's driver
/// reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkRule {
    /// The interface.
    pub name: IfName,
    /// The link's sending rate, if the file sets it.
    pub rate: Option<Rate>,
    /// The link's receiving rate, if the file sets it.
    pub down_rate: Option<Rate>,
    /// Bytes that the wire adds to each packet.
    pub overhead: u64,
    /// The classes of the link's overbooked server.
    pub classes: netnice_core::link::classes::LinkClasses,
    /// How long before its logical arrival a packet of a `channel` may leave.
    pub horizon: Nanos,
    /// The discard patterns for `netnice-driver`: the terms of each pattern.
    pub discard: Vec<Vec<Term>>,
    /// The line of the link in the file, counted from 1.
    pub line: usize,
}

/// A contract for a target, from the policy file or from a unit file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// The rule's name; for a unit file, [`SECTION`] and the file's path.
    pub name: String,
    /// The target.
    pub target: Target,
    /// The contract.
    pub contract: Contract,
    /// The rule's line in the file, counted from 1.
    pub line: usize,
    /// True if the rule is from a unit file, false if from the policy file.
    pub unit: bool,
}

/// Why a policy file has no effect.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PolicyError {
    /// The file cannot be read.
    #[error("cannot read the policy file {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// A line is invalid.
    #[error("{}:{line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The reason.
        reason: String,
    },
}

impl Policy {
    /// Reads a file; `None` if it does not exist.
    ///
    /// # Errors
    /// If the file cannot be read, is not UTF-8, or is invalid.
    pub(crate) fn load(path: &Path) -> Result<Option<Policy>, PolicyError> {
        match fs::read_to_string(path) {
            Ok(text) => Policy::parse(path, &text).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(PolicyError::Unreadable {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// Parses the text of a file; `path` is for errors and messages.
    ///
    /// # Errors
    /// [`PolicyError::Line`] if a line is invalid.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Policy, PolicyError> {
        let reader = Reader { path, text };
        let file: FileDoc = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            reader.fault(at, error.message())
        })?;
        let mut names = BTreeSet::new();
        let links = file.link.iter().map(|link| reader.link(link));
        let links: Vec<LinkRule> = links.collect::<Result<_, _>>()?;
        for link in &links {
            if !names.insert(link.name.to_string()) {
                let reason = format!("link {} is named twice", link.name);
                return Err(reader.at_line(link.line, reason));
            }
        }
        let rules = file.rule.iter().map(|rule| reader.rule(rule));
        let rules: Vec<Rule> = rules.collect::<Result<_, _>>()?;
        let mut names = BTreeSet::new();
        for rule in &rules {
            if !names.insert(&rule.name) {
                let reason = format!("rule {} is named twice", rule.name);
                return Err(reader.at_line(rule.line, reason));
            }
        }
        Ok(Policy {
            input_meter: file.input_meter.unwrap_or(true),
            direct_users: file.direct_users.unwrap_or(true),
            direct_awake: file.direct_awake.unwrap_or(true),
            dscp_users: reader.dscp_users(file.dscp_users.as_deref())?,
            direct: reader.direct(&file)?,
            links,
            rules,
            quotas: reader.quotas(&file.quotas)?,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileDoc {
    input_meter: Option<bool>,
    direct_users: Option<bool>,
    direct_awake: Option<bool>,
    dscp_users: Option<Vec<Spanned<String>>>,
    channel_users: Option<Vec<Spanned<String>>>,
    stops: Option<Spanned<String>>,
    dscp: Option<CodePointNames>,
    #[serde(default)]
    link: Vec<Spanned<LinkDoc>>,
    #[serde(default)]
    rule: Vec<Spanned<RuleDoc>>,
    #[serde(default)]
    quotas: QuotasDoc,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LinkDoc {
    name: Spanned<String>,
    rate: Option<Spanned<String>>,
    down_rate: Option<Spanned<String>>,
    overhead: Option<Spanned<u64>>,
    server: Option<Spanned<String>>,
    #[serde(default)]
    class: Vec<Spanned<classes::ClassDoc>>,
    horizon: Option<Spanned<String>>,
    #[serde(default)]
    discard: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RuleDoc {
    name: Spanned<String>,
    r#match: Spanned<String>,
    up: Option<Spanned<String>>,
    down: Option<Spanned<String>>,
    both: Option<Spanned<String>>,
    min: Option<Spanned<String>>,
    min_down: Option<Spanned<String>>,
    on: Option<Spanned<String>>,
    weight: Option<Spanned<u64>>,
    priority: Option<Spanned<u64>>,
    burst: Option<Spanned<String>>,
    dscp: Option<Spanned<String>>,
    r#yield: Option<Spanned<bool>>,
    delegate: Option<Spanned<String>>,
    slice: Option<Spanned<String>>,
    extra: Option<Spanned<bool>>,
    cpu: Option<Spanned<String>>,
    cpu_extra: Option<Spanned<bool>>,
    cell: Option<Spanned<String>>,
    channel: Option<Spanned<String>>,
    quota: Option<Spanned<String>>,
    when: Option<Spanned<String>>,
}

impl RuleDoc {
    /// The named clauses, with the text and position of their values.
    fn clauses(&self) -> Vec<(Clause, String, usize)> {
        let text = |value: &Option<Spanned<String>>| {
            let value = value.as_ref()?;
            Some((value.get_ref().clone(), value.span().start))
        };
        let number = |value: &Option<Spanned<u64>>| {
            let value = value.as_ref()?;
            Some((value.get_ref().to_string(), value.span().start))
        };
        let yields = self.r#yield.as_ref();
        let yields = yields.map(|value| (yield_text(*value.get_ref()), value.span().start));
        [
            (Clause::Up, text(&self.up)),
            (Clause::Down, text(&self.down)),
            (Clause::Both, text(&self.both)),
            (Clause::Min, text(&self.min)),
            (Clause::MinDown, text(&self.min_down)),
            (Clause::On, text(&self.on)),
            (Clause::Weight, number(&self.weight)),
            (Clause::Priority, number(&self.priority)),
            (Clause::Burst, text(&self.burst)),
            (Clause::Dscp, text(&self.dscp)),
            (Clause::Yield, yields),
            (Clause::Delegate, text(&self.delegate)),
            (Clause::Slice, text(&self.slice)),
            (Clause::Cpu, text(&self.cpu)),
            (Clause::Cell, text(&self.cell)),
            (Clause::Channel, text(&self.channel)),
            (Clause::Quota, text(&self.quota)),
            (Clause::When, text(&self.when)),
        ]
        .into_iter()
        .filter_map(|(clause, value)| value.map(|(text, at)| (clause, text, at)))
        .collect()
    }
}

/// Converts positions in the text to lines.
struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    fn line(&self, at: usize) -> usize {
        let before = self.text.get(..at.min(self.text.len())).unwrap_or_default();
        before.bytes().filter(|byte| *byte == b'\n').count() + 1
    }

    fn at_line(&self, line: usize, reason: impl fmt::Display) -> PolicyError {
        let reason = reason.to_string();
        PolicyError::Line {
            path: self.path.to_owned(),
            line,
            reason: reason.split_whitespace().collect::<Vec<_>>().join(" "),
        }
    }

    fn fault(&self, at: usize, reason: impl fmt::Display) -> PolicyError {
        self.at_line(self.line(at), reason)
    }

    fn link(&self, link: &Spanned<LinkDoc>) -> Result<LinkRule, PolicyError> {
        let link = link.get_ref();
        let rate = |text: &Option<Spanned<String>>| match text {
            None => Ok(None),
            Some(text) => match text.get_ref().parse::<Rate>() {
                Ok(rate) => Ok(Some(rate)),
                Err(error) => Err(self.fault(text.span().start, error)),
            },
        };
        let at = link.name.span().start;
        let name = link.name.get_ref().parse();
        let overhead = match &link.overhead {
            Some(bytes) if *bytes.get_ref() > Link::MAX_OVERHEAD.0 => {
                let reason = format!(
                    "an overhead of {} bytes per packet is more than the {} allowed",
                    bytes.get_ref(),
                    Link::MAX_OVERHEAD.0
                );
                return Err(self.fault(bytes.span().start, reason));
            }
            other => other.as_ref().map_or(0, |bytes| *bytes.get_ref()),
        };
        Ok(LinkRule {
            name: name.map_err(|error: ContractError| self.fault(at, error))?,
            rate: rate(&link.rate)?,
            down_rate: rate(&link.down_rate)?,
            overhead,
            classes: self.classes(link.server.as_ref(), &link.class)?,
            horizon: self.horizon(link.horizon.as_ref())?,
            discard: self.discard(&link.discard)?,
            line: self.line(at),
        })
    }

    fn rule(&self, rule: &Spanned<RuleDoc>) -> Result<Rule, PolicyError> {
        let rule = rule.get_ref();
        let at = rule.name.span().start;
        let name = rule.name.get_ref().trim();
        if name.is_empty() || name.chars().count() > MAX_NAME || name.chars().any(char::is_control)
        {
            let reason = format!("a rule's name has 1 to {MAX_NAME} printable characters");
            return Err(self.fault(at, reason));
        }
        let target = rule.r#match.get_ref().parse::<Target>();
        let target = target.map_err(|error| self.fault(rule.r#match.span().start, error))?;
        if matches!(target, Target::Flow(_) | Target::Direct(_)) {
            let reason = format!(
                "a rule cannot match {target}: match a unit, cgroup, container, app, user or name"
            );
            return Err(self.fault(rule.r#match.span().start, reason));
        }
        if matches!(target, Target::Pid(_)) {
            let reason = "a rule lasts longer than a process and cannot match one: match its unit, \
                cgroup, app, user or name";
            return Err(self.fault(rule.r#match.span().start, reason));
        }
        let contract = self.contract(rule)?;
        Ok(Rule {
            name: name.to_owned(),
            target,
            contract,
            line: self.line(at),
            unit: false,
        })
    }

    fn contract(&self, rule: &RuleDoc) -> Result<Contract, PolicyError> {
        let flag = |flag: &Option<Spanned<bool>>| flag.as_ref().is_some_and(|f| *f.get_ref());
        let (extra, cpu_extra) = (flag(&rule.extra), flag(&rule.cpu_extra));
        let whole = rule.name.span().start;
        contract_of(&rule.clauses(), whole, extra, cpu_extra)
            .map_err(|(at, reason)| self.fault(at, reason))
    }
}

/// A rule's name in a message: `rule NAME of the policy file`, or the section of a unit file.
pub(crate) fn rule_title(name: &str) -> String {
    match name.starts_with(SECTION) {
        true => name.to_owned(),
        false => format!("rule {name} of the policy file"),
    }
}

/// The value of the clause `yield` for a flag of a rule. A rule does not name what it clears, so
/// the parser refuses `false`.
pub(super) fn yield_text(flag: bool) -> String {
    match flag {
        true => Yield::TEXT.to_owned(),
        false => "none".to_owned(),
    }
}

/// Makes the contract of a rule from clauses with the texts of their values and their positions.
/// `extra` and `cpu_extra` are the flags of the clauses `slice` and `cpu`.
///
/// # Errors
/// If a value is invalid or clears its clause, the clauses contradict each other, or the kernel
/// path does not support the contract. The error has the position of its clause, or `whole` if it
/// concerns several.
pub(crate) fn contract_of<At: Copy>(
    clauses: &[(Clause, String, At)],
    whole: At,
    extra: bool,
    cpu_extra: bool,
) -> Result<Contract, (At, String)> {
    // One by one first, so that an error has the position of its clause.
    for (clause, text, at) in clauses {
        let is_value = text == "0" && matches!(clause, Clause::Priority | Clause::Dscp);
        if matches!(text.as_str(), "none" | "0") && !is_value {
            let reason = format!("{clause}: a rule names only what it asks for; leave it out");
            return Err((*at, reason));
        }
        let alone = Change::from_clauses([(*clause, text.as_str())], false, false);
        alone.map_err(|error| (*at, error.to_string()))?;
    }
    let texts = clauses
        .iter()
        .map(|(clause, text, _)| (*clause, text.as_str()));
    let contract = Change::from_clauses(texts, extra, cpu_extra)
        .and_then(|change| {
            let contract = Contract::default().apply(&change)?;
            contract.with_useful_schedule(&change)
        })
        .map_err(|error| (whole, error.to_string()))?;
    let named = clauses
        .iter()
        .find(|(clause, ..)| *clause == Clause::Delegate);
    let contract = delegates::with_user_id(contract)
        .map_err(|error| (named.map_or(whole, |(_, _, at)| *at), error))?;
    schedule::check_zone(&contract).map_err(|error| {
        // The error begins with the clause.
        let named = |(clause, ..): &&(Clause, String, At)| error.starts_with(clause.word());
        let at = clauses.iter().find(named).map_or(whole, |(_, _, at)| *at);
        (at, error)
    })?;
    netnice_core::contract::target_support(&contract)
        .map_err(|error| (whole, error.to_string()))?;
    Ok(contract)
}

/// The code points that every user may set if the policy does not say which: best effort, and two
/// that networks treat as less than that.
const DSCP_USERS: [Dscp; 3] = [Dscp::BEST_EFFORT, Dscp::LOWER_EFFORT, Dscp::CS1];

/// Largest length of a rule's name, in characters. A longer one would not fit in a line of a table.
const MAX_NAME: usize = 64;

#[cfg(test)]
mod tests;
