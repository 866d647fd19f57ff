//! The CPU of this machine, from its files.

use std::fs;
use std::path::Path;

use smtt_model::cpu::{CpuId, Files};

/// The machine whose root folder this is.
struct Root<'a>(&'a Path);

impl Files for Root<'_> {
    fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.0.join(path)).ok()
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.0.join(folder)).into_iter().flatten();
        entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }
}

/// The CPU of the machine below `root` (`/`).
#[must_use]
pub fn of_this_machine(root: &Path) -> CpuId {
    CpuId::read(&Root(root))
}

/// Parses a list that the kernel writes as `0-3,8`; `None` where the text is malformed or names more CPUs or nodes
/// than a machine can have.
#[must_use]
pub fn list(text: &str) -> Option<Vec<u32>> {
    const MOST: u32 = 1 << 16;
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MOST {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        assert_eq!(list("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(list("\n"), Some(Vec::new()));
        assert_eq!(list("0-4294967295"), None);
        assert_eq!(list("x"), None);
    }

    #[test]
    fn this_machine_has_a_cpu() {
        let cpu = of_this_machine(Path::new("/"));
        assert!(!cpu.cpu.to_string().is_empty());
        assert!(
            cpu.pmus.iter().any(|pmu| pmu.present == Some(true)),
            "{cpu:?}"
        );
    }
}
