//! What the relay asks of the links ([`Interfaces`]): routes, attachments, held promises and flows;
//! [`Daemon`] asks netniced. All calls wait for the daemon, and fail as those of `netnice_stack`.

use std::net::IpAddr;
use std::time::Duration;

use netnice_core::units::Nanos;
use netnice_stack::udp::UdpOptions;
use netnice_stack::{Program, RuntimeDir, Socket, StackError, own, route_to};
use rustix::process::Pid;

/// The links of this host. The tests have others than the daemon's.
pub(super) trait Interfaces: Send + 'static {
    /// The name of the managed interface that a host is reached over.
    fn route(&mut self, to: IpAddr) -> Result<String, StackError>;

    /// Attaches to an interface, for so many flows with so many bytes of packet buffers.
    fn attach(&mut self, iface: &str, flows: u32, bytes: u64) -> Result<Program, StackError>;

    /// Holds a `channel` contract towards a host, with the shortest deadline that the link keeps.
    fn hold(
        &mut self,
        program: &Program,
        to: IpAddr,
        contract: &str,
    ) -> Result<HeldPromise, StackError>;

    /// Gives a thread of this process so much of the processor time that is reserved for it.
    fn reserve(&mut self, thread: Pid, time: Nanos) -> Result<(), StackError>;

    /// Opens a flow.
    fn open(&mut self, program: &Program, options: &UdpOptions) -> Result<Socket, StackError>;
}

/// A promise that is held for 5 s, or until a flow is opened with it.
pub(super) struct HeldPromise {
    /// Its number, for [`UdpOptions::hold`].
    pub(super) hold: u32,
    /// The contract with the deadline that is held, as text.
    pub(super) contract: String,
    /// The next hop to the host.
    pub(super) via: IpAddr,
    /// The address that packets to the host are sent from.
    pub(super) from: IpAddr,
    /// The path MTU to the host, in bytes.
    pub(super) mtu: u32,
    /// Dropping it releases the promise, unless it has ended. It can wait for the daemon.
    pub(super) _guard: Box<dyn Send>,
}

/// The links that the daemon of a runtime folder manages.
pub(super) struct Daemon(pub(super) RuntimeDir);

impl Interfaces for Daemon {
    fn route(&mut self, to: IpAddr) -> Result<String, StackError> {
        route_to(&self.0, to).map(|route| route.iface)
    }

    fn attach(&mut self, iface: &str, flows: u32, bytes: u64) -> Result<Program, StackError> {
        Program::attach(&self.0, Some(iface), flows, bytes)
    }

    fn hold(
        &mut self,
        program: &Program,
        to: IpAddr,
        contract: &str,
    ) -> Result<HeldPromise, StackError> {
        let held = program.hold(to, contract)?;
        Ok(HeldPromise {
            hold: held.number(),
            contract: held.contract().to_owned(),
            via: held.via(),
            from: held.from(),
            mtu: held.mtu(),
            _guard: Box::new(held),
        })
    }

    fn reserve(&mut self, thread: Pid, time: Nanos) -> Result<(), StackError> {
        let thread = thread.as_raw_nonzero().get().unsigned_abs();
        let time = Duration::from_nanos(time.0);
        own::reserve(&self.0, Some(thread), Some(time))
    }

    fn open(&mut self, program: &Program, options: &UdpOptions) -> Result<Socket, StackError> {
        program.open_udp(options)
    }
}

#[cfg(test)]
mod tests {
    use netnice_stack::udp::Buffers;

    use super::super::tests::fake_daemon::FakeDaemon;
    use super::*;

    #[test]
    fn a_flow_is_opened_with_the_promise_that_the_daemon_holds() {
        let daemon = FakeDaemon::new("relay-daemon");
        let mut links = Daemon(daemon.dir());
        let bytes = Buffers::default().region_bytes().expect("valid");
        let program = links.attach("eth7", 2, bytes).expect("attached");
        assert_eq!(program.iface(), Some("eth7"));
        let contract = "channel mmax=1KiB,rmax=10/s,bmax=1,deadline=8796.093022208s";
        let to = "10.78.0.2:7000".parse().expect("an endpoint");
        let to: std::net::SocketAddr = to;
        let held = links.hold(&program, to.ip(), contract).expect("held");
        assert_eq!((held.via, held.mtu), (to.ip(), 1_400));
        let short = contract.replace("8796.093022208s", "2ms");
        assert_eq!(held.contract, short);
        let options = |hold| UdpOptions {
            contract: Some(short.clone()),
            hold: Some(hold),
            ..UdpOptions::to(to)
        };
        let error = links.open(&program, &options(held.hold + 1)).err();
        let error = error.expect("there is no such hold").to_string();
        assert!(error.contains("not held"), "{error}");
        let socket = links.open(&program, &options(held.hold)).expect("opened");
        assert_eq!(socket.contract(), short);
    }
}
