//! libfabric, loaded once, and the NICs that it lists.

use super::{settings, signals};
use crate::clock::{Clock, Random};
#[cfg(any(test, feature = "sim"))]
use crate::fabric::sim;
use crate::status::{Error, Result, Status};
use crate::topology::network::is_link_local;
use crate::topology::pci::PciAddress;
use libfabric_sys::*;
use once_cell::sync::OnceCell;
use std::ffi::{c_char, CStr, CString};
use std::net::IpAddr;
use std::ptr;

/// The loaded library, kept for the life of the process.
pub struct Fabrics {
    pub library: Library,
    /// The API version to request: the newest that both sides know.
    pub api: u32,
}

impl Fabrics {
    /// Version and path, for log lines.
    pub fn describe(&self) -> String {
        let version = self.library.version();
        format!("{}.{} {}", version >> 16, version & 0xffff, self.library.path())
    }
}

/// The least version requested, for EFA: older API versions turn device RDMA off. Newer ones change
/// defaults that are untested here.
const API: u32 = FI_VERSION(1, 18);
/// Requested where devices exist: with older versions efa refuses DMA-BUFs. (Up to 2.1 nothing else
/// that Weft uses depends on it, by reading the sources; not run.)
pub const DMABUFS: u32 = FI_VERSION(1, 20);

/// The provider whose connections Weft makes itself (`connections`).
pub const CONNECTED: &str = "verbs";

static FABRICS: OnceCell<Fabrics> = OnceCell::new();

/// `providers`: those for which rails may be opened. Their needs decide which settings libfabric
/// reads, if this call starts it.
pub fn library(providers: &[&str]) -> Result<&'static Fabrics> {
    FABRICS.get_or_try_init(|| {
        let in_use = signals::is_libfabric_loaded();
        // Loading replaces signal handlers, too.
        let library = signals::preserved(Library::load)
            .map_err(|error| Error::new(Status::NoLibfabric, error.to_string()))?;
        let api = library.version().min(API);
        signals::preserved(|| settings::settle(&library, api, providers, in_use));
        Ok(Fabrics { library, api })
    })
}

/// The library, if it was needed before.
pub fn started() -> Option<&'static Fabrics> {
    FABRICS.get()
}

/// libfabric's text for an error number.
pub fn error_text(errno: i32) -> String {
    FABRICS.get().map_or_else(|| own_text(errno), |fabrics| fabrics.library.strerror(errno))
}

/// Like `fi_strerror`, for numbers without an errno text, where libfabric is not loaded.
fn own_text(errno: i32) -> String {
    match errno {
        FI_ENOKEY => "required key not available".into(),
        FI_ENOAV => "missing or unavailable address vector".into(),
        FI_EOPBADSTATE => "operation not permitted in current state".into(),
        FI_ETRUNC => "truncation error".into(),
        FI_EOVERRUN => "queue has been overrun".into(),
        FI_ENOCQ => "missing or unavailable completion queue".into(),
        FI_ETOOSMALL => "provided buffer is too small".into(),
        _ => {
            let text = std::io::Error::from_raw_os_error(errno).to_string();
            text.split(" (os error").next().unwrap_or_default().into()
        }
    }
}

/// For an error of a NIC that has no memory: the limit of memory that NICs may lock, and what raises
/// it; "" without a limit.
fn limit_of_locked_memory() -> String {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct is ours.
    let rc = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    if rc != 0 || limit.rlim_cur == libc::RLIM_INFINITY {
        return String::new();
    }
    format!(
        "; NICs lock memory, and without CAP_IPC_LOCK this process may have {} bytes locked (RLIMIT_MEMLOCK): raise it by \
         `ulimit -l unlimited`, LimitMEMLOCK=infinity of a systemd unit, or --ulimit memlock=-1 of a container",
        limit.rlim_cur
    )
}

/// The driver of a NIC.
#[derive(Clone, Copy)]
pub enum Source {
    Libfabric(&'static Fabrics),
    #[cfg(any(test, feature = "sim"))]
    Sim,
}

impl Source {
    /// libfabric's version; for a simulation, the newest.
    pub fn version(&self) -> u32 {
        match self {
            Source::Libfabric(fabrics) => fabrics.library.version(),
            #[cfg(any(test, feature = "sim"))]
            Source::Sim => u32::MAX,
        }
    }

    /// An error of libfabric, with the failed step.
    pub(super) fn error(&self, doing: &str, rc: i32) -> Error {
        let errno = rc.abs();
        let status = if errno == libc::ENOMEM { Status::NoMemory } else { Status::Fabric };
        let mut text = format!("{doing}: {} (libfabric error {errno})", self.strerror(errno));
        if status == Status::NoMemory && matches!(self, Source::Libfabric(_)) {
            text += &limit_of_locked_memory();
        }
        Error { provider_errno: errno, ..Error::new(status, text) }
    }

