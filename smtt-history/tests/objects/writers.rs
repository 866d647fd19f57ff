//! Importers and compactions that are killed, and two at once: readers see whole applications only.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use smtt_history::objects::Location;
use smtt_history::objects::client::Store;
use smtt_history::open::{App, exists};
use smtt_history::out::Kind;
use xtask::event_log::ID;
use xtask::http::get;
use xtask::process::wait_for;
use xtask::random::moment;

use crate::clouds::Cloud;
use crate::lab::{self, Bucket, lab};
use crate::parts;

/// How often each program is killed.
const KILLS: u32 = 5;
/// Times that two start together.
const RACES: u32 = 3;
const TABLES: [&str; 3] = ["meta.parquet", "tasks.parquet", "task_sql.parquet"];

/// Tables that the bucket's pointer names, byte by byte those of a folder; `None` where there is no pointer.
fn tables(bucket: &Bucket, reference: &Path) -> Result<Option<()>> {
    same_tables(bucket, reference, &TABLES)
}

/// As [`tables`]. The document of an application with parts has the time of its last file, which is another in a bucket.
fn of_parts(bucket: &Bucket, reference: &Path) -> Result<Option<()>> {
    same_tables(bucket, reference, &TABLES[1..])
}

fn same_tables(bucket: &Bucket, reference: &Path, tables: &[&str]) -> Result<Option<()>> {
    let prefix = format!("history/{ID}");
    let pointer = format!("{prefix}/tables.json");
    if !bucket.keys(&format!("{prefix}/"))?.contains(&pointer) {
        return Ok(None);
    }
    let pointer: serde_json::Value = serde_json::from_slice(&bucket.read(&pointer)?)?;
    let generation = pointer["generation"].as_str().context("no generation")?;
    for table in tables {
        let name = table.replace(".parquet", &format!(".{generation}.parquet"));
        let ours = bucket.read(&format!("{prefix}/{name}"))?;
        ensure!(
            ours == fs::read(reference.join(ID).join(table))?,
            "{table} differs"
        );
    }
    Ok(Some(()))
}

fn empty(bucket: &Bucket) -> Result<()> {
    for key in bucket.keys("history/")? {
        bucket.send("DELETE", &key, b"")?;
    }
    Ok(())
}

fn import(bucket: &Bucket, log: &Path, more: &[&str]) -> Vec<String> {
    let mut arguments = vec!["import".to_owned(), "--store".to_owned(), bucket.store()];
    arguments.extend(more.iter().map(|it| (*it).to_owned()));
    arguments.push(log.display().to_string());
    arguments
}

#[test]
fn an_import_that_is_killed_leaves_whole_tables_or_none() -> Result<()> {
    let bucket = lab()?.bucket("kills")?;
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 1_000)?;
    let reference = lab::imported(folder.path(), &log)?;
    let begun = Instant::now();
    bucket.import(&log)?;
    let whole = begun.elapsed();
    let (mut hit, mut left, mut there) = (0, 0, 0);
    for round in 0..KILLS {
        // The second half replaces what is there.
        let replaces = round >= KILLS / 2;
        if !replaces {
            empty(&bucket)?;
        }
        let more: &[&str] = if replaces { &["--replace"] } else { &[] };
        let mut child = bucket.program().args(import(&bucket, &log, more)).spawn()?;
        sleep(moment(2 * round % KILLS, KILLS, whole));
        hit += u32::from(child.try_wait()?.is_none());
        child.kill()?;
        child.wait()?;
        let is_there = tables(&bucket, &reference)?.is_some();
        there += u32::from(is_there);
        left += bucket.keys(&format!("history/{ID}/"))?.len() - if is_there { 4 } else { 0 };
        ensure!(
            is_there || !replaces || there == 0,
            "a replacement removed what was there"
        );
        // Readers see an application, or none.
        let location: Location = bucket.store().parse().map_err(anyhow::Error::msg)?;
        ensure!(seen(&bucket, &location)? == is_there, "round {round}");
    }
    println!(
        "{hit} of {KILLS} met an import, {there} times tables were there, {left} objects were left"
    );
    ensure!(hit > 0, "no kill met an import");
    bucket.done(
        &import(&bucket, &log, &["--replace"])
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>(),
    )?;
    ensure!(tables(&bucket, &reference)?.is_some());
    Ok(())
}

