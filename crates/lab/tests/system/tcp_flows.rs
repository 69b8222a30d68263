//! Tests flows of TCP with the real daemon, driver and kernel: a test makes the segments of a
//! server or a client on the direct path by hand, and a socket of the kernel is at the other end of
//! the cable.

pub(crate) mod rig;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::testbed::await_some;
use netnice_lab::traffic::segments::bytes_of;
use netnice_lab::world::Family;
use socket2::{Domain, Protocol, Socket, Type};

use crate::users::ANN;
use rig::{Connection, Flags, TcpBed};

/// Accepts one connection of a kernel's socket by hand: the request comes by the first flow, and
/// what follows by the second one.
fn accept(bed: &mut TcpBed, family: Family, port: u16) -> Result<(TcpStream, Connection)> {
    let connecting = bed.connect_from_server(family, port);
    let request = bed.recv(0)?;
    ensure!(request.flags == Flags::SYN, "{:?}", request.flags);
    ensure!(
        bed.try_recv(1, 20)?.is_none(),
        "the request is for the first flow"
    );
    let mut connection = Connection::answering(&request, 1000);
    bed.send(0, &connection.frame(Flags::SYN_ACK, b"")?)?;
    connection.sequence += 1;
    let stream = connecting.join().expect("no panic")?;
    stream.set_read_timeout(Some(EVENT_TIMEOUT))?;
    let established = bed.recv(1)?;
    ensure!(established.flags == Flags::ACK, "{:?}", established.flags);
    ensure!(established.acknowledged == connection.sequence);
    Ok((stream, connection))
}

fn serve_a_kernel(mode: Option<&str>) -> Result<()> {
    const PORT: u16 = 8080;
    let mut bed = TcpBed::new(mode)?;
    for family in [Family::V4, Family::V6] {
        bed.start_program()?;
        let own = bed.own(family, PORT);
        let capture = bed.capture(PORT)?;
        bed.ask(&format!("requests {own}"))?;
        bed.ask(&format!("listener {own}"))?;
        let (mut stream, mut connection) = accept(&mut bed, family, PORT)?;
        // Data in both directions, by the listener flow.
        stream.write_all(b"hello")?;
        let data = bed.recv(1)?;
        ensure!(data.payload == b"hello", "{data:?}");
        connection.acknowledged += 5;
        bed.send(1, &connection.frame(Flags::ACK, b"world")?)?;
        connection.sequence += 5;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer)?;
        ensure!(&answer == b"world");
        let acknowledged = bed.recv(1)?;
        ensure!(acknowledged.acknowledged == connection.sequence);
        // A flow of its own takes over the segments of the connection.
        let promoted = bed.ask(&format!("connection {own} {}", stream.local_addr()?))?;
        ensure!(promoted["opened"] == 2, "{promoted}");
        stream.write_all(b"more")?;
        let data = bed.recv(2)?;
        ensure!(data.payload == b"more", "{data:?}");
        ensure!(
            bed.try_recv(1, 50)?.is_none(),
            "nothing is left for the listener"
        );
        connection.acknowledged += 4;
        bed.send(2, &connection.frame(Flags::ACK, b"")?)?;
        // A second connection, as long as the program has the port.
        let (_second, _) = accept(&mut bed, family, PORT)?;
        port_is_taken(&mut bed, own)?;
        capture
            .end_without_reset(bed.server())
            .with_context(|| format!("{family:?}"))?;
        the_program_dies(&mut bed, stream, own)?;
    }
    Ok(())
}

