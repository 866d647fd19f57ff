//! Probes on the marker's native library: every file once, and only files with the bytes of a library that the
//! configuration names.
//!
//! A file of an executor belongs to its user, who may exchange it, change it, or let its file system wait. Therefore:
//!
//! * Bytes decide. A file is probed where its size and SHA-256 are those of a known library; offsets of entry points come
//!   from the known library. A foreign file is never parsed.
//! * One descriptor. It is checked, read and probed; a name is resolved once, at its opening.
//! * All probes of a file or none; an error is not remembered.
//! * An inode has the probes once, however many overlay mounts show it.
//! * A file whose executors have ended is given back, on a thread of its own: the kernel takes its time for that.
//!
//! The owner of a file can still change its bytes afterwards. Then the breakpoints are at these offsets of his own file,
//! in processes that map a file that he can write: nothing that he could not write there himself.

mod configured;
mod differences;
mod inode;
mod known;
mod link;
mod multi;
mod places;
mod rate_limit;
mod state;

use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use aya::Ebpf;
use aya::programs::UProbe;
use nix::fcntl::OFlag;
use smtt_machine::foreign::Mapped;
use smtt_machine::proc::{Handle, Image};
use smtt_model::sort::small::Gather as _;

use self::inode::Page;
use self::known::{Digest, Known, digest, hex};
use self::link::{Attacher, Links, close};
pub use self::places::FilePlaces;
use self::places::{Admission, Held};
use self::state::{FileId, Probed, Stamp, State};
use crate::subordinate::ShareOwners;

/// Most bytes of a library; the marker's has a few kilobytes.
const SIZE_MAX: u64 = 1 << 20;
/// Most versions of libraries that are known; an upgrade of a configured file adds one.
const KNOWN_MAX: usize = 64;
/// Most processes with slot files of another layout that are remembered: any user can make them.
const OTHER_LAYOUTS_MAX: usize = 1024;
/// How long a file keeps its probes without an executor: the next one may have the same file.
const IDLE: Duration = Duration::from_secs(5);
/// A process with a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    /// Process id in the daemon's namespace.
    pub pid: u32,
    /// The program that it runs.
    pub image: Image,
    /// User whose share it uses.
    pub share: u32,
}

/// Result of an attempt to probe the library of an executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probing {
    /// The file has all its probes.
    Probed,
    /// The file's bytes are those of no known library. The text names its digest where it was computed.
    Unknown(String),
    /// The file could not be judged or probed now; a later attempt may succeed.
    Failed(String),
}

/// The files that are probed. Any thread may use it; the lock of the state is never held while a file or the kernel is
/// waited for.
#[derive(Debug)]
pub struct Libraries {
    attacher: Attacher,
    /// Held by the thread that attaches: another one may have the same inode.
    turn: Mutex<()>,
    state: Mutex<State>,
    closing: Sender<(Links, Arc<Page>)>,
    /// Places for files of executors with probes: a descriptor each, 19 before Linux 6.6.
    places: FilePlaces,
    owners: Arc<ShareOwners>,
}

impl Libraries {
    /// Loads the program that goes on every entry point.
    pub(super) fn load(
        ebpf: &mut Ebpf,
        object: &[u8],
        places: FilePlaces,
        owners: Arc<ShareOwners>,
    ) -> anyhow::Result<Self> {
        let program: &mut UProbe = ebpf
            .program_mut("marker")
            .context("the object lacks the program for the marker")?
            .try_into()?;
        program
            .load()
            .context("the kernel refuses the program for the marker's entry points")?;
        let program = program.fd()?.try_clone()?;
        let multi = multi::load(object, ebpf, "marker")
            .inspect_err(|error| tracing::debug!("one link per entry point: {error:#}"))
            .ok();
        let (closing, closed) = channel::<(Links, Arc<Page>)>();
        std::thread::Builder::new()
            .name("smtt-detach".into())
            .spawn(move || {
                while let Ok((mut links, page)) = closed.recv() {
                    let mut pages = vec![page];
                    for (more, page) in closed.try_iter() {
                        links.extend(more);
                        pages.push(page);
                    }
                    close(links);
                }
            })
            .context("no thread that detaches probes")?;
        Ok(Self {
            attacher: Attacher::new(program, multi)?,
            turn: Mutex::default(),
            state: Mutex::default(),
            closing,
            places,
            owners,
        })
    }

    /// The user whose share processes of this user use.
    #[must_use]
    pub fn share_of(&self, uid: u32) -> u32 {
        self.owners.share_of(uid)
    }

