//! Paths of an application's tables, `<store>/<application id>[_<attempt>]/<table>.parquet`, and the renames that publish
//! them.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, RenameFlags, renameat2};

/// Longest application id or attempt, in bytes.
const LONGEST: usize = 160;
/// Prefix of the temporary name of a folder that is being replaced in two steps. The folder's name, `-`, and [`DIGITS`]
/// digits follow.
const REPLACED: &str = ".replaced-";
/// Hexadecimal digits at the end of such a name.
const DIGITS: usize = 8;

/// Whether an application id or an attempt may be part of a path: letters, digits, `.`, `_` and `-`, no leading dot.
#[must_use]
pub fn is_safe(id: &str) -> bool {
    id.len() <= LONGEST && has_safe_bytes(id)
}

fn has_safe_bytes(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('.')
        && name
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

/// The store's lock: one process at a time renames or removes folders.
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
        .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
        .open(&path);
    file.and_then(|file| file.lock().map(|()| file))
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Gives a finished folder its name, under the store's lock where the file system has locks. Where a folder has that name
/// already, it is replaced in one step (a reader sees the old tables or the new ones), or with `replaces` false it stays and
/// the error is [`io::ErrorKind::AlreadyExists`].
///
/// The replaced folder is removed. Where that fails, the new tables are published all the same, and the result names the
/// folder that stays.
///
/// # Errors
/// When the name is taken, or no way to rename works. The error names both paths.
pub fn publish(finished: &Path, target: &Path, replaces: bool) -> io::Result<Option<String>> {
    let lock = lock(target.parent().unwrap_or(target));
    publish_with(finished, target, replaces, lock, exchange)
}

/// Gives a finished folder its name in place of the folder that has it, if under the store's lock that is still the folder
/// that was read.
///
/// # Errors
/// As [`publish`]; when `is_same` says no ([`io::ErrorKind::ResourceBusy`]), or the file system has no locks.
pub fn publish_if(
    finished: &Path,
    target: &Path,
    is_same: impl FnOnce() -> bool,
) -> io::Result<Option<String>> {
    let lock = lock(target.parent().unwrap_or(target))?;
    if !is_same() {
        return Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            format!(
                "{} has changed since it was read, so it was not replaced: another process made its tables, or its driver still writes",
                target.display()
            ),
        ));
    }
    publish_with(finished, target, true, Ok(lock), exchange)
}

fn exchange(from: &Path, to: &Path) -> io::Result<()> {
    let exchange = RenameFlags::RENAME_EXCHANGE;
    Ok(renameat2(AT_FDCWD, from, AT_FDCWD, to, exchange)?)
}

fn keep_other(from: &Path, to: &Path) -> io::Result<()> {
    let keep = RenameFlags::RENAME_NOREPLACE;
    Ok(renameat2(AT_FDCWD, from, AT_FDCWD, to, keep)?)
}

fn publish_with(
    finished: &Path,
    target: &Path,
    replaces: bool,
    lock: io::Result<File>,
    exchange: impl FnOnce(&Path, &Path) -> io::Result<()>,
) -> io::Result<Option<String>> {
    let failed = |error: io::Error| named(error.kind(), finished, target, &error);
    // The owner of a temporary folder alone may read it; readers of a store are others too.
    fs::set_permissions(finished, fs::Permissions::from_mode(0o750))?;
    let old = if replaces {
        match fs::rename(finished, target) {
            Ok(()) => None,
            Err(error) if is_taken(&error) => match exchange(finished, target) {
                Ok(()) => Some(finished.to_owned()),
                Err(error) if cannot_exchange(&error) => {
                    let _lock = lock
                        .as_ref()
                        .map_err(|error| named(error.kind(), finished, target, error))?;
                    replace(finished, target).map_err(failed)?
                }
                Err(error) => return Err(failed(error)),
            },
            Err(error) => return Err(failed(error)),
        }
    } else {
        keep(finished, target, keep_other).map_err(failed)?;
        None
    };
    drop(lock);
    let stays = old.and_then(|old| match fs::remove_dir_all(&old) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Some(format!("{}: {error}", old.display()))
        }
        _ => None,
    });
    if let Some(store) = target.parent() {
        File::open(store)?.sync_all()?;
    }
    Ok(stays)
}

/// Renames a folder only if the new name is free. A plain rename would replace an empty folder.
fn keep(
    finished: &Path,
    target: &Path,
    rename: impl FnOnce(&Path, &Path) -> io::Result<()>,
) -> io::Result<()> {
    match rename(finished, target) {
        Err(error) if cannot_exchange(&error) => match fs::symlink_metadata(target) {
            Ok(_) => Err(Errno::EEXIST.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::rename(finished, target),
            Err(error) => Err(error),
        },
        result => result,
    }
}

/// Whether a rename failed because the target is a folder with files: ENOTEMPTY, on XFS EEXIST.
fn is_taken(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
    )
}

/// Whether the file system has no such rename: NFS and FUSE answer EINVAL.
fn cannot_exchange(error: &io::Error) -> bool {
    [Errno::EINVAL, Errno::ENOSYS, Errno::EOPNOTSUPP]
        .iter()
        .any(|errno| error.raw_os_error() == Some(*errno as i32))
}

/// The temporary name of a folder that is being replaced in two steps. It contains the folder's name, so that
/// [`put_back`] can restore it.
fn replaced_name(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    // Other users may create names in the store: this one is not predictable.
    let random = RandomState::new().hash_one(0) as u32;
    target.with_file_name(format!("{REPLACED}{name}-{random:0DIGITS$x}"))
}

