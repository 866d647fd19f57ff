//! A worker's programs in one file. It acts as the program by whose name it is called (packages have links of these
//! names), and under any other name as the one that its first argument names: `smtt daemon`, `smtt ctl`.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

/// A program of the file.
struct Program {
    /// The name of its link.
    link: &'static str,
    /// The argument that names it.
    word: &'static str,
    /// What it is, for the help.
    what: &'static str,
    /// Runs it with a command line.
    run: fn(Vec<OsString>) -> ExitCode,
}

const PROGRAMS: [Program; 2] = [
    Program {
        link: "smtt-daemon",
        word: "daemon",
        what: "The daemon of a worker",
        run: smtt_daemon::program::main,
    },
    Program {
        link: "smtt-ctl",
        word: "ctl",
        what: "Its client",
        run: smtt_ctl::main,
    },
];
/// Name and argument of the history server, which this file had before it got a package of its own.
const HISTORY: [&str; 2] = ["smtt-history", "history"];
/// Exit code of a wrong command line, as clap has it.
const USAGE: u8 = 2;

/// What a command line asks for.
enum Wish {
    /// A program, with its command line.
    Program(&'static Program, Vec<OsString>),
    /// The help of this file.
    Help,
    /// The version.
    Version,
    /// Nothing that is here, for this reason.
    Wrong(String),
}

fn main() -> ExitCode {
    match wish(std::env::args_os().collect()) {
        Wish::Program(program, words) => (program.run)(words),
        Wish::Help => {
            print!("{}", help());
            ExitCode::SUCCESS
        }
        Wish::Version => {
            println!("smtt {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Wish::Wrong(reason) => {
            eprintln!("smtt: {reason}");
            ExitCode::from(USAGE)
        }
    }
}

fn wish(mut words: Vec<OsString>) -> Wish {
    let called = words.first().map(|word| Path::new(word).file_name());
    let called = called.flatten().unwrap_or_default().to_owned();
    if let Some(program) = PROGRAMS.iter().find(|program| called == program.link) {
        return Wish::Program(program, words);
    }
    if called == HISTORY[0] {
        return history();
    }
    let Some(word) = words.get(1).cloned() else {
        return Wish::Wrong(format!("name a program: {}", forms()));
    };
    if let Some(program) = PROGRAMS.iter().find(|program| is_named(program, &word)) {
        words.remove(0);
        words[0] = format!("smtt {}", program.word).into();
        return Wish::Program(program, words);
    }
    match word.to_str() {
        Some("-h" | "--help" | "help") => Wish::Help,
        Some("-V" | "--version") => Wish::Version,
        Some(word) if HISTORY.contains(&word) => history(),
        _ => Wish::Wrong(format!(
            "there is no program {}: {}",
            word.display(),
            forms()
        )),
    }
}

fn is_named(program: &Program, word: &OsStr) -> bool {
    word == program.word || word == program.link
}

fn history() -> Wish {
    Wish::Wrong(
        "the history server is a program of its own: install the package smtt-history".into(),
    )
}

/// How each program is called.
fn forms() -> String {
    let forms: Vec<String> = PROGRAMS
        .iter()
        .map(|program| format!("smtt {} ... (or {})", program.word, program.link))
        .collect();
    format!("call {}", forms.join(", "))
}

fn help() -> String {
    let mut help = String::from(
        "The programs of an SMTT worker in one file\n\nUsage: smtt <PROGRAM> [ARGUMENTS]\n\nPrograms:\n",
    );
    for Program {
        link, word, what, ..
    } in PROGRAMS
    {
        help += &format!("  {word:<8}{what}; the link {link} calls it too\n");
    }
    help + "\nOptions:\n  -h, --help     Print help (smtt <PROGRAM> --help: that of the program)\n  \
            -V, --version  Print version\n"
}

#[cfg(test)]
mod tests {
    use super::{Wish, help, wish};

    /// The link of the program that a command line calls with its own command line, or what is done instead.
    fn of(words: &[&str]) -> (&'static str, Vec<String>) {
        let texts = |words: Vec<std::ffi::OsString>| {
            let texts = words.into_iter().map(|word| word.into_string());
            texts.collect::<Result<Vec<_>, _>>().expect("texts")
        };
        match wish(words.iter().map(Into::into).collect()) {
            Wish::Program(program, words) => (program.link, texts(words)),
            Wish::Help => ("help", Vec::new()),
            Wish::Version => ("version", Vec::new()),
            Wish::Wrong(reason) => ("wrong", vec![reason]),
        }
    }

    #[test]
    fn a_link_is_a_program_with_and_without_folders() {
        for (called, link) in [
            ("/usr/bin/smtt-daemon", "smtt-daemon"),
            ("smtt-ctl", "smtt-ctl"),
            ("./smtt-ctl", "smtt-ctl"),
        ] {
            // All words are the program's, also those that name programs.
            let words = [called, "daemon", "--version"];
            assert_eq!(of(&words), (link, words.map(str::to_owned).to_vec()));
        }
    }

    #[test]
    fn the_first_argument_names_a_program() {
        for (word, link, name) in [
            ("daemon", "smtt-daemon", "smtt daemon"),
            ("smtt-daemon", "smtt-daemon", "smtt daemon"),
            ("ctl", "smtt-ctl", "smtt ctl"),
        ] {
            let words = vec![name.to_owned(), "--help".to_owned()];
            assert_eq!(of(&["/usr/bin/smtt", word, "--help"]), (link, words));
        }
    }

    #[test]
    fn help_names_every_program() {
        for word in ["-h", "--help", "help"] {
            assert_eq!(of(&["smtt", word]).0, "help");
        }
        assert_eq!(of(&["smtt", "--version"]).0, "version");
        for name in ["daemon", "ctl", "smtt-daemon", "smtt-ctl"] {
            assert!(help().contains(name), "{}", help());
        }
    }

    #[test]
    fn what_is_not_there_has_one_line_with_the_remedy() {
        let calls: [&[&str]; 6] = [
            &[],
            &["/"],
            &["smtt"],
            &["smtt-ctl2"],
            &["-smtt-ctl", "status"],
            &["smtt", "status"],
        ];
        for words in calls {
            let (what, said) = of(words);
            assert_eq!(what, "wrong", "{words:?}");
            assert!(
                said[0].contains("smtt daemon ... (or smtt-daemon)"),
                "{said:?}"
            );
            assert!(!said[0].contains('\n'), "{said:?}");
        }
    }

    #[test]
    fn the_history_has_a_package_of_its_own() {
        let calls: [&[&str]; 3] = [
            &["/usr/bin/smtt-history", "serve"],
            &["smtt", "history"],
            &["smtt", "smtt-history"],
        ];
        for words in calls {
            let (what, said) = of(words);
            assert_eq!(what, "wrong", "{words:?}");
            assert!(
                said[0].ends_with("install the package smtt-history"),
                "{said:?}"
            );
        }
    }
}
