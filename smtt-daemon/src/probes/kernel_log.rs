//! Diagnostics of the kernel side on their way to the daemon's log.

use std::os::fd::{AsRawFd, RawFd};

/// The kernel side's rare diagnostics; [`KernelLog::flush`] hands them to the daemon's log.
pub struct KernelLog(pub(super) aya_log::EbpfLogger<&'static dyn log::Log>);

impl KernelLog {
    /// Logs the diagnostics that arrived since the last call.
    pub fn flush(&mut self) {
        self.0.flush();
    }
}

impl AsRawFd for KernelLog {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