/// At which of its requests a program is killed: with S3's protocol at each one, with others at every other one, which takes
/// half as long.
fn each(bucket: &Bucket) -> usize {
    if bucket.cloud == Cloud::S3 { 1 } else { 2 }
}

/// Kills a program at its requests ([`each`]), before and after the server has done what it asks. After each kill `check`
/// has the number of the request; what the program then makes undisturbed is for the next round. Returns the kills.
fn at_each_request(
    bucket: &Bucket,
    prepare: impl Fn() -> Result<()>,
    arguments: &[String],
    check: impl Fn(u32) -> Result<()>,
) -> Result<u32> {
    let (proxy, through) = lab::Proxy::start(bucket)?;
    let mut kills = 0;
    let step = each(bucket);
    for is_done in [false, true] {
        for number in (usize::from(is_done)..).step_by(step) {
            let number = u32::try_from(number)?;
            ensure!(number < 60, "the program makes more than 60 requests");
            prepare()?;
            let came = Arc::new(AtomicBool::new(false));
            let (seen, note) = (AtomicU32::new(0), Arc::clone(&came));
            proxy.rule(
                move |_, _| match seen.fetch_add(1, Ordering::Relaxed) == number {
                    true => lab::Fault::Stop(is_done, Arc::clone(&note)),
                    false => lab::Fault::None,
                },
            );
            let mut child = through
                .program()
                .args(arguments)
                .stderr(Stdio::null())
                .spawn()?;
            let ended = wait_for("the request comes", lab::LIMIT, || {
                if came.load(Ordering::Relaxed) {
                    return Ok(Some(false));
                }
                Ok(child.try_wait()?.map(|_| true))
            })?;
            child.kill()?;
            child.wait()?;
            check(number).with_context(|| format!("request {number}, done: {is_done}"))?;
            if ended {
                break;
            }
            kills += 1;
        }
    }
    Ok(kills)
}

#[test]
fn an_import_that_is_killed_at_any_request_leaves_whole_tables_or_none() -> Result<()> {
    import_at_each_request(&lab()?.bucket("steps")?)
}

pub fn import_at_each_request(bucket: &Bucket) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 50)?;
    let reference = lab::imported(folder.path(), &log)?;
    let there = AtomicU32::new(0);
    let kills = at_each_request(
        &bucket,
        || empty(&bucket),
        &import(&bucket, &log, &[]),
        |_| {
            let is_there = tables(&bucket, &reference)?.is_some();
            there.fetch_add(u32::from(is_there), Ordering::Relaxed);
            Ok(())
        },
    )?;
    let there = there.load(Ordering::Relaxed);
    println!("{kills} kills of imports, tables were there {there} times");
    // Two listings and reads before, three tables and the pointer.
    let step = u32::try_from(each(bucket))?;
    ensure!(
        kills >= 10 / step && there >= 3 / step,
        "{kills} kills, {there} times"
    );
    // A replacement leaves the old tables or the new ones.
    let replace = import(&bucket, &log, &["--replace"]);
    let kills = at_each_request(
        &bucket,
        || Ok(()),
        &replace,
        |_| {
            ensure!(tables(&bucket, &reference)?.is_some(), "the tables went");
            Ok(())
        },
    )?;
    println!("{kills} kills of replacements");
    ensure!(kills >= 12 / step, "{kills} kills");
    Ok(())
}

#[test]
fn a_compaction_that_is_killed_at_any_request_loses_nothing() -> Result<()> {
    compaction_at_each_request(&lab()?.bucket("compact-steps")?)
}

