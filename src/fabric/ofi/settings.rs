//! Settings that providers read from the environment. The user's are kept, and ours are there only
//! while providers read them.

use super::discover::{Entry, Source};
use crate::status::{Error, Result, Status};
use libfabric_sys::*;
use once_cell::sync::OnceCell;
use std::ptr;
use std::sync::Once;

type Setting = (&'static str, &'static str);

/// Read once, when the providers start, and so in force for every user of libfabric in the process:
/// each only where a fabric that needs it may be opened.
/// shm (efa's is the same) without its cross-memory path: with it, a target goes on copying after
/// the initiator has closed everything.
const NO_CROSS_MEMORY: Setting = ("FI_SHM_DISABLE_CMA", "1");
/// ofi_rxm closes a connection whose address is removed: what a peer had sent before cannot land
/// after that. And it has fewer receives of its own: it posts ours on top, and 4096 take 56 MiB a
/// rail (112 with 2.1; measured).
const OF_RXM: [Setting; 2] = [("FI_AV_REMOVE_CLEANUP", "1"), ("FI_OFI_RXM_MSG_RX_SIZE", "512")];

/// Read whenever NICs are listed and opened: the connections of a NIC share their receives. Over
/// tcp they do so by default. Over verbs each connection would have receives of its own, and
/// ofi_rxm (1.17 to 2.6) then crashes when it closes a connection over which a message has come
/// that nobody has reaped: it posts the message's buffer again, to the endpoint that it has freed.
const SHARED: Setting = ("FI_OFI_RXM_USE_SRX", "1");
/// Values that libfabric takes for yes, in any case.
const YES: [&str; 4] = ["1", "true", "yes", "on"];

/// Whether libfabric read `NO_CROSS_MEMORY`, as far as is known.
static CROSS_MEMORY_IS_OFF: OnceCell<bool> = OnceCell::new();

/// Settings for the providers of these names at their start.
fn starting(providers: &[&str]) -> Vec<Setting> {
    let mut settings = Vec::new();
    if providers.iter().any(|name| copies_by_shm(name)) {
        settings.push(NO_CROSS_MEMORY);
    }
    if providers.iter().any(|name| name.ends_with("ofi_rxm")) {
        settings.extend(OF_RXM);
    }
    settings
}

/// efa does between processes of one host.
fn copies_by_shm(provider: &str) -> bool {
    provider == "shm" || provider.starts_with("efa")
}

/// Has libfabric and its providers read their settings, before rails of these providers are opened.
/// `in_use`: another user may have had them do so before.
pub fn settle(library: &Library, api: u32, providers: &[&str], in_use: bool) {
    with(&starting(providers), || {
        let says_yes = std::env::var(NO_CROSS_MEMORY.0).is_ok_and(|value| is_yes(&value));
        let _ = CROSS_MEMORY_IS_OFF.set(says_yes && !in_use);
        let mut infos = ptr::null_mut();
        // SAFETY: what it lists does not matter: the first listing starts the providers.
        unsafe {
            if library.getinfo(api, ptr::null(), ptr::null(), 0, ptr::null(), &mut infos) == 0 {
                library.freeinfo(infos);
            }
        }
    });
}

/// Warns, once, that bytes may land late.
fn warn_of_cross_memory(provider: &str) {
    static ONCE: Once = Once::new();
    if copies_by_shm(provider) && CROSS_MEMORY_IS_OFF.get() == Some(&false) {
        let name = NO_CROSS_MEMORY.0;
        ONCE.call_once(|| {
            log::warn!(
                "{provider}: libfabric may copy between processes by its cross-memory path, so bytes may land after \
                 a peer was closed: it was in use before this open, or {name} is 0; set {name}=1 before the process \
                 starts"
            )
        });
    }
}

/// Opens an entry's NIC. Fails where the user's settings make that unsafe.
pub fn while_opening<T>(entry: &Entry, open: impl FnOnce() -> Result<T>) -> Result<T> {
    if !matches!(entry.source(), Source::Libfabric(_)) {
        return open();
    }
    let user = std::env::var_os(SHARED.0).map(|value| value.to_string_lossy().into_owned());
    must_share(&entry.provider, user.as_deref())?;
    warn_of_cross_memory(&entry.provider);
    with(shared(&entry.provider).as_slice(), open)
}

/// Lists a provider's NICs.
pub fn while_listing<T>(provider: Option<&str>, list: impl FnOnce() -> T) -> T {
    with(provider.and_then(shared).as_slice(), list)
}

fn is_yes(value: &str) -> bool {
    YES.iter().any(|yes| value.eq_ignore_ascii_case(yes))
}

fn is_verbs(provider: &str) -> bool {
    provider == "verbs;ofi_rxm"
}

fn shared(provider: &str) -> Option<Setting> {
    is_verbs(provider).then_some(SHARED)
}

