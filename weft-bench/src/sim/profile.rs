//! Standard tools around a drive: its instructions, allocations, locks and system calls.

use super::Drive;
use anyhow::{bail, Context, Result};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::process::Command;

/// Counts of one run.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Counts {
    /// Instructions outside the simulated NICs.
    pub instructions: f64,
    pub allocations: f64,
    pub locks: f64,
}

const ALLOCATORS: [&str; 6] = ["malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc", "memalign"];
/// Locks of pthreads; those of parking_lot are found by their instruction.
const LOCKS: [&str; 3] = ["pthread_mutex_lock", "pthread_rwlock_rdlock", "pthread_rwlock_wrlock"];
/// Registers of one byte: parking_lot's mutex is one byte that is compared and exchanged.
const BYTES: &str = "%al %bl %cl %dl %sil %dil %bpl %r8b %r9b %r10b %r11b %r12b %r13b %r14b %r15b";

/// The command, as text.
pub const CALLGRIND: &str =
    "valgrind --tool=callgrind --dump-instr=yes weft-bench part ..., at 2N slices and at N";
pub const STRACE: &str = "strace -f -c weft-bench part ..., at 2N slices and at N";

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("weft-bench-{}-{name}", std::process::id()))
}

fn run(tool: &str, options: &[String], drive: &Drive) -> Result<()> {
    let output = Command::new(tool)
        .args(options)
        .args(drive.part().words()?)
        .output()
        .with_context(|| format!("starting {tool}: is it installed?"))?;
    if !output.status.success() {
        bail!("{tool}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Runs a drive under callgrind.
pub fn counts(drive: &Drive) -> Result<Counts> {
    let out = scratch("callgrind");
    let mut options = vec![
        "--tool=callgrind".to_owned(),
        "--dump-instr=yes".into(),
        format!("--callgrind-out-file={}", out.display()),
    ];
    if drive.workers == 0 {
        // The number of polls while connecting depends on time. (callgrind only collects in one
        // thread.)
        options.push("--toggle-collect=*both*counted*".into());
    } else {
        // Otherwise a spinning thread would keep the others waiting.
        options.push("--fair-sched=yes".into());
    }
    run("valgrind", &options, drive)?;
    let text = std::fs::read_to_string(&out).context("callgrind's profile")?;
    // The file is no longer needed; a leftover in the temporary folder is harmless.
    let _ = std::fs::remove_file(&out);
    Ok(count(&text, &lock_addresses()?))
}

/// Addresses at which this program locks or unlocks a parking_lot mutex.
fn lock_addresses() -> Result<HashSet<u64>> {
    let program = std::env::current_exe().context("finding this program")?;
    let output = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn"])
        .arg(program)
        .output()
        .context("starting objdump: is it installed?")?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(lock_address).collect())
}

fn lock_address(line: &str) -> Option<u64> {
    let (address, code) = line.split_once(':')?;
    let operands = code.trim().strip_prefix("lock cmpxchg ")?.trim();
    let register = operands.split(',').next()?;
    let is_byte = BYTES.split(' ').any(|byte| byte == register);
    is_byte.then(|| u64::from_str_radix(address.trim(), 16).ok()).flatten()
}

/// Parses a profile: lines of a function's own cost, and calls, whose cost belongs to another
/// function.
fn count(text: &str, locks: &HashSet<u64>) -> Counts {
    let (mut counts, mut names) = (Counts::default(), HashMap::new());
    let (mut simulated, mut callee, mut is_call, mut address) = (false, String::new(), false, 0u64);
    let mut ours = false;
    let mut objects = HashMap::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            simulated = named(name, &mut names).contains("::sim::");
        } else if let Some(name) = line.strip_prefix("cfn=") {
            callee = named(name, &mut names);
        } else if let Some(name) = line.strip_prefix("ob=") {
            ours = named(name, &mut objects).ends_with("weft-bench");
        } else if let Some(name) = line.strip_prefix("cob=") {
            named(name, &mut objects);
        } else if let Some(calls) = line.strip_prefix("calls=") {
            let calls: f64 = calls.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0);
            if !simulated {
                let is = |names: &[&str]| names.iter().any(|name| callee.trim_end_matches("'2") == *name);
                counts.allocations += if is(&ALLOCATORS) { calls } else { 0.0 };
                counts.locks += if is(&LOCKS) { calls } else { 0.0 };
            }
            is_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            let mut words = line.split(' ');
            address = position(words.next().unwrap_or_default(), address);
            let cost: f64 = words.nth(1).and_then(|n| n.parse().ok()).unwrap_or(0.0);
            if !std::mem::take(&mut is_call) && !simulated {
                counts.instructions += cost;
                // Once to lock, once to unlock.
                counts.locks += if ours && locks.contains(&address) { cost / 2.0 } else { 0.0 };
            }
        }
    }
    counts
}

/// "(7) name" defines "(7)" for later lines.
fn named(text: &str, names: &mut HashMap<String, String>) -> String {
    match text.split_once(' ') {
        Some((id, name)) => {
            names.insert(id.to_owned(), name.to_owned());
            name.to_owned()
        }
        None => names.get(text).cloned().unwrap_or_default(),
    }
}

/// "0x10", "+3", "-4", or "*" for the same again.
fn position(text: &str, last: u64) -> u64 {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).unwrap_or(0),
        None => text.parse().unwrap_or(0),
    };
    match text.as_bytes().first() {
        Some(b'+') => last + number(&text[1..]),
        Some(b'-') => last.saturating_sub(number(&text[1..])),
        Some(b'*') | None => last,
        _ => number(text),
    }
}

/// System calls of a drive, by strace.
pub fn system_calls(drive: &Drive) -> Result<f64> {
    let out = scratch("strace");
    let options = ["-f".to_owned(), "-c".into(), "-o".into(), out.display().to_string()];
    run("strace", &options, drive)?;
    let text = std::fs::read_to_string(&out).context("strace's table")?;
    // For the same reason as above.
    let _ = std::fs::remove_file(&out);
    let total = text.lines().rev().find(|line| line.trim_end().ends_with("total"));
    let calls = total.and_then(|line| line.split_whitespace().nth(3)).and_then(|n| n.parse().ok());
    calls.context("strace's table has no total")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "positions: instr line\nevents: Ir\n\nob=(1) /x/weft-bench\nfl=(1) a.rs\n\
        fn=(1) weft::rail::post\n0x100 5 30\n+4 6 8\ncob=(2) /lib/libc.so\ncfn=(2) malloc\n\
        calls=3 0x0\n* 6 900\nfn=(3) weft::fabric::sim::endpoint::rma\n0x200 1 500\ncfn=(2)\n\
        calls=5 0x0\n+4 2 70\nob=(2)\nfn=(2)\n0x104 0 60\n";

    #[test]
    fn profile_is_parsed() {
        let want = Counts { instructions: 98.0, allocations: 3.0, locks: 4.0 };
        assert_eq!(count(PROFILE, &HashSet::from([0x104])), want);
    }

    #[test]
    fn locks_are_found_by_their_instruction() {
        assert_eq!(lock_address("  1f40a:\tlock cmpxchg %cl,0x10(%rbx)"), Some(0x1f40a));
        assert_eq!(lock_address("  1f40a:\tlock cmpxchg %rcx,0x10(%rbx)"), None);
        assert_eq!(lock_address("  1f40a:\tcmp %cl,0x10(%rbx)"), None);
    }
}
