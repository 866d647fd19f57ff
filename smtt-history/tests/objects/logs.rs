//! Event logs in a bucket: a server imports from them what is asked for, and a command what it names.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use xtask::event_log::ID;
use xtask::http::{get, request};

use crate::lab::{self, Bucket, Fault, Proxy, Served, lab};

/// Address of the logs of a bucket.
fn logs(bucket: &Bucket) -> String {
    format!("{}://{}/logs", bucket.cloud.scheme(), bucket.name)
}

/// A server of an empty local store with the bucket's event logs.
fn serve(bucket: &Bucket, store: &Path, more: &[&str]) -> Result<Served> {
    let logs = logs(bucket);
    let mut arguments = vec!["--event-logs", &logs];
    arguments.extend(more);
    lab::serve_with(bucket.program(), &store.display().to_string(), &arguments)
}

/// The stages and what the import says of itself, without the time of the import.
fn answers(served: &Served, id: &str) -> Result<[Value; 2]> {
    let of =
        |path: String| -> Result<Value> { Ok(serde_json::from_str(&get(served.port, &path)?)?) };
    Ok([
        of(format!("/api/v1/applications/{id}/stages?details=true"))?,
        of(format!("/smtt/v1/applications/{id}/import"))?,
    ])
}

/// The parts of a rolling log, whose first two a compaction has replaced.
pub fn rolling(folder: &Path, log: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let text = fs::read(log)?;
    let lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
    let cut = lines.len() / 3;
    let part = |from: usize, to: usize| lines[from..to].concat();
    fs::create_dir_all(folder)?;
    let packed = |text: &[u8]| -> Result<Vec<u8>> {
        let mut out = zstd::stream::write::Encoder::new(Vec::new(), 1)?;
        out.write_all(text)?;
        Ok(out.finish()?)
    };
    Ok(vec![
        (format!("appstatus_{ID}"), Vec::new()),
        // What the compaction replaced, and what it must not add again.
        (format!("events_1_{ID}.zstd"), packed(b"not read\n")?),
        (
            format!("events_2_{ID}.zstd.compact"),
            packed(&part(0, cut))?,
        ),
        (format!("events_3_{ID}.zstd"), packed(&part(cut, 2 * cut))?),
        (
            format!("events_10_{ID}.zstd"),
            packed(&part(2 * cut, lines.len()))?,
        ),
    ])
}

#[test]
fn a_log_in_a_bucket_is_imported_as_one_in_a_folder() -> Result<()> {
    forms_of_logs(&lab()?.bucket("event-logs")?)
}

pub fn forms_of_logs(bucket: &Bucket) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let log = lab::log(&folder.path().join("local"), 500)?;
    let reference = lab::imported(folder.path(), &log)?;
    let reference = lab::serve_folder(&reference)?;
    let [stages, about] = answers(&reference, ID)?;
    let text = fs::read(&log)?;
    for (round, form) in ["plain", "zstd", "rolling"].into_iter().enumerate() {
        for key in bucket.keys("logs/")? {
            bucket.send("DELETE", &key, b"")?;
        }
        // Logs whose names begin in the same way are others.
        bucket.send("PUT", &format!("logs/{ID}0"), b"{}\n")?;
        bucket.send("PUT", &format!("logs/{ID}/file"), b"{}\n")?;
        let named = match form {
            "plain" => {
                bucket.send("PUT", &format!("logs/{ID}"), &text)?;
                ID.to_owned()
            }
            "zstd" => {
                let packed = zstd::encode_all(text.as_slice(), 3)?;
                bucket.send("PUT", &format!("logs/{ID}.zstd"), &packed)?;
                format!("{ID}.zstd")
            }
            _ => {
                for (name, text) in rolling(&folder.path().join("parts"), &log)? {
                    bucket.send("PUT", &format!("logs/eventlog_v2_{ID}/{name}"), &text)?;
                }
                format!("eventlog_v2_{ID}")
            }
        };
        let store = folder.path().join(format!("store-{round}"));
        let served = serve(&bucket, &store, &[])?;
        let [ours, import] = answers(&served, ID)?;
        ensure!(ours == stages, "{form}: the stages differ");
        let same = ["lines", "bytes", "damagedLines"].map(|it| import[it] == about[it]);
        ensure!(same == [true; 3], "{form}: {import:#}\n{about:#}");
        ensure!(store.join(ID).join("tasks.parquet").exists(), "{form}");
        // The same by the command, into another store.
        let other = folder.path().join(format!("other-{round}"));
        let address = format!("{}/{named}", logs(&bucket));
        let said = bucket.done(&["import", "--store", &other.display().to_string(), &address])?;
        ensure!(said.contains("500 tasks"), "{form}: {said}");
        let tasks = |store: &Path| fs::read(store.join(ID).join("tasks.parquet"));
        ensure!(tasks(&store)? == tasks(&other)?, "{form}: the tasks differ");
        ensure!(!served.log()?.contains("WARN"), "{}", served.log()?);
    }
    Ok(())
}