    /// The result of a call, with the step that it performed.
    pub(super) fn check(&self, doing: &str, rc: i32) -> Result<()> {
        match rc {
            0 => Ok(()),
            rc => Err(self.error(doing, rc)),
        }
    }

    pub fn strerror(&self, errno: i32) -> String {
        match self {
            Source::Libfabric(fabrics) => fabrics.library.strerror(errno),
            #[cfg(any(test, feature = "sim"))]
            Source::Sim => own_text(errno),
        }
    }

    /// Duplicates an info; NULL if memory is short.
    ///
    /// # Safety
    /// The info came from this source.
    pub unsafe fn dupinfo(&self, info: *const fi_info) -> *mut fi_info {
        // SAFETY: `info` is of this source, so this one can copy it.
        unsafe {
            match self {
                Source::Libfabric(fabrics) => fabrics.library.dupinfo(info),
                #[cfg(any(test, feature = "sim"))]
                Source::Sim => sim::duplicate(info),
            }
        }
    }

    /// # Safety
    /// The info came from this source, and is freed once.
    pub unsafe fn freeinfo(&self, info: *mut fi_info) {
        // SAFETY: `info` is of this source, and nothing uses it after this.
        unsafe {
            match self {
                Source::Libfabric(fabrics) => fabrics.library.freeinfo(info),
                #[cfg(any(test, feature = "sim"))]
                Source::Sim => sim::free(info),
            }
        }
    }

    /// # Safety
    /// `attr` belongs to an info of this source; `fabric` is written.
    pub unsafe fn fabric(&self, attr: *mut fi_fabric_attr, fabric: *mut *mut fid_fabric) -> i32 {
        // SAFETY: the attributes are of an info of this source, and `fabric` has room for a pointer.
        unsafe {
            match self {
                Source::Libfabric(fabrics) => fabrics.library.fabric(attr, fabric, ptr::null_mut()),
                #[cfg(any(test, feature = "sim"))]
                Source::Sim => sim::open_fabric(fabric, ptr::null_mut()),
            }
        }
    }
}

/// A NIC as libfabric, or a simulation, describes it.
pub struct ListedNic {
    pub provider: String,
    pub domain: String,
    /// The provider's name for it.
    pub network: String,
    /// The IP address that peers connect to, if it has one.
    pub ip: Option<IpAddr>,
    pub loopback: bool,
    pub link_local: bool,
    /// The NIC that the provider names: the kernel's name for it or "", and its PCI address.
    pub device: String,
    pub pci: Option<PciAddress>,
    /// Completions imply delivery without a flag.
    pub delivers: bool,
    pub clock: Clock,
    pub random: Random,
    info: *mut fi_info,
    source: Source,
}

// SAFETY: the info is only read.
unsafe impl Send for ListedNic {}
// SAFETY: an info is only read until its last user drops it.
unsafe impl Sync for ListedNic {}

impl Drop for ListedNic {
    fn drop(&mut self) {
        // SAFETY: the info is our own duplicate, freed only here.
        unsafe { self.source.freeinfo(self.info) }
    }
}

impl ListedNic {
    pub fn info(&self) -> *mut fi_info {
        self.info
    }

    pub fn source(&self) -> Source {
        self.source
    }

