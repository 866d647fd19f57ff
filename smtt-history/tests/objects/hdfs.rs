//! Stores and event logs in HDFS: what is read from a real NameNode and DataNode is what a local store has, and writers that
//! are killed, meet, or are late leave whole applications only.

use std::fs;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use xtask::event_log::ID;
use xtask::http::{get, request};
use xtask::process::wait_for;

use crate::answers::{applications, same_answers, worker};
use crate::hdfs_lab::{Fault, Place, Proxy, hdfs};
use crate::lab::{self, LIMIT};
use crate::logs::rolling;
use crate::parts;

const TABLES: [&str; 3] = ["meta.parquet", "tasks.parquet", "task_sql.parquet"];
/// Times that importers and a compaction start together.
const RACES: u32 = 4;

fn texts(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

#[test]
fn a_store_in_hdfs_equals_a_local_one() -> Result<()> {
    let place = Place::new(hdfs()?, "answers");
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 1_000)?;
    let store = lab::imported(folder.path(), &log)?;
    let said = place.done(&texts(&place.import(&log, &[])))?;
    ensure!(
        said.contains("1000 tasks") && said.contains(&place.store()),
        "{said}"
    );
    let (local, remote) = (lab::serve_folder(&store)?, place.serve(&[])?);
    same_answers(&local, &remote)?;
    ensure!(applications(&local)? == applications(&remote)?);
    ensure!(applications(&remote)?.len() == 1);
    // The commands read the same.
    let (local, remote) = (store.display().to_string(), place.store());
    for command in [
        vec!["advise", "--json", ID],
        vec!["diff", "--json", ID, ID],
        vec!["export", "--perfetto", "-", ID],
        vec!["report", "--html", "-", ID],
    ] {
        let of = |store: &str| {
            let mut arguments = vec![command[0], "--store", store];
            arguments.extend(&command[1..]);
            place.done(&arguments)
        };
        ensure!(of(&local)? == of(&remote)?, "{command:?}");
    }
    // Hadoop's own client sees closed files with the modes of a local store.
    ensure!(place.tables(&store, &TABLES)?.is_some());
    let files = place.files()?;
    ensure!(files.len() == 4, "{files:?}");
    for file in &files {
        ensure!(file.is_closed && file.mode == "rw-r-----", "{file:?}");
    }
    ensure!(files[1].path == "tables-000001.json", "{files:?}");
    let large = files.iter().map(|it| it.bytes).max();
    println!("the largest file has {large:?} bytes");
    // What is there is not imported again, but for who says so.
    let again = place.run(&texts(&place.import(&log, &[])))?;
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    ensure!(
        again.status.code() == Some(1) && said.contains("--replace"),
        "{said}"
    );
    place.done(&texts(&place.import(&log, &["--replace"])))?;
    ensure!(place.tables(&store, &TABLES)?.is_some());
    let names = place.names()?;
    ensure!(
        names.len() == 4 && names.contains(&"tables-000002.json".to_owned()),
        "{names:?}"
    );
    Ok(())
}

#[test]
fn parts_folders_and_the_workers_files_are_read_and_become_tables() -> Result<()> {
    let place = Place::new(hdfs()?, "parts");
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 600)?;
    let store = folder.path().join("live");
    // More names than the NameNode sends at a time.
    parts::write(&store.join(ID), &log, 20, true)?;
    worker(&store)?;
    place.upload(&store)?;
    // What a driver is writing, under the name that it has until it is whole.
    let hidden = format!("{}/.meta-000021.parquet.inprogress", place.path());
    let part = store.join(ID).join("meta-000020.parquet");
    place
        .hdfs
        .ask(&["open", &part.display().to_string(), &hidden])?;
    let (local, remote) = (lab::serve_folder(&store)?, place.serve(&[])?);
    same_answers(&local, &remote)?;
    let workers = format!("/smtt/v1/applications/{ID}/workers");
    let theirs = get(local.port, &workers)?;
    ensure!(theirs.contains("\"worker\":\"host-1\""), "{theirs}");
    ensure!(theirs == get(remote.port, &workers)?);
    let said = place.done(&["compact", "--store", &place.store()])?;
    ensure!(said.contains("20 parts"), "{said}");
    let names = place.names()?;
    ensure!(names.len() == 5 && names[0].starts_with('.'), "{names:?}");
    same_answers(&local, &place.serve(&[])?)?;
    ensure!(
        place
            .done(&["compact", "--store", &place.store()])?
            .is_empty()
    );
    // A folder of a local store that was copied.
    let plain = Place::new(hdfs()?, "plain");
    let store = lab::imported(folder.path(), &log)?;
    plain.upload(&store)?;
    let (local, remote) = (lab::serve_folder(&store)?, plain.serve(&[])?);
    same_answers(&local, &remote)?;
    Ok(())
}

