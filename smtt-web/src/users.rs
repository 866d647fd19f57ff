//! Basic authentication of a listener. Its users come from a file with a line `name:hash` each, as `htpasswd -B` writes it,
//! and from `basic_auth_users` of a web configuration.
//!
//! Verifying a bcrypt hash is slow on purpose. So the listener verifies one at a time, pauses after a wrong password, and
//! remembers a digest of each user's last right credentials.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bcrypt::HashParts;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Bytes and users of the file at most.
const FILE_MAX: u64 = 1 << 20;
const USERS_MAX: usize = 1024;
/// The highest cost of a hash: about a second of work.
const COST_MAX: u32 = 14;
/// Bytes of the header with the credentials at most.
const CREDENTIALS_MAX: usize = 1024;
/// Pause after wrong credentials.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a request waits until its credentials can be verified.
const WAIT: Duration = Duration::from_secs(15);
/// Requests that may wait for that. Further ones are refused at once, so that wrong passwords leave room to clients whose
/// credentials are remembered. Names of users and other names count together: a refusal does not report which it is.
const WAITING: usize = 8;

/// Why the users' file is refused. Each message is one line.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// The file cannot be read.
    #[error("file of credentials {} cannot be read: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Every local user may read or write the file.
    #[error("file of credentials {} is open to every local user: chmod o-rw {}", .0.display(), .0.display())]
    Open(PathBuf),
    /// The file has an invalid line, or no user.
    #[error("file of credentials {}, line {line}: {message}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The error.
        message: String,
    },
}

/// Reads a file that only the server's user and group may read.
///
/// # Errors
/// When it cannot be read, is too large, or every local user may read or write it.
pub(crate) fn secret_text(path: &Path) -> Result<String, UsersError> {
    let unreadable = |error| UsersError::Unreadable {
        path: path.to_owned(),
        error,
    };
    let file = File::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.permissions().mode();
    if mode & 0o006 != 0 {
        return Err(UsersError::Open(path.to_owned()));
    }
    let mut text = String::new();
    let read = file.take(FILE_MAX + 1).read_to_string(&mut text);
    if read.map_err(unreadable)? as u64 > FILE_MAX {
        return Err(unreadable(io::ErrorKind::FileTooLarge.into()));
    }
    Ok(text)
}

/// Whether a request may see answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The credentials are right.
    Granted,
    /// The credentials are wrong or absent.
    Denied,
    /// They could not be verified in time.
    Busy,
}

/// The users of a listener.
#[derive(Debug)]
pub struct Users {
    hashes: BTreeMap<String, String>,
    /// Which user's hash a name without a user has, as no client can predict.
    places: RandomState,
    /// Digests of the last right credentials, by user.
    known: Mutex<BTreeMap<String, [u8; 32]>>,
    /// Held while a hash is verified, also when the client has gone meanwhile.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Requests that may wait for their turn.
    waiting: Semaphore,
}

impl Users {
    /// Reads the users' file, and takes those of a web configuration; `None` where there is neither.
    ///
    /// # Errors
    /// When the file cannot be read, every local user may read or write it, or a user is invalid.
    pub fn load(
        file: Option<&Path>,
        more: Option<(&Path, &BTreeMap<String, String>)>,
    ) -> Result<Option<Self>, UsersError> {
        let mut hashes = BTreeMap::new();
        let wrong = |path: &Path, line, message| UsersError::Wrong {
            path: path.to_owned(),
            line,
            message,
        };
        if let Some(path) = file {
            let text = secret_text(path)?;
            hashes = Self::parse(&text).map_err(|(line, message)| wrong(path, line, message))?;
        }
        if let Some((path, users)) = more {
            for (name, hash) in users {
                insert(&mut hashes, name, hash).map_err(|message| {
                    wrong(path, 1, format!("basic_auth_users, {name:?}: {message}"))
                })?;
            }
        }
        Ok((!hashes.is_empty()).then(|| Self::of(hashes)))
    }

    fn of(hashes: BTreeMap<String, String>) -> Self {
        Self {
            hashes,
            places: RandomState::new(),
            known: Mutex::default(),
            turn: Arc::default(),
            waiting: Semaphore::new(WAITING),
        }
    }

