//! Makes the text of the demo's report: one self-contained HTML page about both runs ([`page`]),
//! and an SVG picture with one chart for each run ([`picture`]). The charts of the picture have the
//! rates of the video, the download and the backup over time. No call fails.

use std::fmt::Write as _;

use super::{BACKUP_RATE, Figures, RunRecord, VIDEO_RATE, backup_kept, time, video_kept};
use crate::plot::{Chart, Series, escape, palette};
use crate::traffic::Report;

/// Width and height of a chart of rates, in pixels.
const CHART_SIZE: (f64, f64) = (560.0, 300.0);

/// The report as an HTML page. `without` and `with` are the runs without and with netnice, `before`
/// and `after` are their figures.
pub fn page(without: &RunRecord, with: &RunRecord, before: &Figures, after: &Figures) -> String {
    let mut body = String::new();
    head(&mut body, before, after);
    plots(&mut body, without, with);
    typed(&mut body, with);
    table(&mut body, before, after);
    foot(&mut body);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>netnice: one cable, four programs, twice</title><style>{STYLE}</style></head>\
         <body><main>{body}</main></body></html>\n"
    )
}

/// The picture as SVG: the rates of the video, the download and the backup without and with
/// netnice, side by side.
pub fn picture(without: &RunRecord, with: &RunRecord) -> String {
    const GAP: f64 = 16.0;
    let (width, height) = CHART_SIZE;
    let chart = |record, name: &str, x: f64| {
        let title = format!("{name}: what each program gets, Mbit/s");
        rates(record, &title).replacen("<svg", &format!("<svg x=\"{x}\""), 1)
    };
    let whole = 2.0 * width + GAP;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {whole} {height}\" \
         width=\"{whole}\" height=\"{height}\"><rect width=\"{whole}\" height=\"{height}\" \
         fill=\"#fff\"/>{}{}</svg>\n",
        chart(without, "Without netnice", 0.0),
        chart(with, "With netnice", width + GAP)
    )
}

/// The introduction and the three main figures.
fn head(out: &mut String, before: &Figures, after: &Figures) {
    let span = time::TO - time::FROM;
    out.push_str(
        "<p class=\"kicker\">netnice · demo</p>\
         <h1>Four programs share a 20&nbsp;Mbit/s line, without <code>netnice</code> and with it.</h1>\
         <p class=\"lead\">A video plays, and it needs 5&nbsp;Mbit/s. A backup starts to upload, a big \
         download starts with twelve connections, and both take whatever they can get. Without netnice \
         the video stands still and every answer from the network comes late. With netnice, three \
         lines promise the video its rate and hold the backup back, <em>while all of them keep \
         running</em>: no restart, no change to any program.</p>",
    );
    out.push_str("<section class=\"cards\">");
    card(
        out,
        "The video stood still",
        &format!("{:.0}&nbsp;s", before.video_stalled),
        &format!("{:.0}&nbsp;s", after.video_stalled),
        &format!("of {span:.0} seconds"),
    );
    card(
        out,
        "99 of 100 pings came back within",
        &milliseconds(before.ping_p99),
        &milliseconds(after.ping_p99),
        "on the same line, under the same load",
    );
    card(
        out,
        "The backup took",
        &format!("{:.1}", before.backup),
        &format!("{:.1}", after.backup),
        "Mbit/s; it was told: 4 at most",
    );
    out.push_str("</section>");
}

fn card(out: &mut String, what: &str, before: &str, after: &str, unit: &str) {
    let _ = write!(
        out,
        "<div class=\"card\"><h2>{what}</h2><p class=\"big\"><span class=\"was\">{before}</span>\
         <span class=\"arrow\">→</span><span class=\"is\">{after}</span></p><p class=\"unit\">{unit}</p></div>"
    );
}

/// The same two charts of both runs, side by side, on the same axes.
fn plots(out: &mut String, without: &RunRecord, with: &RunRecord) {
    out.push_str("<section class=\"pair\">");
    for (name, record, class) in [
        ("Without netnice", without, "without"),
        ("With netnice", with, "with"),
    ] {
        let _ = write!(
            out,
            "<div class=\"{class}\"><h2>{name}</h2><h3>What each program gets, Mbit/s</h3>{}\
             <h3>How long a ping takes, ms <span>(each line is ten times the one below)</span></h3>{}</div>",
            rates(record, ""),
            pings(record)
        );
    }
    out.push_str("</section>");
    let _ = write!(
        out,
        "<p class=\"caption\">The same {:.0} seconds twice. The figures on this page compare the \
         shaded part. Once it has its rate, the video first takes more than it needs, to catch up with \
         what it missed.</p>",
        time::TO
    );
}

