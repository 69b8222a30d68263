//! What the kernel has counted, and what drivers share with it. A method fails if the kernel
//! refuses to list or read.

use netnice_core::units::Nanos;
use netnice_kernel::enforce::{PathCounter, Redirects, Sample};
use netnice_kernel::{KernelError, traffic};

use super::KernelHost;
use crate::error::RequestError;
use crate::host::{InterfaceTraffic, Inventory, Meter};

impl Meter for KernelHost {
    fn sample(&mut self) -> Result<Sample, RequestError> {
        Ok(self.kernel.sample()?)
    }

    fn interface_traffic(&mut self) -> Result<InterfaceTraffic, RequestError> {
        let passed = traffic::byte_counts(&mut self.route).map_err(KernelError::from)?;
        let interfaces = self.interfaces()?.into_iter();
        Ok(interfaces
            .filter_map(|i| Some((i.name, *passed.get(&i.index)?)))
            .collect())
    }

    fn sent_on(&self, link: &str) -> Option<u64> {
        self.kernel.sent_on(link)
    }

    fn path_counter(&self, link: &str) -> Result<Option<PathCounter>, RequestError> {
        Ok(self.kernel.path_counter(link)?)
    }

    fn drain_time(&mut self, link: &str, id: u32) -> Result<Nanos, RequestError> {
        Ok(self.kernel.drain_time(link, id)?)
    }

    fn redirects(&self, link: &str) -> Result<Option<Redirects>, RequestError> {
        Ok(self.kernel.redirects(link)?)
    }
}
