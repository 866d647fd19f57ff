//! A worker is installed, upgraded and removed with the commands of README and docs/INSTALL.md. The next release has
//! another library of the marker and another configuration; an application runs through it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_common::event::marker::LIBRARY_NAME;
use xtask::dist::{REVISION, VERSION};
use xtask::paths::Paths;
use xtask::process::output;

use crate::alert::{self, block};
use crate::contents::unpacked;
use crate::life::{SHOW, Said, Step};
use crate::worker;

/// The line of the configuration of the next release that this one has not.
const NEW_LINE: &str = "# A line of the next release.";
const CONFIGURATION: &str = "/etc/smtt/smtt.toml";
const LIBRARY: &str = "/usr/lib/smtt/libsmtt_marker.so";
/// The member of the group in place of the documents' USER.
const MEMBER: &str = "ann";
/// Questions of an executor whose facts come through the library that it began with.
const OLD_LIBRARY: &str = "grep -qs 'libsmtt_marker.so (deleted)' /proc/[0-9]*/maps";

/// The commands of a block, without their comments.
fn commands(block: &str) -> Vec<String> {
    let lines = block.lines().map(|line| {
        let (command, _) = line.split_once(" #").unwrap_or((line, ""));
        command.trim().to_owned()
    });
    lines.filter(|line| !line.is_empty()).collect()
}

/// The only command of a block that begins so.
fn beginning<'a>(commands: &'a [String], begin: &str) -> Result<&'a str> {
    let found: Vec<&String> = commands
        .iter()
        .filter(|line| line.starts_with(begin))
        .collect();
    match found[..] {
        [line] => Ok(line),
        _ => anyhow::bail!("{begin}: {commands:?}"),
    }
}

/// README's commands that install a worker.
pub fn installation(paths: &Paths) -> Result<Vec<Step>> {
    let readme = fs::read_to_string(paths.root.join("README.md"))?;
    let all = commands(&block(&readme, "apt install ./smtt_")?);
    let install = beginning(&all, "apt install ")?;
    let file = format!("./smtt_{VERSION}-{REVISION}_amd64.deb");
    ensure!(install == format!("apt install {file}"), "{install}");
    let join = beginning(&all, "usermod ")?;
    ensure!(join.ends_with(" USER"), "{join}");
    let doctor = beginning(&all, "smtt-ctl doctor")?;
    ensure!(all.len() == 3, "{all:?}");
    let join = join.replace("USER", MEMBER);
    Ok(vec![
        // A machine that mmdebstrap has made names a release for apt, and has no lists of it.
        (
            "install",
            format!(
                "rm /etc/apt/apt.conf.d/99mmdebstrap; mkdir /download && cd /download && cp /smtt.deb {file} && {install} < /dev/null && rm -r /download"
            ),
        ),
        (
            "member",
            format!(
                "useradd {MEMBER} && {join} && wait_for test -S /run/smtt/smtt.sock && runuser -u {MEMBER} -- smtt-ctl status --json > /answer; \
                 s=$?; cat /answer; test $s -le 1"
            ),
        ),
        // What the emulated machine lacks makes it 1.
        (
            "doctor",
            format!(
                "for n in $(seq 20); do {doctor} && exit; test $? -le 1 && exit 0; sleep 1; done; exit 1"
            ),
        ),
    ])
}

/// The commands of docs/INSTALL.md that give the daemon its capability before Linux 6.6.
pub fn drop_in(paths: &Paths) -> Result<Vec<String>> {
    let page = fs::read_to_string(paths.root.join("docs/INSTALL.md"))?;
    Ok(commands(&block(&page, "/smtt-sys-admin.conf")?))
}

/// The file that docs/INSTALL.md unpacks where the package cannot be installed, and its commands.
pub fn tarball(paths: &Paths) -> Result<(String, Vec<String>)> {
    let page = fs::read_to_string(paths.root.join("docs/INSTALL.md"))?;
    let commands = commands(&block(&page, "tar -C / ")?);
    let first = commands.first().context("no command")?;
    let (_, file) = first.split_once(" -xzf ").context("no file")?;
    Ok((file.to_owned(), commands))
}

