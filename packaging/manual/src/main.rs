//! Writes man pages and shell completions of all programs into a folder, from the definitions of their command lines:
//! `man/*.1`, `man/*.8`, `bash/*`, `zsh/*`, `fish/*`. `cargo xtask dist` packs them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Arg, Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;

/// A shell, and the folder of its completions.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash"),
    (Shell::Zsh, "zsh"),
    (Shell::Fish, "fish"),
];

fn main() -> Result<()> {
    let out = std::env::args_os()
        .nth(1)
        .map(PathBuf::from)
        .context("usage: smtt-manual FOLDER")?;
    let programs = [
        (smtt_ctl::args::Args::command(), "1"),
        (smtt_history::args::Arguments::command(), "1"),
        (smtt_daemon::args::Arguments::command(), "8"),
    ];
    for (command, section) in programs {
        pages(&out.join("man"), command.clone(), section)?;
        completions(&out, command)?;
    }
    write(&out.join("man"), worker(), "1")
}

/// The program of workers, which calls two of the others by its first argument.
fn worker() -> Command {
    let argument =
        |name: &'static str, help: &'static str| Arg::new(name).value_name(name).help(help);
    Command::new("smtt")
        .version(env!("CARGO_PKG_VERSION"))
        .about("The programs of an SMTT worker in one file")
        .after_help("The file acts as the program by whose name it is called, as by the links smtt-daemon and smtt-ctl.")
        .arg(
            argument("PROGRAM", "daemon: the daemon of a worker, see smtt-daemon(8); ctl: its client, see smtt-ctl(1)")
                .required(true),
        )
        .arg(argument("ARGUMENTS", "Those of the program").num_args(0..))
}

/// A page of the program and one of each of its subcommands, in the program's section of the manual.
fn pages(folder: &Path, command: Command, section: &str) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    page(folder, &command, section)
}

fn page(folder: &Path, command: &Command, section: &str) -> Result<()> {
    for below in command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
    {
        page(folder, below, section)?;
    }
    write(folder, command.clone(), section)
}

fn write(folder: &Path, command: Command, section: &str) -> Result<()> {
    let man = Man::new(command).section(section).date("");
    let path = folder.join(man.get_filename());
    let mut text = Vec::new();
    man.render(&mut text)?;
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn completions(out: &Path, command: Command) -> Result<()> {
    let name = command.get_name().to_owned();
    for (shell, folder) in SHELLS {
        let folder = out.join(folder);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let file = clap_complete::generate_to(shell, &mut command.clone(), &name, &folder)
            .with_context(|| format!("cannot write the completions of {name}"))?;
        if shell == Shell::Bash {
            // clap_complete 4.6 names a program with a hyphen in two ways, and completes nothing after a subcommand.
            let text = fs::read_to_string(&file)?;
            let one = text.replace(&name.replace('-', "__subcmd__"), &name.replace('-', "__"));
            fs::write(&file, one)?;
        }
    }
    Ok(())
}
