//! Carries out the flow manager's commands: connects to drivers, and waits for connections of
//! programs to end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use netnice_core::contract::IfName;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::spawn_local;

use super::network::Network;
use super::{Flows, Order, driver};
use crate::clock::Now;

/// The connections to drivers.
pub(crate) struct Drivers {
    folder: PathBuf,
    calls: BTreeMap<IfName, (u64, UnboundedSender<driver::Call>)>,
    connections: u64,
    heard: UnboundedSender<driver::From>,
    left: UnboundedSender<u64>,
}

/// Events of drivers.
pub(crate) type FromDrivers = UnboundedReceiver<driver::From>;

impl Drivers {
    /// Starts without connections. The receivers get the events of drivers, and the numbers of
    /// ended connections.
    pub(crate) fn new(folder: &Path) -> (Drivers, FromDrivers, UnboundedReceiver<u64>) {
        let (heard, from_drivers) = mpsc::unbounded_channel();
        let (left, gone) = mpsc::unbounded_channel();
        let drivers = Drivers {
            folder: folder.to_owned(),
            calls: BTreeMap::new(),
            connections: 0,
            heard,
            left,
        };
        (drivers, from_drivers, gone)
    }

    /// Connects to the drivers that an earlier daemon has started.
    pub(crate) fn find<N: Network>(&mut self, flows: &mut Flows<N>, now: Now) {
        for iface in driver::found(&self.folder) {
            if let Ok(link) = iface.parse() {
                flows.find(&link, now);
            }
        }
        self.obey(flows.take_orders());
    }

    /// Bounds the output of all drivers. The caller calls it each second.
    pub fn bound_outputs(&self) {
        for link in self.calls.keys() {
            driver::bound_output(&self.folder, link.as_str());
        }
    }

    /// True if `connection` is the present connection to the link's driver. An event of an earlier
    /// one is obsolete.
    pub(crate) fn is_present(&self, link: &IfName, connection: u64) -> bool {
        let present = self.calls.get(link);
        present.is_some_and(|(number, _)| *number == connection)
    }

    /// Carries out commands.
    pub(crate) fn obey(&mut self, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Reach(link, start) => {
                    let (calls, to_make) = mpsc::unbounded_channel();
                    self.connections += 1;
                    let (folder, to) = (self.folder.clone(), (link.clone(), self.connections));
                    let task = driver::run(folder, to, start, to_make, self.heard.clone());
                    self.calls.insert(link, (self.connections, calls));
                    spawn_local(task);
                }
                Order::Call(link, call, fd) => {
                    if let Some((_, calls)) = self.calls.get(&link) {
                        // The send fails if the driver has ended; an `Ended` event follows.
                        let _ = calls.send((call, fd));
                    }
                }
                Order::Leave(link) => drop(self.calls.remove(&link)),
                Order::Watch(guest) => {
                    let left = self.left.clone();
                    spawn_local(async move {
                        guest.news.closed().await;
                        let _ = left.send(guest.number);
                    });
                }
            }
        }
    }
}
