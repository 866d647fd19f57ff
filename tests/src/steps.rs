//! Steps of a program that a test starts: the program prints a line when a step is done, and waits for a line before the
//! next one.

use std::io::{BufRead as _, Write as _};

use anyhow::Result;

/// Prints a line, which arrives at once.
///
/// # Errors
/// When the standard output is closed.
pub fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}

/// Waits for a line; end of input ends the program.
///
/// # Errors
/// When the standard input cannot be read.
pub fn wait() -> Result<()> {
    let mut line = String::new();
    if std::io::stdin().lock().read_line(&mut line)? == 0 {
        std::process::exit(0);
    }
    Ok(())
}
