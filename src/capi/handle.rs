//! Handles: checked numbers in place of pointers.
//!
//! A handle has the slot of one table, the kind of its object, and the slot's generation of 41
//! bits: a stale or twice-closed handle fails for the life of the process. It has two bits set that
//! no user-space pointer has on any processor, so that neither is taken for the other. Objects are
//! freed by epochs, so a close that races with another call frees nothing in use.

use crate::calls::lists::Prepared;
use crate::calls::Endpoint;
use crate::failing::step;
use crate::memory::{Memory, RemoteMemory};
use crate::status::{Error, Result};
use crate::transfer::queue::Queue;
use crate::transfer::watch::Watch;
use crossbeam_epoch::Guard;
use parking_lot::Mutex;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Maximum open handles.
const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 18;
const KIND_BITS: u32 = 3;
/// On x86, addresses with bit 63 set are the kernel's, even with linear address masking; on Arm,
/// those with bit 55, since the top byte may be a tag.
const NO_POINTER: u64 = 1 << 63 | 1 << 55;
/// The generation's bits: a handle without the two bits is slot, kind and generation.
const GENERATIONS: u64 = (1 << (62 - SLOT_BITS - KIND_BITS)) - 1;

/// A type of the header whose pointers are handles.
pub trait Handle {
    type Object: Kind;
}

/// The kinds of objects that a handle can name.
pub trait Kind: Sized {
    const KIND: u64;
}

const NAMES: [&str; 8] = [
    "closed",
    "weft_endpoint",
    "weft_memory",
    "weft_remote_memory",
    "weft_queue",
    "weft_prepared",
    "weft_watch",
    "weft_queue",
];

/// The handle of an endpoint's own queue is the endpoint's with this kind.
const OWN_QUEUE: u64 = 7;

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
impl Kind for Owned<Prepared> {
    const KIND: u64 = 5;
}

impl Kind for Owned<Watch> {
    const KIND: u64 = 6;
}

/// An object and the endpoint that it belongs to.
pub struct Owned<T> {
    endpoint: Weak<Endpoint>,
    pub object: Arc<T>,
    /// Dropped last: another thread may drop this when the endpoint has gone.
    _alive: Arc<()>,
}

impl<T> Owned<T> {
    pub fn new(endpoint: &Arc<Endpoint>, object: Arc<T>) -> Arc<Owned<T>> {
        Arc::new(Owned { endpoint: Arc::downgrade(endpoint), object, _alive: endpoint.alive() })
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
    pub fn belonging_to(&self, endpoint: &Arc<Endpoint>) -> Result<&Arc<T>>
    where
        Owned<T>: Kind,
    {
        if !self.belongs(endpoint) {
            let name = NAMES[Owned::<T>::KIND as usize];
            return Err(Error::handle(format!(
                "the {name} belongs to another endpoint: each endpoint uses those that were made with it"
            )));
        }
        Ok(&self.object)
    }

    /// As `belonging_to`; an error names the argument.
    pub fn as_argument(&self, endpoint: &Arc<Endpoint>, name: &str) -> Result<&Arc<T>>
    where
        Owned<T>: Kind,
    {
        self.belonging_to(endpoint).map_err(|error| error.about(name))
    }
}

/// The value of a handle.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Name(u64);

impl Name {
    fn new(slot: usize, kind: u64, generation: u64) -> Name {
        let number = slot as u64 | kind << SLOT_BITS | generation << (SLOT_BITS + KIND_BITS);
        // The bits above bit 54 move up by one, past bit 55.
        let (low, high) = (number & ((1 << 55) - 1), number >> 55);
        Name(low | high << 56 | NO_POINTER)
    }

    #[inline]
    fn slot(self) -> usize {
        self.0 as usize % SLOTS
    }

    #[inline]
    fn kind(self) -> u64 {
        self.0 >> SLOT_BITS & ((1 << KIND_BITS) - 1)
    }

    /// The handle of the same slot and generation, with another kind.
    #[inline]
    fn as_kind(self, kind: u64) -> Name {
        Name(self.0 & !(((1 << KIND_BITS) - 1) << SLOT_BITS) | kind << SLOT_BITS)
    }

    /// The handle as stored in the slot of an open object.
    fn stored(self) -> Name {
        if self.kind() == OWN_QUEUE {
            self.as_kind(Endpoint::KIND)
        } else {
            self
        }
    }

    fn generation(self) -> u64 {
        let number = self.0 & ((1 << 55) - 1) | (self.0 & !NO_POINTER) >> 56 << 55;
        number >> (SLOT_BITS + KIND_BITS)
    }

