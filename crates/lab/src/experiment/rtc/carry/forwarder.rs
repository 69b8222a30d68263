//! Forwards what an unmodified program at the client sends to the loopback address there, to the
//! loopback address of the server. [`datagrams`] passes datagrams over the network without netnice,
//! for comparison with `netnice channel carry`; [`connections`] passes TCP connections beside the
//! network. A start fails if a socket or a thread cannot be made. A datagram that cannot be sent is
//! lost.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::worker::Worker;
use crate::world::Host;

/// Passes datagrams that arrive at `near` of the client to `between` of the server and from there
/// to `far`, and answers back, until the value is dropped.
pub(super) fn datagrams(
    (client, near): (&Host, SocketAddr),
    (server, between): (&Host, SocketAddr),
    far: SocketAddr,
) -> Result<[Worker<()>; 2]> {
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let first = client
        .ns
        .enter(|| Ok((bound(near)?, connected(any, between)?)))?;
    let second = server
        .ns
        .enter(|| Ok((bound(between)?, connected(any, far)?)))?;
    let start = |(near, far): (UdpSocket, UdpSocket)| {
        Worker::start("datagrams", move |ends| {
            pass_both(&near, &far, ends);
            Ok(())
        })
    };
    Ok([start(first)?, start(second)?])
}

/// Passes TCP connections from `port` of the client's loopback address to that of the server, until
/// the value is dropped. They do not use the network between the hosts.
pub(super) fn connections(client: &Host, server: &Host, port: u16) -> Result<Worker<()>> {
    let local = SocketAddr::from(([127, 0, 0, 1], port));
    let listener = client.ns.enter(|| Ok(TcpListener::bind(local)?))?;
    listener.set_nonblocking(true)?;
    let server = server.ns.handle();
    Worker::start("connections", move |ends| {
        // The thread's further sockets are the server's.
        server.enter_thread()?;
        while !ends.load(Relaxed) {
            match listener.accept() {
                Ok((near, _)) => {
                    near.set_nonblocking(false)?;
                    let far = TcpStream::connect(local).context("the server's program")?;
                    let (near_too, far_too) = (near.try_clone()?, far.try_clone()?);
                    std::thread::spawn(move || copy(near, far));
                    std::thread::spawn(move || copy(far_too, near_too));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(LOOK);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    })
}

fn bound(at: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(at).with_context(|| format!("UDP {at}"))?;
    socket.set_read_timeout(Some(LOOK))?;
    Ok(socket)
}

fn connected(from: SocketAddr, to: SocketAddr) -> Result<UdpSocket> {
    let socket = bound(from)?;
    socket.connect(to)?;
    Ok(socket)
}

/// Passes datagrams that arrive at `near` to the peer of `far`, and those that arrive at `far` to
/// where the last one at `near` came from.
fn pass_both(near: &UdpSocket, far: &UdpSocket, ends: &AtomicBool) {
    let program = Mutex::new(None);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; LONGEST];
            while !ends.load(Relaxed) {
                if let Ok((length, from)) = near.recv_from(&mut buffer) {
                    *program.lock().unwrap_or_else(PoisonError::into_inner) = Some(from);
                    let _ = far.send(&buffer[..length]);
                }
            }
        });
        let mut buffer = [0; LONGEST];
        while !ends.load(Relaxed) {
            let Ok(length) = far.recv(&mut buffer) else {
                continue;
            };
            let to = *program.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(to) = to {
                let _ = near.send_to(&buffer[..length], to);
            }
        }
    });
}

/// Copies until the end of `from`, and ends `to`.
fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

/// The longest datagram.
const LONGEST: usize = 65_535;
/// How often the threads look whether they must end.
const LOOK: Duration = Duration::from_millis(20);
