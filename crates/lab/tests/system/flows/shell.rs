//! Tests `netnice flow ls`, `open` and `close` with UDP sockets of the kernel as peers, and what
//! they tell and permit plain users.

use std::net::{SocketAddr, UdpSocket};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use netnice_lab::experiment::bench::at;
use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::testbed::TestBed;
use netnice_lab::world::Family;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{FlowBed, await_some};
use crate::users::{ANN, BOB, as_user, run_as};

/// A socket of the kernel on the server, which waits for datagrams.
fn server_socket(flow_bed: &FlowBed, family: Family) -> Result<(UdpSocket, SocketAddr)> {
    let server = flow_bed.world.server();
    let own = at(server, family, 7000);
    let socket = server.ns.enter(|| Ok(UdpSocket::bind(own)?))?;
    socket.set_read_timeout(Some(EVENT_TIMEOUT))?;
    Ok((socket, own))
}

/// Starts `netnice flow open LINE`.
fn start(flow_bed: &FlowBed, line: &str) -> Result<Proc> {
    let words = ["flow", "open"].into_iter().chain(line.split_whitespace());
    let words: Vec<&str> = words.collect();
    Proc::start(flow_bed.netnice.command(&words))
}

fn receive(socket: &UdpSocket) -> Result<(Vec<u8>, SocketAddr)> {
    let mut bytes = vec![0; 65_536];
    let (length, from) = socket.recv_from(&mut bytes).context("no datagram")?;
    bytes.truncate(length);
    Ok((bytes, from))
}

#[test]
fn a_flow_carries_standard_input_and_output() -> Result<()> {
    let flow_bed = FlowBed::new()?;
    for family in [Family::V4, Family::V6] {
        let (socket, server) = server_socket(&flow_bed, family)?;
        let mut flow = start(
            &flow_bed,
            &format!("--udp {server} --slice 2ms/20ms -w 30s"),
        )?;
        flow.write_line("from the shell")?;
        let (bytes, client) = receive(&socket)?;
        ensure!(bytes == b"from the shell\n", "{bytes:?}");
        socket.send_to(b"from the kernel\n", client)?;
        let line = flow.next_line(EVENT_TIMEOUT)?;
        ensure!(line == "from the kernel", "{line}");
        // The flow is listed while it is open.
        let listed = flow_bed.netnice.run_line("flow ls")?.stdout;
        let pid = flow.pid().to_string();
        let endpoints = format!("udp {client} > {server}");
        for word in [
            &pid,
            "netnice",
            "root",
            "open",
            &endpoints,
            "slice 2ms/20ms",
        ] {
            ensure!(listed.contains(word), "{word}: {listed}");
        }
        let listed = flow_bed.netnice.run_line("flow ls --json")?.stdout;
        let listed: Value = serde_json::from_str(&listed)?;
        ensure!(listed["direct"][0]["state"] == "open", "{listed}");
        ensure!(listed["links"] == Value::Array(Vec::new()), "{listed}");
        let pid = i32::try_from(flow.pid())?;
        let pid = Pid::from_raw(pid).context("a process")?;
        kill_process(pid, Signal::INT)?;
        let status = flow.wait(EVENT_TIMEOUT)?;
        ensure!(status.code().is_none(), "it ends by the signal: {status}");
        await_some("the flow is closed", || {
            Ok(flow_bed.flows()?.is_empty().then_some(()))
        })?;
    }
    Ok(())
}

#[test]
fn a_long_input_becomes_full_packets_and_arrives_complete() -> Result<()> {
    let flow_bed = FlowBed::new()?;
    let (socket, server) = server_socket(&flow_bed, Family::V4)?;
    let input = flow_bed.world.folder().join("input");
    let sent: Vec<u8> = (0..300_000_u32).map(|n| (n * 7 / 3) as u8).collect();
    std::fs::write(&input, &sent)?;
    let words = [
        "flow",
        "open",
        "--udp",
        &server.to_string(),
        "up",
        "10mbit",
        "-w",
        "0s",
    ];
    let mut command = flow_bed.netnice.command(&words);
    command.stdin(std::fs::File::open(&input)?);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut got = Vec::new();
    while got.len() < sent.len() {
        let (bytes, _) = receive(&socket)?;
        // 1500 bytes of the MTU without the headers of IPv4 and UDP.
        ensure!(bytes.len() <= 1472, "{}", bytes.len());
        got.extend(bytes);
    }
    ensure!(got == sent, "the bytes are others");
    let status = child.wait()?;
    ensure!(status.success(), "{status}");
    Ok(())
}

#[test]
fn a_listening_flow_answers_its_first_sender_alone() -> Result<()> {
    let flow_bed = FlowBed::new()?;
    let (first, _) = server_socket(&flow_bed, Family::V4)?;
    let other = at(flow_bed.world.server(), Family::V4, 7001);
    let other = flow_bed
        .world
        .server()
        .ns
        .enter(|| Ok(UdpSocket::bind(other)?))?;
    let own = flow_bed.client_endpoint(5000);
    let mut flow = start(&flow_bed, &format!("--listen {own} -w 30s"))?;
    await_some("it listens", || {
        Ok((!flow_bed.flows()?.is_empty()).then_some(()))
    })?;
    first.send_to(b"first\n", own)?;
    ensure!(flow.next_line(EVENT_TIMEOUT)? == "first");
    other.send_to(b"other\n", own)?;
    first.send_to(b"again\n", own)?;
    ensure!(flow.next_line(EVENT_TIMEOUT)? == "again");
    flow.write_line("answer")?;
    ensure!(receive(&first)?.0 == b"answer\n");
    flow.kill();
    Ok(())
}

