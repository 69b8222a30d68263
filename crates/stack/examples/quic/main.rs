//! QUIC by quinn over flows of the direct path: each connection is a flow with its own contract.
//!
//! ```text
//! quic serve ADDRESS:PORT CERTIFICATE
//! quic send ADDRESS:PORT CERTIFICATE SECONDS CONTRACT...
//! quic paced ADDRESS:PORT CERTIFICATE SECONDS CONTRACT
//! ```
//! `serve` accepts connections on a socket of the kernel, and writes its new certificate to the
//! file CERTIFICATE. `send` opens a flow and a connection for each CONTRACT (such as `cell
//! pcr=10mbit,cdvt=500us`; an empty one is best effort), sends on all of them for so many seconds,
//! and prints what the server received of each. It needs a netnice daemon with one managed link,
//! whose folder is in NETNICE_RUNTIME_DIR or /run/netnice:
//!
//! ```text
//! netnice link eth0 --rate 100mbit
//! cargo run -p netnice-stack --example quic -- serve 192.0.2.2:4433 /tmp/certificate
//! cargo run -p netnice-stack --example quic -- send 192.0.2.2:4433 /tmp/certificate 5 \
//!     'cell pcr=10mbit,cdvt=500us' 'cell pcr=1mbit,cdvt=1ms' ''
//! ```
//! `paced` sends on one connection over a socket of the kernel, and the pacer of netnice-core
//! decides when each datagram leaves. It needs no daemon, and a `cell` contract.
//!
//! The modules `flow_socket` and `paced_socket` are for other programs to copy. The example fails
//! with the reason if its arguments are invalid, if the daemon grants no flow, or if a connection
//! fails.

mod flow_socket;
mod paced_socket;

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flow_socket::{Flows, sending_buffers};
use netnice_core::contract::Contract;
use netnice_stack::udp::{Buffers, UdpOptions};
use netnice_stack::{Program, RuntimeDir};
use paced_socket::{FixedWindow, Pacing, burst};
use quinn::{AsyncUdpSocket, ClientConfig, Endpoint, EndpointConfig, Incoming, ServerConfig};
use quinn::{Runtime, TokioRuntime, TransportConfig, VarInt};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["serve", listen, certificate] => serve(listen.parse()?, Path::new(certificate)).await,
        ["send", server, certificate, seconds, contracts @ ..] if !contracts.is_empty() => {
            let time = Duration::from_secs(seconds.parse()?);
            let config = client_config(Path::new(certificate))?;
            send(server.parse()?, config, time, contracts).await
        }
        ["paced", server, certificate, seconds, contract] => {
            let time = Duration::from_secs(seconds.parse()?);
            let config = client_config(Path::new(certificate))?;
            send_paced(server.parse()?, config, time, contract).await
        }
        _ => Err("arguments: serve ADDRESS:PORT CERTIFICATE, \
                  send ADDRESS:PORT CERTIFICATE SECONDS CONTRACT..., or \
                  paced ADDRESS:PORT CERTIFICATE SECONDS CONTRACT"
            .into()),
    }
}

/// Opens the flows, and sends on all connections at the same time.
async fn send(
    server: SocketAddr,
    config: ClientConfig,
    time: Duration,
    contracts: &[&str],
) -> Result<(), Failure> {
    let options: Vec<UdpOptions> = contracts
        .iter()
        .map(|contract| options(server, contract))
        .collect::<Result<_, _>>()?;
    let mut bytes = 0;
    for one in &options {
        bytes += one.buffers.region_bytes()?;
    }
    let folder = RuntimeDir::choose(None, std::env::var_os(RuntimeDir::VARIABLE));
    let flows = Flows::new(Program::attach(
        &folder,
        None,
        contracts.len() as u32,
        bytes,
    )?)?;
    let mut sending = tokio::task::JoinSet::new();
    for (contract, options) in contracts.iter().zip(options) {
        let socket = flows.open(options).await?;
        let contract = (*contract).to_owned();
        let config = config.clone();
        sending.spawn(async move {
            let received = send_on(socket, config, time).await?;
            Ok::<_, Failure>((contract, received))
        });
    }
    while let Some(done) = sending.join_next().await {
        let (contract, received) = done??;
        let rate = received as f64 * 8.0 / time.as_secs_f64() / 1e6;
        println!("{contract:>30}: {received} bytes in {time:?}, {rate:.2} Mbit/s");
    }
    Ok(())
}

