//! Reads the sized structs of the header, and fills those that the library
//! answers with.
//!
//! A struct that is shorter than ours comes from an older program: the rest is
//! zero, which means default. A longer one comes from a newer program: what we
//! do not know must be zero, or we would ignore what it asks for.

use super::device::weft_memory_properties;
use super::endpoint::{
    weft_endpoint_config, WEFT_IDLE_ADAPTIVE, WEFT_IDLE_SLEEP, WEFT_IDLE_SPIN, WEFT_LIVENESS_OFF,
    WEFT_PROGRESS_MANUAL,
};
use super::guard::{array, boundary, bytes};
use super::handle;
use super::memory::{
    weft_memory_args, weft_memory_range, WEFT_ACCESS_GRANTED, WEFT_ACCESS_LOCAL, WEFT_ACCESS_REMOTE_READ,
    WEFT_ACCESS_REMOTE_WRITE, WEFT_MEMORY_ANY, WEFT_MEMORY_CUDA, WEFT_MEMORY_HOST, WEFT_NUMA_ANY,
};
use super::op::{
    weft_op, weft_op_options, weft_queue, WEFT_CLASS_LATENCY, WEFT_COMPLETE_EACH_PEER, WEFT_COUNT_PAGES,
    WEFT_NOTIFY,
};
use crate::device::Claim;
use crate::endpoint::{Endpoint, EndpointConfig, Idle};
use crate::fabric::tcp::At;
use crate::ids::OpId;
use crate::memory::{Access, Range};
use crate::room::{self, Theirs};
use crate::status::{Error, Result, Status};
use crate::transfer::queue::Queue;
use crate::wire::secret::{check_len, Secrets};
use std::ffi::{c_char, c_void};
use std::mem::size_of;
use std::num::NonZeroU64;
use std::sync::Arc;

/// No struct of the header comes near this; a size beyond it is rubbish.
const SIZE_MAX: usize = 4096;
const SECOND_NS: u64 = 1_000_000_000;
const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;

/// Structs of integers and pointers: all zero bytes are a value, and they begin
/// with their size.
///
/// # Safety
/// Implementors must be `repr(C)`, start with a `u32` size, and accept any bytes.
pub unsafe trait Sized32: Copy {}
// SAFETY: integers, pointers and arrays of them only.
unsafe impl Sized32 for weft_endpoint_config {}
unsafe impl Sized32 for super::info::weft_endpoint_properties {}
unsafe impl Sized32 for super::info::weft_rail_properties {}
unsafe impl Sized32 for super::peer::weft_peer_properties {}
unsafe impl Sized32 for super::info::weft_endpoint_statistics {}
unsafe impl Sized32 for super::info::weft_rail_statistics {}
unsafe impl Sized32 for weft_memory_args {}
unsafe impl Sized32 for super::grant::weft_grant_args {}
unsafe impl Sized32 for weft_memory_properties {}

pub fn zeroed<T: Sized32>() -> T {
    // SAFETY: all zero bytes are a value of these types.
    unsafe { std::mem::zeroed() }
}

/// # Safety
/// `source` must be NULL or valid for the size that it begins with.
unsafe fn size_of_theirs<T>(source: *const T) -> Result<usize> {
    let name = || std::any::type_name::<T>().rsplit("::").next().unwrap_or("struct");
    if source.is_null() {
        return Err(Error::invalid(format!("the {} is NULL", name())));
    }
    // SAFETY: at least its size can be read, as the caller promised.
    let size = unsafe { source.cast::<u32>().read_unaligned() } as usize;
    if !(size_of::<u32>()..=SIZE_MAX).contains(&size) {
        return Err(Error::invalid(format!(
            "size {size} cannot be that of a {}: start from its _INIT macro",
            name()
        )));
    }
    Ok(size)
}

