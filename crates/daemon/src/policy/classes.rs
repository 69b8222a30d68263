//! Reads the classes of a link from the policy file: `server = "20ms/50ms"`, and a table
//! `[[link.class]]` for each class. A class that is named twice, a number above 7, a rate or a
//! slice that does not parse, or a server without a class is an error with its line.

use netnice_core::contract::{Contract, Setting};
use netnice_core::link::classes::{ClassChange, ClassesChange, LinkClasses};
use netnice_core::units::Rate;
use serde::Deserialize;
use toml::Spanned;

use super::{PolicyError, Reader};

/// A table `[[link.class]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ClassDoc {
    number: Spanned<u8>,
    min: Option<Spanned<String>>,
    #[serde(default)]
    overbook: bool,
}

impl Reader<'_> {
    /// The classes of a link.
    ///
    /// # Errors
    /// [`PolicyError`] with the line of an invalid value.
    pub(super) fn classes(
        &self,
        server: Option<&Spanned<String>>,
        docs: &[Spanned<ClassDoc>],
    ) -> Result<LinkClasses, PolicyError> {
        let mut classes = LinkClasses::default();
        for doc in docs {
            let doc = doc.get_ref();
            let (number, at) = (*doc.number.get_ref(), doc.number.span().start);
            if classes.class(number).is_ok() {
                return Err(self.fault(at, format!("class {number} is named twice")));
            }
            let min = doc.min.as_ref().map(|min| {
                let rate = min.get_ref().parse::<Rate>();
                rate.map_err(|error| self.fault(min.span().start, error))
            });
            let set = ClassChange::Set {
                min: min.transpose()?.map(Setting::Set),
                overbook: Some(doc.overbook),
            };
            let change = ClassesChange {
                server: None,
                class: Some((number, set)),
            };
            let changed = classes.apply(&change);
            classes = changed.map_err(|error| self.fault(at, error))?;
        }
        let Some(server) = server else {
            return Ok(classes);
        };
        let at = server.span().start;
        let text = server.get_ref();
        let contract = match text.contains(char::is_whitespace) {
            true => return Err(self.fault(at, "a server is one slice, for example 20ms/50ms")),
            false => format!("slice {text}").parse::<Contract>(),
        };
        let contract = contract.map_err(|error| self.fault(at, error))?;
        let change = ClassesChange {
            server: contract.slice().map(Setting::Set),
            class: None,
        };
        let changed = classes.apply(&change);
        changed.map_err(|error| self.fault(at, error))
    }
}
