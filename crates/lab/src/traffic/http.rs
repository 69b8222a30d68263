//! Two traffic programs that use HTTP/1.1 by the library hyper, over TCP of the direct path or over
//! sockets of the kernel, with TLS by the library rustls or without: a server of files ([`serve`]),
//! and a client that fetches one file ([`fetch`]).
//!
//! Arguments come in, and JSON lines go out on standard output. The server answers `GET /N` with a
//! file of *N* bytes of the pattern ([`fill`]), and every other request
//! with 404. With TLS it makes a certificate for itself when it starts and writes it to a file; the
//! client trusts only the certificate in that file. [`serve`] fails if it cannot listen or write
//! the file. [`fetch`] fails if it cannot read the file, if the connection cannot be made or
//! breaks, or if the file is not the pattern with the expected length.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use netnice_stack::tcp::{ListenOptions, Listener, TcpOptions};
use netnice_stack::{Program, RuntimeDir};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::direct_tcp::{fill, first_wrong};
use super::fetch::{BLOCK, end_with_input};

/// The arguments of `netnice-lab traffic http-serve`.
#[derive(Debug, Clone, clap::Args)]
pub struct ServeArgs {
    /// Where to listen.
    #[arg(long)]
    listen: SocketAddr,
    /// Use TLS, and write the server's certificate (PEM) to this file.
    #[arg(long)]
    certificate: Option<PathBuf>,
    #[command(flatten)]
    path: PathArgs,
}

/// The arguments of `netnice-lab traffic http-fetch`.
#[derive(Debug, Clone, clap::Args)]
pub struct FetchArgs {
    /// The server.
    #[arg(long)]
    connect: SocketAddr,
    /// Use TLS, and trust the certificate (PEM) in this file.
    #[arg(long)]
    certificate: Option<PathBuf>,
    /// The path of the file in the URL.
    #[arg(long)]
    file: String,
    /// Bytes of the file.
    #[arg(long)]
    bytes: u64,
    #[command(flatten)]
    path: PathArgs,
}

/// By which TCP.
#[derive(Debug, Clone, clap::Args)]
struct PathArgs {
    /// Use TCP of the kernel, in place of that of the direct path.
    #[arg(long)]
    kernel: bool,
    /// The contract of the flow; without it best effort.
    #[arg(long, conflicts_with = "kernel")]
    contract: Option<String>,
    /// The daemon's folder.
    #[arg(long, conflicts_with = "kernel")]
    runtime_dir: Option<PathBuf>,
}

impl PathArgs {
    fn folder(&self) -> RuntimeDir {
        let from_environment = std::env::var_os(RuntimeDir::VARIABLE);
        RuntimeDir::choose(self.runtime_dir.clone(), from_environment)
    }
}

/// Serves files until the end of standard input, then ends the process. Returns only if it cannot
/// listen, or cannot write the certificate.
pub fn serve(args: &ServeArgs) -> Result<()> {
    let tls = args.certificate.as_deref().map(certify).transpose()?;
    runtime()?.block_on(async {
        let listener = AnyListener::open(args).await?;
        println!("{}", serde_json::json!({"ready": true}));
        end_with_input();
        loop {
            let stream = listener.accept().await?;
            tokio::spawn(serve_connection(stream, tls.clone()));
        }
    })
}

/// A certificate for the server, written to a file, and the configuration that uses it.
fn certify(file: &Path) -> Result<TlsAcceptor> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    std::fs::write(file, made.cert.pem())
        .with_context(|| format!("cannot write {}", file.display()))?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![made.cert.der().clone()], key.into())?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// A connection of either TCP.
trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// A listener of either TCP.
enum AnyListener {
    Direct(Listener),
    Kernel(TcpListener),
}

impl AnyListener {
    async fn open(args: &ServeArgs) -> Result<AnyListener> {
        if args.path.kernel {
            let listener = TcpListener::bind(args.listen).await;
            return Ok(AnyListener::Kernel(listener.context("cannot listen")?));
        }
        let options = ListenOptions {
            contract: args.path.contract.clone(),
            ..ListenOptions::at(args.listen)
        };
        let program = Program::attach(&args.path.folder(), None, 2, options.region_bytes()?);
        let program = program.context("cannot attach to the direct path")?;
        let listener = program.listen(&options).context("cannot listen")?;
        Ok(AnyListener::Direct(listener))
    }

