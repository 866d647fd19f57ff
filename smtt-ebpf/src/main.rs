//! The kernel side of SMTT: which module is which, the licence and the panic handler. No logic here.
//!
//! | module | what |
//! |---|---|
//! | [`maps`] | every table, with the reason for its size |
//! | [`context`] | the running thread's context: the only reader of a thread's slot |
//! | [`tables`] | the only writer of the tables of executors, processes and threads |
//! | [`pending`] | faults on their way from a thread's row to their context's row |
//! | [`accounts`] | the only writer of the table of running tasks: what a task used |
//! | [`workers`] | the only writer of the table of Python workers: what each used for the task that it served |
//! | [`touched`] | pages that a thread touched first |
//! | [`shares`] | limits per executor and per user: rows of the tables, bytes of the ring |
//! | [`emit`] | the only writer to the ring |
//! | [`probe`] | one file per family of hooks |
#![no_std]
#![no_main]
// Atomic additions are written as instructions; see `maps::add`.
#![feature(asm_experimental_arch)]

mod accounts;
mod context;
mod emit;
mod maps;
mod probe {
    pub mod adopt;
    pub mod death;
    pub mod exit;
    pub mod fault;
    pub mod fault_time;
    pub mod first_touch;
    pub mod marker;
    pub mod page_walk;
}
mod pending;
mod shares;
mod tables;
mod touched;
mod workers;

/// The kernel offers the helpers used here to GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Nothing here panics: the verifier would not load a program that could reach this loop.
    loop {}
}