/// No other program gets the port: no socket of the kernel, and no flow of any user.
fn port_is_taken(bed: &mut TcpBed, own: SocketAddr) -> Result<()> {
    // `TcpListener` sets SO_REUSEADDR.
    let socket = bed.client().ns.enter(|| Ok(TcpListener::bind(own)))?;
    let taken = socket.err().context("a flow has it")?.kind();
    ensure!(taken == ErrorKind::AddrInUse, "{taken}");
    let pid = bed.program()?.pid();
    let mut other = bed.another_program()?;
    let mut anns = bed.program_of(ANN)?;
    for line in [format!("listener {own}"), format!("requests {own}")] {
        let visible = format!("port {own} of TCP is in use: a direct flow of process {pid} has it");
        let refused = other.refusal(&line)?;
        ensure!(refused == visible, "{refused}");
        let refused = anns.refusal(&line)?;
        let hidden = format!("port {own} of TCP is in use: a direct flow has it");
        ensure!(refused == hidden, "{refused}");
    }
    Ok(())
}

/// The idle peer of a connection gets a reset, the kernel resets other segments, and the same user
/// has the port again at once.
fn the_program_dies(bed: &mut TcpBed, mut idle: TcpStream, own: SocketAddr) -> Result<()> {
    let begin = Instant::now();
    bed.program()?.kill();
    let error = idle
        .read(&mut [0; 10])
        .err()
        .context("the connection goes on")?;
    let waited = begin.elapsed();
    ensure!(error.kind() == ErrorKind::ConnectionReset, "{error}");
    ensure!(waited < Duration::from_secs(1), "{waited:?}");
    // The kernel holds the port and answers for the program.
    await_some("a new connection is refused", || {
        let stream = bed
            .server()
            .ns
            .enter(|| Ok(TcpStream::connect_timeout(&own, Duration::from_millis(300))))?;
        let kind = stream.err().map(|error| error.kind());
        Ok((kind == Some(ErrorKind::ConnectionRefused)).then_some(()))
    })?;
    let socket = bed.client().ns.enter(|| Ok(TcpListener::bind(own)))?;
    let taken = socket.err().context("it is kept")?.kind();
    ensure!(taken == ErrorKind::AddrInUse, "{taken}");
    let mut anns = bed.program_of(ANN)?;
    let kept = format!(
        "port {own} of TCP is in use: the program that had it has just ended, and its user can \
         have it again before others"
    );
    let refused = anns.refusal(&format!("listener {own}"))?;
    ensure!(refused == kept, "{refused}");
    let mut again = bed.another_program()?;
    for line in [
        format!("requests {own}"),
        format!("listener {own}"),
        "close 0".to_owned(),
        "close 1".to_owned(),
    ] {
        again.ask(&line, EVENT_TIMEOUT)?;
    }
    let free = bed.client().ns.enter(|| Ok(TcpListener::bind(own)))?;
    free.context("its program has closed it")?;
    Ok(())
}

#[test]
fn a_server_of_segments_serves_a_kernel() -> Result<()> {
    serve_a_kernel(None)
}

#[test]
fn a_server_of_segments_serves_a_kernel_in_generic_mode() -> Result<()> {
    serve_a_kernel(Some("generic"))
}

#[test]
fn a_server_of_segments_serves_a_kernel_in_the_fallback() -> Result<()> {
    serve_a_kernel(Some("fallback"))
}

/// Connects by hand to a listening socket of the kernel. The flow is the program's `place`-th.
fn connect(bed: &mut TcpBed, to: SocketAddr, place: usize) -> Result<(Connection, u64)> {
    let any = match to.ip() {
        IpAddr::V4(_) => "0.0.0.0:0",
        IpAddr::V6(_) => "[::]:0",
    };
    let opened = bed.ask(&format!("connection {any} {to}"))?;
    let local: SocketAddr = opened["local"].as_str().context("an address")?.parse()?;
    ensure!(local.port() != 0 && local.ip() == bed.own(Family::V4, 0).ip());
    let macs =
        [&opened["mac"], &opened["next_hop"]].map(|mac| bytes_of(mac.as_str().unwrap_or("")));
    let [mac, next_hop] = macs.map(|mac| Ok::<_, anyhow::Error>(<[u8; 6]>::try_from(&mac?[..])?));
    let mut connection = Connection::new((mac?, local), (next_hop?, to), u32::MAX - 2);
    bed.send(place, &connection.frame(Flags::SYN, b"")?)?;
    connection.sequence = connection.sequence.wrapping_add(1);
    let answer = bed.recv(place)?;
    ensure!(answer.flags == Flags::SYN_ACK, "{:?}", answer.flags);
    connection.acknowledged = answer.sequence.wrapping_add(1);
    bed.send(place, &connection.frame(Flags::ACK, b"sent")?)?;
    connection.sequence = connection.sequence.wrapping_add(4);
    Ok((connection, opened["number"].as_u64().context("a number")?))
}

