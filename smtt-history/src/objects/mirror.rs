//! Copies applications from a bucket into a folder of this machine, within a bound of bytes.
//!
//! The folder has the layout of a store, so the same code reads both. A listing, at most one every [`FRESH`], finds new
//! objects; an object that has not changed is copied once. Where the bucket gives no answer, readers get the copy that is
//! there: an application that has ended does not change.

mod files;
mod plan;

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use moka::sync::Cache;
use nix::fcntl::OFlag;
use smtt_store::history::{place, workers};
use tempfile::TempDir;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::bucket::{Bucket, POINTER, Pointer, Trouble};
use crate::workers::uncopied;

use plan::{Plan, missing_tables, plan_of_parts, plan_of_tables, plan_of_workers, size};
pub(super) use plan::{finished, parts_up_to, table};

/// Age up to which a listing is used, and time after a failed one before the next.
const FRESH: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(5));
/// How long a request waits for a copy: where an older one is there, and where there is none.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(30));
/// A copy that was asked for so recently does not make room for others: an answer may be reading it.
const IN_USE: Duration = Duration::from_secs(60);
/// Time limit of a copy.
const TIME: Duration = Duration::from_secs(3600);
/// Applications that are copied at a time, and objects of each.
const COPIES: (usize, usize) = (4, 8);
/// Folders that are listed and copied at a time. They are finished also when no request waits for them any more.
const RUNNING: usize = 1_000;
/// Retries where the objects of an application change while they are copied.
const TRIES: u32 = 5;
/// Names whose last listing is remembered.
const NAMES: u64 = 100_000;
/// Folders of workers at most that are not copied.
const MARKED: usize = 10_000;
/// Prefix of the temporary folder in which a process keeps its copies.
const FOLDER: &str = "smtt-objects-";

/// What is known of one copied folder.
#[derive(Debug)]
struct Copy {
    plan: Arc<Plan>,
    /// The pointer's ETag, where the tables have one.
    pointer: Option<String>,
    /// Tables that the pointer names and that do not exist: the copy has the parts.
    missing: Vec<String>,
    bytes: u64,
    used: Instant,
}

#[derive(Debug, Default)]
struct State {
    copies: HashMap<String, Copy>,
    /// Bytes that are being copied, by the folder.
    coming: HashMap<String, u64>,
}

/// Disk space that is reserved for a copy while it is made. It is released also where the copy is given up in the middle.
#[derive(Debug)]
struct CopyReservation<'a> {
    state: &'a Mutex<State>,
    folder: &'a str,
}

impl Drop for CopyReservation<'_> {
    fn drop(&mut self) {
        held(self.state).coming.remove(self.folder);
    }
}

type Ended = watch::Receiver<Option<Result<(), Trouble>>>;

/// A listing that runs. However it ends, its name is free again, and those who wait for it have an answer.
struct Running {
    mirror: Arc<Mirror>,
    folder: String,
    end: watch::Sender<Option<Result<(), Trouble>>>,
    result: Option<Result<(), Trouble>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let (mirror, folder) = (&self.mirror, &self.folder);
        let result = self.result.take().unwrap_or_else(|| {
            let shown = mirror.bucket.shown(folder);
            let what = format!("{shown}: the copy ended by an error of this program");
            Err(Trouble::Failed(what))
        });
        if let Err(trouble) = &result {
            tracing::warn!("{trouble}");
        }
        let said = (Instant::now(), result.clone().err());
        mirror.listed.insert(folder.clone(), said);
        held(&mirror.running).remove(folder);
        // Those who waited may have gone.
        let _ = self.end.send(Some(result));
    }
}

/// The pointer's ETag and missing tables, for the files of a plan.
#[derive(Debug, Default)]
struct Pointed {
    /// Its ETag, where the files are its tables.
    tag: Option<String>,
    /// Tables that it names and that do not exist.
    missing: Vec<String>,
}

/// The copies of one bucket's applications, in a temporary folder.
pub struct Mirror {
    bucket: Arc<Bucket>,
    root: TempDir,
    /// Held as long as the folder is in use.
    _in_use: Option<File>,
    most: u64,
    /// How long a copy that was asked for does not make room for others.
    in_use: Duration,
    state: Mutex<State>,
    running: Mutex<HashMap<String, Ended>>,
    /// When a name was last listed, and why that failed.
    listed: Cache<String, (Instant, Option<Trouble>)>,
    /// Folders of workers that did not exist at the last listing.
    absent: Cache<String, ()>,
    /// Folders of workers that are not copied.
    marked: Mutex<HashSet<String>>,
    copying: Semaphore,
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the folders of killed processes: no process holds their locks. A folder younger than `age` stays, because its
/// process may not have locked it yet.
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

impl std::fmt::Debug for Mirror {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Mirror")
            .field("root", &self.root.path())
            .finish_non_exhaustive()
    }
}

/// Path of one of the workers' folders in the store.
fn below_workers(folder: &str) -> String {
    format!("{}/{folder}", workers::FOLDER)
}

