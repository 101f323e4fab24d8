//! The machine: what is near what.

use super::guard::{copy_out, guard, output};
use super::status::weft_status;
use crate::endpoint::survey::survey;
use std::ffi::c_char;

/// Writes what this machine looks like, and which rails an endpoint with all
/// defaults would open here now, as JSON (UTF-8, no NUL at its end).
///
/// It is read from sysfs and procfs, below the folder that the environment
/// variable WEFT_SYSFS_ROOT names (it has sys/ and proc/ in it; to look at
/// another machine's tree), or of this machine. What a container or a file that
/// is missing hides is left out, and no error. libfabric and CUDA are not needed.
/// An endpoint that opens looks at the same tree.
///
/// An object with:
///
///     format        1; raised if a field changes its meaning. New ones may come.
///     sysfs_root    the folder that stands for /, as text
///     cpus          CPUs that are online, as "0-47,96-143"
///     affinity      CPUs that the calling thread may use
///     nodes         NUMA nodes; [] if the machine does not tell. Each has
///       node          its number
///       cpus          its CPUs that are online
///       usable_cpus   those of them that the calling thread may use
///       distances     to each of `nodes`, in their order; 10 is itself
///       near_nics     PCI addresses of the NICs nearest to it
///     devices       all PCI functions. Each has
///       address       as "0000:53:00.0"
///       kind          "bridge", "gpu" (accelerators, too), "nic", "nvme",
///                     "display" (a console's) or "other"
///       name          what drivers call it ("eth0 mlx5_0", "nvme0", a GPU's
///                     model), else vendor and device number
///       vendor, device  PCI ids, as "0x10de"
///       root          its root complex, as "pci0000:44"; null if not known
///       parent        the bridge above it, or `root`; null if not known
///       node          its NUMA node; -1 if not known
///       link_speed    as "32.0 GT/s PCIe"; null if not known
///       link_width    lanes; null if not known
///                     and GPUs, NICs and NVMe drives have
///       near_cpus     CPUs nearest to it
///       near_nics     (GPU, NVMe) addresses of the NICs nearest to it
///       nic_distance  how near: "switch" (below the same PCI switch), "root" (the
///                     same root complex), "node" (the same NUMA node; also where
///                     a node is not known) or "far"; absent if there is none
///       near_gpus, gpu_distance  (NIC) the same of GPUs
///       usable        (GPU) false if CUDA_VISIBLE_DEVICES or the container
///                     keeps an NVIDIA GPU from this process
///       interfaces    (NIC) its names in `interfaces`
///     interfaces    what the kernel calls NICs, virtual ones, too. Each has
///       name          as "eth0" or "mlx5_0"
///       type          "net" or "rdma"
///       pci           address of its PCI function; null if it has none
///       up            false if it says that it cannot carry traffic
///       speed_mbps    megabits a second; null if not known
///     rails_source  "libfabric", or "sysfs": no rail needs libfabric, or it is
///                   not there; or guessed, because of WEFT_SYSFS_ROOT
///     rails_why     why these rails, in a sentence
///     rails         rails that would be opened by default. Each has
///       fabric, name  as in `weft_rail_properties`
///       pci, node     place of the NIC; null and -1 if not known
///       worker        index in `workers`
///     workers       worker threads that would drive them. Each has
///       node          the NUMA node that all of its rails are on, or -1
///       cpus          where its thread would run
///       pinned        whether it would be kept there
///       rails         indexes in `rails`
///
/// `buffer`, `capacity`: where to, and its size in bytes; NULL and 0 ask for
/// the length only. `len`: receives the length of the text. It may grow between
/// two calls, as when a NIC appears.
///
/// Any thread. Blocks for 10 ms to some seconds (libfabric looks at the
/// hardware). Where there are RDMA devices, variables of the environment that begin
/// with FI_ may be set and unset again while libfabric starts, as by
/// `weft_endpoint_create`: no other thread should change or read the environment then.
/// Errors: `WEFT_ERR_TOO_SMALL` (`len` is stored, nothing is
/// written), `WEFT_ERR_INVALID`. Since 0.1.
///
/// # Safety
/// `buffer` must be valid for `capacity` bytes, `len` valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_topology(buffer: *mut c_char, capacity: usize, len: *mut usize) -> weft_status {
    guard(|| {
        let len = output(len, "len")?;
        copy_out(survey()?.as_bytes(), buffer.cast(), capacity, &len)
    })
}
