//! Two traffic programs: a server of files ([`serve`]), and a client that fetches a file
//! repeatedly, each time over a new connection, and prints the durations in ns ([`fetch`]).
//!
//! Arguments come in, and from standard input the number of fetches, one number a line; JSON lines
//! go out on standard output. [`serve`] fails if it cannot listen. [`fetch`] fails if it cannot
//! read standard input, if a line is no number, or if a fetch fails: the connection cannot be made,
//! or it ends or breaks before all bytes have come.

use std::io::{BufRead, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// The arguments of `netnice-lab traffic serve`.
#[derive(Debug, Clone, clap::Args)]
pub struct ServeArgs {
    /// Where to listen.
    #[arg(long)]
    listen: SocketAddr,
}

/// The arguments of `netnice-lab traffic fetch`.
#[derive(Debug, Clone, clap::Args)]
pub struct FetchArgs {
    /// The server.
    #[arg(long)]
    connect: SocketAddr,
    /// Bytes of the file.
    #[arg(long)]
    bytes: u64,
}

/// Serves files of any size from memory until the end of standard input, then ends the process. The
/// first eight bytes that a client sends are the size in bytes (big-endian). Returns only if it
/// cannot listen.
pub fn serve(args: &ServeArgs) -> Result<()> {
    let listener = TcpListener::bind(args.listen)
        .with_context(|| format!("cannot listen at {}", args.listen))?;
    println!("{}", serde_json::json!({"ready": true}));
    end_with_input();
    // Connections are served one at a time on this thread, so that its processor time is easy to
    // read.
    for connection in listener.incoming().flatten() {
        let _ = send_file(connection);
    }
    Ok(())
}

/// Ends the process at the end of its standard input.
pub(super) fn end_with_input() {
    std::thread::spawn(|| {
        while std::io::stdin()
            .lock()
            .read_line(&mut String::new())
            .is_ok_and(|n| n > 0)
        {}
        std::process::exit(0);
    });
}

fn send_file(mut connection: TcpStream) -> std::io::Result<()> {
    let mut size = [0u8; 8];
    connection.read_exact(&mut size)?;
    let mut left = u64::from_be_bytes(size) as usize;
    let block = vec![0u8; BLOCK];
    while left > 0 {
        left -= connection.write(&block[..left.min(BLOCK)])?;
    }
    Ok(())
}

/// Reads numbers from standard input; for each, fetches the file that many times and prints
/// `{"took_ns": […]}`. The time of a fetch begins when the connection is open. Returns at the end
/// of standard input. Fails if standard input cannot be read, if a line is no number, or if a fetch
/// fails.
pub fn fetch(args: &FetchArgs) -> Result<()> {
    println!("{}", serde_json::json!({"ready": true}));
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let times: u32 = line
            .trim()
            .parse()
            .with_context(|| format!("fetch expects a number, got `{line}`"))?;
        let took: Vec<u64> = (0..times)
            .map(|_| fetch_once(args))
            .collect::<Result<_>>()?;
        println!("{}", serde_json::json!({"took_ns": took}));
    }
    Ok(())
}

fn fetch_once(args: &FetchArgs) -> Result<u64> {
    let mut connection = TcpStream::connect(args.connect)
        .with_context(|| format!("cannot connect to {}", args.connect))?;
    let started = Instant::now();
    connection.write_all(&args.bytes.to_be_bytes())?;
    let mut block = vec![0u8; BLOCK];
    let mut got = 0u64;
    while got < args.bytes {
        match connection.read(&mut block)? {
            0 => bail!("the server closed after {got} of {} bytes", args.bytes),
            n => got += n as u64,
        }
    }
    Ok(started.elapsed().as_nanos() as u64)
}

/// Bytes per read or write call.
pub(super) const BLOCK: usize = 256 << 10;
