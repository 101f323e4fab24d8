//! Socket options of an endpoint's config.

use crate::status::{Error, Result};
use crate::wire::secret::Secrets;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::Arc;

/// The timeout where peers may be silent for ever.
const PATIENCE_NS: u64 = 120_000_000_000;

#[derive(Debug, Default)]
pub struct Options {
    /// The secrets: connections are encrypted, and prove one of these.
    pub secrets: Option<Arc<Secrets>>,
    /// How long a peer may be silent; `None`: for ever.
    pub liveness_ns: Option<u64>,
    pub at: At,
    /// The DSCP of all packets (6 bits); 0: the system's default.
    pub dscp: u8,
    /// The devices of the endpoint's NICs.
    pub nics: Vec<u32>,
    /// The warning about packets that arrive by another NIC was logged.
    pub warned: AtomicBool,
    /// How many ports NICs have tried: no two NICs get the same port, whatever their addresses, so
    /// that one advertised address suffices.
    pub tried: AtomicU16,
}

/// The addresses at which peers find the NICs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct At {
    ports: Option<Ports>,
    advertised: Option<Advertised>,
}

/// Ports to listen on, including the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ports {
    first: u16,
    last: u16,
}

/// The address at which peers find NICs behind address translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Advertised {
    ip: IpAddr,
    /// The translated first port of the range; `None`: ports stay the same.
    port: Option<u16>,
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

impl Options {
    /// How long a dialled NIC may take to answer: the port may belong to another program.
    pub fn patience_ns(&self) -> u64 {
        self.liveness_ns.unwrap_or(PATIENCE_NS)
    }

    /// The next port to try; `None` after the last.
    pub fn next_port(&self) -> Option<u16> {
        let ports = self.at.ports?;
        let next = |tried: u16| (tried <= ports.last - ports.first).then_some(tried + 1);
        let tried = self.tried.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        Some(ports.first + tried)
    }
}

impl At {
    /// Parses the config's `tcp_ports` and `tcp_address`.
    pub fn new(ports: Option<&str>, address: Option<&str>) -> Result<At> {
        let ports = ports.map(Ports::read).transpose()?;
        let advertised = address.map(|address| Advertised::read(address, ports)).transpose()?;
        Ok(At { ports, advertised })
    }

    /// The range of ports, in readable form; `None`: the system chooses one.
    pub fn ports(&self) -> Option<String> {
        self.ports.map(|ports| ports.to_string())
    }

    pub fn ip(&self) -> Option<IpAddr> {
        self.advertised.map(|advertised| advertised.ip)
    }

    /// The address at which peers find a listener.
    pub fn advertised(&self, listener: SocketAddr) -> SocketAddr {
        let Some(advertised) = self.advertised else { return listener };
        let first = self.ports.map_or(0, |ports| ports.first);
        let port = advertised.port.map(|port| port.wrapping_add(listener.port().wrapping_sub(first)));
        SocketAddr::new(advertised.ip, port.unwrap_or(listener.port()))
    }
}

impl Ports {
    fn read(text: &str) -> Result<Ports> {
        let malformed = || {
            Error::invalid(format!(
                "tcp_ports \"{text}\": write ports as \"7000\" or \"7000-7099\", of 1 to 65535"
            ))
        };
        let port = |text: &str| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u16>().ok().filter(|port| digits && *port > 0).ok_or_else(malformed)
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let ports = Ports { first: port(first)?, last: port(last)? };
        if ports.first > ports.last {
            return Err(Error::invalid(format!("tcp_ports \"{text}\": the first is above the last")));
        }
        Ok(ports)
    }
}

impl Advertised {
    fn read(text: &str, ports: Option<Ports>) -> Result<Advertised> {
        let refused = |why: &str| Err(Error::invalid(format!("tcp_address \"{text}\": {why}")));
        let advertised = match (text.parse::<IpAddr>(), text.parse::<SocketAddr>()) {
            (Ok(ip), _) => Advertised { ip, port: None },
            (_, Ok(whole)) => Advertised { ip: whole.ip(), port: Some(whole.port()) },
            _ => {
                return refused(
                    "write an IP address, as \"203.0.113.7\" or \"2001:db8::7\", or one with a port, as \
                     \"203.0.113.7:30000\" or \"[2001:db8::7]:30000\"; names are not looked up",
                )
            }
        };
        if advertised.ip.is_unspecified() || advertised.ip.is_multicast() {
            return refused("no peer can connect to that address");
        }
        match (advertised.port, ports) {
            (None, _) => Ok(advertised),
            (Some(0), _) => refused("port 0 cannot be connected to"),
            (Some(_), None) => refused("it has a port, so set tcp_ports, whose first port is found there"),
            (Some(port), Some(ports)) if port.checked_add(ports.last - ports.first).is_none() => {
                refused(&format!("ports end at 65535, before the last of tcp_ports {ports} is found"))
            }
            _ => Ok(advertised),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_addresses_are_parsed_strictly() {
        let refused = |ports, address| At::new(ports, address).unwrap_err().message.into_owned();
        for (ports, why) in [
            ("7000-6999", "the first is above the last"),
            ("0", "of 1 to 65535"),
            ("7000-65536", "of 1 to 65535"),
            ("+7000", "write ports as"),
            ("7000 - 7009", "write ports as"),
            ("7000-7009-7010", "write ports as"),
            ("-7000", "write ports as"),
            ("7000-", "write ports as"),
            ("ssh", "write ports as"),
        ] {
            let said = refused(Some(ports), None);
            assert!(said.starts_with(&format!("tcp_ports \"{ports}\": ")) && said.contains(why), "{said}");
        }
        for (ports, address, why) in [
            (None, "example.com", "names are not looked up"),
            (None, "10.0.0", "write an IP address"),
            (None, "10.0.0.1 ", "write an IP address"),
            (None, "0.0.0.0", "no peer can connect"),
            (None, "::", "no peer can connect"),
            (None, "ff02::1", "no peer can connect"),
            (None, "10.0.0.1:7000", "set tcp_ports"),
            (Some("7000"), "10.0.0.1:0", "port 0"),
            (Some("7000-7099"), "10.0.0.1:65500", "ports end at 65535"),
            (None, "fe80::1%eth0", "write an IP address"),
        ] {
            let said = refused(ports, Some(address));
            assert!(
                said.starts_with(&format!("tcp_address \"{address}\": ")) && said.contains(why),
                "{said}"
            );
        }
    }

    #[test]
    fn ports_are_assigned_once_and_translated() {
        let translated = |ports: &str, address: Option<&str>| Options {
            at: At::new(Some(ports), address).unwrap(),
            ..Options::default()
        };
        let options = translated("65534-65535", Some("[2001:db8::7]:30000"));
        assert_eq!([(); 4].map(|()| options.next_port()), [Some(65534), Some(65535), None, None]);
        let at = |options: &Options, port| {
            options.at.advertised(SocketAddr::new([10, 0, 0, 1].into(), port)).to_string()
        };
        assert_eq!(at(&options, 65535), "[2001:db8::7]:30001");
        assert_eq!(at(&translated("7000-7009", Some("192.0.2.1")), 7003), "192.0.2.1:7003");
        assert_eq!(at(&translated("7000-7009", None), 7003), "10.0.0.1:7003");
        assert_eq!(at(&Options::default(), 4711), "10.0.0.1:4711");
        assert_eq!(Options::default().next_port(), None);
    }
}
