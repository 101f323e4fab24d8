//! How much memory the system and the control groups of this process still have: a process that
//! takes more is ended by the kernel's OOM killer instead of getting an error.

use std::path::{Path, PathBuf};

/// Bytes left, and the limit that they are left of.
pub struct Budget {
    pub bytes: u64,
    pub owner: &'static str,
}

/// `None` where no limit is known.
pub fn budget() -> Option<Budget> {
    let system = available().map(|bytes| Budget { bytes, owner: "the system" });
    let group = groups().iter().filter_map(Group::left).min();
    let group = group.map(|bytes| Budget { bytes, owner: "this process's control group" });
    [system, group].into_iter().flatten().min_by_key(|budget| budget.bytes)
}

/// The value of a "name value ..." line in a file, whatever its unit.
fn value(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix([' ', ':']))?;
    line.split_whitespace().next()?.parse().ok()
}

fn available() -> Option<u64> {
    let text = crate::descriptor::read_to_string("/proc/meminfo").ok()?;
    value(&text, "MemAvailable")?.checked_mul(1024)
}

/// A control group that limits memory, and the names of the figures in its version.
struct Group {
    at: PathBuf,
    limit: &'static str,
    used: &'static str,
    /// Figures of the page cache, which shrinks under pressure.
    cache: [&'static str; 2],
}

impl Group {
    fn left(&self) -> Option<u64> {
        let read = |name: &str| crate::descriptor::read_to_string(self.at.join(name)).ok();
        let limit: u64 = read(self.limit)?.trim().parse().ok()?;
        let used: u64 = read(self.used)?.trim().parse().ok()?;
        let figures = read("memory.stat").unwrap_or_default();
        let cache: u64 = self.cache.iter().filter_map(|name| value(&figures, name)).sum();
        Some(limit.saturating_sub(used.saturating_sub(cache)))
    }
}

/// The groups of this process, each with its ancestors.
fn groups() -> Vec<Group> {
    let lines = crate::descriptor::read_to_string("/proc/self/cgroup").unwrap_or_default();
    lines.lines().flat_map(above).collect()
}

/// The groups in a line "number:controllers:path".
fn above(line: &str) -> Vec<Group> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { return Vec::new() };
    let second = controllers.is_empty();
    if !second && !controllers.split(',').any(|name| name == "memory") {
        return Vec::new();
    }
    let root = Path::new(if second { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/memory" });
    let group = |path: &Path| match second {
        true => Group {
            at: root.join(path),
            limit: "memory.max",
            used: "memory.current",
            cache: ["inactive_file", "active_file"],
        },
        false => Group {
            at: root.join(path),
            limit: "memory.limit_in_bytes",
            used: "memory.usage_in_bytes",
            cache: ["total_inactive_file", "total_active_file"],
        },
    };
    // In a container, the path may be the host's: the ancestors exist all the same.
    Path::new(path.trim_start_matches('/')).ancestors().map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_figures_match_by_whole_name() {
        let text = "MemTotal:  10 kB\nMemAvailable:   7 kB\ninactive_file 5\n";
        assert_eq!(value(text, "MemAvailable"), Some(7));
        assert_eq!(
            (value(text, "inactive_file"), value(text, "file"), value(text, "Mem")),
            (Some(5), None, None)
        );
    }

    #[test]
    fn memory_budget_includes_every_ancestor_group() {
        let paths = |line: &str| above(line).into_iter().map(|group| group.at).collect::<Vec<_>>();
        let second = ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup/"].map(PathBuf::from);
        assert_eq!(paths("0::/a/b"), second);
        assert_eq!(paths("5:cpu,memory:/"), [PathBuf::from("/sys/fs/cgroup/memory/")]);
        assert!(paths("3:cpuset:/a").is_empty() && paths("nonsense").is_empty());
    }

    #[test]
    fn memory_budget_of_this_machine_is_plausible() {
        assert!(budget().is_some_and(|budget| budget.bytes > 0));
    }
}
