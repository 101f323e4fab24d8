//! Handles: pointers that are checked before they are believed.
//!
//! All headers lie in one reserved region, so any pointer from outside is told
//! apart by its address and never followed. A header's slot is recycled first
//! in, first out, and the handle's low bits carry the slot's generation: a stale
//! or twice-closed handle is answered with an error. Objects are freed behind
//! epochs, so a close that races with another call frees nothing in use.

use super::completion::{weft_completion, weft_queue};
use super::device::weft_watch;
use super::endpoint::weft_endpoint;
use super::kept::weft_kept;
use super::memory::{weft_memory, weft_remote_memory};
use crate::endpoint::lists::Kept;
use crate::endpoint::Endpoint;
use crate::memory::{Memory, RemoteMemory};
use crate::status::{Error, Result, Status};
use crate::transfer::completion::Completion;
use crate::transfer::queue::Queue;
use crate::transfer::watch::Watch;
use crossbeam_epoch::Guard;
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Bytes from one header to the next; its low bits are the generation's.
const STRIDE: usize = 256;
const SLOTS: usize = 1 << 18;
const GENERATIONS: u64 = STRIDE as u64;
/// A slot is used again only when this many others were freed after it.
const REST: usize = 1024;

/// The kinds of objects that a handle can name.
pub trait Kind: Sized {
    const KIND: u64;
}

const NAMES: [&str; 7] =
    ["closed", "weft_endpoint", "weft_memory", "weft_remote_memory", "weft_queue", "weft_kept", "weft_watch"];

impl Kind for Endpoint {
    const KIND: u64 = 1;
}
impl Kind for Owned<Memory> {
    const KIND: u64 = 2;
}
impl Kind for Owned<RemoteMemory> {
    const KIND: u64 = 3;
}
impl Kind for Owned<Queue> {
    const KIND: u64 = 4;
}
impl Kind for Owned<Kept> {
    const KIND: u64 = 5;
}

impl Kind for Owned<Watch> {
    const KIND: u64 = 6;
}

/// An object and the endpoint that it belongs to.
pub struct Owned<T> {
    endpoint: Weak<Endpoint>,
    pub object: Arc<T>,
}

impl<T> Owned<T> {
    pub fn new(endpoint: &Arc<Endpoint>, object: Arc<T>) -> Arc<Owned<T>> {
        Arc::new(Owned { endpoint: Arc::downgrade(endpoint), object })
    }

    pub fn endpoint(&self) -> Result<Arc<Endpoint>> {
        self.endpoint
            .upgrade()
            .filter(|endpoint| !endpoint.is_closed())
            .ok_or_else(|| Error::handle("the endpoint that this belonged to was closed"))
    }

    fn belongs(&self, endpoint: &Arc<Endpoint>) -> bool {
        std::ptr::eq(self.endpoint.as_ptr(), Arc::as_ptr(endpoint))
    }

    /// The object, if it belongs to this endpoint.
    pub fn of(&self, endpoint: &Arc<Endpoint>) -> Result<&Arc<T>>
    where
        Owned<T>: Kind,
    {
        if !self.belongs(endpoint) {
            let name = NAMES[Owned::<T>::KIND as usize];
            return Err(Error::handle(format!("the {name} belongs to another endpoint")));
        }
        Ok(&self.object)
    }
}

struct Header {
    /// `generation << 8 | kind`; kind 0 is free.
    state: AtomicU64,
    object: AtomicPtr<()>,
}

struct Table {
    base: usize,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    next: usize,
    recycled: VecDeque<usize>,
}

static TABLE: OnceCell<Table> = OnceCell::new();

