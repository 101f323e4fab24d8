//! What an operator sets from outside: the fields of the configuration that the program leaves at 0 or NULL
//! take these variables. docs/configuration.md lists them.
//!
//! What the program sets is never replaced, so that no variable weakens a secret or encryption.

use super::config::{EndpointConfig, Idle, LIVENESS_OFF, SECOND_NS};
use crate::status::{Error, Result};
use crate::transfer::options::DAY_NS;
use std::ffi::OsString;
use std::path::PathBuf;

/// A field. A number has bounds, and a default.
pub enum Field {
    Count(fn(&mut EndpointConfig) -> &mut u64, (u64, u64), u64),
    Time(fn(&mut EndpointConfig) -> &mut u64, (u64, u64), u64),
    Flag(fn(&mut EndpointConfig) -> &mut bool),
    Text(fn(&mut EndpointConfig) -> &mut Option<String>),
    Path(fn(&mut EndpointConfig) -> &mut Option<PathBuf>),
    Idle,
}

/// By variable. `WEFT_RAILS` is read where NICs are chosen, since the topology wants it as well.
pub const FIELDS: &[(&str, Field)] = &[
    ("WEFT_FABRIC", Field::Text(|c| &mut c.fabric)),
    ("WEFT_RAIL_COUNT", Field::Count(|c| &mut c.rail_count, (1, 64), 0)),
    ("WEFT_MIN_RAILS", Field::Count(|c| &mut c.min_rails, (1, 64), 1)),
    ("WEFT_TCP_STREAMS", Field::Count(|c| &mut c.tcp_streams, (1, 16), 0)),
    ("WEFT_TCP_PORTS", Field::Text(|c| &mut c.tcp_ports)),
    ("WEFT_TCP_ADDRESS", Field::Text(|c| &mut c.tcp_address)),
    ("WEFT_TCP_DSCP", Field::Count(|c| &mut c.tcp_dscp, (1, 63), 0)),
    ("WEFT_WORKERS", Field::Count(|c| &mut c.workers, (1, 64), 0)),
    ("WEFT_IDLE", Field::Idle),
    ("WEFT_MAX_TRANSFERS", Field::Count(|c| &mut c.max_transfers, (1, 1 << 20), 16_384)),
    ("WEFT_QUEUE_DEPTH", Field::Count(|c| &mut c.queue_depth, (16, 1 << 20), 16_384)),
    ("WEFT_MAX_PEERS", Field::Count(|c| &mut c.max_peers, (1, 65_536), 4096)),
    ("WEFT_MAX_COUNTERS", Field::Count(|c| &mut c.max_counters, (1, 1 << 20), 65_536)),
    ("WEFT_MESSAGE_BYTES", Field::Count(|c| &mut c.message_bytes, (1 << 20, 1 << 30), 16 << 20)),
    ("WEFT_TIMEOUT", Field::Time(|c| &mut c.timeout_ns, (1, DAY_NS), 30 * SECOND_NS)),
    ("WEFT_CONNECT_TIMEOUT", Field::Time(|c| &mut c.connect_timeout_ns, (1, DAY_NS), 10 * SECOND_NS)),
    (LIVENESS, Field::Time(|c| &mut c.liveness_ns, (SECOND_NS, DAY_NS), 120 * SECOND_NS)),
    ("WEFT_ENCRYPT", Field::Flag(|c| &mut c.encrypt)),
    (SECRET_FILE, Field::Path(|c| &mut c.secret_file)),
    ("WEFT_TRACE", Field::Path(|c| &mut c.trace)),
];

/// The time that may also be off.
pub const LIVENESS: &str = "WEFT_LIVENESS";
const SECRET_FILE: &str = "WEFT_SECRET_FILE";

/// The name of a variable's field.
pub fn field_of(variable: &str, field: &Field) -> String {
    let unit = if matches!(field, Field::Time(..)) { "_ns" } else { "" };
    variable.trim_start_matches("WEFT_").to_lowercase() + unit
}

/// Fills what is unset. Returns the variables that were taken, as an error of the open shows them.
pub fn fill(config: &mut EndpointConfig, variable: impl Fn(&str) -> Option<OsString>) -> Result<Vec<String>> {
    let mut taken = Vec::new();
    let has_secret = config.secret.is_some() || config.other_secret.is_some();
    for (name, field) in FIELDS {
        if *name == SECRET_FILE && has_secret {
            continue;
        }
        let Some(value) = variable(name) else { continue };
        if set(config, name, field, &value)? {
            taken.push(format!("{name}={}", value.to_string_lossy()));
        }
    }
    Ok(taken)
}