    /// Reads the users out of the file's text; an error has its line.
    fn parse(text: &str) -> Result<BTreeMap<String, String>, (usize, String)> {
        let mut hashes = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let wrong = |message: String| (index + 1, message);
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') || line == "basic_auth_users:" {
                continue;
            }
            let (name, hash) = line
                .split_once(':')
                .ok_or_else(|| wrong("a line is NAME:HASH, as htpasswd -B prints it".to_owned()))?;
            insert(&mut hashes, bare(name), bare(hash)).map_err(wrong)?;
        }
        if hashes.is_empty() {
            return Err((1, "there is no user".to_owned()));
        }
        Ok(hashes)
    }

    /// Whether these headers have the credentials of a user.
    pub async fn access(&self, headers: &HeaderMap) -> Access {
        let Some((name, password)) = credentials(headers) else {
            return Access::Denied;
        };
        let digest = Sha256::new_with_prefix(name.as_bytes())
            .chain_update([0])
            .chain_update(password.as_bytes())
            .finalize();
        let digest: [u8; 32] = digest.into();
        if self.knows(&name, &digest) {
            return Access::Granted;
        }
        let is_user = self.hashes.contains_key(&name);
        let Ok(_waits) = self.waiting.try_acquire() else {
            return Access::Busy;
        };
        let Ok(turn) = timeout(WAIT, Arc::clone(&self.turn).lock_owned()).await else {
            return Access::Busy;
        };
        // Another request with the same credentials may have been before this one.
        if self.knows(&name, &digest) {
            return Access::Granted;
        }
        let hash = self.hash_for(&name).to_owned();
        let verify = move || {
            let _turn = turn;
            let right = bcrypt::verify(password, &hash).unwrap_or(false) && is_user;
            if !right {
                std::thread::sleep(PAUSE);
            }
            right
        };
        if tokio::task::spawn_blocking(verify).await.unwrap_or(false) {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.insert(name, digest);
            return Access::Granted;
        }
        Access::Denied
    }

    /// The hash to verify a password of this name against. A name that is no user's has one of a user, always the same:
    /// hashes may differ in cost, and so in time, but no time says whether there is such a user. Which one it is depends on
    /// a secret of this process, so that no client can choose names that have the hash of a certain user.
    fn hash_for(&self, name: &str) -> &str {
        if let Some(hash) = self.hashes.get(name) {
            return hash;
        }
        let place = self.places.hash_one(name) % self.hashes.len().max(1) as u64;
        let hash = self.hashes.values().nth(place as usize);
        hash.map_or("", String::as_str)
    }

    fn knows(&self, name: &str, digest: &[u8; 32]) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(name) == Some(digest)
    }
}

/// Adds a user after checking name and hash.
fn insert(hashes: &mut BTreeMap<String, String>, name: &str, hash: &str) -> Result<(), String> {
    let parts: HashParts = hash
        .parse()
        .map_err(|_| "the hash is no bcrypt hash: make it with htpasswd -nB NAME".to_owned())?;
    if parts.get_cost() > COST_MAX {
        return Err(format!("the cost of the hash is above {COST_MAX}"));
    }
    if name.is_empty() || name.contains(':') || hashes.len() == USERS_MAX {
        return Err(format!("no name, or more than {USERS_MAX} users"));
    }
    if hashes.insert(name.to_owned(), hash.to_owned()).is_some() {
        return Err(format!("user {name:?} stands twice"));
    }
    Ok(())
}

/// A word without blanks and quotation marks around it.
fn bare(word: &str) -> &str {
    word.trim().trim_matches(['"', '\''])
}

