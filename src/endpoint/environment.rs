//! What an operator sets from outside: the fields of the configuration that the program leaves at 0 or NULL
//! take these variables. docs/configuration.md lists them.
//!
//! What the program sets is never replaced, so that no variable weakens a secret or encryption.

use super::config::{Idle, Settings, LIVENESS_OFF};
use crate::status::{Error, Result};
use std::ffi::OsString;
use std::path::PathBuf;

enum Field {
    Count(fn(&mut Settings) -> &mut u64),
    Time(fn(&mut Settings) -> &mut u64),
    Flag(fn(&mut Settings) -> &mut bool),
    Text(fn(&mut Settings) -> &mut Option<String>),
    Path(fn(&mut Settings) -> &mut Option<PathBuf>),
    Idle,
}

/// `WEFT_RAILS` is read where NICs are chosen, since the topology wants it as well.
const FIELDS: &[(&str, Field)] = &[
    ("WEFT_FABRIC", Field::Text(|s| &mut s.fabric)),
    ("WEFT_RAIL_COUNT", Field::Count(|s| &mut s.rail_count)),
    ("WEFT_MIN_RAILS", Field::Count(|s| &mut s.min_rails)),
    ("WEFT_TCP_STREAMS", Field::Count(|s| &mut s.tcp_streams)),
    ("WEFT_TCP_PORTS", Field::Text(|s| &mut s.tcp_ports)),
    ("WEFT_TCP_ADDRESS", Field::Text(|s| &mut s.tcp_address)),
    ("WEFT_TCP_DSCP", Field::Count(|s| &mut s.tcp_dscp)),
    ("WEFT_WORKERS", Field::Count(|s| &mut s.workers)),
    ("WEFT_IDLE", Field::Idle),
    ("WEFT_MAX_TRANSFERS", Field::Count(|s| &mut s.max_transfers)),
    ("WEFT_QUEUE_DEPTH", Field::Count(|s| &mut s.queue_depth)),
    ("WEFT_MAX_PEERS", Field::Count(|s| &mut s.max_peers)),
    ("WEFT_MAX_COUNTERS", Field::Count(|s| &mut s.max_counters)),
    ("WEFT_MESSAGE_BYTES", Field::Count(|s| &mut s.message_bytes)),
    ("WEFT_TIMEOUT", Field::Time(|s| &mut s.timeout_ns)),
    ("WEFT_CONNECT_TIMEOUT", Field::Time(|s| &mut s.connect_timeout_ns)),
    ("WEFT_LIVENESS", Field::Time(|s| &mut s.liveness_ns)),
    ("WEFT_ENCRYPT", Field::Flag(|s| &mut s.encrypt)),
    (SECRET_FILE, Field::Path(|s| &mut s.secret_file)),
    ("WEFT_TRACE", Field::Path(|s| &mut s.trace)),
];

const SECRET_FILE: &str = "WEFT_SECRET_FILE";

/// Fills what is unset. Returns the variables that were taken, as an error of the open shows them.
pub fn fill(settings: &mut Settings, variable: impl Fn(&str) -> Option<OsString>) -> Result<Vec<String>> {
    let mut taken = Vec::new();
    let has_secret = settings.secret.is_some() || settings.other_secret.is_some();
    for (name, field) in FIELDS {
        if *name == SECRET_FILE && has_secret {
            continue;
        }
        let Some(value) = variable(name) else { continue };
        if set(settings, name, field, &value)? {
            taken.push(format!("{name}={}", value.to_string_lossy()));
        }
    }
    Ok(taken)
}

/// Whether the field was unset, and has the value now.
fn set(settings: &mut Settings, name: &str, field: &Field, value: &OsString) -> Result<bool> {
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
        Field::Count(of) => unset(of(settings), || text()?.parse().map_err(|_| invalid("a number, as 8"))),
        Field::Time(of) => unset(of(settings), || {
            let text = text()?;
            let off = name.ends_with("LIVENESS") && text == "off";
            let or_off = if name.ends_with("LIVENESS") { ", or off" } else { "" };
            let time = if off { Some(LIVENESS_OFF) } else { nanoseconds(text) };
            time.ok_or_else(|| invalid(&format!("a time with its unit, as 30s or 500ms{or_off}")))
        }),
        Field::Flag(of) => unset(of(settings), || match text()? {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(invalid("0 or 1")),
        }),
        Field::Text(of) => unset(of(settings), || text().map(|text| Some(text.to_owned()))),
        Field::Path(of) => unset(of(settings), || Ok(Some(value.into()))),
        Field::Idle => unset(&mut settings.idle, || match text()? {
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
    use super::*;

    fn with(settings: &mut Settings, variables: &[(&str, &str)]) -> Result<Vec<String>> {
        fill(settings, |name| {
            variables.iter().find(|(named, _)| *named == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn variables_set_what_the_program_left_unset() {
        let mut settings = Settings::default();
        (settings.rail_count, settings.fabric) = (3, Some("tcp".into()));
        let taken = with(
            &mut settings,
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
        assert_eq!((settings.rail_count, settings.fabric.as_deref()), (3, Some("tcp")));
        assert_eq!((settings.timeout_ns, settings.liveness_ns), (1_500_000_000, LIVENESS_OFF));
        assert!(settings.encrypt && settings.idle == Idle::Spin);
        assert_eq!(settings.tcp_ports.as_deref(), Some("7000-7003"));
        assert_eq!(taken.len(), 5, "{taken:?}");
    }

    #[test]
    fn no_variable_weakens_what_the_program_set() {
        let mut settings = Settings::default();
        (settings.secret, settings.encrypt) = (Some(vec![1; 32]), true);
        with(&mut settings, &[("WEFT_SECRET_FILE", "/else"), ("WEFT_ENCRYPT", "0")]).unwrap();
        assert!(settings.secret_file.is_none() && settings.encrypt);
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
            let error = with(&mut Settings::default(), &[(name, value)]).unwrap_err();
            assert!(error.message.contains(name) && error.message.contains(value), "{error:?}");
        }
    }
}
