//! Tests of `netnice top` in a terminal emulator: keys that change a limit, resizing, the restored
//! terminal at every exit, output without a full screen, the list of connections, and the processor
//! time for 500 targets.

use netnice_lab::experiment::bench::{self, Rate};
use netnice_lab::experiment::sleepers;
use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::sys;
use netnice_lab::terminal::Terminal;
use netnice_lab::testbed::TestBed;
use netnice_lab::traffic::{self, Tcp};
use procfs_core::{FromRead, process::Schedstat};

use crate::users::{NOBODY, as_user};

/// Runs `netnice ARGS` on a terminal with a UTF-8 locale, with or without colours.
fn terminal(bed: &TestBed, args: &[&str], size: (u16, u16), colour: bool) -> Terminal {
    let mut command = bed.netnice.command(args);
    command.env("LC_ALL", "C.UTF-8");
    if colour {
        command.env_remove("NO_COLOR");
    }
    Terminal::start(command, size.0, size.1).expect("a terminal")
}

fn wait(terminal: &Terminal, what: &str) {
    let shown = terminal.wait_for(what, EVENT_TIMEOUT, |text| text.contains(what));
    shown.unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn a_limit_that_is_changed_on_the_screen_holds() {
    const R8M: Rate = Rate {
        bits: 8_000_000,
        text: "8mbit",
    };
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let flows = Tcp::connect(to, 2).source();
    let program = traffic::start_now(bed.world.client(), &flows).expect("a program");
    let name = format!("pid:{}", program.pid());
    bed.run_ok(&format!("set {name} --up 4mbit"));
    let mut top = terminal(&bed, &["top", "--targets"], (80, 24), true);
    wait(&top, &format!("> {name}"));
    assert!(top.is_full_screen() && top.hides_cursor() && top.has_colour());
    assert!(
        !top.settings_are_restored().expect("settings"),
        "keys come one by one"
    );
    // The rate, the history and the throttled direction appear with the second sample.
    let busy = |text: &str| {
        let line = text.lines().find(|line| line.contains(&name));
        line.is_some_and(|line| line.contains('█') && line.trim_end().ends_with("up"))
    };
    top.wait_for("busy row", EVENT_TIMEOUT, busy)
        .unwrap_or_else(|error| panic!("{error:#}"));

    top.type_keys("u8mbps\r").expect("typed");
    wait(&top, "mbps");
    assert_eq!(
        bed.target(&name)["effective"]["up"],
        4_000_000,
        "what is no rate changes nothing"
    );
    top.type_keys("\x7f\x7f\x7fbit\r").expect("typed");
    wait(&top, "up 8 Mbit/s (1 MB/s)");
    assert_eq!(bed.target(&name)["effective"]["up"], 8_000_000);
    bed.await_limited(
        || bed.sent_rate(0.5, 1.0).expect("a rate"),
        R8M,
        "changed in top",
    );

    top.type_keys("\r").expect("typed");
    wait(&top, "10.77.0.2:5001");
    let rates = |text: &str| {
        let peers: Vec<&str> = text.lines().filter(|line| line.contains(":5001")).collect();
        // TCP decides how the two share the limit.
        let known = |line: &&str| !line.contains("up      -");
        peers.len() == 2 && peers.iter().all(known) && text.contains("M  down")
    };
    top.wait_for("rates of both connections", EVENT_TIMEOUT, rates)
        .unwrap_or_else(|error| panic!("{error:#}"));

    top.type_keys("xy").expect("typed");
    wait(&top, "no target is limited");
    assert!(bed.target(&name).is_null(), "taken back");
    top.type_keys("q").expect("typed");
    assert!(top.wait(EVENT_TIMEOUT).expect("an end").success());
    assert!(!top.is_full_screen() && !top.hides_cursor());
    assert!(top.settings_are_restored().expect("settings"));
}

#[test]
fn the_terminal_is_restored_at_every_exit_and_may_be_resized() {
    let bed = TestBed::new().expect("a test bed");
    let sleeper = bed.sleeper();
    bed.run_ok(&format!(
        "set pid:{} --up 4mbit --down 8mbit",
        sleeper.pid()
    ));
    let name = format!("pid:{}", sleeper.pid());
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        let mut top = terminal(&bed, &["top", "--targets"], (80, 24), false);
        wait(&top, &name);
        assert!(!top.has_colour(), "NO_COLOR is set");
        top.resize(120, 30).expect("resized");
        let wide = |text: &str| text.lines().any(|line| line.trim_end().len() > 90);
        top.wait_for("wide heading", EVENT_TIMEOUT, wide)
            .unwrap_or_else(|error| panic!("{error:#}"));
        sys::kill(top.pid().cast_signed(), signal).expect("signalled");
        let status = top.wait(EVENT_TIMEOUT).expect("an end");
        let ended = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(ended, Some(signal), "who started it sees how it ended");
        assert!(!top.is_full_screen() && !top.hides_cursor());
        assert!(top.settings_are_restored().expect("settings"));
    }
    // The loss of the daemon is shown, and the daemon is found again when it returns.
    let mut bed = bed;
    let mut top = terminal(&bed, &["top", "--targets", "-d", "200ms"], (80, 24), false);
    wait(&top, &name);
    bed.netnice.stop_daemon();
    wait(&top, "trying again");
    bed.netnice.start_daemon().expect("a daemon");
    let again = |text: &str| !text.contains("trying again") && text.contains(&name);
    top.wait_for("the table again", EVENT_TIMEOUT, again)
        .unwrap_or_else(|error| panic!("{error:#}"));
    top.type_keys("\x03").expect("Ctrl-C");
    assert!(top.wait(EVENT_TIMEOUT).expect("an end").success());
}

