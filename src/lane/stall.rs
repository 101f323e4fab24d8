//! Detects a lane that stalls, although none of its operations has failed.

/// A lane with bytes in flight that has delivered none for this long is suspect.
pub const SUSPECT_NS: u64 = 100_000_000;
/// A suspect lane has failed after this many checks, one per tick, that saw other lanes move; or at
/// once if the kernel reports its NIC's link as down.
const LOOKS: u32 = 500;
/// A lane that carries nothing for this long, with no other lane to compare it to, has failed if the
/// peer's NIC serves it without the peer's process: a NIC may repeat lost packets for minutes.
const ALONE_NS: u64 = 5_000_000_000;
/// A lane moves if it delivered something within this time.
const MOVING_NS: u64 = 100_000_000;
/// A slow lane may take this multiple of the time that its rate requires.
const SLOW: u64 = 4;
/// The lowest rate assumed for a lane: a lane with little work shows only the rate of that work.
const BYTES_PER_S_LEAST: u64 = 10_000_000;

/// What a lane has in flight, and whether its peer's lanes deliver.
#[derive(Clone, Copy, Default)]
pub struct Load {
    pub inflight_bytes: u64,
    pub bytes_per_s: u64,
    /// When it last delivered something, or posted after a pause.
    pub progress_ns: u64,
    /// When any lane of the peer last delivered something.
    pub moved_ns: u64,
    /// A NIC serves the peer without its process. (In software a stopped process stalls its lanes.)
    pub by_nic: bool,
    /// The link of its own NIC is not up.
    pub link_fails: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It moves, or is to wait.
    Wait,
    /// It may have stalled: see whether the peer's other lanes move.
    Suspect,
    /// It has stalled, and other lanes move.
    Stalled,
    /// It has carried nothing for `ALONE_NS`: it has failed even if it is the only one.
    Lost,
}

#[derive(Debug, Default)]
pub(super) struct Watch {
    /// How often in a row it was seen stalled while others moved.
    looks: u32,
    /// When the others were last probed.
    probe_ns: u64,
    /// Its connection had ended at the last look.
    ended: bool,
}

impl Watch {
    pub fn look(&mut self, load: Load, now: u64) -> Verdict {
        let rate = load.bytes_per_s.max(BYTES_PER_S_LEAST);
        let slow = load.inflight_bytes.saturating_mul(1_000_000_000) / rate;
        let patience = SUSPECT_NS.max(slow.saturating_mul(SLOW));
        let still = now.saturating_sub(load.progress_ns);
        if load.inflight_bytes == 0 || still < patience {
            self.looks = 0;
            return Verdict::Wait;
        }
        let others = load.moved_ns > load.progress_ns && now.saturating_sub(load.moved_ns) < MOVING_NS;
        self.looks += u32::from(others);
        if load.by_nic && still > patience.max(ALONE_NS) {
            return Verdict::Lost;
        }
        if self.looks > LOOKS || self.looks > 0 && load.link_fails {
            return Verdict::Stalled;
        }
        if self.probe_ns + MOVING_NS / 2 >= now {
            return Verdict::Wait;
        }
        self.probe_ns = now;
        Verdict::Suspect
    }

    pub fn ended(&mut self, now: bool) -> bool {
        std::mem::replace(&mut self.ended, now) && now
    }
}