/// Decodes name and password from the header of a request.
fn credentials(headers: &HeaderMap) -> Option<(String, String)> {
    let value = headers.get(header::AUTHORIZATION)?;
    let value = value
        .to_str()
        .ok()
        .filter(|text| text.len() <= CREDENTIALS_MAX)?;
    let (scheme, coded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(coded.trim()).ok()?).ok()?;
    let (name, password) = decoded.split_once(':')?;
    Some((name.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use tokio::time::sleep;

    /// A line of the file; the lowest cost keeps the test short.
    fn line(name: &str, password: &str) -> String {
        format!("{name}:{}\n", bcrypt::hash(password, 4).expect("hashed"))
    }

    fn users_of(text: &str) -> Users {
        Users::of(Users::parse(text).expect("users"))
    }

    fn with(name: &str, password: &str) -> HeaderMap {
        let coded = STANDARD.encode(format!("{name}:{password}"));
        let value = format!("Basic {coded}").parse().expect("a value");
        HeaderMap::from_iter([(header::AUTHORIZATION, value)])
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
    }

    #[test]
    fn only_users_with_their_password_have_access() {
        let text = format!(
            "# a comment\n\n{}{}",
            line("ann", "secret"),
            line("bob", "b:c")
        );
        let users = users_of(&text);
        runtime().block_on(async {
            for (name, password, access) in [
                ("ann", "secret", Access::Granted),
                ("bob", "b:c", Access::Granted),
                ("ann", "b:c", Access::Denied),
                ("ann", "", Access::Denied),
                ("eve", "secret", Access::Denied),
                ("", "secret", Access::Denied),
                ("ann", "secret", Access::Granted),
            ] {
                assert_eq!(users.access(&with(name, password)).await, access, "{name}");
            }
            let bearer = HeaderMap::from_iter([(
                header::AUTHORIZATION,
                "Bearer YW5uOnNlY3JldA==".parse().expect("a value"),
            )]);
            for headers in [HeaderMap::new(), bearer, with("ann", &"x".repeat(2000))] {
                assert_eq!(users.access(&headers).await, Access::Denied);
            }
        });
    }

    #[test]
    fn wrong_credentials_cost_time_and_known_ones_wait_for_nothing() {
        let users = users_of(&line("ann", "secret"));
        runtime().block_on(async {
            assert_eq!(users.access(&with("ann", "secret")).await, Access::Granted);
            let wrong = with("ann", "wrong");
            let begin = Instant::now();
            let guesses = async {
                tokio::join!(
                    users.access(&wrong),
                    users.access(&wrong),
                    users.access(&wrong)
                )
            };
            let right = async {
                sleep(Duration::from_millis(10)).await;
                let begin = Instant::now();
                let access = users.access(&with("ann", "secret")).await;
                (access, begin.elapsed())
            };
            let ((first, second, third), (access, time)) = tokio::join!(guesses, right);
            assert_eq!([first, second, third], [Access::Denied; 3]);
            assert!(begin.elapsed() >= PAUSE * 3, "one after the other");
            assert_eq!(access, Access::Granted);
            assert!(time < PAUSE, "{time:?}");
        });
    }

    #[test]
    fn clients_that_hang_up_verify_one_at_a_time_and_few_wait() {
        let users = users_of(&line("ann", "secret"));
        runtime().block_on(async {
            let begin = Instant::now();
            for _ in 0..3 {
                // The client is gone long before the end.
                let wrong = with("ann", "wrong");
                let gone = timeout(Duration::from_millis(20), users.access(&wrong)).await;
                assert!(gone.is_err());
            }
            assert_eq!(users.access(&with("ann", "secret")).await, Access::Granted);
            assert!(begin.elapsed() >= PAUSE, "the first one's turn goes on");
            let users = Arc::new(users);
            let mut strangers = tokio::task::JoinSet::new();
            for number in 0..=WAITING {
                let users = Arc::clone(&users);
                // Users and other names share the places.
                let name = ["ann", "eve"][number % 2];
                strangers.spawn(async move { users.access(&with(name, "wrong")).await });
            }
            let answers = strangers.join_all().await;
            let busy = answers.iter().filter(|access| **access == Access::Busy);
            assert_eq!(busy.count(), 1);
        });
    }

    #[test]
    fn a_name_without_a_user_costs_as_much_as_one_of_the_users() {
        let dear = format!("bob:{}\n", bcrypt::hash("secret", 5).expect("hashed"));
        let users = users_of(&format!("{}{dear}", line("ann", "secret")));
        assert_eq!(users.hash_for("bob"), users.hashes["bob"]);
        let hashes: Vec<&str> = (0..100)
            .map(|n| users.hash_for(&format!("eve{n}")))
            .collect();
        let again = (0..100).map(|n| users.hash_for(&format!("eve{n}")));
        assert!(
            again.eq(hashes.iter().copied()),
            "a name costs the same each time"
        );
        for hash in users.hashes.values() {
            let count = hashes.iter().filter(|other| *other == hash).count();
            assert!((20..80).contains(&count), "{count} of 100 have {hash}");
        }
    }

    #[test]
    fn no_client_can_predict_which_hash_a_name_without_a_user_has() {
        let dear = format!("bob:{}\n", bcrypt::hash("secret", 5).expect("hashed"));
        let text = format!("{}{dear}", line("ann", "secret"));
        let places = || {
            let users = users_of(&text);
            let place = |n| users.hash_for(&format!("eve{n}")) == users.hashes["bob"];
            (0..100).map(place).collect::<Vec<bool>>()
        };
        assert_ne!(places(), places(), "each process has places of its own");
    }

    #[test]
    fn the_form_of_exporters_is_read() {
        let hash = bcrypt::hash("secret", 4).expect("hashed");
        let text = format!("basic_auth_users:\n  \"ann\": \"{hash}\"\n  bob: {hash}\n");
        let users = users_of(&text);
        assert_eq!(users.hashes.keys().collect::<Vec<_>>(), ["ann", "bob"]);
    }

    #[test]
    fn a_wrong_file_is_one_line_that_names_the_place() {
        let good = line("ann", "secret");
        let dear = good.replacen("$04$", "$31$", 1);
        for (text, part) in [
            (String::new(), "line 1: there is no user"),
            (format!("{good}bob\n"), "line 2: a line is NAME:HASH"),
            (
                format!("{good}bob:secret\n"),
                "line 2: the hash is no bcrypt hash",
            ),
            (format!("{good}{good}"), "line 2: user \"ann\" stands twice"),
            (dear, "line 1: the cost of the hash is above 14"),
        ] {
            let file = tempfile::NamedTempFile::new().expect("a file");
            std::fs::write(file.path(), text).expect("written");
            let error = Users::load(Some(file.path()), None)
                .expect_err("wrong")
                .to_string();
            assert!(
                error.contains(part) && error.lines().count() == 1,
                "{error}"
            );
            assert!(!error.contains("secret"), "{error}");
        }
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), &good).expect("written");
        for (mode, may) in [(0o644, false), (0o602, false), (0o640, true), (0o600, true)] {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(file.path(), mode.clone()).expect("set");
            let loaded = Users::load(Some(file.path()), None);
            assert_eq!(loaded.is_ok(), may, "{mode:?}: {loaded:?}");
        }
        let error = Users::load(Some(Path::new("/nowhere/users")), None).expect_err("absent");
        assert!(error.to_string().contains("cannot be read"), "{error}");
    }
}