fn be_a_client(mode: Option<&str>) -> Result<()> {
    let mut bed = TcpBed::new(mode)?;
    bed.start_program()?;
    let to = bed.peer(Family::V4, 9000);
    let listener = bed.server().ns.enter(|| Ok(TcpListener::bind(to)?))?;
    let accepted = |bed: &mut TcpBed, place| -> Result<(TcpStream, Connection, u64)> {
        let (connection, number) = connect(bed, to, place)?;
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(EVENT_TIMEOUT))?;
        let mut sent = [0; 4];
        stream.read_exact(&mut sent)?;
        ensure!(&sent == b"sent");
        Ok((stream, connection, number))
    };
    // Closed by another program: the driver resets the connection.
    let (mut stream, _, number) = accepted(&mut bed, 0)?;
    bed.run_line(&format!("flow close flow:{number}"))?;
    let error = stream.read(&mut [0; 10]).err().context("it goes on")?;
    ensure!(error.kind() == ErrorKind::ConnectionReset, "{error}");
    bed.ask("close 0")?;
    // Closed by its program: that has ended the connection in its own way.
    let (mut stream, connection, _) = accepted(&mut bed, 1)?;
    bed.send(1, &connection.frame(Flags::FIN_ACK, b"")?)?;
    ensure!(stream.read(&mut [0; 10])? == 0, "the end of the stream");
    bed.ask("close 1")?;
    // What the peer sends afterwards is the kernel's, which has no such connection.
    stream.write_all(b"late")?;
    let error = stream.read(&mut [0; 10]);
    ensure!(matches!(&error, Ok(0) | Err(_)), "{error:?}");
    // The end of its process.
    let (mut stream, ..) = accepted(&mut bed, 2)?;
    let begin = Instant::now();
    bed.program()?.kill();
    let error = stream.read(&mut [0; 10]).err().context("it goes on")?;
    let waited = begin.elapsed();
    ensure!(error.kind() == ErrorKind::ConnectionReset, "{error}");
    ensure!(waited < Duration::from_secs(1), "{waited:?}");
    Ok(())
}

#[test]
fn a_client_of_segments_is_reset_unless_its_program_closes_it() -> Result<()> {
    be_a_client(None)
}

#[test]
fn a_client_of_segments_in_generic_mode() -> Result<()> {
    be_a_client(Some("generic"))
}

#[test]
fn a_client_of_segments_in_the_fallback() -> Result<()> {
    be_a_client(Some("fallback"))
}

#[test]
fn the_key_of_a_server_outlives_its_program_and_the_daemon() -> Result<()> {
    let mut bed = TcpBed::new(None)?;
    let own = bed.own(Family::V4, 8080);
    let secret = bed.runtime().join("tcp-secret");
    let mut keys = Vec::new();
    for restart in [false, true, false] {
        if restart {
            bed.restart_daemon()?;
        }
        bed.start_program()?;
        let opened = bed.ask(&format!("listener {own}"))?;
        keys.push(opened["key"].as_str().context("a key")?.to_owned());
        bed.program()?.kill();
    }
    ensure!(
        keys[0].len() == 32 && keys.iter().all(|key| *key == keys[0]),
        "{keys:?}"
    );
    let file = std::fs::metadata(&secret)?;
    let mode = std::os::unix::fs::PermissionsExt::mode(&file.permissions());
    ensure!(file.len() == 16 && mode & 0o777 == 0o600, "{mode:o}");
    let mut anns = bed.program_of(ANN)?;
    let line = format!("listener {}", bed.own(Family::V4, 8081));
    let other = anns.ask(&line, EVENT_TIMEOUT)?;
    ensure!(other["key"] != keys[0].as_str());
    Ok(())
}