fn rates(record: &RunRecord, title: &str) -> String {
    let line = |report: &Report| -> Vec<(f64, f64)> {
        let step = 0.5;
        let received = report.received();
        let count = (time::TO / step) as usize;
        (0..count)
            .filter_map(|i| {
                let from = i as f64 * step;
                let rate = received.rate(record.at(from), record.at(from + step))?;
                Some((from + step / 2.0, rate / 1e6))
            })
            .collect()
    };
    let after = |points: Vec<(f64, f64)>| -> Vec<(f64, f64)> {
        points
            .into_iter()
            .filter(|p| p.0 > time::LOAD_BEGINS - 0.5)
            .collect()
    };
    let download = after(line(&record.download));
    let backup = after(line(&record.backup));
    marked(record, Chart::new(title, "seconds", ""))
        .with(Series::new("download", palette::ORANGE, download))
        .with(Series::new("backup, an upload", palette::PURPLE, backup))
        .with(
            Series::new("video", palette::BLUE, line(&record.video))
                .thick()
                .filled(),
        )
        .level(VIDEO_RATE as f64 / 1e6, "the video needs 5")
        .y_range(0.0, 27.0)
        .size(CHART_SIZE.0, CHART_SIZE.1)
        .svg()
}

fn pings(record: &RunRecord) -> String {
    let dots = record
        .pings
        .answers
        .iter()
        .map(|(at, ms)| ((*at as f64 - record.began as f64) / 1e9, *ms))
        .filter(|(second, _)| (0.0..time::TO).contains(second))
        .collect();
    marked(record, Chart::new("", "seconds", ""))
        .with(Series::new("ping", palette::GREEN, dots).dots())
        .logarithmic()
        .y_range(0.03, 1000.0)
        .size(560.0, 210.0)
        .without_legend()
        .svg()
}

/// Marks the steps of the run and the compared span.
fn marked(record: &RunRecord, chart: Chart) -> Chart {
    let chart = chart
        .x_range(0.0, time::TO)
        .shade(time::FROM, time::TO)
        .moment(time::LOAD_BEGINS, "backup and download begin");
    if record.commands.is_empty() {
        chart
    } else {
        chart.moment(time::COMMANDS, "netnice is typed")
    }
}

/// The lines that the operator typed, as on a terminal.
fn typed(out: &mut String, with: &RunRecord) {
    let _ = write!(
        out,
        "<section><h2>What was typed, {:.0} seconds into the second run</h2><pre class=\"terminal\">",
        time::COMMANDS
    );
    for (i, (typed, meaning)) in with.commands.iter().zip(MEANINGS).enumerate() {
        let gap = if i == 0 { "" } else { "\n" };
        let _ = writeln!(
            out,
            "{gap}<span class=\"remark\"># {meaning}</span>\n<span class=\"prompt\">#</span> <b>{}</b>",
            escape(&typed.line)
        );
        for line in typed.stdout.lines() {
            let _ = writeln!(out, "{}", escape(line));
        }
    }
    out.push_str("</pre></section>");
}

/// The table of programs, promises and results.
fn table(out: &mut String, before: &Figures, after: &Figures) {
    out.push_str(
        "<section><h2>Who got what</h2><table><thead><tr><th>Program</th><th>Promised</th>\
         <th>Without netnice</th><th>With netnice</th><th>Kept?</th></tr></thead><tbody>",
    );
    let mark = |kept: bool| match kept {
        true => "<span class=\"yes\">✓ kept</span>",
        false => "<span class=\"no\">✗ not kept</span>",
    };
    let video = |f: &Figures| format!("{:.2} Mbit/s, stood {:.0} s", f.video, f.video_stalled);
    let rows = [
        (
            "Video",
            "5 Mbit/s at least".to_owned(),
            video(before),
            video(after),
            mark(video_kept(after)),
        ),
        (
            "Backup (upload)",
            format!("{} Mbit/s at most", BACKUP_RATE / 1_000_000),
            format!("{:.2} Mbit/s", before.backup),
            format!("{:.2} Mbit/s", after.backup),
            mark(backup_kept(after)),
        ),
        (
            "Download",
            "what is left".to_owned(),
            format!("{:.2} Mbit/s", before.download),
            format!("{:.2} Mbit/s", after.download),
            "–",
        ),
        (
            "Ping, half within",
            "–".to_owned(),
            milliseconds(before.ping_p50),
            milliseconds(after.ping_p50),
            "–",
        ),
        (
            "Ping, 99 of 100 within",
            "–".to_owned(),
            milliseconds(before.ping_p99),
            milliseconds(after.ping_p99),
            "–",
        ),
    ];
    for (program, promised, was, is, kept) in rows {
        let _ = write!(
            out,
            "<tr><th>{program}</th><td>{promised}</td><td>{was}</td><td class=\"now\">{is}</td>\
             <td>{kept}</td></tr>"
        );
    }
    out.push_str("</tbody></table></section>");
}

