//! `weft-bench top`, beside processes that offer their metrics.

use serde_json::Value;
use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Below /tmp, since a socket's path has at most 107 bytes.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(std::env::temp_dir().join(format!("weft-top-{name}-{}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A load between two processes that offer metrics; it is ended when this is dropped.
struct Load(Child);

impl Load {
    fn start(folder: &Path) -> Load {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft-bench"));
        command.args(["loopback", "--provider", "tcp", "--rail-names", "lo", "--seconds", "600"]);
        Load(command.env("WEFT_METRICS_SOCKET", folder).stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn top(folder: &Path, options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft-bench"));
    command
        .args(["top", "--once", "--interval", "0.3"])
        .arg("--folder")
        .arg(folder)
        .args(options)
        .output()
        .unwrap()
}

/// Looks until something is to be seen.
fn wait_for<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "{what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// The process that writes to a peer, as JSON.
fn writer(folder: &Path) -> Option<Value> {
    let output = top(folder, &["--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let processes = all["processes"].as_array().unwrap();
    let rate = |process: &Value| process["peers"][0]["lanes"][0]["write_bytes_per_second"].as_f64();
    processes.iter().find(|process| rate(process) > Some(0.0)).cloned()
}

fn sockets(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).map_or_else(|_| Vec::new(), |all| all.map(|entry| entry.unwrap().path()).collect())
}

#[test]
fn top_shows_a_running_transfer_and_forgets_killed_processes() {
    let folder = Folder::new("transfer");
    let empty = top(&folder.0, &[]);
    assert!(String::from_utf8_lossy(&empty.stdout).contains("no process offers metrics"));
    let load = Load::start(&folder.0);
    let process = wait_for("no process writes", || writer(&folder.0));
    assert_eq!(process["program"], "weft-bench");
    let (peer, lane) = (&process["peers"][0], &process["peers"][0]["lanes"][0]);
    assert_eq!((&peer["fabric"], &peer["up"]), (&"tcp".into(), &true.into()));
    assert_eq!((&lane["name"], &lane["state"]), (&"lo".into(), &"up".into()));
    assert!(lane["sent_bytes_per_second"].as_f64() > Some(0.0), "{lane}");
    assert!(
        process["write_bytes_per_second"].as_f64() > Some(0.0)
            && process["queues"][0]["depth"].as_f64() > Some(0.0)
    );
    let shown = String::from_utf8(top(&folder.0, &[]).stdout).unwrap();
    assert!(shown.contains("weft-bench (") && shown.contains(" lo "), "{shown}");
    drop(load);
    wait_for("killed processes are still shown", || {
        top(&folder.0, &[]);
        sockets(&folder.0).is_empty().then_some(())
    });
}

/// The system's credentials of the calling thread alone, which is as good as another user.
fn become_nobody() {
    // SAFETY: the calls change the numbers of this thread.
    let changed = unsafe {
        libc::syscall(libc::SYS_setresgid, -1, 65534, -1) == 0
            && libc::syscall(libc::SYS_setresuid, -1, 65534, -1) == 0
    };
    assert!(changed);
}

#[test]
fn metrics_are_refused_to_another_user() {
    // SAFETY: the call has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return; // Only root can be another one.
    }
    let folder = Folder::new("user");
    let _load = Load::start(&folder.0);
    let path = wait_for("no socket", || {
        sockets(&folder.0).into_iter().find(|path| path.extension().is_some_and(|e| e == "sock"))
    });
    let said = |path: PathBuf| {
        let mut text = String::new();
        let read = UnixStream::connect(path).and_then(|mut socket| socket.read_to_string(&mut text));
        read.map(|_| text)
    };
    let as_nobody = |path: PathBuf| {
        thread::spawn(move || {
            become_nobody();
            said(path)
        })
        .join()
        .unwrap()
    };
    assert!(said(path.clone()).unwrap().contains("weft_peers"));
    assert_eq!(as_nobody(path.clone()).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    // Even where somebody opens the folder to all.
    fs::set_permissions(&folder.0, Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    assert_eq!(as_nobody(path).unwrap(), "");
}
