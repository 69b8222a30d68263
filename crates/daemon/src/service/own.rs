//! The response to `netnice` without arguments: the target that contains the calling process, if
//! there is one. Fails if the request has no pidfd of that process, the process has ended and no
//! target names it, or the machine cannot be read.

use netnice_api::ShowDoc;
use netnice_core::target::Target;

use super::named_process::NamedProcess;
use super::view::View;
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::Host;

impl<H: Host> View<'_, H> {
    /// The document with the target that contains the calling process, and with no target if none
    /// does. If the process has joined a name inside its own target, the document has both.
    ///
    /// # Errors
    /// If the request has no pidfd, the process has ended and no target names it, or the machine
    /// cannot be read.
    pub(super) fn show_own(
        &mut self,
        named: Option<&NamedProcess>,
        now: Now,
    ) -> Result<ShowDoc, RequestError> {
        let Some(named) = named else {
            return Err(RequestError::BadUsage(
                "the request needs a pidfd of its process, and none came with it".to_owned(),
            ));
        };
        let target = Target::pid(named.pid)
            .ok_or_else(|| RequestError::BadUsage(format!("{} is not a process id", named.pid)))?;
        let held = self.of_process(&target, named.pid)?;
        self.document(&held, &[], now)
    }
}
