//! A process with many TCP connections that linger: closing the last descriptor of such a
//! connection blocks until the peer has read the sent data, for at most 600 s. The peer, which is
//! in the same process, never reads. The end of a process closes its connections without blocking.
//! But a daemon that then holds the last descriptor of such a connection would block when it closes
//! that descriptor. The number of connections comes in as an argument. The program fails if it
//! cannot raise its limit of open files or make a connection.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::{Domain, SockRef, Socket, Type};

/// The arguments of `netnice-lab storm lingering`.
#[derive(Debug, Clone, clap::Args)]
pub struct LingeringArgs {
    /// Number of connections.
    #[arg(long)]
    count: usize,
}

/// Makes the connections, prints `here`, and keeps the connections for 600 s, or until the process
/// is killed. Fails if the limit of open files cannot be raised, or if a connection cannot be made.
pub(super) fn main(args: &LingeringArgs) -> Result<()> {
    crate::sys::raise_file_limit()?;
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    listener.set_recv_buffer_size(LEAST)?;
    listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    listener.listen(1)?;
    let listener = TcpListener::from(listener);
    let mut kept = Vec::new();
    for _ in 0..args.count {
        kept.push(lingering(&listener)?);
    }
    println!("here");
    std::thread::sleep(LONG);
    Ok(())
}

/// Both ends of a new connection, whose buffers are full.
fn lingering(listener: &TcpListener) -> Result<(TcpStream, TcpStream)> {
    use std::io::Write;
    let mut near = TcpStream::connect(listener.local_addr()?).context("connect")?;
    let (far, _) = listener.accept()?;
    let socket = SockRef::from(&near);
    socket.set_send_buffer_size(LEAST)?;
    socket.set_linger(Some(LONG))?;
    near.set_nonblocking(true)?;
    while near.write(&[0; 4096]).is_ok() {}
    Ok((near, far))
}

/// The requested size of the buffers; the kernel raises it to its minimum.
const LEAST: usize = 1;
const LONG: Duration = Duration::from_secs(600);