/// # Safety
/// `source` must be NULL or valid for the size that it begins with.
pub(super) unsafe fn read<T: Sized32>(source: *const T) -> Result<T> {
    // SAFETY: passed on.
    let size = unsafe { size_of_theirs(source)? };
    if size == size_of::<T>() {
        // SAFETY: this many bytes are readable.
        return Ok(unsafe { source.read_unaligned() });
    }
    let mut value: T = zeroed();
    // SAFETY: `size` bytes are readable, and at most ours are written.
    unsafe {
        let known = size.min(size_of::<T>());
        std::ptr::copy_nonoverlapping(source.cast::<u8>(), (&raw mut value).cast::<u8>(), known);
        let tail = Theirs::new(source.cast::<u8>().add(known), size - known);
        if let Some(at) = tail.iter().position(|byte| byte != 0) {
            return Err(Error::new(
                Status::Unsupported,
                format!(
                    "byte {} of the struct is set, but this Weft ({}) knows {} bytes of it: the program needs a newer library",
                    known + at,
                    env!("CARGO_PKG_VERSION"),
                    size_of::<T>()
                ),
            ));
        }
    }
    Ok(value)
}

/// # Safety
/// As `read`.
pub(super) unsafe fn read_or_default<T: Sized32>(source: *const T) -> Result<T> {
    if source.is_null() {
        return Ok(zeroed());
    }
    // SAFETY: passed on.
    unsafe { read(source) }
}

/// Stores an answer, as much of it as the caller's struct holds, keeping the
/// caller's size.
///
/// # Safety
/// `target` must be NULL or valid for the size that it begins with.
pub unsafe fn fill<T: Sized32>(target: *mut T, value: T) -> Result<()> {
    // SAFETY: passed on; the field `size` itself is skipped.
    unsafe {
        let size = size_of_theirs(target)?;
        let known = size.min(size_of::<T>());
        let skip = size_of::<u32>();
        std::ptr::copy_nonoverlapping(
            (&raw const value).cast::<u8>().add(skip),
            target.cast::<u8>().add(skip),
            known - skip,
        );
        std::ptr::write_bytes(target.cast::<u8>().add(known), 0, size - known);
    }
    Ok(())
}

/// Stores those of two answers that the caller has a place for: both, or neither.
///
/// # Safety
/// As for `fill`.
pub unsafe fn fill_both<P: Sized32, S: Sized32>(
    (properties, statistics): (*mut P, *mut S),
    answer: impl FnOnce() -> P,
    counted: impl FnOnce() -> S,
) -> Result<()> {
    if properties.is_null() && statistics.is_null() {
        return Err(Error::invalid(
            "properties and statistics are both NULL: pass where to store one of them",
        ));
    }
    // SAFETY: passed on.
    unsafe {
        if !statistics.is_null() {
            size_of_theirs(statistics)?;
        }
        if !properties.is_null() {
            fill(properties, answer())?;
        }
        if !statistics.is_null() {
            fill(statistics, counted())?;
        }
    }
    Ok(())
}

/// Text for a fixed field: cut to fit, always ended by a NUL.
pub fn text(field: &mut [c_char], text: &str) {
    let end = boundary(text, field.len() - 1);
    for (to, from) in field.iter_mut().zip(&text.as_bytes()[..end]) {
        *to = *from as c_char;
    }
}

/// Flags of submissions, and what they are for.
const FLAGS: [(u32, &str, &str); 4] = [
    (WEFT_NOTIFY, "WEFT_NOTIFY", "writes and reads"),
    (WEFT_CLASS_LATENCY, "WEFT_CLASS_LATENCY", "writes, reads and atomics"),
    (WEFT_COUNT_PAGES, "WEFT_COUNT_PAGES", "writes of ranges and pages that name a counter"),
    (WEFT_COMPLETE_EACH_PEER, "WEFT_COMPLETE_EACH_PEER", "lists and prepared lists"),
];

/// Refuses flags that this call does not know, though others may.
pub(super) fn no_flags(flags: u32, known: u32) -> Result<()> {
    let wrong = flags & !known;
    if wrong == 0 {
        return Ok(());
    }
    let text = match FLAGS.iter().find(|(flag, ..)| wrong & flag != 0) {
        Some((_, name, for_what)) => {
            format!("{name} is set in flags: it is for {for_what}, not for this call")
        }
        None => format!("flags {wrong:#x} are not known to this version of Weft"),
    };
    Err(Error::new(Status::Unsupported, text))
}