    /// Whether the number has the form of a handle.
    fn is_one(self) -> bool {
        self.0 & NO_POINTER == NO_POINTER && (1..NAMES.len() as u64).contains(&self.kind())
    }
}

struct Header {
    /// The handle of the open object; in a free slot, the next handle with kind 0; in a slot never
    /// used, 0.
    name: AtomicU64,
    object: AtomicPtr<()>,
}

/// Zero-initialised, so that the system allocates pages only where handles are.
static HEADERS: [Header; SLOTS] =
    [const { Header { name: AtomicU64::new(0), object: AtomicPtr::new(std::ptr::null_mut()) } }; SLOTS];
static FREE: Mutex<Free> = Mutex::new(Free { used: 0, recycled: Vec::new() });

struct Free {
    /// The number of slots used so far.
    used: usize,
    recycled: Vec<usize>,
}

/// Generations are spread, so that a number near a handle is not a handle. They depend on this
/// copy's address, so that handles of another copy of Weft in the process are rejected.
fn first_generation(slot: usize) -> u64 {
    let copy = (HEADERS.as_ptr() as u64) << SLOT_BITS;
    (copy.wrapping_add(slot as u64 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 23 & GENERATIONS
}

#[inline]
fn header(slot: usize) -> &'static Header {
    &HEADERS[slot % SLOTS]
}

/// A taken slot, which is freed if this is dropped.
struct Vacant(usize);

impl Vacant {
    fn take() -> Result<Vacant> {
        let mut free = FREE.lock();
        if step("a handle") {
            return Err(Error::limit("no handle is free"));
        }
        if let Some(slot) = free.recycled.pop() {
            return Ok(Vacant(slot));
        }
        if free.used == SLOTS {
            return Err(Error::limit(format!("{SLOTS} handles are open: close some")));
        }
        free.used += 1;
        Ok(Vacant(free.used - 1))
    }
}

/// How many handles are open.
#[cfg(feature = "sim")]
pub fn open() -> usize {
    let free = FREE.lock();
    free.used - free.recycled.len()
}

impl Drop for Vacant {
    fn drop(&mut self) {
        FREE.lock().recycled.push(self.0);
    }
}

/// A handle of the object that `make` returns. The slot is taken first, so that the object always
/// gets a handle.
pub fn insert<H: Handle>(make: impl FnOnce() -> Result<Arc<H::Object>>) -> Result<*mut H> {
    let vacant = Vacant::take()?;
    let object = make()?;
    let slot = ManuallyDrop::new(vacant).0;
    let header = header(slot);
    let generation = match header.name.load(Ordering::Relaxed) {
        0 => first_generation(slot),
        before => Name(before).generation(),
    };
    let name = Name::new(slot, H::Object::KIND, generation);
    // A thread that sees this object also sees that the slot's previous object is closed; `find`
    // depends on it.
    header.object.store(Arc::into_raw(object) as *mut (), Ordering::Release);
    header.name.store(name.0, Ordering::Release);
    Ok(name.0 as *mut H)
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

/// An object that cannot be freed while a given `Ref` lives: it shares the guard of that `Ref`.
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

#[cold]
fn explain<T: Kind>(handle: u64) -> Error {
    let (name, kind) = (Name(handle), NAMES[T::KIND as usize]);
    if handle == 0 {
        return Error::handle(format!("the {kind} is NULL"));
    }
    if !name.is_one() {
        return Error::handle(format!("{handle:#x} is not a {kind}: Weft never returned it"));
    }
    if header(name.slot()).name.load(Ordering::Acquire) == name.stored().0 && name.kind() != T::KIND {
        let actual = NAMES.get(name.kind() as usize).copied().unwrap_or("?");
        return Error::handle(format!("{handle:#x} is a {actual}, not a {kind}"));
    }
    Error::handle(format!("the {kind} {handle:#x} was given back before, or went with its endpoint"))
}

/// The object of a handle. It may be freed once `_guard` is dropped.
#[inline]
fn find<T: Kind>(handle: u64, _guard: &Guard) -> Option<ManuallyDrop<Arc<T>>> {
    let name = Name(handle);
    let header = header(name.slot());
    if name.kind() != T::KIND || header.name.load(Ordering::Acquire) != handle {
        return None;
    }
    let object = header.object.load(Ordering::Acquire) as *const T;
    // The slot may have been recycled between the two loads. Then the object's store released the
    // earlier close, which this load sees.
    let same = header.name.load(Ordering::Acquire) == handle;
    // SAFETY: `insert` stored it from `Arc::into_raw` of this kind, and the guard defers its
    // release.
    same.then(|| ManuallyDrop::new(unsafe { Arc::from_raw(object) }))
}

pub fn get<H: Handle>(pointer: *const H) -> Result<Ref<H::Object>> {
    let (handle, guard) = (pointer as u64, crossbeam_epoch::pin());
    match find(handle, &guard) {
        Some(object) => Ok(Ref { object, _guard: guard }),
        None => Err(explain::<H::Object>(handle)),
    }
}

/// Like `get`, under the guard of another object; `argument` is named in errors.
#[inline]
pub fn beside<'a, H: Handle, U>(
    pointer: *const H,
    other: &'a Ref<U>,
    argument: &str,
) -> Result<Beside<'a, H::Object>> {
    match find(pointer as u64, &other._guard) {
        Some(object) => Ok(Beside { object, _guarded: PhantomData }),
        None => Err(explain::<H::Object>(pointer as u64).about(argument)),
    }
}

pub fn remove<H: Handle<Object: Send + Sync + 'static>>(pointer: *const H) -> Result<()> {
    remove_named::<H::Object>(Name(pointer as u64))
}

