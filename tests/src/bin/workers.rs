//! Writes what workers' daemons know of an application that never ran into the store that has it:
//! `workers STORE EXECUTORS MILLISECONDS`.

use std::path::Path;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [store, executors, length] = arguments.as_slice() else {
        bail!("usage: workers STORE EXECUTORS MILLISECONDS");
    };
    smtt_tests::workers::write(Path::new(store), executors.parse()?, length.parse()?)
}
