//! Which addresses of ofi_rxm are in use, and which are to go.
//!
//! The provider counts how often an address was inserted, and closes its connection when
//! it was removed as often. But it crashes (1.17 to 2.6) when it removes one whose
//! connection failed at once, or gave way to one of the peer's that has not come yet. So
//! an address is tried first: only one that is connected goes. One that fails, or does
//! not connect for a while, stays until it was connected again.

use crate::fabric::{Posted, Route};
use std::collections::HashMap;

/// How often an address is tried: once a tick.
const TRIES: u32 = 100;

#[derive(Default)]
struct Uses {
    live: u32,
    /// Inserts whose users are gone, and which the provider still counts.
    left: u32,
}

#[derive(Default)]
pub struct Routes {
    uses: HashMap<Route, Uses>,
    /// Unused routes, and how often the removal of each was tried.
    retiring: Vec<(Route, u32)>,
}

impl Routes {
    pub fn inserted(&mut self, route: Route) {
        self.uses.entry(route).or_default().live += 1;
        self.retiring.retain(|(retiring, _)| *retiring != route);
    }

    /// A user of the route is gone. Returns how often to remove it.
    pub fn left(&mut self, route: Route, connected: bool) -> u32 {
        let Some(uses) = self.uses.get_mut(&route) else { return 0 };
        uses.live = uses.live.saturating_sub(1);
        uses.left += 1;
        if connected {
            return self.clear(route);
        }
        if uses.live == 0 {
            self.retiring.push((route, 0));
        }
        0
    }

    /// Removes what is unused.
    fn clear(&mut self, route: Route) -> u32 {
        let Some(uses) = self.uses.get_mut(&route) else { return 0 };
        let left = std::mem::take(&mut uses.left);
        if uses.live == 0 {
            self.uses.remove(&route);
        }
        left
    }

    /// Routes to be removed, and how often each was tried.
    pub fn take_retiring(&mut self) -> Vec<(Route, u32)> {
        std::mem::take(&mut self.retiring)
    }

    /// The result of a try. Returns how often to remove the route now.
    pub fn tried(&mut self, route: Route, tries: u32, posted: Posted) -> u32 {
        match posted {
            Posted::Yes => return self.clear(route),
            Posted::Again if tries + 1 < TRIES => self.retiring.push((route, tries + 1)),
            // The route may be without a connection at this moment, which cannot be seen.
            Posted::Again | Posted::Failed(_) => {}
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which are removed, and how often.
    fn tend(routes: &mut Routes, posted: Posted) -> Vec<(Route, u32)> {
        let all = routes.take_retiring().into_iter();
        let gone = all.map(|(route, tries)| (route, routes.tried(route, tries, posted)));
        gone.filter(|(_, times)| *times > 0).collect()
    }

    #[test]
    fn failed_route_goes_with_the_next_connection() {
        let mut routes = Routes::default();
        routes.inserted(7);
        assert_eq!(routes.left(7, false), 0);
        assert!(tend(&mut routes, Posted::Failed(1)).is_empty());
        routes.inserted(7);
        assert_eq!(routes.left(7, true), 2, "or the connection would live on");
        assert!(tend(&mut routes, Posted::Yes).is_empty());
    }

    #[test]
    fn route_in_use_again_does_not_retire() {
        let mut routes = Routes::default();
        routes.inserted(7);
        assert_eq!(routes.left(7, false), 0);
        routes.inserted(7);
        assert!(tend(&mut routes, Posted::Yes).is_empty());
        assert_eq!(routes.left(7, true), 2);
    }

    #[test]
    fn route_with_another_user_stays() {
        let mut routes = Routes::default();
        routes.inserted(7);
        routes.inserted(7);
        assert_eq!(routes.left(7, true), 1);
        assert_eq!(routes.left(7, false), 0);
        assert!(tend(&mut routes, Posted::Again).is_empty());
        for _ in 0..2 * TRIES {
            assert!(tend(&mut routes, Posted::Again).is_empty());
        }
        assert!(tend(&mut routes, Posted::Yes).is_empty(), "it is not tried any more");
        routes.inserted(7);
        assert_eq!(routes.left(7, true), 2);
    }
}
