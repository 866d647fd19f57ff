//! Set-up steps: each prints what it does, is skipped when already done, and shows its duration.
//!
//! Each step defines the check for "already done" (does the program exist and answer with the right version?). Where
//! that check is slow, a stamp with a fingerprint of the step's inputs caches the answer; it is written only after the
//! step's result has been checked, so a half-done step runs again.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process::{Running, hint, on_terminal, show, tail};

/// Interval of the messages of a step that runs without a terminal.
const REMINDER: Duration = Duration::from_secs(20);

/// Prints the numbered steps of one set-up.
#[derive(Debug)]
pub struct Steps {
    total: usize,
    number: usize,
}

/// A running step.
#[derive(Debug)]
pub struct Step {
    label: String,
    start: Instant,
    reminded: Instant,
    /// Log of the output of the step's commands.
    pub log: PathBuf,
}

impl Steps {
    /// Steps of a set-up with `total` steps.
    #[must_use]
    pub fn new(total: usize) -> Self {
        Self { total, number: 0 }
    }

    /// Runs one step unless `done` says that it was done before; checks with `done` that the step worked.
    ///
    /// # Errors
    /// When the step fails, with `remedy`, or does not lead to its goal.
    pub fn step(
        &mut self,
        title: &str,
        log: PathBuf,
        remedy: &str,
        done: impl Fn() -> bool,
        work: impl FnOnce(&mut Step) -> Result<()>,
    ) -> Result<()> {
        if done() {
            self.number += 1;
            show(&format!(
                "[{}/{}] {title}: done before\n",
                self.number, self.total
            ));
            return Ok(());
        }
        let goal = |step: &mut Step| {
            work(step)?;
            if !done() {
                bail!(
                    "it ended without an error, but its result does not exist{}",
                    hint(&step.log)
                );
            }
            Ok(())
        };
        self.always(title, log, goal)
            .with_context(|| format!("set-up step \"{title}\" failed. What to do: {remedy}"))
    }

    /// Runs a step whose own tool knows what was done before.
    ///
    /// # Errors
    /// When the step fails.
    pub fn always(
        &mut self,
        title: &str,
        log: PathBuf,
        work: impl FnOnce(&mut Step) -> Result<()>,
    ) -> Result<()> {
        self.number += 1;
        let label = format!("[{}/{}] {title}", self.number, self.total);
        show(&format!("{label} ..."));
        if !on_terminal() {
            show("\n");
        }
        let mut step = Step {
            label,
            start: Instant::now(),
            reminded: Instant::now(),
            log,
        };
        let result = work(&mut step);
        let seconds = step.start.elapsed().as_secs_f64();
        let outcome = if result.is_ok() { "done" } else { "FAILED" };
        let back = if on_terminal() { "\r\x1b[2K" } else { "" };
        show(&format!(
            "{back}{}: {outcome} in {seconds:.1} s\n",
            step.label
        ));
        result
    }
}

impl Step {
    /// Runs one command of the step; its output goes to the step's log.
    ///
    /// # Errors
    /// When the command fails or takes longer than `limit`.
    pub fn run(&mut self, command: &mut Command, limit: Duration) -> Result<()> {
        let name = command.get_program().display().to_string();
        let log = self.log.clone();
        let mut running = Running::start(&name, command, &log)?;
        let status = running.wait(limit, || {
            self.tick();
            Ok(())
        })?;
        if !status.success() {
            bail!("{name} failed ({status}){}", hint(&log));
        }
        Ok(())
    }

    /// Prints the elapsed time.
    pub fn tick(&mut self) {
        let seconds = self.start.elapsed().as_secs();
        if on_terminal() {
            if self.reminded.elapsed() >= Duration::from_secs(1) {
                self.reminded = Instant::now();
                let last = tail(&self.log, 1).pop().unwrap_or_default();
                let line: String = format!("{} ... {seconds} s  {}", self.label, last.trim())
                    .chars()
                    .take(78)
                    .collect();
                show(&format!("\r\x1b[2K{line}"));
            }
        } else if self.reminded.elapsed() >= REMINDER {
            self.reminded = Instant::now();
            show(&format!(
                "      still at it after {seconds} s; its output goes to {}\n",
                self.log.display()
            ));
        }
    }
}

/// A record that a result was made from certain inputs.
#[derive(Clone, Debug)]
pub struct Stamp {
    path: PathBuf,
    fingerprint: String,
}

impl Stamp {
    /// A stamp in the file `path` for the given inputs.
    #[must_use]
    pub fn new(path: PathBuf, fingerprint: String) -> Self {
        Self { path, fingerprint }
    }

    /// Whether the stamp exists, for the same inputs.
    #[must_use]
    pub fn valid(&self) -> bool {
        fs::read_to_string(&self.path).is_ok_and(|text| text == self.fingerprint)
    }

    /// Writes the stamp.
    ///
    /// # Errors
    /// When the stamp cannot be written.
    pub fn write(&self) -> Result<()> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&self.path, &self.fingerprint)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Removes the stamp, before the work begins.
    ///
    /// # Errors
    /// When the stamp exists and cannot be removed.
    pub fn remove(&self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.path.display()))
            }
            _ => Ok(()),
        }
    }
}

/// Fingerprint of the names and contents of files; descends into folders, except build output.
///
/// # Errors
/// When a file cannot be read.
pub fn fingerprint(paths: &[&Path]) -> Result<String> {
    let mut files = Vec::new();
    for path in paths {
        collect(path, &mut files)?;
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in &files {
        file.hash(&mut hasher);
        fs::read(file)
            .with_context(|| format!("cannot read {}", file.display()))?
            .hash(&mut hasher);
    }
    Ok(format!("{} files, {:016x}\n", files.len(), hasher.finish()))
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !path.is_dir() {
        files.push(path.to_path_buf());
        return Ok(());
    }
    for entry in path
        .read_dir()
        .with_context(|| format!("cannot list {}", path.display()))?
    {
        let entry = entry?;
        if entry.file_name() != "target" {
            collect(&entry.path(), files)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_input_makes_a_stamp_invalid() {
        let folder = std::env::temp_dir().join(format!("smtt-stamp-{}", std::process::id()));
        fs::create_dir_all(folder.join("in")).expect("makes the folder");
        fs::write(folder.join("in/a"), "1").expect("writes");
        let stamp = || {
            Stamp::new(
                folder.join("stamp"),
                fingerprint(&[&folder.join("in")]).expect("reads"),
            )
        };
        assert!(!stamp().valid());
        stamp().write().expect("writes");
        assert!(stamp().valid());
        fs::write(folder.join("in/a"), "2").expect("writes");
        assert!(!stamp().valid());
        fs::remove_dir_all(folder).ok();
    }
}