    /// The kernel's name for it: of an RDMA device, or else of a network interface.
    pub fn kernel_name(&self) -> &str {
        if self.device.is_empty() {
            &self.domain
        } else {
            &self.device
        }
    }
}

/// SAFETY of all `text` calls: the pointer is a NUL-terminated string of libfabric's, or NULL.
unsafe fn text(s: *const c_char) -> String {
    if s.is_null() {
        return String::new();
    }
    // SAFETY: the pointer is a NUL-terminated string.
    unsafe { CStr::from_ptr(s) }.to_string_lossy().into_owned()
}

/// The NICs of a provider that can do what a rail needs, one entry for each.
pub fn entries(fabrics: &'static Fabrics, provider: &str) -> Result<Vec<ListedNic>> {
    // Where the program has GPUs, list NICs that reach their memory: without this flag they are not
    // listed.
    if crate::device::present().is_some() {
        let found = entries_with(fabrics, provider, true).unwrap_or_default();
        if !found.is_empty() {
            return Ok(found);
        }
    }
    entries_with(fabrics, provider, false)
}

/// `hmem`: lists only NICs that reach device memory.
fn entries_with(fabrics: &'static Fabrics, provider: &str, hmem: bool) -> Result<Vec<ListedNic>> {
    let mut found: Vec<ListedNic> = Vec::new();
    list(fabrics, Some(provider), hmem, |info| {
        // SAFETY: the info is in the list that libfabric returned.
        if let Some(entry) = unsafe { entry(fabrics, provider, info) } {
            // Several addresses of one NIC: the first is libfabric's best, but an IPv4
            // address reaches more peers than a link-local one.
            match found.iter_mut().find(|known| known.domain == entry.domain) {
                None => found.push(entry),
                Some(known) if known.link_local && !entry.link_local => *known = entry,
                Some(_) => {}
            }
        }
    })?;
    Ok(found)
}

#[cfg(any(test, feature = "sim"))]
/// The NICs that a simulation's name describes.
pub fn simulated(name: &str) -> Result<Vec<ListedNic>> {
    let sim::Simulated { infos, fabric, mode, delivers, clock, random } = sim::list(name)?;
    let entry = |(rail, info)| ListedNic {
        device: String::new(),
        pci: None,
        provider: fabric.clone(),
        domain: format!("sim{rail}"),
        network: mode.to_owned(),
        ip: None,
        loopback: false,
        link_local: false,
        delivers,
        clock: clock.clone(),
        random: random.clone(),
        info,
        source: Source::Sim,
    };
    Ok(infos.into_iter().enumerate().map(entry).collect())
}

/// The providers that offer what a rail needs.
pub fn providers(fabrics: &'static Fabrics) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let listed = list(fabrics, None, false, |info| {
        // SAFETY: the info is in the list that libfabric returned.
        let name = unsafe { text((*(*info).fabric_attr).prov_name) };
        if !names.contains(&name) {
            names.push(name);
        }
    });
    match listed {
        Ok(()) => names,
        Err(_) => Vec::new(),
    }
}

fn list(
    fabrics: &'static Fabrics,
    provider: Option<&str>,
    hmem: bool,
    mut each: impl FnMut(*mut fi_info),
) -> Result<()> {
    let library = &fabrics.library;
    let name = provider.and_then(|name| CString::new(name).ok());
    // SAFETY: dupinfo(NULL) allocates hints, whose parts we fill in and the library frees; the
    // provider name is taken out again first, since it is ours.
    unsafe {
        let hints = library.dupinfo(ptr::null());
        if hints.is_null() {
            return Err(Error::new(Status::NoMemory, "no memory for libfabric's hints"));
        }
        (*hints).caps = FI_MSG | FI_RMA | if hmem { FI_HMEM } else { 0 };
        (*hints).mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
        let ep = (*hints).ep_attr;
        ((*ep).type_, (*ep).rx_ctx_cnt) = match provider {
            Some(CONNECTED) => (fi_ep_type::FI_EP_MSG, FI_SHARED_CONTEXT),
            _ => (fi_ep_type::FI_EP_RDM, 0),
        };
        let domain = (*hints).domain_attr;
        (*domain).mr_mode = FI_MR_LOCAL
            | FI_MR_VIRT_ADDR
            | FI_MR_ALLOCATED
            | FI_MR_PROV_KEY
            | if hmem { FI_MR_HMEM } else { 0 };
        (*domain).threading = fi_threading::FI_THREAD_DOMAIN;
        if let Some(name) = &name {
            (*(*hints).fabric_attr).prov_name = name.as_ptr().cast_mut();
        }
        let mut infos = ptr::null_mut();
        let api = if hmem { library.version().min(DMABUFS) } else { fabrics.api };
        let ask = || library.getinfo(api, ptr::null(), ptr::null(), 0, hints, &mut infos);
        let rc = signals::preserved(ask);
        (*(*hints).fabric_attr).prov_name = ptr::null_mut();
        library.freeinfo(hints);
        if rc == -FI_ENODATA {
            return Ok(());
        }
        if rc != 0 {
            return Err(Source::Libfabric(fabrics).error("listing the NICs", rc));
        }
        let mut info = infos;
        while !info.is_null() {
            each(info);
            info = (*info).next;
        }
        library.freeinfo(infos);
    }
    Ok(())
}

/// # Safety
/// libfabric must have made `info`.
unsafe fn entry(fabrics: &'static Fabrics, provider: &str, info: *mut fi_info) -> Option<ListedNic> {
    // SAFETY: an info that getinfo returned has every part.
    unsafe {
        // A request for "tcp" also lists "tcp;ofi_rxm".
        if text((*(*info).fabric_attr).prov_name) != provider {
            return None;
        }
        let domain = text((*(*info).domain_attr).name);
        if is_another_name(&domain) {
            return None;
        }
        let ip = ip_address(info);
        let network = text((*(*info).fabric_attr).name);
        Some(ListedNic {
            provider: provider.to_owned(),
            ip,
            loopback: ip.is_some_and(|ip| ip.is_loopback()) || domain == "lo",
            link_local: ip.is_some_and(is_link_local),
            domain,
            device: device_name(info),
            pci: pci(info),
            delivers: provider.starts_with("efa") && network.contains("direct"),
            network,
            clock: Clock::System,
            random: Random::System,
            info: fabrics.library.dupinfo(info),
            source: Source::Libfabric(fabrics),
        })
    }
    .filter(|entry| !entry.info.is_null())
}