fn foot(out: &mut String) {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let _ = write!(
        out,
        "<footer><p><b>What netnice does.</b> It lets a Linux host promise network service to the \
         programs that run on it, and keeps the promise: a <i>limit</i> holds a program, its \
         children and all their connections together; a <i>minimum</i> is there whenever the \
         program wants it, whatever the others do; and what does not fit is refused, with the \
         reason. It works on programs that are already running, and needs nothing from them.</p>\
         <p><b>How this was measured.</b> Real programs and real packets in private network \
         namespaces of one machine (Linux {}), the line held to 20 Mbit/s each way with a queue of \
         {} ms, TCP cubic throughout. Rates count bytes on the wire as the receiving program got \
         them. The video counts as standing still when a player with one second of buffer has \
         nothing to show. Ping is the ordinary program, 20 times a second. To see it again: \
         <code>make demo</code>.</p></footer>",
        escape(kernel.trim()),
        super::run_once::QUEUE_MS
    );
}

fn milliseconds(ms: f64) -> String {
    match ms {
        _ if ms >= 10.0 => format!("{ms:.0}&nbsp;ms"),
        _ if ms >= 1.0 => format!("{ms:.1}&nbsp;ms"),
        _ => format!("{ms:.2}&nbsp;ms"),
    }
}

/// The meaning of each typed line.
const MEANINGS: [&str; 3] = [
    "this is my line, and this is how fast it is",
    "the video: never less than 5 Mbit/s of what comes in",
    "the backup: never more than 4 Mbit/s of what goes out",
];

const STYLE: &str = "\
:root{--ink:#1c2733;--soft:#5b6b7b;--line:#dfe5ea;--blue:#1667c2;--green:#17866a;--red:#c62f3d}\
*{box-sizing:border-box}\
body{margin:0;background:#f5f7f9;color:var(--ink);font:16px/1.55 system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}\
main{max-width:1220px;margin:0 auto;padding:40px 28px 48px}\
.kicker{margin:0;color:var(--blue);font-weight:600;letter-spacing:.04em}\
h1{margin:.15em 0 .4em;font-size:29px;line-height:1.2;letter-spacing:-.01em}\
h1 code{font-size:.92em;color:var(--blue)}\
h2{margin:0 0 10px;font-size:18px}\
h3{margin:14px 0 2px;font-size:14px;font-weight:600}\
h3 span{color:var(--soft);font-weight:400}\
.lead{max-width:980px;margin:0 0 26px;font-size:18px}\
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(260px,1fr));gap:18px;margin-bottom:22px}\
.card,.pair>div,table,footer{background:#fff;border:1px solid var(--line);border-radius:12px}\
.card{padding:18px 22px}\
.card h2{font-size:15px;font-weight:600;color:var(--soft);margin:0}\
.big{margin:2px 0 0;font-size:35px;font-weight:700;line-height:1.25;white-space:nowrap}\
.was{color:var(--red)}.is{color:var(--green)}.arrow{color:var(--soft);font-weight:400;padding:0 .35em;font-size:.8em}\
.unit{margin:0;color:var(--soft);font-size:14px}\
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(440px,1fr));gap:18px}\
.pair>div{padding:18px 18px 8px}\
.pair .without{border-top:4px solid var(--red)}.pair .with{border-top:4px solid var(--green)}\
.pair svg{display:block;width:100%;height:auto}\
.caption{margin:10px 4px 26px;color:var(--soft);font-size:14px}\
section{margin-bottom:26px}.pair{margin-bottom:0}\
.terminal{margin:0;padding:18px 22px;background:#17212b;color:#c9d4df;border-radius:12px;font:14px/1.6 ui-monospace,'DejaVu Sans Mono',Menlo,monospace;overflow-x:auto;white-space:pre-wrap}\
.terminal b{color:#fff}.prompt{color:#5fd0a5}.remark{color:#7f93a6}\
table{border-collapse:separate;border-spacing:0;width:100%;overflow:hidden}\
th,td{text-align:left;padding:10px 18px;border-bottom:1px solid var(--line)}\
tr:last-child>*{border-bottom:0}\
thead th{font-size:13px;color:var(--soft);font-weight:600;background:#fafbfc}\
tbody th{font-weight:600}.now{font-weight:600}\
.yes{color:var(--green);font-weight:600}.no{color:var(--red);font-weight:600}\
footer{padding:18px 22px;color:var(--soft);font-size:14px}footer b{color:var(--ink)}footer p{margin:0 0 8px}footer p:last-child{margin:0}\
@media(max-width:560px){.pair{grid-template-columns:1fr}h1{font-size:26px}}";
