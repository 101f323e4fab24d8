//! Opening an endpoint: rails are chosen, each worker opens its own, and those that opened form the
//! address.

use super::files::Files;
use super::inline::Waits;
use super::offer::{Offer, Socket};
use super::{panic_text, Driven, Endpoint, EndpointConfig};
use crate::clock::{Actor, Clock, Random};
use crate::fabric::ofi::signals::Blocked;
use crate::fabric::select::{self, Candidate};
use crate::fabric::tcp;
use crate::fabric::Progress;
use crate::failing::step;
use crate::fork;
use crate::ids::RailIndex;
use crate::rail::{Rail, Traffic};
use crate::status::{Error, Result, Status};
use crate::topology::cpus::CpuSet;
use crate::topology::read::Root;
use crate::topology::Machine;
use crate::wire::address::{Address, RailAddress, RAILS_MAX};
use crate::without::{is_without, Technique};
use crate::worker::core::{Core, RailInfo};
use crate::worker::driver::Driver;
use crate::worker::inbox::Inbox;
use crate::worker::Worker;
use parking_lot::Mutex;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// How many endpoints this process has opened: thread names contain the number.
static OPENED: AtomicU32 = AtomicU32::new(0);

/// The rails that a worker opens, and the CPUs for its thread.
struct Plan {
    rails: Vec<(usize, Candidate)>,
    cpus: Option<CpuSet>,
}

/// The result of opening a worker's rails.
struct Opened {
    rails: Vec<(usize, Result<RailFound>)>,
}

struct RailFound {
    address: RailAddress,
    virtual_addresses: bool,
    grants: bool,
    revokes: bool,
    message_max: usize,
    immediate_max: u64,
    traffic: Arc<Traffic>,
}

/// For each rail that opened: its index in the plan, and its index in the endpoint.
type Indexes = Vec<(usize, RailIndex)>;

/// The worker's start message: which of its rails are used, under which index.
struct Go {
    core: Arc<Core>,
    indexes: Indexes,
    made: Sender<Driven>,
}

impl Endpoint {
    pub fn open(config: EndpointConfig) -> Result<Arc<Endpoint>> {
        let config = config.check()?;
        fork::watch();
        let socket = Socket::from_environment().unwrap_or_else(|error| {
            log::warn!("no metrics are offered: {error}");
            None
        });
        #[cfg(feature = "sim")]
        crate::without::read();
        let machine = Machine::read(Root::from_environment());
        let (fabric, rails) = (config.fabric.as_deref(), config.rails.as_deref());
        let mut found = match config.encrypt {
            true => select::encrypting(fabric, rails, &machine)?,
            false => select::candidates(fabric, rails, &machine)?,
        };
        found.set_tcp(tcp::Options {
            secrets: config.secrets.clone().filter(|_| config.encrypt),
            liveness_ns: config.silence_ns(),
            at: config.tcp_at,
            dscp: config.tcp_dscp as u8,
            ..tcp::Options::default()
        });
        let (clock, random) = (found.clock.clone(), found.random.clone());
        if matches!(clock, Clock::Virtual(_)) && !config.manual {
            return Err(Error::new(
                Status::Unsupported,
                "virtual time needs manual progress: set progress to WEFT_PROGRESS_MANUAL",
            ));
        }
        found.limit(RAILS_MAX);
        log::info!("rails: {}", found.describe());
        let all = found.candidates.len();
        let nics = found.candidates.iter().filter(|nic| !nic.is_host()).count();
        let cpus = if config.manual { 1 } else { machine.affinity.len() };
        let streams = |nic: &Candidate| nic.streams(config.tcp_streams as usize, &machine, cpus, nics);
        let chosen = spread(found.candidates, config.rail_count as usize, streams);
        let wanted = match (config.manual, config.workers) {
            (true, _) => 1,
            // Each connection belongs to one CPU.
            (_, 0) if config.rail_count == 0 && chosen.len() > all => chosen.len().min(cpus.max(2) - 1),
            (_, workers) => workers as usize,
        };
        let plans = plans(&chosen, &machine, wanted);
        let open = if config.manual { Self::open_manual } else { Self::open_threads };
        let endpoint = open(config, clock, random, plans, &chosen, found.libfabric, machine)?;
        if let Some(socket) = socket {
            let offered = Arc::downgrade(&endpoint);
            let offer = Offer::begin(socket, move || Some(offered.upgrade()?.metrics()));
            *endpoint.offer.lock() = offer.inspect_err(|error| log::warn!("{error}")).ok();
        }
        Ok(endpoint)
    }

