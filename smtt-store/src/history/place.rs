//! Where an application's tables are: `<store>/<application id>[_<attempt>]/<table>.parquet`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
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

/// The store's lock: one process at a time moves folders aside or removes them.
///
/// # Errors
/// When the lock's file cannot be made, or the file system has no locks.
pub fn lock(store: &Path) -> io::Result<File> {
    let path = store.join(".lock");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o640)
        .open(&path);
    file.and_then(|file| file.lock().map(|()| file))
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Gives a finished folder its name. Where a folder has that name already, it is replaced in one step (a reader sees the
/// old tables or the new ones), or with `replaces` false it stays and the error is [`io::ErrorKind::AlreadyExists`].
///
/// # Errors
/// When the name is taken, or no way to rename works. The error names both paths.
pub fn publish(finished: &Path, target: &Path, replaces: bool) -> io::Result<()> {
    publish_with(finished, target, replaces, |from, to| {
        let exchange = RenameFlags::RENAME_EXCHANGE;
        Ok(renameat2(AT_FDCWD, from, AT_FDCWD, to, exchange)?)
    })
}

fn publish_with(
    finished: &Path,
    target: &Path,
    replaces: bool,
    exchange: impl FnOnce(&Path, &Path) -> io::Result<()>,
) -> io::Result<()> {
    // The owner of a temporary folder alone may read it; readers of a store are others too.
    fs::set_permissions(finished, fs::Permissions::from_mode(0o750))?;
    match fs::rename(finished, target) {
        Ok(()) => {}
        Err(error) if is_taken(&error) => {
            if !replaces {
                return Err(named(
                    io::ErrorKind::AlreadyExists,
                    finished,
                    target,
                    &error,
                ));
            }
            match exchange(finished, target) {
                Ok(()) => fs::remove_dir_all(finished)?,
                Err(error) if cannot_exchange(&error) => replace(finished, target)
                    .map_err(|error| named(error.kind(), finished, target, &error))?,
                Err(error) => return Err(named(error.kind(), finished, target, &error)),
            }
        }
        Err(error) => return Err(named(error.kind(), finished, target, &error)),
    }
    match target.parent() {
        Some(store) => File::open(store)?.sync_all(),
        None => Ok(()),
    }
}

/// Whether a rename failed because the target is a folder with files: ENOTEMPTY, on XFS EEXIST.
fn is_taken(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
    )
}

/// Whether the file system exchanges no names: NFS and FUSE answer EINVAL.
fn cannot_exchange(error: &io::Error) -> bool {
    [Errno::EINVAL, Errno::ENOSYS, Errno::EOPNOTSUPP]
        .iter()
        .any(|errno| error.raw_os_error() == Some(*errno as i32))
}

/// Replaces in two steps, under the store's lock. A reader between them finds no tables.
fn replace(finished: &Path, target: &Path) -> io::Result<()> {
    let _lock = lock(target.parent().unwrap_or(target))?;
    let mut aside = finished.as_os_str().to_owned();
    aside.push(".replaced.inprogress");
    let aside = PathBuf::from(aside);
    match fs::rename(target, &aside) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if let Err(error) = fs::rename(finished, target) {
        // Where this fails too, the first error is the one to report.
        let _ = fs::rename(&aside, target);
        return Err(error);
    }
    match fs::remove_dir_all(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn named(kind: io::ErrorKind, finished: &Path, target: &Path, error: &io::Error) -> io::Error {
    let (finished, target) = (finished.display(), target.display());
    io::Error::new(
        kind,
        format!("cannot rename {finished} to {target}: {error}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_with(path: &Path, text: &str) {
        fs::create_dir(path).expect("makes a folder");
        fs::write(path.join("file"), text).expect("writes");
    }

    #[test]
    fn a_file_system_without_exchange_replaces_under_the_lock() {
        let store = tempfile::tempdir().expect("makes a folder");
        let (finished, target) = (store.path().join(".new"), store.path().join("app-1"));
        folder_with(&target, "old");
        folder_with(&finished, "new");
        let refused = |_: &Path, _: &Path| Err(Errno::EINVAL.into());
        publish_with(&finished, &target, true, refused).expect("replaces");
        assert_eq!(fs::read(target.join("file")).expect("reads"), b"new");
        let names = fs::read_dir(store.path()).expect("lists").flatten();
        let mut names: Vec<_> = names.map(|it| it.file_name()).collect();
        names.sort();
        assert_eq!(names, [".lock", "app-1"]);
    }

    #[test]
    fn errors_name_both_paths_and_xfs_s_error_is_known() {
        assert!(is_taken(&Errno::EEXIST.into()));
        assert!(is_taken(&Errno::ENOTEMPTY.into()));
        let store = tempfile::tempdir().expect("makes a folder");
        let (finished, target) = (store.path().join(".new"), store.path().join("app-1"));
        folder_with(&finished, "new");
        folder_with(&target, "old");
        let refused = |_: &Path, _: &Path| Err(Errno::EACCES.into());
        let error = publish_with(&finished, &target, true, refused).expect_err("fails");
        let text = error.to_string();
        assert!(
            text.contains("/.new to /") && text.contains("/app-1: "),
            "{text}"
        );
    }

    #[test]
    fn a_folder_is_kept_where_nothing_may_be_replaced() {
        let store = tempfile::tempdir().expect("makes a folder");
        let (finished, target) = (store.path().join(".new"), store.path().join("app-1"));
        folder_with(&target, "old");
        folder_with(&finished, "new");
        let error = publish(&finished, &target, false).expect_err("is taken");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(target.join("file")).expect("reads"), b"old");
    }
}
