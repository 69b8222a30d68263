//! Hosts with signalling and transport, on the loopback interface. Their ledgers grant every hold.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU16;

use netnice_core::contract::{Channel, MessageRate};
use netnice_core::units::{Bytes, Instant, Nanos};

use super::*;
use crate::message::ServiceName;
use crate::signalling::{HoldId, NextHop, Open, OpenError, Part, Policy, Signalling};

/// What a host tells its programs, with the name of the host and the time.
type Told = mpsc::UnboundedReceiver<(HostName, Action)>;

/// Runs a host. It opens the channels that arrive in `opens`, and grants 5 ms to every hold.
async fn run_host(
    mut transport: Transport,
    route: BTreeMap<HostName, HostName>,
    mut opens: mpsc::UnboundedReceiver<Open>,
    told: mpsc::UnboundedSender<(HostName, Action)>,
) {
    let start = tokio::time::Instant::now();
    let now = || Instant(1_000 + start.elapsed().as_nanos() as u64);
    let mut sources = BTreeSet::new();
    let own = transport.identity.host().clone();
    let mut machine = Signalling::new(own.clone(), Policy::default());
    loop {
        while let Some(action) = machine.poll_action() {
            let reply = match transport.perform(action) {
                None => continue,
                Some(Action::Hold { hold, request }) => {
                    if request.part == Part::Source {
                        sources.insert(hold);
                    }
                    Event::Held {
                        hold,
                        bound: Nanos::from_millis(5),
                        next: route.get(&request.sink).cloned().map(next_hop),
                        unguarded: None,
                    }
                }
                Some(Action::Relax { hold, .. }) => {
                    let port = (!sources.contains(&hold)).then_some(PORT);
                    Event::Relaxed { hold, port }
                }
                Some(action) => {
                    // The test may have ended.
                    let _ = told.send((own.clone(), action));
                    continue;
                }
            };
            machine.handle(reply, now());
        }
        let next = machine
            .poll_timeout()
            .map_or(u64::MAX, |at| at.since(now()).0);
        let wait = Duration::from_nanos(next.min(1_000_000_000));
        tokio::select! {
            event = transport.next() => machine.handle(event, now()),
            Some(open) = opens.recv() => {
                let opened: Result<(), OpenError> = machine.open(open, now());
                opened.expect("is tried");
            }
            () = tokio::time::sleep(wait) => machine.handle_timeout(now()),
        }
    }
}

/// The next hop to a host. No packets are sent.
fn next_hop(host: HostName) -> NextHop {
    let [from, to] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
    NextHop { host, from, to }
}

const PORT: NonZeroU16 = NonZeroU16::new(7_000).expect("above zero");

/// Three hosts: `a`, the relay `r`, and `b`.
struct Line {
    opens: mpsc::UnboundedSender<Open>,
    told: Told,
    relay: tokio::task::JoinHandle<()>,
}

async fn line() -> Line {
    let authority = Authority::new();
    let mut a = listen(authority.identity("a")).await;
    let mut r = listen(authority.identity("r")).await;
    let b = listen(authority.identity("b")).await;
    introduce(&mut a, &r);
    introduce(&mut r, &b);
    let (tell, told) = mpsc::unbounded_channel();
    let (opens, asked) = mpsc::unbounded_channel();
    let nothing = || mpsc::unbounded_channel().1;
    let to_b = |next: &str| BTreeMap::from([(host("b"), host(next))]);
    let relay = tokio::spawn(run_host(r, to_b("b"), nothing(), tell.clone()));
    tokio::spawn(run_host(b, BTreeMap::new(), nothing(), tell.clone()));
    tokio::spawn(run_host(a, to_b("r"), asked, tell));
    Line { opens, told, relay }
}

fn open(number: u128) -> Open {
    let rate = MessageRate::new(50).expect("a rate");
    let contract = Channel::new(Bytes(1_000), rate, 2, Nanos::from_millis(30));
    Open {
        channel: ChannelId(number.to_be_bytes()),
        service: ServiceName::new("camera").expect("a service"),
        sink: host("b"),
        sink_address: IpAddr::from([10, 0, 0, 2]),
        contract: contract.expect("a contract"),
        packet: 532,
    }
}

