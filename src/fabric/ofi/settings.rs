//! What providers read from the environment as their settings. The user's stay, and ours
//! are there only while they are read.

use super::discover::{Entry, Source};
use libfabric_sys::*;
use std::ops::Range;
use std::path::Path;
use std::ptr;

type Setting = (&'static str, &'static str);

/// Read once, when the providers start.
/// shm without its cross-memory path: with it, a target goes on copying after the
/// initiator has closed everything. Who removes an address closes the connection to it:
/// what a peer had sent before cannot land any more. And ofi_rxm with fewer receives of
/// its own: it posts ours on top, and 4096 take 56 MiB a rail (112 with 2.1; measured).
const STARTING: [Setting; 3] =
    [("FI_SHM_DISABLE_CMA", "1"), ("FI_AV_REMOVE_CLEANUP", "1"), ("FI_OFI_RXM_MSG_RX_SIZE", "512")];

/// As these, where `are_short` says so. ofi_rxm makes and clears a thousand buffers for what
/// comes, and as many with the first message that goes: of its 16 KiB each they are 32 MiB
/// and 30 ms for every rail (measured).
const BUFFERS: Setting = ("FI_OFI_RXM_BUFFER_SIZE", "1024");
/// Read whenever an endpoint is made: what is sent without asking, past the buffers where it
/// is longer. Two ends that differ in it do not connect, so it is what all have that do not
/// set it.
const EAGER: Setting = ("FI_OFI_RXM_EAGER_LIMIT", "16384");
/// Those that read it. Later ones send no more than a buffer.
const READS_EAGER: Range<u32> = FI_VERSION(1, 17)..FI_VERSION(1, 20);
/// What a user may have set that the two depend on.
const RELATED: [&str; 4] =
    [BUFFERS.0, EAGER.0, "FI_OFI_RXM_ENABLE_DYN_RBUF", "FI_OFI_RXM_ENABLE_DIRECT_SEND"];
/// Has an entry for each RDMA device: over verbs there is no sending past the buffers.
const RDMA: &str = "/sys/class/infiniband";

/// Has libfabric and its providers read their settings; whether ofi_rxm's buffers are short.
pub fn settle(library: &Library, api: u32) -> bool {
    let rdma = Path::new(RDMA).read_dir().is_ok_and(|mut devices| devices.next().is_some());
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let short = are_short(library.version(), library.is_shared() || rdma, is_set);
    let buffers = short.then_some(BUFFERS);
    let settings: Vec<Setting> = STARTING.into_iter().chain(buffers).collect();
    with(&settings, || {
        let mut infos = ptr::null_mut();
        // SAFETY: what it lists does not matter: the first listing starts the providers.
        unsafe {
            if library.getinfo(api, ptr::null(), ptr::null(), 0, ptr::null(), &mut infos) == 0 {
                library.freeinfo(infos);
            }
        }
    });
    short
}

/// `others`: somebody else may open endpoints of ofi_rxm, for which nobody sets `EAGER`.
fn are_short(version: u32, others: bool, is_set: impl Fn(&str) -> bool) -> bool {
    READS_EAGER.contains(&version) && !others && !RELATED.into_iter().any(is_set)
}

/// Makes an endpoint of an entry.
pub fn while_opening<T>(entry: &Entry, open: impl FnOnce() -> T) -> T {
    match entry.source() {
        Source::Libfabric(fabrics) if fabrics.short_buffers => with(&[EAGER], open),
        _ => open(),
    }
}

/// The environment is as before when it returns.
fn with<T>(settings: &[Setting], body: impl FnOnce() -> T) -> T {
    let ours: Vec<_> = settings.iter().filter(|(name, _)| std::env::var_os(name).is_none()).collect();
    ours.iter().for_each(|(name, value)| std::env::set_var(name, value));
    let result = body();
    ours.iter().for_each(|(name, _)| std::env::remove_var(name));
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_short_where_what_is_sent_can_be_longer() {
        let short = |minor, others| are_short(FI_VERSION(1, minor), others, |_| false);
        assert!(short(17, false) && short(19, false) && !short(20, false));
        assert!(!short(17, true), "others would send no more than a buffer");
        for set in RELATED {
            assert!(!are_short(FI_VERSION(1, 17), false, |name| name == set), "{set} is the user's");
        }
    }
}
