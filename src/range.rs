//! Ranges of host memory, and what this process may do with them. The kernel or a NIC reports an
//! error for a page that cannot be read or written; where Weft copies by itself, such an access
//! would end the process. So rights and pages are checked when memory is registered.

use crate::kernel_copy;
use crate::mappings::{File, Mapping, Mappings, Pages};
use crate::status::{Error, Result, Status};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    pub base: u64,
    pub len: u64,
}

/// Whether one of these ranges, disjoint and in the order of their addresses, contains these bytes.
pub fn one_contains(ranges: &[Range], address: u64, len: u64) -> bool {
    let after = ranges.partition_point(|range| range.base <= address);
    after.checked_sub(1).is_some_and(|at| {
        let (range, offset) = (&ranges[at], address - ranges[at].base);
        offset <= range.len && len <= range.len - offset
    })
}

/// What a check has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Checked {
    /// The first range that cannot be written.
    pub fixed: Option<usize>,
    /// A file is mapped there that can be truncated: its pages may become unreachable.
    pub may_fault: bool,
}

/// Checks that all ranges can be read, and have their pages.
pub fn check<'a>(ranges: impl Iterator<Item = (usize, &'a Range)>) -> Result<Checked> {
    let mut found = Checked::default();
    // Miri's memory is no process's; an access outside of it is reported.
    if cfg!(miri) {
        return Ok(found);
    }
    let (mut mappings, mut last) = (None, None);
    for (index, range) in ranges {
        // Without /proc, the rights cannot be checked.
        let Some(mappings) = mappings.get_or_insert_with(Mappings::open) else {
            check_mapped(index, range)?;
            continue;
        };
        let end = range.base + range.len;
        let mut at = range.base;
        while at < end {
            let has = |entry: &(Mapping, Pages)| (entry.0.start..entry.0.end).contains(&at);
            if !last.as_ref().is_some_and(has) {
                last = mappings.at(at).map(|mapping| {
                    let pages = mapping.file.as_ref().map_or(Pages::Stay, File::pages);
                    (mapping, pages)
                });
            }
            let Some((mapping, pages)) = &last else { return Err(unmapped(index, range)) };
            if !mapping.readable {
                return Err(Error::invalid(format!(
                    "range {index} ({} bytes at {:#x}) has pages that this process may not read",
                    range.len, range.base
                )));
            }
            if !mapping.writable {
                found.fixed.get_or_insert(index);
            }
            let part = Range { base: at, len: end.min(mapping.end) - at };
            let Some(may_fault) = with_pages(&part, *pages) else {
                let name = mapping.file.as_ref().map_or("", |file| &file.name);
                return Err(Error::new(
                    Status::NoMemory,
                    format!(
                        "range {index} ({} bytes at {:#x}) has pages that are not there: the file {name}, mapped at \
                         {:#x}, is shorter, or its file system is full (df)",
                        range.len, range.base, mapping.start
                    ),
                ));
            };
            found.may_fault |= may_fault;
            at += part.len;
        }
    }
    Ok(found)
}

fn page_len() -> u64 {
    // SAFETY: the call takes no pointers.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64
}

/// Whether pages may become unreachable; `None` if some are already. Those of files in memory are
/// made.
fn with_pages(part: &Range, pages: Pages) -> Option<bool> {
    let page = page_len();
    let first = part.base / page * page;
    let end = part.base + part.len;
    match pages {
        Pages::Stay => Some(false),
        Pages::Memory => {
            let each = (first..end).step_by(page as usize).map(|at| at.max(part.base));
            populate(first, end - first).unwrap_or_else(|| kernel_copy::can_read(each)).then_some(true)
        }
        // Where the last page is there, so are those before it. Reading all of them would take long.
        Pages::Disk if kernel_copy::can_read(std::iter::once(end - 1)) => Some(true),
        // A device's memory after all: the kernel neither copies nor makes its pages.
        Pages::Disk => {
            let here = &raw const page as u64 / page * page;
            let is_device =
                populate((end - 1) / page * page, page).is_none() && populate(here, page).is_some();
            is_device.then_some(false)
        }
    }
}

/// Has the kernel make pages, without a write; `None` if it cannot (Linux before 5.14).
fn populate(first: u64, len: u64) -> Option<bool> {
    const MADV_POPULATE_READ: i32 = 22;
    loop {
        // SAFETY: the advice changes no contents, and the kernel checks the range.
        if unsafe { libc::madvise(first as *mut _, len as usize, MADV_POPULATE_READ) } == 0 {
            return Some(true);
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            Some(libc::EINVAL) => return None,
            _ => return Some(false),
        }
    }
}

/// Otherwise a provider would find unmapped memory in mid-transfer, at the cost of the connection.
fn check_mapped(index: usize, range: &Range) -> Result<()> {
    let first = range.base / page_len() * page_len();
    let len = (range.base + range.len - first) as usize;
    // SAFETY: MS_ASYNC changes nothing, and unmapped memory returns ENOMEM.
    let rc = unsafe { libc::msync(first as *mut std::ffi::c_void, len, libc::MS_ASYNC) };
    if rc != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM) {
        return Err(unmapped(index, range));
    }
    Ok(())
}

fn unmapped(index: usize, range: &Range) -> Error {
    Error::invalid(format!(
        "range {index} ({} bytes at {:#x}) is not all mapped memory of this process",
        range.len, range.base
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_readable_but_not_writable() {
        static CONSTANT: [u8; 64] = [7; 64];
        let bytes = vec![0u8; 100_000];
        let range = |base: *const u8, len: u64| Range { base: base as u64, len };
        let check = |ranges: &[Range]| check(ranges.iter().enumerate());
        assert_eq!(check(&[range(bytes.as_ptr(), 100_000)]).expect("mapped"), Checked::default());
        let both = [range(bytes.as_ptr(), 9), range(CONSTANT.as_ptr(), 64)];
        assert_eq!(check(&both).expect("mapped").fixed, Some(1));
        let invalid = check(&[range(bytes.as_ptr(), 1 << 46)]).err().map(|error| error.status);
        assert_eq!(invalid, Some(Status::Invalid));
    }
}
