//! The lines below an open row: its connections, or a sum for each remote host; and the same lines
//! for the whole host. The screen and the space for the lines come in. No function fails.

use ratatui::style::{Color, Style};

use super::TerminalStyle;
use super::format::{self, cut};
use crate::render::printable;
use crate::top::connections::{ConnectionList, Rates};
use crate::top::screen::Screen;

/// The lines below the open row; none if no row is open.
pub(super) fn connections(
    screen: &Screen,
    lines: usize,
    width: usize,
    terminal: TerminalStyle,
) -> Vec<(String, Style)> {
    let Some((_, connections)) = &screen.open else {
        return Vec::new();
    };
    let dim = terminal.coloured(Color::Blue);
    let Some(connections) = connections else {
        return vec![("      loading…".to_string(), dim)];
    };
    let most = match screen.shows_host() {
        true => lines.saturating_sub(2).max(1),
        false => lines.saturating_sub(3).clamp(1, MAX_LINES),
    };
    let all = match screen.shows_hosts {
        true => host_lines(connections),
        false => connection_lines(connections, width),
    };
    let mut texts: Vec<String> = all.iter().take(most).cloned().collect();
    let hidden = all.len().saturating_sub(most) as u64;
    let unlisted = connections.more;
    match screen.shows_hosts {
        true => {
            if hidden > 0 {
                texts.push(format!("      and {hidden} more"));
            }
            if unlisted > 0 {
                texts.push(format!("      and {unlisted} more connections"));
            }
        }
        false if hidden + unlisted > 0 => {
            texts.push(format!("      and {} more", hidden + unlisted));
        }
        false => {}
    }
    if connections.of_others > 0 {
        texts.push(format!(
            "      and {} of other users",
            connections.of_others
        ));
    }
    if texts.is_empty() {
        let none = match screen.shows_hosts {
            true => "      no remote host",
            false => "      no connection",
        };
        texts.push(none.to_string());
    }
    texts
        .into_iter()
        .map(|text| (cut(&text, width), dim))
        .collect()
}

fn connection_lines(connections: &ConnectionList, width: usize) -> Vec<String> {
    let rest = width.saturating_sub(40).max(20);
    let lines = connections.lines.iter().map(|line| {
        let c = &line.connection;
        let state = c.state.as_deref().filter(|state| *state != "established");
        let ends = format!("{} > {}", c.local, c.peer.as_deref().unwrap_or("-"));
        let text = format!(
            "      {:<3}  {}  {}  {}",
            c.protocol,
            rates(line.rates),
            cut(&printable(&ends), rest),
            state.unwrap_or_default(),
        );
        text.trim_end().to_string()
    });
    lines.collect()
}

fn host_lines(connections: &ConnectionList) -> Vec<String> {
    let hosts = connections.hosts().into_iter().map(|host| {
        let count = match host.connections {
            1 => "1 connection".to_string(),
            count => format!("{count} connections"),
        };
        let address = printable(&host.address);
        format!("      {}  {address}  {count}", rates(host.rates))
    });
    hosts.collect()
}

fn rates(rates: Rates) -> String {
    let [up, down] = rates.map(|rate| rate.map_or("-".to_string(), format::rate));
    format!("up {up:>6}  down {down:>6}")
}

/// Largest number of lines below a row.
const MAX_LINES: usize = 40;