pub fn compaction_at_each_request(bucket: &Bucket) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 50)?;
    let (store, reference) = live(folder.path(), &log)?;
    let prepare = || {
        empty(&bucket)?;
        bucket.upload(&store, "history")
    };
    let compact = ["compact", "--store", &bucket.store(), ID].map(str::to_owned);
    let (both, made) = (AtomicU32::new(0), AtomicU32::new(0));
    let kills = at_each_request(&bucket, prepare, &compact, |_| {
        let parts = bucket.keys(&format!("history/{ID}/meta-"))?.len();
        let is_made = of_parts(&bucket, &reference)?.is_some();
        ensure!(is_made || parts == 5, "{parts} parts and no tables");
        made.fetch_add(u32::from(is_made), Ordering::Relaxed);
        both.fetch_add(u32::from(is_made && parts > 0), Ordering::Relaxed);
        // Another one ends what was begun.
        bucket.done(&["compact", "--store", &bucket.store()])?;
        ensure!(of_parts(&bucket, &reference)?.is_some(), "no tables");
        ensure!(
            bucket.keys(&format!("history/{ID}/meta-"))?.is_empty(),
            "parts stay"
        );
        Ok(())
    })?;
    let (both, made) = (both.load(Ordering::Relaxed), made.load(Ordering::Relaxed));
    println!("{kills} kills of compactions, {made} with tables, {both} of them with parts, too");
    let step = u32::try_from(each(bucket))?;
    let is_enough = kills >= 30 / step && both >= 5 / step;
    ensure!(is_enough, "{kills} kills, {both} with tables and parts");
    Ok(())
}

/// Whether a reader in a process of its own sees the application.
fn seen(bucket: &Bucket, location: &Location) -> Result<bool> {
    let read = bucket.run(&["advise", "--store", &location.to_string(), ID])?;
    let said = String::from_utf8_lossy(&read.stderr).into_owned();
    ensure!(
        read.status.success() || said.contains("no application"),
        "{said}"
    );
    Ok(read.status.success())
}

#[test]
fn of_two_importers_one_wins_and_the_result_is_whole() -> Result<()> {
    two_importers(&lab()?.bucket("race")?)
}

pub fn two_importers(bucket: &Bucket) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 500)?;
    let reference = lab::imported(folder.path(), &log)?;
    let mut lost = 0;
    for round in 0..RACES {
        let replaces = round + 1 == RACES;
        if !replaces {
            empty(&bucket)?;
        }
        let more: &[&str] = if replaces { &["--replace"] } else { &[] };
        let mut both = Vec::new();
        for _ in 0..2 {
            let mut command = bucket.program();
            command.args(import(&bucket, &log, more));
            both.push(command.stderr(Stdio::piped()).spawn()?);
        }
        let mut won = 0;
        for child in both {
            let done = child.wait_with_output()?;
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            won += u32::from(done.status.success());
            let is_known = said.contains("changed meanwhile") || said.contains("has app-");
            ensure!(done.status.success() || is_known, "{said}");
            lost += u32::from(said.contains("changed meanwhile"));
        }
        // Two that replace may come one after the other.
        ensure!(
            won == 1 || (replaces && won == 2),
            "round {round}: {won} won"
        );
        ensure!(tables(&bucket, &reference)?.is_some(), "round {round}");
        let keys = bucket.keys(&format!("history/{ID}/"))?;
        ensure!(keys.len() == 4, "round {round}: {keys:?}");
    }
    println!("{lost} of {RACES} met at the pointer");
    Ok(())
}

/// A store with the parts of a log, and what a local compaction makes of them.
fn live(folder: &Path, log: &Path) -> Result<(PathBuf, PathBuf)> {
    let (store, reference) = (folder.join("live"), folder.join("reference"));
    parts::write(&store.join(ID), log, 5, true)?;
    parts::write(&reference.join(ID), log, 5, true)?;
    smtt_history::live::compact(&reference, ID, false)?;
    Ok((store, reference))
}

#[test]
fn a_compaction_that_is_killed_leaves_the_parts_or_the_tables() -> Result<()> {
    let bucket = lab()?.bucket("compactions")?;
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 1_000)?;
    let (store, reference) = live(folder.path(), &log)?;
    let compact = || {
        let mut command = bucket.program();
        command.args(["compact", "--store", &bucket.store()]);
        command
    };
    bucket.upload(&store, "history")?;
    let begun = Instant::now();
    ensure!(compact().status()?.success());
    let whole = begun.elapsed();
    let (mut hit, mut made, mut half) = (0, 0, 0);
    for round in 0..KILLS {
        empty(&bucket)?;
        bucket.upload(&store, "history")?;
        let mut child = compact().spawn()?;
        sleep(moment(round, KILLS, whole));
        hit += u32::from(child.try_wait()?.is_none());
        child.kill()?;
        child.wait()?;
        let parts = bucket.keys(&format!("history/{ID}/meta-"))?.len();
        if of_parts(&bucket, &reference)?.is_some() {
            made += 1;
            half += u32::from(parts > 0);
        } else {
            ensure!(parts == 5, "{parts} parts and no tables");
        }
        // Another one ends what was begun.
        ensure!(compact().status()?.success());
        ensure!(of_parts(&bucket, &reference)?.is_some(), "round {round}");
        ensure!(
            bucket.keys(&format!("history/{ID}/meta-"))?.is_empty(),
            "parts stay"
        );
    }
    println!("{hit} of {KILLS} met a compaction, {made} had tables, {half} of them parts, too");
    ensure!(hit > 0, "no kill met a compaction");
    Ok(())
}

