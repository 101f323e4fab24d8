//! Memory of CUDA's virtual memory API (PyTorch's expandable segments): one or more allocations, mapped
//! side by side. Another process imports each allocation by a file, and maps them in the same order.

use super::{ask, check};
use crate::descriptor::Descriptor;
use crate::device::{Device, ImportedPart};
use crate::pass;
use crate::range::Range;
use crate::status::{Error, Result};
use cudarc::driver::sys::CUpointer_attribute as Attribute;
use cudarc::driver::sys::{self, CUmemAllocationHandleType, CUmemLocationType};
use std::ffi::c_void;
use std::hash::{DefaultHasher, Hash, Hasher};

pub const POSIX: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// One mapping: the address range of one allocation. CUDA's range of a pointer spans several.
#[derive(Hash)]
pub struct Mapping {
    pub base: u64,
    pub len: u64,
    /// The allocation's number, which no other of the process has.
    allocation: u64,
}

impl Mapping {
    pub fn at(address: u64) -> Result<Mapping> {
        let mut mapping = Mapping { base: 0, len: 0, allocation: 0 };
        let attributes = [
            (Attribute::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, (&raw mut mapping.base).cast()),
            (Attribute::CU_POINTER_ATTRIBUTE_MAPPING_SIZE, (&raw mut mapping.len).cast()),
            (Attribute::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, (&raw mut mapping.allocation).cast()),
        ];
        // SAFETY: each output has the right size.
        unsafe { ask(address, attributes)? };
        match address.wrapping_sub(mapping.base) < mapping.len {
            true => Ok(mapping),
            false => Err(Error::invalid(format!("no device memory is mapped at {address:#x}: it was freed or unmapped; register it while it is mapped"))),
        }
    }
}

/// The address and the length of the mappings that hold a range, and a number that changes with
/// any of them.
pub fn whole(range: &Range) -> Result<(u64, u64, u64)> {
    let first = Mapping::at(range.base)?;
    let (base, mut end, mut identity) = (first.base, first.base + first.len, DefaultHasher::new());
    first.hash(&mut identity);
    while end < range.base + range.len {
        let next = Mapping::at(end)?;
        end = next.base + next.len;
        next.hash(&mut identity);
    }
    Ok((base, end - base, identity.finish()))
}

/// A file of the allocation that is mapped at an address. Fails for memory of other kinds, and for
/// allocations that were not made for files.
pub fn export(address: u64) -> Result<Descriptor> {
    let (mut memory, mut file) = (0, -1);
    // SAFETY: the outputs are valid for the calls, which check the address and the handle. The handle
    // is released once; the file keeps the memory.
    let made = unsafe {
        let retained = sys::cuMemRetainAllocationHandle(&mut memory, address as *mut c_void);
        check(retained, "finding the allocation of device memory")?;
        let made = sys::cuMemExportToShareableHandle((&raw mut file).cast(), memory, POSIX, 0);
        sys::cuMemRelease(memory);
        made
    };
    check(made, "making a file of device memory")?;
    Descriptor::opened(|| file).ok_or_else(|| Error::system("keeping a file of device memory"))
}

/// Maps parts side by side for a device; returns their address.
pub fn map(device: Device, len: u64, parts: &[ImportedPart]) -> Result<u64> {
    let sum = parts.iter().try_fold(0u64, |sum, part| sum.checked_add(part.len));
    if sum != Some(len) || len == 0 {
        return Err(Error::invalid(
            "device memory of another process whose parts do not add up to its length",
        ));
    }
    pass::call(|| {
        let mut base = 0;
        // SAFETY: `base` is valid for the call.
        let reserved = unsafe { sys::cuMemAddressReserve(&mut base, len as usize, 0, 0, 0) };
        check(reserved, "reserving addresses for another process's device memory")?;
        let mut mapped = 0;
        let result = map_at(device, base, parts, &mut mapped);
        if result.is_err() {
            unmap(base, mapped, len);
        }
        result.map(|()| base)
    })
}

fn map_at(device: Device, base: u64, parts: &[ImportedPart], mapped: &mut u64) -> Result<()> {
    for part in parts {
        // SAFETY: inside the reserved addresses; CUDA checks the length against the allocation's.
        let result = unsafe { sys::cuMemMap(base + *mapped, part.len as usize, 0, part.memory, 0) };
        check(result, "mapping another process's device memory")?;
        *mapped += part.len;
    }
    let access = sys::CUmemAccessDesc {
        location: sys::CUmemLocation {
            type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: device as i32,
        },
        // CUDA offers no access for reading alone.
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: all of it was mapped above, and `access` is valid for the call.
    let allowed = unsafe { sys::cuMemSetAccess(base, *mapped as usize, &access, 1) };
    check(allowed, "reaching another process's device memory")
}

/// Ends what `map` made, of which `mapped` bytes are mapped.
pub fn unmap(base: u64, mapped: u64, len: u64) {
    // SAFETY: `map` reserved these addresses and mapped their beginning; no copy uses them any longer.
    pass::call(|| unsafe {
        if mapped > 0 {
            sys::cuMemUnmap(base, mapped as usize);
        }
        sys::cuMemAddressFree(base, len as usize);
    });
}
