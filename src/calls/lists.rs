//! Lists, and prepared geometry: checked once, used by any number of transfers.

use super::submit::check_pages;
use super::Endpoint;
use crate::ids::{GrantToken, OpId};
use crate::memory::{Memory, RemoteMemory, RemoteState};
use crate::peer::PeerState;
use crate::status::{Error, Result};
use crate::transfer::durable::MEMORIES_MAX;
use crate::transfer::geometry::Pages;
use crate::transfer::list::{List, Part};
use crate::transfer::options::{check_flags, COUNT_PAGES, LATENCY};
use crate::transfer::shape::{check_access, PreparedPages, Shape};
use crate::transfer::Terms;
use parking_lot::Mutex;
use std::slice::from_ref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// A caller's prepared geometry, shared by the transfers that use it.
pub struct Prepared {
    is_list: bool,
    shape: Mutex<Option<PreparedShape>>,
}

#[derive(Clone)]
enum PreparedShape {
    Pages(Arc<PreparedPages>),
    List(Arc<List>),
}

impl PreparedShape {
    /// What uses the memories, for messages.
    fn mark(&self, change: fn(&AtomicU64)) {
        let (locals, remotes) = match self {
            PreparedShape::Pages(paged) => (from_ref(&paged.local), from_ref(&paged.remote)),
            PreparedShape::List(list) => (list.locals(), list.remotes()),
        };
        locals.iter().for_each(|memory| change(&memory.prepared));
        remotes.iter().for_each(|memory| change(&memory.prepared));
    }
}

impl Prepared {
    fn new(shape: PreparedShape) -> Arc<Prepared> {
        shape.mark(|prepared| {
            prepared.fetch_add(1, Ordering::Relaxed);
        });
        let is_list = matches!(shape, PreparedShape::List(_));
        Arc::new(Prepared { is_list, shape: Mutex::new(Some(shape)) })
    }

    pub fn is_list(&self) -> bool {
        self.is_list
    }

    /// Releases the geometry. Its memories are free once the transfers that use it have ended.
    pub fn release(&self) {
        let released = self.shape.lock().take();
        if let Some(shape) = released {
            shape.mark(|prepared| {
                prepared.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }

    fn shape(&self) -> Result<PreparedShape> {
        let shape = self.shape.lock();
        if let Some(PreparedShape::Pages(paged)) = &*shape {
            // Holding the remote memory also waits for other processors: prefetching overlaps the
            // two waits.
            paged.remote.prefetch();
        }
        shape.clone().ok_or_else(|| Error::handle("the prepared geometry was released"))
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        self.release();
    }
}

impl Endpoint {
    /// Submits a checked list.
    pub fn submit_list(&self, list: &Arc<List>, terms: &Terms) -> Result<OpId> {
        self.core.phase.check_open()?;
        list.allows(terms.direction)?;
        if terms.common.grant.is_some() && list.parts().len() > 1 {
            return Err(Error::invalid(
                "a grant is of one peer's memory, and this list is over several peers",
            ));
        }
        list.remotes().iter().try_for_each(|remote| self.check_terms(terms, remote))?;
        list.parts().iter().try_for_each(|part| self.check_part(list, part, terms.durable))?;
        let state = |part: &Part| self.state_of(list, part, terms.common.grant);
        match list.parts() {
            [one] => self.launch(one.slices, || Shape::part(list, 0), None, terms, || state(one).0),
            _ => self.launch_parts(list, terms, state),
        }
    }

    /// Whether a part can start: its memories exist, and its peer is up.
    fn check_part(&self, list: &List, part: &Part, durable: bool) -> Result<()> {
        let memories = list.remotes_of(part).count();
        if durable && memories > MEMORIES_MAX {
            return Err(Error::limit(format!(
                "a list with WEFT_DURABLE names {memories} memories of one peer: at most {MEMORIES_MAX} are allowed"
            )));
        }
        for remote in list.remotes_of(part) {
            if let Some(error) = Error::of_remote(remote.state()) {
                let entry = list.entry_of(part, remote).unwrap_or(part.first_entry);
                return Err(error.about(&format!("entry {entry}")));
            }
        }
        let about = |error: Error| error.about(&format!("entry {}", part.first_entry));
        match list.remotes_of(part).next() {
            Some(_) => Ok(()),
            None => self.core.named_peer(part.peer.get()).map(drop).map_err(about),
        }
    }

    /// The state of a part's memories and peer, and the first entry that it concerns.
    fn state_of(&self, list: &List, part: &Part, grant: Option<GrantToken>) -> (RemoteState, u64) {
        for remote in list.remotes_of(part) {
            let state = remote.state_under(grant);
            if Error::of_remote(state).is_some() {
                return (state, list.entry_of(part, remote).unwrap_or(part.first_entry));
            }
        }
        match self.core.peers.get(part.peer) {
            Ok(peer) if peer.state() != PeerState::Down => (RemoteState::Ready, part.first_entry),
            _ => (RemoteState::PeerLost, part.first_entry),
        }
    }

    /// Of the flags it takes those of how pages are cut.
    pub fn prepare_pages(
        &self,
        pages: &Pages,
        local: &Arc<Memory>,
        remote: &Arc<RemoteMemory>,
        flags: u32,
    ) -> Result<Arc<Prepared>> {
        check_flags(flags, LATENCY | COUNT_PAGES)?;
        let (urgent, whole) = (flags & LATENCY != 0, flags & COUNT_PAGES != 0);
        self.core.phase.check_open()?;
        Error::of_remote(remote.state()).map_or(Ok(()), Err)?;
        if whole {
            self.check_counted(remote.peer, pages.page_len)?;
        }
        let geometry = check_pages(pages, local, remote, urgent, whole)?;
        let prepared = PreparedPages::new(geometry, local, remote)?;
        Ok(Prepared::new(PreparedShape::Pages(Arc::new(prepared))))
    }

    pub fn prepare_list(&self, list: List) -> Result<Arc<Prepared>> {
        self.core.phase.check_open()?;
        list.parts().iter().try_for_each(|part| self.check_part(&list, part, false))?;
        Ok(Prepared::new(PreparedShape::List(Arc::new(list))))
    }

    pub fn submit_prepared(&self, prepared: &Prepared, terms: &Terms) -> Result<OpId> {
        self.core.table.prefetch();
        let paged = match prepared.shape()? {
            PreparedShape::List(list) => return self.submit_list(&list, terms),
            PreparedShape::Pages(paged) => paged,
        };
        self.core.phase.check_open()?;
        Error::of_remote(paged.remote.state()).map_or(Ok(()), Err)?;
        check_access(terms.direction, &paged.local, &paged.remote)?;
        self.check_terms(terms, &paged.remote)?;
        paged.geometry.check_destination(terms.direction)?;
        if terms.count.is_some_and(|count| count.pages) && !paged.geometry.whole {
            return Err(Error::invalid(
                "WEFT_COUNT_PAGES is set in flags, but was not when the pages were prepared: set it there, too",
            ));
        }
        let counting =
            self.counting(terms, &paged.remote, paged.geometry.page_len(), paged.geometry.pages())?;
        self.launch(
            paged.geometry.slices,
            || Shape::pages(&paged),
            counting,
            terms,
            || paged.remote.state_under(terms.common.grant),
        )
    }
}