#[test]
fn of_two_compactions_one_replaces_the_parts() -> Result<()> {
    two_compactions(&lab()?.bucket("compactors")?)
}

pub fn two_compactions(bucket: &Bucket) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 500)?;
    let (store, reference) = live(folder.path(), &log)?;
    for round in 0..RACES {
        empty(&bucket)?;
        bucket.upload(&store, "history")?;
        let mut both = Vec::new();
        for _ in 0..2 {
            let mut command = bucket.program();
            command.args(["compact", "--store", &bucket.store(), ID]);
            both.push(command.stderr(Stdio::piped()).spawn()?);
        }
        let mut won = 0;
        for child in both {
            let done = child.wait_with_output()?;
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            won += u32::from(done.status.success());
            let is_known = said.contains("changed")
                || said.contains("no parts")
                || said.contains("not in the store");
            ensure!(done.status.success() || is_known, "{said}");
        }
        ensure!(won >= 1, "round {round}: {won} won");
        ensure!(of_parts(&bucket, &reference)?.is_some(), "round {round}");
        let keys = bucket.keys(&format!("history/{ID}/"))?;
        ensure!(keys.len() == 4, "round {round}: {keys:?}");
    }
    Ok(())
}

#[test]
fn a_driver_that_writes_on_keeps_its_parts() -> Result<()> {
    let bucket = lab()?.bucket("driver")?;
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 200)?;
    let store = folder.path().join("live");
    parts::write(&store.join(ID), &log, 3, false)?;
    bucket.upload(&store, "history")?;
    let refused = bucket.run(&["compact", "--store", &bucket.store(), ID])?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(
        !refused.status.success() && said.contains("--dead"),
        "{said}"
    );
    // The first listing has two parts; the third comes while the tables are made.
    let (proxy, through) = lab::Proxy::start(&bucket)?;
    proxy.rule({
        let late = AtomicU32::new(0);
        move |_, path| {
            let is_list = path.contains("list-type=2") && path.contains(ID);
            match is_list && late.fetch_add(1, Ordering::Relaxed) < 2 {
                true => lab::Fault::Edit(without_the_third),
                false => lab::Fault::None,
            }
        }
    });
    let refused = through.run(&["compact", "--dead", "--store", &through.store(), ID])?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(
        !refused.status.success() && said.contains("still writes"),
        "{said}"
    );
    ensure!(
        bucket.keys(&format!("history/{ID}/"))?.len() == 3,
        "parts went"
    );
    let done = bucket.done(&["compact", "--dead", "--store", &bucket.store(), ID])?;
    ensure!(done.contains("3 parts"), "{done}");
    Ok(())
}

fn without_the_third(listing: &str) -> String {
    let of = |it: &&str| !it.contains("meta-000003.parquet");
    let (front, rest) = listing.split_once("<Contents>").unwrap_or((listing, ""));
    let (rest, end) = rest.rsplit_once("</Contents>").unwrap_or((rest, ""));
    let kept: Vec<&str> = rest.split("<Contents>").filter(of).collect();
    let kept = kept.join("<Contents>");
    let kept = kept.trim_end().trim_end_matches("</Contents>");
    format!("{front}<Contents>{kept}</Contents>{end}")
}