#[test]
fn event_logs_in_hdfs_are_imported_as_those_in_a_folder() -> Result<()> {
    let place = Place::new(hdfs()?, "logs");
    let folder = tempfile::tempdir()?;
    let log = lab::log(&folder.path().join("local"), 500)?;
    let reference = lab::imported(folder.path(), &log)?;
    let reference = lab::serve_folder(&reference)?;
    let stages = format!("/api/v1/applications/{ID}/stages?details=true");
    let theirs: Value = serde_json::from_str(&get(reference.port, &stages)?)?;
    let packed = folder.path().join("packed");
    fs::write(&packed, zstd::encode_all(fs::read(&log)?.as_slice(), 3)?)?;
    for (form, name) in [
        ("plain", ID.to_owned()),
        ("zstd", format!("{ID}.zstd")),
        ("inprogress", format!("{ID}.inprogress")),
        ("rolling", format!("eventlog_v2_{ID}")),
    ] {
        let place = Place::new(hdfs()?, &format!("logs-{form}"));
        match form {
            "rolling" => {
                for (part, text) in rolling(&folder.path().join("parts"), &log)? {
                    fs::write(folder.path().join("part"), text)?;
                    place.put(&folder.path().join("part"), &format!("logs/{name}/{part}"))?;
                }
            }
            "zstd" => place.put(&packed, &format!("logs/{name}"))?,
            _ => place.put(&log, &format!("logs/{name}"))?,
        }
        // Names that begin in the same way are others.
        place.put(&packed, &format!("logs/{ID}0"))?;
        let served = place.serve(&["--event-logs", &place.address("logs")])?;
        let ours: Value = serde_json::from_str(&get(served.port, &stages)?)?;
        ensure!(ours == theirs, "{form}: the stages differ");
        ensure!(place.names()?.len() == 4, "{form}");
        // The same by the command, into a folder.
        let other = folder.path().join(form).display().to_string();
        let address = place.address(&format!("logs/{name}"));
        let said = place.done(&["import", "--store", &other, &address])?;
        ensure!(said.contains("500 tasks"), "{form}: {said}");
    }
    // An id does not lead out of the folder, whatever is there.
    place.put(&log, "logs/eventlog_v2_x/part")?;
    place.put(&log, ID)?;
    place.put(&log, &format!("other/{ID}"))?;
    let served = place.serve(&["--event-logs", &place.address("logs")])?;
    for id in [
        format!("..%2F{ID}"),
        format!("..%2Fother%2F{ID}"),
        format!("%2Flogs-plain%2Flogs%2F{ID}"),
        format!("eventlog_v2_x%2F..%2F..%2F{ID}"),
        "..".to_owned(),
    ] {
        let path = format!("/api/v1/applications/{id}/stages");
        let (status, text) = request(served.port, &path, "")?;
        ensure!(matches!(status, 400 | 404), "{id}: {status} {text}");
    }
    ensure!(place.names()?.is_empty(), "something was imported");
    let absent = place.run(&[
        "import",
        "--store",
        &place.store(),
        &place.address("logs/x"),
    ])?;
    let said = String::from_utf8_lossy(&absent.stderr).into_owned();
    ensure!(said.contains("no log of this name"), "{said}");
    Ok(())
}

