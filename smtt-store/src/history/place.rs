//! Where an application's tables are: `<store>/<application id>[_<attempt>]/<table>.parquet`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

/// Longest application id or attempt, in bytes.
const LONGEST: usize = 160;

/// Whether an application id or an attempt may be part of a path: letters, digits, `.`, `_` and `-`, no leading dot.
#[must_use]
pub fn is_safe(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= LONGEST
        && !id.starts_with('.')
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// Name of an application's folder, or of its event log; `None` where an id could leave the store.
#[must_use]
pub fn name(application: &str, attempt: Option<&str>) -> Option<String> {
    if !is_safe(application) || !attempt.is_none_or(is_safe) {
        return None;
    }
    Some(match attempt {
        Some(attempt) => format!("{application}_{attempt}"),
        None => application.to_owned(),
    })
}

/// Folder of an application; `None` where an id could leave the store.
#[must_use]
pub fn folder(store: &Path, application: &str, attempt: Option<&str>) -> Option<PathBuf> {
    Some(store.join(name(application, attempt)?))
}

/// Path of a table in an application's folder.
#[must_use]
pub fn table(folder: &Path, table: &str) -> PathBuf {
    folder.join(format!("{table}.parquet"))
}

/// Gives a finished folder its name. A folder of that name is replaced in one step: a reader sees the old tables or the
/// new ones.
///
/// # Errors
/// When neither a rename nor an exchange is possible.
pub fn publish(finished: &Path, target: &Path) -> io::Result<()> {
    // The owner of a temporary folder alone may read it; readers of a store are others too.
    fs::set_permissions(finished, fs::Permissions::from_mode(0o750))?;
    match fs::rename(finished, target) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
            renameat2(
                AT_FDCWD,
                finished,
                AT_FDCWD,
                target,
                RenameFlags::RENAME_EXCHANGE,
            )?;
            fs::remove_dir_all(finished)?;
        }
        Err(error) => return Err(error),
    }
    match target.parent() {
        Some(store) => File::open(store)?.sync_all(),
        None => Ok(()),
    }
}
