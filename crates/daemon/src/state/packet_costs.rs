//! The file of what a packet costs on this machine, which `netnice doctor --measure` finds out:
//! `packet-costs.json`, in the folder of files that outlive a reboot. A new file replaces the old
//! one by rename. Reading and writing fail with a text that names the file.
//!
//! ```text
//!   {"version":1,"costs":{"udp":{"idle_ppb":…,"packet_ps":…},"tcp":{…}}}
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use netnice_api::{PacketCostDoc, PacketCostsDoc};
use netnice_core::admission::packet_costs::{PacketCost, PacketCosts};
use serde::{Deserialize, Serialize};

use super::{lasting_folder, replace};

/// Access to the file of one runtime folder.
#[derive(Clone, Debug)]
pub(crate) struct CostsStore {
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    costs: PacketCostsDoc,
}

impl CostsStore {
    /// The file of a runtime folder.
    pub(crate) fn new(folder: &Path) -> CostsStore {
        CostsStore {
            path: lasting_folder(folder).join("packet-costs.json"),
        }
    }

    /// Reads the file; `None` if there is none.
    ///
    /// # Errors
    /// If the file cannot be read, or is not what a daemon wrote.
    pub(crate) fn load(&self) -> Result<Option<PacketCosts>, String> {
        let path = self.path.display();
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("cannot read {path}: {error}")),
        };
        let why = match serde_json::from_slice::<Document>(&bytes) {
            Ok(document) if document.version != VERSION => {
                format!("it is of version {}", document.version)
            }
            Ok(document) => match costs_of(&document.costs) {
                Ok(costs) => return Ok(Some(costs)),
                Err(why) => why,
            },
            Err(error) => error.to_string(),
        };
        Err(format!(
            "cannot use {path}, so `cpu auto` is refused until `netnice doctor --measure` has \
             written it anew: {why}"
        ))
    }

    /// Writes the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn save(&self, costs: &PacketCostsDoc) -> Result<(), String> {
        let document = Document {
            version: VERSION,
            costs: *costs,
        };
        let write = || -> io::Result<()> {
            self.path.parent().map_or(Ok(()), fs::create_dir_all)?;
            replace(&self.path, &serde_json::to_vec(&document)?)
        };
        write().map_err(|error| format!("cannot write {}: {error}", self.path.display()))
    }
}

/// The costs of a document.
///
/// # Errors
/// If a value is beyond what a machine can have.
pub(crate) fn costs_of(doc: &PacketCostsDoc) -> Result<PacketCosts, String> {
    let line = |name: &str, doc: &PacketCostDoc| {
        let bounds = [
            ("idle_ppb", doc.idle_ppb, MOST_IDLE_PPB),
            ("packet_ps", doc.packet_ps, MOST_PACKET_PS),
        ];
        if let Some((what, value, most)) = bounds.iter().find(|(_, value, most)| value > most) {
            return Err(format!("{what} of {name} is {value}, more than {most}"));
        }
        if doc.packet_ps == 0 {
            return Err(format!("a packet of {name} costs nothing"));
        }
        Ok(PacketCost {
            idle_ppb: doc.idle_ppb,
            packet_ps: doc.packet_ps,
        })
    };
    Ok(PacketCosts {
        udp: line("udp", &doc.udp)?,
        tcp: line("tcp", &doc.tcp)?,
    })
}

const VERSION: u32 = 1;
/// A tenth of a processor.
const MOST_IDLE_PPB: u64 = 100_000_000;
/// A millisecond.
const MOST_PACKET_PS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const DOC: PacketCostsDoc = PacketCostsDoc {
        udp: PacketCostDoc {
            idle_ppb: 1,
            packet_ps: 2,
        },
        tcp: PacketCostDoc {
            idle_ppb: 3,
            packet_ps: 4,
        },
    };

    #[test]
    fn costs_outlive_the_daemon() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = CostsStore::new(folder.path());
        assert_eq!(store.load(), Ok(None));
        store.save(&DOC).expect("written");
        let costs = store.load().expect("read").expect("a file");
        assert_eq!((costs.udp.packet_ps, costs.tcp.idle_ppb), (2, 3));
    }

    #[test]
    fn a_damaged_file_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = CostsStore::new(folder.path());
        let texts = [
            "",
            "{}",
            r#"{"version":2,"costs":{"udp":{"idle_ppb":1,"packet_ps":2},
                "tcp":{"idle_ppb":1,"packet_ps":2}}}"#,
        ];
        for text in texts {
            fs::write(&store.path, text).expect("written");
            let why = store.load().expect_err(text);
            assert!(why.contains("packet-costs.json"), "{why}");
        }
    }

    #[test]
    fn impossible_costs_are_refused() {
        let with = |udp| PacketCostsDoc { udp, ..DOC };
        let cases = [
            (PacketCostDoc::default(), "costs nothing"),
            (
                PacketCostDoc {
                    packet_ps: u64::MAX,
                    ..DOC.udp
                },
                "packet_ps of udp is 18446744073709551615, more than 1000000000",
            ),
            (
                PacketCostDoc {
                    idle_ppb: MOST_IDLE_PPB + 1,
                    ..DOC.udp
                },
                "idle_ppb of udp",
            ),
        ];
        for (udp, text) in cases {
            let why = costs_of(&with(udp)).expect_err(text);
            assert!(why.contains(text), "{why}");
        }
    }
}
