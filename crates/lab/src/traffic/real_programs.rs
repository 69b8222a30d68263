//! Starts real programs in a world (ping, iperf3, nginx, curl) and parses the output of ping and
//! iperf3, for tests and experiments that do not rely on the lab's own generator. A start fails if
//! the program is not installed, and that of a server also if it does not listen within 5 s;
//! without nginx [`nginx()`] returns `None`. [`IperfReport::of`] fails if iperf3 fails or does not
//! end in time. Lines of ping that cannot be parsed are skipped.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::{self, Proc};
use crate::stats;
use crate::world::Host;

/// The command line (`ping` and its arguments) that sends `count` requests to `to`, at intervals of
/// `every`, and prints timestamps. The ping ends at the latest 6 s after `count` intervals.
pub fn ping_words(to: IpAddr, every: Duration, count: u32) -> Vec<String> {
    // -w: replies that are missing about six seconds after the last request are lost. This is long
    // enough for the longest queues, and ends a ping without replies.
    let deadline = ((every * count).as_secs() + 6).to_string();
    let every = format!("{:.3}", every.as_secs_f64());
    let count = count.to_string();
    [
        "ping",
        "-D",
        "-n",
        "-i",
        &every,
        "-c",
        &count,
        "-w",
        &deadline,
        &to.to_string(),
    ]
    .iter()
    .map(|w| (*w).to_owned())
    .collect()
}

/// The replies to the requests of one ping process.
#[derive(Debug, Clone, Default)]
pub struct Pings {
    /// Time of the reply (wall clock in ns), and the round trip in ms.
    pub answers: Vec<(u64, f64)>,
    /// Number of requests sent, if ping printed its summary.
    pub sent: Option<u32>,
}

impl Pings {
    /// Parses the lines that `ping -D` prints. Lines of another form are skipped.
    pub fn parse<'a>(lines: impl IntoIterator<Item = &'a str>) -> Pings {
        let mut pings = Pings::default();
        for line in lines {
            if let Some((sent, _)) = line.split_once(" packets transmitted") {
                pings.sent = sent.trim().parse().ok();
            }
            let parsed = (|| {
                let at: f64 = line.strip_prefix('[')?.split_once(']')?.0.parse().ok()?;
                let time = line.split_once("time=")?.1;
                let ms: f64 = time.split_once(' ')?.0.parse().ok()?;
                // A timestamp has microseconds; further digits are rounding errors of the float.
                Some(((at * 1e6).round() as u64 * 1000, ms))
            })();
            pings.answers.extend(parsed);
        }
        pings
    }

    /// The round trips in ms whose reply came between two moments.
    pub(crate) fn between(&self, from_ns: u64, to_ns: u64) -> Vec<f64> {
        self.answers
            .iter()
            .filter(|(at, _)| (from_ns..to_ns).contains(at))
            .map(|(_, ms)| *ms)
            .collect()
    }

    /// All round trips, in ms.
    pub fn times(&self) -> Vec<f64> {
        self.answers.iter().map(|(_, ms)| *ms).collect()
    }

    /// The share of requests without a reply, 0 to 1; 0 if ping printed no summary.
    pub(crate) fn lost(&self) -> f64 {
        match self.sent {
            Some(sent) if sent > 0 => 1.0 - self.answers.len() as f64 / f64::from(sent),
            _ => 0.0,
        }
    }

    /// Mean and 99th percentile of the round trips in ms; 0 without replies.
    pub(crate) fn mean_and_p99(&self) -> (f64, f64) {
        let times = self.times();
        (stats::mean(&times), stats::percentile(&times, 99.0))
    }
}

/// Starts a ping on `host`, see [`ping_words`]. `finish_ping` ends it. Fails if ping cannot start.
pub fn ping(host: &Host, to: IpAddr, every: Duration, count: u32) -> Result<Proc> {
    let words = ping_words(to, every, count);
    let mut command = host.ns.command(&words[0]);
    command.args(&words[1..]).env("LC_ALL", "C");
    Proc::start(command)
}

