//! Ring -> raw records: takes them out of the kernel's ring buffer in batches.

use smtt_common::event::RecordHeader;

/// One record as it came from the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its header.
    pub header: RecordHeader,
    /// Its payload, `header.payload_bytes` of it or what there was.
    pub payload: Vec<u8>,
}