fn remove_named<T: Kind + Send + Sync + 'static>(name: Name) -> Result<()> {
    if name.kind() != T::KIND || !name.is_one() {
        return Err(explain::<T>(name.0));
    }
    let guard = crossbeam_epoch::pin();
    let (slot, header) = (name.slot(), header(name.slot()));
    let object = header.object.load(Ordering::Acquire) as *const T;
    let next = Name::new(slot, 0, (name.generation() + 1) & GENERATIONS);
    header
        .name
        .compare_exchange(name.0, next.0, Ordering::AcqRel, Ordering::Acquire)
        .map_err(|_| explain::<T>(name.0))?;
    // SAFETY: only the thread that made the exchange releases the object; earlier lookups that saw
    // it hold guards.
    unsafe { guard.defer_unchecked(move || drop(Arc::from_raw(object))) };
    guard.flush();
    FREE.lock().recycled.push(slot);
    Ok(())
}

/// Waits briefly for calls that use removed objects, and releases the objects. A call that does not
/// end keeps its objects.
pub fn settle(alive: &Weak<()>) {
    const TURNS: u32 = 10_000;
    for turn in 0..TURNS {
        crossbeam_epoch::pin().flush();
        if alive.strong_count() == 0 {
            return;
        }
        match turn {
            0..=64 => std::thread::yield_now(),
            _ => std::thread::sleep(std::time::Duration::from_micros(100)),
        }
    }
}

fn remove_if_owned<T: Send + Sync + 'static>(slot: usize, endpoint: &Arc<Endpoint>)
where
    Owned<T>: Kind,
{
    let name = Name(header(slot).name.load(Ordering::Acquire));
    let guard = crossbeam_epoch::pin();
    if find::<Owned<T>>(name.0, &guard).is_some_and(|owned| owned.belongs(endpoint)) {
        // Another thread may have closed it meanwhile.
        let _ = remove_named::<Owned<T>>(name);
    }
}

/// Like `insert`, for an object of an endpoint.
pub fn insert_owned<H: Handle<Object = Owned<T>>, T>(
    endpoint: &Arc<Endpoint>,
    make: impl FnOnce() -> Result<Arc<T>>,
) -> Result<*mut H>
where
    Owned<T>: Kind,
{
    insert(|| Ok(Owned::new(endpoint, make()?)))
}

/// Removes an endpoint's handle, and the handles of its objects.
pub fn remove_endpoint<H: Handle<Object = Endpoint>>(
    pointer: *const H,
    endpoint: &Arc<Endpoint>,
) -> Result<()> {
    remove(pointer)?;
    let used = FREE.lock().used;
    for slot in 0..used {
        remove_if_owned::<Memory>(slot, endpoint);
        remove_if_owned::<RemoteMemory>(slot, endpoint);
        remove_if_owned::<Queue>(slot, endpoint);
        remove_if_owned::<Prepared>(slot, endpoint);
        remove_if_owned::<Watch>(slot, endpoint);
    }
    Ok(())
}

/// The endpoint's own queue, which lives as long as the endpoint.
pub fn own_queue<E: Handle<Object = Endpoint>, Q: Handle<Object = Owned<Queue>>>(
    pointer: *const E,
) -> Result<*mut Q> {
    get(pointer)?;
    Ok(Name(pointer as u64).as_kind(OWN_QUEUE).0 as *mut Q)
}

/// A queue that a handle names.
pub enum AnyQueue {
    Own(Ref<Endpoint>),
    Created(Ref<Owned<Queue>>, Arc<Endpoint>),
}

impl AnyQueue {
    #[inline]
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        match self {
            AnyQueue::Own(endpoint) => endpoint,
            AnyQueue::Created(_, endpoint) => endpoint,
        }
    }

    #[inline]
    pub fn queue(&self) -> &Arc<Queue> {
        match self {
            AnyQueue::Own(endpoint) => endpoint.queue(),
            AnyQueue::Created(owned, _) => &(**owned).object,
        }
    }

    /// The queue, if it is one of this endpoint.
    pub fn belonging_to(&self, endpoint: &Arc<Endpoint>) -> Result<&Arc<Queue>> {
        match Arc::ptr_eq(self.endpoint(), endpoint) {
            true => Ok(self.queue()),
            false => Err(Error::handle("the weft_queue belongs to another endpoint")),
        }
    }
}

#[inline]
pub fn queue<H: Handle<Object = Owned<Queue>>>(pointer: *const H) -> Result<AnyQueue> {
    let name = Name(pointer as u64);
    if name.kind() != OWN_QUEUE {
        let queue = get(pointer)?;
        let endpoint = queue.endpoint()?;
        return Ok(AnyQueue::Created(queue, endpoint));
    }
    let guard = crossbeam_epoch::pin();
    match find(name.stored().0, &guard) {
        Some(object) => Ok(AnyQueue::Own(Ref { object, _guard: guard })),
        None => Err(explain::<Owned<Queue>>(name.0)),
    }
}
