//! SMTT's programs in one file: it acts as the program by whose name it is called. Packages have links of these names.

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

/// A program's name, and what it does.
type Program = (&'static str, fn() -> ExitCode);

const PROGRAMS: &[Program] = &[
    ("smtt-daemon", smtt_daemon::program::main),
    ("smtt-ctl", smtt_ctl::main),
    ("smtt-history", smtt_history::program::main),
];
/// Exit code of a wrong command line, as clap has it.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let called = std::env::args_os().next().unwrap_or_default();
    match program(&called) {
        Some((_, run)) => run(),
        None => {
            let names: Vec<&str> = PROGRAMS.iter().map(|(name, _)| *name).collect();
            eprintln!(
                "smtt: call it by a link with the name of a program: {}",
                names.join(", ")
            );
            ExitCode::from(USAGE)
        }
    }
}

/// The program by whose name, with or without folders, this one is called.
fn program(called: &OsStr) -> Option<&'static Program> {
    let name = Path::new(called).file_name()?;
    PROGRAMS.iter().find(|(known, _)| name == *known)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::program;

    fn named(called: &str) -> Option<&'static str> {
        program(OsStr::new(called)).map(|(name, _)| *name)
    }

    #[test]
    fn a_name_is_a_program_with_and_without_folders() {
        assert_eq!(named("/usr/bin/smtt-daemon"), Some("smtt-daemon"));
        assert_eq!(named("smtt-ctl"), Some("smtt-ctl"));
        assert_eq!(named("./smtt-history"), Some("smtt-history"));
    }

    #[test]
    fn another_name_is_none() {
        for called in [
            "",
            "/",
            "smtt",
            "/usr/bin/smtt",
            "smtt-ctl/x",
            "smtt-ctl2",
            "-smtt-ctl",
        ] {
            assert_eq!(named(called), None, "{called:?}");
        }
    }
}
