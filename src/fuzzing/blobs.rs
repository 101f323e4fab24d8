//! Addresses and descriptors, which callers may transport by any means.

use crate::ids::{PeerId, RailIndex};
use crate::memory::RemoteMemory;
use crate::wire::address::Address;
use crate::wire::descriptor::Descriptor;

/// The bytes unchanged, and with a correct checksum.
fn both(data: &[u8], decode: impl Fn(&[u8])) {
    decode(data);
    let mut sealed = data.to_vec();
    sealed.extend(crc32fast::hash(data).to_le_bytes());
    decode(&sealed);
}

pub fn address(data: &[u8]) {
    both(data, |blob| {
        let Ok(address) = Address::decode(blob) else { return };
        let _ = address.common_wire();
        assert!(!address.rails.is_empty() && address.fabrics().len() <= address.rails.len());
        let again = Address::decode(&address.encode()).expect("what was read is written");
        assert_eq!((again.incarnation, again.wire, again.capabilities), {
            (address.incarnation, address.wire, address.capabilities)
        });
        assert_eq!(again.rails, address.rails);
    });
}

pub fn descriptor(data: &[u8]) {
    both(data, |blob| {
        let Ok(descriptor) = Descriptor::decode(blob) else { return };
        let again = Descriptor::decode(&descriptor.encode()).expect("what was read is written");
        assert_eq!(again, descriptor);
        let remote = RemoteMemory::new(PeerId::numbered(7), Default::default(), descriptor);
        assert!(remote.rail_count() > 0);
        let mut ranges = 0;
        while let Some(range) = remote.range(ranges) {
            assert!(range.base.checked_add(range.len).is_some());
            assert_eq!(remote.range_len(ranges), Some(range.len));
            for rail in (0..remote.rail_count()).map(RailIndex::at).filter(|rail| remote.knows(*rail)) {
                remote.locate(rail, ranges as usize, range.len);
            }
            ranges += 1;
        }
        // A decoded value takes at most as much memory as its encoding.
        assert!(ranges > 0 && ranges as usize * 16 <= blob.len());
    });
}
