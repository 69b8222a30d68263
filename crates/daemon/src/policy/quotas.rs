//! Reads `[quotas]` of the policy file into [`Quotas`]: counts are numbers, sizes and times are
//! strings with a unit. A key that is no quota, or a value that does not parse or is out of its
//! range, is an error with its line.

use serde::Deserialize;
use toml::Spanned;

use netnice_core::units::{Bytes, Nanos};

use super::{PolicyError, Reader};
use crate::quotas::{Quota, Quotas};

/// The values of `[quotas]` with their positions. Quotas that the file does not set are `None`.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct QuotasDoc {
    connections: Option<Spanned<u64>>,
    targets: Option<Spanned<u64>>,
    undos: Option<Spanned<u64>>,
    undo_time: Option<Spanned<String>>,
    programs: Option<Spanned<u64>>,
    flows: Option<Spanned<u64>>,
    ring_bytes: Option<Spanned<String>>,
    state_bytes: Option<Spanned<String>>,
    log_lines: Option<Spanned<u64>>,
    service_time: Option<Spanned<String>>,
    counting_time: Option<Spanned<String>>,
}

impl Reader<'_> {
    /// The quotas: those that the file sets, and the defaults of the others.
    ///
    /// # Errors
    /// [`PolicyError`] with the line of an invalid value.
    pub(super) fn quotas(&self, doc: &QuotasDoc) -> Result<Quotas, PolicyError> {
        let mut quotas = Quotas::of_file(self.path);
        for (quota, count) in [
            (Quota::Connections, &doc.connections),
            (Quota::Targets, &doc.targets),
            (Quota::Rollbacks, &doc.undos),
            (Quota::Programs, &doc.programs),
            (Quota::Flows, &doc.flows),
            (Quota::LogLines, &doc.log_lines),
        ] {
            let Some(count) = count else { continue };
            let set = quotas.set(quota, *count.get_ref());
            set.map_err(|reason| self.fault(count.span().start, reason))?;
        }
        for (quota, size) in [
            (Quota::RingBytes, &doc.ring_bytes),
            (Quota::StateBytes, &doc.state_bytes),
        ] {
            let Some(size) = size else { continue };
            let bytes = size.get_ref().parse::<Bytes>();
            let bytes = bytes.map_err(|error| self.fault(size.span().start, error))?;
            let set = quotas.set(quota, bytes.0);
            set.map_err(|reason| self.fault(size.span().start, reason))?;
        }
        for (quota, time) in [
            (Quota::RollbackTime, &doc.undo_time),
            (Quota::ServiceTime, &doc.service_time),
            (Quota::CountingTime, &doc.counting_time),
        ] {
            let Some(time) = time else { continue };
            let nanos = time.get_ref().parse::<Nanos>();
            let nanos = nanos.map_err(|error| self.fault(time.span().start, error))?;
            let set = quotas.set(quota, nanos.0);
            set.map_err(|reason| self.fault(time.span().start, reason))?;
        }
        Ok(quotas)
    }
}
