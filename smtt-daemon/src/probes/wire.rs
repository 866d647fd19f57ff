//! Lets the types of `smtt-common` be map keys, values and globals.

use smtt_common::counter::{ContextKey, ExecutorCounters, FaultCounters};
use smtt_common::event::used::{TaskBegin, WorkerBegin};
use smtt_common::page_walk::WalkCounters;
use smtt_common::settings::{Budget, InnerId, Process, Settings, Thread, User};

/// A type of the boundary as aya wants it: plain bytes.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wire<T>(pub T);

/// Types that are plain bytes without padding, as the asserts in `smtt-common` hold.
pub trait Plain: Copy + 'static {}
impl Plain for u32 {}
impl Plain for ContextKey {}
impl Plain for FaultCounters {}
impl Plain for ExecutorCounters {}
impl Plain for WalkCounters {}
impl Plain for Process {}
impl Plain for Thread {}
impl Plain for Budget {}
impl Plain for User {}
impl Plain for Settings {}
impl Plain for TaskBegin {}
impl Plain for WorkerBegin {}
impl Plain for InnerId {}

// SAFETY: `Plain` is only on `repr(C)` structs of integers without padding.
unsafe impl<T: Plain> aya::Pod for Wire<T> {}