    async fn accept(&self) -> Result<Box<dyn Connection>> {
        Ok(match self {
            AnyListener::Direct(listener) => Box::new(listener.accepted().await?),
            AnyListener::Kernel(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

/// Serves the requests of one connection until it ends.
async fn serve_connection(stream: Box<dyn Connection>, tls: Option<TlsAcceptor>) -> Result<()> {
    let stream: Box<dyn Connection> = match tls {
        Some(tls) => Box::new(tls.accept(stream).await?),
        None => stream,
    };
    let connection = hyper::server::conn::http1::Builder::new();
    let answer = service_fn(|request: Request<Incoming>| async move {
        let name = request.uri().path().trim_start_matches('/');
        let mut response = Response::new(Pattern::of(name.parse().unwrap_or(0)));
        if name.parse::<u64>().is_err() {
            *response.status_mut() = StatusCode::NOT_FOUND;
        }
        Ok::<_, Infallible>(response)
    });
    Ok(connection
        .serve_connection(TokioIo::new(stream), answer)
        .await?)
}

/// A body with so many bytes of the pattern.
struct Pattern {
    position: u64,
    bytes: u64,
}

impl Pattern {
    fn of(bytes: u64) -> Pattern {
        Pattern { position: 0, bytes }
    }
}

impl Body for Pattern {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let left = self.bytes - self.position;
        if left == 0 {
            return Poll::Ready(None);
        }
        let mut block = vec![0; left.min(BLOCK as u64) as usize];
        fill(&mut block, self.position);
        self.position += block.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(block.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.position == self.bytes
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes - self.position)
    }
}

/// Fetches one file and prints `{"received": …}`, its bytes. Fails as the module says.
pub fn fetch(args: &FetchArgs) -> Result<()> {
    runtime()?.block_on(async {
        let stream = connect(args).await?;
        let connection = hyper::client::conn::http1::handshake(TokioIo::new(stream));
        let (mut sender, connection) = connection.await?;
        let ended = tokio::spawn(connection);
        let request = Request::get(&args.file)
            .header("host", NAME)
            .header("connection", "close")
            .body(Pattern::of(0))?;
        let response = sender.send_request(request).await?;
        ensure!(response.status() == StatusCode::OK, "{}", response.status());
        let mut body = response.into_body();
        let mut received = 0;
        while let Some(frame) = next_frame(&mut body).await {
            let frame = frame?;
            let data = frame.data_ref().map_or(&[][..], |data| data);
            if let Some(at) = first_wrong(data, received) {
                anyhow::bail!("a wrong byte at {at}");
            }
            received += data.len() as u64;
        }
        ensure!(
            received == args.bytes,
            "the server sent {received} of {} bytes",
            args.bytes
        );
        drop(sender);
        // A server that has closed resets a connection on which TLS still sends its end. Then the
        // last call of hyper fails, because the peer did not acknowledge everything.
        let _ = tokio::time::timeout(END_TIMEOUT, ended)
            .await
            .context("the connection does not end")??;
        println!("{}", serde_json::json!({"received": received}));
        Ok(())
    })
}

async fn next_frame(body: &mut Incoming) -> Option<hyper::Result<Frame<Bytes>>> {
    std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
}

async fn connect(args: &FetchArgs) -> Result<Box<dyn Connection>> {
    let stream: Box<dyn Connection> = if args.path.kernel {
        Box::new(TcpStream::connect(args.connect).await?)
    } else {
        let options = TcpOptions {
            contract: args.path.contract.clone(),
            ..TcpOptions::to(args.connect)
        };
        let bytes = options.buffers.region_bytes()?;
        let program = Program::attach(&args.path.folder(), None, 1, bytes);
        let program = program.context("cannot attach to the direct path")?;
        Box::new(program.connect(&options, None).context("cannot connect")?)
    };
    let Some(file) = &args.certificate else {
        return Ok(stream);
    };
    let certificate = CertificateDer::from_pem_file(file)
        .with_context(|| format!("cannot read {}", file.display()))?;
    let mut trusted = RootCertStore::empty();
    trusted.add(certificate)?;
    let config = ClientConfig::builder().with_root_certificates(trusted);
    let connector = TlsConnector::from(Arc::new(config.with_no_client_auth()));
    let stream = connector.connect(ServerName::try_from(NAME)?, stream);
    Ok(Box::new(stream.await.context("the TLS handshake failed")?))
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

/// The server's name in its certificate.
const NAME: &str = "netnice-lab";
/// Time for both ends to close the connection after the file.
const END_TIMEOUT: Duration = Duration::from_secs(30);
