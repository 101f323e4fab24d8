//! Techniques of the data path that can be left out, to measure what each is worth: in the libraries for tests and
//! measurements `WEFT_SIM_WITHOUT` names some, separated by commas. In the library that ships they are always there.

/// A technique of the data path.
#[derive(Clone, Copy)]
pub enum Technique {
    /// Worker threads stay on the CPUs near their NICs.
    Pinning,
    /// A lane claims runs of slices; without, each slice is claimed alone, from what all lanes share.
    Sharding,
    /// Posts announce that others follow, so that one doorbell is for several.
    Batches,
    /// A lane posts what the link carries, and claims the rest later; without, as much as the NIC takes.
    LazyPosting,
}

/// Whether it is left out.
#[cfg(not(feature = "sim"))]
#[inline(always)]
pub const fn is_without(_technique: Technique) -> bool {
    false
}

#[cfg(feature = "sim")]
static LEFT_OUT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

#[cfg(feature = "sim")]
#[inline(always)]
pub fn is_without(technique: Technique) -> bool {
    LEFT_OUT.load(std::sync::atomic::Ordering::Relaxed) >> technique as u32 & 1 == 1
}

/// Reads what is left out, before the first endpoint has workers.
#[cfg(feature = "sim")]
pub fn read() {
    let named = std::env::var("WEFT_SIM_WITHOUT").unwrap_or_default();
    let all = named.split(',').fold(0, |all, name| match name.trim() {
        "" => all,
        "pinning" => all | 1 << Technique::Pinning as u32,
        "sharding" => all | 1 << Technique::Sharding as u32,
        "batches" => all | 1 << Technique::Batches as u32,
        "lazy-posting" => all | 1 << Technique::LazyPosting as u32,
        other => {
            log::error!("WEFT_SIM_WITHOUT: {other} is none of pinning, sharding, batches, lazy-posting");
            all
        }
    });
    LEFT_OUT.store(all, std::sync::atomic::Ordering::Relaxed);
}