/// The library's own reader, for a store that a program wrote.
#[test]
fn the_pointer_has_the_application_s_document() -> Result<()> {
    let bucket = lab()?.bucket("pointer")?;
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 50)?;
    let reference = lab::imported(folder.path(), &log)?;
    bucket.import(&log)?;
    let pointer = bucket.read(&format!("history/{ID}/tables.json"))?;
    let pointer: serde_json::Value = serde_json::from_slice(&pointer)?;
    ensure!(exists(&reference.join(ID)));
    let app = App::open(&reference.join(ID))?;
    let own: serde_json::Value = serde_json::from_str(&app.all(Kind::Application)[0].1)?;
    ensure!(pointer["application"] == own, "{pointer:#}");
    // A folder of this machine is opened the same way.
    let store = Store::open(&Location::Folder(reference.clone()), 0)?;
    ensure!(store.with(ID, None)? == reference);
    Ok(())
}

#[test]
fn tables_stay_where_the_pointer_s_request_has_no_answer() -> Result<()> {
    unanswered_pointer(&lab()?.bucket("unanswered")?)
}

pub fn unanswered_pointer(bucket: &Bucket) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 50)?;
    let (proxy, through) = lab::Proxy::start(&bucket)?;
    proxy.rule(
        |method, path| match method == "PUT" && path.contains("tables.json") {
            true => lab::Fault::Status(503),
            false => lab::Fault::None,
        },
    );
    let text = log.display().to_string();
    let refused = through.run(&["import", "--store", &through.store(), &text])?;
    ensure!(!refused.status.success(), "the pointer was not written");
    // The store may do the request after all.
    let keys = bucket.keys(&format!("history/{ID}/"))?;
    ensure!(keys.len() == 3, "{keys:?}");
    let first = keys[0].split('.').nth(1).context("has a generation")?;
    let pointer = serde_json::json!({"generation": first, "last_part": 0, "application": {}});
    let key = format!("history/{ID}/tables.json");
    bucket.send("PUT", &key, pointer.to_string().as_bytes())?;
    let remote = bucket.serve(&[])?;
    get(remote.port, &format!("/api/v1/applications/{ID}/stages"))?;
    Ok(())
}

#[test]
fn parts_stay_where_the_tables_are_missing_and_other_applications_become_compact() -> Result<()> {
    const OTHER: &str = "app-20260922000000-0002";
    const THIRD: &str = "app-20260922000000-0003";
    let bucket = lab()?.bucket("dangling")?;
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 100)?;
    let store = folder.path().join("live");
    parts::write(&store.join(ID), &log, 3, true)?;
    bucket.upload(&store, "history")?;
    let pointer = r#"{"generation": "0123456789abcdef", "last_part": 3, "application": {}}"#;
    let key = |id: &str| format!("history/{id}/tables.json");
    bucket.send("PUT", &key(ID), pointer.as_bytes())?;
    let refused = bucket.run(&["compact", "--store", &bucket.store(), ID])?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(
        !refused.status.success() && said.contains("remove that object"),
        "{said}"
    );
    let parts = bucket.keys(&format!("history/{ID}/meta-"))?;
    ensure!(parts.len() == 3, "{parts:?}");
    // A server shows what the parts have, and says what is missing.
    let remote = bucket.serve(&[])?;
    let stages = get(remote.port, &format!("/api/v1/applications/{ID}/stages"))?;
    ensure!(stages.contains("\"numCompleteTasks\":"), "{stages}");
    let import = get(remote.port, &format!("/smtt/v1/applications/{ID}/import"))?;
    let import: serde_json::Value = serde_json::from_str(&import)?;
    let missing = import["missingTables"].as_array().map_or(0, Vec::len);
    ensure!(missing == 3 && import["parts"] == 3, "{import}");
    let said = remote.log()?;
    ensure!(said.contains("names tables that do not exist"), "{said}");
    // Two that are damaged keep the third from nothing.
    bucket.send("PUT", &key(OTHER), b"{")?;
    let text = fs::read_to_string(&log)?.replace(ID, THIRD);
    let (third, other) = (folder.path().join(THIRD), folder.path().join("third"));
    fs::write(&third, text)?;
    parts::write(&other.join(THIRD), &third, 3, true)?;
    bucket.upload(&other, "history")?;
    let done = bucket.run(&["compact", "--store", &bucket.store()])?;
    let (out, said) = (
        String::from_utf8_lossy(&done.stdout).into_owned(),
        String::from_utf8_lossy(&done.stderr).into_owned(),
    );
    ensure!(said.contains(OTHER) && said.contains("damaged"), "{said}");
    ensure!(out.contains(THIRD) && !out.contains(OTHER), "{out}{said}");
    Ok(())
}