pub(super) fn zero_reserved(reserved: u32) -> Result<()> {
    if reserved != 0 {
        return Err(Error::new(
            Status::Unsupported,
            "a reserved field is not 0: start from the struct's _INIT macro",
        ));
    }
    Ok(())
}

pub(super) fn timeout(name: &str, ns: u64) -> Result<Option<NonZeroU64>> {
    if ns > DAY_NS {
        return Err(Error::limit(format!("{name} is {ns} ns: at most 24 hours ({DAY_NS} ns) are allowed")));
    }
    Ok(NonZeroU64::new(ns))
}

fn within(name: &str, value: u64, low: u64, high: u64, default: u64) -> Result<u64> {
    match value {
        0 => Ok(default),
        v if (low..=high).contains(&v) => Ok(v),
        v => {
            let default = if default == 0 { "the default".to_owned() } else { default.to_string() };
            Err(Error::limit(format!("{name} is {v}: it must be {low} to {high}, or 0 for {default}")))
        }
    }
}

/// # Safety
/// `text` must be NULL or a C string.
unsafe fn string(name: &str, text: *const c_char) -> Result<Option<String>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: a C string as the caller promised.
    let copy = unsafe { bytes(text.cast(), libc::strlen(text), name)? }.copied(name)?;
    match String::from_utf8(copy) {
        Ok(text) => Ok(Some(text).filter(|t| !t.trim().is_empty())),
        Err(_) => Err(Error::invalid(format!("{name} is not UTF-8"))),
    }
}

/// A secret of the config's: its bytes, if it is set.
///
/// # Safety
/// As the header asks of the config's secrets.
unsafe fn secret(of: *const c_void, len: u64, name: &str) -> Result<Option<(Vec<u8>, &str)>> {
    match (of.is_null(), len) {
        (true, 0) => Ok(None),
        (false, 0) => {
            Err(Error::invalid(format!("{name} is set, but {name}_len is 0: pass its length in bytes")))
        }
        // SAFETY: valid for this many bytes, as the header asks; the length is checked first.
        (_, len) => unsafe { Ok(Some((bytes(of, check_len(len, name)?, name)?.copied(name)?, name))) },
    }
}

/// # Safety
/// As the header asks of the config's secrets.
unsafe fn secrets(theirs: &weft_endpoint_config) -> Result<Option<Arc<Secrets>>> {
    // SAFETY: passed on.
    let (first, other, file) = unsafe {
        (
            secret(theirs.secret, theirs.secret_len, "secret")?,
            secret(theirs.other_secret, theirs.other_secret_len, "other_secret")?,
            string("secret_file", theirs.secret_file)?,
        )
    };
    if other.is_some() && first.is_none() {
        return Err(Error::invalid("other_secret is set, but secret is not: set the one for connecting"));
    }
    let file = match (&first, file) {
        (Some(_), Some(_)) => {
            return Err(Error::invalid("secret and secret_file are both set: secrets are of one of them"))
        }
        (Some(_), None) => None,
        (None, Some(file)) => Some(file.into()),
        (None, None) => libfabric_sys::variable("WEFT_SECRET_FILE"),
    };
    let mut copies: Vec<(Vec<u8>, &str)> = first.into_iter().chain(other).collect();
    let given: Vec<(&[u8], &str)> = copies.iter().map(|(copy, name)| (&copy[..], *name)).collect();
    let secrets = match file {
        Some(file) => Some(Secrets::of_file(file.into())),
        None if given.is_empty() => None,
        None => Some(Secrets::new(&given)),
    };
    copies.iter_mut().for_each(|(copy, _)| copy.fill(0));
    std::hint::black_box(&copies); // Or the compiler leaves that out.
    Ok(secrets.transpose()?.map(Arc::new))
}

