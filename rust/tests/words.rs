//! How the safe interface accesses a registered range: any place and length, and several threads at once. Miri runs these,
//! too.

#[path = "../../src/api/words.rs"]
mod words;

use std::sync::Barrier;
use words::Words;

const LEN: usize = 45;

struct Shared<'a>(&'a Words);

// SAFETY: threads access the range by atomics alone, which is what the test is of.
unsafe impl Sync for Shared<'_> {}

#[test]
fn bytes_at_any_place_are_read_and_written_and_no_others() {
    // Ranges that begin anywhere relative to words.
    for skip in 0..8 {
        let mut bytes = vec![0u8; LEN + 16];
        // SAFETY: the range lies inside the vector, which is read again after the last use of this.
        let words = unsafe { Words::new(bytes.as_mut_ptr().add(skip), LEN) };
        let mut model = [0u8; LEN];
        for at in (0..LEN).step_by(if cfg!(miri) { 5 } else { 1 }) {
            for len in [0, 1, 3, 7, 8, 9, 17, LEN].into_iter().filter(|len| at + len <= LEN) {
                let new: Vec<u8> = (0..len).map(|i| (at * 31 + len * 7 + i + 1) as u8).collect();
                words.write(at, &new);
                model[at..at + len].copy_from_slice(&new);
                let (mut all, mut part) = ([0; LEN], vec![0; len]);
                words.read(0, &mut all);
                words.read(at, &mut part);
                assert_eq!((all, part), (model, new), "{len} bytes at {at}, after {skip}");
            }
        }
        assert!(bytes[..skip].iter().chain(&bytes[skip + LEN..]).all(|byte| *byte == 0));
    }
}

#[test]
fn threads_that_write_parts_of_one_word_lose_nothing() {
    let mut bytes = vec![0u8; 64];
    // SAFETY: the vector outlives the threads, and is accessed as this range alone.
    let words = unsafe { Words::new(bytes.as_mut_ptr().add(1), 62) };
    let (words, together) = (Shared(&words), Barrier::new(2));
    let (words, together) = (&words, &together);
    let writes = move |at: usize, len: usize| {
        together.wait();
        for round in 0..if cfg!(miri) { 4 } else { 20_000 } {
            let (value, mut back) = (vec![round as u8; len], vec![0; len]);
            words.0.write(at, &value);
            words.0.read(at, &mut back);
            assert_eq!(back, value);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || writes(0, 12));
        scope.spawn(move || writes(12, 30));
    });
}

#[test]
fn readers_see_whole_words_beside_writers_of_them() {
    let mut bytes = vec![0u64; 4];
    // SAFETY: the vector outlives the threads, and is accessed as this range alone.
    let words = unsafe { Words::new(bytes.as_mut_ptr().cast(), 32) };
    let words = &Shared(&words);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..if cfg!(miri) { 8 } else { 20_000 } {
                words.0.write(8, &[round as u8; 16]);
            }
        });
        scope.spawn(move || {
            for _ in 0..if cfg!(miri) { 8 } else { 20_000 } {
                let mut seen = [0; 8];
                words.0.read(8, &mut seen);
                assert_eq!(seen, [seen[0]; 8]);
                words.0.read(13, &mut seen[..6]); // Parts of two words.
            }
        });
    });
}