/// Ends a ping and parses its output, which may take 6 s. SIGINT makes ping print its summary.
pub(crate) fn finish_ping(mut ping: Proc) -> Pings {
    let _ = crate::sys::kill(ping.pid() as i32, libc::SIGINT);
    let lines = ping.remaining_lines(Duration::from_secs(6));
    Pings::parse(lines.iter().map(String::as_str))
}

/// Starts an iperf3 server for one test on `host`. Fails if it cannot start or does not listen
/// within 5 s.
pub fn iperf_server(host: &Host, port: u16) -> Result<Proc> {
    let mut command = host.ns.command("iperf3");
    command.args(["-s", "-1", "--forceflush", "-p", &port.to_string()]);
    let mut server = Proc::start(command)?;
    let until = Instant::now() + Duration::from_secs(5);
    while !server
        .next_line(until.saturating_duration_since(Instant::now()))?
        .contains("listening on")
    {}
    Ok(server)
}

/// A test by an iperf3 client.
#[derive(Debug, Clone)]
pub struct Iperf {
    /// The server.
    pub to: SocketAddr,
    /// Number of TCP connections.
    pub flows: u32,
    /// Length in seconds.
    pub seconds: u32,
    /// The congestion control.
    pub congestion: &'static str,
    /// Whether the client receives instead of sending.
    pub reverse: bool,
}

/// What an iperf3 client reports at its end.
#[derive(Debug, Clone)]
pub struct IperfReport {
    /// Bit/s that arrived at the receiver, of each connection.
    pub goodputs: Vec<f64>,
    /// Segments that the sender sent again or tried to.
    pub retransmits: u64,
    /// Round trips in ms: one of each connection in each tenth of a second after the first second.
    /// Empty if the client receives.
    pub round_trips: Vec<f64>,
}

impl Iperf {
    /// The words of the command line.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut line = format!(
            "iperf3 -J -i 0.1 -C {} -c {} -p {} -P {} -t {}",
            self.congestion,
            self.to.ip(),
            self.to.port(),
            self.flows,
            self.seconds
        );
        if self.reverse {
            line.push_str(" -R");
        }
        line.split(' ').map(str::to_owned).collect()
    }

    /// Starts the client on `host`. [`IperfReport::of`] reads the result. Fails if iperf3 cannot
    /// start.
    pub fn start(&self, host: &Host) -> Result<Proc> {
        let words = self.words();
        let mut command = host.ns.command(&words[0]);
        command.args(&words[1..]);
        Proc::start(command)
    }
}

impl IperfReport {
    /// Waits for an iperf3 client and reads its report. Fails if iperf3 failed or does not end
    /// within `within`.
    pub fn of(mut client: Proc, within: Duration) -> Result<IperfReport> {
        let text = client.remaining_lines(within).join("\n");
        IperfReport::parse(&text).with_context(|| format!("iperf3: {}", client.take_stderr()))
    }

    /// Reads the JSON that iperf3 has printed. Fails if it is no JSON or has an error.
    pub(crate) fn parse(text: &str) -> Result<IperfReport> {
        let value: Value =
            serde_json::from_str(text).with_context(|| format!("no JSON: {text}"))?;
        let streams = value.pointer("/end/streams").and_then(Value::as_array);
        let streams = streams.with_context(|| format!("iperf3 failed: {}", value["error"]))?;
        let goodput = |stream: &Value| stream.pointer("/receiver/bits_per_second")?.as_f64();
        let intervals = value["intervals"].as_array();
        let late = intervals.into_iter().flatten().filter(|interval| {
            let start = interval.pointer("/sum/start").and_then(Value::as_f64);
            start.is_some_and(|start| start >= 1.0)
        });
        let streams_of = |interval: &Value| interval["streams"].as_array().cloned();
        let times = late.filter_map(streams_of).flatten();
        let times = times.filter_map(|stream| stream["rtt"].as_f64());
        Ok(IperfReport {
            goodputs: streams.iter().filter_map(goodput).collect(),
            retransmits: value
                .pointer("/end/sum_sent/retransmits")
                .and_then(Value::as_u64)
                .unwrap_or(0),
            round_trips: times.map(|us| us / 1000.0).filter(|ms| *ms > 0.0).collect(),
        })
    }