/// The name that a folder had before it was renamed as [`replaced_name`] says.
fn name_of_replaced(name: &str) -> Option<&str> {
    let (name, digits) = name.strip_prefix(REPLACED)?.rsplit_once('-')?;
    let is_random = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_random && has_safe_bytes(name)).then_some(name)
}

/// Repairs replacements in two steps whose process was killed: the old folder gets its name back, or is removed if the new
/// one has the name. The caller holds the store's lock. Returns what could not be repaired.
pub fn put_back(store: &Path, _lock: &File) -> Vec<io::Error> {
    let mut errors = Vec::new();
    for entry in fs::read_dir(store).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(name_of_replaced) else {
            continue;
        };
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let (replaced, target) = (entry.path(), store.join(name));
        let put = match keep(&replaced, &target, keep_other) {
            Err(error) if is_taken(&error) => fs::remove_dir_all(&replaced),
            put => put,
        };
        if let Err(error) = put
            && error.kind() != io::ErrorKind::NotFound
        {
            errors.push(named(error.kind(), &replaced, &target, &error));
        }
    }
    errors
}

/// Replaces a folder in two renames, between which a reader finds no tables. The caller holds the store's lock. Returns the
/// path of the old folder.
fn replace(finished: &Path, target: &Path) -> io::Result<Option<PathBuf>> {
    let replaced = replaced_name(target);
    match fs::rename(target, &replaced) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if let Err(error) = fs::rename(finished, target) {
        // Where this fails too, the first error is the one to report.
        let _ = fs::rename(&replaced, target);
        return Err(error);
    }
    Ok(Some(replaced))
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
        publish_with(&finished, &target, true, lock(store.path()), refused).expect("replaces");
        assert_eq!(fs::read(target.join("file")).expect("reads"), b"new");
        let names = fs::read_dir(store.path()).expect("lists").flatten();
        let mut names: Vec<_> = names.map(|it| it.file_name()).collect();
        names.sort();
        assert_eq!(names, [".lock", "app-1"]);
    }

    #[test]
    fn a_folder_whose_replacement_was_killed_is_put_back() {
        let store = tempfile::tempdir().expect("makes a folder");
        let put_back = || {
            let lock = lock(store.path()).expect("locks");
            let errors = put_back(store.path(), &lock);
            assert!(errors.is_empty(), "{errors:?}");
        };
        let target = store.path().join("app-1_2");
        folder_with(&target, "old");
        // Killed between the renames.
        fs::rename(&target, replaced_name(&target)).expect("renames");
        put_back();
        assert_eq!(fs::read(target.join("file")).expect("reads"), b"old");
        // Killed after them.
        let old = replaced_name(&target);
        folder_with(&old, "older");
        put_back();
        assert!(!old.exists());
        assert_eq!(fs::read(target.join("file")).expect("reads"), b"old");
        // Names of others stay, and a link is not followed.
        let others = [
            ".replaced-app-3",
            ".replaced-.lock-00000000",
            ".replaced-app-3-0000000g",
        ];
        for name in others {
            folder_with(&store.path().join(name), "other");
        }
        let link = store.path().join(".replaced-app-4-00000000");
        std::os::unix::fs::symlink(&target, &link).expect("links");
        put_back();
        assert!(others.iter().all(|it| store.path().join(it).exists()));
        assert!(link.is_symlink() && !store.path().join("app-3").exists());
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
        let error =
            publish_with(&finished, &target, true, lock(store.path()), refused).expect_err("fails");
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

    #[test]
    fn an_empty_folder_is_kept_too_and_a_free_name_is_taken() {
        let store = tempfile::tempdir().expect("makes a folder");
        let (finished, target) = (store.path().join(".new"), store.path().join("app-1"));
        let refused = |_: &Path, _: &Path| Err(Errno::EINVAL.into());
        fs::create_dir(&target).expect("makes a folder");
        folder_with(&finished, "new");
        let error = publish(&finished, &target, false).expect_err("is taken");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        let error = keep(&finished, &target, refused).expect_err("is taken");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert!(finished.exists() && !target.join("file").exists());
        fs::remove_dir(&target).expect("removes");
        keep(&finished, &target, refused).expect("renames");
        assert!(target.join("file").exists());
    }

    #[test]
    fn an_old_folder_that_cannot_be_removed_is_no_error() {
        let store = tempfile::tempdir().expect("makes a folder");
        let (finished, target) = (store.path().join(".new"), store.path().join("app-1"));
        folder_with(&target, "old");
        folder_with(&finished, "new");
        // What comes out of the exchange is no folder, which `remove_dir_all` refuses.
        let swap = |from: &Path, to: &Path| {
            fs::remove_dir_all(to)?;
            fs::rename(from, to)?;
            fs::write(from, "")
        };
        let lock = lock(store.path());
        let stays = publish_with(&finished, &target, true, lock, swap).expect("publishes");
        assert!(stays.is_some_and(|it| it.contains("/.new")));
        assert_eq!(fs::read(target.join("file")).expect("reads"), b"new");
    }

    #[test]
    fn a_folder_that_has_changed_is_not_replaced() {
        let store = tempfile::tempdir().expect("makes a folder");
        let (finished, target) = (store.path().join(".new"), store.path().join("app-1"));
        folder_with(&target, "old");
        folder_with(&finished, "new");
        let is_locked = || {
            let other = File::open(store.path().join(".lock")).expect("opens");
            assert!(other.try_lock().is_err(), "the check is not under the lock");
            false
        };
        let error = publish_if(&finished, &target, is_locked).expect_err("is refused");
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(fs::read(target.join("file")).expect("reads"), b"old");
        assert_eq!(publish_if(&finished, &target, || true).ok(), Some(None));
        assert_eq!(fs::read(target.join("file")).expect("reads"), b"new");
    }
}
