//! The file of the reservations of processor time ([`ProcessorStore`]): which groups and threads
//! have them, and where the processes were before. It is `processors.json` in the runtime folder,
//! written anew with each change and renamed, and removed with the last reservation. After a reboot
//! it names nothing that exists, so a file of another boot is ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use netnice_core::contract::{ContractError, Slice};
use netnice_core::units::Nanos;
use netnice_kernel::processor::groups::Home;
use serde::{Deserialize, Serialize};

use super::drivers::KeptDriver;
use super::kept::{ExactThread, Kept};
use super::parts::Part;
use crate::error::RequestError;
use crate::host::processor_time::{DriverBefore, GroupName};

/// What the file has.
#[derive(Debug, Default)]
pub(super) struct Saved {
    /// The reservations of targets, by id.
    pub kept: BTreeMap<u32, Kept>,
    /// Those of drivers, by thread.
    pub drivers: BTreeMap<u32, KeptDriver>,
    /// Control groups of others that pass the controller `cpu` on for the reservations.
    pub passing_cpu: BTreeSet<String>,
}

/// Access to the file of one runtime folder and boot.
#[derive(Debug)]
pub(crate) struct ProcessorStore {
    path: PathBuf,
    boot: String,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    boot: String,
    reservations: Vec<Record>,
    drivers: Vec<DriverRecord>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    passing_cpu: BTreeSet<String>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct DriverRecord {
    name: String,
    thread: u32,
    slice_ns: u64,
    period_ns: u64,
    priority: Option<u32>,
    affinity: Option<Vec<u32>>,
    home: HomeRecord,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Record {
    id: u32,
    slice_ns: u64,
    period_ns: u64,
    extra: bool,
    weight: u32,
    group: String,
    home: HomeRecord,
    homes: BTreeMap<u32, HomeRecord>,
    exact: Option<ExactRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parts: Vec<PartRecord>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct PartRecord {
    thread: u32,
    process: u32,
    started: u64,
    slice_ns: u64,
    period_ns: u64,
    affinity: Option<Vec<u32>>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct HomeRecord {
    cpu: String,
    cpuacct: String,
    cpuset: String,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ExactRecord {
    thread: u32,
    affinity: Option<Vec<u32>>,
}

impl ProcessorStore {
    /// The file of a runtime folder, for this boot (its id).
    pub(crate) fn new(folder: &Path, boot: &str) -> ProcessorStore {
        ProcessorStore {
            path: folder.join("processors.json"),
            boot: boot.to_owned(),
        }
    }

    /// Reads what an earlier daemon has written.
    ///
    /// # Errors
    /// If the file cannot be read, or is not what a daemon wrote. The text names it.
    pub(super) fn load(&self) -> Result<Saved, RequestError> {
        let failed = |why: String| {
            let path = self.path.display();
            RequestError::Failed(format!("cannot use {path}: {why}"))
        };
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Saved::default()),
            Err(error) => return Err(failed(error.to_string())),
        };
        let document: Document =
            serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string()))?;
        if document.boot != self.boot {
            return Ok(Saved::default());
        }
        if document.version != VERSION {
            return Err(failed(format!("it is of version {}", document.version)));
        }
        let mut kept = BTreeMap::new();
        for record in document.reservations {
            let id = record.id;
            let one = Kept::try_from(record).map_err(|error| failed(error.to_string()))?;
            kept.insert(id, one);
        }
        let mut drivers = BTreeMap::new();
        for record in document.drivers {
            let thread = record.thread;
            let one = KeptDriver::try_from(record).map_err(|error| failed(error.to_string()))?;
            drivers.insert(thread, one);
        }
        Ok(Saved {
            kept,
            drivers,
            passing_cpu: document.passing_cpu,
        })
    }

    /// Writes the reservations in force.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn write(
        &self,
        kept: &BTreeMap<u32, Kept>,
        drivers: &BTreeMap<u32, KeptDriver>,
        passing_cpu: &BTreeSet<String>,
    ) -> Result<(), RequestError> {
        let new = self.path.with_extension("json.new");
        let write = || -> io::Result<()> {
            if kept.is_empty() && drivers.is_empty() {
                return match fs::remove_file(&self.path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    _ => Ok(()),
                };
            }
            let document = Document {
                version: VERSION,
                boot: self.boot.clone(),
                reservations: kept.iter().map(|(id, kept)| record(*id, kept)).collect(),
                drivers: drivers
                    .iter()
                    .map(|(thread, one)| driver_record(*thread, one))
                    .collect(),
                passing_cpu: passing_cpu.clone(),
            };
            fs::write(&new, serde_json::to_vec(&document)?)?;
            fs::rename(&new, &self.path)
        };
        write().map_err(|error| {
            let path = self.path.display();
            RequestError::Failed(format!("cannot write {path}: {error}"))
        })
    }
}