/// # Safety
/// `config` must be valid as the header asks.
pub unsafe fn endpoint(config: *const weft_endpoint_config) -> Result<EndpointConfig> {
    // SAFETY: passed on.
    let theirs = unsafe { read(config)? };
    no_flags(theirs.flags, 0)?;
    let idle = match theirs.idle {
        WEFT_IDLE_ADAPTIVE => Idle::Adaptive,
        WEFT_IDLE_SPIN => Idle::Spin,
        WEFT_IDLE_SLEEP => Idle::Sleep,
        other => return Err(Error::invalid(format!("idle {other} is not known"))),
    };
    if theirs.progress > WEFT_PROGRESS_MANUAL {
        return Err(Error::invalid(format!("progress {} is not known", theirs.progress)));
    }
    if theirs.encrypt > 1 {
        return Err(Error::invalid(format!("encrypt is {}: it must be 0 or 1", theirs.encrypt)));
    }
    // SAFETY: as the header asks.
    let secrets = unsafe { secrets(&theirs)? };
    if theirs.encrypt != 0 && secrets.is_none() {
        return Err(Error::invalid("encrypt is 1, but there is no secret: set secret or secret_file"));
    }
    // SAFETY: C strings or NULL, as the header asks.
    let tcp_at = unsafe {
        let (ports, address) =
            (string("tcp_ports", theirs.tcp_ports)?, string("tcp_address", theirs.tcp_address)?);
        At::new(ports.as_deref(), address.as_deref())?
    };
    let d = EndpointConfig::default();
    Ok(EndpointConfig {
        // SAFETY: C strings or NULL, as the header asks.
        fabric: unsafe { string("fabric", theirs.fabric)? },
        // SAFETY: the same.
        rails: unsafe { string("rails", theirs.rails)? },
        rail_count: within("rail_count", theirs.rail_count.into(), 1, 64, 0)? as usize,
        min_rails: within("min_rails", theirs.min_rails.into(), 1, 64, 1)? as usize,
        manual: theirs.progress == WEFT_PROGRESS_MANUAL,
        idle,
        workers: within("workers", theirs.workers.into(), 1, 64, d.workers as u64)? as usize,
        max_transfers: within(
            "max_transfers",
            theirs.max_transfers.into(),
            1,
            1 << 20,
            d.max_transfers as u64,
        )? as usize,
        queue_depth: within("queue_depth", theirs.queue_depth.into(), 16, 1 << 20, d.queue_depth as u64)?
            as usize,
        max_peers: within("max_peers", theirs.max_peers.into(), 1, 65536, d.max_peers as u64)? as usize,
        max_counters: within("max_counters", theirs.max_counters.into(), 1, 1 << 20, d.max_counters as u64)?
            as usize,
        timeout_ns: within("timeout_ns", theirs.timeout_ns, 1, DAY_NS, d.timeout_ns)?,
        connect_timeout_ns: within(
            "connect_timeout_ns",
            theirs.connect_timeout_ns,
            1,
            DAY_NS,
            d.connect_timeout_ns,
        )?,
        message_bytes: within("message_bytes", theirs.message_bytes, 1 << 20, 1 << 30, d.message_bytes)?,
        liveness_ns: match theirs.liveness_ns {
            WEFT_LIVENESS_OFF => None,
            0 => d.liveness_ns,
            ns => Some(within("liveness_ns", ns, SECOND_NS, DAY_NS, 0)?),
        },
        secrets,
        encrypt: theirs.encrypt != 0,
        tcp_at,
        tcp_streams: within("tcp_streams", theirs.tcp_streams.into(), 1, 16, 0)? as usize,
        tcp_dscp: within("tcp_dscp", theirs.tcp_dscp.into(), 1, 63, 0)? as u8,
    })
}

/// # Safety
/// `args` must be valid as the header asks.
pub unsafe fn connect(options: *const weft_op_options) -> Result<weft_op_options> {
    // SAFETY: passed on.
    let theirs = unsafe { read_or_default(options)? };
    let only = weft_op_options {
        size: theirs.size,
        timeout_ns: theirs.timeout_ns,
        user_data: theirs.user_data,
        ..zeroed()
    };
    timeout("timeout_ns", theirs.timeout_ns)?;
    no_flags(theirs.flags, 0)?;
    match theirs == only {
        true => Ok(theirs),
        false => Err(Error::invalid(
            "a connect has the options timeout_ns and user_data alone: another one is set",
        )),
    }
}

