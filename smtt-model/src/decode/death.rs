//! Facts about the ends of processes, and their decoders.

use serde::{Deserialize, Serialize};
use smtt_common::event::death::FROM_KERNEL;
use smtt_common::event::exit::NAME_LENGTH;
use smtt_common::event::marker::EXHAUSTED_UNCAUGHT;

use super::Fact;
use super::fields::{Fields, Reader, clean};

/// How a process ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessEnd {
    /// Status as `wait` returns it to the parent.
    pub status: u32,
    /// Most bytes that were resident at once.
    pub peak_rss_bytes: u64,
    /// Command name of the last thread.
    pub name: String,
}

impl ProcessEnd {
    /// The signal that ended the process; `None` where it exited by itself.
    #[must_use]
    pub const fn signal(&self) -> Option<u32> {
        match self.status & 0x7f {
            0 => None,
            signal => Some(signal),
        }
    }

    /// The exit code; `None` where a signal ended the process.
    #[must_use]
    pub const fn exit_code(&self) -> Option<u32> {
        match self.signal() {
            None => Some(self.status >> 8 & 0xff),
            Some(_) => None,
        }
    }
}

/// See [`smtt_common::event::Kind::SIGNAL_SENT`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalSent {
    /// Process that gets the signal, in the initial pid namespace.
    pub target_pid: u32,
    /// Whether that is the executor's JVM.
    pub is_executor: bool,
    /// Number of the signal.
    pub signal: u32,
    /// Whether the kernel itself sends it.
    pub from_kernel: bool,
    /// Process that sends it.
    pub sender_pid: u32,
    /// Real user of the sender.
    pub sender_uid: u32,
    /// Command name of the sending thread.
    pub sender_name: String,
}

/// See [`smtt_common::event::Kind::OOM_KILLED`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomKilled {
    /// The victim, in the initial pid namespace.
    pub victim_pid: u32,
    /// Whether that is the executor's JVM.
    pub is_executor: bool,
}

/// See [`smtt_common::event::Kind::RESOURCE_EXHAUSTED`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exhausted {
    /// Whether it is an error that no code caught, with which Spark ends the process; otherwise the JVM reports that it
    /// ran out of something, and the application may go on.
    pub uncaught: bool,
    /// Flags of the JVM's event.
    pub flags: u64,
    /// What the JVM reports, or the error's class and message.
    pub description: String,
}

/// The end of a process, where the kernel reports it.
pub(super) fn end(reader: &mut Reader<'_>) -> Option<Option<ProcessEnd>> {
    let (status, known) = (reader.u32()?, reader.u32()?);
    let end = ProcessEnd {
        status,
        peak_rss_bytes: reader.u64()?,
        name: name(reader)?,
    };
    Some((known == 1).then_some(end))
}

pub(super) fn signal(reader: &mut Reader<'_>) -> Option<Fact> {
    Some(Fact::SignalSent(Box::new(SignalSent {
        target_pid: reader.u32()?,
        is_executor: reader.u32()? == 1,
        signal: reader.u32()?,
        from_kernel: reader.u32()? & FROM_KERNEL != 0,
        sender_pid: reader.u32()?,
        sender_uid: reader.u32()?,
        sender_name: name(reader)?,
    })))
}

pub(super) fn oom(reader: &mut Reader<'_>) -> Option<Fact> {
    Some(Fact::OomKilled(OomKilled {
        victim_pid: reader.u32()?,
        is_executor: reader.u32()? == 1,
    }))
}

pub(super) fn exhausted(fields: &Fields<'_>) -> Exhausted {
    Exhausted {
        uncaught: fields.word("source") == EXHAUSTED_UNCAUGHT,
        flags: fields.word("flags"),
        description: fields.text("description"),
    }
}

/// A command name, which a process chooses itself.
fn name(reader: &mut Reader<'_>) -> Option<String> {
    let mut bytes = [0; NAME_LENGTH];
    for byte in &mut bytes {
        *byte = reader.u8()?;
    }
    let length = bytes.iter().position(|byte| *byte == 0);
    Some(clean(&bytes[..length.unwrap_or(NAME_LENGTH)], NAME_LENGTH))
}
