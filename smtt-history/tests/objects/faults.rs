//! Stores that fail: each says so in one line, is asked again after a pause, and delays no other application.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use xtask::event_log::ID;
use xtask::http::{get, request};
use xtask::process::wait_for;

use crate::lab::{self, Bucket, Fault, LIMIT, Proxy, SECRET, lab};

/// A second application beside the log's.
const OTHER: &str = "app-20260922000000-0002";

/// A bucket with two applications behind a proxy.
fn two(name: &str) -> Result<(Proxy, Bucket, Bucket)> {
    two_in(lab()?.bucket(name)?)
}

fn two_in(bucket: Bucket) -> Result<(Proxy, Bucket, Bucket)> {
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 300)?;
    bucket.import(&log)?;
    let text = fs::read_to_string(&log)?.replace(ID, OTHER);
    let other = folder.path().join(OTHER);
    fs::write(&other, text)?;
    bucket.import(&other)?;
    let (proxy, through) = Proxy::start(&bucket)?;
    Ok((proxy, through, bucket))
}

fn stages(id: &str) -> String {
    format!("/api/v1/applications/{id}/stages")
}

#[test]
fn a_store_that_is_busy_for_a_while_is_asked_again() -> Result<()> {
    busy(lab()?.bucket("busy")?)
}

pub fn busy(bucket: Bucket) -> Result<()> {
    let (proxy, through, _) = two_in(bucket)?;
    let count = std::sync::atomic::AtomicU32::new(0);
    // Two of three requests are refused.
    proxy.rule(
        move |_, _| match count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 3 {
            0 => Fault::None,
            _ => Fault::Status(503),
        },
    );
    let remote = through.serve(&[])?;
    get(remote.port, &stages(ID))?;
    // A writer, too.
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 200)?;
    let text = log.display().to_string();
    through.done(&["import", "--replace", "--store", &through.store(), &text])?;
    let refused = proxy.seen().len();
    println!("{refused} requests");
    Ok(())
}

#[test]
fn a_store_that_fails_for_one_application_delays_no_other() -> Result<()> {
    fails_for_one(lab()?.bucket("fails")?)
}

pub fn fails_for_one(bucket: Bucket) -> Result<()> {
    let (proxy, through, _) = two_in(bucket)?;
    let remote = through.serve(&[])?;
    let released = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&released);
    proxy.rule(move |_, path| match path.contains(ID) {
        true => Fault::Held(Arc::clone(&flag)),
        false => Fault::None,
    });
    let port = remote.port;
    let begun = Instant::now();
    let asked: Vec<_> = (0..8)
        .map(|_| std::thread::spawn(move || request(port, &stages(ID), "")))
        .collect();
    // More requests wait for the one than answers are made at a time.
    wait_for("the store is asked for the one", LIMIT, || {
        let asks = proxy.seen().iter().any(|it| it.contains(ID));
        Ok(asks.then_some(()))
    })?;
    std::thread::sleep(Duration::from_millis(200));
    get(port, &stages(OTHER))?;
    ensure!(
        !asked.iter().any(std::thread::JoinHandle::is_finished),
        "the other waits for {ID}"
    );
    released.store(true, Ordering::Relaxed);
    for asked in asked {
        let (status, text) = asked.join().expect("asks")?;
        ensure!(
            status == 503 && text.contains("the store gives no answer"),
            "{status}: {text}"
        );
        ensure!(
            !text.contains("s3://") && !text.contains("127.0.0.1"),
            "{text}"
        );
    }
    ensure!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
    let text = remote.log()?;
    let lines: Vec<&str> = text
        .lines()
        // Of its tables, and of what the workers know.
        .filter(|it| it.contains("WARN") && it.contains(ID))
        .collect();
    ensure!(
        lines.len() == 2 && lines.iter().all(|it| it.contains("503")),
        "{lines:?}"
    );
    // It is asked again after a pause.
    proxy.rule(|_, _| Fault::None);
    wait_for("the application is there", LIMIT, || {
        Ok(get(port, &stages(ID)).ok())
    })?;
    // What is copied is shown while the store is away.
    proxy.rule(|_, _| Fault::Status(503));
    std::thread::sleep(Duration::from_secs(3));
    let begun = Instant::now();
    get(port, &stages(ID))?;
    ensure!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
    Ok(())
}

