//! A piece of preparation that is done once: it says what it does, leaves a stamp when it worked, and is
//! skipped while the stamp says the same.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// Lines of a failed step's log that are shown.
const SHOWN_LINES: usize = 15;

/// The folder with the stamps, logs and results of all steps.
pub struct Steps {
    folder: PathBuf,
}

/// One step while it runs: its folder, empty at the start, and its log.
pub struct Step {
    /// Where its result goes.
    pub folder: PathBuf,
    log: PathBuf,
}

impl Steps {
    /// Steps below `folder`.
    pub fn new(folder: PathBuf) -> Result<Self> {
        for part in ["log", "stamp"] {
            let path = folder.join(part);
            fs::create_dir_all(&path)
                .with_context(|| format!("cannot make the folder {}", path.display()))?;
        }
        Ok(Self { folder })
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Does step `name` unless it was done with the same `key` (what its result depends on). Gives the folder of
    /// its result. A step that failed or was interrupted starts again with an empty folder.
    pub fn run(
        &self,
        name: &str,
        key: &str,
        what: &str,
        work: impl FnOnce(&Step) -> Result<()>,
    ) -> Result<PathBuf> {
        let stamp = self.folder.join("stamp").join(name);
        let folder = self.folder.join(name);
        if fs::read_to_string(&stamp).is_ok_and(|done| done == key) && folder.is_dir() {
            return Ok(folder);
        }
        println!("vm: {what} ...");
        let since = Instant::now();
        remove(&stamp, |path| fs::remove_file(path))?;
        remove(&folder, |path| fs::remove_dir_all(path))?;
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let step = Step {
            folder,
            log: self.folder.join("log").join(format!("{name}.log")),
        };
        File::create(&step.log).with_context(|| format!("cannot write {}", step.log.display()))?;
        work(&step).with_context(|| {
            format!(
                "{what}: failed; the next run starts this step again. Log: {}",
                step.log.display()
            )
        })?;
        fs::write(&stamp, key).with_context(|| format!("cannot write {}", stamp.display()))?;
        println!("vm: {what}: done in {:.1} s", since.elapsed().as_secs_f64());
        Ok(step.folder)
    }
}

impl Step {
    /// Runs a command with its output in the step's log, and shows the log's end when it fails.
    pub fn command(&self, command: &mut Command) -> Result<()> {
        let log = File::options()
            .append(true)
            .open(&self.log)
            .context("cannot open the step's log")?;
        let program = command.get_program().to_owned();
        let status = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot share the step's log")?)
            .stderr(log)
            .status()
            .with_context(|| format!("cannot start {}: is it installed?", program.display()))?;
        if !status.success() {
            let text = fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            let end = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n  ");
            bail!("{} ended with {status}:\n  {end}", program.display());
        }
        Ok(())
    }
}

fn remove(path: &Path, remove: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
    match remove(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::Steps;
    use anyhow::bail;
    use std::process::Command;

    fn steps(name: &str) -> Steps {
        let folder = std::env::temp_dir().join(format!("smtt-step-{name}-{}", std::process::id()));
        Steps::new(folder).expect("a folder")
    }

    #[test]
    fn a_step_is_done_once_per_key_and_again_after_a_failure() {
        let steps = steps("once");
        let mut done = 0;
        for key in ["a", "a", "b"] {
            steps
                .run("step", key, "a step", |step| {
                    done += 1;
                    Ok(std::fs::write(step.folder.join(key), key)?)
                })
                .expect("it works");
        }
        assert_eq!(done, 2);
        let folder = steps.folder().join("step");
        assert!(
            !folder.join("a").exists() && folder.join("b").exists(),
            "each run starts with an empty folder"
        );

        steps
            .run("step", "c", "a step", |_| bail!("no"))
            .expect_err("it fails");
        steps
            .run("step", "b", "a step", |_| bail!("tried"))
            .expect_err("a failed step is not done");
        std::fs::remove_dir_all(steps.folder()).expect("clean up");
    }

    #[test]
    fn a_failing_command_shows_its_last_lines() {
        let steps = steps("lines");
        let error = steps
            .run("step", "", "a step", |step| {
                step.command(
                    Command::new("sh").args(["-c", "echo first; echo no such suite >&2; exit 3"]),
                )
            })
            .expect_err("it fails");
        assert!(format!("{error:#}").contains("no such suite"), "{error:#}");
        std::fs::remove_dir_all(steps.folder()).expect("clean up");
    }
}
