//! Carries out the flow manager's commands ([`Command`]): connects to drivers and starts them,
//! passes calls to them, closes connections to them, and waits for connections of programs to end.
//! The events of all drivers come out of one channel ([`DriverEvents`]), and the numbers of ended
//! connections of programs out of another. If a driver cannot be started or its connection fails,
//! an event with the reason comes out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use netnice_core::contract::IfName;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::spawn_local;

use super::network::Network;
use super::{Command, Flows, driver};
use crate::clock::Now;

/// The connections to drivers.
pub(crate) struct Drivers {
    folder: PathBuf,
    /// Drivers that are started write their stops to files.
    write_stops: bool,
    calls: BTreeMap<IfName, (u64, UnboundedSender<driver::Call>)>,
    last_connection: u64,
    events: UnboundedSender<driver::FromDriver>,
    ended: UnboundedSender<u64>,
}

/// The receiver of the events of all drivers, each with the driver's link and the number of the
/// connection.
pub(crate) type DriverEvents = UnboundedReceiver<driver::FromDriver>;

impl Drivers {
    /// Starts without connections. `folder` is the runtime folder. With `write_stops`, drivers
    /// write their stops to files there. The receivers get the events of drivers, and the numbers
    /// of ended connections of programs.
    pub(crate) fn new(
        folder: &Path,
        write_stops: bool,
    ) -> (Drivers, DriverEvents, UnboundedReceiver<u64>) {
        let (events, from_drivers) = mpsc::unbounded_channel();
        let (ended, gone) = mpsc::unbounded_channel();
        let drivers = Drivers {
            folder: folder.to_owned(),
            write_stops,
            calls: BTreeMap::new(),
            last_connection: 0,
            events,
            ended,
        };
        (drivers, from_drivers, gone)
    }

    /// Connects to the drivers that an earlier daemon has started.
    pub(crate) fn connect_existing<N: Network>(&mut self, flows: &mut Flows<N>, now: Now) {
        for iface in driver::found(&self.folder) {
            if let Ok(link) = iface.parse() {
                flows.adopt_driver(&link, now);
            }
        }
        self.carry_out(flows.take_commands());
    }

    /// Bounds the output of all drivers. The caller calls it each second.
    pub(crate) fn bound_outputs(&self) {
        for link in self.calls.keys() {
            driver::bound_output(&self.folder, link.as_str());
        }
    }

    /// True if `connection` is the present connection to the link's driver. An event of an earlier
    /// connection is obsolete.
    pub(crate) fn is_present(&self, link: &IfName, connection: u64) -> bool {
        let present = self.calls.get(link);
        present.is_some_and(|(number, _)| *number == connection)
    }

    /// Carries out commands. A call to a link without a connection is dropped.
    pub(crate) fn carry_out(&mut self, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::Connect(link, start) => {
                    let (calls, to_make) = mpsc::unbounded_channel();
                    self.last_connection += 1;
                    let start = start.map(|start| driver::Start {
                        write_stops: self.write_stops,
                        ..start
                    });
                    let (folder, to) = (self.folder.clone(), (link.clone(), self.last_connection));
                    let task = driver::run(folder, to, start, to_make, self.events.clone());
                    self.calls.insert(link, (self.last_connection, calls));
                    spawn_local(task);
                }
                Command::Call(link, call, fd) => {
                    if let Some((_, calls)) = self.calls.get(&link) {
                        // The send fails if the driver has ended; an `Ended` event follows.
                        let _ = calls.send((call, fd));
                    }
                }
                Command::Disconnect(link) => drop(self.calls.remove(&link)),
                Command::WatchConnection(connection) => {
                    let ended = self.ended.clone();
                    spawn_local(async move {
                        connection.notifications.closed().await;
                        let _ = ended.send(connection.number);
                    });
                }
            }
        }
    }
}
