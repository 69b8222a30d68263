//! The settings of the direct path ([`DirectSettings`]): the users whose flows may have channels,
//! the stops of the machine and the code points that drivers write; the horizon of a link; and the
//! code points that users may set. A value that does not parse or is out of range, and a user who
//! does not exist, fail with their line.

use std::collections::BTreeSet;

use netnice_api::driver::CodePointsDoc;
use netnice_core::admission::timing::Stops;
use netnice_core::contract::Dscp;
use netnice_core::link::Link;
use netnice_core::units::Nanos;
use serde::Deserialize;
use toml::Spanned;

use super::{FileDoc, Policy, PolicyError, Reader};
use crate::name_files;

/// The settings of the direct path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DirectSettings {
    /// The users whose flows may have channels.
    pub channel_users: ChannelUsers,
    /// What the machine takes from a driver's packet thread; `None` if the file names nothing.
    pub stops: Option<Stops>,
    /// The code points that drivers write; all `None` if the file has no table `dscp`.
    pub code_points: CodePointsDoc,
}

/// Users by name or uid, as the file names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChannelUsers(Vec<String>);

impl Default for ChannelUsers {
    /// The user that netnice-peer runs as, whether or not it exists.
    fn default() -> ChannelUsers {
        ChannelUsers(vec![PEER_USER.to_owned()])
    }
}

impl ChannelUsers {
    /// True for the uid of one of the users, as `/etc/passwd` has them now.
    pub(crate) fn contains(&self, uid: u32) -> bool {
        let mut users = self.0.iter();
        users.any(|user| name_files::number_of_user(user) == Some(uid))
    }
}

/// The table `dscp`: names of code points, by the kind of a flow's contract.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct CodePointNames {
    cell: Option<Spanned<String>>,
    channel: Option<Spanned<String>>,
    slice: Option<Spanned<String>>,
    min: Option<Spanned<String>>,
    best_effort: Option<Spanned<String>>,
}

impl Reader<'_> {
    pub(super) fn direct(&self, file: &FileDoc) -> Result<DirectSettings, PolicyError> {
        let stops = file.stops.as_ref().map(|text| {
            let parsed = text.get_ref().parse::<Stops>();
            parsed.map_err(|error| self.fault(text.span().start, error))
        });
        let code_points = match &file.dscp {
            None => CodePointsDoc::default(),
            Some(names) => CodePointsDoc {
                cell: self.number(names.cell.as_ref())?,
                channel: self.number(names.channel.as_ref())?,
                slice: self.number(names.slice.as_ref())?,
                min: self.number(names.min.as_ref())?,
                best_effort: self.number(names.best_effort.as_ref())?,
            },
        };
        Ok(DirectSettings {
            channel_users: self.channel_users(file.channel_users.as_deref())?,
            stops: stops.transpose()?,
            code_points,
        })
    }

    /// The users whose flows may have channels; the default if the file names none.
    fn channel_users(
        &self,
        users: Option<&[Spanned<String>]>,
    ) -> Result<ChannelUsers, PolicyError> {
        let Some(users) = users else {
            return Ok(ChannelUsers::default());
        };
        let known = users.iter().map(|user| {
            let name = user.get_ref();
            let is_known = name == PEER_USER || name_files::number_of_user(name).is_some();
            match is_known {
                true => Ok(name.clone()),
                false => {
                    let reason = format!(
                        "channel_users: there is no user {name:?} in /etc/passwd; write the \
                         user's number"
                    );
                    Err(self.fault(user.span().start, reason))
                }
            }
        });
        known.collect::<Result<_, _>>().map(ChannelUsers)
    }

    /// The number of a code point. A kind that the table does not name gets best effort, so that no
    /// program claims a code point by itself.
    fn number(&self, name: Option<&Spanned<String>>) -> Result<Option<u8>, PolicyError> {
        let dscp = name.map(|name| self.dscp(name)).transpose()?;
        Ok(Some(dscp.unwrap_or(Dscp::BEST_EFFORT).get()))
    }

    fn dscp(&self, name: &Spanned<String>) -> Result<Dscp, PolicyError> {
        let text = name.get_ref();
        let fault = |error| self.fault(name.span().start, format!("`{text}` is {error}"));
        text.parse().map_err(fault)
    }

    /// The horizon of a link; 0 if the file names none.
    pub(super) fn horizon(&self, text: Option<&Spanned<String>>) -> Result<Nanos, PolicyError> {
        let Some(text) = text else {
            return Ok(Nanos(0));
        };
        let at = text.span().start;
        match text.get_ref().parse::<Nanos>() {
            Ok(time) if time > Link::MAX_HORIZON => {
                let most = Link::MAX_HORIZON;
                let reason = format!("a horizon of {time} is more than the {most} allowed");
                Err(self.fault(at, reason))
            }
            Ok(time) => Ok(time),
            Err(error) => Err(self.fault(at, error)),
        }
    }

    /// The code points that users may set; the default ones if the file names none.
    pub(super) fn dscp_users(
        &self,
        names: Option<&[Spanned<String>]>,
    ) -> Result<BTreeSet<Dscp>, PolicyError> {
        let Some(names) = names else {
            return Ok(Policy::default().dscp_users);
        };
        names.iter().map(|name| self.dscp(name)).collect()
    }
}

/// The user that netnice-peer runs as.
const PEER_USER: &str = "netnice-peer";
