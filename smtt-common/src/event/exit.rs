//! Life and death of processes that belong to executors.

/// Payload of [`super::Kind::PROCESS_GONE`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessGone {
    /// See [`REASON_EXIT`] and [`REASON_EXEC`].
    pub reason: u32,
    /// 1 when it was the executor's JVM itself, 0 for a child such as a Python worker.
    pub is_executor: u32,
    /// How it ended, as `wait` returns it to its parent: a signal in the low seven bits, or an exit code in the next byte.
    pub status: u32,
    /// 1 where `status` and `peak_rss_bytes` are known: the process exited, and the kernel has the fields.
    pub status_known: u32,
    /// Most bytes that were resident at once.
    pub peak_rss_bytes: u64,
    /// Command name of the last thread.
    pub name: [u8; NAME_LENGTH],
}

/// Bytes of a command name, padded with zeros.
pub const NAME_LENGTH: usize = 16;

/// The last thread of the process exited.
pub const REASON_EXIT: u32 = 0;
/// The process replaced its image.
pub const REASON_EXEC: u32 = 1;

/// Payload of [`super::Kind::PROCESS_FORKED`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessForked {
    /// The new process, in the initial pid namespace.
    pub child_pid: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = {
    assert!(size_of::<ProcessGone>() == 40);
    assert!(size_of::<ProcessForked>() == 8);
};
