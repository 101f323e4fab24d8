//! Immediates, which any holder of a key can write, and the requests of `host`.

use super::Input;
use crate::fabric::host;
use crate::transfer::counters::{Counters, Raised, VALUE_MAX};
use crate::transfer::expect::Abandoned;
use std::collections::HashMap;

thread_local! {
    /// Few and many: making them takes longer than using them.
    static COUNTERS: [Counters; 3] = [1, 3, 2000].map(|count| Counters::new(count, 0x1234_5678_9abc_def0));
}

/// Counters count only what names them, whatever is made and destroyed.
pub fn immediates(data: &[u8]) {
    let mut input = Input(data);
    let which = usize::from(input.u8()) % 3;
    COUNTERS.with(|counters| count(&counters[which], input));
}

fn count(counters: &Counters, mut input: Input) {
    let mut living: HashMap<u64, u64> = HashMap::new();
    let mut known: Vec<u64> = Vec::new();
    let destroy = |id| {
        let abandoned = counters.destroy(id);
        let waited = |one: &Abandoned| !one.reached.is_empty() || !one.canceled.is_empty();
        assert!(!abandoned.as_ref().is_ok_and(waited), "nobody waits");
        abandoned.is_ok()
    };
    while !input.is_empty() {
        let (step, which) = (input.u8() % 4, usize::from(input.u8()));
        let one = known.get(which % known.len().max(1)).copied();
        match (step, one) {
            (0, _) => {
                if let Ok(id) = counters.create() {
                    assert!(living.insert(id, 0).is_none(), "an id that is in use");
                    known.push(id);
                }
            }
            (1, Some(id)) => {
                assert_eq!(destroy(id), living.remove(&id).is_some());
            }
            (2, Some(id)) => raise(counters, &mut living, id as u32, input.u64()),
            (_, _) => raise(counters, &mut living, input.u64() as u32, 1 + which as u64),
        }
    }
    for (id, value) in living {
        assert_eq!(counters.find(id).map(|(_, value)| value).ok(), Some(value));
        assert!(destroy(id));
    }
}

fn raise(counters: &Counters, living: &mut HashMap<u64, u64>, immediate: u32, by: u64) {
    let raised = counters.raise(immediate, by);
    let meant = living.iter_mut().find(|(id, _)| **id as u32 == immediate).map(|(_, value)| value);
    assert_eq!(raised != Raised::Unknown, meant.is_some(), "immediate {immediate:#x}");
    if let Some(value) = meant {
        *value = value.saturating_add(by).min(VALUE_MAX);
    }
}

/// A cell of the ring that processes of one host share.
pub fn request(data: &[u8]) {
    let mut input = Input(data);
    host::check_cell(std::array::from_fn(|_| input.u64()));
}
