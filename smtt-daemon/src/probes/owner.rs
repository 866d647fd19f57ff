//! The owner of a process that the daemon makes an executor: its user and its cgroup, as the kernel reports them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use anyhow::Context as _;
use smtt_common::settings::Owner;
use smtt_machine::proc::Handle;

/// The owner of a process.
pub fn of(process: &Handle) -> anyhow::Result<Owner> {
    let status = process.read("status").context("it has ended")?;
    let uid = real_user(&status).context("it shows no user")?;
    let cgroup = process
        .read("cgroup")
        .ok()
        .and_then(|text| cgroup_id(&text))
        .unwrap_or(0);
    Ok(Owner {
        cgroup,
        uid,
        reserved: 0,
    })
}

/// The real user in the text of `/proc/PID/status`, the first of the four ids.
fn real_user(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().next()?.parse().ok()
}

/// Id of the cgroup in the unified hierarchy, from the text of `/proc/PID/cgroup`: the inode of its folder.
fn cgroup_id(text: &str) -> Option<u64> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        .into_iter()
        .filter(|root| PathBuf::from(root).join("cgroup.controllers").exists())
        .find_map(|root| fs::metadata(PathBuf::from(root).join(path)).ok())
        .map(|folder| folder.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_user_is_the_first() {
        let status = "Name:\tjava\nUmask:\t0022\nUid:\t1000\t0\t0\t0\nGid:\t7\t7\t7\t7\n";
        assert_eq!(real_user(status), Some(1000));
        assert_eq!(real_user("Name:\tjava\n"), None);
    }

    #[test]
    fn only_a_folder_of_the_unified_hierarchy_has_an_id() {
        assert_eq!(cgroup_id("3:cpu:/a\n0::/no/such/cgroup\n"), None);
        assert_eq!(cgroup_id("3:cpu:/a\n"), None);
    }
}
