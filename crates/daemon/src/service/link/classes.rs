//! The part of a `netnice link` request that is about the classes of the link's overbooked server.
//! The functions fail if a text is invalid, a class that is removed does not exist, or a server is
//! named without a class. Whether the classes fit the link and its flows is decided by the flow
//! manager, before the request is carried out.

use netnice_api::LinkChange;
use netnice_core::contract::{Contract, Setting};
use netnice_core::link::Link;
use netnice_core::link::classes::{ClassChange, ClassError, ClassesChange, LinkClasses};

use crate::authority;
use crate::error::RequestError;
use crate::host::Host;
use crate::peer::Peer;
use crate::service::Service;

impl<H: Host> Service<H> {
    /// The link and its classes after a change, for their admission.
    ///
    /// # Errors
    /// If the peer is not privileged, or for the reasons in the module's documentation and those of
    /// `netnice link`.
    pub(crate) fn wanted_classes(
        &mut self,
        peer: &Peer,
        change: &LinkChange,
    ) -> Result<(Link, LinkClasses), RequestError> {
        authority::may_manage(peer, "managing a link")?;
        let name = change.iface.parse()?;
        let (link, _) = super::wanted_link(&mut self.reconciler, &name, change)?;
        let present = self.reconciler.books.ledger.link(name.as_str());
        let present = present.map(|managed| managed.classes).unwrap_or_default();
        Ok((link, changed(present, change)?))
    }
}

/// The classes after a change.
///
/// # Errors
/// For the reasons in the module's documentation.
pub(super) fn changed(
    present: LinkClasses,
    change: &LinkChange,
) -> Result<LinkClasses, RequestError> {
    if change.unmanage || !change.names_classes() {
        return Ok(present);
    }
    let change = parsed(change)?;
    let classes = present.apply(&change);
    classes.map_err(|error| RequestError::BadUsage(error.to_string()))
}

fn parsed(change: &LinkChange) -> Result<ClassesChange, RequestError> {
    let server = match change.server.as_deref() {
        None => None,
        Some("none") => Some(Setting::Clear),
        Some(text) => Some(Setting::Set(slice(text)?)),
    };
    let Some(class) = &change.class else {
        return Ok(ClassesChange {
            server,
            class: None,
        });
    };
    let number = u8::try_from(class.number)
        .map_err(|_| RequestError::BadUsage(ClassError::Number(class.number).to_string()))?;
    let wanted = match (class.min.as_deref(), class.overbook) {
        (Some("none"), None) => ClassChange::Remove,
        (Some("none"), Some(_)) => {
            return Err(RequestError::BadUsage(format!(
                "--min none removes class {number}: leave out --overbook (--min 0 keeps the class \
                 and takes its minimum away)"
            )));
        }
        (min, overbook) => ClassChange::Set {
            min: match min {
                None => None,
                Some("0") => Some(Setting::Clear),
                Some(rate) => Some(Setting::Set(rate.parse()?)),
            },
            overbook,
        },
    };
    Ok(ClassesChange {
        server,
        class: Some((number, wanted)),
    })
}

/// The slice of a server from its text.
fn slice(text: &str) -> Result<netnice_core::contract::Slice, RequestError> {
    if text.contains(char::is_whitespace) {
        return Err(RequestError::BadUsage(format!(
            "server: {} is not a slice: write time/period, for example 20ms/50ms",
            netnice_core::Escaped(text)
        )));
    }
    let contract: Contract = format!("slice {text}").parse()?;
    // The text has one clause, and it is a slice.
    let slice = contract
        .slice()
        .ok_or(netnice_core::contract::ContractError::ZeroSlice)?;
    Ok(slice)
}
