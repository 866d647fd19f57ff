//! Perf events, opened with exact attributes, and their counts.
//!
//! Sampling and calibration share this module. It knows the kernel's interface and nothing of page walks.

mod samples;

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use perf_event_open_sys::bindings::{
    DISABLE, ENABLE, PERF_FLAG_FD_CLOEXEC, PERF_FORMAT_TOTAL_TIME_ENABLED,
    PERF_FORMAT_TOTAL_TIME_RUNNING, PERF_IOC_FLAG_GROUP, PERF_SAMPLE_ADDR, PERIOD, RESET,
    perf_event_attr, perf_event_ioctls,
};
use perf_event_open_sys::perf_event_open;
use smtt_model::cpu::Encoding;

pub use self::samples::Samples;

/// Whose events are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Events of the calling thread, on any CPU.
    ThisThread,
    /// Events of the thread with that id, and of every thread and process that it starts from then on.
    Descendants(u32),
    /// Events of all processes on that CPU.
    Cpu(u32),
}

/// How an event is opened.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// The event.
    pub event: &'a Encoding,
    /// Whose events are counted.
    pub of: Of,
    /// Events per sample; zero counts only.
    pub period: u64,
    /// Whether samples carry the address of the data.
    pub addresses: bool,
    /// The leader of the event's group; the events of a group have their counters at the same time or not at all.
    pub leader: Option<&'a Event>,
}

/// The count of an event and its times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Events.
    pub value: u64,
    /// Nanoseconds for which it was switched on.
    pub enabled_ns: u64,
    /// Nanoseconds for which it had a counter.
    pub running_ns: u64,
}

/// Processes in which a uprobe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processes {
    /// All processes that map the file.
    All,
    /// The calling process only.
    This,
}

/// An open event. Dropping it closes it.
#[derive(Debug)]
pub struct Event(File);

impl Event {
    /// Opens an event: switched off if it leads a group or is alone, along with its leader otherwise.
    ///
    /// # Errors
    /// The kernel's refusal: `ENOENT` where the PMU does not know the event, `EINVAL` where the counters cannot hold
    /// the group, `EACCES` or `EPERM` without the right to, `EOPNOTSUPP` where it cannot be sampled.
    pub fn open(opening: Opening<'_>) -> io::Result<Self> {
        let Opening {
            event,
            of,
            period,
            addresses,
            leader,
        } = opening;
        let Some(kind) = event.perf_type else {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        };
        let mut attributes = attributes(kind, event.perf_config);
        attributes.config1 = event.config1;
        attributes.config2 = event.config2;
        attributes.sample_period = period;
        attributes.sample_type = if addresses {
            PERF_SAMPLE_ADDR.into()
        } else {
            0
        };
        attributes.read_format =
            (PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING).into();
        attributes.set_precise_ip(u64::from(event.precise_ip & 3));
        attributes.set_disabled(leader.is_none().into());
        attributes.set_inherit(matches!(of, Of::Descendants(_)).into());
        attributes.set_exclude_user(event.exclude_user.into());
        attributes.set_exclude_kernel(event.exclude_kernel.into());
        let (pid, cpu) = match of {
            Of::ThisThread => (0, -1),
            Of::Descendants(thread) => (thread as i32, -1),
            Of::Cpu(cpu) => (-1, cpu as i32),
        };
        let group = leader.map_or(-1, |leader| leader.0.as_raw_fd());
        Self::with(attributes, pid, cpu, group)
    }