fn record(id: u32, kept: &Kept) -> Record {
    Record {
        id,
        slice_ns: kept.slice.slice().0,
        period_ns: kept.slice.period().0,
        extra: kept.slice.extra(),
        weight: kept.weight,
        group: kept.group.name.clone(),
        home: (&kept.group.home).into(),
        homes: kept
            .homes
            .iter()
            .map(|(pid, home)| (*pid, home.into()))
            .collect(),
        exact: kept.exact.as_ref().map(|exact| ExactRecord {
            thread: exact.thread,
            affinity: exact
                .affinity
                .as_ref()
                .map(|set| set.iter().copied().collect()),
        }),
        parts: kept.parts.iter().map(part_record).collect(),
    }
}

fn part_record(part: &Part) -> PartRecord {
    let affinity = part.affinity.as_ref();
    PartRecord {
        thread: part.thread,
        process: part.process,
        started: part.started,
        slice_ns: part.slice.slice().0,
        period_ns: part.slice.period().0,
        affinity: affinity.map(|set| set.iter().copied().collect()),
    }
}

fn driver_record(thread: u32, driver: &KeptDriver) -> DriverRecord {
    let affinity = driver.before.affinity.as_ref();
    DriverRecord {
        name: driver.name.clone(),
        thread,
        slice_ns: driver.slice.slice().0,
        period_ns: driver.slice.period().0,
        priority: driver.before.priority,
        affinity: affinity.map(|set| set.iter().copied().collect()),
        home: (&driver.before.home).into(),
    }
}

impl TryFrom<DriverRecord> for KeptDriver {
    type Error = ContractError;

    fn try_from(record: DriverRecord) -> Result<KeptDriver, ContractError> {
        Ok(KeptDriver {
            name: record.name,
            slice: Slice::new(Nanos(record.slice_ns), Nanos(record.period_ns), false)?,
            before: DriverBefore {
                priority: record.priority,
                affinity: record.affinity.map(|list| list.into_iter().collect()),
                home: record.home.into(),
            },
        })
    }
}

impl From<&Home> for HomeRecord {
    fn from(home: &Home) -> HomeRecord {
        HomeRecord {
            cpu: home.cpu.clone(),
            cpuacct: home.cpuacct.clone(),
            cpuset: home.cpuset.clone(),
        }
    }
}

impl From<HomeRecord> for Home {
    fn from(home: HomeRecord) -> Home {
        Home {
            cpu: home.cpu,
            cpuacct: home.cpuacct,
            cpuset: home.cpuset,
        }
    }
}

impl TryFrom<Record> for Kept {
    type Error = ContractError;

    fn try_from(record: Record) -> Result<Kept, ContractError> {
        let (slice, period) = (Nanos(record.slice_ns), Nanos(record.period_ns));
        let group = GroupName {
            name: record.group,
            home: record.home.into(),
        };
        let homes = record.homes.into_iter();
        let parts = record.parts.into_iter().map(Part::try_from);
        Ok(Kept {
            parts: parts.collect::<Result<_, _>>()?,
            homes: homes.map(|(pid, home)| (pid, home.into())).collect(),
            exact: record.exact.map(|exact| ExactThread {
                thread: exact.thread,
                affinity: exact.affinity.map(|list| list.into_iter().collect()),
            }),
            reason: "it continues from an earlier daemon".to_owned(),
            ..Kept::new(
                Slice::new(slice, period, record.extra)?,
                record.weight,
                group,
            )
        })
    }
}

impl TryFrom<PartRecord> for Part {
    type Error = ContractError;

    fn try_from(record: PartRecord) -> Result<Part, ContractError> {
        Ok(Part {
            thread: record.thread,
            process: record.process,
            started: record.started,
            slice: Slice::new(Nanos(record.slice_ns), Nanos(record.period_ns), false)?,
            affinity: record.affinity.map(|list| list.into_iter().collect()),
        })
    }
}

/// The version of the file's format.
const VERSION: u32 = 1;