    fn open_manual(
        config: EndpointConfig,
        clock: Clock,
        random: Random,
        mut plans: Vec<Plan>,
        chosen: &[Candidate],
        libfabric: String,
        machine: Machine,
    ) -> Result<Arc<Endpoint>> {
        let progress = Progress { waits: config.sleeps(), threads: false };
        let (rails, opened) = open_rails(plans.pop().map(|plan| plan.rails).unwrap_or_default(), progress);
        let (core, indexes) = assemble(config, clock, random, chosen, vec![opened], 1)?;
        let rails = number(rails, &indexes);
        let driver = Arc::new(Driver::new(Worker::new(0, core.clone(), rails)));
        if let Clock::Virtual(time) = &core.clock {
            let part: Weak<Driver<Worker>> = Arc::downgrade(&driver);
            time.join(part);
        }
        let workers = Box::new([Driven { driver, open_to_callers: true }]);
        let files = Files::new(OPENED.fetch_add(1, Ordering::Relaxed));
        Ok(Self::from_parts(core, workers, libfabric, machine, files, Vec::new(), Arc::default()))
    }

    fn open_threads(
        config: EndpointConfig,
        clock: Clock,
        random: Random,
        plans: Vec<Plan>,
        chosen: &[Candidate],
        libfabric: String,
        machine: Machine,
    ) -> Result<Arc<Endpoint>> {
        let (workers, progress) = (plans.len(), Progress { waits: config.sleeps(), threads: true });
        let ended = Arc::new(AtomicUsize::new(0));
        let endpoint = OPENED.fetch_add(1, Ordering::Relaxed);
        let (mut threads, mut reports) = (Threads::default(), Vec::new());
        for (index, plan) in plans.into_iter().enumerate() {
            let (report, opened) = channel();
            let (go, wait) = channel();
            let thread = start(endpoint, index, plan, progress, report, wait, ended.clone())?;
            threads.waiting.push((thread, go));
            reports.push(opened);
        }
        let opened = reports
            .iter()
            .map(|report| {
                report
                    .recv()
                    .map_err(|_| Error::new(Status::Internal, "a worker ended while it opened its rails"))
            })
            .collect::<Result<Vec<Opened>>>()?;
        let (core, indexes) = assemble(config, clock, random, chosen, opened, workers)?;
        threads.core = Some(core.clone());
        let mut made = Vec::new();
        for (thread, go) in threads.waiting.drain(..) {
            let (makes, worker) = channel();
            let sent = go.send(Go { core: core.clone(), indexes: indexes.clone(), made: makes });
            threads.working.push(thread);
            sent.map_err(|_| Error::new(Status::Internal, "a worker ended before it began"))?;
            made.push(worker);
        }
        let early = |_| Error::new(Status::Internal, "a worker ended as it began");
        let workers = made.iter().map(|worker| worker.recv().map_err(early)).collect::<Result<_>>()?;
        let threads = std::mem::take(&mut threads.working);
        let files = Files::new(endpoint);
        Ok(Self::from_parts(core, workers, libfabric, machine, files, threads, ended))
    }

