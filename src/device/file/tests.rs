//! Jobs on real files, by each way of carrying out their I/O, and by fake disks.

use super::copier::Jobs;
use super::engine::run;
use super::fake::Fake;
use super::flushing::Flushes;
use super::jobs::{Disk, Ended, Flush, Io};
use super::opened::Opened;
use super::ring::Ring;
use super::spans::find;
use super::threads::Threads;
use super::*;
use crate::device::Copied;
use crate::event::Event;
use crate::status::Status;
use std::cell::RefCell;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// Starts a thread over a disk.
fn start<D: Disk>(disk: impl FnOnce(&Arc<Event>) -> D + Send + 'static) -> Arc<Queue> {
    let (queue, inbox) = Queue::new().expect("an event");
    std::thread::spawn(move || run(disk(&inbox.event), &inbox));
    Arc::new(queue)
}

/// A file of random bytes, registered as one range.
struct Registered {
    file: File,
    reserved: Reserved,
    base: u64,
    jobs: Jobs,
}

fn register(queue: &Arc<Queue>, bytes: &[u8], len: u64, patience: Duration) -> Registered {
    register_in(&std::env::temp_dir(), queue, bytes, len, patience)
}

fn register_in(folder: &Path, queue: &Arc<Queue>, bytes: &[u8], len: u64, patience: Duration) -> Registered {
    let file = tempfile::tempfile_in(folder).expect("a file");
    file.write_all_at(bytes, 0).expect("written");
    let ranges = [Range { base: 0, len }];
    let (reserved, places) = reserve(file.as_raw_fd(), &ranges, queue, patience).expect("reserved");
    Registered { file, reserved, base: places[0].base, jobs: Jobs::new().expect("an event") }
}

impl Registered {
    /// Launches a copy between memory and the file.
    fn launch(&mut self, memory: &mut [u8], offset: u64, write: bool) -> u64 {
        let (memory, len) = (memory.as_mut_ptr() as u64, memory.len() as u64);
        let (from, to) = if write { (memory, self.base + offset) } else { (self.base + offset, memory) };
        // SAFETY: the memory outlives the launch: each test waits for its end.
        unsafe { self.jobs.add(from, to, len) };
        self.jobs.launch()
    }

    /// How a launch ends, or that it hangs.
    fn end(&mut self, ticket: u64) -> Copied {
        loop {
            match self.jobs.poll(ticket) {
                Copied::Pending => self.sleep(),
                how => return how,
            }
        }
    }

    fn sleep(&mut self) {
        let fd = self.jobs.wakes().map_or(-1, |fd| fd.as_raw_fd());
        let mut fd = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, valid for the call.
        assert_eq!(unsafe { libc::poll(&mut fd, 1, 60_000) }, 1, "no end and no wake");
        self.jobs.heard();
    }
}

fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    (*state >> 33) % below
}

/// Plays random reads and writes, several at once, beside the same on an array.
fn play(queue: &Arc<Queue>, seed: u64) {
    const LEN: usize = 1 << 20;
    let mut state = seed;
    let mut truth: Vec<u8> = (0..LEN).map(|i| ((i * 7) >> 3) as u8).collect();
    let mut file = register(queue, &truth, LEN as u64, PATIENCE);
    for round in 0..20u8 {
        // Parts of the file, each with one copy.
        let mut copies = Vec::new();
        let mut at = 0;
        while at < LEN {
            let most = [600, 9000, 100_000, 400_000][random(&mut state, 4) as usize];
            let len = (1 + random(&mut state, most) as usize).min(LEN - at);
            let len = if random(&mut state, 3) == 0 { len.next_multiple_of(4096).min(LEN - at) } else { len };
            let write = random(&mut state, 2) == 0;
            let memory: Vec<u8> = (0..len).map(|i| (i as u8) ^ round).collect();
            copies.push((at, write, memory));
            at += len;
        }
        let tickets: Vec<u64> =
            copies.iter_mut().map(|(at, write, memory)| file.launch(memory, *at as u64, *write)).collect();
        for ((at, write, memory), ticket) in copies.iter().zip(tickets) {
            assert_eq!(
                file.end(ticket),
                Copied::Done,
                "seed {seed}: {} bytes at {at}, write {write}",
                memory.len()
            );
            let place = &mut truth[*at..*at + memory.len()];
            match write {
                true => place.copy_from_slice(memory),
                false => {
                    assert!(place == &memory[..], "seed {seed}: a read of {} bytes at {at}", memory.len())
                }
            }
        }
    }
    let mut seen = vec![0; LEN];
    file.file.read_exact_at(&mut seen, 0).expect("read");
    assert!(seen == truth, "seed {seed}");
    assert!(file.jobs.wait());
    file.reserved.settle(PATIENCE).expect("idle");
}

