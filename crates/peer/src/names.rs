//! The names of hosts and their addresses ([`Names`]): those that the operator has given, else
//! those of the resolver. A look-up fails with a sentence for people.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::message::{BadName, HostName};

/// An address that the operator has given to a host: `NAME=ADDRESS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAddress {
    /// The host.
    pub host: HostName,
    /// One of its addresses.
    pub address: IpAddr,
}

/// Why a text is no [`HostAddress`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHostAddress {
    /// The text has no `=`.
    #[error("write NAME=ADDRESS, not {0:?}")]
    Form(String),
    /// The name is invalid.
    #[error(transparent)]
    Name(#[from] BadName),
    /// The address is invalid.
    #[error("{0:?} is no IP address")]
    Address(String),
}

impl FromStr for HostAddress {
    type Err = BadHostAddress;

    fn from_str(text: &str) -> Result<HostAddress, BadHostAddress> {
        let parts = text.split_once('=');
        let (name, address) = parts.ok_or_else(|| BadHostAddress::Form(text.to_owned()))?;
        let host = HostName::new(name)?;
        let parsed = address.parse();
        let address = parsed.map_err(|_| BadHostAddress::Address(address.to_owned()))?;
        Ok(HostAddress { host, address })
    }
}

/// The names of hosts and their addresses.
#[derive(Clone, Debug, Default)]
pub struct Names {
    addresses: BTreeMap<HostName, IpAddr>,
    hosts: BTreeMap<IpAddr, HostName>,
}

impl Names {
    /// These names. A host can have several addresses; the first one stands for it.
    pub fn new(given: &[HostAddress]) -> Names {
        let mut names = Names::default();
        for HostAddress { host, address } in given {
            names.addresses.entry(host.clone()).or_insert(*address);
            names.hosts.insert(*address, host.clone());
        }
        names
    }

    /// The hosts that the operator has given, each with its first address.
    pub fn given(&self) -> impl Iterator<Item = (&HostName, IpAddr)> {
        self.addresses
            .iter()
            .map(|(host, address)| (host, *address))
    }

    /// True if the operator has given an address of the host.
    pub fn knows(&self, host: &HostName) -> bool {
        self.addresses.contains_key(host)
    }

    /// An address of a host.
    ///
    /// # Errors
    /// If neither the operator nor the resolver knows the host.
    pub async fn address_of(&self, host: &HostName) -> Result<IpAddr, String> {
        if let Some(address) = self.addresses.get(host) {
            return Ok(*address);
        }
        let found = tokio::net::lookup_host((host.as_str(), 0));
        match timeout(LOOK_UP, found).await {
            Ok(Ok(mut found)) => {
                let address = found.next().as_ref().map(SocketAddr::ip);
                address.ok_or_else(|| format!("the resolver has no address of {host}"))
            }
            Ok(Err(error)) => Err(format!("the resolver does not find {host}: {error}")),
            Err(_) => Err(format!("the resolver does not answer about {host}")),
        }
    }

    /// The host with an address.
    ///
    /// # Errors
    /// If neither the operator nor the resolver knows its name.
    pub async fn host_at(&self, address: IpAddr) -> Result<HostName, String> {
        if let Some(host) = self.hosts.get(&address) {
            return Ok(host.clone());
        }
        let found = spawn_blocking(move || dns_lookup::lookup_addr(&address));
        match timeout(LOOK_UP, found).await {
            Ok(Ok(Ok(name))) => HostName::new(&name).map_err(|_| {
                // Without a name the resolver returns the address.
                format!(
                    "the next host, {address}, has no name: add it to the resolver or /etc/hosts"
                )
            }),
            Ok(_) => Err(format!(
                "the resolver has no name of the next host, {address}"
            )),
            Err(_) => Err(format!(
                "the resolver does not answer about the next host, {address}"
            )),
        }
    }
}

/// The longest time for a look-up. Shorter than a hold lasts.
const LOOK_UP: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn given_names_come_first_and_unknown_ones_are_named() {
        let given = ["router=10.0.0.1", "router=10.0.1.1", "B=10.0.1.2"];
        let given = given.map(|text| text.parse::<HostAddress>().expect("valid"));
        let names = Names::new(&given);
        let router = HostName::new("router").expect("valid");
        let address = names.address_of(&router).await.expect("given");
        assert_eq!(address, IpAddr::from([10, 0, 0, 1]));
        for at in [[10, 0, 0, 1], [10, 0, 1, 1]] {
            assert_eq!(names.host_at(at.into()).await.as_ref(), Ok(&router));
        }
        let unknown = HostName::new("nowhere.invalid").expect("valid");
        let error = names.address_of(&unknown).await.expect_err("unknown");
        assert!(error.contains("nowhere.invalid"), "{error}");
        let error = names.host_at([192, 0, 2, 77].into()).await;
        let error = error.expect_err("unknown");
        assert!(error.contains("192.0.2.77"), "{error}");
    }

    #[test]
    fn invalid_texts_are_named() {
        let error = |text: &str| {
            text.parse::<HostAddress>()
                .expect_err("invalid")
                .to_string()
        };
        assert!(error("router").contains("NAME=ADDRESS"));
        assert!(error("router=10.0.0").contains("10.0.0"));
        assert!(error("-=10.0.0.1").contains("host name"));
    }
}
