//! Keys alone guard memory, so no key can be guessed, neither from nothing nor from other keys.

use super::select::candidates;
use super::{Access, HostRange, Progress};
use crate::topology::read::Root;
use crate::topology::Machine;
use std::collections::HashSet;

const KEYS: usize = 512;

/// Keys of registrations of the same memory, for which the NIC is opened twice; `None` without such
/// a fabric.
fn keys_of(fabric: &str, rails: Option<&str>) -> Option<Vec<u64>> {
    let machine = Machine::read(Root::from_environment());
    let found = candidates(Some(fabric), rails, &machine).ok()?;
    let bytes: &'static [u8] = Box::leak(vec![0; 4096].into_boxed_slice());
    let range = HostRange { base: bytes.as_ptr() as u64, len: 4096 };
    let mut keys = Vec::new();
    for _ in 0..2 {
        let mut nic = found.candidates[0].open(Progress { waits: false, threads: false }).expect("a NIC");
        for _ in 0..KEYS / 4 {
            let registration = nic.register(range, Access::ALL).expect("a registration");
            keys.push(registration.key);
            let short = nic.register(range, Access::ALL).expect("a registration");
            keys.push(short.key);
            nic.deregister(short).expect("it is registered");
        }
        nic.close().expect("it closes");
    }
    Some(keys)
}

#[test]
fn keys_are_unique_and_reveal_no_address() {
    for (fabric, rails) in [("host", None), ("tcp", Some("lo")), ("sim:like=tcp", None)] {
        let Some(keys) = keys_of(fabric, rails) else {
            println!("SKIPPED: no {fabric} here");
            continue;
        };
        assert_eq!(keys.len(), KEYS);
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), KEYS, "{fabric}: a key came again");
        let steps: HashSet<u64> = keys.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        assert_eq!(steps.len(), KEYS - 1, "{fabric}: keys are a step apart");
        // Each bit is set about half of the time, within 8 standard deviations.
        for bit in 0..64 {
            let set = keys.iter().filter(|key| **key >> bit & 1 == 1).count();
            assert!((KEYS / 2 - 90..=KEYS / 2 + 90).contains(&set), "{fabric}: bit {bit} is set in {set}");
        }
    }
}