#[test]
fn errors_are_named_and_have_the_status_of_other_verbs() -> Result<()> {
    let flow_bed = FlowBed::new()?;
    let server = at(flow_bed.world.server(), Family::V4, 7000);
    let silent = server.ip().to_string();
    let silent = format!("{}77", &silent[..silent.len() - 1]);
    let cases = [
        (format!("--udp {server} --min 400mbit"), 3, "400mbit"),
        (format!("--udp {server} --quota 1GB/day"), 2, "quota"),
        (format!("--udp {server} --slice 2ms/1ms"), 2, "slice"),
        (format!("--udp {server} --on eth7"), 1, "eth7"),
        (
            format!("--udp {server} --local 192.0.2.99:5000"),
            1,
            "192.0.2.99",
        ),
        (format!("--udp {silent}:9"), 1, "does not answer"),
        ("--udp nowhere".to_owned(), 1, "HOST:PORT"),
        ("--listen :5000".to_owned(), 2, "address"),
    ];
    for (line, status, part) in cases {
        let words = ["flow", "open"].into_iter().chain(line.split_whitespace());
        let ran = flow_bed.netnice.run(&words.collect::<Vec<_>>())?;
        ensure!(
            ran.status == status,
            "{line}: {}: {}",
            ran.status,
            ran.stderr
        );
        ensure!(ran.stderr.contains(part), "{line}: {}", ran.stderr);
    }
    ensure!(flow_bed.flows()?.is_empty(), "nothing is left");
    let ran = flow_bed.netnice.run(&["flow", "close", "7"])?;
    ensure!(
        (ran.status, ran.stderr.contains("flow:7 is not open")) == (1, true),
        "{ran:?}"
    );
    Ok(())
}

#[test]
fn a_user_sees_and_closes_own_flows_only() -> Result<()> {
    let bed = TestBed::new()?;
    bed.run_ok("link eth0 --rate 100mbit");
    let netnice = bed.copy_for_all("netnice")?;
    let server = bed.server(7000);
    let open = |uid: u32| -> Result<Proc> {
        let mut command = as_user(&bed, uid);
        command.arg(&netnice).args(["flow", "open", "-w", "60s"]);
        command.args(["--udp", &server.to_string()]);
        Proc::start(command)
    };
    let (mut anns, mut bobs) = (open(ANN)?, open(BOB)?);
    let number_of = |pid: u32| {
        await_some("the flow is open", || {
            let shown = bed.netnice.show()?;
            let flows = shown["direct"].as_array().cloned().unwrap_or_default();
            let flow = flows.iter().find(|flow| flow["pid"] == pid);
            Ok(flow.and_then(|flow| Some(flow["flow"].as_str()?.to_owned())))
        })
    };
    let (ann_flow, bob_flow) = (number_of(anns.pid())?, number_of(bobs.pid())?);
    let listed = run_as(&bed, ANN, "flow ls");
    ensure!(listed.stdout.contains(&ann_flow), "{listed:?}");
    ensure!(!listed.stdout.contains(&bob_flow), "{listed:?}");
    ensure!(
        !listed.stdout.contains(&bobs.pid().to_string()),
        "{listed:?}"
    );
    // The refusal is the same for a flow of another user and for one that does not exist.
    let refused = run_as(&bed, ANN, &format!("flow close {bob_flow}"));
    ensure!(refused.status == 3, "{refused:?}");
    let absent = run_as(&bed, ANN, "flow close flow:4000000");
    ensure!(absent.status == 3, "{absent:?}");
    let text = |output: &str, flow: &str| output.replace(flow, "FLOW");
    let (one, two) = (
        text(&refused.stderr, &bob_flow),
        text(&absent.stderr, "flow:4000000"),
    );
    ensure!(one == two, "{one} {two}");
    ensure!(bobs.is_running(), "it is open still");
    // Its owner, and root.
    let closed = run_as(&bed, ANN, &format!("flow close {ann_flow}"));
    ensure!(closed.status == 0, "{closed:?}");
    bed.run_ok(&format!("flow close {bob_flow}"));
    for (flow, who) in [
        (&mut anns, format!("user {ANN}")),
        (&mut bobs, "root".to_owned()),
    ] {
        let status = flow.wait(EVENT_TIMEOUT)?;
        let told = flow.take_stderr();
        ensure!(status.code() == Some(1), "{status}: {told}");
        ensure!(told.contains(&format!("closed by {who}")), "{told}");
    }
    let left = bed.netnice.show()?["direct"].as_array().map(Vec::len);
    ensure!(left == Some(0), "{left:?}");
    Ok(())
}
