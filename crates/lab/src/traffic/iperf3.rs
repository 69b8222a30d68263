//! The program `netnice-lab traffic iperf3`: a client of iperf3's protocol over TCP on the direct
//! path, with a server of iperf3 at the other end. It sends for some time, or receives
//! (`--reverse`), and prints the bytes that either end has counted as [`Counted`].
//!
//! The protocol, as iperf3 3.12 speaks it: a control connection, which begins with a cookie, on
//! which the server names each step by a byte and both exchange parameters and results as JSON
//! with a length before it; and a connection of data, which begins with the same cookie. The
//! program fails if a connection fails, or the server does not do the next step.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use netnice_stack::tcp::{Stream, TcpOptions};
use netnice_stack::udp::Buffers;
use netnice_stack::{Program, RuntimeDir};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The arguments of `netnice-lab traffic iperf3`.
#[derive(Debug, Clone, clap::Args)]
pub struct IperfArgs {
    /// The server.
    #[arg(long)]
    connect: SocketAddr,
    /// Receive in place of sending.
    #[arg(long)]
    reverse: bool,
    /// Seconds of the test.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// The daemon's folder.
    #[arg(long)]
    runtime_dir: Option<PathBuf>,
}

/// What both ends have counted.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Counted {
    /// Bytes that this program has sent or received.
    pub own: u64,
    /// Bytes that the server has received or sent.
    pub server: u64,
}

/// Runs the test and prints `{"counted": …}`.
pub fn run(args: &IperfArgs) -> Result<()> {
    let dir = RuntimeDir::choose(
        args.runtime_dir.clone(),
        std::env::var_os(RuntimeDir::VARIABLE),
    );
    let options = TcpOptions {
        buffers: Buffers {
            bytes: 2048,
            sending: 512,
            receiving: 512,
        },
        ..TcpOptions::to(args.connect)
    };
    let program = Program::attach(&dir, None, 2, 2 * options.buffers.region_bytes()?);
    let program = program.context("cannot attach to the direct path")?;
    let connect = || -> Result<Stream> {
        let mut stream = program
            .connect(&options, Some(TIMEOUT))
            .context("cannot connect")?;
        stream.write_all(COOKIE)?;
        Ok(stream)
    };
    let mut control = connect()?;
    expect(&mut control, PARAM_EXCHANGE)?;
    let mut parameters = json!({
        "tcp": true, "omit": 0, "time": args.seconds, "parallel": 1, "len": BLOCK,
        "pacing_timer": 1000, "client_version": "3.12",
    });
    // The server looks only whether the name is there.
    if args.reverse {
        parameters["reverse"] = true.into();
    }
    write_json(&mut control, &parameters)?;
    expect(&mut control, CREATE_STREAMS)?;
    let mut data = connect()?;
    expect(&mut control, TEST_START)?;
    expect(&mut control, TEST_RUNNING)?;
    let (own, lasted) = transfer(&mut data, args)?;
    control.write_all(&[TEST_END])?;
    // A server that sends goes on until it has heard that.
    let rest = match args.reverse {
        true => drain(&data, &mut control)?,
        false => {
            expect(&mut control, EXCHANGE_RESULTS)?;
            0
        }
    };
    let stream = json!({
        "id": 1, "bytes": own + rest, "retransmits": -1, "jitter": 0, "errors": 0, "packets": 0,
        "start_time": 0, "end_time": lasted.as_secs_f64(),
    });
    let results = json!({
        "cpu_util_total": 0, "cpu_util_user": 0, "cpu_util_system": 0,
        "sender_has_retransmits": -1, "streams": [stream],
    });
    write_json(&mut control, &results)?;
    let theirs = read_json(&mut control)?;
    let server = theirs["streams"][0]["bytes"].as_u64();
    expect(&mut control, DISPLAY_RESULTS)?;
    control.write_all(&[IPERF_DONE])?;
    let counted = Counted {
        own: own + rest,
        server: server.with_context(|| format!("no bytes in the server's results: {theirs}"))?,
    };
    println!("{}", json!({"counted": counted}));
    Ok(())
}

/// Sends or receives for the time of the test. Returns the bytes and the time.
fn transfer(data: &mut Stream, args: &IperfArgs) -> Result<(u64, Duration)> {
    let mut block = vec![0; BLOCK];
    let (began, mut bytes) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(args.seconds) {
        let moved = match args.reverse {
            true => data.read(&mut block)?,
            false => data.write(&block)?,
        };
        ensure!(
            moved > 0,
            "the connection of data ended after {bytes} bytes"
        );
        bytes += moved as u64;
    }
    Ok((bytes, began.elapsed()))
}

/// Reads what the server sends until it exchanges results. Returns the number of bytes.
fn drain(data: &Stream, control: &mut Stream) -> Result<u64> {
    let mut step = [0];
    let (mut bytes, mut block) = (0, vec![0; BLOCK]);
    let until = Instant::now() + TIMEOUT;
    loop {
        ensure!(Instant::now() < until, "the server goes on sending");
        match data.read(&mut block, Some(Duration::from_millis(1))) {
            Ok(read) => bytes += read as u64,
            Err(netnice_stack::StackError::WouldBlock) => {}
            Err(error) => return Err(error.into()),
        }
        match control.try_read(&mut step) {
            Ok(1) if step[0] == EXCHANGE_RESULTS => return Ok(bytes),
            Ok(_) => bail!("the server did step {} in place of the results", step[0]),
            Err(netnice_stack::StackError::WouldBlock) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn expect(control: &mut Stream, step: u8) -> Result<()> {
    let mut seen = [0];
    control.read_exact(&mut seen)?;
    ensure!(
        seen[0] == step,
        "the server did step {} in place of {step}",
        seen[0] as i8
    );
    Ok(())
}

fn write_json(control: &mut Stream, value: &Value) -> Result<()> {
    let text = value.to_string();
    control.write_all(&u32::try_from(text.len())?.to_be_bytes())?;
    Ok(control.write_all(text.as_bytes())?)
}

fn read_json(control: &mut Stream) -> Result<Value> {
    let mut length = [0; 4];
    control.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    ensure!(length <= LONGEST_JSON, "results of {length} bytes");
    let mut text = vec![0; length as usize];
    control.read_exact(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// The steps of the protocol.
const TEST_START: u8 = 1;
const TEST_RUNNING: u8 = 2;
const TEST_END: u8 = 4;
const PARAM_EXCHANGE: u8 = 9;
const CREATE_STREAMS: u8 = 10;
const EXCHANGE_RESULTS: u8 = 13;
const DISPLAY_RESULTS: u8 = 14;
const IPERF_DONE: u8 = 16;
/// 36 characters and a zero.
const COOKIE: &[u8; 37] = b"abcdefghijklmnopqrstuvwxyz2345670000\0";
const BLOCK: usize = 131_072;
const LONGEST_JSON: u32 = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(30);
