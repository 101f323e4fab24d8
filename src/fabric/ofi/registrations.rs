//! The registrations of a NIC. Each keeps its slot, whose index is part of its name: lookups need no search, and
//! registrations never move, nor does one get another name where its NIC's device is removed and comes back.

use crate::device::Device;
use crate::fabric::{Access, HostRange, Registration};
use crate::status::{Error, Result, Status};
use libfabric_sys::{fi_mr_desc, fi_mr_key, fid_mr};
use std::ffi::c_void;
use std::ptr;

const CHUNK: usize = if cfg!(miri) { 16 } else { 1024 };

#[derive(Default)]
pub struct Registrations {
    chunks: Vec<Box<[RegistrationSlot]>>,
    used: u32,
    /// The first free slot, plus 1.
    free: u32,
}

/// What is registered.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub range: HostRange,
    pub access: Access,
    pub device: Option<Device>,
}

#[derive(Clone)]
struct RegistrationSlot {
    /// NULL while there is no device.
    mr: *mut fid_mr,
    /// `None` in a free slot.
    wanted: Option<Wanted>,
    /// Distinguishes the registration from earlier ones in this slot.
    generation: u32,
    /// In a free slot: the next free slot, plus 1.
    next: u32,
}

/// A registration with what its NIC says of it: nothing, while the NIC's device is gone.
pub fn described(mr: *mut fid_mr, registration: Registration) -> Registration {
    if mr.is_null() {
        return registration;
    }
    // SAFETY: the registration is open.
    let (descriptor, key) = unsafe { (fi_mr_desc(mr), fi_mr_key(mr)) };
    Registration { descriptor, key, ..registration }
}

fn unknown() -> Error {
    Error::new(Status::Internal, "a registration that this NIC does not have")
}

impl Registrations {
    fn place(&mut self, at: u32) -> Option<&mut RegistrationSlot> {
        self.chunks.get_mut(at as usize / CHUNK)?.get_mut(at as usize % CHUNK)
    }

    /// The slot of an open registration.
    fn find(&mut self, name: *mut c_void) -> Result<(u32, &mut RegistrationSlot)> {
        let (at, generation) = ((name as u64 as u32).wrapping_sub(1), (name as u64 >> 32) as u32);
        let open = |place: &&mut RegistrationSlot| place.generation == generation && place.wanted.is_some();
        self.place(at).filter(open).map(|place| (at, place)).ok_or_else(unknown)
    }

    /// Stores a registration; its name is never NULL.
    pub fn keep(&mut self, mr: *mut fid_mr, wanted: Wanted) -> *mut c_void {
        if self.free == 0 {
            if self.used as usize == self.chunks.len() * CHUNK {
                let free = RegistrationSlot { mr: ptr::null_mut(), wanted: None, generation: 0, next: 0 };
                self.chunks.push(vec![free; CHUNK].into());
            }
            self.used += 1;
            self.free = self.used;
        }
        let at = self.free - 1;
        let (chunk, place) = (at as usize / CHUNK, at as usize % CHUNK);
        let place = &mut self.chunks[chunk][place];
        (place.mr, place.wanted, self.free) = (mr, Some(wanted), place.next);
        ((u64::from(place.generation) << 32) + u64::from(at) + 1) as *mut c_void
    }

    pub fn get(&mut self, name: *mut c_void) -> Result<&mut *mut fid_mr> {
        self.find(name).map(|(_, place)| &mut place.mr)
    }

    /// Removes a closed registration.
    pub fn forget(&mut self, name: *mut c_void) {
        let free = self.free;
        if let Ok((at, place)) = self.find(name) {
            *place = RegistrationSlot {
                mr: ptr::null_mut(),
                wanted: None,
                generation: place.generation.wrapping_add(1),
                next: free,
            };
            self.free = at + 1;
        }
    }

    /// All that are open.
    pub fn open(&mut self) -> impl Iterator<Item = &mut *mut fid_mr> {
        self.chunks.iter_mut().flatten().map(|place| &mut place.mr).filter(|mr| !mr.is_null())
    }

    /// The place of the first from one on that is not open, and what it registers.
    pub fn next_closed(&mut self, from: u32) -> Option<(u32, Wanted)> {
        (from..self.used).find_map(|at| {
            let place = self.place(at)?;
            place.wanted.filter(|_| place.mr.is_null()).map(|wanted| (at, wanted))
        })
    }

    /// That one is open now.
    pub fn open_at(&mut self, at: u32, mr: *mut fid_mr) {
        if let Some(place) = self.place(at) {
            place.mr = mr;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registration_is_found_by_key_until_removed() {
        let mut all = Registrations::default();
        let mr = |i: usize| (8 * i + 8) as *mut fid_mr;
        let wanted = Wanted { range: HostRange { base: 1, len: 1 }, access: Access::ALL, device: None };
        let mut names: Vec<_> = (0..3 * CHUNK).map(|i| all.keep(mr(i), wanted)).collect();
        for i in (0..names.len()).step_by(2) {
            all.forget(names[i]);
            assert!(all.get(names[i]).is_err());
            all.forget(names[i]);
        }
        let old = names.clone();
        for i in (0..names.len()).step_by(4) {
            names[i] = all.keep(mr(i), wanted);
        }
        assert!(old.iter().step_by(2).all(|name| all.get(*name).is_err()), "a name of before");
        for (i, name) in names.iter().enumerate().filter(|(i, _)| i % 2 == 1 || i % 4 == 0) {
            assert_eq!(all.get(*name).ok(), Some(&mut mr(i)));
        }
        assert!(names.iter().all(|name| !name.is_null()) && all.get(ptr::null_mut()).is_err());
        assert_eq!(all.open().count(), names.len() / 4 * 3);
        assert!(all.next_closed(0).is_none());
        all.open().for_each(|mr| *mr = ptr::null_mut());
        assert!(all.open().next().is_none() && all.next_closed(2).is_some_and(|(at, _)| at == 3));
        *all.get(names[0]).expect("it is registered") = mr(0);
        assert_eq!(all.open().count(), 1);
    }
}
