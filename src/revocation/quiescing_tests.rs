//! Several requests and a close in progress at once, with operations, workers and a peer that act when they like. A seed
//! says when; a failure names it.

use super::quiescing::{Due, Quiescing, Step, MOVES};
use super::tests::{check_moves, Draw};
use super::Then;
use std::collections::BTreeSet;

const WORKERS: usize = 3;
const SEEDS: u64 = 2000;

type Operations = BTreeSet<u64>;

/// Operations by what is left of them: they run; a worker has bytes of theirs in flight; the peer has not acknowledged
/// their frames.
struct World {
    draw: Draw,
    all: Vec<(Quiescing<Operations>, Operations)>,
    active: Operations,
    posts: [Operations; WORKERS],
    frames: Operations,
    /// What workers were asked, and have to see arrive first.
    asked: [Vec<(Then, Operations)>; WORKERS],
    done: Vec<Then>,
    next: u64,
}

impl World {
    fn step(&mut self, busy: bool) {
        let worker = self.draw.below(WORKERS as u64) as usize;
        match self.draw.below(8) {
            0 | 1 if busy => {
                self.next += 1;
                self.active.insert(self.next);
                self.posts[worker].insert(self.next);
            }
            2 if busy && self.draw.percent(30) => {
                self.next += 1;
                let accepted = self.active.clone();
                let step = Step::Operations(accepted.clone());
                self.all.push((Quiescing { then: Then::Answer(self.next), step }, accepted));
            }
            // It ends, perhaps early, and has something to say.
            3 => {
                let ended = self.active.pop_first();
                self.frames.extend(ended);
            }
            4 => _ = self.posts[worker].pop_first(),
            5 => _ = self.frames.pop_first(),
            6 => {
                let posts = &self.posts[worker];
                let (quiet, waits): (Vec<_>, Vec<_>) = std::mem::take(&mut self.asked[worker])
                    .into_iter()
                    .partition(|(_, before)| posts.is_disjoint(before));
                self.asked[worker] = waits;
                for (then, _) in quiet {
                    let waits = self.all.iter_mut().find(|(one, _)| one.then == then);
                    waits.expect("it waits for lanes").0.handle_quiesced();
                }
            }
            _ => self.advance(),
        }
    }

    fn ask(&mut self, then: Then) -> usize {
        for (asked, posts) in self.asked.iter_mut().zip(&self.posts) {
            asked.push((then, posts.clone()));
        }
        WORKERS
    }

    fn advance(&mut self) {
        for (mut one, accepted) in std::mem::take(&mut self.all) {
            let (active, frames) = (&self.active, &self.frames);
            let in_frames = matches!(one.step, Step::Frames(_));
            let over = |these: &mut Operations| these.is_disjoint(if in_frames { frames } else { active });
            match one.poll(over) {
                Some(Due::Lanes(then)) => one.handle_asked(self.ask(then)),
                Some(Due::Frames(_)) => one.handle_frames(self.frames.clone()),
                Some(Due::Done(then)) => {
                    assert!(accepted.is_disjoint(&self.active), "an operation goes on");
                    let lands = self.posts.iter().any(|posts| !posts.is_disjoint(&accepted));
                    assert!(!lands, "bytes are in flight");
                    let says = then != Then::Close && !accepted.is_disjoint(&self.frames);
                    assert!(!says, "the peer has not been notified");
                    assert!(!self.done.contains(&then), "answered twice");
                    self.done.push(then);
                    continue;
                }
                None => {}
            }
            self.all.push((one, accepted));
        }
    }

    fn run(seed: u64) {
        let empty = || Operations::new();
        let mut world = World {
            draw: Draw(seed),
            all: Vec::new(),
            active: empty(),
            posts: Default::default(),
            frames: empty(),
            asked: Default::default(),
            done: Vec::new(),
            next: 0,
        };
        (0..150).for_each(|_| world.step(true));
        // The session closes: its operations have ended.
        let ended = std::mem::take(&mut world.active);
        let step = Step::Lanes(world.ask(Then::Close));
        world.all.push((Quiescing { then: Then::Close, step }, ended));
        let begun = world.done.len() + world.all.len();
        let mut steps = 0;
        while !world.all.is_empty() {
            world.step(false);
            steps += 1;
            assert!(steps < 20_000, "a request is never answered");
        }
        assert_eq!(world.done.len(), begun, "each is answered");
    }
}

#[test]
fn requests_are_answered_once_all_that_was_accepted_has_arrived() {
    let began = crate::pass::thread_ns();
    for seed in 0..SEEDS {
        let run = std::panic::catch_unwind(|| World::run(seed));
        assert!(run.is_ok(), "seed {seed}");
    }
    println!("played {SEEDS} seeds in {:.3} s", (crate::pass::thread_ns() - began) as f64 / 1e9);
    check_moves(MOVES.iter());
}
