//! Sets of CPUs, in the kernel's format ("0-47,96-143") and as a thread's affinity.

use std::collections::BTreeSet;
use std::fmt;
use std::io;

/// More than any kernel is built for.
const CPUS_MAX: usize = 8192;
const WORDS: usize = CPUS_MAX / 64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<usize>);

impl CpuSet {
    /// Parses a list; malformed parts are skipped.
    pub fn parse(text: &str) -> CpuSet {
        let mut cpus = BTreeSet::new();
        for part in text.split(',').map(str::trim) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
                cpus.extend(first..last.saturating_add(1).min(CPUS_MAX));
            }
        }
        CpuSet(cpus)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn intersects(&self, other: &CpuSet) -> bool {
        !self.0.is_disjoint(&other.0)
    }

    pub fn and(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.intersection(&other.0).copied().collect())
    }

    pub fn or(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.union(&other.0).copied().collect())
    }

    /// The CPUs that the calling thread may use.
    pub fn of_this_thread() -> io::Result<CpuSet> {
        let mut words = [0u64; WORDS];
        let bytes = std::mem::size_of_val(&words);
        // SAFETY: `words` has `bytes` bytes; a CPU set is an array of words.
        let rc = unsafe { libc::sched_getaffinity(0, bytes, words.as_mut_ptr().cast()) };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        let used = words.iter().enumerate().filter(|(_, word)| **word != 0);
        let cpus = used.flat_map(|(at, word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit)
        });
        Ok(CpuSet(cpus.collect()))
    }

    /// Pins the calling thread to those of these CPUs that it may use. If it may use none, nothing
    /// changes.
    pub fn pin_this_thread(&self) -> io::Result<()> {
        let allowed = self.and(&CpuSet::of_this_thread()?);
        if allowed.is_empty() {
            return Ok(());
        }
        let mut words = [0u64; WORDS];
        allowed.0.iter().for_each(|cpu| words[cpu / 64] |= 1 << (cpu % 64));
        // SAFETY: the call only reads `words`; a CPU set is an array of words.
        let rc = unsafe { libc::sched_setaffinity(0, std::mem::size_of_val(&words), words.as_ptr().cast()) };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.0.iter().copied().peekable();
        let mut comma = "";
        while let Some(first) = left.next() {
            let mut last = first;
            while left.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_round_trip() {
        assert_eq!(CpuSet::parse("0-3, 8,10-11\n").to_string(), "0-3,8,10-11");
        assert_eq!(CpuSet::parse("3,2,1").to_string(), "1-3");
        assert_eq!(CpuSet::parse("").to_string(), "");
        assert_eq!(CpuSet::parse("5-2,x,-,7-,1-2-3, 4").to_string(), "4");
        assert_eq!(CpuSet::parse("0-99999999999").len(), CPUS_MAX);
        assert_eq!(CpuSet::parse("0-18446744073709551615").len(), CPUS_MAX);
        assert!(CpuSet::parse("70000").is_empty());
    }

    #[test]
    fn pinning_affects_only_the_calling_thread() {
        let before = CpuSet::of_this_thread().unwrap();
        assert!(!before.is_empty());
        let first = CpuSet(before.0.iter().copied().take(1).collect());
        let wanted = first.or(&CpuSet::parse("8191"));
        std::thread::spawn(move || {
            CpuSet::parse("8191").pin_this_thread().unwrap();
            assert_ne!(CpuSet::of_this_thread().unwrap().len(), 0);
            wanted.pin_this_thread().unwrap();
            assert_eq!(CpuSet::of_this_thread().unwrap(), first);
        })
        .join()
        .unwrap();
        assert_eq!(CpuSet::of_this_thread().unwrap(), before);
    }
}
