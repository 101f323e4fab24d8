//! Which memory of this process can be written to. Other fabrics have a kernel or
//! a NIC between them and a read-only page; here, a store into one would be the
//! end of the process.

use crate::fabric::HostRange;
use std::fs;

/// Writable mappings, in order, those that touch in one.
#[derive(Default)]
pub struct Writable(Vec<(u64, u64)>);

impl Writable {
    /// Whether all of a range can be written to. What was seen before is believed:
    /// registered memory keeps its protection.
    pub fn covers(&mut self, range: HostRange) -> bool {
        if self.knows(range) {
            return true;
        }
        match fs::read_to_string("/proc/self/maps") {
            Ok(maps) => self.0 = read(&maps),
            Err(_) => return true, // Nobody knows better.
        }
        self.knows(range)
    }

    fn knows(&self, range: HostRange) -> bool {
        let after = self.0.partition_point(|(start, _)| *start <= range.base);
        let found = after.checked_sub(1).map(|at| self.0[at]);
        found.is_some_and(|(_, end)| range.base < end && range.len <= end - range.base)
    }
}

/// Lines as "7f5c3000-7f5c5000 rw-p 00000000 00:00 0".
fn read(maps: &str) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = Vec::new();
    for line in maps.lines() {
        let mut words = line.split(' ');
        let (Some(addresses), Some(rights)) = (words.next(), words.next()) else { continue };
        let Some((start, end)) = addresses.split_once('-') else { continue };
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (Some(start), Some(end)) = (number(start), number(end)) else { continue };
        if rights.as_bytes().get(1) != Some(&b'w') {
            continue;
        }
        match all.last_mut().filter(|last| last.1 == start) {
            Some(last) => last.1 = end,
            None => all.push((start, end)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_that_touch_are_one() {
        let maps =
            "1000-3000 rw-p 0 0 0 x\n3000-4000 -w-p 0 0 0\n4000-5000 r--p 0\n6000-7000 rw-s 0\nrubbish\n";
        assert_eq!(read(maps), [(0x1000, 0x4000), (0x6000, 0x7000)]);
    }

    #[test]
    fn only_what_is_writable_is_covered() {
        static CONSTANT: [u8; 64] = [7; 64];
        let mut writable = Writable::default();
        let mut bytes = vec![0u8; 100_000];
        let range = |base: *const u8, len| HostRange { base: base as u64, len };
        assert!(writable.covers(range(bytes.as_mut_ptr(), 100_000)));
        assert!(!writable.covers(range(CONSTANT.as_ptr(), 64)));
        assert!(!writable.covers(range(bytes.as_ptr(), 1 << 46)));
    }
}