/// The options of a flow: sending buffers for 40 ms at the contract's rate, which the program may
/// need until its next turn on the processor.
fn options(server: SocketAddr, contract: &str) -> Result<UdpOptions, Failure> {
    let cell = match contract {
        "" => None,
        text => text.parse::<Contract>()?.cell(),
    };
    let sending = match cell {
        Some(cell) => sending_buffers(cell.rate().bits_per_second(), 40),
        None => Buffers::default().sending,
    };
    Ok(UdpOptions {
        contract: (!contract.is_empty()).then(|| contract.to_owned()),
        buffers: Buffers {
            sending,
            ..Buffers::default()
        },
        ..UdpOptions::to(server)
    })
}

/// Sends over a flow for some time. Returns how many bytes the server received.
async fn send_on(
    socket: Arc<flow_socket::FlowSocket>,
    mut config: ClientConfig,
    time: Duration,
) -> Result<u64, Failure> {
    let mut transport = TransportConfig::default();
    socket.limit_mtu(&mut transport);
    config.transport_config(Arc::new(transport));
    let runtime = Arc::new(TokioRuntime);
    let received = send_for(socket.clone(), runtime, config, socket.remote(), time).await?;
    socket.drain().await?;
    if socket.too_long() > 0 {
        let number = socket.too_long();
        println!("{number} datagrams were longer than the path MTU");
    }
    Ok(received)
}

/// Sends on a socket of the kernel, by a contract.
async fn send_paced(
    server: SocketAddr,
    mut config: ClientConfig,
    time: Duration,
    contract: &str,
) -> Result<(), Failure> {
    let parsed: Contract = contract.parse()?;
    let cell = parsed.cell().ok_or("the pacer needs a cell contract")?;
    let local: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let pacing = Pacing::new()?;
    let socket = UdpSocket::bind((local, 0))?;
    let socket = pacing.socket(socket, cell, burst(cell.pcr()))?;
    // The rate is reserved, so losses do not lower it; a window for round trips of up to 100 ms.
    let window = cell.rate().bytes_per_second() / 10;
    let mut transport = TransportConfig::default();
    transport.congestion_controller_factory(Arc::new(FixedWindow(window.max(16_384))));
    config.transport_config(Arc::new(transport));
    let received = send_for(socket, pacing.runtime(), config, server, time).await?;
    let rate = received as f64 * 8.0 / time.as_secs_f64() / 1e6;
    println!("{contract:>30}: {received} bytes in {time:?}, {rate:.2} Mbit/s");
    Ok(())
}

/// Sends on one connection for some time. Returns how many bytes the server received.
async fn send_for(
    socket: Arc<dyn AsyncUdpSocket>,
    runtime: Arc<dyn Runtime>,
    config: ClientConfig,
    server: SocketAddr,
    time: Duration,
) -> Result<u64, Failure> {
    let endpoint = EndpointConfig::default();
    let endpoint = Endpoint::new_with_abstract_socket(endpoint, None, socket, runtime)?;
    let connection = endpoint.connect_with(config, server, NAME)?.await?;
    let (mut to, mut from) = connection.open_bi().await?;
    let block = [0; 16 * 1024];
    let begin = Instant::now();
    while begin.elapsed() < time {
        to.write_all(&block).await?;
    }
    to.finish()?;
    let mut received = [0; 8];
    from.read_exact(&mut received).await?;
    connection.close(VarInt::from_u32(0), b"done");
    endpoint.wait_idle().await;
    Ok(u64::from_be_bytes(received))
}

/// Accepts connections for ever; counts what comes on each stream, and answers with the number.
async fn serve(listen: SocketAddr, certificate: &Path) -> Result<(), Failure> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    std::fs::write(certificate, made.cert.der())?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::with_single_cert(vec![made.cert.der().clone()], key.into())?;
    let endpoint = Endpoint::server(config, listen)?;
    println!("listening at {}", endpoint.local_addr()?);
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            let from = incoming.remote_address();
            if let Err(error) = count(incoming).await {
                println!("{from}: {error}");
            }
        });
    }
    Ok(())
}

async fn count(incoming: Incoming) -> Result<(), Failure> {
    let connection = incoming.await?;
    let (mut to, mut from) = connection.accept_bi().await?;
    let mut received = 0;
    while let Some(chunk) = from.read_chunk(64 * 1024, true).await? {
        received += chunk.bytes.len() as u64;
    }
    to.write_all(&received.to_be_bytes()).await?;
    to.finish()?;
    connection.closed().await;
    Ok(())
}

/// The client trusts only the certificate in the file.
fn client_config(certificate: &Path) -> Result<ClientConfig, Failure> {
    let certificate = std::fs::read(certificate)
        .map_err(|error| format!("cannot read {}: {error}", certificate.display()))?;
    let mut trusted = RootCertStore::empty();
    trusted.add(CertificateDer::from(certificate))?;
    Ok(ClientConfig::with_root_certificates(Arc::new(trusted))?)
}

/// The server's name in its certificate.
const NAME: &str = "netnice-example";
