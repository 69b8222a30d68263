//! Looks up the addresses of the hosts that `netnice link --probe` names ([`resolve`]). This
//! program asks the name service, not the daemon, which must not wait for one. Fails if a name has
//! no address.

use std::net::{IpAddr, ToSocketAddrs};

use netnice_api::Request;

use crate::error::CommandError;

/// Replaces the names of hosts in a request by addresses: each name by its first IPv4 address, or
/// by its first address if it has no IPv4 address. (More hosts report their clock over IPv4.)
///
/// # Errors
/// If a name has no address, or the name service does not answer.
pub(crate) fn resolve(request: Request) -> Result<Request, CommandError> {
    let Request::Link(mut change) = request else {
        return Ok(request);
    };
    for host in change.probes.iter_mut().flatten() {
        if host.parse::<IpAddr>().is_err() {
            *host = address(host)?.to_string();
        }
    }
    Ok(Request::Link(change))
}

fn address(name: &str) -> Result<IpAddr, CommandError> {
    let what = || format!("--probe: the host `{}` has no address", name.escape_debug());
    let found = (name, 0).to_socket_addrs();
    let found = found.map_err(|error| CommandError::io(what(), error))?;
    let found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    let v4 = found.iter().find(|address| address.is_ipv4());
    let first = v4.or(found.first()).copied();
    first.ok_or_else(|| CommandError::io(what(), std::io::ErrorKind::NotFound.into()))
}

#[cfg(test)]
mod tests {
    use netnice_api::LinkChange;

    use super::*;

    #[test]
    fn names_become_addresses_and_addresses_stay() {
        let request = |probes: &[&str]| {
            let probes = probes.iter().map(|host| (*host).to_owned()).collect();
            Request::Link(Box::new(LinkChange {
                probes: Some(probes),
                ..LinkChange::default()
            }))
        };
        let resolved = resolve(request(&["192.0.2.1", "2001:db8::1", "localhost"]));
        let resolved = resolved.expect("addresses");
        assert_eq!(
            resolved,
            request(&["192.0.2.1", "2001:db8::1", "127.0.0.1"])
        );
        let error = resolve(request(&["no host"])).expect_err("no address");
        assert!(error.to_string().contains("`no host`"), "{error}");
    }
}
