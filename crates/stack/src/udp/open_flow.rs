//! Makes sockets of flows: of a flow that the daemon opens ([`Program::open_udp`]), or of one that
//! the driver opened without a daemon ([`Program::udp`]). Both calls fail with a [`StackError`] if
//! the addresses, the location or the buffers are invalid, and the former also if the daemon does
//! not open the flow.

use std::sync::Arc;

use netnice_api::direct::{DirectReply, DirectRequest, FlowOpened, OpenFlow};
use netnice_api::{Client, Response};
use netnice_ring::{FlowLocation, Shape};

use super::{Settings, Socket, SocketParameters, UdpOptions};
use crate::control::{FlowStatus, unexpected_response};
use crate::datagram::Checks;
use crate::error::StackError;
use crate::headers::FlowAddress;
use crate::program::Program;

impl Program {
    /// Requests a UDP flow from the daemon, and makes a socket of it.
    ///
    /// # Errors
    /// If the options are invalid, there is no connection to the daemon, the daemon does not grant
    /// the flow, or a buffer is smaller than a packet of the path to the remote endpoint.
    pub fn open_udp(&self, options: &UdpOptions) -> Result<Socket, StackError> {
        let (open, shape) = options.request()?;
        let settings = Settings {
            hops: options.hops,
            checks: options.checks,
            receiving: options.buffers.receiving,
            errors: options.errors,
        };
        self.open_flow(open, shape, settings)
    }

    /// Requests a flow from the daemon, and makes a socket of it.
    ///
    /// # Errors
    /// As [`Program::open_udp`].
    pub(crate) fn open_flow(
        &self,
        open: OpenFlow,
        shape: Shape,
        settings: Settings,
    ) -> Result<Socket, StackError> {
        let control = self.shared.control()?;
        let request = DirectRequest::Open(open);
        let mut opened_status = None;
        let opened = control.request(&self.shared.flows, request, Client::TIMEOUT, |response| {
            let opened = match response {
                Response::Direct(DirectReply::Opened(opened)) => opened,
                other => return Err(unexpected_response(other, "open")),
            };
            let status = FlowStatus::new(opened.mtu);
            self.shared
                .flows
                .insert(opened.flow, opened.slot, status.clone());
            opened_status = Some(status);
            Ok(opened)
        })?;
        let number = opened.flow;
        let status = opened_status.unwrap_or_default();
        self.socket(settings, shape, opened, status)
            .inspect_err(|_| self.shared.close(number))
    }

    fn socket(
        &self,
        settings: Settings,
        shape: Shape,
        opened: FlowOpened,
        status: Arc<FlowStatus>,
    ) -> Result<Socket, StackError> {
        let location = FlowLocation {
            slot: opened.slot,
            offset: opened.offset,
            shape,
        };
        let flow = self.shared.attachment.flow(location)?;
        let parameters = SocketParameters::granted(settings, opened, status);
        Socket::new(self.shared.clone(), flow, parameters)
    }

    /// Makes a socket of a UDP flow with one remote endpoint that the driver opened without a
    /// daemon. Half of its buffers receive, or fewer if the receive rings are too short for them.
    ///
    /// # Errors
    /// If the addresses, the location or the buffers are invalid.
    pub fn udp(
        &self,
        location: FlowLocation,
        address: &FlowAddress,
        checks: Checks,
    ) -> Result<Socket, StackError> {
        let flow = self.shared.attachment.flow(location)?;
        let parameters = SocketParameters::without_daemon(address, &location.shape, checks);
        Socket::new(self.shared.clone(), flow, parameters)
    }
}
