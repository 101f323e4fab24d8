//! Two endpoints of this thread that are connected.

use libweft::*;
use std::sync::atomic::{AtomicU64, Ordering};

pub const LEN: usize = 1024;
/// More polls than anything here takes, also while a deadline of half a minute passes.
const POLLS: usize = 100_000;

/// A test of this name for each kind of NIC.
#[macro_export]
macro_rules! each_nic {
    ($($name:ident)*) => {
        $(mod $name {
            #[test]
            fn tcp() {
                super::$name("tcp")
            }
            #[test]
            fn efa() {
                super::$name("efa")
            }
            #[test]
            fn verbs() {
                super::$name("verbs")
            }
        })*
    };
}

pub struct World {
    pub local: Memory,
    pub theirs: Memory,
    pub remote: RemoteMemory,
    pub a: Endpoint,
    pub b: Endpoint,
    pub a_to_b: Peer,
    pub b_to_a: Peer,
    /// An offset in `theirs` that is aligned, which not every vector is.
    pub aligned: u64,
    of_a: Vec<Completion>,
    of_b: Vec<Completion>,
}

/// Endpoints of one world, which have a time of their own.
pub fn configs(like: &str) -> impl Fn() -> EndpointConfig {
    static WORLDS: AtomicU64 = AtomicU64::new(0);
    let number = WORLDS.fetch_add(1, Ordering::Relaxed);
    let fabric = format!("sim:like={like}:clock=virtual:depth=16:world=miri{number}");
    let small =
        |config: EndpointConfig| config.queue_depth(16).max_transfers(16).max_peers(2).max_counters(2);
    move || small(EndpointConfig::new().fabric(&fabric).manual_progress())
}

pub fn world(like: &str) -> World {
    let config = configs(like);
    let open = || Endpoint::open(&config()).expect("an endpoint");
    connected(open(), open())
}

pub fn connected(a: Endpoint, b: Endpoint) -> World {
    let a_to_b = a.connect(b.address()).expect("a connect");
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    let up = |completion: &Completion| match completion {
        Completion::PeerUp(up) => up.result().map(|()| up.peer).ok(),
        _ => None,
    };
    for _ in 0..POLLS {
        poll(&a, &mut of_a);
        poll(&b, &mut of_b);
        if let (true, Some(b_to_a)) = (of_a.iter().any(|one| up(one).is_some()), of_b.iter().find_map(up)) {
            let memory = |endpoint: &Endpoint, bytes| endpoint.register(bytes).expect("a memory");
            let of_b = vec![2; LEN];
            let aligned = 64 + of_b[64..].as_ptr().align_offset(8) as u64;
            let (local, theirs) = (memory(&a, vec![1; LEN]), memory(&b, of_b));
            let remote = import(&a, a_to_b, &theirs);
            return World {
                local,
                theirs,
                remote,
                a,
                b,
                a_to_b,
                b_to_a,
                aligned,
                of_a: vec![],
                of_b: vec![],
            };
        }
    }
    panic!("not connected: {of_a:?}, {of_b:?}");
}

pub fn import(at: &Endpoint, peer: Peer, memory: &Memory) -> RemoteMemory {
    at.import(peer, &memory.export().expect("a descriptor")).expect("it can be imported")
}

fn poll(endpoint: &Endpoint, into: &mut Vec<Completion>) {
    // A queue that has ended has nothing more.
    let _ = endpoint.queue().poll_into(into, 8);
}

impl World {
    pub fn poll(&mut self) {
        poll(&self.a, &mut self.of_a);
        poll(&self.b, &mut self.of_b);
    }

    /// Polls both endpoints until this has a result.
    pub fn until<T>(&mut self, mut found: impl FnMut(&mut World) -> Option<T>) -> T {
        for _ in 0..POLLS {
            if let Some(found) = found(self) {
                return found;
            }
            self.poll();
        }
        panic!("it did not come: {:?}, {:?}", self.of_a, self.of_b);
    }

    /// The completion of an operation of either endpoint.
    pub fn done(&mut self, op: Op) -> Done {
        self.completion(op).done().copied().expect("of an operation")
    }

    pub fn completion(&mut self, op: Op) -> Completion {
        self.until(|world| {
            let all = [&mut world.of_a, &mut world.of_b].into_iter();
            let with = |completions: &mut Vec<Completion>| {
                let at = completions.iter().position(|one| one.op() == Some(op))?;
                Some(completions.swap_remove(at))
            };
            all.flat_map(with).next()
        })
    }

    pub fn status(&mut self, op: Op) -> Status {
        self.done(op).status
    }

    /// How an operation ended, or why it was refused.
    pub fn outcome(&mut self, op: Result<Op>) -> Status {
        op.map_or_else(|refused| refused.status, |op| self.status(op))
    }

    pub fn succeeds(&mut self, op: Result<Op>) {
        let op = op.expect("it is accepted");
        assert_eq!(self.status(op), Status::Ok);
    }

    /// The first completion of `b` that is wanted.
    pub fn arrival<T>(&mut self, mut wanted: impl FnMut(&Completion) -> Option<T>) -> T {
        self.until(|world| {
            let (at, found) =
                world.of_b.iter().enumerate().find_map(|(at, one)| wanted(one).map(|found| (at, found)))?;
            world.of_b.remove(at);
            Some(found)
        })
    }

    pub fn message(&mut self) -> Vec<u8> {
        self.arrival(|one| match one {
            Completion::Message(message) => Some(message.to_vec()),
            _ => None,
        })
    }

    /// Value, status and data.
    pub fn notification(&mut self) -> (u64, Status, Vec<u8>) {
        self.arrival(|one| match one {
            Completion::Notification(one) => Some((one.notify, one.status, one.data().to_vec())),
            _ => None,
        })
    }

    /// How `a` saw its peer end.
    pub fn down(&mut self) -> Status {
        self.until(|world| {
            world.of_a.iter().find_map(|one| match one {
                Completion::PeerDown(down) => Some(down.status),
                _ => None,
            })
        })
    }

    pub fn theirs(&self) -> Vec<u8> {
        bytes(&self.theirs)
    }
}

pub fn bytes(memory: &Memory) -> Vec<u8> {
    let mut all = vec![0; memory.len() as usize];
    memory.read_at(0, &mut all).expect("they are there");
    all
}

pub fn none() -> OpOptions<'static> {
    OpOptions::new()
}
