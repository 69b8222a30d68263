//! A traffic program with QUIC connections, each of which sends or receives one stream of known
//! content ([`main`]). A connection goes over a flow of the direct path with a contract of its own,
//! or over a socket of the kernel.
//!
//! Each end accepts or connects, and sends or receives; both are chosen apart. A sender waits for
//! the line `go` on standard input, sends for some time, and waits until the receiver has ended the
//! connection. JSON lines go out on standard output: `{"ready": true}` when the sockets are open
//! (and a connecting end has its connections), for each received stream a [`Received`], and from a
//! sender `{"sent": [bytes, …], "processor_ns": N, "sleeps": N}` at the end, with the processor
//! time of the process while it sent, and how often it slept. The program fails if its arguments
//! are invalid, a flow is not granted, a connection fails, or a stream has other content.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use netnice_core::contract::Contract;
use netnice_stack::udp::{Buffers, UdpOptions};
use netnice_stack::{Program, RuntimeDir};
use quinn::{AsyncUdpSocket, ClientConfig, Connection, Endpoint, EndpointConfig, Runtime};
use quinn::{ServerConfig, TokioRuntime, TransportConfig, VarInt};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use self::flow_socket::{FlowSocket, Flows, sending_buffers};
use self::paced_socket::{FixedWindow, Pacing, burst};
use super::delayed_socket::DelayedSocket;
use super::fetch::end_with_input;
use crate::sys;

// The socket of the example of netnice-stack.
#[allow(dead_code, reason = "the lab uses a part of it")]
#[path = "../../../stack/examples/quic/flow_socket.rs"]
mod flow_socket;
// The socket of the example of netnice-stack with the pacer of netnice-core.
#[path = "../../../stack/examples/quic/paced_socket.rs"]
mod paced_socket;

/// The arguments of `netnice-lab traffic quic-flows`.
#[derive(Debug, Clone, clap::Args)]
pub struct QuicFlowsArgs {
    /// Connect to the other end.
    #[arg(long, required_unless_present = "accept", conflicts_with = "accept")]
    connect: bool,
    /// Accept connections.
    #[arg(long)]
    accept: bool,
    /// Send for so many milliseconds; without it the program receives.
    #[arg(long)]
    send_ms: Option<u64>,
    /// The local endpoint. Flows have this port and those that follow it.
    #[arg(long)]
    local: SocketAddr,
    /// The other end. Not needed to accept on a socket of the kernel.
    #[arg(long)]
    remote: Option<SocketAddr>,
    /// A flow with this contract, and so on; an empty one is best effort. Without it the program
    /// uses one socket of the kernel.
    #[arg(long)]
    contract: Vec<String>,
    /// On a socket of the kernel: pace by this `cell` contract, with the pacer of netnice-core.
    #[arg(long, conflicts_with = "contract")]
    pace: Option<String>,
    /// With `--pace`: datagrams that leave together, at most; the default depends on the rate.
    #[arg(long, requires = "pace")]
    burst: Option<usize>,
    /// The congestion window in bytes, which then does not change.
    #[arg(long)]
    window: Option<u64>,
    /// On a socket of the kernel without `--pace`: delay what this end sends.
    #[arg(long, conflicts_with_all = ["contract", "pace"])]
    delay_ms: Option<u64>,
    /// The daemon's folder.
    #[arg(long)]
    runtime_dir: Option<PathBuf>,
    /// The file for the certificate (DER) of the end that accepts.
    #[arg(long)]
    certificate: PathBuf,
}

/// What one stream delivered.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Received {
    /// The number of the sender's flow.
    pub stream: u64,
    /// Bytes of the content, all of which were right.
    pub bytes: u64,
    /// Time (wall clock, ns) and bytes until then, every 10 ms or less often.
    pub samples: Vec<(u64, u64)>,
}

impl Received {
    /// Bits per second from `begin` to `end` (wall clock, ns): between the first samples at or
    /// after these times. Fails if the stream ended before.
    pub fn rate(&self, begin: u64, end: u64) -> Result<f64> {
        let at = |time: u64| {
            let found = self.samples.iter().find(|(at, _)| *at >= time);
            found.with_context(|| format!("stream {} ended early", self.stream))
        };
        let ((from, before), (to, after)) = (at(begin)?, at(end)?);
        ensure!(to > from, "stream {} has one sample only", self.stream);
        Ok((after - before) as f64 * 8e9 / (to - from) as f64)
    }
}

