//! A sampled page fault with its address.

use crate::counter::ContextKey;

/// Payload of [`super::Kind::FAULT_SAMPLE`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultSample {
    /// Address that was touched.
    pub address: u64,
    /// See [`ACCESS_WRITE`].
    pub access: u32,
    /// Zero.
    pub reserved: u32,
    /// The context that the fault was counted for; all zero where unattributed.
    pub context: ContextKey,
}

/// Bit of `access`: the fault was a write.
pub const ACCESS_WRITE: u32 = 1;
/// Bit of `access`: the hook cannot distinguish reads from writes.
pub const ACCESS_UNKNOWN: u32 = 2;

const _: () = assert!(size_of::<FaultSample>() == 48);
