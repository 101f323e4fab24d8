//! Registrations that no memory has yet. Until all of a memory's rails have registered it, they are
//! held here, and closed if anything fails.

use super::{Endpoint, UNRESPONSIVE};
use crate::device::Place;
use crate::fabric::Registration;
use crate::ids::{MemoryId, RailIndex};
use crate::memory::alloc::{self, Areas};
use crate::memory::Memory;
use crate::status::{Error, Result, Status};
use crate::worker::chores::{Chore, Closable, Registered, Registrations, Reply, Unwanted, Wanted};
use crate::worker::inbox::{Command, Inbox};
use std::time::Duration;

/// A failed call waits this long for NICs that cannot close a registration at once.
const CLOSES: Duration = Duration::from_secs(2);

struct Unowned<'a> {
    endpoint: &'a Endpoint,
    /// The memory's own, and those for peers alone.
    own: Registrations,
    apart: Registrations,
    /// Allocations that contain the memory.
    areas: Areas,
}

impl Endpoint {
    /// Registers a memory with all rails that are wanted, or with none.
    pub(crate) fn make_memory(
        &self,
        id: MemoryId,
        secret: u64,
        wanted: Wanted,
        place: Option<Place>,
    ) -> Result<Memory> {
        let areas = alloc::hold(&wanted.ranges);
        let (own, apart) = (Registrations::default(), Registrations::default());
        let mut unowned = Unowned { endpoint: self, own, apart, areas };
        if let Err(error) = unowned.register(&wanted) {
            return Err(unowned.give_back(error));
        }
        Ok(unowned.into_memory(id, secret, wanted, place))
    }

    /// Lets all workers register ranges. On failure, too, `all` has what there is.
    fn register_on_rails(&self, wanted: &Wanted, areas: &Areas, all: &mut Registrations) -> Result<()> {
        let ask = |inbox: &Inbox| {
            let reply = Reply::new();
            inbox.command(Command::Chore(Chore::register(wanted.clone(), Registered::Caller(reply.clone()))));
            reply
        };
        let replies: Vec<Reply<Registrations>> = self.core.inboxes.iter().map(ask).collect();
        let (mut failed, mut silent) = (None, None);
        for reply in &replies {
            let answer = self.answer(reply, UNRESPONSIVE * 30, || 0);
            // A worker that does not answer in time closes by itself what it still registers.
            let answer = answer.or_else(|error| reply.abandon(areas).ok_or(error));
            match answer {
                Ok(registered) => {
                    all.of_rails.extend(registered.of_rails);
                    all.left.extend(registered.left);
                    failed = failed.or(registered.error);
                }
                Err(error) => silent = Some(error.about("the memory may still be registered: keep it")),
            }
        }
        silent.or(failed).map_or(Ok(()), Err)
    }
}

impl Unowned<'_> {
    fn register(&mut self, wanted: &Wanted) -> Result<()> {
        let Unowned { endpoint, own, apart, areas } = self;
        endpoint.register_on_rails(wanted, areas, own)?;
        let known =
            own.of_rails.iter().fold(
                0,
                |set, (rail, registrations)| if registrations.is_empty() { set } else { set | rail.bit() },
            );
        match endpoint.core.wanted_apart(wanted, known) {
            Some(wanted) => endpoint.register_on_rails(&wanted, areas, apart),
            None => Ok(()),
        }
    }

    fn into_memory(mut self, id: MemoryId, secret: u64, wanted: Wanted, place: Option<Place>) -> Memory {
        let mut by_rail: Vec<Box<[Registration]>> =
            self.endpoint.core.rails.iter().map(|_| Box::default()).collect();
        let (own, apart) = (std::mem::take(&mut self.own), std::mem::take(&mut self.apart));
        own.of_rails.into_iter().for_each(|(rail, registrations)| by_rail[rail.place()] = registrations);
        let memory = Memory::new(id, secret, wanted.ranges.to_vec(), wanted.access, place, by_rail);
        {
            let mut exports = memory.exports.lock();
            let any = !apart.of_rails.is_empty();
            exports.add(apart.of_rails, own.left.into_iter().chain(apart.left).collect());
            if any {
                exports.replace();
            }
        }
        memory
    }

    /// Closes what there is; returns the error of the call.
    fn give_back(mut self, error: Error) -> Error {
        let replies = self.close();
        let closed = all_closed(&replies, &self.areas, |reply| self.endpoint.answer(reply, CLOSES, || 0)?);
        match closed.and_then(|()| self.endpoint.core.phase.check_closed()) {
            Ok(()) => error,
            Err(_) if matches!(error.status, Status::TimedOut | Status::Internal) => error,
            Err(_) => Error {
                status: Status::TimedOut,
                message: format!(
                    "{}; and a NIC does not give back what it had registered: keep the memory until the endpoint is \
                     shut down",
                    error.message
                )
                .into(),
                ..error
            },
        }
    }

    /// Asks the workers to close what there is.
    fn close(&mut self) -> Vec<Reply<Result<()>>> {
        let core = &self.endpoint.core;
        let mut of_workers: Vec<Unwanted> = core.inboxes.iter().map(|_| Unwanted::new()).collect();
        let all = [&mut self.own, &mut self.apart].map(std::mem::take);
        let each = all.into_iter().flat_map(Registrations::flat);
        each.for_each(|unwanted: (RailIndex, Registration)| {
            of_workers[core.rails[unwanted.0.place()].worker].push(unwanted)
        });
        let asked = core.inboxes.iter().zip(of_workers).filter(|(_, unwanted)| !unwanted.is_empty());
        asked
            .map(|(inbox, unwanted)| {
                let reply = Reply::new();
                inbox.command(Command::Chore(Chore::close(Closable::These(unwanted), &reply)));
                reply
            })
            .collect()
    }
}

/// Waits until all workers have closed what they were to close; after one that does not answer, for
/// none. These keep the areas.
fn all_closed(
    replies: &[Reply<Result<()>>],
    areas: &Areas,
    mut wait: impl FnMut(&Reply<Result<()>>) -> Result<()>,
) -> Result<()> {
    let mut outcome = Ok(());
    for reply in replies {
        let answer = outcome.clone().and_then(|()| wait(reply));
        outcome = answer.or_else(|error| reply.abandon(areas).map_or(Err(error), |_| outcome));
    }
    outcome
}

impl Drop for Unowned<'_> {
    fn drop(&mut self) {
        for reply in self.close() {
            reply.abandon(&self.areas);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_that_does_not_answer_keeps_the_areas() {
        let replies = [(); 4].map(|()| Reply::new());
        assert!(replies[0].put(Ok(())).is_ok() && replies[2].put(Ok(())).is_ok());
        let mut waited = 0;
        let closed = all_closed(&replies, &Areas::new(), |reply| {
            waited += 1;
            reply.take().ok_or_else(Error::closed)?
        });
        assert!(closed.is_err() && waited == 2);
        assert!(
            replies[1].put(Ok(())).is_err() && replies[3].put(Ok(())).is_err(),
            "they are given the areas"
        );
    }
}