#[test]
fn a_dumb_terminal_gets_plain_tables_and_one_frame_can_be_printed() {
    let bed = TestBed::new().expect("a test bed");
    let sleeper = bed.sleeper();
    let name = format!("pid:{}", sleeper.pid());
    bed.run_ok(&format!("set {name} --up 4mbit"));
    let mut command = bed.netnice.command(&["top", "--targets", "-d", "200ms"]);
    // In addition to the variable that the terminal sets.
    command.arg("--runtime-dir").arg(bed.netnice.runtime());
    let mut wrapped = netnice_lab::process::own_group("env");
    wrapped
        .arg("TERM=dumb")
        .arg(command.get_program())
        .args(command.get_args());
    let top = Terminal::start(wrapped, 80, 24).expect("a terminal");
    let twice = |text: &str| text.matches(&name).count() >= 2;
    top.wait_for("two tables", EVENT_TIMEOUT, twice)
        .unwrap_or_else(|error| panic!("{error:#}"));
    assert!(!top.is_full_screen());
    let frame = bed.run_ok("top --targets --once -d 300ms").stdout;
    let line = frame.lines().find(|line| line.contains(&name));
    assert!(line.is_some_and(|line| line.contains("4M")), "{frame}");
    assert!(
        frame.is_ascii() && frame.lines().all(|line| line.len() <= 80),
        "{frame}"
    );
}

#[test]
fn connections_are_shown_to_their_owner_and_to_root() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let flows = Tcp::connect(to, 1).source();
    let program = traffic::start_now(bed.world.client(), &flows).expect("a program");
    bed.run_ok(&format!("set pid:{} --up 4mbit", program.pid()));
    let netnice = bed.copy_for_all("netnice").expect("a copy");
    let mut command = as_user(&bed, NOBODY);
    command.arg(netnice).args(["top", "--targets"]);
    let mut top = Terminal::start(command, 80, 24).expect("a terminal");
    wait(&top, &format!("> pid:{}", program.pid()));
    top.type_keys("\r").expect("typed");
    wait(&top, "and 1 of other users");
    assert!(!top.text().contains(":5001"));
    // A user cannot change targets of others, and the reason is shown.
    top.type_keys("u1mbit\r").expect("typed");
    wait(&top, "belongs to root");
    top.type_keys("xy").expect("typed");
    wait(&top, "you have no claim on this target");
}