/// Runs the program to its end; a receiver ends the process at the end of standard input. Fails as
/// the module says.
pub fn main(args: &QuicFlowsArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run(args))
}

async fn run(args: &QuicFlowsArgs) -> Result<()> {
    let ends = Ends::open(args).await?;
    let config = match args.accept {
        true => Handshake::Accepts(server_config(&args.certificate)?),
        false => Handshake::Connects(client_config(&args.certificate)?),
    };
    let endpoints = ends.endpoints(&config)?;
    if args.accept {
        println!("{}", serde_json::json!({"ready": true}));
    }
    match args.send_ms {
        Some(time) => {
            let connections = connections(args, &ends, &endpoints, &config).await?;
            send_all(args, connections, Duration::from_millis(time)).await?;
        }
        None => receive_all(args, &ends, &endpoints, &config).await?,
    }
    for endpoint in &endpoints {
        endpoint.wait_idle().await;
    }
    for flow in &ends.flows {
        flow.drain().await?;
    }
    Ok(())
}

/// The sockets: flows, or one of the kernel.
struct Ends {
    /// Wakes the flows.
    waker: Option<Flows>,
    flows: Vec<Arc<FlowSocket>>,
    kernel: Option<Arc<dyn AsyncUdpSocket>>,
    /// The pacer of the kernel's socket.
    pacing: Option<Pacing>,
    window: Option<u64>,
}

/// What an end does to get connections.
enum Handshake {
    Accepts(ServerConfig),
    Connects(ClientConfig),
}

impl Ends {
    async fn open(args: &QuicFlowsArgs) -> Result<Ends> {
        if args.contract.is_empty() {
            let socket = std::net::UdpSocket::bind(args.local)
                .with_context(|| format!("cannot bind {}", args.local))?;
            // Several connections share it. The kernel drops what exceeds it while the program does
            // not run.
            rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER)?;
            let (pacing, kernel) = match &args.pace {
                Some(contract) => {
                    let contract: Contract = format!("cell {contract}").parse()?;
                    let cell = contract.cell().context("--pace needs a cell contract")?;
                    let pacing = Pacing::new()?;
                    let burst = args.burst.unwrap_or_else(|| burst(cell.pcr()));
                    let socket = pacing.socket(socket, cell, burst)?;
                    (Some(pacing), socket as Arc<dyn AsyncUdpSocket>)
                }
                None => (None, kernel_socket(args, socket)?),
            };
            return Ok(Ends {
                waker: None,
                flows: Vec::new(),
                kernel: Some(kernel),
                pacing,
                window: args.window,
            });
        }
        let remote = args.remote.context("flows need --remote")?;
        let mut options = Vec::new();
        let mut bytes = 0;
        for (number, contract) in args.contract.iter().enumerate() {
            let mut local = args.local;
            local.set_port(local.port() + number as u16);
            let one = flow_options(local, remote, contract)?;
            bytes += one.buffers.region_bytes()?;
            options.push(one);
        }
        let variable = std::env::var_os(RuntimeDir::VARIABLE);
        let folder = RuntimeDir::choose(args.runtime_dir.clone(), variable);
        let program = Program::attach(&folder, None, options.len() as u32, bytes)?;
        let waker = Flows::new(program)?;
        let mut flows = Vec::new();
        for one in options {
            flows.push(waker.open(one).await.context("cannot open a flow")?);
        }
        Ok(Ends {
            waker: Some(waker),
            flows,
            kernel: None,
            pacing: None,
            window: args.window,
        })
    }

    /// An endpoint for each socket.
    fn endpoints(&self, handshake: &Handshake) -> Result<Vec<Endpoint>> {
        debug_assert_eq!(self.waker.is_some(), self.kernel.is_none());
        debug_assert!(self.pacing.is_none() || self.kernel.is_some());
        let flows = self
            .flows
            .iter()
            .map(|flow| flow.clone() as Arc<dyn AsyncUdpSocket>);
        let sockets = flows.chain(self.kernel.iter().cloned());
        let made = sockets.enumerate().map(|(number, socket)| {
            let server = match handshake {
                Handshake::Accepts(server) => {
                    let mut server = server.clone();
                    server.transport_config(Arc::new(self.transport(number)));
                    Some(server)
                }
                Handshake::Connects(_) => None,
            };
            let runtime: Arc<dyn Runtime> = match &self.pacing {
                Some(pacing) => pacing.runtime(),
                None => Arc::new(TokioRuntime),
            };
            let config = EndpointConfig::default();
            Endpoint::new_with_abstract_socket(config, server, socket, runtime)
        });
        Ok(made.collect::<std::io::Result<_>>()?)
    }

    /// The parameters of connections over the socket of this number.
    fn transport(&self, number: usize) -> TransportConfig {
        let mut transport = TransportConfig::default();
        transport.max_idle_timeout(Some(VarInt::from_u32(IDLE_TIMEOUT).into()));
        // What waits in it when the sender's time is over is sent all the same.
        transport.send_window(if self.flows.is_empty() {
            SEND_WINDOW
        } else {
            SEND_WINDOW / 4
        });
        if let Some(window) = self.window {
            transport.congestion_controller_factory(Arc::new(FixedWindow(window)));
        }
        if let Some(flow) = self.flows.get(number) {
            flow.limit_mtu(&mut transport);
        }
        transport
    }
}