#[test]
fn the_package_prints_the_commands_of_its_page_before_linux_6_6() -> Result<()> {
    let paths = Paths::find()?;
    let folder = tempfile::tempdir()?;
    let control = folder.path().join("control");
    output(
        Command::new("dpkg-deb")
            .arg("--control")
            .arg(&worker()?.deb)
            .arg(&control),
    )?;
    // The script runs beside programs of these names that do nothing, on a machine of the test's own making.
    let programs = folder.path().join("programs");
    fs::create_dir(&programs)?;
    let program = |name: &str, body: &str| -> Result<()> {
        let file = programs.join(name);
        fs::write(&file, format!("#!/bin/sh\n{body}\n"))?;
        Ok(fs::set_permissions(
            &file,
            fs::Permissions::from_mode(0o755),
        )?)
    };
    for name in [
        "systemd-sysusers",
        "systemctl",
        "deb-systemd-helper",
        "deb-systemd-invoke",
    ] {
        program(name, "exit 0")?;
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", programs.display());
    let printed = |release: &str| -> Result<Vec<String>> {
        program("uname", &format!("echo {release}"))?;
        let said = output(
            Command::new("sh")
                .arg(control.join("postinst"))
                .args(["configure", ""])
                .env("PATH", &path),
        )?;
        let lines = said.lines().filter_map(|line| line.strip_prefix("  "));
        Ok(lines.map(str::to_owned).collect())
    };
    let documented = drop_in(&paths)?;
    for (release, wanted) in [("6.1.0-31-amd64", &documented), ("6.12.1", &Vec::new())] {
        let printed = printed(release)?;
        ensure!(printed == *wanted, "{release}: {printed:?}");
    }
    ensure!(documented.len() == 2, "{documented:?}");
    // The drop-in is where the commands take it from.
    let source = documented[0]
        .split_whitespace()
        .find(|word| word.starts_with("/usr/"));
    let source = source.context("no source")?.trim_start_matches('/');
    let files = unpacked(&worker()?.deb)?;
    ensure!(files.path().join(source).is_file(), "no {source}");
    Ok(())
}

#[test]
fn the_page_unpacks_the_tarball_that_is_made() -> Result<()> {
    let (file, _) = tarball(&Paths::find()?)?;
    let made = worker()?.tarball.file_name().context("a name")?;
    let file = file.replace("$(uname -m)", "x86_64");
    ensure!(made.to_str() == Some(&file), "{file}, made {made:?}");
    Ok(())
}

/// The commands of docs/INSTALL.md that upgrade and remove it.
pub fn upgrade_and_removal(paths: &Paths) -> Result<Vec<Step>> {
    let page = fs::read_to_string(paths.root.join("docs/INSTALL.md"))?;
    let all = commands(&block(&page, "--force-confold install")?);
    let [digest, install, status] = &all[..] else {
        anyhow::bail!("{all:?}");
    };
    ensure!(*digest == format!("sha256sum {LIBRARY}"), "{digest}");
    let file = "./smtt_NEW_amd64.deb";
    ensure!(install.ends_with(&format!(" {file}")), "{install}");
    ensure!(status == "smtt-ctl status", "{status}");
    for words in [
        "`apt remove smtt`",
        "`apt purge smtt`",
        "`smtt.toml.dpkg-dist`",
    ] {
        ensure!(page.contains(words), "no {words}");
    }
    let show = SHOW;
    let undone = alert::UNDONE;
    Ok(vec![
        (
            "change",
            format!(
                "sed -i 's/^tick = .*/tick = \"2s\"/' {CONFIGURATION} && \
                 sed -i \"s/^digests = .*/digests = [\\\"$({digest} | cut -c 1-64)\\\"]/\" {CONFIGURATION} && \
                 grep '^digests = ' {CONFIGURATION} && smtt-daemon --check --config {CONFIGURATION}"
            ),
        ),
        (
            "upgrade",
            format!(
                "before=$({show}); old=$({digest}); mkdir /download && cd /download && cp /smtt-next.deb {file} && \
                 {install} < /dev/null && rm -r /download && \
                 wait_for systemctl is-active --quiet smtt && after=$({show}) && \
                 test \"$old\" != \"$({digest})\" && {OLD_LIBRARY} && \
                 echo \"pids $before $after\" && grep ^tick {CONFIGURATION} && dpkg-query -W -f '${{Version}}\\n' smtt"
            ),
        ),
        (
            "configuration of the next release",
            format!(
                "grep -c '{NEW_LINE}' {CONFIGURATION}.dpkg-dist; grep -c '{NEW_LINE}' {CONFIGURATION}; ls -A1 /etc/smtt"
            ),
        ),
        ("traced again", "knows executors '\"pid\"'".to_owned()),
        // Of an executor that waits: a snapshot of the marker, by the library that only its digest makes known.
        ("facts again", "knows rdds 'cached arrays'".to_owned()),
        ("status", format!("{status} --json 2> /dev/null; test $? -le 1")),
        (
            "remove",
            format!(
                "apt-get -y remove smtt < /dev/null; ! systemctl is-active --quiet smtt && ! pidof smtt-daemon && \
                 ! test -e /usr/bin/smtt-daemon && grep ^tick {CONFIGURATION} && ls -d /var/lib/smtt"
            ),
        ),
        // The job goes on without daemon, library and jar.
        (
            "finish",
            "touch /gates/cached.go /gates/scanned.go; wait_for test -s /application.status; cat /application.log; cat /application.status".to_owned(),
        ),
        (
            "purge",
            format!(
                "apt-get -y purge smtt < /dev/null; {undone} && ! test -e /etc/smtt && ! test -e /var/lib/smtt && \
                 ! systemctl cat smtt.service && ! dpkg-query -W smtt && find / -xdev -name '*smtt*' -not -path '/smtt*.deb' \
                 -not -path '/smtt-script*' -not -path '/proc/*' -not -path '/opt/*' -not -path '/etc/systemd/system/smtt-script*' \
                 -not -path '/etc/systemd/system/multi-user.target.wants/smtt-script*' -not -path '/tmp/*'"
            ),
        ),
    ])
}

/// A package as that of a later release: its library has other bytes, and its configuration another line.
pub fn next_release(deb: &Path, folder: &Path) -> Result<PathBuf> {
    let tree = folder.join("tree");
    output(Command::new("dpkg-deb").arg("-R").arg(deb).arg(&tree))?;
    let of = |path: &str| tree.join(path.trim_start_matches('/'));
    ensure!(LIBRARY.ends_with(LIBRARY_NAME));
    let mut library = fs::read(of(LIBRARY))?;
    library.push(0);
    fs::write(of(LIBRARY), library)?;
    let configuration = fs::read_to_string(of(CONFIGURATION))?;
    fs::write(of(CONFIGURATION), format!("{configuration}\n{NEW_LINE}\n"))?;
    // dpkg's sums are of the files that are no configuration.
    let sums = tree.join("DEBIAN/md5sums");
    let known = fs::read_to_string(&sums)?;
    let names = known.lines().map(|line| line.split_once("  "));
    let names: Option<Vec<&str>> = names.map(|pair| pair.map(|(_, name)| name)).collect();
    let names = names.context("the form of md5sums")?;
    let fresh = output(Command::new("md5sum").args(names).current_dir(&tree))?;
    ensure!(fresh != known, "the library has no sum");
    fs::write(&sums, fresh)?;
    let next = folder.join("smtt-next.deb");
    output(
        Command::new("dpkg-deb")
            .args(["--root-owner-group", "--build"])
            .arg(&tree)
            .arg(&next),
    )?;
    Ok(next)
}

/// Compares what the steps printed; `pid` is that of the executor that runs through all of it.
pub fn check(said: &Said, pid: &Value) -> Result<()> {
    let member = said.ended("member", 0)?;
    ensure!(member.contains("\"version\""), "{member}");
    let change = said.ended("change", 0)?;
    ensure!(change.contains("configuration is good"), "{change}");
    let upgrade = said.ended("upgrade", 0)?;
    ensure!(upgrade.contains("tick = \"2s\""), "{upgrade}");
    ensure!(
        upgrade
            .trim_end()
            .ends_with(&format!("{VERSION}-{}", REVISION + 1)),
        "{upgrade}"
    );
    let pids = upgrade.lines().find_map(|line| line.strip_prefix("pids "));
    let (before, after) = pids.and_then(|pids| pids.split_once(' ')).context("pids")?;
    ensure!(
        before != after && after != "0",
        "the daemon was not restarted: {upgrade}"
    );
    // The administrator's file is as it was, and the new one is beside it.
    let files = said.ended("configuration of the next release", 0)?;
    let mut lines = files.lines();
    ensure!(
        (lines.next(), lines.next()) == (Some("1"), Some("0")),
        "{files}"
    );
    ensure!(lines.any(|name| name == "smtt.toml.dpkg-dist"), "{files}");
    let again = said.rows("traced again")?;
    ensure!(again.iter().any(|row| &row["pid"] == pid), "{again:#?}");
    let rdds = said.rows("facts again")?;
    let cached = rdds.iter().find(|row| row["name"] == "cached arrays");
    let cached = cached.with_context(|| format!("no facts by the old library: {rdds:#?}"))?;
    ensure!(
        cached["storage_memory_bytes"].as_u64() > Some(32 << 20) && &cached["pid"] == pid,
        "{cached}"
    );
    let status: Value = serde_json::from_str(said.ended("status", 0)?)?;
    let degraded = status["degraded"].to_string();
    ensure!(!degraded.contains("librar"), "{degraded}");

    said.ended("remove", 0)?;
    let finished = said.ended("finish", 0)?;
    ensure!(finished.contains("RESULT scan of 2 arrays"), "{finished}");
    ensure!(finished.trim_end().ends_with("\n0"), "{finished}");
    let left = said.ended("purge", 0)?;
    let left: Vec<_> = left.lines().filter(|line| line.starts_with('/')).collect();
    ensure!(left.is_empty(), "a purge left {left:?}");
    Ok(())
}
