//! Copies of applications in a folder of this machine: of each the files that its objects are now, bounded in bytes.
//!
//! The folder has the form of a store, so everything reads it as one. A listing at most every [`FRESH`] finds new objects;
//! an object that has not changed is copied once. Where the store gives no answer, a copy that is there is still good: what
//! has ended does not change.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use moka::sync::Cache;
use nix::fcntl::OFlag;
use smtt_store::history::columns::{META, TASK_SQL, TASKS};
use smtt_store::history::{parts, place, workers};
use tempfile::TempDir;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::bucket::{Bucket, Object, POINTER, Pointer, Trouble};
use crate::live::FILE_BYTES;
use crate::open::exists;

/// How long a listing is good; how long a failed one is not tried again.
const FRESH: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(5));
/// How long a request waits for a copy: where an older one is there, and where there is none.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(30));
/// A copy that was asked for so recently does not make room for others: an answer may be reading it.
const IN_USE: Duration = Duration::from_secs(60);
/// Time of a copy at most.
const TIME: Duration = Duration::from_secs(3600);
/// Applications that are copied at a time, and objects of each.
const COPIES: (usize, usize) = (4, 8);
/// Folders that are listed and copied at a time. They go on when those who asked have gone.
const RUNNING: usize = 1_000;
/// Listings of an application whose objects change while they are copied.
const TRIES: u32 = 5;
/// Bytes that a file takes at least.
const BLOCK: u64 = 4096;
/// Names whose last listing is remembered.
const NAMES: u64 = 100_000;
/// Prefix of the folder of a server, which has the copies.
const FOLDER: &str = "smtt-objects-";

/// An object that is a file of the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    object: Object,
    /// It is larger than a reader accepts: the copy has a file without content that the reader refuses for its size.
    is_too_large: bool,
}

/// Files of a copy by their paths in it.
type Plan = BTreeMap<String, Source>;

/// A copy.
#[derive(Debug)]
struct Copy {
    plan: Arc<Plan>,
    /// The pointer's ETag, where the tables have one.
    pointer: Option<String>,
    bytes: u64,
    used: Instant,
}

#[derive(Debug, Default)]
struct State {
    copies: HashMap<String, Copy>,
    /// Bytes that are being copied, by the folder.
    coming: HashMap<String, u64>,
}

/// Room of a folder that is being copied. It is given back also where the copy is given up in the middle.
#[derive(Debug)]
struct Room<'a> {
    state: &'a Mutex<State>,
    folder: &'a str,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        held(self.state).coming.remove(self.folder);
    }
}

type Ended = watch::Receiver<Option<Result<(), Trouble>>>;