#[test]
fn files_hold_what_was_written_by_ring_and_by_threads() {
    if Ring::new().is_ok() {
        play(&start(|_| Ring::new().expect("a ring")), 1);
    }
    play(&start(|inbox| Threads::new("weft-files", inbox).expect("threads")), 2);
}

#[test]
fn short_and_refused_io_goes_on() {
    play(&start(|_| Fake { short: true, ..Fake::default() }), 3);
    play(
        &start(|_| Fake { short: true, cached: true, late: Duration::from_micros(50), ..Fake::default() }),
        4,
    );
}

#[test]
fn read_past_the_end_fails_and_a_hole_is_zero() {
    let queue = start(|inbox| Threads::new("weft-files", inbox).expect("threads"));
    let mut file = register(&queue, &[7; 5000], 1 << 20, PATIENCE);
    let mut memory = vec![1; 100];
    let ticket = file.launch(&mut memory, 4900, false);
    assert_eq!((file.end(ticket), &memory[..]), (Copied::Done, &[7; 100][..]));
    for (offset, len) in [(4901, 100), (0, 8192), (100_000, 1)] {
        let mut memory = vec![1; len];
        let ticket = file.launch(&mut memory, offset, false);
        assert_eq!(file.end(ticket), Copied::Failed(libc::ENODATA), "{len} bytes at {offset}");
    }
    // A write past the end makes a hole.
    let ticket = file.launch(&mut [9], 50_000, true);
    assert_eq!(file.end(ticket), Copied::Done);
    let mut memory = vec![1; 45_001];
    let ticket = file.launch(&mut memory, 5000, false);
    assert_eq!(file.end(ticket), Copied::Done);
    assert!(memory[..45_000].iter().all(|byte| *byte == 0) && memory[45_000] == 9);
    // Others may make it shorter.
    file.file.set_len(100).expect("shorter");
    let ticket = file.launch(&mut memory, 5000, false);
    assert_eq!(file.end(ticket), Copied::Failed(libc::ENODATA));
    // Addresses beside the range are no file.
    let ticket = file.launch(&mut [9], 1 << 20, true);
    assert_eq!(file.end(ticket), Copied::Gone);
}

#[test]
fn launch_fails_by_its_own_error_alone() {
    let queue = start(|_| Fake { errno: Some((libc::ENOSPC, 100_000)), ..Fake::default() });
    let mut file = register(&queue, &[], 1 << 20, PATIENCE);
    let mut memories = vec![vec![3; 50_000]; 4];
    let tickets: Vec<u64> =
        memories.iter_mut().zip(0..).map(|(memory, i)| file.launch(memory, i * 50_000, true)).collect();
    let ends: Vec<Copied> = tickets.into_iter().map(|ticket| file.end(ticket)).collect();
    let full = Copied::Failed(libc::ENOSPC);
    assert_eq!(ends, [Copied::Done, Copied::Done, full, full]);
}

#[test]
fn edge_of_a_write_waits_for_no_later_writes() {
    let queue = start(|_| Fake { late: Duration::from_millis(2), ..Fake::default() });
    let mut file = register(&queue, &[], 1 << 20, PATIENCE);
    // Memory that whole blocks go to directly.
    let mut block = memmap2::MmapMut::map_anon(4096).expect("memory");
    let mut odd = vec![1; 5000];
    let mut direct: std::collections::VecDeque<u64> =
        (2..10).map(|i| file.launch(&mut block, i * 4096, true)).collect();
    let edge = file.launch(&mut odd, 0, true);
    let mut more = 0;
    while file.jobs.poll(edge) == Copied::Pending {
        assert!(more < 200, "later writes begin before it");
        if let Some(ticket) = direct.pop_front() {
            assert_eq!(file.end(ticket), Copied::Done);
        }
        direct.push_back(file.launch(&mut block, (2 + more % 8) * 4096, true));
        more += 1;
    }
    for ticket in direct {
        assert_eq!(file.end(ticket), Copied::Done);
    }
}