/// Whether the field was unset, and has the value now.
fn set(config: &mut EndpointConfig, name: &str, field: &Field, value: &OsString) -> Result<bool> {
    fn unset<T: Default + PartialEq>(field: &mut T, value: impl FnOnce() -> Result<T>) -> Result<bool> {
        let is_unset = *field == T::default();
        if is_unset {
            *field = value()?;
        }
        Ok(is_unset)
    }
    let text = || {
        let text = value.to_str().map(str::trim);
        text.ok_or_else(|| Error::invalid(format!("{name} is not text in UTF-8")))
    };
    let invalid = |what: &str| Error::invalid(format!("{name} is {value:?}: write {what}"));
    match field {
        Field::Count(member, ..) => {
            unset(member(config), || text()?.parse().map_err(|_| invalid("a number, as 8")))
        }
        Field::Time(member, ..) => unset(member(config), || {
            let text = text()?;
            let off = name == LIVENESS && text == "off";
            let or_off = if name == LIVENESS { ", or off" } else { "" };
            let time = if off { Some(LIVENESS_OFF) } else { nanoseconds(text) };
            time.ok_or_else(|| invalid(&format!("a time with its unit, as 30s or 500ms{or_off}")))
        }),
        Field::Flag(member) => unset(member(config), || match text()? {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(invalid("0 or 1")),
        }),
        Field::Text(member) => unset(member(config), || text().map(|text| Some(text.to_owned()))),
        Field::Path(member) => unset(member(config), || Ok(Some(value.into()))),
        Field::Idle => unset(&mut config.idle, || match text()? {
            "adaptive" => Ok(Idle::Adaptive),
            "spin" => Ok(Idle::Spin),
            "sleep" => Ok(Idle::Sleep),
            _ => Err(invalid("adaptive, spin or sleep")),
        }),
    }
}

/// "500ms", "30s", "2m" or "1h".
fn nanoseconds(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit: u64 = match unit.trim_start() {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit).filter(|ns| *ns > 0)
}

#[cfg(test)]
mod tests {
    use super::super::config::Secret;
    use super::*;

    fn with(config: &mut EndpointConfig, variables: &[(&str, &str)]) -> Result<Vec<String>> {
        fill(config, |name| {
            variables.iter().find(|(named, _)| *named == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn variables_set_what_the_program_left_unset() {
        let mut config = EndpointConfig::default();
        (config.rail_count, config.fabric) = (3, Some("tcp".into()));
        let taken = with(
            &mut config,
            &[
                ("WEFT_RAIL_COUNT", "4"),
                ("WEFT_FABRIC", "host"),
                ("WEFT_TIMEOUT", "1500ms"),
                ("WEFT_LIVENESS", "off"),
                ("WEFT_ENCRYPT", "1"),
                ("WEFT_IDLE", "spin"),
                ("WEFT_TCP_PORTS", " 7000-7003 "),
            ],
        );
        let taken = taken.unwrap();
        assert_eq!((config.rail_count, config.fabric.as_deref()), (3, Some("tcp")));
        assert_eq!((config.timeout_ns, config.liveness_ns), (1_500_000_000, LIVENESS_OFF));
        assert!(config.encrypt && config.idle == Idle::Spin);
        assert_eq!(config.tcp_ports.as_deref(), Some("7000-7003"));
        assert_eq!(taken.len(), 5, "{taken:?}");
    }

    #[test]
    fn no_variable_weakens_what_the_program_set() {
        let mut config = EndpointConfig::default();
        (config.secret, config.encrypt) = (Some(Secret(vec![1; 32])), true);
        with(&mut config, &[("WEFT_SECRET_FILE", "/else"), ("WEFT_ENCRYPT", "0")]).unwrap();
        assert!(config.secret_file.is_none() && config.encrypt);
    }

    #[test]
    fn a_value_that_is_none_is_named_with_its_variable() {
        for (name, value) in [
            ("WEFT_RAIL_COUNT", "many"),
            ("WEFT_RAIL_COUNT", "-1"),
            ("WEFT_TIMEOUT", "30"),
            ("WEFT_TIMEOUT", "0s"),
            ("WEFT_TIMEOUT", "off"),
            ("WEFT_TIMEOUT", "18446744073709551615h"),
            ("WEFT_LIVENESS", "never"),
            ("WEFT_ENCRYPT", "yes"),
            ("WEFT_IDLE", "lazy"),
        ] {
            let error = with(&mut EndpointConfig::default(), &[(name, value)]).unwrap_err();
            assert!(error.message.contains(name) && error.message.contains(value), "{error:?}");
        }
    }
}