/// A socket of the kernel without a pacer of its own.
fn kernel_socket(
    args: &QuicFlowsArgs,
    socket: std::net::UdpSocket,
) -> std::io::Result<Arc<dyn AsyncUdpSocket>> {
    match args.delay_ms {
        Some(delay) => Ok(Arc::new(DelayedSocket::new(
            socket,
            Duration::from_millis(delay),
        )?)),
        None => TokioRuntime.wrap_udp_socket(socket),
    }
}

/// One connection over each endpoint.
async fn connections(
    args: &QuicFlowsArgs,
    ends: &Ends,
    endpoints: &[Endpoint],
    handshake: &Handshake,
) -> Result<Vec<Connection>> {
    let mut made = Vec::new();
    for (number, endpoint) in endpoints.iter().enumerate() {
        made.push(match handshake {
            Handshake::Accepts(_) => {
                let incoming = endpoint.accept().await.context("the endpoint is closed")?;
                incoming.await?
            }
            Handshake::Connects(config) => {
                let remote = args.remote.context("--connect needs --remote")?;
                let mut config = config.clone();
                config.transport_config(Arc::new(ends.transport(number)));
                let connecting = endpoint.connect_with(config, remote, NAME)?;
                connecting
                    .await
                    .with_context(|| format!("cannot connect to {remote}"))?
            }
        });
    }
    if args.connect {
        println!("{}", serde_json::json!({"ready": true}));
    }
    Ok(made)
}

/// Sends on all connections at the same time, and prints the bytes of each.
async fn send_all(
    args: &QuicFlowsArgs,
    connections: Vec<Connection>,
    time: Duration,
) -> Result<()> {
    let mut line = String::new();
    let go = tokio::task::spawn_blocking(move || std::io::stdin().read_line(&mut line));
    if go.await?? == 0 {
        bail!("the input ended before the line `go`");
    }
    let before = processor_use()?;
    let mut sending = JoinSet::new();
    for (number, connection) in connections.into_iter().enumerate() {
        sending.spawn(send(number as u64, connection, time));
    }
    let mut sent = vec![0; args.contract.len().max(1)];
    while let Some(done) = sending.join_next().await {
        let (number, bytes) = done??;
        sent[number as usize] = bytes;
    }
    let after = processor_use()?;
    let report = serde_json::json!({
        "sent": sent,
        "processor_ns": after.0 - before.0,
        "sleeps": after.1 - before.1,
    });
    println!("{report}");
    Ok(())
}

/// Processor time of this process in ns, and how often it slept.
fn processor_use() -> Result<(u64, u64)> {
    let used = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF)?;
    let parts = [used.user_time(), used.system_time()];
    let ns = |time: &nix::sys::time::TimeVal| (time.tv_sec() * 1_000_000 + time.tv_usec()) * 1000;
    let time = parts.iter().map(ns).sum::<i64>() as u64;
    Ok((time, used.voluntary_context_switches() as u64))
}

async fn send(number: u64, connection: Connection, time: Duration) -> Result<(u64, u64)> {
    let mut to = connection.open_uni().await?;
    to.write_all(&number.to_be_bytes()).await?;
    let content = content(number, BLOCK);
    let (end, mut sent) = (Instant::now() + time, 0);
    while Instant::now() < end {
        to.write_all(&content).await?;
        sent += content.len() as u64;
    }
    to.finish()?;
    // The receiver closes the connection when it has everything.
    match connection.closed().await {
        quinn::ConnectionError::ApplicationClosed(_) => Ok((number, sent)),
        error => Err(error).context("the receiver did not get everything"),
    }
}