    /// The goodput of all connections together, in bit/s.
    pub fn goodput(&self) -> f64 {
        self.goodputs.iter().sum()
    }
}

/// Starts an nginx with one file of `bytes`, which listens at `at`; `folder` is for its files.
/// `None` if nginx is not installed. Fails if its files cannot be written, or if it does not listen
/// within 5 s.
pub fn nginx(host: &Host, at: SocketAddr, folder: &Path, bytes: u64) -> Result<Option<Proc>> {
    if !process::installed("nginx") {
        return Ok(None);
    }
    let root = folder.join("www");
    std::fs::create_dir_all(&root)?;
    std::fs::File::create(root.join("file"))?.set_len(bytes)?;
    let mut text = String::from("daemon off; worker_processes 1; user root;\n");
    let _ = writeln!(
        text,
        "pid {0}/nginx.pid; error_log {0}/error.log;",
        folder.display()
    );
    let _ = writeln!(
        text,
        "events {{ worker_connections 512; }}\nhttp {{ access_log off;"
    );
    for temp in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        let _ = writeln!(text, "{temp}_temp_path {}/{temp};", folder.display());
    }
    let _ = writeln!(
        text,
        "sendfile on; server {{ listen {at}; root {}; }} }}",
        root.display()
    );
    let config = folder.join("nginx.conf");
    std::fs::write(&config, text)?;
    let mut command = host.ns.command("nginx");
    command.arg("-c").arg(&config).arg("-p").arg(folder);
    command.arg("-e").arg(folder.join("error.log"));
    let mut server = Proc::start(command)?;
    let until = Instant::now() + Duration::from_secs(5);
    while host
        .ns
        .enter(|| Ok(std::net::TcpStream::connect(at)?))
        .is_err()
    {
        if !server.is_running() || Instant::now() > until {
            bail!("nginx does not listen at {at}: {}", server.take_stderr());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(Some(server))
}

/// Starts a curl that fetches `http://at/file`, discards it, and prints its bytes and the seconds
/// that the fetch took. Fails if curl cannot start.
pub fn curl(host: &Host, at: SocketAddr) -> Result<Proc> {
    Proc::start(curl_command(host, at))
}

fn curl_command(host: &Host, at: SocketAddr) -> Command {
    let mut command = host.ns.command("curl");
    command.args([
        "-sS",
        "-o",
        "/dev/null",
        "-w",
        "%{size_download} %{time_total}\\n",
    ]);
    command.arg(format!("http://{at}/file"));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping_output_is_parsed() {
        let text = "PING 10.77.0.2 (10.77.0.2) 56(84) bytes of data.\n\
            [1700000000.250000] 64 bytes from 10.77.0.2: icmp_seq=1 ttl=64 time=0.040 ms\n\
            [1700000000.500000] 64 bytes from 10.77.0.2: icmp_seq=2 ttl=64 time=120 ms\n\
            [1700000001.500000] From 10.77.0.1 icmp_seq=3 Destination Host Unreachable\n\n\
            --- 10.77.0.2 ping statistics ---\n\
            4 packets transmitted, 2 received, 50% packet loss, time 3ms\n";
        let pings = Pings::parse(text.lines());
        assert_eq!(
            pings.answers,
            [
                (1_700_000_000_250_000_000, 0.040),
                (1_700_000_000_500_000_000, 120.0)
            ]
        );
        assert_eq!(pings.sent, Some(4));
        assert!((pings.lost() - 0.5).abs() < 1e-9);
        assert_eq!(pings.between(0, 1_700_000_000_300_000_000), [0.040]);
    }
}
