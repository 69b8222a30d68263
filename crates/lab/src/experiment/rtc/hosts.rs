//! A client, a router and a server with netnice ([`Hosts`]), on links of one rate. A start fails as
//! those of [`World::netnice`] and [`World::peer`] do, or if a link is refused.

use anyhow::Result;

use crate::traffic::{self, Running, Udp};
use crate::world::{Netnice, Peer, PeerOptions, Routed, World};

/// The hosts.
pub(super) struct Hosts {
    // The programs end before the daemons, and those before the world.
    pub peers: Vec<Peer>,
    /// In the order of [`LINKS`], as the peers are.
    pub netnices: Vec<Netnice>,
    pub world: World,
}

impl Hosts {
    /// Starts netnice on all hosts, with links of this rate. `prepare` gets each daemon before its
    /// links are managed, and returns the options of the host's netnice-peer.
    pub(super) fn start(
        rate: &str,
        prepare: impl Fn(&str, &mut Netnice) -> Result<PeerOptions<'static>>,
    ) -> Result<Hosts> {
        let world = World::routed(Routed::default())?;
        let (mut netnices, mut options) = (Vec::new(), Vec::new());
        for (host, links) in LINKS {
            let mut netnice = world.netnice(host)?;
            options.push(prepare(host, &mut netnice)?);
            for link in links {
                let line = format!("link {link} --rate {rate}");
                netnice.run_line(&line)?.ok()?;
            }
            netnices.push(netnice);
        }
        let peers = LINKS.iter().zip(&options);
        let peers = peers.map(|((host, _), options)| world.peer(host, options));
        Ok(Hosts {
            peers: peers.collect::<Result<_>>()?,
            netnices,
            world,
        })
    }

    /// As [`Hosts::start`], with the usual options.
    pub(super) fn new(rate: &str) -> Result<Hosts> {
        Hosts::start(rate, |_, _| Ok(PeerOptions::default()))
    }

    /// Fills every cable with UDP of the kernel's sockets. Fails if a program does not start.
    pub(super) fn flood(&self) -> Result<Vec<Running>> {
        let host = |name| self.world.host(name);
        let ways = [
            ("client", "server"),
            ("server", "client"),
            ("other", "server"),
        ];
        let mut floods = Vec::new();
        for (number, (from, to)) in ways.into_iter().enumerate() {
            let (from, to, port) = (host(from), host(to), 7_000 + number as u16);
            let ends = [(from.port().v4, port).into(), (to.port().v4, port).into()];
            let flood = Udp::source(ends[0], ends[1]).rate(200_000_000).size(1_400);
            floods.push(traffic::start_now(from, &flood)?);
        }
        Ok(floods)
    }
}

/// The hosts with the links that messages pass.
pub(super) const LINKS: [(&str, &[&str]); 3] = [
    ("client", &["eth0"]),
    ("router", &["eth0", "eth1"]),
    ("server", &["eth0"]),
];
