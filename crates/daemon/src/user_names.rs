//! Names of users for messages ([`user_name`]), as far as [`name_files`] has them. Other users are
//! shown by number. No function fails.

use crate::name_files;

/// A user in a message: `root`, `the policy file` for the uid of [`crate::peer::POLICY`], else
/// `user` and the name, or the uid if the name is not known.
pub(crate) fn user_name(uid: u32) -> String {
    match uid {
        0 => "root".to_owned(),
        uid if uid == crate::peer::POLICY.uid => "the policy file".to_owned(),
        uid => match name_files::name_of_user(uid) {
            Some(name) => format!("user {name}"),
            None => format!("user {uid}"),
        },
    }
}
