//! A page that both processes share: the initiator writes orders into it for the spinning target,
//! without using the fabric.

use anyhow::{bail, Result};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Wipe the pool.
    Wipe,
    /// Check whether the pages of the seed have arrived, and write a line.
    Verify,
    Quit,
    /// Poll only the engine at this index.
    Poll(u8),
}

impl Order {
    fn encode(self) -> u64 {
        match self {
            Order::Wipe => 1,
            Order::Verify => 2,
            Order::Quit => 3,
            Order::Poll(engine) => 0x100 | u64::from(engine),
        }
    }

    /// `None`: there was no order yet.
    pub fn decode(word: u64) -> Option<Order> {
        let all = [Order::Wipe, Order::Verify, Order::Quit, Order::Poll(word as u8)];
        all.into_iter().find(|order| order.encode() == word & 0xffff)
    }
}

/// On separate cache lines: the target spins on the first.
#[repr(C, align(4096))]
struct Words {
    order: Line,
    answer: Line,
    seed: Line,
}

#[repr(C, align(128))]
struct Line(AtomicU64);

pub struct Control {
    fd: RawFd,
    words: &'static Words,
}

impl Control {
    /// Made by the initiator. The descriptor outlives an exec, for the target.
    pub fn create() -> io::Result<Control> {
        // SAFETY: the descriptor is new, and has this size.
        unsafe {
            let fd = libc::memfd_create(c"weft-bench".as_ptr(), 0);
            if fd < 0 || libc::ftruncate(fd, size_of::<Words>() as i64) != 0 {
                return Err(io::Error::last_os_error());
            }
            Control::open(fd)
        }
    }

    /// # Safety
    /// `create` must have made the descriptor.
    pub unsafe fn open(fd: RawFd) -> io::Result<Control> {
        let (access, len) = (libc::PROT_READ | libc::PROT_WRITE, size_of::<Words>());
        // SAFETY: the mapping is new, and stays for the life of the process.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the page consists of atomics, zero at first, with no other use.
        Ok(Control { fd, words: unsafe { &*base.cast() } })
    }

    pub fn fd(&self) -> RawFd {
        self.fd
    }

    pub fn set_seed(&self, seed: u64) {
        self.words.seed.0.store(seed, Ordering::Release);
    }

    pub fn seed(&self) -> u64 {
        self.words.seed.0.load(Ordering::Acquire)
    }

    /// Gives an order, and waits until the target has begun it (polling) or finished it (the
    /// others). `meanwhile` is called repeatedly, and may abort the wait.
    pub fn order(&self, order: Order, mut meanwhile: impl FnMut() -> Result<()>) -> Result<()> {
        let number = (self.words.order.0.load(Ordering::Relaxed) >> 16) + 1;
        let word = number << 16 | order.encode();
        self.words.order.0.store(word, Ordering::Release);
        let begun = Instant::now();
        while self.words.answer.0.load(Ordering::Acquire) != word {
            for _ in 0..100 {
                std::hint::spin_loop();
            }
            meanwhile()?;
            if begun.elapsed() > PATIENCE {
                bail!("the target does not answer ({order:?})");
            }
        }
        Ok(())
    }

    /// Called by the target: the current order, as the word to answer with.
    #[inline]
    pub fn word(&self) -> u64 {
        self.words.order.0.load(Ordering::Acquire)
    }

    pub fn answer(&self, word: u64) {
        self.words.answer.0.store(word, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_waits_for_its_answer() {
        let ours = Control::create().unwrap();
        // SAFETY: `create` made it.
        let theirs = unsafe { Control::open(ours.fd()) }.unwrap();
        ours.order(Order::Poll(3), || {
            assert_eq!(Order::decode(theirs.word()), Some(Order::Poll(3)));
            theirs.answer(theirs.word());
            Ok(())
        })
        .unwrap();
        assert!(ours.order(Order::Wipe, || bail!("gone")).is_err());
        assert_eq!((Order::decode(theirs.word()), Order::decode(0)), (Some(Order::Wipe), None));
    }
}