impl Table {
    /// Reserves address space only; a page is used when its first header is.
    fn reserve() -> Result<Table> {
        // SAFETY: a fresh private mapping, aligned below by asking for one stride more.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SLOTS * STRIDE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Error::system("reserving the table of handles"));
        }
        Ok(Table { base: base as usize, free: Mutex::default() })
    }

    fn header(&self, slot: usize) -> &Header {
        debug_assert!(slot < SLOTS);
        // SAFETY: inside the mapping, which is zeroed (a free header) and never unmapped;
        // all access is by atomics.
        unsafe { &*((self.base + slot * STRIDE) as *const Header) }
    }

    fn insert<T: Kind>(&self, object: Arc<T>) -> Result<*mut T> {
        let slot = {
            let mut free = self.free.lock();
            if free.recycled.len() > REST || free.next == SLOTS {
                free.recycled.pop_front()
            } else {
                free.next += 1;
                Some(free.next - 1)
            }
        };
        let slot = slot.ok_or_else(|| Error::limit(format!("more than {SLOTS} handles are open")))?;
        let header = self.header(slot);
        let generation = header.state.load(Ordering::Relaxed) >> 8;
        header.object.store(Arc::into_raw(object) as *mut (), Ordering::Relaxed);
        header.state.store(generation << 8 | T::KIND, Ordering::Release);
        Ok((self.base + slot * STRIDE + generation as usize) as *mut T)
    }

    fn remove_if_owned<T: Send + Sync + 'static>(&self, slot: usize, endpoint: &Arc<Endpoint>)
    where
        Owned<T>: Kind,
    {
        let state = self.header(slot).state.load(Ordering::Acquire);
        let pointer = (self.base + slot * STRIDE + (state >> 8) as usize) as *const Owned<T>;
        if state & 0xff == Owned::<T>::KIND
            && lookup::<Owned<T>>(pointer).is_ok_and(|owned| owned.belongs(endpoint))
        {
            // Somebody else may have closed it meanwhile.
            let _ = remove::<Owned<T>>(pointer);
        }
    }

    /// The slot and generation that a pointer claims, if it lies in the region.
    fn locate(&self, pointer: usize) -> Option<(usize, u64)> {
        let offset = pointer.wrapping_sub(self.base);
        (offset < SLOTS * STRIDE).then_some((offset / STRIDE, (offset % STRIDE) as u64))
    }
}

/// An object that cannot be freed while this lives.
pub struct Ref<T> {
    object: ManuallyDrop<Arc<T>>,
    _guard: Guard,
}

impl<T> Deref for Ref<T> {
    type Target = Arc<T>;
    fn deref(&self) -> &Arc<T> {
        &self.object
    }
}

/// An object that cannot be freed while some `Ref` lives: looked up beside that one, it needs no
/// guard of its own.
pub struct Beside<'a, T> {
    object: ManuallyDrop<Arc<T>>,
    _guarded: PhantomData<&'a Guard>,
}

impl<T> Deref for Beside<'_, T> {
    type Target = Arc<T>;
    fn deref(&self) -> &Arc<T> {
        &self.object
    }
}

fn explain<T: Kind>(pointer: usize) -> Error {
    let name = NAMES[T::KIND as usize];
    if pointer == 0 {
        return Error::handle(format!("the {name} is NULL"));
    }
    let located = TABLE.get().and_then(|table| table.locate(pointer).map(|at| (table, at)));
    let Some((table, (slot, generation))) = located else {
        return Error::handle(format!("{pointer:#x} is not a {name}: Weft never returned it"));
    };
    let state = table.header(slot).state.load(Ordering::Acquire);
    match (state >> 8 == generation, state & 0xff) {
        (true, kind) if kind != 0 => {
            let actual = NAMES.get(kind as usize).copied().unwrap_or("?");
            Error::handle(format!("{pointer:#x} is a {actual}, not a {name}"))
        }
        _ => Error::handle(format!("the {name} {pointer:#x} was closed before")),
    }
}