impl Mirror {
    /// Makes an empty folder for copies of at most `most` bytes.
    ///
    /// # Errors
    /// When the temporary folder cannot be written.
    pub fn new(bucket: Arc<Bucket>, most: u64) -> std::io::Result<Self> {
        Self::with(bucket, most, IN_USE)
    }

    /// As [`Mirror::new`], for a command: all its copies are in use to its end.
    ///
    /// # Errors
    /// As [`Mirror::new`].
    pub fn keeping(bucket: Arc<Bucket>, most: u64) -> std::io::Result<Self> {
        Self::with(bucket, most, Duration::MAX)
    }

    fn with(bucket: Arc<Bucket>, most: u64, in_use: Duration) -> std::io::Result<Self> {
        sweep(&std::env::temp_dir(), Duration::from_secs(60));
        let root = tempfile::Builder::new().prefix(FOLDER).tempdir()?;
        let lock = File::open(root.path())?;
        let _in_use = lock.try_lock().is_ok().then_some(lock);
        fs::create_dir(root.path().join(workers::FOLDER))?;
        Ok(Self {
            bucket,
            root,
            _in_use,
            most,
            in_use,
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
            marked: Mutex::default(),
            copying: Semaphore::new(COPIES.0),
        })
    }

    /// The folder, which has the form of a store.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.root.path()
    }

    /// The bucket whose applications are copied.
    #[must_use]
    pub const fn bucket(&self) -> &Arc<Bucket> {
        &self.bucket
    }

    /// Bytes of copies at most.
    #[must_use]
    pub const fn most(&self) -> u64 {
        self.most
    }

    /// Brings the copies of an application and of the workers' files about it up to date. Where only the latter fail, the
    /// application is copied without them, and a mark tells its readers ([`uncopied`]).
    ///
    /// # Errors
    /// When the store gives no answer for the application itself and there is no copy.
    pub async fn refresh(
        self: &Arc<Self>,
        application: &str,
        attempt: Option<&str>,
    ) -> Result<(), Trouble> {
        let Some(name) = place::name(application, attempt) else {
            return Ok(());
        };
        let of_workers = workers::folders(application, attempt);
        let bring = |at: usize| {
            let folder = of_workers.get(at);
            async move {
                let Some(folder) = folder else {
                    return Ok(());
                };
                let trouble = self.bring(&below_workers(folder)).await.err();
                self.mark(folder, trouble)
            }
        };
        let (own, named, unnamed) = tokio::join!(self.bring(&name), bring(0), bring(1));
        own.and(named).and(unnamed)
    }

    /// As [`Mirror::refresh`], however long it takes.
    ///
    /// # Errors
    /// As [`Mirror::refresh`].
    pub async fn copied(&self, application: &str, attempt: Option<&str>) -> Result<(), Trouble> {
        let Some(name) = place::name(application, attempt) else {
            return Ok(());
        };
        self.update(&name).await?;
        for folder in workers::folders(application, attempt) {
            let trouble = self.update(&below_workers(&folder)).await.err();
            if let Some(trouble) = &trouble {
                tracing::warn!("what the workers wrote is left out: {trouble}");
            }
            self.mark(&folder, trouble)?;
        }
        Ok(())
    }

    /// Makes or removes the mark that one of the workers' folders is not copied.
    fn mark(&self, folder: &str, trouble: Option<Trouble>) -> Result<(), Trouble> {
        let mut marked = held(&self.marked);
        if trouble.is_some() == marked.contains(folder) {
            return Ok(());
        }
        let path = uncopied(self.folder(), folder);
        let done = match trouble {
            Some(trouble) if marked.len() >= MARKED => return Err(trouble),
            Some(_) => File::create(&path).map(|_| {
                marked.insert(folder.to_owned());
            }),
            None => fs::remove_file(&path).map(|()| {
                marked.remove(folder);
            }),
        };
        done.map_err(|error| Trouble::Failed(format!("{}: {error}", path.display())))
    }

    /// Tables that an application's pointer names and that the bucket does not have.
    #[must_use]
    pub fn missing(&self, name: &str) -> Vec<String> {
        let state = held(&self.state);
        let copy = state.copies.get(name);
        copy.map(|copy| copy.missing.clone()).unwrap_or_default()
    }

    /// Forgets the last listing of an application, so that the next request lists it again.
    pub fn forget(&self, name: &str) {
        self.listed.invalidate(name);
    }

    /// Brings the copy of one folder up to date, and waits for it with a time limit.
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
                let is_late = has_copy || self.is_marked(folder);
                let patience = if is_late { PATIENCE.0 } else { PATIENCE.1 };
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

    /// Whether it is one of the workers' folders without which an application is answered.
    fn is_marked(&self, folder: &str) -> bool {
        let of = folder.strip_prefix(workers::FOLDER);
        let own = of.and_then(|it| it.strip_prefix('/'));
        own.is_some_and(|it| held(&self.marked).contains(it))
    }

    /// Begins a listing, or joins the one of that folder that runs.
    fn begin(self: &Arc<Self>, folder: &str) -> Ended {
        let (mirror, name) = (Arc::clone(self), folder.to_owned());
        self.begin_with(folder, async move { mirror.update(&name).await })
    }

    fn begin_with(
        self: &Arc<Self>,
        folder: &str,
        update: impl Future<Output = Result<(), Trouble>> + Send + 'static,
    ) -> Ended {
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
        let mut of = Running {
            mirror: Arc::clone(self),
            folder: folder.to_owned(),
            end,
            result: None,
        };
        tokio::spawn(async move {
            of.result = Some(match timeout(TIME, update).await {
                Ok(result) => result,
                Err(_) => Err(Trouble::Failed(format!(
                    "{}: copying took longer than {} s",
                    of.mirror.bucket.shown(&of.folder),
                    TIME.as_secs()
                ))),
            });
            drop(of);
        });
        ended
    }

    /// Lists a folder and copies what is new.
    pub(super) async fn update(&self, folder: &str) -> Result<(), Trouble> {
        let mut pause = Duration::from_millis(100);
        let mut tries = 0;
        loop {
            match self.update_once(folder, tries == TRIES).await {
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

    /// One try of [`Self::update`]. `is_last` says that no other process is replacing the tables: those that are missing
    /// stay missing.
    async fn update_once(&self, folder: &str, is_last: bool) -> Result<(), Trouble> {
        let objects = self.bucket.list(folder).await?;
        if folder.starts_with(workers::FOLDER) {
            let plan = plan_of_workers(&objects);
            if plan.is_empty() {
                self.absent.insert(folder.to_owned(), ());
            } else {
                self.absent.invalidate(folder);
            }
            return self.copy(folder, plan, Pointed::default()).await;
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
            if let Some(plan) = plan_of_tables(&objects, Some(&generation)) {
                let pointed = Pointed {
                    tag: version.e_tag,
                    missing: Vec::new(),
                };
                return self.copy(folder, plan, pointed).await;
            }
            let missing = missing_tables(&objects, &generation);
            let is_known = self.missing(folder) == missing;
            let plan = plan_of_parts(&objects);
            if plan.is_empty() || !(is_last || is_known) {
                return Err(changed());
            }
            if !is_known {
                tracing::warn!(
                    "{}: {POINTER} names tables that do not exist ({}): what its parts have is shown",
                    self.bucket.shown(folder),
                    missing.join(", ")
                );
            }
            return self
                .copy(folder, plan, Pointed { tag: None, missing })
                .await;
        }
        // A folder of another store that was copied into the bucket.
        let plain = plan_of_tables(&objects, None);
        let plan = plain.unwrap_or_else(|| plan_of_parts(&objects));
        self.copy(folder, plan, Pointed::default()).await
    }

    /// Makes the copy of a folder equal to the plan.
    async fn copy(&self, folder: &str, plan: Plan, pointed: Pointed) -> Result<(), Trouble> {
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
                let trash = self.move_to_trash(&target);
                drop(state);
                drop(trash.map_err(local)?);
            }
            return Ok(());
        }
        if known.as_deref() == Some(&plan) {
            return match held(&self.state).copies.get_mut(folder) {
                Some(copy) => {
                    (copy.pointer, copy.missing) = (pointed.tag, pointed.missing);
                    Ok(())
                }
                // It made room for another one just now.
                None => Err(Trouble::Changed(self.bucket.shown(folder))),
            };
        }
        let _turn = self.copying.acquire().await;
        let bytes = plan.values().map(size).fold(0, u64::saturating_add);
        let _reservation = self.reserve(folder, bytes)?;
        self.copy_files(folder, &target, &plan, known.as_deref())
            .await?;
        let copy = Copy {
            plan: Arc::new(plan),
            pointer: pointed.tag,
            missing: pointed.missing,
            bytes,
            used: Instant::now(),
        };
        held(&self.state).copies.insert(folder.to_owned(), copy);
        Ok(())
    }

    /// Reserves disk space for a copy, and removes the copies that were asked for longest ago until there is enough. A copy
    /// that is being renewed stays: its files may become those of the new one.
    fn reserve<'a>(&'a self, folder: &'a str, bytes: u64) -> Result<CopyReservation<'a>, Trouble> {
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
                *name != folder
                    && !state.coming.contains_key(*name)
                    && copy.used.elapsed() > self.in_use
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
            match self.move_to_trash(&self.root.path().join(&name)) {
                Ok(trash) => gone.push(trash),
                Err(error) => tracing::warn!(name, %error, "cannot remove a copy"),
            }
        }
        state.coming.insert(folder.to_owned(), bytes);
        drop(state);
        // The files go without the lock: they may be many.
        drop(gone);
        Ok(CopyReservation {
            state: &self.state,
            folder,
        })
    }

    /// Moves a folder that readers may have open into a temporary one, which removes it when it is dropped.
    fn move_to_trash(&self, folder: &Path) -> std::io::Result<TempDir> {
        let trash = tempfile::Builder::new()
            .prefix(".gone-")
            .tempdir_in(self.root.path())?;
        match fs::rename(folder, trash.path().join("copy")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(trash),
        }
    }
}

#[cfg(test)]
mod tests;
