//! The processes of a measurement: this program again, with its task as a JSON argument. It answers
//! in lines of JSON, and accepts further lines of JSON.

use crate::faults::{far, overload, rails, reconnect};
use crate::load::{idle, page};
use crate::{pair, sim, wire};
use anyhow::{anyhow, bail, Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The task of such a process.
#[derive(Serialize, Deserialize)]
pub enum Part {
    Pair(pair::Session),
    PairTarget(pair::Spec),
    Simulated(sim::Drive),
    Idle(idle::Spec),
    Page(page::Spec),
    PageTarget(page::Spec),
    Rails(rails::Spec),
    Overload(overload::Spec),
    Reconnect(reconnect::Spec),
    Far(far::Spec),
    Wire(wire::Spec),
}

impl Part {
    /// Runs such a process. Its last line gives the reason of a failure.
    pub fn run(text: &str) -> Result<()> {
        // No process is left behind when the watching one ends. SAFETY: the system call takes no
        // pointers.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let part: Part = serde_json::from_str(text).context("what to do")?;
        part.play().inspect_err(|error| {
            // Its reader may have ended; stderr has the line, too.
            let _ = write_line(&mut std::io::stdout(), &Err::<(), String>(format!("{error:#}")));
        })
    }

    fn play(self) -> Result<()> {
        match self {
            Part::Pair(session) => pair::initiate(&session),
            Part::PairTarget(spec) => pair::serve(spec),
            Part::Simulated(drive) => say(&sim::run(&drive)?),
            Part::Idle(spec) => say(&idle::run(&spec)?),
            Part::Page(spec) => say(&page::run(&spec)?),
            Part::PageTarget(spec) => page::serve(&spec),
            Part::Rails(spec) => say(&rails::run(&spec)?),
            Part::Overload(spec) => say(&overload::run(&spec)?),
            Part::Reconnect(spec) => say(&reconnect::run(&spec)?),
            Part::Far(spec) => far::run(&spec),
            Part::Wire(spec) => say(&wire::run(&spec)?),
        }
    }

    /// The arguments that start this task.
    pub fn words(&self) -> Result<[String; 3]> {
        let program = std::env::current_exe().context("finding this program")?;
        Ok([program.to_string_lossy().into_owned(), "part".into(), serde_json::to_string(self)?])
    }

    pub fn command(&self) -> Result<Command> {
        let [program, rest @ ..] = self.words()?;
        let mut command = Command::new(program);
        command.args(rest);
        Ok(command)
    }

    /// Measures in a separate process.
    pub fn measure<T: DeserializeOwned>(&self) -> Result<T> {
        let mut process = Process::start(&mut self.command()?)?;
        let measured = process.lines.hear()?;
        process.end()?;
        Ok(measured)
    }
}

/// A longer line is not ours. (A descriptor of many ranges and rails is long.)
const LINE_MAX: u64 = 64 << 20;

/// A line with a result, or with the reason of a failure.
pub fn write_line(to: &mut impl Write, what: &impl Serialize) -> Result<()> {
    Ok(to.write_all((serde_json::to_string(what)? + "\n").as_bytes())?)
}

/// A line; `None` at the end.
pub fn read_line(from: &mut impl BufRead) -> Result<Option<String>> {
    let mut line = String::new();
    let len = from.take(LINE_MAX).read_line(&mut line)?;
    Ok((len > 0).then_some(line))
}

/// The contents of a line: a result, or the other process's reason of a failure.
pub fn said<T: DeserializeOwned>(line: &str) -> Result<Result<T, String>> {
    serde_json::from_str(line).context("what the other process says")
}

pub fn answer<T: DeserializeOwned>(line: &str) -> Result<T> {
    said(line)?.map_err(|error| anyhow!(error))
}

const ENDED: &str = "the other process ended without a word";

/// Writes a line for the process that started this one.
pub fn say(what: &impl Serialize) -> Result<()> {
    write_line(&mut std::io::stdout().lock(), &Ok::<_, String>(what))
}

/// Reads a line from the process that started this one.
pub fn hear<T: DeserializeOwned>() -> Result<T> {
    answer(&read_line(&mut std::io::stdin().lock())?.context(ENDED)?)
}

/// Lines to and from another process.
pub struct Lines<R: Read, W> {
    from: BufReader<R>,
    /// `None`: no further line can be sent.
    to: Option<W>,
}

impl<R: Read, W: Write> Lines<R, W> {
    pub fn new(from: R, to: W) -> Lines<R, W> {
        Lines { from: BufReader::new(from), to: Some(to) }
    }

    pub fn say(&mut self, what: &impl Serialize) -> Result<()> {
        self.reply(&Ok(what))
    }

    /// Sends the result, or the reason of the failure.
    pub fn reply(&mut self, what: &Result<impl Serialize, String>) -> Result<()> {
        write_line(self.to.as_mut().context("nothing more is to be said")?, what)
            .context("the other side went away")
    }

    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<T> {
        self.hear_or_end()?.context(ENDED)
    }

    /// `None` when the other side has ended.
    pub fn hear_or_end<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        read_line(&mut self.from)?.map(|line| answer(&line)).transpose()
    }

    pub fn line(&mut self) -> Result<String> {
        read_line(&mut self.from)?.context(ENDED)
    }
}

/// One of these processes, which ends when this is dropped.
pub struct Process {
    pub child: Child,
    pub lines: Lines<ChildStdout, ChildStdin>,
}

impl Process {
    pub fn start(command: &mut Command) -> Result<Process> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting a process")?;
        let (output, input) = child.stdout.take().zip(child.stdin.take()).context("its output and input")?;
        Ok(Process { child, lines: Lines::new(output, input) })
    }

    /// Whether it ended successfully.
    pub fn is_over(&mut self) -> Result<bool> {
        match self.child.try_wait()? {
            Some(status) if !status.success() => bail!("the other process ended with {status}"),
            status => Ok(status.is_some()),
        }
    }

    /// The error if it has not ended, or the reason that it printed.
    pub fn lives(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            self.lines.hear::<serde_json::Value>()?;
            bail!("the other process has ended");
        }
        Ok(())
    }

    /// Waits for its end.
    pub fn end(mut self) -> Result<()> {
        self.lines.to = None;
        self.child.wait()?;
        self.is_over().map(drop)
    }

    pub fn signal(&self, signal: i32) -> Result<()> {
        // SAFETY: the system call takes no pointers; the child is ours and not waited for yet.
        if unsafe { libc::kill(self.child.id() as i32, signal) } != 0 {
            return Err(std::io::Error::last_os_error()).context("a signal for the other process");
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already; otherwise nothing else can be done.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
