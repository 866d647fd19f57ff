//! Commands in documents: each command line that README.md or docs/ shows is one that its program accepts.
#![cfg(target_arch = "x86_64")]

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory as _};
use xtask::paths::Paths;

/// Fewest command lines of all documents: fewer would mean that they are not found.
const COMMANDS: usize = 150;

/// Where a command line stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In a block of code, to be copied.
    Block,
    /// In backticks within a sentence, which may name a command without its arguments.
    Sentence,
}

/// A program with its arguments, as a document has them.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    place: Place,
    words: Vec<String>,
}

/// The arguments of the programs that documents name.
fn programs() -> [(&'static [&'static str], Command); 4] {
    [
        (&["smtt-ctl"], smtt_ctl::args::Args::command()),
        (&["smtt-daemon"], smtt_daemon::args::Arguments::command()),
        (&["smtt-history"], smtt_history::args::Arguments::command()),
        (&["cargo", "xtask"], xtask::args::Arguments::command()),
    ]
}

/// Words up to the end of a command: a comment, a pipe, a redirection, or the next command.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (None, '\'' | '"') => quote = Some(letter),
            (Some(_), letter) => word.push(letter),
            (None, '\\') => word.extend(letters.next()),
            (None, '|' | '>' | '<' | '&' | ';') => break,
            (None, '#') if word.is_empty() => break,
            (None, letter) if letter.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            (None, letter) => word.push(letter),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// The command in a line, without the prompt, variables and programs before it.
fn command(text: &str, place: Place) -> Option<Line> {
    let words = words(text.trim_start().trim_start_matches("$ "));
    let before = |word: &&String| word.contains('=') || matches!(word.as_str(), "sudo" | "time");
    let start = words.iter().take_while(before).count();
    let words: Vec<String> = words.into_iter().skip(start).collect();
    let named = |(name, _): &(&[&str], Command)| words.iter().zip(*name).all(|(a, b)| a == b);
    // "smtt-daemon at ADDRESS" begins a message.
    let is_message = words.get(1).is_some_and(|word| word == "at");
    let is_known = words.len() > 1 && programs().iter().any(named);
    (is_known && !is_message).then_some(Line { place, words })
}

/// The commands of a document.
fn commands(document: &str) -> Vec<Line> {
    let (mut found, mut in_block, mut continued) = (Vec::new(), false, String::new());
    for line in document.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            if let Some(first) = line.strip_suffix('\\') {
                continued.push_str(first);
                continue;
            }
            let whole = std::mem::take(&mut continued) + line;
            found.extend(
                whole
                    .split("&&")
                    .filter_map(|part| command(part, Place::Block)),
            );
        } else {
            let quoted = line.split('`').skip(1).step_by(2);
            found.extend(quoted.filter_map(|part| command(part, Place::Sentence)));
        }
    }
    found
}

/// Whether a word stands for a value that the reader knows: `APP`, `[ID]`, `...`.
fn is_placeholder(word: &str) -> bool {
    let is_name = |letter: char| letter.is_ascii_uppercase() || "[]_.-…@:".contains(letter);
    !word.is_empty() && word.chars().all(is_name) && !word.starts_with("--")
}

/// The word that is no value of its option and no subcommand; empty where a value is missing.
fn refused_value(error: &clap::Error) -> Option<&str> {
    let kinds = [ContextKind::InvalidValue, ContextKind::InvalidSubcommand];
    kinds.into_iter().find_map(|kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    })
}

/// Whether a word is the name of a user whom this machine does not have.
fn is_unknown_user(word: &str, error: &clap::Error) -> bool {
    error
        .to_string()
        .contains(&format!("there is no user \"{word}\""))
}

/// Why a program refuses a command, if it does.
fn refusal(line: &Line) -> Option<String> {
    let (name, program) = programs()
        .into_iter()
        .find(|(name, _)| line.words.iter().zip(*name).all(|(a, b)| a == b))?;
    let arguments = line.words.iter().skip(name.len());
    let arguments = arguments.filter(|word| !matches!(word.as_str(), "..." | "…" | "--"));
    let values: Vec<String> = arguments
        .map(|word| word.trim_matches(['[', ']']).to_owned())
        .collect();
    let error = program
        .no_binary_name(true)
        .try_get_matches_from(&values)
        .err()?;
    let is_short = line
        .words
        .iter()
        .any(|word| matches!(word.as_str(), "..." | "…"));
    let in_sentence = line.place == Place::Sentence || is_short;
    let accepted = match (error.kind(), refused_value(&error)) {
        (ErrorKind::DisplayHelp | ErrorKind::DisplayVersion, _) => true,
        // `smtt-history diff` in a sentence names the subcommand.
        (
            ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
            _,
        ) => in_sentence,
        // A reader puts a number, a name or a subcommand there. `--cluster` in a sentence names the option.
        (_, Some("")) => in_sentence,
        (_, Some(word)) => is_placeholder(word) || is_unknown_user(word, &error),
        _ => false,
    };
    (!accepted).then(|| format!("{}\n{error}", line.words.join(" ")))
}

fn documents(root: &Path) -> Result<Vec<PathBuf>> {
    let mut documents = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    for folder in ["docs", "docs/design"] {
        for entry in fs::read_dir(root.join(folder))? {
            documents.push(entry?.path());
        }
    }
    documents.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    Ok(documents)
}

#[test]
fn every_command_in_a_document_is_one_that_its_program_accepts() -> Result<()> {
    let root = Paths::find()?.root;
    let (mut checked, mut refused) = (0, Vec::new());
    for document in documents(&root)? {
        let text = fs::read_to_string(&document)
            .with_context(|| format!("{} cannot be read", document.display()))?;
        for line in commands(&text) {
            checked += 1;
            if let Some(why) = refusal(&line) {
                refused.push(format!("{}: {why}", document.display()));
            }
        }
    }
    println!("{checked} commands");
    ensure!(refused.is_empty(), "{}", refused.join("\n"));
    ensure!(checked >= COMMANDS, "only {checked} commands were found");
    Ok(())
}

#[test]
fn a_command_that_no_program_knows_is_found() {
    let text = "Use `smtt-ctl rdds --sorted` or `smtt-ctl top`.\n```\n$ SMTT_A=1 sudo smtt-ctl tasks --app 'a b' \\\n  --limit N   # rows\ncargo xtask nothing && smtt-history diff\n```\n";
    let lines = commands(text);
    let refused: Vec<bool> = lines.iter().map(|line| refusal(line).is_some()).collect();
    assert_eq!(lines.len(), 5, "{lines:?}");
    assert_eq!(
        lines[2].words,
        ["smtt-ctl", "tasks", "--app", "a b", "--limit", "N"]
    );
    assert_eq!(refused, [true, false, false, true, true]);
}
