//! Allocations whose size a caller chose: if memory is short, the call fails.

use crate::failing::step;
use crate::status::{Error, Result, Status};
use std::collections::HashMap;
use std::hash::Hash;
use std::marker::PhantomData;

pub fn vec<T>(len: usize, what: &str) -> Result<Vec<T>> {
    let mut vec = Vec::new();
    let reserved = vec.try_reserve_exact(len);
    if reserved.is_err() || step("memory") {
        return Err(none::<T>(len, what));
    }
    Ok(vec)
}

#[inline]
pub fn push<T>(vec: &mut Vec<T>, element: T, what: &str) -> Result<()> {
    if vec.len() == vec.capacity() {
        let reserved = vec.try_reserve(1);
        if reserved.is_err() || step("memory") {
            return Err(none::<T>(vec.len() + 1, what));
        }
    }
    vec.push(element);
    Ok(())
}

pub fn insert<K: Hash + Eq, V>(map: &mut HashMap<K, V>, key: K, value: V, what: &str) -> Result<()> {
    let reserved = map.try_reserve(1);
    if reserved.is_err() || step("memory") {
        return Err(none::<(K, V)>(map.len() + 1, what));
    }
    map.insert(key, value);
    Ok(())
}

/// Checks that the memory is available now, for structures that allocate piece by piece and cannot
/// report failure.
pub fn probe<T>(len: usize, what: &str) -> Result<()> {
    vec::<T>(len, what).map(drop)
}

/// A caller's array. Its elements may change concurrently, or contain uninitialised padding: they
/// are read one by one, and no reference to them is made.
#[derive(Clone, Copy)]
pub struct Theirs<'a, T>(*const T, usize, PhantomData<&'a T>);

impl<'a, T: Copy> Theirs<'a, T> {
    /// # Safety
    /// `array` must be aligned and valid for reads of `len` elements for `'a`, of which any bytes
    /// are a value.
    pub unsafe fn new(array: *const T, len: usize) -> Theirs<'a, T> {
        Theirs(array, len, PhantomData)
    }

    #[inline(always)]
    pub fn len(self) -> usize {
        self.1
    }

    /// Reads the element; two calls may return different values.
    #[inline(always)]
    pub fn get(self, at: usize) -> Option<T> {
        // SAFETY: `at` is inside the array, which is valid by the contract of `new`.
        (at < self.1).then(|| unsafe { self.0.add(at).read() })
    }

    #[inline(always)]
    pub fn iter(self) -> impl Iterator<Item = T> + 'a {
        // SAFETY: `at` is less than the count, and the list has as many elements.
        (0..self.1).map(move |at| unsafe { self.0.add(at).read() })
    }

    #[inline]
    pub fn copied(self, what: &str) -> Result<Vec<T>> {
        let mut copy = vec(self.1, what)?;
        // SAFETY: this many elements can be read, and the copy has capacity for them.
        unsafe {
            std::ptr::copy_nonoverlapping(self.0, copy.as_mut_ptr(), self.1);
            copy.set_len(self.1);
        }
        Ok(copy)
    }
}

impl<'a, T> From<&'a [T]> for Theirs<'a, T> {
    fn from(slice: &'a [T]) -> Theirs<'a, T> {
        Theirs(slice.as_ptr(), slice.len(), PhantomData)
    }
}

#[cold]
pub fn none<T>(len: usize, what: &str) -> Error {
    let bytes = len.saturating_mul(size_of::<T>());
    Error::new(Status::NoMemory, format!("no memory for {what}: {bytes} bytes are needed ({len} elements)"))
}
