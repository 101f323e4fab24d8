//! A page that both processes share: by it the initiator tells the target, which
//! spins, what to do next, without a byte on the fabric.

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
    /// Look whether the pages of the seed have arrived, and write a line.
    Verify,
    Quit,
    /// Poll the engine in this place, and no other.
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

    /// None: there was no order yet.
    pub fn decode(word: u64) -> Option<Order> {
        let all = [Order::Wipe, Order::Verify, Order::Quit, Order::Poll(word as u8)];
        all.into_iter().find(|order| order.encode() == word & 0xffff)
    }
}

/// On cache lines of their own: the target spins on the first.
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
    /// The initiator's. The descriptor outlives an exec, for the target.
    pub fn create() -> io::Result<Control> {
        // SAFETY: a new descriptor, and its size.
        unsafe {
            let fd = libc::memfd_create(c"weft-bench".as_ptr(), 0);
            if fd < 0 || libc::ftruncate(fd, size_of::<Words>() as i64) != 0 {
                return Err(io::Error::last_os_error());
            }
            Control::open(fd)
        }
    }

    /// # Safety
    /// The descriptor must be one that `create` made.
    pub unsafe fn open(fd: RawFd) -> io::Result<Control> {
        let (access, len) = (libc::PROT_READ | libc::PROT_WRITE, size_of::<Words>());
        // SAFETY: a new mapping, which stays for the life of the process.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: atomics, at first zero, which nobody uses otherwise.
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

    /// Gives an order, and waits until the target has taken it up (polling) or
    /// carried it out (the others). `meanwhile` is called in between, and may
    /// say that it is no use to wait.
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

    /// The target's: the order of the moment, as the word to answer with.
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
    fn an_order_waits_for_its_answer() {
        let ours = Control::create().unwrap();
        // SAFETY: made by `create`.
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
