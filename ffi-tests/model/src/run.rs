//! Draws cases, runs them, and shrinks one that fails.
//!
//! Each case has a seed of its own: a failure prints it, and the command that runs
//! that case again (in virtual time it goes the same way; else try some times).
//! WEFT_MODEL_CASES cases are run in each world, or as many as fit into some
//! seconds. WEFT_MODEL_TRACE prints what happens.

use crate::case::Case;
use crate::driver::{Driver, Trace};
use crate::model::Outcome;
use crate::plan;
use crate::shape::Sequence;
use crate::side::Setting;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Without WEFT_MODEL_CASES a world is left after so long.
const SPAN: Duration = Duration::from_secs(4);
/// A case that takes longer hangs in a call.
const HANGS: Duration = Duration::from_secs(150);

/// Two endpoints of one kind.
pub struct World {
    /// As the test is called.
    pub name: &'static str,
    pub fabric: &'static str,
    pub rails: Option<&'static str>,
    pub manual: bool,
}

impl World {
    fn is_virtual(&self) -> bool {
        self.fabric.contains("clock=virtual")
    }

    fn setting(&self, case: &Case) -> Setting {
        static WORLDS: AtomicU64 = AtomicU64::new(0);
        let mut fabric = self.fabric.to_owned();
        if self.is_virtual() {
            fabric += &format!(":seed={}", case.seed);
        }
        if fabric.starts_with("sim") {
            fabric += &format!(":world=model-{}", WORLDS.fetch_add(1, Ordering::Relaxed));
        }
        Setting {
            fabric,
            rails: self.rails,
            manual: self.manual,
            packing: case.packing,
            idle: case.idle,
            workers: case.workers,
        }
    }

    fn run(&self, case: &Case, trace: &Trace) -> Outcome {
        let _watch = Watch::over(case, trace.clone());
        let mut first = self.setting(case);
        // Both sides of a simulated world are in one.
        let second = Setting { fabric: first.fabric.clone(), ..self.setting(case) };
        first.workers = case.workers.min(1);
        Driver::new(&[first, second], case, self.is_virtual(), trace.clone())?.run(case)
    }

    /// As a test does it.
    pub fn test(&self) {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        if let Some(seed) = number("WEFT_MODEL_SEED") {
            return self.test_seed(seed);
        }
        let cases = number("WEFT_MODEL_CASES");
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let (mut seeds, begin) = (Sequence(since), Instant::now());
        let mut done = 0;
        while cases.map_or(done == 0 || begin.elapsed() < SPAN, |cases| done < cases) {
            self.test_seed(seeds.draw());
            done += 1;
        }
        println!("{}: {done} cases in {:?}", self.name, begin.elapsed());
    }

    fn test_seed(&self, seed: u64) {
        let mut numbers = Sequence(seed);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(&numbers.bytes(32));
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let config = Config {
            cases: 1,
            failure_persistence: None,
            max_shrink_iters: 400,
            max_shrink_time: 60_000,
            ..Config::default()
        };
        // What the failure that is reported last had done.
        let traced: RefCell<Vec<String>> = RefCell::default();
        let outcome = TestRunner::new_with_rng(config, rng).run(&plan::case(), |case| {
            let trace = Trace::default();
            let outcome = self.run(&case, &trace);
            if std::env::var_os("WEFT_MODEL_TRACE").is_some() {
                println!("{}", trace.lock().map(|lines| lines.join("\n")).unwrap_or_default());
            }
            outcome.map_err(|why| {
                *traced.borrow_mut() = trace.lock().map(|lines| lines.clone()).unwrap_or_default();
                TestCaseError::fail(why)
            })
        });
        match outcome {
            Ok(()) => {}
            Err(TestError::Fail(why, case)) => panic!(
                "{}: {why}\n\nWhat happened:\n{}\n\nThe smallest case that fails:\n{case:?}\n{}",
                self.name,
                traced.borrow().join("\n"),
                self.replay(seed)
            ),
            Err(TestError::Abort(why)) => panic!("{}: {why}", self.name),
        }
    }

    fn replay(&self, seed: u64) -> String {
        format!(
            "Replay: WEFT_MODEL_SEED={seed} cargo test -p weft-model --test worlds -- --exact {}",
            self.name
        )
    }
}

/// Ends the process, saying what it was at, when a case never ends.
struct Watch(#[allow(dead_code)] mpsc::Sender<()>);

impl Watch {
    fn over(case: &Case, trace: Trace) -> Watch {
        let (alive, gone) = mpsc::channel();
        let case = format!("{case:?}");
        std::thread::spawn(move || {
            if gone.recv_timeout(HANGS) == Err(mpsc::RecvTimeoutError::Timeout) {
                let lines = trace.lock().map(|lines| lines.join("\n")).unwrap_or_default();
                eprintln!("a call has hung for {HANGS:?}:\n{lines}\n\nThe case:\n{case}");
                std::process::abort();
            }
        });
        Watch(alive)
    }
}
