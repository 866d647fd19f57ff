//! The Unix socket: created with the right mode and group, never taken from a running daemon.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Group, chown};
use tokio::net::UnixListener;

/// Mode of the socket: its owner and its group may connect.
const MODE: u32 = 0o660;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another daemon answers there.
    #[error(
        "another smtt-daemon is listening on {0}: stop it first, or set another [control] socket"
    )]
    InUse(PathBuf),
    /// Something that is not a socket is there.
    #[error("{0} exists and is not a socket: remove it, or set another [control] socket")]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("cannot {what} {path}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
}

/// The bound socket. Dropping it removes its file.
#[derive(Debug)]
pub struct ControlSocket {
    listener: StdListener,
    file: SocketFile,
}

/// The file of the socket. Dropping it removes the file, unless another daemon has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: Option<(u64, u64)>,
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path)
        .ok()
        .map(|meta| (meta.dev(), meta.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.inode.is_some() && inode(&self.path) == self.inode {
            // A failure is ignored: the next daemon replaces the file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl ControlSocket {
    /// Creates the socket and its folder. The socket of a dead daemon is replaced. A group that does not exist gives a
    /// warning, and then only root can connect.
    ///
    /// # Errors
    /// When another daemon listens there, the path is not a socket, or the system refuses.
    pub fn bind(path: &Path, group: &str) -> Result<Self, BindError> {
        let failed = |what| {
            move |error| BindError::Io {
                what,
                path: path.to_owned(),
                error,
            }
        };
        if let Some(folder) = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
        {
            fs::create_dir_all(folder).map_err(failed("create the folder of"))?;
        }
        clear(path)?;
        // No other user may connect between the bind and the change of mode. This happens once, at the start, before
        // other threads create files.
        let before = umask(Mode::from_bits_truncate(0o177));
        let bound = StdListener::bind(path);
        umask(before);
        let listener = bound.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse(path.to_owned()),
            _ => failed("bind")(error),
        })?;
        let file = SocketFile {
            path: path.to_owned(),
            inode: inode(path),
        };
        if let Some(gid) = group_id(group) {
            chown(path, None, Some(gid))
                .map_err(io::Error::from)
                .map_err(failed("give the group to"))?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(MODE))
            .map_err(failed("set the mode of"))?;
        listener.set_nonblocking(true).map_err(failed("prepare"))?;
        Ok(Self { listener, file })
    }

    /// The listener for tokio, and the guard of its file, which must live as long.
    ///
    /// # Errors
    /// When tokio cannot poll the socket.
    pub fn into_listener(self) -> io::Result<(UnixListener, SocketFile)> {
        Ok((UnixListener::from_std(self.listener)?, self.file))
    }
}

/// The id of a group; `None`, with a warning in the log, where no group has that name.
pub fn group_id(group: &str) -> Option<Gid> {
    if group.is_empty() {
        return None;
    }
    match Group::from_name(group) {
        Ok(Some(group)) => Some(group.gid),
        Ok(None) => {
            tracing::warn!(
                group,
                "group does not exist: only root can use the control socket (groupadd --system {group})"
            );
            None
        }
        Err(error) => {
            tracing::warn!(group, %error, "cannot look up the group: only root can use the control socket");
            None
        }
    }
}

/// Makes room for the socket at `path`.
fn clear(path: &Path) -> Result<(), BindError> {
    let Ok(meta) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !meta.file_type().is_socket() {
        return Err(BindError::NotASocket(path.to_owned()));
    }
    match StdStream::connect(path) {
        Ok(_) => Err(BindError::InUse(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(socket = %path.display(), "replacing the socket of a daemon that is gone");
            fs::remove_file(path).map_err(|error| BindError::Io {
                what: "remove",
                path: path.to_owned(),
                error,
            })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A full backlog, for example: a process is listening.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(BindError::InUse(path.to_owned()))
        }
        Err(error) => Err(BindError::Io {
            what: "try",
            path: path.to_owned(),
            error,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("a folder")
    }

    #[test]
    fn only_owner_and_group_may_ask_and_the_file_goes_with_the_socket() {
        let folder = folder();
        let path = folder.path().join("run/smtt.sock");
        let socket = ControlSocket::bind(&path, "").expect("bound");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, MODE);
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_living_daemon_keeps_its_socket() {
        let folder = folder();
        let path = folder.path().join("smtt.sock");
        let first = ControlSocket::bind(&path, "").expect("bound");
        let second = ControlSocket::bind(&path, "").expect_err("in use");
        assert!(matches!(second, BindError::InUse(_)), "{second}");
        assert!(path.exists());
        drop(first);
    }

    #[test]
    fn a_socket_that_was_left_behind_is_replaced() {
        let folder = folder();
        let path = folder.path().join("smtt.sock");
        drop(StdListener::bind(&path).expect("a socket without a listener"));
        assert!(path.exists());
        ControlSocket::bind(&path, "").expect("replaced");
    }

    #[test]
    fn what_is_not_a_socket_stays() {
        let folder = folder();
        let path = folder.path().join("smtt.sock");
        fs::write(&path, "precious").expect("written");
        let error = ControlSocket::bind(&path, "").expect_err("not a socket");
        assert!(matches!(error, BindError::NotASocket(_)), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("still there"), "precious");
    }

    #[test]
    fn a_group_that_does_not_exist_is_no_error() {
        let folder = folder();
        ControlSocket::bind(&folder.path().join("smtt.sock"), "no-such-group-here").expect("bound");
    }
}
