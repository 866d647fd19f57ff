//! Boots a guest, runs a script in it, and returns the output and the exit status over the serial console.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::archive::Archive;
use super::guest::{BARE_MIB, Guest};
use super::libraries;
use super::modules::{self, MEMORY_DISK};
use super::prepare::Prepared;
use super::system;
use crate::process::check_interrupt;

/// The script's output lies between these lines on the console; the kernel's own messages do not go there.
const BEGIN: &str = "=== smtt: the script begins";
const END: &str = "=== smtt: the script ended with ";
/// Interval at which Ctrl-C and the time limit are checked.
const POLL: Duration = Duration::from_millis(200);
/// Time for a guest to switch itself off after its last line.
const OFF_TIME: Duration = Duration::from_secs(10);
/// Lines of the console in the error message of a failed guest.
const SHOWN_LINES: usize = 25;

/// Mount point of the disk in the guest.
pub const DISK: &str = "/disk";

/// Script lines that give the guest 64 MiB of swap, on a RAM disk: the kernel swaps pages as with any other disk.
#[must_use]
pub fn swap_on() -> String {
    format!(
        "insmod /swap/00-{MEMORY_DISK}.ko rd_nr=1 rd_size=65536\n\
         mkswap /dev/ram0 > /tmp/mkswap && swapon /dev/ram0\n"
    )
}

/// A file of the guest; a program brings its shared libraries.
pub struct GuestFile {
    /// Path on this machine.
    pub here: PathBuf,
    /// Path in the guest.
    pub there: String,
}

/// What runs in a guest when its kernel has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Init {
    /// A shell with the script, and nothing else.
    Shell,
    /// systemd of the disk, which is the root file system; the script is a service. See [`super::system`].
    Systemd,
}

/// A bootable machine: four processors on two nodes.
pub struct Machine<'a> {
    /// The emulated machine.
    pub guest: &'a Guest,
    /// Emulator, kernel and shell of the guest.
    pub prepared: &'a Prepared,
    /// Files of the guest.
    pub files: Vec<GuestFile>,
    /// A writable ext4 image that is mounted at [`DISK`]; changes are discarded.
    pub disk: Option<PathBuf>,
    /// What runs in the guest.
    pub init: Init,
    /// Time limit from power on to power off.
    pub time_out: Duration,
    /// Log of the console.
    pub log: PathBuf,
}

/// The result of a script.
pub struct Ran {
    /// The script's exit status.
    pub status: i32,
    /// From power on to the script's first line.
    pub boot: Duration,
    /// The script's own time.
    pub script: Duration,
}

/// The emulator process; dropping this value kills it.
struct Emulator(Child);