/// `user`: what the user has set `SHARED` to.
fn must_share(provider: &str, user: Option<&str>) -> Result<()> {
    let Some(user) = user.filter(|_| is_verbs(provider)) else { return Ok(()) };
    if is_yes(user) {
        return Ok(());
    }
    let name = SHARED.0;
    Err(Error::new(
        Status::Unsupported,
        format!(
            "{name} is \"{user}\" in the environment: libfabric's ofi_rxm then crashes over verbs when a peer's \
             connection closes; unset {name} or set it to 1"
        ),
    ))
}

/// An error of enabling an endpoint, with what to do about it.
pub fn explained(provider: &str, error: Error) -> Error {
    if !is_verbs(provider) || ![libc::EINVAL, libc::ENOMEM].contains(&error.provider_errno) {
        return error;
    }
    let message = format!(
        "{}: the NIC's completion queues may be too small: ofi_rxm opens one with 128 entries for each of \
         FI_UNIVERSE_SIZE (1024) peers; set FI_UNIVERSE_SIZE=200, or to less than a 128th of max_cqe as \
         \"ibv_devinfo -v\" shows it, before the process starts",
        error.message
    );
    Error { message: message.into(), ..error }
}

/// The environment is as before when it returns. Called with the turn of `signals::preserved`: the
/// first of two to return would take the settings from the other.
fn with<T>(settings: &[Setting], body: impl FnOnce() -> T) -> T {
    let ours: Vec<_> = settings.iter().filter(|(name, _)| std::env::var_os(name).is_none()).collect();
    ours.iter().for_each(|(name, value)| std::env::set_var(name, value));
    let result = body();
    ours.iter().for_each(|(name, _)| std::env::remove_var(name));
    result
}

#[cfg(test)]
mod tests {
    use super::super::signals;
    use super::*;

    #[test]
    fn providers_start_with_what_the_named_fabrics_need() {
        let names =
            |providers: &[&str]| starting(providers).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert!(names(&[]).is_empty() && names(&["psm3", "tcp"]).is_empty());
        assert_eq!(names(&["shm"]), ["FI_SHM_DISABLE_CMA"]);
        assert_eq!(names(&["efa", "tcp"]), ["FI_SHM_DISABLE_CMA"]);
        assert_eq!(names(&["verbs;ofi_rxm"]), ["FI_AV_REMOVE_CLEANUP", "FI_OFI_RXM_MSG_RX_SIZE"]);
        assert_eq!(names(&["efa", "tcp;ofi_rxm"]).len(), 3);
    }

    #[test]
    fn receives_are_shared_over_verbs_alone() {
        let listed = |provider| while_listing(provider, || std::env::var(SHARED.0).ok());
        assert_eq!(listed(Some("verbs;ofi_rxm")).as_deref(), Some("1"));
        for other in [None, Some("tcp;ofi_rxm"), Some("verbs"), Some("efa")] {
            assert_eq!(listed(other), None, "{other:?}");
        }
        assert_eq!(std::env::var_os(SHARED.0), None);
    }

    #[test]
    fn a_user_who_does_not_share_receives_is_refused_over_verbs() {
        for yes in [None, Some("1"), Some("yes"), Some("TRUE"), Some("On")] {
            assert!(must_share("verbs;ofi_rxm", yes).is_ok(), "{yes:?}");
        }
        // libfabric takes what it does not know for no.
        for no in ["0", "no", "off", "False", "", "2", "1 "] {
            assert!(must_share("tcp;ofi_rxm", Some(no)).is_ok());
            let refused = must_share("verbs;ofi_rxm", Some(no)).expect_err(no);
            assert!(refused.message.contains(&format!("FI_OFI_RXM_USE_SRX is \"{no}\"")), "{refused}");
            assert!(refused.message.contains("unset FI_OFI_RXM_USE_SRX"), "{refused}");
        }
    }

    #[test]
    fn a_completion_queue_that_is_too_large_says_what_to_set() {
        let error =
            |errno| Error { provider_errno: errno, ..Error::new(Status::Fabric, "enabling the endpoint") };
        for errno in [libc::EINVAL, libc::ENOMEM] {
            let text = explained("verbs;ofi_rxm", error(errno)).message;
            assert!(
                text.starts_with("enabling the endpoint: ") && text.contains("FI_UNIVERSE_SIZE=200"),
                "{text}"
            );
        }
        for (provider, errno) in [("verbs;ofi_rxm", libc::EIO), ("tcp;ofi_rxm", libc::EINVAL)] {
            assert_eq!(explained(provider, error(errno)).message, "enabling the endpoint");
        }
    }

    #[test]
    fn settings_stay_until_each_user_has_returned() {
        const NAME: &str = "WEFT_UNIT_TEST_SETTING";
        let look = || {
            let there = |_| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                std::env::var_os(NAME).is_some()
            };
            signals::preserved(|| with(&[(NAME, "1")], || (0..20).all(there)))
        };
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(move || (0..3).all(|_| look()))).collect();
        assert!(threads.into_iter().all(|thread| thread.join().unwrap_or(false)));
        assert_eq!(std::env::var_os(NAME), None);
    }
}