#[test]
fn what_is_missing_too_large_or_out_of_reach_is_said() -> Result<()> {
    let (proxy, bucket) = Proxy::start(&lab()?.bucket("event-logs-missing")?)?;
    let folder = tempfile::tempdir()?;
    let log = lab::log(&folder.path().join("local"), 200)?;
    bucket.put(&format!("logs/{ID}"), &log)?;
    let store = folder.path().join("store");
    let small = serve(&bucket, &store, &["--object-cache-bytes", "1000"])?;
    let path = |id: &str| format!("/api/v1/applications/{id}");
    let (status, _) = request(small.port, &path(ID), "")?;
    ensure!(status == 503, "{status}");
    let said = small.log()?;
    ensure!(said.contains("raise --object-cache-bytes"), "{said}");
    let address = format!("{}/{ID}", logs(&bucket));
    let to = store.display().to_string();
    let import = ["import", "--object-cache-bytes", "9", "--store", &to];
    let refused = bucket.run(&[&import[..], &[&address]].concat())?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(
        refused.status.code() == Some(1) && said.contains("raise --object-cache-bytes"),
        "{said}"
    );
    let absent = bucket.run(&["import", "--store", &to, &format!("{}/x", logs(&bucket))])?;
    let said = String::from_utf8_lossy(&absent.stderr).into_owned();
    ensure!(said.contains("no log of this name"), "{said}");
    drop(small);

    let served = serve(&bucket, &store, &[])?;
    let (status, text) = request(served.port, &path("app-9"), "")?;
    ensure!(
        status == 404 && text.contains("neither the store"),
        "{status} {text}"
    );
    proxy.rule(|_, _| Fault::Status(503));
    let (status, text) = request(served.port, &path("app-8"), "")?;
    ensure!(status == 503 && !text.contains("s3://"), "{status} {text}");
    ensure!(!store.join(ID).exists(), "nothing was imported");
    proxy.rule(|_, _| Fault::None);
    let stages = format!("{}/stages", path(ID));
    ensure!(serde_json::from_str::<Vec<Value>>(&get(served.port, &stages)?)?.len() == 7);
    Ok(())
}

#[test]
fn questions_for_logs_are_few_list_nothing_else_and_run_once_for_all_who_wait() -> Result<()> {
    let (proxy, bucket) = Proxy::start(&lab()?.bucket("event-logs-asked")?)?;
    let folder = tempfile::tempdir()?;
    // Other logs, whose names begin as the one that is asked for.
    for number in 0..20 {
        bucket.send("PUT", &format!("logs/app-9{number:04}"), b"{}\n")?;
    }
    let served = serve(&bucket, &folder.path().join("store"), &[])?;
    let port = served.port;
    let ask = move |id: &str| {
        // The application itself would be asked for with each of its attempts.
        let path = format!("/api/v1/applications/{id}/stages");
        thread::spawn(move || request(port, &path, "").map(|(status, _)| status))
    };
    let ended = |asked: Vec<thread::JoinHandle<Result<u16>>>| -> Result<Vec<u16>> {
        let statuses = asked.into_iter().map(|it| it.join().expect("ends"));
        statuses.collect()
    };
    proxy.seen();
    // A question takes long enough that all wait for the first one.
    proxy.rule(|_, path| match path.contains("list-type") {
        true => Fault::Late(Duration::from_secs(3)),
        false => Fault::None,
    });
    let statuses = ended((0..12).map(|_| ask("app-9")).collect())?;
    ensure!(statuses == [404; 12], "{statuses:?}");
    let seen = proxy.seen();
    let is_listing = |it: &&String| it.contains("list-type");
    let listings: Vec<&String> = seen.iter().filter(is_listing).collect();
    ensure!(listings.len() == 1, "{listings:#?}");
    let of_parts = "prefix=logs%2Feventlog_v2_app-9%2F";
    ensure!(listings[0].contains(of_parts), "{listings:#?}");
    // Four codecs and none, of a log that is finished and of one that is not.
    let files = seen.len() - 1;
    ensure!(
        files == 10 && seen.iter().filter(|it| it.starts_with("HEAD ")).count() == 10,
        "{seen:#?}"
    );
    // Names that it does not have are asked for again after a while.
    ensure!(ended(vec![ask("app-9")])? == [404] && proxy.seen().is_empty());
    // More names at a time than questions run.
    let names: Vec<String> = (0..12).map(|number| format!("app-7-{number}")).collect();
    let statuses = ended(names.iter().map(|name| ask(name)).collect())?;
    let count = |of: u16| statuses.iter().filter(|it| **it == of).count();
    ensure!(count(404) == 8 && count(503) == 4, "{statuses:?}");
    // So is a bucket that gives no answer.
    proxy.rule(|_, _| Fault::Status(503));
    ensure!(ended(vec![ask("app-8")])? == [503]);
    proxy.rule(|_, _| Fault::None);
    proxy.seen();
    ensure!(ended(vec![ask("app-8")])? == [503] && proxy.seen().is_empty());
    Ok(())
}