impl Drop for Emulator {
    fn drop(&mut self) {
        // Both calls fail only when the emulator has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Machine<'_> {
    /// Boots, runs `script` with the guest's shell as root, and passes each line of its output to `line`.
    ///
    /// # Errors
    /// When the emulator does not start, or the guest stops or takes too long; with the end of its console.
    pub fn run(&self, script: &str, mut line: impl FnMut(&str)) -> Result<Ran> {
        let initial = self.log.with_extension("cpio");
        fs::write(&initial, self.first_file_system(script)?)
            .with_context(|| format!("cannot write {}", initial.display()))?;
        let mut log = File::create(&self.log)
            .with_context(|| format!("cannot write {}", self.log.display()))?;
        let start = Instant::now();
        let mut emulator = self.start(&initial)?;
        let lines = console_lines(&mut emulator)?;

        let mut tail = Vec::new();
        let (mut begun, mut ended) = (None, None);
        while ended.is_none() {
            let text = match lines.recv_timeout(POLL) {
                Ok(text) => text,
                Err(RecvTimeoutError::Timeout) => {
                    check_interrupt()?;
                    if start.elapsed() < self.time_out {
                        continue;
                    }
                    let seconds = self.time_out.as_secs();
                    bail!(self.failed(
                        &format!("was not ready after {seconds} s and was switched off"),
                        &tail
                    ));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!(self.failed("stopped before its script ended", &tail))
                }
            };
            writeln!(log, "{text}").context("cannot write the console's log")?;
            if let Some(status) = text
                .split_once(END)
                .and_then(|(_, status)| status.trim().parse::<i32>().ok())
            {
                ended = Some((status, Instant::now()));
            } else if begun.is_some() {
                line(&text);
            } else if text.contains(BEGIN) {
                begun = Some(Instant::now());
            }
            tail.push(text);
            if tail.len() > SHOWN_LINES {
                tail.remove(0);
            }
        }
        // The pipe closes when the emulator ends; the owner kills a guest that hangs while switching off.
        let _ = lines.recv_timeout(OFF_TIME);
        let _ = fs::remove_file(&initial);
        let ((status, ended), begun) = (
            ended.context("no end")?,
            begun.context("the script ended before it began")?,
        );
        Ok(Ran {
            status,
            boot: begun - start,
            script: ended - begun,
        })
    }

    fn failed(&self, what: &str, tail: &[String]) -> String {
        format!(
            "the emulated machine {} {what}. The end of its console ({}):\n  {}",
            self.guest.name,
            self.log.display(),
            tail.join("\n  ")
        )
    }

    fn start(&self, initial: &Path) -> Result<Emulator> {
        let mut command = self.prepared.emulator(self.guest.processor);
        command.args(self.guest.processor.machine());
        let memory = format!("{}M", self.guest.node_mib);
        let (processors, memory_slots) = if self.guest.bare_nodes {
            ("5", format!(",slots=1,maxmem={}M", 4 * self.guest.node_mib))
        } else {
            (self.guest.processor.four(), String::new())
        };
        command.args([
            "-accel",
            "tcg",
            "-smp",
            processors,
            "-m",
            &format!("{}M{memory_slots}", 2 * self.guest.node_mib),
        ]);
        for (node, processors) in ["0-1", "2-3"].iter().enumerate() {
            command.args([
                "-object",
                &format!("memory-backend-ram,size={memory},id=memory{node}"),
            ]);
            command.args([
                "-numa",
                &format!("node,nodeid={node},memdev=memory{node},cpus={processors}"),
            ]);
        }
        if self.guest.bare_nodes {
            command.args(["-numa", "node,nodeid=2,cpus=4", "-numa", "node,nodeid=3"]);
            command.args([
                "-object",
                &format!("memory-backend-ram,size={BARE_MIB}M,id=memory3"),
            ]);
            command.args(["-device", "pc-dimm,id=dimm3,memdev=memory3,node=3"]);
        }
        command.args([
            "-nodefaults",
            "-display",
            "none",
            "-no-reboot",
            "-serial",
            "stdio",
        ]);
        command
            .arg("-kernel")
            .arg(&self.prepared.kernel)
            .arg("-initrd")
            .arg(initial);
        // `panic=-1`: a panic restarts at once, and the emulator ends instead of restarting. Hot-plugged memory gets
        // only movable pages, so it can go offline again. The kernel's timer check is off: it fails where this machine
        // is too busy to emulate some ticks in time.
        command.args([
            "-append",
            &format!(
                "{} quiet loglevel=1 panic=-1 no_timer_check memhp_default_state=online_movable \
                 rdinit=/init systemd.show_status=no systemd.getty_auto=no",
                self.guest.processor.parameters()
            ),
        ]);
        if let Some(disk) = &self.disk {
            command.args(["-device", "virtio-blk-pci,drive=disk"]);
            command.args([
                "-drive",
                &format!(
                    "id=disk,if=none,format=raw,snapshot=on,file={}",
                    disk.display()
                ),
            ]);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .with_context(|| format!("cannot start the emulator for {}", self.guest.name))?;
        Ok(Emulator(child))
    }

    fn first_file_system(&self, script: &str) -> Result<Vec<u8>> {
        let read =
            |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let mut archive = Archive::default();
        for folder in ["/proc", "/sys", "/tmp", "/etc", "/run", DISK] {
            archive.folder(folder);
        }
        archive.device("/dev/console", 5, 1);
        archive.file("/bin/busybox", &read(&self.prepared.busybox)?);
        archive.link("/bin/sh", "busybox");
        let (first, prefix) = match self.init {
            Init::Shell => (init(self.guest, self.disk.is_some()), ""),
            Init::Systemd => (system::init(BEGIN, END), system::FILES),
        };
        archive.file("/init", first.as_bytes());
        archive.file("/script", format!("{script}\n").as_bytes());
        // The shell expands the pattern in the order of the names.
        let mut add = |folder: &str, modules: Vec<(String, Vec<u8>)>| {
            for (order, (name, content)) in modules.iter().enumerate() {
                archive.file(&format!("/{folder}/{order:02}-{name}.ko"), content);
            }
        };
        add("swap", modules::for_swap(&self.prepared.modules)?);
        if self.disk.is_some() {
            add("modules", modules::for_disk(&self.prepared.modules)?);
        }
        for file in &self.files {
            let content = read(&file.here)?;
            archive.file(&format!("{prefix}{}", file.there), &content);
            if self.init == Init::Shell && content.starts_with(b"\x7fELF") {
                let folders = &self.prepared.libraries;
                for (there, here) in libraries::needed_by(&file.here, folders)? {
                    archive.file(&there, &read(&here)?);
                }
            }
        }
        Ok(archive.finish())
    }
}

/// Reads the console in a separate thread, so that a wait for it has a limit.
fn console_lines(emulator: &mut Emulator) -> Result<mpsc::Receiver<String>> {
    let console = emulator
        .0
        .stdout
        .take()
        .context("the emulator has no console")?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(console);
        let mut bytes = Vec::new();
        while reader
            .read_until(b'\n', &mut bytes)
            .is_ok_and(|read| read > 0)
        {
            let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
            if sender.send(text).is_err() {
                break;
            }
            bytes.clear();
        }
    });
    Ok(receiver)
}

