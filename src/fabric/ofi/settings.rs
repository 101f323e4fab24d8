//! Settings that providers read from the environment. The user's own settings take precedence, and
//! Weft's are set only while providers read them.

use super::discover::{ListedNic, Source};
use crate::status::{Error, Result, Status};
use libfabric_sys::*;
use once_cell::sync::OnceCell;
use std::ptr;
use std::sync::Once;

type Setting = (&'static str, &'static str);

/// The next two are read once, when the providers start, and then apply to every user of
/// libfabric in the process; so each is set only if a fabric that needs it may be opened. This one
/// disables the cross-memory path of the shm that efa uses within a host: with it, a target goes on
/// copying after the initiator has closed everything.
const NO_CROSS_MEMORY: Setting = ("FI_SHM_DISABLE_CMA", "1");
/// Without it, on kernels and drivers that do not copy pinned pages on a fork, libfabric ends a process that forks
/// (`system`, `popen`). It changes nothing on others.
const FORKS: Setting = ("FI_EFA_FORK_SAFE", "1");
/// Disables verbs' cache of registrations: in the cache, memory stays registered after its
/// deregistration, so peers can still write to it, and it is registered as writable.
const NO_CACHE: Setting = ("FI_MR_CACHE_MAX_COUNT", "0");
/// Values that libfabric reads as true, in any case.
const YES: [&str; 4] = ["1", "true", "yes", "on"];

/// Whether libfabric read `NO_CROSS_MEMORY`, and `NO_CACHE`, if that is known.
static CROSS_MEMORY_IS_OFF: OnceCell<bool> = OnceCell::new();
static CACHE_IS_OFF: OnceCell<bool> = OnceCell::new();

/// The settings that these providers need when they start.
fn starting(providers: &[&str]) -> Vec<Setting> {
    let mut settings = Vec::new();
    if providers.iter().any(|name| name.starts_with("efa")) {
        settings.extend([NO_CROSS_MEMORY, FORKS]);
    }
    if providers.contains(&"verbs") {
        settings.push(NO_CACHE);
    }
    settings
}

/// Makes libfabric and its providers read their settings, before rails of these providers are
/// opened. `in_use`: another user of libfabric may have started them before.
pub fn settle(library: &Library, api: u32, providers: &[&str], in_use: bool) {
    with(&starting(providers), || {
        let says_yes = std::env::var(NO_CROSS_MEMORY.0).is_ok_and(|value| is_yes(&value));
        let _ = CROSS_MEMORY_IS_OFF.set(says_yes && !in_use);
        let says_none = std::env::var(NO_CACHE.0).is_ok_and(|value| value == NO_CACHE.1);
        let _ = CACHE_IS_OFF.set(says_none && !in_use);
        let mut infos = ptr::null_mut();
        // SAFETY: the arguments are valid, and the list is freed; the first listing starts the
        // providers.
        unsafe {
            if library.getinfo(api, ptr::null(), ptr::null(), 0, ptr::null(), &mut infos) == 0 {
                library.freeinfo(infos);
            }
        }
    });
}

/// Warns, once, that bytes may arrive late.
fn warn_of_cross_memory(provider: &str) {
    static ONCE: Once = Once::new();
    if provider.starts_with("efa") && CROSS_MEMORY_IS_OFF.get() == Some(&false) {
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

/// Warns, once, that memory may stay registered.
fn warn_of_cache(provider: &str) {
    static ONCE: Once = Once::new();
    if provider == "verbs" && CACHE_IS_OFF.get() == Some(&false) {
        let (name, value) = NO_CACHE;
        ONCE.call_once(|| {
            log::warn!(
                "{provider}: libfabric may keep memory registered after it is deregistered, so late bytes may land there: \
                 libfabric was started before this open, or {name} is not {value}; set {name}={value} before the \
                 process starts"
            )
        });
    }
}

/// Checks, before an entry's NIC is opened, that opening it is safe.
pub fn check(entry: &ListedNic) -> Result<()> {
    if !matches!(entry.source(), Source::Libfabric(_)) {
        return Ok(());
    }
    warn_of_cross_memory(&entry.provider);
    warn_of_cache(&entry.provider);
    refuse(&entry.provider)
}

/// Rejects providers that cannot keep Weft's promises. ofi_rxm over verbs crashes when it closes a
/// connection over which an unreaped message has come (1.17 to 2.6): it posts the message's buffer
/// again, to the endpoint that it has freed. (With shared receives, it loses writes with immediates
/// instead.) A process that is killed inside shm holds a lock, on which the survivors hang.
fn refuse(provider: &str) -> Result<()> {
    let text = match provider {
        "verbs;ofi_rxm" => {
            "libfabric's ofi_rxm crashes over verbs when a peer's connection closes: name the fabric \"verbs\", \
             which makes its connections itself"
        }
        "shm" => {
            "libfabric's shm hangs when one of its processes is killed: name the fabric \"host\", Weft's own \
             between processes of one host"
        }
        _ => return Ok(()),
    };
    Err(Error::new(Status::Unsupported, text))
}

fn is_yes(value: &str) -> bool {
    YES.iter().any(|yes| value.eq_ignore_ascii_case(yes))
}

/// Runs `body` with these settings, and restores the environment afterwards. The caller holds the
/// lock of `signals::preserved`: otherwise the first of two to return would remove the settings of
/// the other.
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
    fn providers_start_with_the_settings_of_the_named_fabrics() {
        let names =
            |providers: &[&str]| starting(providers).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert!(names(&[]).is_empty() && names(&["psm3", "tcp;ofi_rxm"]).is_empty());
        assert_eq!(names(&["verbs"]), ["FI_MR_CACHE_MAX_COUNT"]);
        assert_eq!(
            names(&["efa", "verbs"]),
            ["FI_SHM_DISABLE_CMA", "FI_EFA_FORK_SAFE", "FI_MR_CACHE_MAX_COUNT"]
        );
    }

    #[test]
    fn unsafe_providers_are_rejected() {
        for name in ["verbs", "tcp;ofi_rxm", "efa"] {
            assert!(refuse(name).is_ok(), "{name}");
        }
        for (name, instead) in [("verbs;ofi_rxm", "verbs"), ("shm", "host")] {
            let refused = refuse(name).expect_err("it crashes or hangs");
            assert!(refused.message.contains(&format!("name the fabric \"{instead}\"")), "{refused}");
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
