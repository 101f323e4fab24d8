//! This process's mappings, as the kernel tells them: one at a time where it can (Linux 6.11), else
//! the whole list, which takes milliseconds for a process that has many.

use crate::descriptor;
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub readable: bool,
    pub writable: bool,
    pub file: Option<File>,
}

/// A mapped file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its path, with " (deleted)" behind it once it has none.
    pub name: String,
    device: libc::dev_t,
}

/// How a file's pages come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// They stay: a device's, or the kernel's own.
    Stay,
    /// They are memory, which may lack when they are touched first; the file can be truncated.
    Memory,
    /// They are read and written back as needed; the file can be truncated.
    Disk,
}

impl File {
    pub fn pages(&self) -> Pages {
        const KERNEL: [&str; 4] = ["/SYSV", "/anon_hugepage", "/dmabuf", "/secretmem"];
        let begins = |with: &[&str]| with.iter().any(|with| self.name.starts_with(with));
        let device = begins(&["/dev/"]) && !begins(&["/dev/shm/", "/dev/hugepages/"]);
        match () {
            () if device || begins(&KERNEL) || !begins(&["/"]) => Pages::Stay,
            () if begins(&["/memfd:"]) || self.is_in_memory() => Pages::Memory,
            () => Pages::Disk,
        }
    }

    /// Whether the folder, which a deleted file may still have, is on the same file system, and that
    /// one keeps files in memory.
    fn is_in_memory(&self) -> bool {
        let Some(folder) = Path::new(&self.name).parent() else { return false };
        let Ok(text) = std::ffi::CString::new(folder.as_os_str().as_encoded_bytes()) else { return false };
        // SAFETY: integers, which the call fills in; the path ends with a NUL.
        let (rc, system) = unsafe {
            let mut system: libc::statfs = std::mem::zeroed();
            (libc::statfs(text.as_ptr(), &mut system), system)
        };
        rc == 0
            && matches!(system.f_type, libc::TMPFS_MAGIC | libc::HUGETLBFS_MAGIC)
            && fs::metadata(folder).is_ok_and(|metadata| metadata.dev() == self.device)
    }
}

pub enum Mappings {
    Asked(fs::File),
    Listed(Vec<Mapping>),
}

impl Mappings {
    /// `None` without /proc.
    pub fn open() -> Option<Mappings> {
        let mut file = descriptor::open(OpenOptions::new().read(true), "/proc/self/maps").ok()?;
        let here = &raw const file as u64;
        if ask(&file, here).is_some() {
            return Some(Mappings::Asked(file));
        }
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        Some(Mappings::Listed(text.lines().filter_map(parse).collect()))
    }

    /// The mapping that contains an address.
    pub fn at(&self, address: u64) -> Option<Mapping> {
        match self {
            Mappings::Asked(file) => ask(file, address),
            Mappings::Listed(all) => {
                let after = all.partition_point(|one| one.start <= address);
                all[..after].last().filter(|one| address < one.end).cloned()
            }
        }
    }
}

/// `struct procmap_query` of <linux/fs.h>.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rights: u64,
    page: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_len: u32,
    build_len: u32,
    name: u64,
    build: u64,
}

const _: () = assert!(size_of::<Query>() == 104);
/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: u64 = 3 << 30 | (size_of::<Query>() as u64) << 16 | (b'f' as u64) << 8 | 17;
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
/// Bytes for a name with its NUL, of which a path has at most this many.
const NAME: usize = 4096;