#[tokio::test]
async fn a_channel_over_a_relay_is_established_and_ends_with_the_relay_within_2_s() {
    let mut line = line().await;
    line.opens.send(open(7)).expect("the host runs");
    let second = Duration::from_secs(2);
    let (mut opened, mut accepted) = (false, false);
    while !(opened && accepted) {
        let told = timeout(second, line.told.recv()).await;
        match told.expect("established in 2 s").expect("the hosts run") {
            (_, Action::Opened { hops, .. }) => {
                opened = true;
                let names = hops.as_slice().iter().map(|hop| hop.host.as_str());
                assert_eq!(names.collect::<Vec<_>>(), ["a", "r", "b"]);
                let bounds = hops.as_slice().iter().map(|hop| hop.bound);
                assert_eq!(bounds.collect::<Vec<_>>(), [Nanos::from_millis(10); 3]);
            }
            (_, Action::Accepted { .. }) => accepted = true,
            other => panic!("{other:?}"),
        }
    }
    line.relay.abort();
    let ends = async {
        let mut ends = Vec::new();
        let mut released = Vec::new();
        while ends.len() < 2 || released.len() < 2 {
            match line.told.recv().await.expect("the hosts run") {
                (at, Action::Release { hold: HoldId(0) }) => released.push(at),
                (at, Action::Ended { reason, .. }) => ends.push((at, reason.to_string())),
                other => panic!("{other:?}"),
            }
        }
        ends
    };
    let mut ends = timeout(second, ends)
        .await
        .expect("both ends are told in 2 s");
    ends.sort();
    assert_eq!([&ends[0].0, &ends[1].0], [&host("a"), &host("b")]);
    for (_, reason) in ends {
        assert!(
            reason.starts_with("the connection to r has ended: r "),
            "{reason}"
        );
    }
}

/// Every one of 5,000 channels that are asked for at once gets one answer. The quotas of the relay
/// and of the sink let some pass; the others are refused with the limit.
#[tokio::test]
async fn five_thousand_opens_at_once_get_one_answer_each() {
    let mut line = line().await;
    for number in 0..5_000 {
        line.opens.send(open(number)).expect("the host runs");
    }
    let mut answers = BTreeMap::new();
    let mut opened = 0;
    while answers.len() < 5_000 {
        let told = timeout(Duration::from_secs(20), line.told.recv()).await;
        match told.expect("an answer").expect("the hosts run").1 {
            Action::Opened { channel, .. } => {
                opened += 1;
                assert_eq!(answers.insert(channel, None), None);
            }
            Action::OpenRefused { channel, refusal } => {
                let text = refusal.reason.to_string();
                let by = match refusal.host.as_str() {
                    "r" => "the channels that a opens: at most ",
                    _ => "the channels that r opens: at most ",
                };
                assert!(text.starts_with(by), "{text}");
                assert_eq!(answers.insert(channel, Some(text)), None);
            }
            _ => {}
        }
    }
    assert!((256..=2_000).contains(&opened), "{opened} were opened");
}

/// Opens 1,000 channels one after the other and 32 at a time, and prints the rate and the times.
#[tokio::test]
#[ignore = "figures of this machine, for docs/evidence; run it with --release"]
async fn figures_of_a_thousand_channels_through_a_relay() {
    for at_once in [1_usize, 32] {
        let mut line = line().await;
        let begin = tokio::time::Instant::now();
        let mut asked: BTreeMap<ChannelId, tokio::time::Instant> = BTreeMap::new();
        let mut times = Vec::new();
        let mut next = 0;
        while times.len() < 1_000 {
            while asked.len() < at_once && next < 1_000 {
                let open = open(next);
                asked.insert(open.channel, tokio::time::Instant::now());
                line.opens.send(open).expect("the host runs");
                next += 1;
            }
            match line.told.recv().await.expect("the hosts run").1 {
                Action::Opened { channel, .. } => {
                    times.push(asked.remove(&channel).expect("asked").elapsed());
                }
                Action::OpenRefused { refusal, .. } => panic!("{refusal:?}"),
                _ => {}
            }
        }
        let all = begin.elapsed();
        times.sort();
        let rate = 1_000.0 / all.as_secs_f64();
        println!(
            "{at_once} at once: {rate:.0} set-ups/s, median {:?}, p99 {:?}, longest {:?}",
            times[500], times[990], times[999]
        );
    }
}
