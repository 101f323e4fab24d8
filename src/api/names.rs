//! The names in messages of errors: the library writes those of `weft.h`, and this crate replaces them by its own.

use crate::status::Error;

/// A name that begins another one comes after it.
const NAMES: &[(&str, &str)] = &[
    (" is set in flags", " is set"),
    (" are set in flags", " are set"),
    (" is not set in flags", " is not set"),
    ("WEFT_ACCESS_REMOTE_WRITE", "Access::RemoteWrite"),
    ("WEFT_ACCESS_REMOTE_READ", "Access::RemoteRead"),
    ("WEFT_ACCESS_LOCAL", "Access::Local"),
    ("WEFT_CLASS_LATENCY", "latency"),
    ("WEFT_COMPLETE_EACH_PEER", "complete_each_peer"),
    ("WEFT_COUNT_PAGES", "count_pages"),
    ("WEFT_DURABLE", "durable"),
    ("WEFT_MEMORY_ANY", "MemoryKind::Any"),
    ("WEFT_MEMORY_HOST", "MemoryKind::Host"),
    ("WEFT_NOTIFY_FAILURE", "notify_failure"),
    ("WEFT_NOTIFY", "notify"),
    ("WEFT_NUMA_ANY", "None"),
    ("capabilities in weft_peer_info", "Endpoint::peer_info"),
    ("weft_endpoint_address", "Endpoint::address"),
    ("weft_endpoint_config", "EndpointConfig"),
    ("weft_endpoint_create", "Endpoint::open"),
    ("weft_endpoint_shutdown", "Endpoint::shutdown"),
    ("weft_grant_revoke them", "Endpoint::revoke them"),
    ("weft_memory_alloc", "Endpoint::alloc"),
    ("weft_memory_args", "MemoryArgs"),
    ("weft_memory_export", "Memory::export"),
    ("weft_peer_connect", "Endpoint::connect"),
    ("weft_prepared_destroy it", "drop it"),
    ("weft_queue", "Queue"),
    ("_ns is ", " in ns is "),
];

/// The same error, with the names of this crate.
#[cold]
pub(super) fn in_rust(error: Error) -> Error {
    if !["WEFT_", "weft_", "_ns ", "in flags"].iter().any(|sign| error.message.contains(sign)) {
        return error;
    }
    let renamed =
        NAMES.iter().fold(error.message.into_owned(), |text, (theirs, ours)| text.replace(theirs, ours));
    Error { message: renamed.into(), ..error }
}
