//! A rail's lanes in one slab; only the lookup here checks generations.

use super::lane::Lane;
use crate::ids::{LaneId, LaneSlot, RailIndex};

/// An element of the slab: a lane, with the state that higher layers keep for it.
pub trait HasLane {
    fn lane(&self) -> &Lane;
    fn lane_mut(&mut self) -> &mut Lane;
}

impl HasLane for Lane {
    fn lane(&self) -> &Lane {
        self
    }

    fn lane_mut(&mut self) -> &mut Lane {
        self
    }
}

pub struct Lanes<L> {
    rail: RailIndex,
    places: Vec<LanePlace<L>>,
}

struct LanePlace<L> {
    /// The slot of the current lane, or of the next one.
    slot: LaneSlot,
    lane: Option<L>,
}

impl<L: HasLane> Lanes<L> {
    pub fn new(rail: RailIndex) -> Lanes<L> {
        Lanes { rail, places: Vec::new() }
    }

    /// Inserts a lane, made by `make` from its id.
    pub fn insert(&mut self, make: impl FnOnce(LaneId) -> L) -> LaneId {
        let index = self.places.iter().position(|place| place.lane.is_none()).unwrap_or_else(|| {
            let slot = LaneSlot::first(self.places.len());
            self.places.push(LanePlace { slot, lane: None });
            self.places.len() - 1
        });
        let place = &mut self.places[index];
        let id = LaneId { rail: self.rail, slot: place.slot };
        place.lane = Some(make(id));
        id
    }

    #[inline]
    fn place(&mut self, slot: LaneSlot) -> Option<&mut LanePlace<L>> {
        self.places.get_mut(slot.index()).filter(|place| place.slot == slot)
    }

    pub fn get(&self, slot: LaneSlot) -> Option<&L> {
        self.places.get(slot.index()).filter(|place| place.slot == slot)?.lane.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, slot: LaneSlot) -> Option<&mut L> {
        self.place(slot)?.lane.as_mut()
    }

    /// Removes a lane. Its operations keep their slots until the NIC returns them.
    pub fn remove(&mut self, slot: LaneSlot) -> Option<L> {
        let place = self.place(slot)?;
        place.slot = slot.next();
        place.lane.take()
    }

    pub fn drain(&mut self) -> impl Iterator<Item = L> + '_ {
        self.places.drain(..).filter_map(|place| place.lane)
    }

    /// The number of places, with or without a lane.
    #[inline]
    pub fn places(&self) -> usize {
        self.places.len()
    }

    #[inline]
    pub fn at(&mut self, place: usize) -> Option<&mut L> {
        self.places[place].lane.as_mut()
    }

    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    pub fn iter(&self) -> impl Iterator<Item = &L> {
        self.places.iter().filter_map(|place| place.lane.as_ref())
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut L> {
        self.places.iter_mut().filter_map(|place| place.lane.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PeerId;
    use crate::lane::Life;
    use crate::rail::lane::OfPeer;
    use std::sync::Arc;

    #[test]
    fn successor_of_a_lane_is_not_mistaken_for_it() {
        let mut lanes = Lanes::new(RailIndex::at(3));
        let insert = |lanes: &mut Lanes<Lane>| {
            let (peer, remote_rail) = (PeerId::numbered(1), RailIndex::at(0));
            let to = OfPeer { peer, remote_rail, traffic: Arc::default() };
            lanes.insert(|id| Lane::new(id, to, Life::new(1, 0), 0, 1))
        };
        let (first, other) = (insert(&mut lanes), insert(&mut lanes));
        assert!(lanes.remove(first.slot).is_some() && lanes.remove(first.slot).is_none());
        let mut last = insert(&mut lanes);
        assert_eq!((last.slot.index(), last.rail), (first.slot.index(), first.rail));
        assert!(lanes.get(first.slot).is_none() && lanes.get_mut(first.slot).is_none());
        assert!(lanes.get(last.slot).is_some_and(|lane| lane.id == last));
        assert!(lanes.get(LaneSlot::NONE).is_none() && lanes.get_mut(other.slot).is_some());
        // Generations wrap around, and skip the one of `LaneSlot::NONE`.
        for _ in 0..1 << 14 {
            lanes.remove(last.slot);
            last = insert(&mut lanes);
            assert!(last.slot != LaneSlot::NONE && last.slot != other.slot);
        }
    }
}
