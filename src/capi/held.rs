//! What an endpoint and the process hold: see `calls::held`.

use super::endpoint::weft_endpoint;
use super::handle;
use crate::failing;

/// Names, and how many there are of each.
pub fn held(endpoints: &[*mut weft_endpoint]) -> Vec<(&'static str, u64)> {
    let mut all = vec![
        ("handles", handle::open() as u64),
        ("allocations", crate::fabric::host::area::count() as u64),
        ("registrations of NICs", failing::registrations() as u64),
    ];
    for endpoint in endpoints {
        all.extend(handle::get(*endpoint).iter().flat_map(|one| one.held()));
    }
    all
}