/// Whether a domain is a second name of a NIC that is listed under its own name: with shared
/// receives, verbs lists NICs that have XRC (queue pairs that processes of a host share) twice.
fn is_another_name(domain: &str) -> bool {
    domain.ends_with("-xrc")
}

/// # Safety
/// libfabric must have made `info`.
unsafe fn device_name(info: *const fi_info) -> String {
    // SAFETY: an info's NIC is NULL or valid, and so is each of its parts.
    unsafe {
        let attributes = (*info).nic.as_ref().and_then(|nic| nic.device_attr.as_ref());
        attributes.map(|attributes| text(attributes.name)).unwrap_or_default()
    }
}

/// # Safety
/// libfabric must have made `info`.
unsafe fn pci(info: *const fi_info) -> Option<PciAddress> {
    // SAFETY: the NIC is NULL or valid, as in `device_name`; the union holds an address when the type says so.
    let pci = unsafe {
        let bus = (*info).nic.as_ref()?.bus_attr.as_ref()?;
        if bus.bus_type != fi_bus_type::FI_BUS_PCI {
            return None;
        }
        bus.attr.pci
    };
    let (domain, bus) = (pci.domain_id.into(), pci.bus_id);
    Some(PciAddress { domain, bus, device: pci.device_id, function: pci.function_id })
}

/// An info's own address, where that is an IP address.
///
/// # Safety
/// libfabric must have made `info`.
unsafe fn ip_address(info: *const fi_info) -> Option<IpAddr> {
    // SAFETY: src_addr has src_addrlen bytes, or is NULL.
    let address = unsafe {
        let (data, len) = ((*info).src_addr as *const u8, (*info).src_addrlen);
        if data.is_null() {
            return None;
        }
        std::slice::from_raw_parts(data, len)
    };
    let family = u16::from_ne_bytes(*address.first_chunk()?);
    // SAFETY: the info is valid, and the field is an integer.
    match (unsafe { (*info).addr_format }, i32::from(family)) {
        (FI_SOCKADDR | FI_SOCKADDR_IN, libc::AF_INET) => {
            Some(IpAddr::from(*address.get(4..)?.first_chunk::<4>()?))
        }
        (FI_SOCKADDR | FI_SOCKADDR_IN6, libc::AF_INET6) => {
            Some(IpAddr::from(*address.get(8..)?.first_chunk::<16>()?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::zeroed;

    #[test]
    fn nic_with_xrc_is_listed_once() {
        let listed = ["mlx5_0", "mlx5_0-xrc", "mlx5_1-xrc", "mlx5_1"].map(is_another_name);
        assert_eq!(listed, [false, true, true, false]);
    }

    #[test]
    fn nic_name_and_pci_address_are_read_from_an_info() {
        // SAFETY: the structs consist of integers and pointers; each pointer is NULL or points to
        // another of the structs.
        unsafe {
            let mut device = fi_device_attr { name: c"rdmap79s0".as_ptr().cast_mut(), ..zeroed() };
            let address = fi_pci_attr { domain_id: 1, bus_id: 0x4f, device_id: 2, function_id: 3 };
            let attr = fi_bus_attr_attr { pci: address };
            let mut on_pci = fi_bus_attr { bus_type: fi_bus_type::FI_BUS_PCI, attr };
            let mut elsewhere = fi_bus_attr { bus_type: fi_bus_type::FI_BUS_UNSPEC, attr };
            let reported = |device_attr, bus_attr| {
                let mut nic = fid_nic { device_attr, bus_attr, ..zeroed() };
                let info = fi_info { nic: &mut nic, ..zeroed() };
                (device_name(&info), pci(&info).map(|pci| pci.to_string()))
            };
            let (none, address) = (String::new(), Some("0001:4f:02.3".to_owned()));
            assert_eq!(reported(&mut device, &mut on_pci), ("rdmap79s0".to_owned(), address));
            assert_eq!(reported(&mut zeroed(), &mut elsewhere), (none.clone(), None));
            assert_eq!(reported(ptr::null_mut(), ptr::null_mut()), (none.clone(), None));
            let info: fi_info = zeroed();
            assert_eq!((device_name(&info), pci(&info)), (none, None));
        }
    }
}
