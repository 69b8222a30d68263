//! Defines the hidden subcommands `netnice-lab traffic …`, and runs the chosen one ([`main`]). Its
//! arguments come in, and JSON lines go out on standard output. A program fails for invalid
//! arguments, and as its module says.

use anyhow::Result;

use super::{
    bare_tcp, carnage, channels, connections, direct, direct_tcp, echo, fetch, fork_storm, holds,
    http, iperf3, many_channels, many_flows, messages, network, parent, quic, quic_flows, segments,
    tcp, udp, unruly,
};

/// The programs of the traffic generator, as subcommands of `netnice-lab traffic`.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Program {
    /// TCP flows.
    Tcp(tcp::TcpArgs),
    /// UDP datagrams.
    Udp(udp::UdpArgs),
    /// UDP datagrams on the direct path.
    Direct(direct::DirectArgs),
    /// TCP on the direct path.
    DirectTcp(direct_tcp::DirectTcpArgs),
    /// Many flows of the direct path, on command.
    ManyFlows(many_flows::ManyFlowsArgs),
    /// Messages of a real-time channel on the direct path, on command.
    Messages(messages::MessagesArgs),
    /// Held promises of the direct path, on command.
    Holds(holds::HoldsArgs),
    /// Channels of handlers on the direct path, on command.
    Channels(channels::ChannelsArgs),
    /// One end of many channels between hosts.
    ManyChannels(many_channels::ManyChannelsArgs),
    /// One end of a channel between hosts, on command.
    Network(network::NetworkArgs),
    /// The same, by a program that forks, ends or executes another program on command.
    Unruly(unruly::UnrulyArgs),
    /// Segments of TCP on the direct path, on command.
    Segments(segments::SegmentsArgs),
    /// Answers probes.
    Echo(echo::EchoArgs),
    /// Times round trips.
    Probe(echo::ProbeArgs),
    /// Serves files from memory.
    Serve(fetch::ServeArgs),
    /// Fetches files and times them.
    Fetch(fetch::FetchArgs),
    /// Serves files from memory over QUIC.
    QuicServe(quic::ServeArgs),
    /// Fetches a file over QUIC.
    QuicFetch(quic::FetchArgs),
    /// Serves files from memory over HTTP.
    HttpServe(http::ServeArgs),
    /// Fetches a file over HTTP.
    HttpFetch(http::FetchArgs),
    /// Serves many connections.
    ServeConnections(connections::ServeArgs),
    /// netnice's TCP in one thread on the bare card.
    BareTcp(bare_tcp::BareTcpArgs),
    /// A client of iperf3's protocol over TCP on the direct path.
    Iperf3(iperf3::IperfArgs),
    /// Opens many connections.
    OpenConnections(connections::OpenArgs),
    /// Sends SYNs from forged addresses.
    SynFlood(connections::FloodArgs),
    /// Sends or receives over QUIC connections, each a flow of the direct path.
    QuicFlows(quic_flows::QuicFlowsArgs),
    /// Uses all processor time that it gets.
    Carnage(carnage::CarnageArgs),
    /// Forks children all the time.
    ForkStorm(fork_storm::ForkStormArgs),
    /// Starts other programs as its children.
    Parent(parent::ParentArgs),
}

/// Runs a traffic program to its end. Most programs then end the process themselves. Fails if the
/// arguments are wrong, or as that program says.
pub fn main(program: &Program) -> Result<()> {
    match program {
        Program::Tcp(args) => tcp::main(args),
        Program::Udp(args) => udp::main(args),
        Program::Direct(args) => direct::main(args),
        Program::DirectTcp(args) => direct_tcp::main(args),
        Program::ManyFlows(args) => many_flows::main(args),
        Program::Messages(args) => messages::main(args),
        Program::Holds(args) => holds::main(args),
        Program::Channels(args) => channels::main(args),
        Program::ManyChannels(args) => many_channels::main(args),
        Program::Network(args) => network::main(args),
        Program::Unruly(args) => unruly::main(args),
        Program::Segments(args) => segments::main(args),
        Program::Echo(args) => echo::echo(args),
        Program::Probe(args) => echo::probe(args),
        Program::Serve(args) => fetch::serve(args),
        Program::Fetch(args) => fetch::fetch(args),
        Program::QuicServe(args) => quic::serve(args),
        Program::QuicFetch(args) => quic::fetch(args),
        Program::HttpServe(args) => http::serve(args),
        Program::HttpFetch(args) => http::fetch(args),
        Program::ServeConnections(args) => connections::serve(args),
        Program::BareTcp(args) => bare_tcp::run(args),
        Program::Iperf3(args) => iperf3::run(args),
        Program::OpenConnections(args) => connections::open(args),
        Program::SynFlood(args) => connections::flood(args),
        Program::QuicFlows(args) => quic_flows::main(args),
        Program::Carnage(args) => carnage::main(args),
        Program::ForkStorm(args) => fork_storm::main(args),
        Program::Parent(_) => parent::main(),
    }
}