/// The guest's first program. NUMA balancing is off: the kernel unmaps pages for a moment to see which node uses them,
/// and each causes a page fault that the tests' programs do not expect. The kernel does not sample less where its handler seems
/// slow: an emulated processor waits for a real one.
fn init(guest: &Guest, disk: bool) -> String {
    // No hierarchy of version 1 takes the controller. A guest whose kernel has none fails in its tests.
    let cgroups = if guest.has("memory_cgroup_2") {
        "mount -t cgroup2 cgroup /sys/fs/cgroup\n\
         echo +memory > /sys/fs/cgroup/cgroup.subtree_control\n"
    } else {
        ""
    };
    let disk = if disk {
        "for module in /modules/*; do insmod $module; done\n\
         mount -t ext4 /dev/vda /disk\n\
         for part in proc sys dev tmp; do mount --rbind /$part /disk/$part; done\n"
    } else {
        ""
    };
    format!(
        "#!/bin/sh\n\
         /bin/busybox --install -s /bin\n\
         export PATH=/bin HOME=/tmp\n\
         mount -t devtmpfs dev /dev\n\
         mount -t proc proc /proc\n\
         mount -t sysfs sys /sys\n\
         mount -t tracefs trace /sys/kernel/tracing\n\
         mount -t debugfs debug /sys/kernel/debug\n\
         mount -t bpf bpf /sys/fs/bpf\n\
         {cgroups}chmod 1777 /tmp\n\
         ip link set lo up\n\
         echo 0 > /proc/sys/kernel/numa_balancing\n\
         echo 0 > /proc/sys/kernel/perf_cpu_time_max_percent\n\
         hostname guest\n\
         {disk}\
         echo '{BEGIN}'\n\
         sh /script 2>&1\n\
         echo '{END}'$?\n\
         poweroff -f\n"
    )
}
