//! A range of host memory, and what this process may do with it. The kernel or a NIC would
//! answer for a page that cannot be read or written; where Weft copies by itself, an access
//! would be the end of the process. So it is checked when memory is registered.

use crate::status::{Error, Result};
use std::fs;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    pub base: u64,
    pub len: u64,
}

/// Checks that all of the ranges can be read. Returns whether they can be written, too.
pub fn check(ranges: &[Range]) -> Result<bool> {
    ranges.iter().enumerate().try_for_each(|(i, range)| check_mapped(i, range))?;
    // Without /proc the claim cannot be checked.
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else { return Ok(true) };
    let readable = Runs::with(&maps, "r");
    if let Some(index) = ranges.iter().position(|range| !readable.cover(range)) {
        let Range { base, len } = ranges[index];
        return Err(Error::invalid(format!(
            "range {index} ({len} bytes at {base:#x}) has pages that this process may not read"
        )));
    }
    let writable = Runs::with(&maps, "w");
    Ok(ranges.iter().all(|range| writable.cover(range)))
}

/// Memory that is not there would be found out by a provider in mid-transfer, at
/// the cost of the connection.
fn check_mapped(index: usize, range: &Range) -> Result<()> {
    // SAFETY: asks for a constant.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64;
    let first = range.base / page * page;
    let len = (range.base + range.len - first) as usize;
    // SAFETY: with MS_ASYNC it changes nothing; what is not mapped is answered by ENOMEM.
    let rc = unsafe { libc::msync(first as *mut std::ffi::c_void, len, libc::MS_ASYNC) };
    if rc != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM) {
        return Err(Error::invalid(format!(
            "range {index} ({} bytes at {:#x}) is not all mapped memory of this process",
            range.len, range.base
        )));
    }
    Ok(())
}

/// Mappings with a right, in order, those that touch in one.
struct Runs(Vec<(u64, u64)>);

impl Runs {
    /// From lines as "7f5c3000-7f5c5000 rw-p 00000000 00:00 0".
    fn with(maps: &str, right: &str) -> Runs {
        let mut all: Vec<(u64, u64)> = Vec::new();
        for line in maps.lines() {
            let mut words = line.split(' ');
            let (Some(addresses), Some(rights)) = (words.next(), words.next()) else { continue };
            let Some((start, end)) = addresses.split_once('-') else { continue };
            let number = |text| u64::from_str_radix(text, 16).ok();
            let (Some(start), Some(end)) = (number(start), number(end)) else { continue };
            if !rights.contains(right) {
                continue;
            }
            match all.last_mut().filter(|last| last.1 == start) {
                Some(last) => last.1 = end,
                None => all.push((start, end)),
            }
        }
        Runs(all)
    }

    fn cover(&self, range: &Range) -> bool {
        let after = self.0.partition_point(|(start, _)| *start <= range.base);
        let found = after.checked_sub(1).map(|at| self.0[at]);
        found.is_some_and(|(_, end)| range.base < end && range.len <= end - range.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_that_touch_are_one() {
        let maps =
            "1000-3000 rw-p 0 0 0 x\n3000-4000 -w-p 0 0 0\n4000-5000 r--p 0\n6000-7000 rw-s 0\nrubbish\n";
        assert_eq!(Runs::with(maps, "w").0, [(0x1000, 0x4000), (0x6000, 0x7000)]);
        assert_eq!(Runs::with(maps, "r").0, [(0x1000, 0x3000), (0x4000, 0x5000), (0x6000, 0x7000)]);
    }

    #[test]
    fn this_process_knows_its_constants_from_its_variables() {
        static CONSTANT: [u8; 64] = [7; 64];
        let bytes = vec![0u8; 100_000];
        let range = |base: *const u8, len: u64| Range { base: base as u64, len };
        assert!(check(&[range(bytes.as_ptr(), 100_000)]).expect("mapped"));
        assert!(!check(&[range(bytes.as_ptr(), 9), range(CONSTANT.as_ptr(), 64)]).expect("mapped"));
        assert!(check(&[range(bytes.as_ptr(), 1 << 46)]).is_err());
    }
}
