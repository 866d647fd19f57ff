//! Which segments go where the folder is full: the oldest ones of the share with the most.
//!
//! The names of the oldest segments are read when they are needed, a share at a time, and kept for a few shares: the
//! memory for them has a bound in bytes, whatever the number of users and segments.

use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fs;
use std::io;
use std::path::Path;

use super::{
    FinishedSegment, Folder, LEVELS, TraceEntry, Usage, User, below, folder_space, user_above,
    user_of, visit_user,
};

/// Oldest segments of a share that are known by name; the share is read again after so many removals.
pub(super) const OLDEST: usize = 1024;
/// Most bytes of the names of a share's segments.
const SHARE_BYTES: usize = 512 << 10;
/// Shares whose oldest segments are known by name.
const SHARES: usize = 8;

/// Result of [`Folder::shrink`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shrunk {
    /// Number of removed segments.
    pub removed: u64,
    /// The share that has the most and has only open segments: one of them has to be finished, so that it can go.
    pub finish: Option<Option<u32>>,
}

/// The oldest finished segments of some shares with their disk space, the oldest first; the share that was read last is
/// the first one.
#[derive(Debug, Default)]
pub(super) struct Oldest(VecDeque<(User, VecDeque<(FinishedSegment, u64)>)>);

impl Oldest {
    /// Takes the oldest segment that is known of a share.
    fn next(&mut self, share: User) -> Option<(FinishedSegment, u64)> {
        let known = self.0.iter_mut().find(|(known, _)| *known == share);
        known?.1.pop_front()
    }

    fn set(&mut self, share: User, oldest: VecDeque<(FinishedSegment, u64)>) {
        self.0.retain(|(known, _)| *known != share);
        self.0.truncate(SHARES - 1);
        self.0.push_front((share, oldest));
    }

    /// Bytes of all names.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        let all = self.0.iter().flat_map(|(_, oldest)| oldest);
        all.map(|(found, _)| name_bytes(found)).sum()
    }
}

fn name_bytes(found: &FinishedSegment) -> usize {
    size_of::<(FinishedSegment, u64)>() + found.name.capacity() + found.path.capacity()
}

impl Folder {
    /// Removes finished segments until they are within both limits: the oldest ones of the share with the most bytes, or
    /// with the most files where these are too many. `open` has the bytes of each user's unfinished segments, which count
    /// for the user's share. `share_of` names the user whose share a user uses.
    ///
    /// # Errors
    /// When the folder cannot be read or a file cannot be removed.
    pub fn shrink(
        &mut self,
        bytes: u64,
        files: u64,
        open: &BTreeMap<Option<u32>, u64>,
        share_of: impl Fn(u32) -> u32,
    ) -> io::Result<Shrunk> {
        let all_open: u64 = open.values().sum();
        let mut shrunk = Shrunk::default();
        let mut read = None;
        loop {
            let usage = self.usage();
            let by_bytes = usage.bytes.saturating_add(all_open) > bytes;
            if !by_bytes && usage.files <= files {
                break;
            }
            let Some((share, finished)) = self.richest(by_bytes, open, &share_of) else {
                break;
            };
            if finished == 0 {
                shrunk.finish = Some(share);
                break;
            }
            let Some((found, space)) = self.oldest.next(share) else {
                if read.replace(share) == Some(share) {
                    // Others remove files too.
                    break;
                }
                self.read(share, &share_of)?;
                continue;
            };
            let user = user_above(&found.path, LEVELS);
            if user.map(&share_of) != share {
                // The user's share is another one by now.
                continue;
            }
            read = None;
            match fs::remove_file(&found.path) {
                Ok(()) => shrunk.removed += 1,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            let usage = self.users.entry(user).or_default();
            usage.take(space, 1);
            // A folder is removed with its last entry.
            for empty in found.path.ancestors().skip(1).take(LEVELS) {
                let space = folder_space(empty);
                if fs::remove_dir(empty).is_err() {
                    break;
                }
                usage.take(space, 0);
            }
            if usage.files == 0 && !found.path.ancestors().nth(LEVELS).is_some_and(Path::exists) {
                self.users.remove(&user);
            }
        }
        Ok(shrunk)
    }

    /// The share with the most, and its number of finished segments.
    fn richest(
        &self,
        by_bytes: bool,
        open: &BTreeMap<Option<u32>, u64>,
        share_of: &impl Fn(u32) -> u32,
    ) -> Option<(User, u64)> {
        let mut shares: BTreeMap<User, (u64, Usage)> = BTreeMap::new();
        for (user, usage) in &self.users {
            let (_, share) = shares.entry(user.map(share_of)).or_default();
            share.add(usage.bytes, usage.files);
        }
        for (user, bytes) in open.iter().filter(|_| by_bytes) {
            let (open, _) = shares.entry(user.map(share_of)).or_default();
            *open = open.saturating_add(*bytes);
        }
        let most = |open: u64, usage: &Usage| {
            if by_bytes {
                open.saturating_add(usage.bytes)
            } else {
                usage.files
            }
        };
        let with_files = shares
            .iter()
            .filter(|(_, (open, usage))| usage.files > 0 || *open > 0);
        with_files
            .max_by_key(|(_, (open, usage))| most(*open, usage))
            .map(|(share, (_, usage))| (*share, usage.files))
    }

    /// Reads the folders of a share's users: what they take, and the oldest segments.
    fn read(&mut self, share: User, share_of: &impl Fn(u32) -> u32) -> io::Result<()> {
        // The newest of the oldest is on top.
        let mut oldest: BinaryHeap<(FinishedSegment, u64)> = BinaryHeap::new();
        let mut bytes = 0;
        self.users.retain(|user, _| user.map(share_of) != share);
        for folder in below(&self.path, "uid=")? {
            let user = user_of(&folder);
            if user.map(share_of) != share {
                continue;
            }
            let usage = self.users.entry(user).or_default();
            usage.add(folder_space(&folder), 0);
            visit_user(&folder, &mut |seen| match seen {
                TraceEntry::Finished(found, space) => {
                    usage.add(space, 1);
                    bytes += name_bytes(&found);
                    oldest.push((found, space));
                    while oldest.len() > OLDEST || (bytes > SHARE_BYTES && oldest.len() > 1) {
                        bytes -= oldest.pop().map_or(0, |(found, _)| name_bytes(&found));
                    }
                }
                TraceEntry::Folder(space, _) => usage.add(space, 0),
                TraceEntry::Unfinished(_) => {}
            })?;
        }
        self.oldest.set(share, oldest.into_sorted_vec().into());
        Ok(())
    }
}
