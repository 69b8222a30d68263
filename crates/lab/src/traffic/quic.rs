//! Two traffic programs that use QUIC (RFC 9000) by the library quinn: a server of files
//! ([`serve`]), and a client that fetches one file ([`fetch`]).
//!
//! Arguments come in, and JSON lines go out on standard output. The server makes a certificate for
//! itself when it starts and writes it to a file; the client trusts only the certificate in that
//! file. [`serve`] fails if it cannot listen or write the file. [`fetch`] fails if it cannot read
//! the file, if the connection cannot be made or breaks, or if it ends before all bytes have come.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use quinn::{ClientConfig, Endpoint, Incoming, ServerConfig};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use super::fetch::{BLOCK, end_with_input};

/// The arguments of `netnice-lab traffic quic-serve`.
#[derive(Debug, Clone, clap::Args)]
pub struct ServeArgs {
    /// Where to listen.
    #[arg(long)]
    listen: SocketAddr,
    /// The file for the server's certificate (DER).
    #[arg(long)]
    certificate: PathBuf,
}

/// The arguments of `netnice-lab traffic quic-fetch`.
#[derive(Debug, Clone, clap::Args)]
pub struct FetchArgs {
    /// The server.
    #[arg(long)]
    connect: SocketAddr,
    /// The file with the server's certificate (DER).
    #[arg(long)]
    certificate: PathBuf,
    /// Bytes of the file.
    #[arg(long)]
    bytes: u64,
}

/// Serves files of any size from memory, each on a stream that the client opens, until the end of
/// standard input; then ends the process. The first eight bytes on a stream are the size in bytes
/// (big-endian). Returns only if it cannot listen, or cannot write the certificate.
pub fn serve(args: &ServeArgs) -> Result<()> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    std::fs::write(&args.certificate, made.cert.der())
        .with_context(|| format!("cannot write {}", args.certificate.display()))?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::with_single_cert(vec![made.cert.der().clone()], key.into())?;
    runtime()?.block_on(async {
        let endpoint = Endpoint::server(config, args.listen)
            .with_context(|| format!("cannot listen at {}", args.listen))?;
        println!("{}", serde_json::json!({"ready": true}));
        end_with_input();
        while let Some(incoming) = endpoint.accept().await {
            tokio::spawn(serve_connection(incoming));
        }
        Ok(())
    })
}

/// Serves the files of one connection until it ends.
async fn serve_connection(incoming: Incoming) -> Result<()> {
    let connection = incoming.await?;
    loop {
        let (mut to, mut from) = connection.accept_bi().await?;
        let mut size = [0u8; 8];
        from.read_exact(&mut size).await?;
        let mut left = u64::from_be_bytes(size) as usize;
        let block = vec![0u8; BLOCK];
        while left > 0 {
            left -= to.write(&block[..left.min(BLOCK)]).await?;
        }
        to.finish()?;
    }
}

/// Fetches one file and prints `{"received": …}`, its bytes. Fails if the certificate cannot be
/// read, if the connection cannot be made or breaks, or if not exactly these bytes come.
pub fn fetch(args: &FetchArgs) -> Result<()> {
    let certificate = std::fs::read(&args.certificate)
        .with_context(|| format!("cannot read {}", args.certificate.display()))?;
    let mut trusted = RootCertStore::empty();
    trusted.add(CertificateDer::from(certificate))?;
    let config = ClientConfig::with_root_certificates(Arc::new(trusted))?;
    let from = match args.connect {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    runtime()?.block_on(async {
        let endpoint = Endpoint::client(from)?;
        let connecting = endpoint.connect_with(config, args.connect, NAME)?;
        let connection = connecting
            .await
            .with_context(|| format!("cannot connect to {}", args.connect))?;
        let (mut to, mut from) = connection.open_bi().await?;
        to.write_all(&args.bytes.to_be_bytes()).await?;
        to.finish()?;
        let mut received = 0;
        while let Some(chunk) = from.read_chunk(BLOCK, true).await? {
            received += chunk.bytes.len() as u64;
        }
        ensure!(
            received == args.bytes,
            "the server sent {received} of {} bytes",
            args.bytes
        );
        println!("{}", serde_json::json!({"received": received}));
        connection.close(0u32.into(), b"");
        endpoint.wait_idle().await;
        Ok(())
    })
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

/// The server's name in its certificate.
const NAME: &str = "netnice-lab";
