//! Sets the traffic quotas in the kernel, and reads how many bytes have passed under each. Both
//! calls fail if the kernel's maps cannot be read or written.

use std::collections::BTreeMap;

use netnice_kernel::enforce::{QuotaEntry, QuotaState};

use super::kernel::KernelHost;
use crate::error::RequestError;

/// The counters of traffic quotas, by key.
pub(crate) trait QuotaCounter {
    /// Sets the quotas. A new key counts from 0; a key that is left out loses its count.
    fn set_quotas(&mut self, quotas: &BTreeMap<u64, QuotaEntry>) -> Result<(), RequestError>;
    /// The quotas with their counts.
    fn quotas(&mut self) -> Result<BTreeMap<u64, QuotaState>, RequestError>;
}

impl QuotaCounter for KernelHost {
    fn set_quotas(&mut self, quotas: &BTreeMap<u64, QuotaEntry>) -> Result<(), RequestError> {
        Ok(self.kernel.set_quotas(quotas)?)
    }

    fn quotas(&mut self) -> Result<BTreeMap<u64, QuotaState>, RequestError> {
        Ok(self.kernel.quotas()?)
    }
}