const REMOTE: u32 = WEFT_ACCESS_REMOTE_READ | WEFT_ACCESS_REMOTE_WRITE;

/// # Safety
/// `args` must be valid as the header asks.
pub unsafe fn memory(args: *const weft_memory_args) -> Result<(Access, u64, Claim)> {
    // SAFETY: passed on.
    let args = unsafe { read_or_default(args)? };
    let unknown = args.access & !(WEFT_ACCESS_LOCAL | REMOTE | WEFT_ACCESS_GRANTED);
    if unknown != 0 {
        return Err(Error::new(
            Status::Unsupported,
            format!("access has bits {unknown:#x}, which are not known to this version of Weft"),
        ));
    }
    let remote = args.access & (REMOTE | WEFT_ACCESS_GRANTED);
    if args.access & WEFT_ACCESS_LOCAL != 0 && remote != 0 {
        return Err(Error::invalid("WEFT_ACCESS_LOCAL excludes remote access"));
    }
    let any = args.access & !WEFT_ACCESS_GRANTED == 0;
    let access = Access {
        remote_write: any || args.access & WEFT_ACCESS_REMOTE_WRITE != 0,
        remote_read: any || args.access & WEFT_ACCESS_REMOTE_READ != 0,
        granted_only: args.access & WEFT_ACCESS_GRANTED != 0,
        ..Access::ALL
    };
    zero_reserved(args.reserved)?;
    let claim = match args.kind {
        WEFT_MEMORY_ANY => Claim::Unsaid,
        WEFT_MEMORY_HOST => Claim::Host,
        WEFT_MEMORY_CUDA => Claim::Device,
        other => {
            return Err(Error::new(
                Status::Unsupported,
                format!("kind is {other}, which is not known to this version of Weft"),
            ));
        }
    };
    Ok((access, args.rails, claim))
}

/// The NUMA node that is asked for.
pub fn numa_node(node: i32) -> Result<Option<u32>> {
    match node {
        WEFT_NUMA_ANY => Ok(None),
        0..=63 => Ok(Some(node as u32)),
        other => Err(Error::invalid(format!(
            "numa_node is {other}: it must be a NUMA node, 0 to 63, or WEFT_NUMA_ANY"
        ))),
    }
}

/// # Safety
/// `ranges` must be NULL or valid for `count` elements.
pub unsafe fn ranges(ranges: *const weft_memory_range, count: usize) -> Result<Vec<Range>> {
    const MOST: usize = 65_536;
    if ranges.is_null() || count == 0 {
        return Err(Error::invalid("no ranges: pass at least one"));
    }
    if count > MOST {
        return Err(Error::limit(format!("{count} ranges: at most {MOST} are allowed")));
    }
    // SAFETY: valid for `count` elements as the caller promised.
    let theirs = unsafe { array(ranges, count, "ranges")? };
    let mut checked = room::vec(count, "the ranges")?;
    for (i, range) in theirs.iter().enumerate() {
        let (base, len) = (range.address as u64, range.len);
        if base == 0 || len == 0 {
            return Err(Error::invalid(format!("range {i} is empty (address {base:#x}, {len} bytes)")));
        }
        if len > 1 << 47 || base.checked_add(len).is_none() {
            return Err(Error::limit(format!("range {i} has {len} bytes: at most 2^47 are allowed")));
        }
        checked.push(Range { base, len });
    }
    Ok(checked)
}

/// Submits what completes in a queue (NULL: the endpoint's own), and stores its id.
///
/// # Safety
/// `queue` must be NULL or a handle, `op` NULL or valid.
pub(super) unsafe fn submitted(
    ep: &Arc<Endpoint>,
    queue: *const weft_queue,
    op: *mut weft_op,
    submit: impl FnOnce(&Arc<Queue>) -> Result<OpId>,
) -> Result<()> {
    let named = if queue.is_null() { None } else { Some(handle::queue(queue)?) };
    let id = submit(named.as_ref().map_or(Ok(ep.queue()), |queue| queue.of(ep))?)?;
    if !op.is_null() {
        // SAFETY: not NULL, so valid; aligned or not.
        unsafe { op.write_unaligned(id.get()) };
    }
    Ok(())
}