    /// Opens a probe on an instruction of a file. `kind` is the type number of the PMU `uprobe`.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn uprobe(kind: u32, path: &CStr, offset: u64, processes: Processes) -> io::Result<Self> {
        let mut attributes = attributes(kind, 0);
        attributes.uprobe_path = path.as_ptr() as u64;
        attributes.probe_offset = offset;
        match processes {
            // The CPU that is named does not matter to a probe.
            Processes::All => Self::with(attributes, -1, 0, -1),
            Processes::This => Self::with(attributes, 0, -1, -1),
        }
    }

    /// Opens what the attributes say.
    fn with(mut attributes: perf_event_attr, pid: i32, cpu: i32, group: i32) -> io::Result<Self> {
        let flags = libc::c_ulong::from(PERF_FLAG_FD_CLOEXEC);
        // SAFETY: the attributes outlive the call and carry their own size.
        let fd = unsafe { perf_event_open(&raw mut attributes, pid, cpu, group, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        Ok(Self(unsafe { File::from_raw_fd(fd) }))
    }

    /// The count since the event was opened or reset.
    ///
    /// # Errors
    /// When the kernel has stopped the event for good (an end of file, which is reported as `UnexpectedEof`).
    pub fn read(&self) -> io::Result<Count> {
        let mut bytes = [0; 24];
        (&self.0).read_exact(&mut bytes)?;
        let mut words = bytes.chunks_exact(8).map(|word| {
            let mut number = [0; 8];
            number.copy_from_slice(word);
            u64::from_ne_bytes(number)
        });
        let mut word = || words.next().unwrap_or(0);
        Ok(Count {
            value: word(),
            enabled_ns: word(),
            running_ns: word(),
        })
    }

    /// Enables the group that this event leads. The other events are always enabled and follow the leader: an event
    /// that is enabled after its leader would not count when both are of different software PMUs of the kernel (Linux
    /// 6.18).
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn enable(&self) -> io::Result<()> {
        self.control(ENABLE, 0)
    }

    /// Disables the group that this event leads.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn disable(&self) -> io::Result<()> {
        self.control(DISABLE, 0)
    }

    /// Resets the counts of the group that this event leads; the times continue.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn reset(&self) -> io::Result<()> {
        self.control(RESET, PERF_IOC_FLAG_GROUP as usize)
    }

    /// Changes how many events make a sample, from the next sample on.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_period(&self, period: u64) -> io::Result<()> {
        self.control(PERIOD, &raw const period as usize)
    }

    fn control(&self, request: perf_event_ioctls, argument: usize) -> io::Result<()> {
        // SAFETY: the requests take a number, or a pointer to one that outlives the call.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), request as _, argument) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// Attributes of an event of a PMU; the rest is zero.
fn attributes(kind: u32, config: u64) -> perf_event_attr {
    perf_event_attr {
        type_: kind,
        size: size_of::<perf_event_attr>() as u32,
        config,
        ..perf_event_attr::default()
    }
}

impl From<Event> for OwnedFd {
    fn from(event: Event) -> Self {
        event.0.into()
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The text of a refusal, with what to do about it.
#[must_use]
pub fn refusal(error: &io::Error) -> String {
    let hint = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            "the PMU does not have this event; a virtual machine has it only if its host passes the PMU through"
        }
        Some(libc::EOPNOTSUPP) => {
            "the PMU cannot sample this event: it raises no overflow interrupt"
        }
        Some(libc::EINVAL) => {
            "the kernel does not take this event, or not together with the others of its group"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "no permission: run as root or with CAP_PERFMON, or lower kernel.perf_event_paranoid"
        }
        Some(libc::EBUSY) => "another user holds the PMU exclusively",
        Some(libc::EMFILE) => "too many open files: raise LimitNOFILE of the service",
        _ => "the kernel refuses the event",
    };
    format!("{hint} ({error})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_counts_what_this_thread_does() {
        let (clock, faults) = (Encoding::software(1), Encoding::software(2));
        let open = |event, leader| {
            Event::open(Opening {
                event,
                of: Of::ThisThread,
                period: 0,
                addresses: false,
                leader,
            })
            .expect("a software event of this thread")
        };
        let leader = open(&clock, None);
        let member = open(&faults, Some(&leader));
        assert_eq!(
            leader.read().expect("count").value,
            0,
            "opened switched off"
        );
        leader.enable().expect("enable");
        let pages = 300;
        // SAFETY: a new mapping at an address that the kernel chooses, written inside its bounds, and given back.
        unsafe {
            let bytes = pages * 4096;
            let memory = libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(memory, libc::MAP_FAILED);
            libc::madvise(memory, bytes, libc::MADV_NOHUGEPAGE);
            for page in 0..pages {
                memory.cast::<u8>().add(page * 4096).write_volatile(1);
            }
            libc::munmap(memory, bytes);
        }
        leader.disable().expect("disable");
        let faulted = member.read().expect("count");
        let few = pages as u64..pages as u64 + 20;
        assert!(few.contains(&faulted.value), "{faulted:?}");
        assert_eq!(faulted.enabled_ns, faulted.running_ns);
        assert!(leader.read().expect("count").value > 0);
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let error = io::Error::from_raw_os_error(libc::ENOENT);
        assert!(
            refusal(&error).contains("virtual machine"),
            "{}",
            refusal(&error)
        );
        let missing = Encoding {
            perf_type: None,
            ..Encoding::software(1)
        };
        let error = Event::open(Opening {
            event: &missing,
            of: Of::ThisThread,
            period: 0,
            addresses: false,
            leader: None,
        })
        .expect_err("no such PMU");
        assert!(refusal(&error).contains("PMU"));
    }
}
