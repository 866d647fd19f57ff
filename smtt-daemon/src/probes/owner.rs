//! The owner of a process that the daemon makes an executor: its user and its cgroup, as the kernel reports them; and
//! whose share an owner uses.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use aya::Ebpf;
use aya::maps::lpm_trie::{Key, LpmTrie};
use smtt_common::settings::Owner;
use smtt_config::ProbeSettings;
use smtt_machine::proc::Handle;
use smtt_model::sort::small::Gather as _;
use smtt_model::subordinate::{Block, SubordinateIds};

use crate::subordinate::ShareOwners;

/// The ranges of subordinate ids, here and in the kernel side's table.
#[derive(Debug, Default)]
pub(super) struct SharesOfOwners {
    /// The ranges, for the daemon's own limits.
    pub owners: Arc<ShareOwners>,
    /// Rows of the kernel side's table.
    rows: BTreeSet<Block>,
}

impl SharesOfOwners {
    /// Replaces the ranges. Only rows that differ are changed: executors are adopted meanwhile. Living executors keep the
    /// share that they began with.
    pub fn set(&mut self, ebpf: &mut Ebpf, ids: &Arc<SubordinateIds>) -> anyhow::Result<()> {
        self.owners.set(Arc::clone(ids));
        let table = ebpf.map_mut("SHARE_OWNERS");
        let table = table.context("the object lacks the table SHARE_OWNERS")?;
        let mut table = LpmTrie::<_, u32, u32>::try_from(table)?;
        let key = |block: &Block| Key::new(block.bits, block.first.to_be());
        let wanted: BTreeSet<Block> = ids.blocks().into_iter().gather();
        // First the removals: the table may be full.
        for block in self.rows.difference(&wanted) {
            table
                .remove(&key(block))
                .context("a range of subordinate ids cannot be removed")?;
        }
        self.rows.retain(|block| wanted.contains(block));
        for block in wanted {
            if !self.rows.contains(&block) {
                table
                    .insert(&key(&block), block.owner, 0)
                    .context("a range of subordinate ids cannot be added")?;
                self.rows.insert(block);
            }
        }
        Ok(())
    }
}

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
        share: 0,
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

/// Rows of the kernel side's tables of executors. One user may hold a part of them only, and one cgroup a part of that: a
/// machine with one user and one cgroup can have all executors of the configuration.
pub(super) fn executor_rows(wanted: &ProbeSettings) -> u32 {
    let share = u64::from(wanted.settings.user_share_permille).clamp(1, 1000);
    u32::try_from((u64::from(wanted.executors) * 1_000_000).div_ceil(share * share))
        .unwrap_or(u32::MAX)
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