#[test]
fn answers_that_are_slow_half_or_too_long_are_not_taken() -> Result<()> {
    slow_half_or_too_long(lab()?.bucket("half")?)
}

pub fn slow_half_or_too_long(bucket: Bucket) -> Result<()> {
    let listing = bucket.cloud.listing();
    let (proxy, through, _) = two_in(bucket)?;
    let remote = through.serve(&[])?;
    // Slow answers come in the end.
    proxy.rule(|_, _| Fault::Late(Duration::from_millis(700)));
    get(remote.port, &stages(OTHER))?;
    for (fault, what) in [(Fault::Half, "half"), (Fault::TooLong, "too long")] {
        let of_table = fault.clone();
        proxy.rule(move |method, path| {
            let is_table = method == "GET" && path.contains("/meta.") && path.contains(ID);
            if is_table {
                of_table.clone()
            } else {
                Fault::None
            }
        });
        let (status, text) = request(remote.port, &stages(ID), "")?;
        ensure!(status == 503, "{what}: {status}: {text}");
        std::thread::sleep(Duration::from_secs(6));
    }
    let said = remote.log()?;
    println!(
        "{}",
        said.lines()
            .filter(|it| it.contains("WARN"))
            .collect::<Vec<_>>()
            .join("\n")
    );
    // Half a listing is none.
    proxy.rule(move |_, path| match path.contains(listing) {
        true => Fault::Half,
        false => Fault::None,
    });
    let (status, _) = request(remote.port, &stages(ID), "")?;
    ensure!(status == 503, "{status}");
    proxy.rule(|_, _| Fault::None);
    wait_for("the application is there", LIMIT, || {
        Ok(get(remote.port, &stages(ID)).ok())
    })?;
    Ok(())
}

#[test]
fn a_listing_without_end_ends() -> Result<()> {
    let (proxy, through, _) = two("endless")?;
    proxy.rule(|_, path| match path.contains("list-type=2") {
        true => Fault::Edit(endless),
        false => Fault::None,
    });
    let read = through.run(&["advise", "--store", &through.store(), ID])?;
    let said = String::from_utf8_lossy(&read.stderr).into_owned();
    ensure!(!read.status.success() && said.contains("pages"), "{said}");
    let lists = proxy.seen().len();
    ensure!(lists == 400, "{lists} listings");
    Ok(())
}

fn endless(listing: &str) -> String {
    let more =
        "<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>";
    let text = listing.replace("<IsTruncated>false</IsTruncated>", "");
    text.replacen("<MaxKeys>", &format!("{more}<MaxKeys>"), 1)
}

#[test]
fn names_that_lead_elsewhere_are_not_followed() -> Result<()> {
    let (proxy, through, bucket) = two("names")?;
    let remote = through.serve(&[])?;
    // Below an application: the copy has the files of tables and parts only.
    for key in [
        "x/meta.parquet",
        "uid=0/../../meta.parquet",
        "tasks.sh",
        "meta-000001.parquet.sh",
    ] {
        bucket.send(
            "PUT",
            &format!("history/{OTHER}/{}", key.replace("..", "%2E%2E")),
            b"x",
        )?;
    }
    proxy.rule(
        |_, path| match path.contains("list-type=2") && path.contains(ID) {
            true => Fault::Edit(climbing),
            false => Fault::None,
        },
    );
    let (status, _) = request(remote.port, &stages(ID), "")?;
    ensure!(status == 503, "{status}");
    let said = remote.log()?;
    ensure!(said.contains("a name that no path has"), "{said}");
    // At the top: the other applications are listed.
    for key in ["%2E%2E/meta.parquet", "%01/meta.parquet", "/etc/passwd"] {
        bucket.send("PUT", &format!("history/{key}"), b"x")?;
    }
    proxy.rule(|_, _| Fault::None);
    let all = get(remote.port, "/api/v1/applications")?;
    ensure!(all.contains(ID) && all.contains(OTHER), "{all}");
    Ok(())
}

