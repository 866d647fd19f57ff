//! The output of stages that run at the same time: one stage's lines appear as they are printed, those of the stages
//! beside it whole, when each has ended.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};

/// What both lanes print to.
pub struct Screen(Mutex<State>);

struct State {
    out: Box<dyn Write + Send>,
    /// Whether the last byte of the output as it arrives is no line's end. A test prints its name when it begins.
    within_line: bool,
    /// Whole texts that wait for that line's end.
    waiting: Vec<String>,
}

impl Default for Screen {
    /// Standard output.
    fn default() -> Self {
        Self::to(std::io::stdout())
    }
}

impl Screen {
    fn to(out: impl Write + Send + 'static) -> Self {
        Self(Mutex::new(State {
            out: Box::new(out),
            within_line: false,
            waiting: Vec::new(),
        }))
    }

    /// Prints bytes as they arrive.
    pub fn bytes(&self, bytes: &[u8]) {
        let mut state = self.state();
        state.print(bytes);
        if let Some(last) = bytes.last() {
            state.within_line = *last != b'\n';
        }
        if !state.within_line {
            for text in std::mem::take(&mut state.waiting) {
                state.print(text.as_bytes());
            }
        }
    }

    /// Prints a text in one piece, at the next end of a line.
    pub fn whole(&self, text: String) {
        let mut state = self.state();
        if state.within_line {
            state.waiting.push(text);
        } else {
            state.print(text.as_bytes());
        }
    }

    /// Ends a line that was not ended, and prints what waits for it.
    pub fn end_line(&self) {
        let within_line = self.state().within_line;
        if within_line {
            self.bytes(b"\n");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A closed standard output does not end the tests.
    fn print(&mut self, bytes: &[u8]) {
        let out = &mut self.out;
        out.write_all(bytes).and_then(|()| out.flush()).ok();
    }
}

/// Where a stage prints.
pub enum Place {
    /// To the screen, at once.
    Screen(Arc<Screen>),
    /// Into a file, which the screen shows whole at the end.
    File(Arc<Screen>, PathBuf, Mutex<File>),
}

impl Place {
    /// A file that the screen shows when the stage has ended.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn file(screen: &Arc<Screen>, path: &Path) -> Result<Self> {
        let folder = path.parent().context("a file without a folder")?;
        fs::create_dir_all(folder)
            .and_then(|()| File::create(path))
            .with_context(|| format!("cannot make {}", path.display()))
            .map(|file| Self::File(Arc::clone(screen), path.to_owned(), Mutex::new(file)))
    }

    /// Prints bytes of a test program, which may end within a line.
    pub fn bytes(&self, bytes: &[u8]) {
        match self {
            Self::Screen(screen) => screen.bytes(bytes),
            Self::File(_, _, file) => {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                // What a full disk does not take is missing on the screen only: results are parsed before.
                file.write_all(bytes).ok();
            }
        }
    }

    /// Prints a line of cargo or of this program.
    pub fn line(&self, line: &str) {
        match self {
            Self::Screen(screen) => screen.whole(format!("{line}\n")),
            Self::File(..) => self.bytes(format!("{line}\n").as_bytes()),
        }
    }

    /// Ends a line on the screen that was not ended.
    pub fn end_line(&self) {
        if let Self::Screen(screen) = self {
            screen.end_line();
        }
    }

    /// Shows the file.
    pub fn end(&self) {
        if let Self::File(screen, path, _) = self {
            match fs::read(path) {
                Ok(bytes) => screen.whole(String::from_utf8_lossy(&bytes).into_owned()),
                Err(error) => {
                    screen.whole(format!("cannot read {}: {error}\n", path.display()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_text_waits_for_the_end_of_a_line() {
        let screen = Screen::to(std::io::sink());
        screen.bytes(b"test a ... ");
        screen.whole("whole\n".to_owned());
        assert_eq!(screen.state().waiting, ["whole\n"]);
        screen.bytes(b"");
        assert_eq!(screen.state().waiting.len(), 1);
        screen.bytes(b"ok\n");
        assert!(screen.state().waiting.is_empty());
        screen.whole("at once\n".to_owned());
        assert!(screen.state().waiting.is_empty());
    }

    #[test]
    fn a_stage_in_a_file_is_shown_when_it_ends() {
        let folder = tempfile::tempdir().expect("a folder");
        let screen = Arc::new(Screen::to(std::io::sink()));
        screen.bytes(b"test a ... ");
        let place = Place::file(&screen, &folder.path().join("log/stage.log")).expect("a file");
        place.bytes(b"test b ... ");
        place.bytes(b"ok\n");
        place.line("Running c");
        assert!(screen.state().waiting.is_empty());
        place.end();
        assert_eq!(screen.state().waiting, ["test b ... ok\nRunning c\n"]);
    }
}