/// HDFS does not state the length of a block that is being written.
#[test]
fn of_a_log_that_is_being_written_the_whole_blocks_are_read() -> Result<()> {
    let place = Place::new(hdfs()?, "growing");
    let folder = tempfile::tempdir()?;
    let log = lab::log(&folder.path().join("local"), 500)?;
    let bytes = fs::metadata(&log)?.len();
    let name = format!("logs/{ID}.inprogress");
    let path = format!("{}/{name}", place.folder);
    place
        .hdfs
        .ask(&["open", &log.display().to_string(), &path])?;
    // Also where it is the last part of a rolling log.
    let part = format!("eventlog_v2_{ID}/events_1_{ID}");
    let rolling = format!("{}/logs/{part}", place.folder);
    place
        .hdfs
        .ask(&["open", &log.display().to_string(), &rolling])?;
    let whole = bytes / (1 << 20) * (1 << 20);
    for name in [&name, &format!("logs/eventlog_v2_{ID}")] {
        let first = folder.path().join("first").display().to_string();
        let address = place.address(name);
        let done = place.run(&["import", "--replace", "--store", &first, &address])?;
        let said = String::from_utf8(done.stdout)?;
        // A block ends within a line, which counts as damaged.
        ensure!(done.status.code() == Some(1), "{name}: {:?}", done.status);
        let has_blocks = whole > 0 && said.contains(&format!("{whole} bytes"));
        ensure!(has_blocks, "{name}: {said}");
    }
    // When it is closed it has all.
    place.hdfs.ask(&["close", &path])?;
    let second = folder.path().join("second").display().to_string();
    let said = place.done(&["import", "--store", &second, &place.address(&name)])?;
    ensure!(
        said.contains("500 tasks") && said.contains(&format!("{bytes} bytes")),
        "{said}"
    );
    Ok(())
}

/// Kills a program at every `step`th of its requests to the NameNode: at one before the NameNode has done what it asks, at the
/// next one after that. After each kill `check` has the place behind the proxy. Returns the kills.
fn at_each_request(
    (place, step): (&Place<'_>, u32),
    prepare: impl Fn() -> Result<()>,
    arguments: impl Fn(&Place<'_>) -> Vec<String>,
    check: impl Fn(&Place<'_>) -> Result<()>,
) -> Result<u32> {
    let (proxy, through) = Proxy::start(place)?;
    for kills in 0..100 {
        prepare()?;
        let (number, is_done) = (kills * step, kills % 2 == 1);
        let came = Arc::new(AtomicBool::new(false));
        let (seen, note) = (AtomicU32::new(0), Arc::clone(&came));
        proxy.rule(
            move |_| match seen.fetch_add(1, Ordering::Relaxed) == number {
                true => Fault::Stop(is_done, Arc::clone(&note)),
                false => Fault::None,
            },
        );
        let mut child = through
            .program()
            .args(arguments(&through))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let ended = wait_for("the request comes", LIMIT, || {
            if came.load(Ordering::Relaxed) {
                return Ok(Some(false));
            }
            Ok(child.try_wait()?.map(|_| true))
        })?;
        child.kill()?;
        child.wait()?;
        proxy.rule(|_| Fault::None);
        check(&through).with_context(|| format!("request {number}, done: {is_done}"))?;
        if ended {
            return Ok(kills);
        }
    }
    anyhow::bail!("the program makes 100 requests");
}

#[test]
fn an_import_that_is_killed_at_any_request_leaves_whole_tables_or_none() -> Result<()> {
    let place = Place::new(hdfs()?, "steps");
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 50)?;
    let reference = lab::imported(folder.path(), &log)?;
    let there = AtomicU32::new(0);
    let (half, named) = (AtomicU32::new(0), AtomicU32::new(0));
    let check = |_: &Place<'_>| {
        let (hidden, visible) = place.whole()?;
        half.fetch_add(u32::from(hidden > 0), Ordering::Relaxed);
        named.fetch_add(u32::from(visible > 0), Ordering::Relaxed);
        let is_there = place.tables(&reference, &TABLES)?.is_some();
        there.fetch_add(u32::from(is_there), Ordering::Relaxed);
        Ok(())
    };
    let import = |place: &Place<'_>| place.import(&log, &[]);
    let kills = at_each_request((&place, 1), || place.empty(), import, check)?;
    let there = there.load(Ordering::Relaxed);
    let (half, named) = (half.into_inner(), named.into_inner());
    println!(
        "{kills} kills of imports: tables were there {there} times, hidden ones {half} times, visible ones {named} times"
    );
    ensure!(kills >= 20 && there >= 2, "{kills} kills, {there} times");
    ensure!(half >= 6 && named > there, "{half} hidden, {named} visible");
    // A replacement leaves the old tables or the new ones.
    let before = folder.path().join("before");
    fs::create_dir_all(before.join(ID))?;
    for name in place.names()? {
        let bytes = place.read(&format!("{}/{name}", place.path()))?;
        fs::write(before.join(ID).join(name), bytes)?;
    }
    let prepare = || {
        place.empty()?;
        place.upload(&before)
    };
    let newer = AtomicU32::new(0);
    let check = |_: &Place<'_>| {
        let is_there = place.tables(&reference, &TABLES)?.is_some();
        ensure!(is_there, "the tables went");
        place.whole()?;
        let is_newer = place.names()?.contains(&"tables-000002.json".to_owned());
        newer.fetch_add(u32::from(is_newer), Ordering::Relaxed);
        Ok(())
    };
    let replace = |place: &Place<'_>| place.import(&log, &["--replace"]);
    let kills = at_each_request((&place, 2), prepare, replace, check)?;
    let newer = newer.load(Ordering::Relaxed);
    println!("{kills} kills of replacements, {newer} of them after the new pointer");
    ensure!(kills >= 12 && newer >= 2, "{kills} kills, {newer} newer");
    // What killed ones left goes after a day, also where it is still open.
    let table = before.join(ID).join(&place.names()?[0]);
    for (name, day) in [
        ("meta.00000000000000aa.parquet", 1),
        (".tasks.00000000000000cc.parquet", 1),
        (".tables.json.00000000000000aa", 1),
        (".tables.json.00000000000000bb", 2),
    ] {
        let path = format!("{}/{name}", place.path());
        fs::copy(reference.join(ID).join(TABLES[0]), &table)?;
        let how = if name.ends_with("bb") { "put" } else { "open" };
        place
            .hdfs
            .ask(&[how, &table.display().to_string(), &path])?;
        if day == 1 {
            place.hdfs.ask(&["times", &path, "1000000000000"])?;
        }
    }
    place.done(&texts(&place.import(&log, &["--replace"])))?;
    let names = place.names()?;
    ensure!(
        names.len() == 5 && names[0] == ".tables.json.00000000000000bb",
        "{names:?}"
    );
    ensure!(place.tables(&reference, &TABLES)?.is_some());
    Ok(())
}

