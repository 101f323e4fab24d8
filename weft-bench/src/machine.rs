//! A description of the machine, without which numbers mean nothing.

use serde::{Deserialize, Serialize};
use std::fs::read_to_string;

#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Facts(Vec<(String, String)>);

impl Facts {
    pub fn of_machine() -> Facts {
        let mut facts = Facts::default();
        let info = read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model =
            info.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split(':').nth(1));
        facts.add("CPU", model.unwrap_or("unknown").trim());
        facts.add("cores", &std::thread::available_parallelism().map_or(0, usize::from).to_string());
        facts.add("kernel", read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim());
        let huge = read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        let chosen = huge.split('[').nth(1).and_then(|rest| rest.split(']').next());
        facts.add("transparent huge pages", chosen.unwrap_or("none"));
        let load = read_to_string("/proc/loadavg").unwrap_or_default();
        facts.add("load before", load.split(' ').next().unwrap_or_default());
        facts
    }

    pub fn add(&mut self, name: &str, value: &str) {
        self.0.push((name.to_owned(), value.to_owned()));
    }

    /// Adds the values that are still missing.
    pub fn learn(&mut self, other: &Facts) {
        for (name, value) in &other.0 {
            if !self.0.iter().any(|(known, _)| known == name) {
                self.add(name, value);
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &(String, String)> {
        self.0.iter()
    }
}