/// Receives a stream from each connection, and prints what it delivered. A connecting end has one
/// connection; an accepting end goes on until the end of standard input.
async fn receive_all(
    args: &QuicFlowsArgs,
    ends: &Ends,
    endpoints: &[Endpoint],
    handshake: &Handshake,
) -> Result<()> {
    if args.connect {
        for connection in connections(args, ends, endpoints, handshake).await? {
            let received = receive(connection).await?;
            println!("{}", serde_json::to_string(&received)?);
        }
        return Ok(());
    }
    end_with_input();
    let [endpoint] = endpoints else {
        bail!("an end that accepts and receives has one socket");
    };
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            let received = async { receive(incoming.await?).await };
            match received.await {
                Ok(received) => println!("{}", serde_json::json!(received)),
                Err(error) => println!("{}", serde_json::json!({"failed": format!("{error:#}")})),
            }
        });
    }
    Ok(())
}

async fn receive(connection: Connection) -> Result<Received> {
    let mut from = connection.accept_uni().await?;
    let mut number = [0; 8];
    from.read_exact(&mut number).await?;
    let mut received = Received {
        stream: u64::from_be_bytes(number),
        bytes: 0,
        samples: Vec::new(),
    };
    let content = content(received.stream, BLOCK + PERIOD);
    let mut due = 0;
    while let Some(chunk) = from.read_chunk(BLOCK, true).await? {
        let begin = received.bytes as usize % PERIOD;
        if chunk.bytes != content[begin..begin + chunk.bytes.len()] {
            let (stream, bytes) = (received.stream, received.bytes);
            bail!("stream {stream}: wrong content behind byte {bytes}");
        }
        received.bytes += chunk.bytes.len() as u64;
        let now = sys::now_ns();
        if now >= due {
            received.samples.push((now, received.bytes));
            due = now + 10_000_000;
        }
    }
    connection.close(VarInt::from_u32(0), b"done");
    Ok(received)
}

/// The content of a stream; it repeats after [`PERIOD`] bytes.
fn content(stream: u64, bytes: usize) -> Vec<u8> {
    let byte = |at: usize| (at % PERIOD) as u8 ^ stream as u8;
    (0..bytes).map(byte).collect()
}

/// A flow with sending buffers for 40 ms at the contract's rate.
fn flow_options(local: SocketAddr, remote: SocketAddr, contract: &str) -> Result<UdpOptions> {
    let cell = match contract {
        "" => None,
        text => text.parse::<Contract>()?.cell(),
    };
    let sending = match cell {
        Some(cell) => sending_buffers(cell.rate().bits_per_second(), 40),
        None => Buffers::default().sending,
    };
    Ok(UdpOptions {
        local,
        contract: (!contract.is_empty()).then(|| contract.to_owned()),
        buffers: Buffers {
            sending,
            ..Buffers::default()
        },
        ..UdpOptions::to(remote)
    })
}

/// Writes a new certificate to the file, whole or not at all.
fn server_config(file: &PathBuf) -> Result<ServerConfig> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    std::fs::write(file, made.cert.der())
        .with_context(|| format!("cannot write {}", file.display()))?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    Ok(ServerConfig::with_single_cert(
        vec![made.cert.der().clone()],
        key.into(),
    )?)
}

/// Trusts only the certificate in the file.
fn client_config(file: &PathBuf) -> Result<ClientConfig> {
    let certificate =
        std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut trusted = RootCertStore::empty();
    trusted.add(CertificateDer::from(certificate))?;
    Ok(ClientConfig::with_root_certificates(Arc::new(trusted))?)
}

/// The server's name in its certificate.
const NAME: &str = "netnice-lab";
/// The content of a stream repeats after so many bytes; a prime below 256.
const PERIOD: usize = 251;
/// Bytes per write, and the most per read.
const BLOCK: usize = PERIOD * 64;
/// Receive buffer of a kernel socket in bytes, as the kernel accounts for packets: half a second of
/// 50 Mbit/s.
const RECEIVE_BUFFER: usize = 8 << 20;
/// Bytes that a sender keeps until they are acknowledged: more than a window of these tests, at
/// most 20 ms of 200 Mbit/s twice.
const SEND_WINDOW: u64 = 1 << 20;
/// A connection without packets ends after so many milliseconds.
const IDLE_TIMEOUT: u32 = 10_000;
