//! The registrations that a NIC has open. Each keeps its slot, whose index is part of its name:
//! lookups need no search, and registrations never move.

use crate::status::{Error, Result, Status};
use libfabric_sys::fid_mr;
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

#[derive(Clone)]
struct RegistrationSlot {
    /// NULL in a free slot.
    mr: *mut fid_mr,
    /// Distinguishes the registration from earlier ones in this slot.
    generation: u32,
    /// In a free slot: the next free slot, plus 1.
    next: u32,
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
        let open = |place: &&mut RegistrationSlot| place.generation == generation && !place.mr.is_null();
        self.place(at).filter(open).map(|place| (at, place)).ok_or_else(unknown)
    }

    /// Stores a registration; its name is never NULL.
    pub fn keep(&mut self, mr: *mut fid_mr) -> *mut c_void {
        if self.free == 0 {
            if self.used as usize == self.chunks.len() * CHUNK {
                self.chunks.push(
                    vec![RegistrationSlot { mr: ptr::null_mut(), generation: 0, next: 0 }; CHUNK].into(),
                );
            }
            self.used += 1;
            self.free = self.used;
        }
        let at = self.free - 1;
        let (chunk, place) = (at as usize / CHUNK, at as usize % CHUNK);
        let place = &mut self.chunks[chunk][place];
        (place.mr, self.free) = (mr, place.next);
        ((u64::from(place.generation) << 32) + u64::from(at) + 1) as *mut c_void
    }

    pub fn get(&mut self, name: *mut c_void) -> Result<*mut fid_mr> {
        self.find(name).map(|(_, place)| place.mr)
    }

    /// Removes a closed registration.
    pub fn forget(&mut self, name: *mut c_void) {
        let free = self.free;
        if let Ok((at, place)) = self.find(name) {
            *place = RegistrationSlot {
                mr: ptr::null_mut(),
                generation: place.generation.wrapping_add(1),
                next: free,
            };
            self.free = at + 1;
        }
    }

    /// Removes and returns all open registrations.
    pub fn take_all(&mut self) -> impl Iterator<Item = *mut fid_mr> {
        let places = std::mem::take(self).chunks.into_iter().flatten();
        places.map(|place| place.mr).filter(|mr| !mr.is_null())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registration_is_found_by_key_until_removed() {
        let mut all = Registrations::default();
        let mr = |i: usize| (8 * i + 8) as *mut fid_mr;
        let mut names: Vec<_> = (0..3 * CHUNK).map(|i| all.keep(mr(i))).collect();
        for i in (0..names.len()).step_by(2) {
            all.forget(names[i]);
            assert!(all.get(names[i]).is_err());
            all.forget(names[i]);
        }
        let old = names.clone();
        for i in (0..names.len()).step_by(4) {
            names[i] = all.keep(mr(i));
        }
        assert!(old.iter().step_by(2).all(|name| all.get(*name).is_err()), "a name of before");
        for (i, name) in names.iter().enumerate().filter(|(i, _)| i % 2 == 1 || i % 4 == 0) {
            assert_eq!(all.get(*name).ok(), Some(mr(i)));
        }
        assert!(names.iter().all(|name| !name.is_null()) && all.get(ptr::null_mut()).is_err());
        assert_eq!(all.take_all().count(), names.len() / 4 * 3);
        assert!(all.get(names[1]).is_err() && all.take_all().next().is_none());
    }
}