#[test]
fn a_compaction_that_is_killed_at_any_request_loses_nothing() -> Result<()> {
    let place = Place::new(hdfs()?, "compact-steps");
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 50)?;
    let (store, reference) = (folder.path().join("live"), folder.path().join("reference"));
    parts::write(&store.join(ID), &log, 3, true)?;
    parts::write(&reference.join(ID), &log, 3, true)?;
    smtt_history::live::compact(&reference, ID, false)?;
    let prepare = || {
        place.empty()?;
        place.upload(&store)
    };
    let compact = |place: &Place<'_>| {
        ["compact", "--store", &place.store(), ID]
            .map(str::to_owned)
            .to_vec()
    };
    let (both, made) = (AtomicU32::new(0), AtomicU32::new(0));
    // The document of an application with parts has the time of its last file, which is another in HDFS.
    let of_parts = || place.tables(&reference, &TABLES[1..]);
    let left = || -> Result<usize> {
        let names = place.names()?;
        Ok(names.iter().filter(|it| it.starts_with("meta-")).count())
    };
    let kills = at_each_request((&place, 2), prepare, compact, |through| {
        let (parts, is_made) = (left()?, of_parts()?.is_some());
        ensure!(is_made || parts == 3, "{parts} parts and no tables");
        made.fetch_add(u32::from(is_made), Ordering::Relaxed);
        both.fetch_add(u32::from(is_made && parts > 0), Ordering::Relaxed);
        // Another one ends what was begun.
        through.done(&["compact", "--store", &through.store()])?;
        ensure!(of_parts()?.is_some(), "no tables");
        ensure!(left()? == 0, "parts stay");
        Ok(())
    })?;
    let (both, made) = (both.load(Ordering::Relaxed), made.load(Ordering::Relaxed));
    println!("{kills} kills of compactions, {made} with tables, {both} of them with parts, too");
    ensure!(kills >= 14 && both >= 2, "{kills} kills, {both} with both");
    Ok(())
}

