//! What is read from a bucket is what a local store has.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use xtask::event_log::ID;
use xtask::http::{get, request};
use xtask::process::wait_for;

use crate::lab::{self, Bucket, Fault, LIMIT, Served, lab};
use crate::parts;

/// Paths of the REST API below an application, and pages.
const PATHS: [&str; 14] = [
    "/api/v1/applications/ID",
    "/api/v1/applications/ID/jobs",
    "/api/v1/applications/ID/stages?details=true",
    "/api/v1/applications/ID/stages/3/0?details=true",
    "/api/v1/applications/ID/stages/3/0/taskSummary",
    "/api/v1/applications/ID/stages/3/0/taskList?length=500",
    "/api/v1/applications/ID/stages/failedTasks",
    "/api/v1/applications/ID/allexecutors",
    "/api/v1/applications/ID/storage/rdd",
    "/api/v1/applications/ID/sql?length=100",
    "/api/v1/applications/ID/environment",
    "/smtt/v1/applications/ID/import",
    "/smtt/v1/applications/ID/timeline?width=800",
    "/applications/ID/stages",
];

/// Compares the answers of two servers, field by field where they are JSON.
pub fn same_answers(theirs: &Served, ours: &Served) -> Result<()> {
    for path in PATHS {
        let path = path.replace("ID", ID);
        let (theirs, ours) = (get(theirs.port, &path)?, get(ours.port, &path)?);
        let may_be_empty = ["failedTasks", "rdd", "sql"]
            .iter()
            .any(|it| path.contains(it));
        ensure!(may_be_empty || theirs.len() > 2, "{path} is empty");
        match serde_json::from_str::<Value>(&theirs) {
            Ok(mut theirs) => {
                let mut ours: Value = serde_json::from_str(&ours)?;
                without_dates(&mut theirs);
                without_dates(&mut ours);
                ensure!(theirs == ours, "{path}:\n{theirs:#}\n{ours:#}");
            }
            Err(_) => ensure!(theirs == ours, "{path}:\n{theirs}\n{ours}"),
        }
    }
    Ok(())
}

/// Of an application with parts this is the time of its last file, which a copy in a bucket has later.
fn without_dates(json: &mut Value) {
    if let Some(attempts) = json.get_mut("attempts").and_then(Value::as_array_mut) {
        for attempt in attempts.iter_mut().filter_map(Value::as_object_mut) {
            attempt.retain(|name, _| !name.starts_with("lastUpdated"));
        }
    }
}

pub fn applications(served: &Served) -> Result<Vec<Value>> {
    Ok(serde_json::from_str(&get(
        served.port,
        "/api/v1/applications",
    )?)?)
}

#[test]
fn answers_equal_those_of_a_local_store() -> Result<()> {
    equal_answers(&lab()?.bucket("answers")?)
}

pub fn equal_answers(bucket: &Bucket) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 1_000)?;
    let store = lab::imported(folder.path(), &log)?;
    let said = bucket.import(&log)?;
    ensure!(
        said.contains("1000 tasks") && said.contains(&bucket.store()),
        "{said}"
    );
    let (local, remote) = (lab::serve_folder(&store)?, bucket.serve(&[])?);
    same_answers(&local, &remote)?;
    ensure!(applications(&local)? == applications(&remote)?);
    ensure!(applications(&remote)?.len() == 1);
    // The commands read the same.
    let (local, remote) = (store.display().to_string(), bucket.store());
    for command in [
        vec!["advise", "--json", ID],
        vec!["diff", "--json", ID, ID],
        vec!["export", "--perfetto", "-", ID],
    ] {
        let of = |store: &str| {
            let mut arguments = vec![command[0], "--store", store];
            arguments.extend(&command[1..]);
            bucket.done(&arguments)
        };
        ensure!(of(&local)? == of(&remote)?, "{command:?}");
    }
    // What is there is not imported again.
    let text = log.display().to_string();
    let again = bucket.run(&["import", "--store", &remote, &text])?;
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    ensure!(
        again.status.code() == Some(1) && said.contains("--replace"),
        "{said}"
    );
    Ok(())
}

#[test]
fn a_folder_that_was_copied_into_a_bucket_is_a_store_with_the_workers_part() -> Result<()> {
    copied_folder(&lab()?.bucket("copied")?)
}

