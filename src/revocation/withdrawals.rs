//! What a peer has taken back, at its owner here: grants that it revoked, and memories that it deregistered. The
//! operations that used them end in steps, in order. Until all have, the peer is not answered that this side is at rest;
//! and until those under grants have, its new keys are not taken, by which they could go on.

use std::collections::VecDeque;

/// `S`: what ends the operations, in steps.
pub struct Withdrawals<S>(VecDeque<(Of, S)>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Grants,
    Memory,
}

impl<S> Default for Withdrawals<S> {
    fn default() -> Self {
        Withdrawals(VecDeque::new())
    }
}

impl<S> Withdrawals<S> {
    /// The peer has revoked a grant. `join`: adds it to those of others, unless that has begun.
    pub fn handle_revoked(&mut self, mut join: impl FnMut(&mut S) -> bool, begin: impl FnOnce() -> S) {
        if !self.0.iter_mut().any(|(what, one)| *what == Of::Grants && join(one)) {
            self.0.push_back((Of::Grants, begin()));
        }
    }

    /// The peer has deregistered a memory.
    pub fn handle_gone(&mut self, one: S) {
        self.0.push_back((Of::Memory, one));
    }

    /// The peer has new keys: what it revoked before ends first. `end`: does that, all of it.
    pub fn handle_keys(&mut self, mut end: impl FnMut(&mut S)) {
        self.0.retain_mut(|(what, one)| {
            if *what == Of::Grants {
                end(one);
            }
            *what != Of::Grants
        });
    }

    /// `step`: goes on with one, true at its end.
    pub fn poll(&mut self, mut step: impl FnMut(&mut S) -> bool) {
        while self.0.front_mut().is_some_and(|(_, one)| step(one)) {
            self.0.pop_front();
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}
