//! What providers read from the environment as their settings. The user's stay, and ours
//! are there only while they are read.

use super::discover::{Entry, Source};
use crate::status::{Error, Result, Status};
use libfabric_sys::*;
use parking_lot::Mutex;
use std::ptr;

type Setting = (&'static str, &'static str);

/// Read once, when the providers start.
/// shm without its cross-memory path: with it, a target goes on copying after the
/// initiator has closed everything. Who removes an address closes the connection to it:
/// what a peer had sent before cannot land any more. And ofi_rxm with fewer receives of
/// its own: it posts ours on top, and 4096 take 56 MiB a rail (112 with 2.1; measured).
const STARTING: [Setting; 3] =
    [("FI_SHM_DISABLE_CMA", "1"), ("FI_AV_REMOVE_CLEANUP", "1"), ("FI_OFI_RXM_MSG_RX_SIZE", "512")];

/// Read whenever NICs are listed and opened: the connections of a NIC share their receives. Over
/// tcp they do so by default. Over verbs each connection would have receives of its own, and
/// ofi_rxm (1.17 to 2.6) then crashes when it closes a connection over which a message has come
/// that nobody has reaped: it posts the message's buffer again, to the endpoint that it has freed.
const SHARED: Setting = ("FI_OFI_RXM_USE_SRX", "1");
/// Values that libfabric takes for yes, in any case.
const YES: [&str; 4] = ["1", "true", "yes", "on"];
/// Has libfabric and its providers read their settings.
pub fn settle(library: &Library, api: u32) {
    with(&STARTING, || {
        let mut infos = ptr::null_mut();
        // SAFETY: what it lists does not matter: the first listing starts the providers.
        unsafe {
            if library.getinfo(api, ptr::null(), ptr::null(), 0, ptr::null(), &mut infos) == 0 {
                library.freeinfo(infos);
            }
        }
    });
}

/// Opens an entry's NIC. Fails where the user's settings make that unsafe.
pub fn while_opening<T>(entry: &Entry, open: impl FnOnce() -> Result<T>) -> Result<T> {
    if !matches!(entry.source(), Source::Libfabric(_)) {
        return open();
    }
    let user = std::env::var_os(SHARED.0).map(|value| value.to_string_lossy().into_owned());
    must_share(&entry.provider, user.as_deref())?;
    with(shared(&entry.provider).as_slice(), open)
}

/// Lists a provider's NICs.
pub fn while_listing<T>(provider: Option<&str>, list: impl FnOnce() -> T) -> T {
    with(provider.and_then(shared).as_slice(), list)
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
    if YES.iter().any(|yes| user.eq_ignore_ascii_case(yes)) {
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

/// The environment is as before when it returns.
fn with<T>(settings: &[Setting], body: impl FnOnce() -> T) -> T {
    // One at a time: the first of two to return would take the settings from the other.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = (!settings.is_empty()).then(|| TURN.lock());
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
            with(&[(NAME, "1")], || {
                let there = |_| {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    std::env::var_os(NAME).is_some()
                };
                (0..20).all(there)
            })
        };
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(move || (0..3).all(|_| look()))).collect();
        assert!(threads.into_iter().all(|thread| thread.join().unwrap_or(false)));
        assert_eq!(std::env::var_os(NAME), None);
    }
}
