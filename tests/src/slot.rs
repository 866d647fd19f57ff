//! The slot of a thread whose process is its own executor: the test adopts it, without a marker.

use std::sync::atomic::{AtomicU64, Ordering};

use smtt_common::context::{ContextWord, SlotHead};

/// The head of a slot, as the kernel side reads it. It must not move while the kernel side has its address.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct OwnSlot {
    hot: AtomicU64,
    task_attempt_id: u64,
    stage_id: u32,
    stage_attempt: u32,
}

const _: () = assert!(std::mem::offset_of!(OwnSlot, stage_attempt) + 4 == size_of::<SlotHead>());

impl OwnSlot {
    /// An idle slot of that task.
    #[must_use]
    pub const fn of_task(task_attempt_id: u64) -> Self {
        Self {
            hot: AtomicU64::new(0),
            task_attempt_id,
            stage_id: 1,
            stage_attempt: 0,
        }
    }

    /// Address for `Probes::adopt_thread`.
    #[must_use]
    pub fn address(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }

    /// Publishes what the thread does from now on.
    pub fn publish(&self, word: ContextWord) {
        self.hot.store(word.0, Ordering::Release);
    }

    /// The thread has no context from now on.
    pub fn clear(&self) {
        self.publish(ContextWord(0));
    }
}