/// The object that a handle names. It may be freed as soon as `_guard` is gone.
#[inline]
fn find<T: Kind>(address: usize, _guard: &Guard) -> Option<ManuallyDrop<Arc<T>>> {
    let table = TABLE.get()?;
    let (slot, generation) = table.locate(address)?;
    let header = table.header(slot);
    let wanted = generation << 8 | T::KIND;
    if header.state.load(Ordering::Acquire) != wanted {
        return None;
    }
    let object = header.object.load(Ordering::Acquire) as *const T;
    // The slot may have been recycled between the two loads.
    let same = header.state.load(Ordering::Acquire) == wanted;
    // SAFETY: it came from `Arc::into_raw` of this kind, and its release is deferred until the guard is
    // gone.
    same.then(|| ManuallyDrop::new(unsafe { Arc::from_raw(object) }))
}

fn lookup<T: Kind>(pointer: *const impl Sized) -> Result<Ref<T>> {
    let (address, guard) = (pointer as usize, crossbeam_epoch::pin());
    match find(address, &guard) {
        Some(object) => Ok(Ref { object, _guard: guard }),
        None => Err(explain::<T>(address)),
    }
}

#[inline]
fn lookup_beside<T: Kind, U>(pointer: *const impl Sized, other: &Ref<U>) -> Result<Beside<'_, T>> {
    let address = pointer as usize;
    match find(address, &other._guard) {
        Some(object) => Ok(Beside { object, _guarded: PhantomData }),
        None => Err(explain::<T>(address)),
    }
}

fn insert<T: Kind>(object: Arc<T>) -> Result<*mut T> {
    TABLE.get_or_try_init(Table::reserve)?.insert(object)
}

fn remove<T: Kind + Send + Sync + 'static>(pointer: *const impl Sized) -> Result<()> {
    let address = pointer as usize;
    let guard = crossbeam_epoch::pin();
    let Some((table, (slot, generation))) =
        TABLE.get().and_then(|table| table.locate(address).map(|located| (table, located)))
    else {
        return Err(explain::<T>(address));
    };
    let header = table.header(slot);
    let object = header.object.load(Ordering::Acquire) as *const T;
    let next = (generation + 1) % GENERATIONS;
    header
        .state
        .compare_exchange(generation << 8 | T::KIND, next << 8, Ordering::AcqRel, Ordering::Acquire)
        .map_err(|_| explain::<T>(address))?;
    // SAFETY: the exchange made us the only one to release this object; lookups that saw it
    // before hold guards.
    unsafe { guard.defer_unchecked(move || drop(Arc::from_raw(object))) };
    guard.flush();
    table.free.lock().recycled.push_back(slot);
    Ok(())
}

pub fn insert_endpoint(endpoint: Arc<Endpoint>) -> Result<*mut weft_endpoint> {
    insert(endpoint).map(|p| p.cast())
}
pub fn endpoint(pointer: *const weft_endpoint) -> Result<Ref<Endpoint>> {
    lookup(pointer)
}
/// With it go the handles of what belonged to it.
pub fn remove_endpoint(pointer: *const weft_endpoint, endpoint: &Arc<Endpoint>) -> Result<()> {
    remove::<Endpoint>(pointer)?;
    if let Some(table) = TABLE.get() {
        let used = table.free.lock().next;
        for slot in 0..used {
            table.remove_if_owned::<Memory>(slot, endpoint);
            table.remove_if_owned::<RemoteMemory>(slot, endpoint);
            table.remove_if_owned::<Queue>(slot, endpoint);
            table.remove_if_owned::<Kept>(slot, endpoint);
            table.remove_if_owned::<Watch>(slot, endpoint);
        }
    }
    Ok(())
}

pub fn insert_memory(endpoint: &Arc<Endpoint>, object: Arc<Memory>) -> Result<*mut weft_memory> {
    insert(Owned::new(endpoint, object)).map(|p| p.cast())
}
pub fn memory(pointer: *const weft_memory) -> Result<Ref<Owned<Memory>>> {
    lookup(pointer)
}
/// As an argument of transfers.
#[inline]
pub fn local(pointer: *const weft_memory, ep: &Ref<Endpoint>) -> Result<Beside<'_, Owned<Memory>>> {
    lookup_beside(pointer, ep).map_err(|error| error.about("local"))
}
pub fn remove_memory(pointer: *const weft_memory) -> Result<()> {
    remove::<Owned<Memory>>(pointer)
}