fn ask(maps: &fs::File, address: u64) -> Option<Mapping> {
    let query = |name: &mut [u8]| {
        let mut query = Query { size: size_of::<Query>() as u64, address, ..Query::default() };
        if !name.is_empty() {
            (query.name, query.name_len) = (name.as_mut_ptr() as u64, name.len() as u32);
        }
        // SAFETY: the kernel fills in the struct, which says how large it is, and at most the whole
        // name.
        let rc = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) };
        (rc == 0).then_some(query)
    };
    let mut found = query(&mut [])?;
    let file = match found.inode {
        0 => None,
        _ => {
            let mut name = vec![0; NAME];
            found = query(&mut name)?;
            name.truncate((found.name_len as usize).saturating_sub(1));
            let name = String::from_utf8_lossy(&name).into_owned();
            Some(File { name, device: libc::makedev(found.major, found.minor) })
        }
    };
    let (readable, writable) = (found.rights & READABLE != 0, found.rights & WRITABLE != 0);
    Some(Mapping { start: found.start, end: found.end, readable, writable, file })
}

/// A line like "7f5c3000-7f5c5000 rw-p 00000000 00:1f 4711       /dev/shm/it".
fn parse(line: &str) -> Option<Mapping> {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?;
    let (major, minor) = words.nth(1)?.split_once(':')?;
    let inode: u64 = words.next()?.parse().ok()?;
    let name = words.next().unwrap_or_default().trim_start().to_owned();
    let device = libc::makedev(hex(major)? as u32, hex(minor)? as u32);
    let file = (inode != 0).then_some(File { name, device });
    let (readable, writable) = (rights.contains('r'), rights.contains('w'));
    Some(Mapping { start: hex(start)?, end: hex(end)?, readable, writable, file })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed() -> Mappings {
        let text = descriptor::read_to_string("/proc/self/maps").expect("a process");
        Mappings::Listed(text.lines().filter_map(parse).collect())
    }

    #[test]
    fn lines_are_read() {
        let mapping = parse("1000-3000 rw-s 00000000 00:1f 47      /dev/shm/a b (deleted)").expect("a line");
        assert_eq!((mapping.start, mapping.end), (0x1000, 0x3000));
        assert!(mapping.readable && mapping.writable);
        let file = mapping.file.expect("a file");
        assert_eq!((file.name.as_str(), file.device), ("/dev/shm/a b (deleted)", libc::makedev(0, 0x1f)));
        let heap = parse("5000-6000 r--p 00000000 00:00 0                 [heap]").expect("a line");
        assert!(heap.readable && !heap.writable && heap.file.is_none());
        assert_eq!(parse("rubbish"), None);
    }

    #[test]
    fn kernel_answers_as_it_lists() {
        static CONSTANT: [u8; 64] = [7; 64];
        let bytes = vec![0u8; 1 << 20];
        let Some(asked @ Mappings::Asked(_)) = Mappings::open() else { return };
        for address in
            [CONSTANT.as_ptr() as u64, bytes.as_ptr() as u64, listed as fn() -> Mappings as usize as u64]
        {
            let (one, other) = (asked.at(address), listed().at(address));
            // Another test may have changed what is beside it.
            let told = |mapping: Option<Mapping>| {
                mapping.map(|mapping| (mapping.readable, mapping.writable, mapping.file))
            };
            assert!(one.is_some() && told(one) == told(other), "{address:#x}");
        }
        assert_eq!((asked.at(8), listed().at(8)), (None, None));
    }

    #[test]
    fn files_differ_in_their_pages() {
        let pages = |name: &str| File { name: name.to_owned(), device: 0 }.pages();
        for name in
            ["/dev/zero (deleted)", "/dev/nvidiactl", "/SYSV00000000 (deleted)", "anon_inode:[io_uring]"]
        {
            assert_eq!(pages(name), Pages::Stay, "{name}");
        }
        assert_eq!(pages("/memfd:cache (deleted)"), Pages::Memory);
        assert_eq!(pages("/nowhere/model.safetensors"), Pages::Disk);
        let shm = Path::new("/dev/shm");
        let Ok(metadata) = fs::metadata(shm) else { return };
        let file = File { name: "/dev/shm/cache (deleted)".to_owned(), device: metadata.dev() };
        assert!(matches!(file.pages(), Pages::Memory | Pages::Disk));
    }
}
