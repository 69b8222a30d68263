//! The objects of the calls about channels between hosts: the network, a service, and a channel.
//! [`ChannelHandle::with`], [`ChannelHandle::lock`] and [`ServiceHandle::with`] fail with EBUSY if
//! another thread is in a call of the object, with EBADF if it is closed, and with EIO if an
//! earlier call of it panicked.

use std::sync::{Mutex, MutexGuard, TryLockError};

use netnice_channel::network::{IncomingChannel, Network, OutgoingChannel, Service};
use netnice_channel::{ExecutorSettings, ReceivedMessage};
use netnice_core::units::Bytes;

use crate::error::CallError;

/// The network of a handle.
pub(crate) struct NetworkHandle {
    /// The connection to netnice-peer.
    pub(crate) network: Network,
    /// What its handlers were measured with.
    pub(crate) settings: ExecutorSettings,
}

/// The service of a handle.
pub(crate) struct ServiceHandle {
    open: Mutex<Option<Service>>,
}

/// The channel of a handle.
pub(crate) struct ChannelHandle {
    /// `None` after C has closed the channel.
    open: Mutex<Option<OpenChannel>>,
}

/// An end of a channel.
pub(crate) enum OpenChannel {
    /// The end that sends.
    Outgoing {
        /// The channel.
        channel: Box<OutgoingChannel>,
        /// The longest message.
        mmax: Bytes,
    },
    /// The end that receives.
    Incoming {
        /// The channel.
        channel: Box<IncomingChannel>,
        /// A message that was too long for the memory of the call that took it.
        kept: Option<ReceivedMessage>,
    },
}

impl ServiceHandle {
    /// An offered service.
    pub(crate) fn new(service: Service) -> ServiceHandle {
        ServiceHandle {
            open: Mutex::new(Some(service)),
        }
    }

    /// Runs `work` with the service.
    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(&Service) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        work(self.lock()?.as_ref().ok_or(CallError::BadHandle)?)
    }

    /// Locks the service; `None` in the lock is a closed one.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Option<Service>>, CallError> {
        try_lock(&self.open)
    }
}

impl ChannelHandle {
    /// An open channel.
    pub(crate) fn new(channel: OpenChannel) -> ChannelHandle {
        ChannelHandle {
            open: Mutex::new(Some(channel)),
        }
    }

    /// Runs `work` with the channel.
    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(&mut OpenChannel) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        work(self.lock()?.as_mut().ok_or(CallError::BadHandle)?)
    }

    /// Locks the channel; `None` in the lock is a closed one.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Option<OpenChannel>>, CallError> {
        try_lock(&self.open)
    }
}

fn try_lock<T>(open: &Mutex<Option<T>>) -> Result<MutexGuard<'_, Option<T>>, CallError> {
    match open.try_lock() {
        Ok(open) => Ok(open),
        Err(TryLockError::WouldBlock) => Err(CallError::Busy),
        Err(TryLockError::Poisoned(_)) => Err(CallError::Panicked),
    }
}