#[test]
fn disk_that_hangs_keeps_its_memory_and_no_one_elses_time() {
    let hang = Some((0, Some(Duration::from_millis(300))));
    let queue = start(move |_| Fake { hang, ..Fake::default() });
    let mut file = register(&queue, &[5; 8192], 8192, Duration::from_millis(50));
    let mut memory = vec![0; 4096];
    let hung = file.launch(&mut memory, 0, false);
    let mut other = vec![0; 4096];
    let beside = file.launch(&mut other, 4096, false);
    assert_eq!(file.end(beside), Copied::Done);
    assert_eq!(file.end(hung), Copied::Hung);
    assert_eq!(file.jobs.poll(hung), Copied::Hung);
    assert!(!file.jobs.wait(), "the disk still has the memory");
    let stuck = file.reserved.settle(Duration::ZERO).expect_err("the disk has the memory");
    assert_eq!(stuck.status, Status::TimedOut);
    file.reserved.settle(PATIENCE).expect("the disk has answered");
    while file.jobs.poll(hung) == Copied::Hung {
        file.sleep();
    }
    assert!(file.jobs.wait());
}

#[test]
fn file_on_a_hung_disk_is_refused_at_once() {
    let queue = start(|_| Fake { hang: Some((0, None)), ..Fake::default() });
    let patience = Duration::from_secs(1);
    let mut file = register(&queue, &[5; 8192], 8192, patience);
    let mut memories = vec![vec![0; 512]; 64];
    let tickets: Vec<u64> = memories.iter_mut().map(|memory| file.launch(memory, 0, false)).collect();
    let ends: Vec<Copied> = tickets.into_iter().map(|ticket| file.end(ticket)).collect();
    let count = |how: Copied| ends.iter().filter(|end| **end == how).count();
    // A fourth of the aligned buffers.
    assert!((1..=8).contains(&count(Copied::Hung)), "{ends:?}");
    assert_eq!(count(Copied::Hung) + count(Copied::Failed(libc::ETIMEDOUT)), 64);
    let began = Instant::now();
    let ticket = file.launch(&mut memories[0], 4096, false);
    assert_eq!(file.end(ticket), Copied::Failed(libc::ETIMEDOUT));
    assert!(began.elapsed() < patience, "it waits for a disk that hangs");
    let queue = queue.clone();
    let mut patient = register(&queue, &[5; 8192], 8192, PATIENCE);
    let ticket = patient.launch(&mut memories[0], 4096, false);
    assert_eq!(patient.end(ticket), Copied::Done, "another file is read");
    std::mem::forget(memories);
}

#[test]
fn files_of_a_hung_disk_leave_places_for_other_disks() {
    let folder = Path::new("/dev/shm");
    if !folder.exists() {
        return;
    }
    // Through aligned buffers, and without.
    for len in [512, 4096] {
        let queue = start(|_| Fake { hang: Some((0, None)), ..Fake::default() });
        let mut memory = memmap2::MmapMut::map_anon(6 * 64 * 4096).expect("memory");
        let mut pages = memory.chunks_mut(4096);
        for at in 0..5 {
            let mut file = register_in(folder, &queue, &[5; 8192], 8192, Duration::from_millis(300));
            let tickets: Vec<u64> =
                pages.by_ref().take(64).map(|page| file.launch(&mut page[..len], 0, false)).collect();
            let hung = tickets.into_iter().map(|ticket| file.end(ticket)).any(|end| end == Copied::Hung);
            assert!(hung || at > 1, "file {at}");
            std::mem::forget(file);
        }
        let mut other = register(&queue, &[5; 8192], 8192, PATIENCE);
        let page = pages.next().expect("a page");
        let ticket = other.launch(&mut page[..len], 4096, false);
        assert_eq!(other.end(ticket), Copied::Done, "a file of another disk is read, {len} bytes");
        assert_eq!(flush(&other).recv_timeout(PATIENCE), Ok(Ok(())));
        std::mem::forget(memory);
    }
}

/// Asks for a flush; its end comes to the receiver.
fn flush(file: &Registered) -> Receiver<std::result::Result<(), i32>> {
    let (sender, receiver) = channel();
    file.reserved.flush(Box::new(move |how| _ = sender.send(how)));
    receiver
}

