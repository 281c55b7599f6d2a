//! Which `Host` headers are answered: what keeps a web page from reaching a server on the visitor's own machine by
//! giving its own name the address of that machine (DNS rebinding).
//!
//! Addresses are always fine: a page that was rebound comes under a name. So is `localhost`. Other names are listed by
//! the host.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::http::{header, request::Parts};

use crate::error::ApiError;

/// The names that are answered.
#[derive(Clone, Debug)]
pub(crate) enum Hosts {
    Any,
    Names(Vec<String>),
}

impl Hosts {
    /// Answers to this name as well. A port is not part of it.
    pub(crate) fn allow(&mut self, name: &str) {
        let name = name_of(name.trim());
        if let Hosts::Names(known) = self
            && !name.is_empty()
        {
            known.push(name.to_owned());
        }
    }

    pub(crate) fn check(&self, parts: &Parts) -> Result<(), ApiError> {
        let Hosts::Names(names) = self else {
            return Ok(());
        };
        let header = parts.headers.get(header::HOST).and_then(|value| value.to_str().ok());
        let host = parts.uri.authority().map(|authority| authority.as_str()).or(header);
        match host.map(name_of) {
            Some(host) if is_allowed(host, names) => Ok(()),
            Some(host) => Err(ApiError::forbidden(format!(
                "the host name {host:?} is not one this server answers to"
            ))),
            None => Err(ApiError::forbidden("the request has no `Host` header")),
        }
    }
}

/// The name without the port.
fn name_of(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').map_or(host, |(address, _)| address);
    }
    host.split_once(':').map_or(host, |(name, _)| name)
}

fn is_allowed(host: &str, names: &[String]) -> bool {
    let is_address = host.parse::<Ipv4Addr>().is_ok() || host.parse::<Ipv6Addr>().is_ok();
    let known = || names.iter().any(|name| host.eq_ignore_ascii_case(name));
    is_address || host.eq_ignore_ascii_case("localhost") || known()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_listed_names_are_answered() {
        let mut hosts = Hosts::Names(Vec::new());
        for name in [" piton.example", "ported.example:443", "", ":80", "::1"] {
            hosts.allow(name);
        }
        let Hosts::Names(names) = hosts else { panic!("still a list of names") };
        let allowed = |host| is_allowed(name_of(host), &names);
        for host in [
            "localhost",
            "LocalHost:7420",
            "127.0.0.1:7420",
            "10.1.2.3",
            "[::1]:7420",
            "[::1]",
            "piton.example:443",
            "ported.example",
            "ported.example:7420",
        ] {
            assert!(allowed(host), "{host}");
        }
        for host in
            ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "[x", ":80"]
        {
            assert!(!allowed(host), "{host}");
        }
    }
}
