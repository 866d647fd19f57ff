//! The ranges of subordinate ids of this machine, as `/etc/subuid` has them; see [`smtt_model::subordinate`].

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use nix::unistd::User;
use smtt_model::subordinate::{LeftOut, SubordinateIds};

/// The file of the ranges.
pub const FILE: &str = "/etc/subuid";
/// Bytes of the file that are read. A line has some 30.
const BYTES_MAX: u64 = 1 << 20;

/// The ranges at this moment, for all threads that share something between users.
#[derive(Debug, Default)]
pub struct ShareOwners(RwLock<Arc<SubordinateIds>>);

impl ShareOwners {
    /// The user whose share processes of this user use.
    #[must_use]
    pub fn share_of(&self, uid: u32) -> u32 {
        let ids = self.0.read().unwrap_or_else(PoisonError::into_inner);
        ids.share_of(uid)
    }

    /// Replaces the ranges.
    pub fn set(&self, ids: Arc<SubordinateIds>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = ids;
    }
}

/// What changes when the file is replaced or rewritten.
type Stamp = (u64, u64, u64, i64, i64);

fn stamp(metadata: &Metadata) -> Stamp {
    (
        metadata.dev(),
        metadata.ino(),
        metadata.len(),
        metadata.mtime(),
        metadata.mtime_nsec(),
    )
}

/// Reads the file when it has changed. It asks the users database for names, which may take its time.
#[derive(Debug)]
pub struct Follower {
    path: PathBuf,
    /// The file at the last reading; `None` inside where it was absent.
    seen: Option<Option<Stamp>>,
}

impl Follower {
    /// Follows a file, which may be absent.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            seen: None,
        }
    }

    /// The ranges, where the file has changed since the last call. A file that cannot be read changes nothing.
    pub fn changed(&mut self) -> Option<SubordinateIds> {
        let now = fs::metadata(&self.path).ok().map(|of| stamp(&of));
        if self.seen == Some(now) {
            return None;
        }
        self.seen = Some(now);
        let path = self.path.display();
        if now.is_none() {
            return Some(SubordinateIds::default());
        }
        match self.read() {
            Ok((ids, left_out)) => {
                if let Some((line, why)) = left_out.first {
                    tracing::warn!(
                        "{path}: {} lines are left out, the first is line {line}: {why}; their ids count as users of their own",
                        left_out.lines
                    );
                }
                Some(ids)
            }
            Err(error) => {
                tracing::warn!(
                    "{path} cannot be read, so that subordinate ids count as before: {error}"
                );
                None
            }
        }
    }

    fn read(&self) -> io::Result<(SubordinateIds, LeftOut)> {
        let mut bytes = Vec::new();
        let mut file = File::open(&self.path)?.take(BYTES_MAX + 1);
        file.read_to_end(&mut bytes)?;
        if bytes.len() as u64 > BYTES_MAX {
            return Err(io::Error::other(format!(
                "it has more than {BYTES_MAX} bytes"
            )));
        }
        let number = |name: &str| {
            let user = User::from_name(name).ok().flatten();
            user.map(|user| user.uid.as_raw())
        };
        Ok(SubordinateIds::parse(
            &String::from_utf8_lossy(&bytes),
            number,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read_when_it_has_changed() -> io::Result<()> {
        let scratch = tempfile::tempdir()?;
        let path = scratch.path().join("subuid");
        let mut follower = Follower::new(&path);
        assert_eq!(follower.changed(), Some(SubordinateIds::default()));
        assert_eq!(follower.changed(), None);
        fs::write(&path, "root:100:10\n77:200:10\nno such user:300:10\n")?;
        let ids = follower.changed().expect("it has changed");
        assert_eq!([105, 205, 305].map(|uid| ids.share_of(uid)), [0, 77, 305]);
        assert_eq!(follower.changed(), None);
        fs::write(&path, "77:200:20\n".repeat(1 << 17))?;
        assert_eq!(follower.changed(), None, "it is too large");
        fs::remove_file(&path)?;
        assert_eq!(follower.changed(), Some(SubordinateIds::default()));
        let owners = ShareOwners::default();
        assert_eq!(owners.share_of(105), 105);
        owners.set(Arc::new(ids));
        assert_eq!(owners.share_of(105), 0);
        Ok(())
    }
}