#[test]
fn one_flush_serves_all_that_wait() {
    let flush_late = Duration::from_millis(100);
    let queue = start(move |_| Fake { flush_late, ..Fake::default() });
    let file = register(&queue, &[5; 8192], 8192, PATIENCE);
    let ends: Vec<_> = (0..20).map(|_| flush(&file)).collect();
    assert!(ends.iter().all(|end| end.recv_timeout(PATIENCE) == Ok(Ok(()))));
    // Two on a machine that is not busy: for those that were there when the first began, and for the others.
    assert!(queue.flushes() < 10, "{}", queue.flushes());
    file.reserved.settle(PATIENCE).expect("idle");
}

#[test]
fn file_is_spoiled_by_a_flush_that_fails_until_it_is_registered_anew() {
    let queue = start(|_| Fake { flush_errno: Some(libc::EIO), ..Fake::default() });
    let mut file = register(&queue, &[5; 8192], 8192, PATIENCE);
    for _ in 0..2 {
        assert_eq!(flush(&file).recv_timeout(PATIENCE), Ok(Err(libc::EIO)));
    }
    let mut memory = vec![0; 4096];
    for write in [true, false] {
        let ticket = file.launch(&mut memory, 0, write);
        assert_eq!(file.end(ticket), Copied::Failed(libc::EIO));
    }
    assert_eq!(queue.flushes(), 1);
    file.reserved.settle(PATIENCE).expect("idle");
    assert_eq!(flush(&file).recv_timeout(PATIENCE), Ok(Err(libc::EIO)));
    let again = register(&queue, &[5; 8192], 8192, PATIENCE);
    assert_eq!(flush(&again).recv_timeout(PATIENCE), Ok(Ok(())));
    again.reserved.settle(PATIENCE).expect("idle");
    assert_eq!(flush(&again).recv_timeout(PATIENCE), Ok(Err(libc::ESTALE)), "it is deregistered");
}

/// The kernel reports what it could not write to one of them alone.
#[test]
fn flush_beside_one_that_fails_fails() {
    let flush_late = Duration::from_millis(100);
    let queue = start(move |_| Fake { flush_errno: Some(libc::EIO), flush_late, ..Fake::default() });
    let file = register(&queue, &[5; 8192], 8192, PATIENCE);
    let ranges = [Range { base: 0, len: 8192 }];
    let (second, _) = reserve(file.file.as_raw_fd(), &ranges, &queue, PATIENCE).expect("reserved");
    let (sender, beside) = channel();
    let first = flush(&file);
    second.flush(Box::new(move |how| _ = sender.send(how)));
    for end in [first, beside] {
        assert_eq!(end.recv_timeout(PATIENCE), Ok(Err(libc::EIO)));
    }
}

/// A disk of one I/O, which is in its place.
struct One(Option<Io>);

impl Disk for One {
    fn depth(&self) -> usize {
        1
    }

    unsafe fn begin(&mut self, io: Io) {
        self.0 = Some(io);
    }

    fn wait(&mut self, _: &Event, _: Option<Duration>, _: &mut Vec<Ended>) {}
}

#[test]
fn flushes_of_files_take_turns() {
    let (mut flushes, mut disk, count) = (Flushes::default(), One(None), AtomicU64::new(0));
    let files: Vec<Arc<Opened>> = (0..3)
        .map(|_| tempfile::tempfile().expect("a file"))
        .map(|file| Arc::new(Opened::new(file.as_raw_fd(), PATIENCE).expect("opened")))
        .collect();
    let deadline = Instant::now() + PATIENCE;
    let flush = |file: &Arc<Opened>| Flush { file: file.clone(), deadline, done: Box::new(|_| ()) };
    files.iter().for_each(|file| flushes.receive(flush(file)));
    for round in 0..9 {
        flushes.begin(&mut disk, 1, (1, 1), |_| 0, &count);
        let io = disk.0.take().expect("a flush");
        let file = &files[round % 3];
        assert_eq!(io.fd, file.descriptor(false), "round {round}");
        flushes.receive(flush(file)); // Each file always has one that waits.
        flushes.ended(io.token, 0);
    }
}

type Answer = Sender<std::result::Result<(), i32>>;

/// A file's last flush comes, and the queue ends, between two looks of the thread.
struct Late(RefCell<Option<(Registered, Answer)>>, Fake);

