//! Two endpoints in one process, for examples and tests of this crate. No part of its interface.
#![allow(missing_docs)]

use super::*;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

/// `a` and `b`, connected over `host`; `local` is memory of `a`, `theirs` of `b`, and `remote` is
/// `theirs` as imported by `a`.
pub struct World {
    pub local: Memory,
    pub theirs: Memory,
    pub remote: RemoteMemory,
    pub a: Endpoint,
    pub b: Endpoint,
    pub a_to_b: Peer,
    pub b_to_a: Peer,
}

pub fn config() -> EndpointConfig {
    EndpointConfig::new().fabric("host").queue_depth(1024).max_transfers(1024)
}

fn late() -> Error {
    Error::new(Status::TimedOut, "nothing came within 30 seconds")
}

/// Waits for the first completion that is wanted; those before it are dropped.
pub fn wait<T>(queue: &Queue, mut wanted: impl FnMut(Completion) -> Option<T>) -> Result<T> {
    loop {
        let completion = queue.wait(PATIENCE)?.ok_or_else(late)?;
        if let Some(found) = wanted(completion) {
            return Ok(found);
        }
    }
}

pub fn wait_for(endpoint: &Endpoint, op: Op) -> Result<Completion> {
    wait(&endpoint.queue(), |completion| (completion.op() == Some(op)).then_some(completion))
}

pub fn world() -> Result<World> {
    let (a, b) = (Endpoint::open(&config())?, Endpoint::open(&config())?);
    let a_to_b = a.connect(b.address())?;
    let up = |completion| match completion {
        Completion::PeerUp(up) => Some(up.result().map(|()| up.peer)),
        _ => None,
    };
    wait(&a.queue(), up)??;
    let b_to_a = wait(&b.queue(), up)??;
    let (local, theirs) = (a.register(vec![0; 65536])?, b.register(vec![0; 65536])?);
    let remote = a.import(a_to_b, &theirs.export()?)?;
    Ok(World { local, theirs, remote, a, b, a_to_b, b_to_a })
}

impl World {
    pub fn wait_a(&self, op: Op) -> Result<Completion> {
        wait_for(&self.a, op)
    }

    pub fn wait_b(&self, op: Op) -> Result<Completion> {
        wait_for(&self.b, op)
    }

    pub fn message_b(&self) -> Result<Message> {
        wait(&self.b.queue(), |completion| match completion {
            Completion::Message(message) => Some(message),
            _ => None,
        })
    }

    pub fn notification_b(&self) -> Result<Notification> {
        wait(&self.b.queue(), |completion| match completion {
            Completion::Notification(notification) => Some(notification),
            _ => None,
        })
    }
}
