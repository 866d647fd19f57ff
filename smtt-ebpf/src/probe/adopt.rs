//! The program with which the daemon changes the tables. It is not attached to a hook; the daemon runs it.
//!
//! Adopted executors and removed rows change the same tables and counts as the hooks do. A change in this program
//! keeps one writer and is atomic; the daemon itself could only replace whole rows.

use core::ffi::c_void;

use aya_ebpf::programs::RawTracePointContext;
use smtt_common::{
    context::{Range, SlotHead},
    settings::{ADOPTED, Owner, TableOperation},
};

use crate::{
    pending,
    shares::{Table, release},
    tables as rows,
};

/// Runs one [`TableOperation`]; 1 when it was done, 0 when it was refused.
///
/// Written without the attribute of the other programs, because that one drops the answer.
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp")]
pub extern "C" fn tables(ctx: *mut c_void) -> i32 {
    let ctx = RawTracePointContext::new(ctx);
    let operation = TableOperation(ctx.arg(0));
    let subject: u64 = ctx.arg(1);
    let executor: u64 = ctx.arg(2);
    let done = match operation {
        TableOperation::ADOPT_EXECUTOR => {
            let owner = Owner {
                cgroup: ctx.arg(3),
                uid: executor as u32,
                share: 0,
            };
            rows::adopt_executor(subject as u32, &owner).is_some()
        }
        TableOperation::ADOPT_CHILD => {
            rows::adopt_child(subject as u32, executor, ADOPTED, &rows::NOT_INNER)
        }
        TableOperation::ADOPT_THREAD => {
            let heap = Range {
                start: ctx.arg(4),
                bytes: ctx.arg(5),
            };
            rows::adopt_thread(subject as u32, executor, ctx.arg(3), &heap)
        }
        TableOperation::SET_WORKER => {
            rows::set_worker(
                subject as u32,
                executor,
                SlotHead {
                    hot: ctx.arg(3),
                    task_attempt_id: ctx.arg(4),
                    stage_id: ctx.arg(5),
                    stage_attempt: ctx.arg(6),
                },
            );
            true
        }
        TableOperation::FORGET_THREAD => {
            let known = rows::thread_executor(subject as u32);
            if executor == 0 || known == executor {
                rows::forget_thread(subject as u32);
            }
            true
        }
        TableOperation::FORGET_PROCESS => {
            let known = rows::process(subject as u32);
            known.is_some_and(|known| known.executor == executor)
                && rows::forget_process(subject as u32).is_some()
        }
        TableOperation::RELEASE_CONTEXTS => {
            release(subject, Table::Contexts, executor);
            true
        }
        TableOperation::RELEASE_WALKS => {
            release(subject, Table::Walks, executor);
            true
        }
        TableOperation::FLUSH_THREAD => {
            pending::flush(subject as u32);
            true
        }
        TableOperation::FORGET_EXECUTOR => {
            rows::forget_executor(subject);
            true
        }
        _ => false,
    };
    i32::from(done)
}