fn climbing(listing: &str) -> String {
    listing.replacen("/meta.", "/../../meta.", 1)
}

#[test]
fn missing_credentials_a_missing_bucket_and_viewfs_are_one_line() -> Result<()> {
    let bucket = lab()?.bucket("lines")?;
    let line = |mut command: std::process::Command, store: &str| -> Result<String> {
        let begun = Instant::now();
        let done = command
            .args(["advise", "--store", store, ID])
            .env("SMTT_LOG", "error")
            .output()?;
        ensure!(done.status.code() == Some(2), "{:?}", done.status);
        ensure!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
        let said = String::from_utf8(done.stderr)?;
        println!("{said}");
        ensure!(!said.contains(SECRET), "{said}");
        Ok(said)
    };
    let mut without = bucket.program();
    without
        .env_remove("AWS_ACCESS_KEY_ID")
        .env_remove("AWS_SECRET_ACCESS_KEY");
    // The machine's own service for credentials is absent.
    without.env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9");
    let said = line(without, &bucket.store())?;
    ensure!(
        said.lines().count() == 1 && said.contains("AWS_ACCESS_KEY_ID"),
        "{said}"
    );
    let said = line(bucket.program(), "s3://no-such-bucket/history")?;
    ensure!(
        said.lines().count() == 1 && said.contains("NoSuchBucket"),
        "{said}"
    );
    let mut away = bucket.program();
    away.env("AWS_ENDPOINT_URL", "http://127.0.0.1:9");
    let said = line(away, &bucket.store())?;
    ensure!(said.lines().count() == 1, "{said}");
    let view = line(bucket.program(), "viewfs://cluster/history")?;
    ensure!(view.contains("hdfs://HOST:PORT/PATH"), "{view}");
    Ok(())
}

#[test]
fn copies_are_bounded() -> Result<()> {
    let (_proxy, through, _) = two("bounded")?;
    let remote = through.serve(&["--object-cache-bytes", "1000"])?;
    let (status, text) = request(remote.port, &stages(ID), "")?;
    ensure!(status == 503, "{status}: {text}");
    let said = remote.log()?;
    ensure!(said.contains("--object-cache-bytes"), "{said}");
    // Commands, too.
    let store = through.store();
    let more = ["--object-cache-bytes", "1000"];
    for command in [
        &["advise", "--store", &store, ID][..],
        &["diff", "--store", &store, ID, OTHER],
    ] {
        let refused = through.run(&[command, &more].concat())?;
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(
            !refused.status.success() && said.contains("--object-cache-bytes"),
            "{command:?}: {said}"
        );
    }
    Ok(())
}

#[test]
fn an_application_is_answered_without_what_workers_wrote_where_that_cannot_be_copied() -> Result<()>
{
    let (proxy, through, bucket) = two("workers")?;
    let folder = tempfile::tempdir()?;
    crate::answers::worker(folder.path())?;
    bucket.upload(folder.path(), "history")?;
    proxy.rule(
        |_, path| match path.contains("source") && path.contains("workers") {
            true => Fault::Status(503),
            false => Fault::None,
        },
    );
    let remote = through.serve(&[])?;
    get(remote.port, &stages(ID))?;
    let workers = format!("/smtt/v1/applications/{ID}/workers");
    let (status, text) = request(remote.port, &workers, "")?;
    ensure!(
        status == 503 && text.contains("cannot be copied"),
        "{status}: {text}"
    );
    let said = remote.log()?;
    ensure!(said.contains("source=workers"), "{said}");
    // A command writes what it has, names what is missing, and says so by its exit code.
    let csv = folder.path().join("csv").display().to_string();
    let store = through.store();
    let done = through.run(&["export", "--store", &store, ID, "--csv", &csv])?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    ensure!(
        done.status.code() == Some(1) && said.contains("source=workers"),
        "{said}"
    );
    // When the store answers again, it is there.
    proxy.rule(|_, _| Fault::None);
    wait_for("the workers' part", LIMIT, || {
        let (status, text) = request(remote.port, &workers, "")?;
        Ok((status == 200 && text.contains("host-1")).then_some(()))
    })?;
    Ok(())
}
