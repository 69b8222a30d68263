//! Stops sending for a flow that moves to another link. Its program then knows of each record
//! whether it was sent, and can send the others there. No function fails.

use super::*;

impl Datapath {
    /// Returns the record that a flow holds for sending, with the status
    /// [`NO_LINK`](netnice_ring::Status::NO_LINK), and takes no further record from its submit
    /// ring. When the call returns, all statuses are visible to the program: a record that has none
    /// was not sent, and is not sent later. The flow receives as before. No effect if the flow is
    /// closed.
    pub(crate) fn withdraw(&mut self, flow: FlowNo, now: Instant) {
        let Some(Some(known)) = self.flows.get_mut(flow.0 as usize) else {
            return;
        };
        // The flow exists, so the scheduler has it.
        let _ = self.scheduler.withdraw(known.id, now);
        known.withdraw();
        if known.touch() {
            self.touched.push(flow.0);
        }
        self.publish();
    }
}
