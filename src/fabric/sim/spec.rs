//! Parses "sim:like=efa:rails=4".

use super::mode::Like;
use crate::status::{Error, Result};
use crate::wire::address::RAILS_MAX;

/// A simulated machine's NICs, as a fabric's name describes them.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    pub like: Like,
    pub rails: usize,
    /// 0: no limit.
    pub gbps: f64,
    pub depth: usize,
    pub delay_us: f64,
    /// One rail in this many runs at this share of its rate.
    pub slow: Option<(usize, f64)>,
    pub virtual_time: bool,
    pub seed: u64,
    pub world: String,
    pub nocopy: bool,
    /// The device has no RDMA writes, and the provider emulates them.
    pub emulated: bool,
}

impl Default for Spec {
    fn default() -> Self {
        Spec {
            like: Like::Efa,
            rails: 1,
            gbps: 0.0,
            depth: 256,
            delay_us: 0.0,
            slow: None,
            virtual_time: false,
            seed: 1,
            world: "0".into(),
            nocopy: false,
            emulated: false,
        }
    }
}

const KNOWN: &str = "like=tcp|efa|efa-direct|verbs, rails=1..64, gbps=G, depth=16..65536, delay_us=D, \
                     slow=1/N@SHARE, clock=wall|virtual, seed=N, world=NAME, nocopy and emulated";

impl Spec {
    /// Parses a fabric's name; anything unknown, repeated or out of range is an error.
    pub fn parse(name: &str) -> Result<Spec> {
        let mut spec = Spec::default();
        let mut seen: Vec<&str> = Vec::new();
        for part in name.split(':').skip(1) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            if seen.contains(&key) {
                return Err(wrong(name, &format!("{key} is there twice")));
            }
            seen.push(key);
            spec.set(key, value, part).map_err(|why| wrong(name, &why))?;
        }
        Ok(spec)
    }

    fn set(&mut self, key: &str, value: &str, part: &str) -> std::result::Result<(), String> {
        match key {
            "like" => {
                self.like = Like::named(value).ok_or(format!("like=\"{value}\" is none of the modes"))?
            }
            "rails" => self.rails = number(key, value, 1, RAILS_MAX as u64)? as usize,
            "gbps" => self.gbps = real(key, value, 0.0, 100_000.0)?,
            "depth" => self.depth = number(key, value, 16, 65_536)? as usize,
            "delay_us" => self.delay_us = real(key, value, 0.0, 10_000_000.0)?,
            "slow" => self.slow = Some(slow(value)?),
            "clock" => self.virtual_time = clock(value)?,
            "seed" => self.seed = number(key, value, 0, u64::MAX)?,
            "world" => self.world = world(value)?,
            "nocopy" if part == "nocopy" => self.nocopy = true,
            "emulated" if part == "emulated" => self.emulated = true,
            _ => return Err(format!("\"{part}\" is not understood")),
        }
        Ok(())
    }

    /// The fabric name, which both sides must share.
    pub fn fabric(&self) -> String {
        format!("sim:like={}:world={}", self.like.name(), self.world)
    }

    /// A rail's gigabits per second; 0: no limit.
    pub fn rate_of(&self, rail: usize) -> f64 {
        match self.slow {
            Some((one_in, share)) if rail % one_in == 0 => self.gbps * share,
            _ => self.gbps,
        }
    }
}

fn wrong(name: &str, why: &str) -> Error {
    Error::invalid(format!("fabric \"{name}\": {why}; sim takes, after colons, {KNOWN}"))
}

fn number(key: &str, value: &str, least: u64, most: u64) -> std::result::Result<u64, String> {
    let parsed = value.parse().ok().filter(|n| (least..=most).contains(n));
    parsed.ok_or(format!("{key}=\"{value}\" is not a number from {least} to {most}"))
}

fn real(key: &str, value: &str, least: f64, most: f64) -> std::result::Result<f64, String> {
    let parsed = value.parse().ok().filter(|n: &f64| n.is_finite() && (least..=most).contains(n));
    parsed.ok_or(format!("{key}=\"{value}\" is not a number from {least} to {most}"))
}

/// Parses a share such as "1/4@0.5".
fn slow(value: &str) -> std::result::Result<(usize, f64), String> {
    let parts = value.strip_prefix("1/").and_then(|rest| rest.split_once('@'));
    let (one_in, share) = parts.ok_or(format!("slow=\"{value}\" is not like 1/4@0.5"))?;
    Ok((number("slow", one_in, 1, RAILS_MAX as u64)? as usize, real("slow", share, 0.001, 1.0)?))
}

fn clock(value: &str) -> std::result::Result<bool, String> {
    match value {
        "wall" => Ok(false),
        "virtual" => Ok(true),
        _ => Err(format!("clock=\"{value}\" is neither wall nor virtual")),
    }
}

fn world(value: &str) -> std::result::Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if value.is_empty() || value.len() > 24 || !value.chars().all(fits) {
        return Err(format!("world=\"{value}\" is not 1 to 24 letters, digits, \"-\" or \"_\""));
    }
    Ok(value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specification_is_parsed() {
        let name = "sim:like=efa-direct:rails=32:gbps=100:depth=64:delay_us=10:slow=1/4@0.5:\
                    clock=virtual:seed=9:world=a-1:nocopy";
        let spec = Spec::parse(name).unwrap_or_default();
        assert_eq!((spec.like, spec.rails, spec.gbps, spec.depth), (Like::EfaDirect, 32, 100.0, 64));
        assert_eq!((spec.delay_us, spec.slow, spec.virtual_time), (10.0, Some((4, 0.5)), true));
        assert_eq!((spec.seed, spec.world.as_str(), spec.nocopy), (9, "a-1", true));
        assert_eq!((spec.rate_of(0), spec.rate_of(1), spec.rate_of(4)), (50.0, 100.0, 50.0));
        assert_eq!(Spec::parse("sim").ok(), Some(Spec::default()));
    }

    #[test]
    fn invalid_specification_part_is_named() {
        for (name, named) in [
            ("sim:like=ib", "like=\"ib\""),
            ("sim:rails=0", "1 to 64"),
            ("sim:rails=65", "1 to 64"),
            ("sim:gbps=nan", "gbps"),
            ("sim:slow=2/4@1", "1/4@0.5"),
            ("sim:slow=1/4@0", "slow"),
            ("sim:clock=cpu", "virtual"),
            ("sim:world=a b", "world"),
            ("sim:nocopy=1", "nocopy=1"),
            ("sim:seed=1:seed=2", "twice"),
            ("sim:", "\"\""),
            ("sim:depth", "depth"),
        ] {
            let message = Spec::parse(name).map_or_else(|e| e.message.into_owned(), |_| String::new());
            assert!(message.contains(named) && message.contains("slow=1/N@SHARE"), "{name}: {message}");
        }
    }
}