pub fn copied_folder(bucket: &Bucket) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 500)?;
    let store = lab::imported(folder.path(), &log)?;
    // A daemon wrote to the local store.
    worker(&store)?;
    fs::remove_file(store.join(".lock"))?;
    bucket.upload(&store, "history")?;
    let (local, remote) = (lab::serve_folder(&store)?, bucket.serve(&[])?);
    same_answers(&local, &remote)?;
    let path = format!("/smtt/v1/applications/{ID}/workers");
    let (theirs, ours) = (get(local.port, &path)?, get(remote.port, &path)?);
    ensure!(
        theirs == ours && ours.contains("\"worker\":\"host-1\""),
        "{theirs}\n{ours}"
    );
    ensure!(applications(&local)? == applications(&remote)?);
    // An import replaces what has no pointer, too.
    let text = log.display().to_string();
    bucket.done(&["import", "--replace", "--store", &bucket.store(), &text])?;
    let keys = bucket.keys(&format!("history/{ID}/"))?;
    let plain = format!("history/{ID}/tasks.parquet");
    ensure!(keys.len() == 4 && !keys.contains(&plain), "{keys:?}");
    Ok(())
}

/// A worker's file in a store.
pub fn worker(store: &Path) -> Result<()> {
    use smtt_store::history::batch::{Batch, Cell};
    use smtt_store::history::workers::{FOLDER, REST};
    use smtt_store::history::write::Writer;
    let of_user = store.join(FOLDER).join(ID).join("uid=1000");
    fs::create_dir_all(&of_user)?;
    let mut batch = Batch::new(&REST);
    batch.push(&[
        Cell::Text("worker"),
        Cell::Text(""),
        Cell::Text(r#"{"host":"host-1"}"#),
    ]);
    let writer = Writer::create(&REST, &of_user, "test", &[])?;
    let mut writer = writer.named("worker-1790000000000-000001.host-1.parquet");
    writer.write(&batch)?;
    writer.finish()?;
    Ok(())
}

#[test]
fn parts_are_shown_as_they_come_and_become_tables() -> Result<()> {
    parts_become_tables(&lab()?.bucket("parts")?)
}

pub fn parts_become_tables(bucket: &Bucket) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 600)?;
    let store = folder.path().join("live");
    parts::write(&store.join(ID), &log, 6, true)?;
    let part = |number: u64| format!("meta-{number:06}.parquet");
    let put = |number: u64| -> Result<()> {
        let name = part(number);
        bucket.put(&format!("history/{ID}/{name}"), &store.join(ID).join(name))
    };
    put(1)?;
    put(2)?;
    // An object that no reader knows, and a name that leads elsewhere.
    bucket.send(
        "PUT",
        &format!("history/{ID}/.meta-000003.parquet.inprogress"),
        b"x",
    )?;
    let remote = bucket.serve(&[])?;
    let import = |served: &Served| -> Result<Value> {
        Ok(serde_json::from_str(&get(
            served.port,
            &format!("/smtt/v1/applications/{ID}/import"),
        )?)?)
    };
    let first = import(&remote)?;
    ensure!(
        first["parts"] == 2 && first["hasLastPart"] == false,
        "{first:#}"
    );
    ensure!(applications(&remote)?[0]["attempts"][0]["completed"] == false);
    for number in 3..=6 {
        put(number)?;
    }
    // The listing is made again.
    wait_for("all parts are there", LIMIT, || {
        let now = import(&remote)?;
        Ok((now["parts"] == 6 && now["hasLastPart"] == true).then_some(()))
    })?;
    let local = lab::serve_folder(&store)?;
    same_answers(&local, &remote)?;
    // The server writes nothing into the bucket; the command does.
    ensure!(bucket.keys(&format!("history/{ID}/meta-"))?.len() == 6);
    let said = bucket.done(&["compact", "--store", &bucket.store()])?;
    ensure!(said.contains("6 parts"), "{said}");
    let keys = bucket.keys("history/")?;
    ensure!(keys.len() == 5, "{keys:?}");
    let fresh = bucket.serve(&[])?;
    same_answers(&local, &fresh)?;
    let list =
        || -> Result<bool> { Ok(applications(&remote)?[0]["attempts"][0]["completed"] == true) };
    wait_for("the list has the end", LIMIT, || Ok(list()?.then_some(())))?;
    // Nothing is left to do.
    ensure!(
        bucket
            .done(&["compact", "--store", &bucket.store()])?
            .is_empty()
    );
    Ok(())
}