impl Disk for Late {
    fn depth(&self) -> usize {
        if let Some((file, sender)) = self.0.take() {
            file.reserved.flush(Box::new(move |how| _ = sender.send(how)));
        }
        self.1.depth()
    }

    unsafe fn begin(&mut self, io: Io) {
        // SAFETY: the contract is the same.
        unsafe { self.1.begin(io) };
    }

    fn wait(&mut self, inbox: &Event, at_most: Option<Duration>, ended: &mut Vec<Ended>) {
        self.1.wait(inbox, at_most, ended);
    }
}

#[test]
fn what_comes_just_before_the_queue_ends_is_carried_out() {
    let (queue, inbox) = Queue::new().expect("an event");
    let (queue, (sender, end)) = (Arc::new(queue), channel());
    let file = register(&queue, &[5; 8192], 8192, PATIENCE);
    drop(queue);
    run(Late(RefCell::new(Some((file, sender))), Fake::default()), &inbox);
    assert_eq!(end.try_recv(), Ok(Ok(())));
}

#[test]
fn flush_that_hangs_ends_for_those_that_wait() {
    let queue = start(|_| Fake { flush_hang: true, ..Fake::default() });
    let mut file = register(&queue, &[5; 8192], 8192, Duration::from_millis(50));
    let (first, second) = (flush(&file), flush(&file));
    for end in [first, second, flush(&file)] {
        assert_eq!(end.recv_timeout(PATIENCE), Ok(Err(libc::ETIMEDOUT)));
    }
    let mut memory = vec![0; 4096];
    let ticket = file.launch(&mut memory, 0, false);
    assert_eq!(file.end(ticket), Copied::Done);
    let stuck = file.reserved.settle(Duration::ZERO).expect_err("the disk has the flush");
    assert_eq!(stuck.status, Status::TimedOut);
}

#[test]
fn file_that_is_open_for_synchronous_writes_is_written_so() {
    let folder = tempfile::tempdir().expect("a folder");
    for sync in [0, libc::O_DSYNC, libc::O_SYNC] {
        let path = folder.path().join(sync.to_string());
        let open = File::options().write(true).create(true).truncate(false).custom_flags(sync).open(path);
        let opened = Opened::new(open.expect("open").as_raw_fd(), PATIENCE).expect("opened");
        for direct in [false, true] {
            // SAFETY: the call takes no pointers.
            let flags = unsafe { libc::fcntl(opened.descriptor(direct), libc::F_GETFL) };
            assert_eq!(flags & libc::O_SYNC, sync);
        }
    }
}

#[test]
fn descriptors_that_are_no_place_for_memory_are_refused() {
    let queue = start(|_| Fake::default());
    let refused = |fd: BorrowedFd| {
        let ranges = [Range { base: 0, len: 1 }];
        reserve(fd.as_raw_fd(), &ranges, &queue, PATIENCE).err().map(|error| error.status)
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    File::create(&path).expect("a file");
    let appends = File::options().append(true).open(&path).expect("open");
    let (pipe, _other) = std::os::unix::net::UnixStream::pair().expect("sockets");
    let open = File::open(folder.path()).expect("open");
    for fd in [appends.as_fd(), pipe.as_fd(), open.as_fd()] {
        assert_eq!(refused(fd), Some(Status::Invalid));
    }
    let mut reader = File::open(&path).expect("open");
    let ranges = [Range { base: 4096, len: 4096 }, Range { base: 10, len: 1 << 40 }];
    let (reserved, places) = reserve(reader.as_raw_fd(), &ranges, &queue, PATIENCE).expect("reserved");
    assert!(reserved.is_readable() && !reserved.is_writable());
    assert_eq!(places.iter().map(|range| range.len).collect::<Vec<_>>(), [4096, 1 << 40]);
    assert!(find(places[1].base + 5, 100).is_some_and(|found| found.offset == 15));
    assert!(find(places[0].base, 4097).is_none() && find(places[0].base - 1, 1).is_none());
    assert!(places[1].base - 10 >= places[0].base + 8192, "nothing lies between the two");
    let first = places[0].base;
    drop(reserved);
    assert!(find(first, 1).is_none());
    let _ = reader.read(&mut [0]);
    let huge = [Range { base: 0, len: 1 << 47 }];
    assert_eq!(
        reserve(reader.as_raw_fd(), &huge, &queue, PATIENCE).err().map(|error| error.status),
        Some(Status::NoMemory)
    );
}