    /// The owners of subordinate ids, as they are at each moment.
    #[must_use]
    pub fn owners(&self) -> Arc<ShareOwners> {
        Arc::clone(&self.owners)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes a file's probes on the thread for that. Its page is there until the kernel has removed them.
    fn close(&self, file: Probed) {
        // The thread ends only with this value. If it is gone all the same, the links are closed here.
        let _ = self.closing.send((file.links, file.page));
    }

    /// Detaches from all files, at the daemon's end: one after the other would take the kernel seconds per file.
    pub(super) fn detach_all(&self) {
        let files = std::mem::take(&mut self.state().files);
        close(
            files
                .into_values()
                .flat_map(|probed| probed.links)
                .collect(),
        );
    }

    /// Adds digests of libraries that may be probed in executors.
    pub fn trust(&self, digests: &[Digest]) {
        self.state().digests.extend_from_slice(digests);
    }

    /// Probes the library of an executor, at an address range of `/proc/PID/map_files`. May wait for the file's storage
    /// and for the process's memory lock: only on a thread that can be given up.
    pub fn probe(&self, process: Process, handle: &Handle, range: &str) -> Probing {
        match self.try_probe(process, handle, range) {
            Ok(Probing::Probed) => {
                self.state().unknown.remove(&process);
                Probing::Probed
            }
            Ok(other) => {
                self.state().unknown.insert(process);
                other
            }
            Err(error) => Probing::Failed(format!("{error:#}")),
        }
    }

    fn try_probe(&self, process: Process, handle: &Handle, range: &str) -> anyhow::Result<Probing> {
        let mapped = Mapped::open(handle, range).context("it is mapped no more")?;
        if let Some(why) = mapped.refused_file_system(handle)? {
            return Ok(Probing::Unknown(format!("{why}, so it is not read")));
        }
        ensure!(mapped.known()?.regular, "it is no regular file");
        let file = mapped
            .reopen(OFlag::O_RDONLY)
            .context("it cannot be opened")?;
        let metadata = file.metadata()?;
        let (id, size) = (id(&metadata), metadata.len());
        if self.has_probes(&file, id, process) {
            return Ok(Probing::Probed);
        }
        let any_size = {
            let state = self.state();
            let any_size = !state.digests.is_empty() && size <= SIZE_MAX;
            if !any_size && !state.known.iter().any(|known| known.size == size) {
                return Ok(Probing::Unknown(format!(
                    "no known library has its {size} bytes"
                )));
            }
            any_size
        };
        let bytes = bytes(&file, size)?;
        let found = digest(&bytes);
        let known = {
            let mut state = self.state();
            let mut known = state
                .known
                .iter()
                .find(|known| known.digest == found)
                .cloned();
            if known.is_none() && any_size && state.digests.contains(&found) {
                let parsed = Known::parse(&bytes).context("its digest is configured")?;
                if state.known.len() < KNOWN_MAX {
                    state.known.push(parsed.clone());
                }
                known = Some(parsed);
            }
            let Some(known) = known else {
                return Ok(Probing::Unknown(format!("its SHA-256 is {}", hex(&found))));
            };
            ensure!(
                state.pace.admits(process.share, Instant::now()),
                "user {} brings too many library files",
                process.share
            );
            known
        };
        self.attach(&file, id, &known, Some(process))?;
        Ok(Probing::Probed)
    }

    /// Counts a process of a file that has probes by its numbers. An overlay's file keeps its numbers when a change makes
    /// it another inode, which has none: the breakpoint decides.
    fn has_probes(&self, file: &File, id: FileId, process: Process) -> bool {
        let offset = self.state().files.get(&id).map(|probed| probed.page.offset);
        let page = offset.and_then(|offset| Page::map(file, offset).ok());
        if !page.is_some_and(|page| page.is_probed().unwrap_or(false)) {
            return false;
        }
        let mut state = self.state();
        let probed = state.files.get_mut(&id);
        probed
            .map(|probed| probed.executors.insert(process))
            .is_some()
    }

    /// Attaches all probes to a file, unless its inode has them. It is a process's, or one of the configuration. Returns
    /// the file that has the probes.
    fn attach(
        &self,
        file: &File,
        id: FileId,
        known: &Known,
        process: Option<Process>,
    ) -> anyhow::Result<FileId> {
        let begin = Instant::now();
        let (_, pad) = known.entries.first().context("it has no entry point")?;
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let page = Arc::new(Page::map(file, *pad).context("its code cannot be mapped")?);
        let was_probed = page.is_probed()?;
        let known_as = if was_probed {
            self.same_inode(file, *pad, &page)?
        } else {
            None
        };
        if let Some(known_as) = known_as {
            let mut state = self.state();
            let probed = state.files.get_mut(&known_as);
            let probed = probed.context("its probes are being removed")?;
            probed.configured |= process.is_none();
            probed.executors.extend(process);
            return Ok(known_as);
        }
        if let Some(process) = process {
            self.make_room(&mut self.state(), process.share)?;
        }
        let links = self.attacher.attach(file, &known.entries);
        let probed = Probed {
            links: links.context("the kernel refuses a probe")?,
            page,
            digest: known.digest,
            differences: known.differences.clone(),
            configured: process.is_none(),
            share: process.map_or(0, |process| process.share),
            executors: process.into_iter().gather(),
            idle_since: Instant::now(),
        };
        let page = Arc::downgrade(&probed.page);
        if !probed.page.is_probed()? {
            // An overlay shows another inode after its first change, which came in between.
            self.close(probed);
            bail!("it changes");
        }
        let mut state = self.state();
        state.pages.retain(|page| page.strong_count() > 0);
        state.pages.push(page);
        state.replace_id(id);
        state.files.insert(id, probed);
        tracing::debug!(
            milliseconds = begin.elapsed().as_millis() as u64,
            "probes attached"
        );
        Ok(id)
    }

    /// The file with probes that is the same inode, if there is one. Only in turn: another thread's mark would mislead.
    fn same_inode(&self, file: &File, pad: u64, own: &Arc<Page>) -> anyhow::Result<Option<FileId>> {
        let mut pages = vec![Arc::clone(own)];
        {
            let mut state = self.state();
            state.pages.retain(|page| page.strong_count() > 0);
            pages.extend(state.pages.iter().filter_map(Weak::upgrade));
        }
        let mut marked = inode::marked(&self.attacher, file, pad, pages)?;
        ensure!(
            !marked.is_empty() && Arc::ptr_eq(&marked.remove(0), own),
            "it changes"
        );
        if marked.is_empty() {
            return Ok(None);
        }
        let state = self.state();
        let files = state.files.iter();
        let mut same =
            files.filter(|(_, probed)| marked.iter().any(|page| Arc::ptr_eq(page, &probed.page)));
        let (id, _) = same
            .next()
            .context("its earlier probes are being removed")?;
        ensure!(same.next().is_none(), "several files seem to be its inode");
        Ok(Some(*id))
    }

    /// Makes room for one more file of a share; files without executors go.
    fn make_room(&self, state: &mut State, share: u32) -> anyhow::Result<()> {
        loop {
            let files = state.files.iter().filter(|(_, file)| !file.configured);
            let held = files.map(|(id, file)| Held {
                id: *id,
                share: file.share,
                idle_since: file.executors.is_empty().then_some(file.idle_since),
            });
            let idle = match self.places.admit(held, share) {
                Admission::Free => return Ok(()),
                Admission::After(idle) => idle,
                Admission::Refused { own, all } => bail!(
                    "user {share} has {own} of {all} probed library files: there is no room for another"
                ),
            };
            if let Some(probed) = state.files.remove(&idle) {
                self.close(probed);
            }
        }
    }

    /// Forgets a process that has ended, or replaced its program.
    pub fn process_ended(&self, pid: u32, image: Image) {
        let mut state = self.state();
        let is = |process: &Process| process.pid == pid && process.image == image;
        state.unknown.retain(|process| !is(process));
        state.other_layout.retain(|process, _| !is(process));
        for probed in state.files.values_mut() {
            let before = probed.executors.len();
            probed.executors.retain(|process| !is(process));
            if probed.executors.len() < before {
                probed.idle_since = Instant::now();
            }
        }
    }

    /// Notes a process whose slot file has another layout than this daemon reads.
    pub fn note_other_layout(&self, process: Process, layout: u32) {
        let mut state = self.state();
        if state.other_layout.len() < OTHER_LAYOUTS_MAX {
            state.other_layout.insert(process, layout);
        }
    }

    /// Detaches from files whose executors have ended some time ago.
    pub fn give_back(&self) {
        let is_idle = |probed: &Probed| {
            let unused = !probed.configured && probed.executors.is_empty();
            unused && probed.idle_since.elapsed() >= IDLE
        };
        let files = &mut self.state().files;
        for (_, probed) in files.extract_if(|_, probed| is_idle(probed)) {
            self.close(probed);
        }
    }

    /// Number of files with probes.
    #[must_use]
    pub fn files(&self) -> usize {
        self.state().files.len()
    }

    /// Number of processes whose library is not known.
    #[must_use]
    pub fn unknown(&self) -> usize {
        self.state().unknown.len()
    }
}

fn id(metadata: &Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

fn stamp(metadata: &Metadata) -> Stamp {
    (
        id(metadata),
        metadata.len(),
        metadata.mtime(),
        metadata.mtime_nsec(),
    )
}

/// All bytes of an open file, which must have exactly this size.
fn bytes(file: &File, size: u64) -> anyhow::Result<Vec<u8>> {
    // One more byte shows a file that has grown.
    let mut bytes = vec![0; size as usize + 1];
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    ensure!(read as u64 == size, "its size changes");
    bytes.truncate(read);
    Ok(bytes)
}