#[test]
fn a_part_that_is_too_large_counts_as_damaged() -> Result<()> {
    let bucket = lab()?.bucket("large")?;
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 100)?;
    let store = folder.path().join("live");
    parts::write(&store.join(ID), &log, 3, false)?;
    bucket.upload(&store, "history")?;
    let (proxy, through) = lab::Proxy::start(&bucket)?;
    // The listing says that the second part has a terabyte.
    proxy.rule(|_, path| match path.contains("list-type=2") {
        true => Fault::Edit(with_a_terabyte),
        false => Fault::None,
    });
    let remote = through.serve(&[])?;
    let text = get(remote.port, &format!("/smtt/v1/applications/{ID}/import"))?;
    let said: Value = serde_json::from_str(&text)?;
    ensure!(said["damagedParts"] == 1 && said["parts"] == 2, "{said:#}");
    let problem = said["damaged"][0]["problem"]
        .as_str()
        .context("no problem")?;
    ensure!(problem.contains("bytes"), "{said:#}");
    Ok(())
}

/// A listing in which the second part is large.
fn with_a_terabyte(listing: &str) -> String {
    let edit = || {
        let (front, rest) = listing.split_once("meta-000002.parquet</Key>")?;
        let (middle, rest) = rest.split_once("<Size>")?;
        let (_, rest) = rest.split_once("</Size>")?;
        Some(format!(
            "{front}meta-000002.parquet</Key>{middle}<Size>1099511627776</Size>{rest}"
        ))
    };
    edit().unwrap_or_else(|| listing.to_owned())
}

/// More than a page of a listing.
const APPLICATIONS: usize = 1_100;

#[test]
fn a_thousand_applications_are_listed_page_by_page() -> Result<()> {
    let bucket = lab()?.bucket("thousand")?;
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 20)?;
    bucket.import(&log)?;
    let pointer = format!("history/{ID}/tables.json");
    let text = String::from_utf8(bucket.read(&pointer)?)?;
    for number in 1..APPLICATIONS {
        // What a list needs is in the pointer.
        let id = format!("app-20260922000000-1{number:04}");
        let text = text.replace(ID, &id);
        bucket.send("PUT", &pointer.replace(ID, &id), text.as_bytes())?;
    }
    // One with a document that no list has room for is left out.
    let large = text.replace(
        "\"attempts\"",
        &format!("\"more\":{:?},\"attempts\"", "x".repeat(300 << 10)),
    );
    let large = large.replace(ID, "app-20260922000000-20000");
    bucket.send(
        "PUT",
        &pointer.replace(ID, "app-20260922000000-20000"),
        large.as_bytes(),
    )?;
    let (proxy, through) = lab::Proxy::start(&bucket)?;
    let remote = through.serve(&[])?;
    // Nothing is listed at the start.
    ensure!(proxy.seen().is_empty());
    wait_for("the list is read", Duration::from_secs(600), || {
        Ok((request(remote.port, "/api/v1/applications?limit=1", "")?.0 == 200).then_some(()))
    })?;
    let seen = proxy.seen();
    let lists = seen.iter().filter(|it| it.contains("list-type=2")).count();
    let gets = seen.len() - lists;
    let all = applications(&remote)?;
    println!(
        "{lists} listings and {gets} documents for {} applications",
        all.len()
    );
    ensure!(all.len() == APPLICATIONS, "{}", all.len());
    ensure!(
        lists == 2 && gets == APPLICATIONS + 1,
        "{lists} listings, {gets} documents"
    );
    // Documents of applications that have ended are not asked for again at once.
    std::thread::sleep(Duration::from_secs(6));
    let again = applications(&remote)?;
    ensure!(again == all);
    ensure!(proxy.seen().len() <= 4, "documents are asked for again");
    Ok(())
}

#[test]
fn an_application_is_imported_into_the_bucket_when_it_is_opened_first() -> Result<()> {
    first_open(&lab()?.bucket("first")?)
}

pub fn first_open(bucket: &Bucket) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let logs = folder.path().join("logs");
    let log = lab::log(&logs, 300)?;
    let store = lab::imported(folder.path(), &log)?;
    let remote = bucket.serve(&["--event-logs", &logs.display().to_string()])?;
    let local = lab::serve_folder(&store)?;
    same_answers(&local, &remote)?;
    ensure!(bucket.keys("history/")?.len() == 4);
    let (status, _) = request(remote.port, "/api/v1/applications/app-none/jobs", "")?;
    ensure!(status == 404, "{status}");
    Ok(())
}