#[test]
fn what_cannot_be_a_flow_of_tcp_is_refused_with_the_reason() -> Result<()> {
    let mut bed = TcpBed::new(None)?;
    bed.start_program()?;
    let own = bed.own(Family::V4, 8080);
    let client = &bed.client().ns;
    client.ip("link add other0 type veth peer name other1")?;
    client.ip("address add 10.98.0.1/24 dev other0")?;
    client.ip("link set other0 up")?;
    let at = bed.own(Family::V4, 7000);
    let socket = client.enter(|| Ok(TcpListener::bind(at)?))?;
    let taken = socket.local_addr()?;
    let peer = bed.peer(Family::V4, 0);
    let cases = [
        (
            "listener 10.77.0.99:8080".to_owned(),
            "10.77.0.99 is not an address of this host".to_owned(),
        ),
        (
            "listener 10.98.0.1:8080".to_owned(),
            "10.98.0.1 is the address of other0, not of eth0: attach to other0".to_owned(),
        ),
        (
            format!("listener {taken}"),
            format!("port {taken} of TCP is in use: a socket of this host has it"),
        ),
        (
            format!("requests {taken}"),
            format!("port {taken} of TCP is in use: a socket of this host has it"),
        ),
        (
            format!("connection {own} {peer}"),
            format!("{peer} cannot be the remote end of a flow: it needs an address and a port"),
        ),
        (
            format!("connection {own} {own}"),
            format!(
                "{} is this host itself: direct flows are between hosts",
                own.ip()
            ),
        ),
    ];
    for (line, text) in cases {
        let refused = bed.program()?.refusal(&line)?;
        ensure!(refused == text, "{line}: {refused}");
    }
    let line = format!("listener {own} min 300mbit");
    let much = bed.program()?.refusal(&line)?;
    ensure!(
        much.contains("min 300mbit") && much.contains("100 Mbit/s"),
        "{much}"
    );
    // The port of a refused flow is free, and an address of lo is one of the whole host.
    bed.ask(&format!("listener {own}"))?;
    bed.client().ns.ip("address add 10.97.0.1/32 dev lo")?;
    bed.ask("listener 10.97.0.1:8080")?;
    let mut anns = bed.program_of(ANN)?;
    let low = anns.refusal(&format!("listener {}", bed.own(Family::V4, 80)))?;
    let text = "port 80 is for root and the group netnice: others have ports from 1024 on";
    ensure!(low == text, "{low}");
    let page = bed.run_line("show")?;
    ensure!(page.contains(&format!("tcp {own} > any host")), "{page}");
    Ok(())
}

#[test]
fn an_icmp_error_reaches_the_connection_with_its_sequence_number() -> Result<()> {
    let mut bed = TcpBed::new(None)?;
    bed.start_program()?;
    let to = bed.peer(Family::V4, 9000);
    let own = bed.own(Family::V4, 5000);
    bed.ask(&format!("connection {own} {to}"))?;
    let raw = bed.server().ns.enter(|| {
        Ok(Socket::new(
            Domain::IPV4,
            Type::RAW,
            Some(Protocol::ICMPV4),
        )?)
    })?;
    let message = rig::too_long(own, to, 0x0102_0304, 1300)?;
    raw.send_to(&message, &SocketAddr::new(own.ip(), 0).into())?;
    let told = await_some("a notification", || {
        let answer = bed.ask("notification")?;
        Ok(answer["notification"].as_str().map(str::to_owned))
    })?;
    for part in [
        "TooLong",
        "mtu: Some(1300)",
        &format!("sequence: Some({})", 0x0102_0304),
    ] {
        ensure!(told.contains(part), "{told}");
    }
    let shown = bed.shown()?;
    ensure!(shown[0]["mtu"] == 1500, "the program decides: {shown}");
    Ok(())
}