    fn from_parts(
        core: Arc<Core>,
        workers: Box<[Driven]>,
        libfabric: String,
        machine: Machine,
        files: Files,
        threads: Vec<JoinHandle<()>>,
        ended: Arc<AtomicUsize>,
    ) -> Arc<Endpoint> {
        if let Some(trace) = &core.config.traced {
            trace.begin();
        }
        Arc::new(Endpoint {
            core,
            threads: Mutex::new(threads),
            ended,
            workers,
            waits: Waits::default(),
            libfabric,
            machine,
            files,
            offer: Mutex::default(),
            queues: Mutex::default(),
            down: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }
}

/// The threads of an endpoint that is not open yet. A failure before that ends them all, and waits
/// until their rails are closed.
#[derive(Default)]
struct Threads {
    /// Threads that wait to start; they end when their channel closes.
    waiting: Vec<(JoinHandle<()>, Sender<Go>)>,
    working: Vec<JoinHandle<()>>,
    core: Option<Arc<Core>>,
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(core) = self.core.as_ref().filter(|_| !self.working.is_empty()) {
            core.phase.stop();
            core.inboxes.iter().for_each(Inbox::wake);
        }
        let waiting = self.waiting.drain(..).map(|(thread, _)| thread);
        for thread in waiting.chain(self.working.drain(..)) {
            // The thread panicked, and the panic was caught.
            let _ = thread.join();
        }
    }
}

impl Actor for Driver<Worker> {
    fn step(&self) -> bool {
        self.try_lock().is_some_and(|mut worker| worker.step())
    }
}

/// Spreads the requested number of rails over the NICs in turn; without a number, one for each NIC
/// and stream. The host's rail does not count where there are network rails.
fn spread(candidates: Vec<Candidate>, count: usize, streams: impl Fn(&Candidate) -> usize) -> Vec<Candidate> {
    let (mut host, network): (Vec<_>, Vec<_>) = candidates.into_iter().partition(Candidate::is_host);
    let beside = if network.is_empty() { Vec::new() } else { std::mem::take(&mut host) };
    let nics = if network.is_empty() { host } else { network };
    let streams: Vec<usize> = nics.iter().map(|nic| if count == 0 { streams(nic) } else { count }).collect();
    let rounds = 0..streams.iter().copied().max().unwrap_or(0);
    let of_round = |round| nics.iter().zip(&streams).filter(move |(_, streams)| round < **streams);
    let rails = rounds.flat_map(of_round).map(|(nic, _)| nic.clone());
    let count = if count == 0 { RAILS_MAX } else { count }.min(RAILS_MAX - beside.len());
    beside.into_iter().chain(rails.take(count)).collect()
}

/// The rails of each worker, which are near each other.
fn plans(chosen: &[Candidate], machine: &Machine, wanted: usize) -> Vec<Plan> {
    let places: Vec<_> = chosen.iter().map(|candidate| candidate.pci).collect();
    let groups = machine.worker_groups(&places, wanted).into_iter();
    let rails = |rails: Vec<usize>| rails.into_iter().map(|rail| (rail, chosen[rail].clone())).collect();
    groups.map(|group| Plan { rails: rails(group.rails), cpus: group.cpus }).collect()
}

/// Opens the rails of a worker, on its thread.
fn open_rails(plan: Vec<(usize, Candidate)>, progress: Progress) -> (Vec<(usize, Rail)>, Opened) {
    let mut rails = Vec::new();
    let mut report = Vec::new();
    for (index, candidate) in plan {
        let opened = candidate.open(progress).and_then(|nic| Rail::open(RailIndex::at(index), nic));
        report.push((index, opened.as_ref().map_err(Error::clone).map(|rail| describe(rail, &candidate))));
        if let Ok(rail) = opened {
            rails.push((index, rail));
        }
    }
    (rails, Opened { rails: report })
}

fn describe(rail: &Rail, candidate: &Candidate) -> RailFound {
    RailFound {
        address: RailAddress {
            fabric: candidate.fabric.clone(),
            network: candidate.network.clone(),
            address: rail.address().to_vec(),
            other: rail.other_ip(),
        },
        virtual_addresses: rail.limits().virtual_addresses,
        grants: rail.limits().grants,
        revokes: rail.limits().revokes,
        message_max: rail.limits().message_max,
        immediate_max: rail.limits().immediate_max,
        traffic: rail.traffic(),
    }
}

/// The rails that opened, renumbered without gaps.
fn number(rails: Vec<(usize, Rail)>, indexes: &[(usize, RailIndex)]) -> Vec<Rail> {
    rails
        .into_iter()
        .filter_map(|(planned, mut rail)| {
            rail.index = indexes.iter().find(|(old, _)| *old == planned)?.1;
            Some(rail)
        })
        .collect()
}

/// Makes the shared state from what the workers opened.
fn assemble(
    config: EndpointConfig,
    clock: Clock,
    random: Random,
    chosen: &[Candidate],
    opened: Vec<Opened>,
    workers: usize,
) -> Result<(Arc<Core>, Indexes)> {
    let of_worker = |(worker, opened): (usize, Opened)| {
        opened.rails.into_iter().map(move |(planned, rail)| (planned, worker, rail))
    };
    let mut found: Vec<(usize, usize, Result<RailFound>)> =
        opened.into_iter().enumerate().flat_map(of_worker).collect();
    found.sort_by_key(|(planned, ..)| *planned);
    let (mut addresses, mut infos, mut indexes, mut failures) = (vec![], vec![], vec![], vec![]);
    for (planned, worker, rail) in found {
        let name = &chosen[planned].name;
        match rail {
            Err(error) => {
                log::warn!("{name} ({}) is left out: {}", chosen[planned].fabric, error.message);
                failures.push((name.as_str(), error));
            }
            Ok(rail) => {
                indexes.push((planned, RailIndex::at(infos.len())));
                infos.push(RailInfo {
                    worker,
                    fabric: rail.address.fabric.clone(),
                    network: rail.address.network.clone(),
                    name: name.clone(),
                    node: chosen[planned].node,
                    pci: chosen[planned].pci,
                    virtual_addresses: rail.virtual_addresses,
                    grants: rail.grants,
                    revokes: rail.revokes,
                    message_max: rail.message_max,
                    immediate_max: rail.immediate_max,
                    traffic: rail.traffic,
                });
                addresses.push(rail.address);
            }
        }
    }
    let of_network = chosen.iter().any(|candidate| !candidate.is_host());
    let counted = indexes.iter().filter(|(planned, _)| !of_network || !chosen[*planned].is_host()).count();
    if (counted as u64) < config.min_rails {
        let reasons = reasons(&failures);
        let provider_errno = failures.first().map_or(0, |(_, error)| error.provider_errno);
        let text = format!(
            "min_rails is {}, and of the network's rails {counted} came up{reasons}: lower min_rails, or change rails and \
             rail_count (weft-bench topo shows what they choose)",
            config.min_rails
        );
        return Err(Error { provider_errno, ..Error::new(Status::NoRails, text) });
    }
    let address = Address::new(random.u64()?, addresses);
    let mut fabrics: Vec<String> = Vec::new();
    for info in &infos {
        if !fabrics.contains(&info.fabric) {
            fabrics.push(info.fabric.clone());
        }
    }
    let core = Core::new(config, clock, random, address, infos, fabrics, workers)?;
    Ok((Arc::new(core), indexes))
}

/// Why rails failed to open: each reason once, behind the names of its rails.
fn reasons(failures: &[(&str, Error)]) -> String {
    let mut why: Vec<(String, &str)> = Vec::new();
    for (name, error) in failures {
        match why.iter_mut().find(|(_, message)| *message == error.message) {
            Some((names, _)) => *names += &format!(", {name}"),
            None => why.push((name.to_string(), &error.message)),
        }
    }
    let why: Vec<String> = why.into_iter().map(|(names, message)| format!("{names}: {message}")).collect();
    if why.is_empty() {
        String::new()
    } else {
        format!(" ({})", why.join("; "))
    }
}

fn start(
    endpoint: u32,
    index: usize,
    plan: Plan,
    progress: Progress,
    report: Sender<Opened>,
    wait: Receiver<Go>,
    ended: Arc<AtomicUsize>,
) -> Result<JoinHandle<()>> {
    if step("a thread") {
        return Err(Error::new(Status::System, "starting a worker thread"));
    }
    // The thread inherits the mask: signals are for the host program's threads.
    let _blocked = Blocked::all();
    std::thread::Builder::new()
        .name(format!("weft{endpoint}-worker{index}"))
        .spawn(move || {
            let lived = catch_unwind(AssertUnwindSafe(|| life(index, plan, progress, report, wait)));
            ended.fetch_add(1, Ordering::Release);
            drop(lived);
        })
        .map_err(|e| Error::new(Status::System, format!("starting a worker thread: {e}")))
}

fn life(index: usize, plan: Plan, progress: Progress, report: Sender<Opened>, wait: Receiver<Go>) {
    // Pin first: everything that a provider allocates and starts then stays near the NICs, too.
    let cpus = plan.cpus.filter(|_| !is_without(Technique::Pinning));
    if let Some(Err(error)) = cpus.map(|cpus| cpus.pin_this_thread()) {
        log::debug!("worker {index} is not kept near its NICs: {error}");
    }
    let (rails, opened) = open_rails(plan.rails, progress);
    if report.send(opened).is_err() {
        return;
    }
    let Ok(go) = wait.recv() else { return };
    let core = go.core.clone();
    let rails = number(rails, &go.indexes);
    // With its own thread always awake, callers never get the worker.
    let open_to_callers = core.config.sleeps() && rails.iter().all(|rail| rail.limits().grants);
    let driver = Arc::new(Driver::new(Worker::new(index, go.core, rails)));
    let _ = go.made.send(Driven { driver: driver.clone(), open_to_callers });
    let ran = catch_unwind(AssertUnwindSafe(|| Worker::run(&driver, &core, index)));
    let mut worker = driver.lock();
    if worker.broken || ran.is_err() {
        worker.failed(ran.as_ref().err().map_or("a caller's pass panicked", |panic| panic_text(&**panic)));
    }
    if let Err(error) = worker.close() {
        log::warn!("worker {index}: a NIC could not be closed: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PeerId;
    use crate::transfer::completion::{self, Completion};
    use crate::transfer::Outcome;
    use crate::worker::later::{Leaving, LeavingStage};

    #[test]
    fn open_failure_reason_is_logged_once_for_all_its_rails() {
        let error = |text: &'static str| Error::new(Status::Fabric, text);
        let failures = [("rxe0", error("small")), ("rxe1", error("gone")), ("rxe2", error("small"))];
        assert_eq!(reasons(&failures), " (rxe0, rxe2: small; rxe1: gone)");
        assert_eq!(reasons(&[]), "");
    }

    /// Until such a worker has dropped the peer's lanes, bytes may land; PEER_DOWN says that none do.
    #[test]
    fn peer_down_waits_for_a_worker_inside_a_provider() {
        const HOUR_NS: u64 = 3_600_000_000_000;
        let config =
            EndpointConfig { fabric: Some("host".into()), manual: true, ..EndpointConfig::default() };
        let endpoint = Endpoint::open(config).expect("an endpoint");
        let mut worker = endpoint.worker().expect("manual progress").lock();
        let (peer, outcome, now) =
            (PeerId::numbered(1), Outcome::new(Status::PeerLost), worker.core.clock.now());
        assert!(worker.core.queue.reserve(1));
        let down = Some(Completion::new(completion::KIND_PEER_DOWN, outcome, peer, now));
        let stage = LeavingStage::Dropping { down, others: 1, dropped_ns: None, lands: false, ended: None };
        worker.leaving.push_back(Leaving { peer, outcome, stage });
        (0..4).for_each(|hours| worker.finish_leaving(now + hours * HOUR_NS, || false));
        assert!(worker.core.queue.is_empty());
        worker.lanes_have_left(peer);
        worker.finish_leaving(now + 4 * HOUR_NS, || false);
        assert_eq!(worker.core.queue.unpolled(), 1);
    }
}