pub fn insert_remote(endpoint: &Arc<Endpoint>, object: Arc<RemoteMemory>) -> Result<*mut weft_remote_memory> {
    insert(Owned::new(endpoint, object)).map(|p| p.cast())
}
pub fn remote(pointer: *const weft_remote_memory) -> Result<Ref<Owned<RemoteMemory>>> {
    lookup(pointer)
}
/// As an argument of transfers.
#[inline]
pub fn remote_side(
    pointer: *const weft_remote_memory,
    ep: &Ref<Endpoint>,
) -> Result<Beside<'_, Owned<RemoteMemory>>> {
    lookup_beside(pointer, ep).map_err(|error| error.about("remote"))
}
pub fn remove_remote(pointer: *const weft_remote_memory) -> Result<()> {
    remove::<Owned<RemoteMemory>>(pointer)
}

pub fn insert_queue(endpoint: &Arc<Endpoint>, object: Arc<Queue>) -> Result<*mut weft_queue> {
    insert(Owned::new(endpoint, object)).map(|p| p.cast())
}
pub fn queue(pointer: *const weft_queue) -> Result<Ref<Owned<Queue>>> {
    lookup(pointer)
}
pub fn remove_queue(pointer: *const weft_queue) -> Result<()> {
    remove::<Owned<Queue>>(pointer)
}

pub fn insert_kept(endpoint: &Arc<Endpoint>, object: Arc<Kept>) -> Result<*mut weft_kept> {
    insert(Owned::new(endpoint, object)).map(|p| p.cast())
}
pub fn kept(pointer: *const weft_kept) -> Result<Ref<Owned<Kept>>> {
    lookup(pointer)
}
pub fn remove_kept(pointer: *const weft_kept) -> Result<()> {
    remove::<Owned<Kept>>(pointer)
}

pub fn insert_watch(endpoint: &Arc<Endpoint>, object: Arc<Watch>) -> Result<*mut weft_watch> {
    insert(Owned::new(endpoint, object)).map(|p| p.cast())
}
pub fn watch(pointer: *const weft_watch) -> Result<Ref<Owned<Watch>>> {
    lookup(pointer)
}
pub fn remove_watch(pointer: *const weft_watch) -> Result<()> {
    remove::<Owned<Watch>>(pointer)
}

/// The caller's array of completions.
///
/// # Safety
/// `completions` must be NULL or valid for `max` elements.
pub unsafe fn slots<'a>(
    completions: *mut weft_completion,
    max: u32,
) -> Result<&'a mut [MaybeUninit<Completion>]> {
    if max == 0 {
        return Ok(&mut []);
    }
    if completions.is_null() {
        return Err(Error::new(Status::Invalid, format!("completions is NULL, but max is {max}")));
    }
    if !completions.is_aligned() {
        return Err(Error::invalid("completions is not aligned as a weft_completion must be"));
    }
    // SAFETY: valid for `max` elements as the caller promised; the two types have one layout,
    // asserted beside `Completion`'s twin below.
    Ok(unsafe { std::slice::from_raw_parts_mut(completions.cast(), max as usize) })
}

const _: () = {
    use std::mem::{align_of, offset_of, size_of};
    assert!(size_of::<weft_completion>() == 128 && size_of::<Completion>() == 128);
    assert!(align_of::<weft_completion>() == align_of::<Completion>());
    assert!(offset_of!(weft_completion, value) == offset_of!(Completion, value));
    assert!(offset_of!(weft_completion, data) == offset_of!(Completion, data));
    assert!(offset_of!(weft_completion, rail) == offset_of!(Completion, rail));
    assert!(offset_of!(weft_completion, done_ns) == offset_of!(Completion, done_ns));
};