#[test]
fn two_importers_and_a_compaction_at_once_have_one_result() -> Result<()> {
    let place = Place::new(hdfs()?, "race");
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 300)?;
    let store = folder.path().join("live");
    parts::write(&store.join(ID), &log, 3, true)?;
    let (imported, compacted) = (
        lab::imported(folder.path(), &log)?,
        folder.path().join("reference"),
    );
    parts::write(&compacted.join(ID), &log, 3, true)?;
    smtt_history::live::compact(&compacted, ID, false)?;
    for round in 0..RACES {
        place.empty()?;
        place.upload(&store)?;
        let mut all = Vec::new();
        let compact = ["compact", "--store", &place.store(), ID].map(str::to_owned);
        let import = place.import(&log, &["--replace"]);
        for arguments in [import.clone(), compact.to_vec(), import] {
            let mut command = place.program();
            command.args(arguments);
            all.push(
                command
                    .stdout(Stdio::null())
                    .stderr(Stdio::piped())
                    .spawn()?,
            );
        }
        let mut won = 0;
        for child in all {
            let done = child.wait_with_output()?;
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            won += u32::from(done.status.success());
            let is_known = ["changed", "no parts", "not in the store"];
            let is_known = is_known.iter().any(|it| said.contains(it));
            ensure!(done.status.success() || is_known, "round {round}: {said}");
        }
        ensure!(won >= 1, "round {round}: {won} won");
        // One generation, and no part beside it.
        let names = place.names()?;
        ensure!(names.len() == 4, "round {round}: {names:?}");
        let of = |reference| place.tables(reference, &TABLES[1..]);
        ensure!(of(&imported).is_ok_and(|it| it.is_some()) || of(&compacted)?.is_some());
        place.done(&["advise", "--store", &place.store(), ID])?;
    }
    Ok(())
}

/// A writer stops before it renames its pointer. Meanwhile another one uses its number; then more of them use the next one,
/// too, and delete its own.
#[test]
fn a_writer_whose_number_was_used_has_lost() -> Result<()> {
    let place = Place::new(hdfs()?, "late");
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 50)?;
    let (proxy, through) = Proxy::start(&place)?;
    for others in [1, 2] {
        place.empty()?;
        place.done(&texts(&place.import(&log, &[])))?;
        let (came, released) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let (note, go) = (Arc::clone(&came), Arc::clone(&released));
        let renames = AtomicUsize::new(0);
        proxy.rule(move |method| {
            let is_rename = method == "rename2";
            // The tables have their names before the pointer has.
            if is_rename && renames.fetch_add(1, Ordering::Relaxed) == TABLES.len() {
                return Fault::Hold(Arc::clone(&note), Arc::clone(&go));
            }
            Fault::None
        });
        let mut late = through.program();
        late.args(through.import(&log, &["--replace"]));
        let late = late.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        wait_for("the rename comes", LIMIT, || {
            Ok(came.load(Ordering::Relaxed).then_some(()))
        })?;
        for _ in 0..others {
            place.done(&texts(&place.import(&log, &["--replace"])))?;
        }
        let before = place.names()?;
        let has = |number: u64| before.contains(&format!("tables-{number:06}.json"));
        ensure!(has(others + 1) && !has(others), "{before:?}");
        let hidden = before.iter().filter(|it| it.starts_with('.'));
        ensure!(before.len() == 8 && hidden.count() == 1, "{before:?}");
        released.store(true, Ordering::Relaxed);
        let done = late.wait_with_output()?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        ensure!(
            !done.status.success() && said.contains("changed meanwhile"),
            "{said}"
        );
        // Its tables went, and its pointer with them.
        let after = place.names()?;
        ensure!(
            after.len() == 4 && after.iter().all(|it| before.contains(it)),
            "{after:?}"
        );
        ensure!(!after[0].starts_with('.'), "{after:?}");
        place.done(&["advise", "--store", &place.store(), ID])?;
    }
    Ok(())
}
