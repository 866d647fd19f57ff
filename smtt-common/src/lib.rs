//! Everything that crosses a boundary: marker to kernel side, kernel side to daemon, daemon to kernel side.
//!
//! The rules of every type in this crate:
//!
//! * Only fixed-width integers and byte arrays. No `bool`, `char`, `Option` or Rust enum on the wire: a
//!   foreign writer could put a value there that Rust calls undefined behaviour. Coded values are wrapped in
//!   transparent structs whose unknown values are ordinary values with no name.
//! * `#[repr(C)]`, no implicit padding, size and offsets asserted at compile time.
//! * Little-endian, as every machine that Spark and eBPF meet on today.
//! * `-1` (all ones) in a 64-bit word means "none"; RDD ids are stored plus one where zero means "none".
//!
//! | module | what | written by | read by |
//! |---|---|---|---|
//! | [`context`] | the slot file: what each thread is doing now | marker | kernel side, daemon |
//! | [`event`] | facts on the ring buffer | marker, kernel side | daemon |
//! | [`counter`] | sums per context and per executor | kernel side | daemon |
//! | [`walk`] | page walks and cycles per context, sampled | kernel side | daemon |
//! | [`settings`] | the kernel side's settings at load time, and the state of traced processes | daemon | kernel side |
#![cfg_attr(not(test), no_std)]

#[macro_use]
mod coded;
pub mod context;
pub mod counter;
pub mod event;
pub mod page_walk;
pub mod settings;
