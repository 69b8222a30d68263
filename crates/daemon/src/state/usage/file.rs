//! The file in which the usage of traffic quotas outlives a reboot: `usage.json`, in
//! `/var/lib/netnice` for the runtime folder `/run/netnice`, else in the runtime folder. A new file
//! replaces the old one by rename, and a checksum (CRC-32) covers the content. While the file is
//! older than the counts of the same boot, the kernel's counts decide. Reading and writing fail
//! with a text.
//!
//! ```text
//!   {"version": 1, "checksum": "9ae0daaf", "usage": {"boot": …, "records": […]}}
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use netnice_core::contract::{Counted, QuotaPeriod};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Usage, UsageBook, UsageName};
use crate::schedule::periods::Period;
use crate::state::{lasting_folder, replace};

/// Access to the file of one runtime folder and boot.
#[derive(Clone, Debug)]
pub(crate) struct UsageStore {
    path: PathBuf,
    boot: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    version: u32,
    checksum: String,
    usage: Box<RawValue>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UsageDoc {
    boot: String,
    records: Vec<RecordDoc>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordDoc {
    target: String,
    period: String,
    count: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    key: u64,
    start_ns: u64,
    end_ns: u64,
    used: u64,
    refused: u64,
    origin_ns: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    past: Vec<(u64, u64)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    aliases: Vec<(u64, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<u32>,
}

impl UsageStore {
    /// The file of a runtime folder, for this boot (its id).
    pub(crate) fn new(folder: &Path, boot: &str) -> UsageStore {
        UsageStore {
            path: lasting_folder(folder).join("usage.json"),
            boot: boot.to_owned(),
        }
    }

    /// Reads the file; an empty book if there is none. A damaged file is renamed to
    /// `usage.json.damaged`.
    ///
    /// # Errors
    /// If the file cannot be read, or is damaged.
    pub(crate) fn load(&self) -> Result<UsageBook, String> {
        let path = self.path.display();
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(UsageBook::default());
            }
            Err(error) => return Err(format!("cannot read {path}: {error}")),
        };
        self.parse(&bytes).map_err(|reason| {
            let aside = self.path.with_extension("json.damaged");
            let _ = fs::rename(&self.path, &aside);
            format!(
                "the usage of traffic quotas before this start is lost: {path} is damaged \
                 ({reason}) and kept as {}",
                aside.display()
            )
        })
    }

    /// Parses the bytes of a file. Fails with the damage.
    pub(super) fn parse(&self, bytes: &[u8]) -> Result<UsageBook, String> {
        let text = |error: serde_json::Error| error.to_string();
        let envelope: Envelope = serde_json::from_slice(bytes).map_err(text)?;
        if envelope.checksum != checksum(envelope.usage.get()) || envelope.version != VERSION {
            return Err("its checksum or version is another".to_owned());
        }
        let doc: UsageDoc = serde_json::from_str(envelope.usage.get()).map_err(text)?;
        let same_boot = doc.boot == self.boot;
        let records: Option<Vec<_>> = doc.records.into_iter().map(RecordDoc::restore).collect();
        let records = records.ok_or("a record has an unknown period or direction")?;
        let kept = records
            .into_iter()
            .filter(|(name, _)| same_boot || !name.is_of_process());
        Ok(UsageBook {
            records: kept.collect(),
        })
    }

    /// Writes the file, or removes it if the book is empty.
    ///
    /// # Errors
    /// If the file cannot be written or removed.
    pub(crate) fn save(&self, book: &UsageBook) -> Result<(), String> {
        let fail = |error: io::Error| format!("cannot write {}: {error}", self.path.display());
        if book.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(fail(error)),
                _ => Ok(()),
            };
        }
        let bytes = self.bytes(book).map_err(|error| fail(error.into()))?;
        let made = self.path.parent().map_or(Ok(()), fs::create_dir_all);
        made.and_then(|()| replace(&self.path, &bytes))
            .map_err(fail)
    }

    /// The bytes of the file with this book. Fails if it cannot be written as JSON.
    pub(super) fn bytes(&self, book: &UsageBook) -> Result<Vec<u8>, serde_json::Error> {
        let doc = UsageDoc {
            boot: self.boot.clone(),
            records: book.records.iter().map(RecordDoc::new).collect(),
        };
        let usage = serde_json::value::to_raw_value(&doc)?;
        serde_json::to_vec(&Envelope {
            version: VERSION,
            checksum: checksum(usage.get()),
            usage,
        })
    }
}

impl RecordDoc {
    fn new((name, usage): (&UsageName, &Usage)) -> RecordDoc {
        RecordDoc {
            target: name.target.clone(),
            period: name.period.word().to_owned(),
            count: name.counted.word().to_owned(),
            zone: name.zone.clone(),
            key: usage.key,
            start_ns: usage.period.start_ns,
            end_ns: usage.period.end_ns,
            used: usage.used,
            refused: usage.refused,
            origin_ns: usage.origin_ns,
            past: usage.past.clone(),
            aliases: usage.aliases.clone(),
            user: usage.user,
        }
    }

    /// `None` if the period or the direction is unknown.
    fn restore(self) -> Option<(UsageName, Usage)> {
        let name = UsageName {
            target: self.target,
            period: QuotaPeriod::from_word(&self.period)?,
            counted: Counted::from_word(&self.count)?,
            zone: self.zone,
        };
        let usage = Usage {
            key: self.key,
            period: Period {
                start_ns: self.start_ns,
                end_ns: self.end_ns,
            },
            used: self.used,
            refused: self.refused,
            origin_ns: self.origin_ns,
            past: self.past,
            aliases: self.aliases,
            user: self.user,
            limit: None,
            claimed: false,
            active: false,
            total: (0, 0),
        };
        Some((name, usage))
    }
}

fn checksum(text: &str) -> String {
    format!("{:08x}", crc32fast::hash(text.as_bytes()))
}

const VERSION: u32 = 1;
