//! Ranges of host memory, and this process's rights to them. The kernel or a NIC reports an error
//! for a page that cannot be read or written; where Weft copies by itself, such an access would
//! kill the process. So the rights are checked when memory is registered.

use crate::descriptor;
use crate::status::{Error, Result};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    pub base: u64,
    pub len: u64,
}

/// Checks that all ranges can be read. Returns the first that cannot be written.
pub fn check(ranges: &[Range]) -> Result<Option<usize>> {
    ranges.iter().enumerate().try_for_each(|(i, range)| check_mapped(i, range))?;
    // Without /proc, the rights cannot be checked.
    let Ok(maps) = descriptor::read_to_string("/proc/self/maps") else { return Ok(None) };
    let readable = Runs::with(&maps, "r");
    if let Some(index) = ranges.iter().position(|range| !readable.cover(range)) {
        let Range { base, len } = ranges[index];
        return Err(Error::invalid(format!(
            "range {index} ({len} bytes at {base:#x}) has pages that this process may not read"
        )));
    }
    let writable = Runs::with(&maps, "w");
    Ok(ranges.iter().position(|range| !writable.cover(range)))
}

/// Otherwise a provider would find unmapped memory in mid-transfer, at the cost of the connection.
fn check_mapped(index: usize, range: &Range) -> Result<()> {
    // SAFETY: the call takes no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64;
    let first = range.base / page * page;
    let len = (range.base + range.len - first) as usize;
    // SAFETY: MS_ASYNC changes nothing, and unmapped memory returns ENOMEM.
    let rc = unsafe { libc::msync(first as *mut std::ffi::c_void, len, libc::MS_ASYNC) };
    if rc != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM) {
        return Err(Error::invalid(format!(
            "range {index} ({} bytes at {:#x}) is not all mapped memory of this process",
            range.len, range.base
        )));
    }
    Ok(())
}

/// Mappings with a right, in order; adjacent ones are merged.
struct Runs(Vec<(u64, u64)>);

impl Runs {
    /// From lines like "7f5c3000-7f5c5000 rw-p 00000000 00:00 0".
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
    fn adjacent_mappings_are_merged() {
        let maps =
            "1000-3000 rw-p 0 0 0 x\n3000-4000 -w-p 0 0 0\n4000-5000 r--p 0\n6000-7000 rw-s 0\nrubbish\n";
        assert_eq!(Runs::with(maps, "w").0, [(0x1000, 0x4000), (0x6000, 0x7000)]);
        assert_eq!(Runs::with(maps, "r").0, [(0x1000, 0x3000), (0x4000, 0x5000), (0x6000, 0x7000)]);
    }

    #[test]
    fn constants_are_readable_but_not_writable() {
        static CONSTANT: [u8; 64] = [7; 64];
        let bytes = vec![0u8; 100_000];
        let range = |base: *const u8, len: u64| Range { base: base as u64, len };
        assert_eq!(check(&[range(bytes.as_ptr(), 100_000)]).expect("mapped"), None);
        let both = [range(bytes.as_ptr(), 9), range(CONSTANT.as_ptr(), 64)];
        assert_eq!(check(&both).expect("mapped"), Some(1));
        assert!(check(&[range(bytes.as_ptr(), 1 << 46)]).is_err());
    }
}
