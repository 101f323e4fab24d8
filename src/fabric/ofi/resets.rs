//! Whether ofi_rxm closes a connection with its address, which `discover` asks for:
//! tried out once, between two NICs of our own.
//!
//! Asking is not enough. The setting may be the user's; libfabric reads it once, and
//! the host program may have used libfabric before; and a provider that was built as a
//! library of its own does not see it in some versions. A lane whose connection lives
//! on is not cut: what its peer had sent would still land.

use super::discover::Entry;
use super::nic::OfiNic;
use crate::fabric::{Nic, Posted};
use crate::status::Result;
use parking_lot::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// To connect two NICs of one process: tcp takes a millisecond; verbs on a busy host up to two
/// seconds. After each trial that ran out of it, the next one gets half.
const PATIENCE: Duration = Duration::from_secs(4);
const PAUSE: Duration = Duration::from_micros(50);

/// One answer for the process: it depends on ofi_rxm alone.
static PROVEN: Mutex<(Option<bool>, Duration)> = Mutex::new((None, PATIENCE));

pub fn proven(entry: &Entry) -> bool {
    let mut guard = PROVEN.lock();
    let (proven, patience) = &mut *guard;
    if let Some(known) = *proven {
        return known;
    }
    let why = match try_out(entry, *patience) {
        Ok(Some(true)) => {
            *proven = Some(true);
            return true;
        }
        Ok(Some(false)) => {
            *proven = Some(false);
            "FI_AV_REMOVE_CLEANUP is not in force, since it is set to 0, or libfabric was in use before"
                .into()
        }
        // Maybe it is this NIC's fault.
        Ok(None) => {
            *patience /= 2;
            "it did not connect to itself".into()
        }
        Err(error) => error.message,
    };
    log::warn!(
        "{}: a rail that fails takes its peers down, for connections cannot be closed: {why}",
        entry.provider
    );
    false
}

/// Whether an address that is removed and inserted again has to connect anew. `None`
/// when there was no connection in time.
fn try_out(entry: &Entry, patience: Duration) -> Result<Option<bool>> {
    let (mut near, mut far) = (OfiNic::open_once(entry, false)?, OfiNic::open_once(entry, false)?);
    let route = near.insert(far.address(), None)?;
    let (begin, mut reaped) = (Instant::now(), Vec::new());
    while near.knock(route) != Posted::Yes {
        if begin.elapsed() > patience {
            return Ok(None);
        }
        near.reap(&mut reaped);
        far.reap(&mut reaped);
        thread::sleep(PAUSE);
    }
    near.remove(route);
    let route = near.insert(far.address(), None)?;
    // The far side does not move, so that nothing new can connect at once.
    Ok(Some(near.knock(route) == Posted::Again))
}
