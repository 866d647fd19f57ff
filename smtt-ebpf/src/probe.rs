//! The programs, one file per hook family.

mod exit;
mod fault;
mod marker;