/// Processor time of a process and all its threads, in nanoseconds.
fn cpu_time(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    let spent = |entry: std::io::Result<std::fs::DirEntry>| {
        let spent = Schedstat::from_file(entry.ok()?.path().join("schedstat"));
        Some(spent.ok()?.sum_exec_runtime)
    };
    tasks.filter_map(spent).sum()
}

#[test]
#[ignore = "takes a minute, and a quiet machine"]
fn five_hundred_idle_targets_cost_less_than_three_hundredths_of_a_core() {
    let bed = TestBed::new().expect("a test bed");
    let (_parent, pids) = sleepers(bed.world.client(), 500).expect("sleepers");
    let contracts = ["--up 4mbit", "--down 8mbit", "--up 2mbit --down 3mbit"];
    check_cost(&bed, &pids, contracts, "idle", || {});
}

#[test]
#[ignore = "takes a minute, and a quiet machine"]
fn five_hundred_busy_targets_cost_less_than_three_hundredths_of_a_core() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let mut command = bed.world.client().ns.command("perl");
    command.args(["-MIO::Socket::INET", "-e", SENDERS_SCRIPT]);
    command.args([to.to_string(), "500".to_owned()]);
    let mut parent = Proc::start(command).expect("senders");
    let next = |_| {
        let line = parent.next_line(EVENT_TIMEOUT).expect("a line");
        line.trim().parse().expect("a number")
    };
    let pids: Vec<u32> = (0..500).map(next).collect();
    let contracts = ["--up 100kbit", "--up 80kbit", "--both 120kbit"];
    check_cost(&bed, &pids, contracts, "busy", || {
        parent.write_line("go").expect("told");
    });
}

/// Children that each connect and send without end when they are told to.
const SENDERS_SCRIPT: &str = r#"
    my ($to, $count) = @ARGV;
    $| = 1;
    pipe(my $wait, my $go);
    for (1 .. $count) {
        my $pid = fork;
        if ($pid) { print "$pid\n"; next }
        close $go;
        sysread $wait, $_, 1;
        my $socket = IO::Socket::INET->new($to) or die "$to: $!";
        my $much = 'x' x 16384;
        1 while syswrite $socket, $much;
        exit;
    }
    close $go if <STDIN>;
    sleep 3600;
"#;

/// Checks the cost of 500 targets: processor time of the daemon and the client together, less the
/// daemon's when no client watches.
fn check_cost(bed: &TestBed, pids: &[u32], contracts: [&str; 3], what: &str, begin: impl FnOnce()) {
    for (n, pid) in pids.iter().enumerate() {
        bed.run_ok(&format!("set pid:{pid} {}", contracts[n % 3]));
    }
    begin();
    let daemon = bed.netnice.pid().expect("a daemon");
    let share = |pids: &[u32], seconds: f64| {
        let sum = || pids.iter().map(|pid| cpu_time(*pid)).sum::<u64>();
        let (from, before) = (sys::now_ns(), sum());
        bench::pause(seconds);
        (sum() - before) as f64 * 100.0 / (sys::now_ns() - from) as f64
    };
    bench::pause(3.0);
    let alone = share(&[daemon], 8.0);
    for size in [(80, 24), (200, 50)] {
        let top = terminal(bed, &["top", "--targets"], size, true);
        wait(&top, "500 targets");
        if what == "busy" {
            wait(&top, "500 moving");
        }
        bench::pause(2.0);
        let both = share(&[daemon, top.pid()], 10.0);
        println!(
            "{what}, {} x {}: daemon and top {both:.2} % of a core, the daemon alone {alone:.2} %",
            size.0, size.1
        );
        assert!(
            both - alone < 3.0,
            "{both:.2} % of a core, of which {alone:.2} % without top"
        );
    }
}
