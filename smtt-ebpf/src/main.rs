//! Kernel side of SMTT. Filter, read, add or emit: every program does little, and constantly so.
//!
//! | module | what |
//! |---|---|
//! | [`maps`] | every table, with the reason for its size |
//! | [`context`] | the only reader of a thread's slot |
//! | [`count`] | adds to the counter of a context, or to a class of unattributed |
//! | [`emit`] | the only writer to the ring |
//! | [`probe`] | the programs, one file per hook family |
#![no_std]
#![no_main]
// Atomic adds are written in assembly: the target has no compare-and-swap, so the library has no fetch_add.
#![feature(asm_experimental_arch)]

mod context;
mod count;
mod emit;
mod maps;
mod probe;

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier proves that this is never reached.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