/// Copies of applications.
pub struct Mirror {
    bucket: Arc<Bucket>,
    root: TempDir,
    /// Held as long as the folder is in use.
    _in_use: Option<File>,
    most: u64,
    state: Mutex<State>,
    running: Mutex<HashMap<String, Ended>>,
    /// When a name was last listed, and why that failed.
    listed: Cache<String, (Instant, Option<Trouble>)>,
    /// Folders of workers that were not there when they were last listed.
    absent: Cache<String, ()>,
    copying: Semaphore,
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the folders of servers that were killed: no process holds their locks. A younger one may be between its
/// creation and its lock.
fn sweep(above: &Path, age: Duration) {
    for entry in fs::read_dir(above).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_mirror = name.to_str().is_some_and(|it| it.starts_with(FOLDER));
        let is_old = || {
            let made = entry.metadata().and_then(|it| it.modified());
            made.is_ok_and(|made| made.elapsed().is_ok_and(|it| it >= age))
        };
        // Every user may have a name in a temporary folder: what is there now may be a link or a pipe.
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let open = || {
            let mut options = File::options();
            options.read(true).custom_flags(flags.bits());
            options.open(entry.path())
        };
        if is_mirror && is_old() && open().is_ok_and(|folder| folder.try_lock().is_ok()) {
            // Another user's folder stays.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Number of a part from its file's name.
fn part(name: &str) -> Option<(&'static str, u64)> {
    [META.name, TASKS.name, TASK_SQL.name]
        .into_iter()
        .find_map(|table| {
            let digits = name.strip_prefix(table)?.strip_prefix('-')?;
            let digits = digits.strip_suffix(".parquet")?;
            let number = digits.parse::<u64>().ok()?;
            (number > 0 && digits == format!("{number:06}")).then_some((table, number))
        })
}

/// Numbers of the finished parts among objects, ascending.
pub(super) fn finished(objects: &[Object]) -> Vec<u64> {
    let numbers = objects.iter().filter_map(|object| part(&object.name));
    let metas = numbers.filter(|(table, _)| *table == META.name);
    let mut numbers: Vec<u64> = metas.map(|(_, number)| number).collect();
    numbers.sort_unstable();
    numbers
}

/// Objects of the parts up to a number.
pub(super) fn parts_up_to(objects: &[Object], last: u64) -> impl Iterator<Item = &Object> {
    let is_of = move |object: &&Object| part(&object.name).is_some_and(|(_, it)| it <= last);
    objects.iter().filter(is_of)
}

/// Name of a table's object.
pub(super) fn table(table: &str, generation: &str) -> String {
    format!("{table}.{generation}.parquet")
}

/// Files of an application that only has parts: the finished ones, of which readers take so many.
fn plan_of_parts(objects: &[Object]) -> Plan {
    let numbers = finished(objects);
    // One more says to readers that there are more.
    let last = numbers.get(parts::MOST).or(numbers.last()).copied();
    let Some(last) = last else {
        return Plan::new();
    };
    let found = parts_up_to(objects, last).filter(|object| {
        part(&object.name).is_some_and(|(_, number)| numbers.binary_search(&number).is_ok())
    });
    let source = |object: &Object| Source {
        is_too_large: object.size > FILE_BYTES,
        object: object.clone(),
    };
    found
        .map(|object| (object.name.clone(), source(object)))
        .collect()
}

/// Files of the tables, `None` where one is missing.
fn plan_of_tables(objects: &[Object], generation: Option<&str>) -> Option<Plan> {
    let tables = [META.name, TASKS.name, TASK_SQL.name].map(|name| {
        let file = format!("{name}.parquet");
        let wanted = generation.map_or_else(|| file.clone(), |it| table(name, it));
        let object = objects.iter().find(|object| object.name == wanted)?;
        let source = Source {
            object: object.clone(),
            is_too_large: false,
        };
        Some((file, source))
    });
    tables.into_iter().collect()
}

/// Files of workers.
fn plan_of_workers(objects: &[Object]) -> Plan {
    let found = objects.iter().filter(|object| {
        let parts = object.name.split_once('/');
        parts.is_some_and(|(user, file)| workers::is_file(user, file))
    });
    let source = |object: &Object| Source {
        is_too_large: object.size > FILE_BYTES,
        object: object.clone(),
    };
    let found = found.take(workers::LISTED);
    found
        .map(|object| (object.name.clone(), source(object)))
        .collect()
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Mirror")
            .field("root", &self.root.path())
            .finish_non_exhaustive()
    }
}

impl Mirror {
    /// A folder without copies, for at most so many bytes.
    ///
    /// # Errors
    /// When the temporary folder cannot be written.
    pub fn new(bucket: Arc<Bucket>, most: u64) -> std::io::Result<Self> {
        sweep(&std::env::temp_dir(), Duration::from_secs(60));
        let root = tempfile::Builder::new().prefix(FOLDER).tempdir()?;
        let in_use = File::open(root.path())?;
        let _in_use = in_use.try_lock().is_ok().then_some(in_use);
        fs::create_dir(root.path().join(workers::FOLDER))?;
        Ok(Self {
            bucket,
            root,
            _in_use,
            most,
            state: Mutex::default(),
            running: Mutex::default(),
            listed: Cache::builder()
                .max_capacity(NAMES)
                .time_to_live(FRESH.1)
                .build(),
            absent: Cache::builder()
                .max_capacity(NAMES)
                .time_to_live(TIME)
                .build(),
            copying: Semaphore::new(COPIES.0),
        })
    }

    /// The folder, which has the form of a store.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.root.path()
    }

    /// The bucket.
    #[must_use]
    pub const fn bucket(&self) -> &Arc<Bucket> {
        &self.bucket
    }

    /// Brings an application and what the workers know of it.
    ///
    /// # Errors
    /// When the store gives no answer and there is no copy.
    pub async fn refresh(
        self: &Arc<Self>,
        application: &str,
        attempt: Option<&str>,
    ) -> Result<(), Trouble> {
        let Some(name) = place::name(application, attempt) else {
            return Ok(());
        };
        let workers = format!("{}/{application}", workers::FOLDER);
        let (own, workers) = tokio::join!(self.bring(&name), self.bring(&workers));
        own.and(workers)
    }

    /// The next question lists the application again.
    pub fn forget(&self, name: &str) {
        self.listed.invalidate(name);
    }

    /// Brings a folder of the store.
    ///
    /// # Errors
    /// When the store gives no answer and there is no copy.
    pub(crate) async fn bring(self: &Arc<Self>, folder: &str) -> Result<(), Trouble> {
        let has_copy = match held(&self.state).copies.get_mut(folder) {
            Some(copy) => {
                copy.used = Instant::now();
                true
            }
            // What the workers did not know a while ago does not keep the application from its readers.
            None => self.absent.contains_key(folder),
        };
        let result = match self.listed.get(folder) {
            Some((at, None)) if at.elapsed() < FRESH.0 => Ok(()),
            Some((at, Some(trouble))) if at.elapsed() < FRESH.1 => Err(trouble),
            _ => {
                let mut ended = self.begin(folder);
                let patience = if has_copy { PATIENCE.0 } else { PATIENCE.1 };
                let waiting = ended.wait_for(Option::is_some);
                match timeout(patience, waiting).await {
                    Ok(Ok(result)) => result.clone().unwrap_or(Ok(())),
                    Ok(Err(_)) => Err(Trouble::Failed("the copy stopped".to_owned())),
                    Err(_) => Err(Trouble::Failed(format!(
                        "{} is still being copied",
                        self.bucket.shown(folder)
                    ))),
                }
            }
        };
        if has_copy { Ok(()) } else { result }
    }

    /// Begins a listing, where none of that name runs.
    fn begin(self: &Arc<Self>, folder: &str) -> Ended {
        let mut running = held(&self.running);
        if let Some(ended) = running.get(folder) {
            return ended.clone();
        }
        if running.len() >= RUNNING {
            let what = "too many applications are being listed: ask again later".to_owned();
            return watch::channel(Some(Err(Trouble::Failed(what)))).1;
        }
        let (end, ended) = watch::channel(None);
        running.insert(folder.to_owned(), ended.clone());
        let (mirror, folder) = (Arc::clone(self), folder.to_owned());
        tokio::spawn(async move {
            let result = match timeout(TIME, mirror.update(&folder)).await {
                Ok(result) => result,
                Err(_) => Err(Trouble::Failed(format!(
                    "{}: copying took longer than {} s",
                    mirror.bucket.shown(&folder),
                    TIME.as_secs()
                ))),
            };
            if let Err(trouble) = &result {
                tracing::warn!("{trouble}");
            }
            let said = (Instant::now(), result.clone().err());
            mirror.listed.insert(folder.clone(), said);
            held(&mirror.running).remove(&folder);
            // Those who waited may have gone.
            let _ = end.send(Some(result));
        });
        ended
    }

    /// Lists a folder and copies what is new.
    pub(super) async fn update(&self, folder: &str) -> Result<(), Trouble> {
        let mut pause = Duration::from_millis(100);
        let mut tries = 0;
        loop {
            match self.update_once(folder).await {
                // Another process replaced the tables while they were copied.
                Err(Trouble::Absent(_) | Trouble::Changed(_)) if tries < TRIES => {
                    tries += 1;
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                result => return result,
            }
        }
    }

    async fn update_once(&self, folder: &str) -> Result<(), Trouble> {
        let objects = self.bucket.list(folder).await?;
        if folder.starts_with(workers::FOLDER) {
            let plan = plan_of_workers(&objects);
            if plan.is_empty() {
                self.absent.insert(folder.to_owned(), ());
            } else {
                self.absent.invalidate(folder);
            }
            return self.copy(folder, plan, None).await;
        }
        if let Some(object) = objects.iter().find(|object| object.name == POINTER) {
            let known = held(&self.state)
                .copies
                .get(folder)
                .and_then(|it| it.pointer.clone());
            if known.is_some() && known == object.tag {
                return Ok(());
            }
            let changed = || Trouble::Changed(self.bucket.shown(folder));
            let pointed = self.bucket.pointer(folder).await?;
            let (Pointer { generation, .. }, version) = pointed.ok_or_else(changed)?;
            let plan = plan_of_tables(&objects, Some(&generation)).ok_or_else(changed)?;
            return self.copy(folder, plan, version.e_tag).await;
        }
        // A folder of another store that was copied into the bucket.
        let plain = plan_of_tables(&objects, None);
        let plan = plain.unwrap_or_else(|| plan_of_parts(&objects));
        self.copy(folder, plan, None).await
    }

    /// Makes the copy of a folder the one that was planned.
    async fn copy(&self, folder: &str, plan: Plan, pointer: Option<String>) -> Result<(), Trouble> {
        let target = self.root.path().join(folder);
        let local =
            |error: std::io::Error| Trouble::Failed(format!("{}: {error}", target.display()));
        let known = held(&self.state)
            .copies
            .get(folder)
            .map(|it| Arc::clone(&it.plan));
        if plan.is_empty() {
            if known.is_some() {
                let mut state = held(&self.state);
                state.copies.remove(folder);
                let aside = self.aside(&target);
                drop(state);
                drop(aside.map_err(local)?);
            }
            return Ok(());
        }
        if known.as_deref() == Some(&plan) {
            return match held(&self.state).copies.get_mut(folder) {
                Some(copy) => {
                    copy.pointer = pointer;
                    Ok(())
                }
                // It made room for another one just now.
                None => Err(Trouble::Changed(self.bucket.shown(folder))),
            };
        }
        let _turn = self.copying.acquire().await;
        let bytes = plan.values().map(size).fold(0, u64::saturating_add);
        let _room = self.make_room(folder, bytes)?;
        self.copy_files(folder, &target, &plan, known.as_deref())
            .await?;
        let copy = Copy {
            plan: Arc::new(plan),
            pointer,
            bytes,
            used: Instant::now(),
        };
        held(&self.state).copies.insert(folder.to_owned(), copy);
        Ok(())
    }

    /// Removes what was asked for longest ago until there is room, and takes it. What is being copied stays: its older
    /// state may become a part of the newer one.
    fn make_room<'a>(&'a self, folder: &'a str, bytes: u64) -> Result<Room<'a>, Trouble> {
        let mut gone = Vec::new();
        let mut state = held(&self.state);
        loop {
            let others = state.copies.iter().filter(|(name, _)| *name != folder);
            let taken = others
                .map(|(_, copy)| copy.bytes)
                .chain(state.coming.values().copied())
                .fold(0, u64::saturating_add);
            if taken.saturating_add(bytes) <= self.most {
                break;
            }
            let idle = state.copies.iter().filter(|(name, copy)| {
                *name != folder && !state.coming.contains_key(*name) && copy.used.elapsed() > IN_USE
            });
            let Some((name, _)) = idle.min_by_key(|(_, copy)| copy.used) else {
                return Err(Trouble::Failed(format!(
                    "{} has {bytes} bytes, and of {} for copies {taken} are in use: ask again later, or raise --object-cache-bytes",
                    self.bucket.shown(folder),
                    self.most
                )));
            };
            let name = name.clone();
            state.copies.remove(&name);
            self.listed.invalidate(&name);
            // Under the lock: after it a newer copy may have the name.
            match self.aside(&self.root.path().join(&name)) {
                Ok(aside) => gone.push(aside),
                Err(error) => tracing::warn!(name, %error, "cannot remove a copy"),
            }
        }
        state.coming.insert(folder.to_owned(), bytes);
        drop(state);
        // The files go without the lock: they may be many.
        drop(gone);
        Ok(Room {
            state: &self.state,
            folder,
        })
    }

    /// Moves a folder that readers may have open to where it is removed.
    fn aside(&self, folder: &Path) -> std::io::Result<TempDir> {
        let aside = tempfile::Builder::new()
            .prefix(".gone-")
            .tempdir_in(self.root.path())?;
        match fs::rename(folder, aside.path().join("copy")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(aside),
        }
    }

    async fn copy_files(
        &self,
        folder: &str,
        target: &Path,
        plan: &Plan,
        known: Option<&Plan>,
    ) -> Result<(), Trouble> {
        let local =
            |error: std::io::Error| Trouble::Failed(format!("{}: {error}", target.display()));
        let is_same =
            |name: &String, source: &Source| known.and_then(|it| it.get(name)) == Some(source);
        // New parts of an application that runs come to those that are there.
        let only_more = known.is_some_and(|known| {
            known
                .iter()
                .all(|(name, source)| plan.get(name) == Some(source))
        }) && target.is_dir()
            && !exists(target);
        let staging = tempfile::Builder::new()
            .prefix(".copy-")
            .tempdir_in(self.root.path())
            .map_err(local)?;
        let mut wanted: Vec<(String, Source)> = Vec::new();
        for (name, source) in plan {
            if only_more && is_same(name, source) {
                continue;
            }
            let to = staging.path().join(name);
            if let Some(above) = to.parent() {
                fs::create_dir_all(above).map_err(local)?;
            }
            let is_there = is_same(name, source) && fs::hard_link(target.join(name), &to).is_ok();
            if !is_there {
                wanted.push((name.clone(), source.clone()));
            }
        }
        let fetches = wanted.clone().into_iter().map(|(name, source)| {
            let to = staging.path().join(name);
            self.fetch(folder, source, to)
        });
        let mut fetches = futures_util::stream::iter(fetches).buffer_unordered(COPIES.1);
        while let Some(fetched) = fetches.next().await {
            fetched?;
        }
        drop(fetches);
        if !only_more {
            let (from, to) = (staging.path().to_owned(), target.to_owned());
            let published = tokio::task::spawn_blocking(move || place::publish(&from, &to, true));
            let published = published
                .await
                .map_err(|error| Trouble::Failed(error.to_string()))?;
            return published.map(drop).map_err(local);
        }
        // A part without its `meta` does not exist.
        wanted.sort_by_key(|(name, _)| {
            part(name).map(|(table, number)| (number, table == META.name))
        });
        for (name, _) in wanted {
            let to = target.join(&name);
            if let Some(above) = to.parent() {
                fs::create_dir_all(above).map_err(local)?;
            }
            fs::rename(staging.path().join(name), to).map_err(local)?;
        }
        Ok(())
    }

    async fn fetch(&self, folder: &str, source: Source, to: PathBuf) -> Result<(), Trouble> {
        if source.is_too_large {
            let file = File::create_new(&to).and_then(|file| file.set_len(FILE_BYTES + 1));
            return file.map_err(|error| Trouble::Failed(format!("{}: {error}", to.display())));
        }
        let name = format!("{folder}/{}", source.object.name);
        self.bucket.fetch(&name, &source.object, &to).await
    }
}

/// Bytes on this machine: a small file takes a block, so files are bounded in number, too.
fn size(source: &Source) -> u64 {
    if source.is_too_large {
        BLOCK
    } else {
        source.object.size.max(BLOCK)
    }
}

#[cfg(test)]
mod tests;
