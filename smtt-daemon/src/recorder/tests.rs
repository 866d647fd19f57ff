//! Trace files as a whole: what is handed over is in files that open, or is a named loss.

mod shares;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parquet::file::reader::FileReader as _;
use serde_json::{Map, Value};
use smtt_model::ledger::trace::TraceCounts;
use smtt_skip::{NotSkipped, skip};
use smtt_store::folder::{list_segments, partition};
use smtt_store::read::Reader;
use smtt_store::record::{COLUMNS, Kind, Origin, Physical, Record};
use smtt_store::segment::{Form, Segment};

use super::counts::Ledger;
use super::writer::Writer;
use super::*;

fn source(application_id: &str) -> Arc<Origin> {
    source_of(1000, application_id)
}

fn source_of(user: u32, application_id: &str) -> Arc<Origin> {
    Arc::new(Origin {
        uid: Some(user),
        share: Some(user),
        application_id: application_id.to_owned(),
        host: "host-1".to_owned(),
        executor_id: "0".to_owned(),
        partition: partition(Some(user), application_id, "host-1"),
    })
}

/// Numbers without a pattern that a compressor could use, the same in every run.
fn scattered(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A record that looks like one of a real job: addresses and ids change, names repeat.
fn record(source: &Arc<Origin>, number: u64) -> Record {
    let any = scattered(number);
    let mut record = Record::new(
        Arc::clone(source),
        time_of(number),
        match any % 4 {
            0 => Kind::Put,
            1 | 2 => Kind::Get,
            _ => Kind::Drop,
        },
    );
    record.stage_id = Some((number / 1000) as u32);
    record.stage_attempt = Some(0);
    let (rdd, partition) = ((any >> 8) % 7, (any >> 16) % 256);
    record.task_attempt_id = Some(number / 16 + (any >> 24) % 4);
    record.rdd_id = Some(rdd as u32);
    record.partition = Some(partition as u32);
    record.block_id = Some(format!("rdd_{rdd}_{partition}"));
    record.region = Some("storage");
    // A block keeps its size and place.
    let block = scattered(rdd * 1000 + partition);
    record.size_bytes = Some(1 << 20 | block & 0xffff);
    record.on_heap = Some(true);
    record.serialized = Some(true);
    record.contents = Some("bytes");
    record.address_age_ns = Some(match record.kind {
        Kind::Put => 0,
        _ => any >> 30,
    });
    record.ranges = vec![(
        0x7_0000_0000 + (block >> 16 & 0xffff_fff8),
        1 << 20 | block & 0xffff,
    )];
    record.range_first = Some(0);
    record.range_total = Some(1);
    if matches!(record.kind, Kind::Get) {
        let length = 1 << 20 | block & 0xffff;
        record.physical = Some(Box::new(Physical {
            time_ns: time_of(number / 5000 * 5000),
            examined_bytes: length,
            present_bytes: length,
            swapped_bytes: 0,
            huge_page_bytes: Some([0, 0]),
            nodes: Some(vec![(block % 2) as u32]),
            ..Physical::default()
        }));
    }
    record
}

/// Accesses of several threads: some 30 microseconds apart.
fn time_of(number: u64) -> u64 {
    1_790_000_000_000_000_000 + number * 31_337 + scattered(number) % 30_000
}

fn settings(folder: &Path) -> TraceSettings {
    TraceSettings {
        folder: folder.to_owned(),
        segment_bytes: 64 << 20,
        segment_time: Duration::from_secs(3600),
        max_bytes: 1 << 30,
        max_files: 1 << 20,
        gid: None,
    }
}

/// A writer that is driven by hand.
struct Bench {
    writer: Writer,
    ledger: Arc<Ledger>,
}

impl Bench {
    fn new(settings: TraceSettings) -> Self {
        let ledger = Arc::new(Ledger::new("test"));
        let writer = Writer::new(settings, ledger.clone(), Arc::default()).expect("a writer");
        Self {
            writer: writer.retry_every(Duration::from_millis(20)),
            ledger,
        }
    }

    fn take(&mut self, records: Vec<Record>) {
        {
            let mut status = self.ledger.lock();
            status.counts.attempted += records.len() as u64;
            status.counts.queued += records.len() as u64;
        }
        self.writer.take_in(records);
        self.writer.rotate();
        self.adds_up();
    }

    fn adds_up(&self) {
        let counts = self.counts();
        let lost: u64 = counts.lost.values().sum();
        assert_eq!(
            counts.attempted,
            counts.written + lost + counts.queued + counts.held,
            "{counts:?}"
        );
    }

    fn counts(&self) -> TraceCounts {
        self.ledger.status().counts
    }

    /// Ends the writer as the daemon does.
    fn finish(self) -> TraceCounts {
        let (end, records) = mpsc::channel();
        drop(end);
        self.writer.run(&records);
        let counts = self.ledger.status().counts;
        assert_eq!((counts.held, counts.queued), (0, 0), "{counts:?}");
        counts
    }
}

/// All records of all finished segments.
fn written(folder: &Path) -> Vec<Map<String, Value>> {
    let mut all = Vec::new();
    for found in list_segments(folder).expect("readable").0 {
        let reader = Reader::open(&found.path).expect("a finished segment opens");
        for record in reader.records().expect("a known schema") {
            all.push(record.expect("a whole record"));
        }
    }
    all
}

fn records(source: &Arc<Origin>, from: u64, to: u64) -> Vec<Record> {
    (from..to).map(|number| record(source, number)).collect()
}

#[test]
fn every_column_comes_back_as_it_was_written() {
    let scratch = tempfile::tempdir().expect("scratch");
    let source = source("app-1");
    let mut whole = record(&source, 3);
    whole.kind = Kind::Get;
    whole.activity = Some("evict");
    whole.contents = Some("array");
    whole.consumer = Some("a, \"b\"".to_owned());
    whole.duration_ns = Some(5);
    whole.ranges = vec![(0x1ff8, 16), (0x3000, 4096), (0x5000, 1)];
    whole.physical = Some(Box::new(Physical {
        time_ns: 7,
        examined_bytes: 4113,
        present_bytes: 4097,
        swapped_bytes: 16,
        frames: Some(vec![Some(9), None, Some(7)]),
        huge_page_bytes: Some([0, 0]),
        nodes: Some(vec![0, 1]),
    }));
    whole.hotness = Some(0.5);
    let bare = Record::new(Arc::clone(&source), 1, Kind::Free);
    let mut bench = Bench::new(settings(scratch.path()));
    bench.take(vec![whole.clone(), bare.clone()]);
    assert_eq!(bench.finish().written, 2);

    let rows = written(scratch.path());
    assert_eq!(
        rows,
        [whole.object(), bare.object()],
        "a live client gets the same records"
    );
    for column in COLUMNS {
        assert!(rows[0].contains_key(column.name), "{} is lost", column.name);
    }
    let expected = serde_json::json!({
        "uid": 1000, "application_id": "app-1", "host": "host-1", "kind": "get", "virtual_address": 0x1ff8, "length_bytes": 16,
        "further_addresses": [0x3000, 0x5000], "further_lengths": [4096, 1], "first_page": 1, "pages": 4,
        "crosses_pages": true, "examined_age_ms": 1_790_000_000_000u64, "present_bytes": 4097, "frames": [9, -1, 7], "nodes": [0, 1], "spans_nodes": true, "hotness": 0.5, "hotness_method": "block reads",
    });
    for (name, value) in expected.as_object().expect("an object") {
        assert_eq!(rows[0].get(name), Some(value), "{name}");
    }
    let there: Vec<&str> = rows[1].keys().map(String::as_str).collect();
    assert_eq!(
        there,
        [
            "uid",
            "application_id",
            "host",
            "time",
            "kind",
            "executor_id"
        ],
        "what is not known is absent"
    );
}

#[test]
fn segments_rotate_by_size_and_by_time() {
    let scratch = tempfile::tempdir().expect("scratch");
    let source = source("app-1");
    let by_size = scratch.path().join("size");
    let mut bench = Bench::new(TraceSettings {
        segment_bytes: 100_000,
        ..settings(&by_size)
    });
    for batch in 0..50 {
        bench.take(records(&source, batch * 1000, (batch + 1) * 1000));
    }
    assert!(bench.counts().segments >= 2, "{:?}", bench.counts());
    assert_eq!(bench.finish().written, 50_000);
    assert_eq!(written(&by_size).len(), 50_000);

    for (milliseconds, count) in [(3_600_000, 0), (30, 10)] {
        let by_time = scratch.path().join(format!("time-{milliseconds}"));
        let mut settings = settings(&by_time);
        settings.segment_time = Duration::from_millis(milliseconds);
        let mut bench = Bench::new(settings);
        bench.take(records(&source, 0, 10));
        std::thread::sleep(Duration::from_millis(40));
        bench.writer.rotate();
        assert_eq!(bench.counts().written, count);
        assert_eq!(written(&by_time).len() as u64, count);
    }
}

#[test]
fn applications_and_hosts_have_their_own_files() {
    let scratch = tempfile::tempdir().expect("scratch");
    let mut bench = Bench::new(settings(scratch.path()));
    // More than are open at a time, with names that try to get out.
    for number in 0..100 {
        let source = source(&format!("../../app/{number}"));
        bench.take(records(&source, 0, 3));
    }
    assert_eq!(bench.finish().written, 300);
    let rows = written(scratch.path());
    assert_eq!(rows.len(), 300);
    let of_7 = rows
        .iter()
        .filter(|row| row["application_id"] == "../../app/7")
        .count();
    assert_eq!(of_7, 3);
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).expect("readable");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("readable").file_name())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(scratch.path()), [".lock", "uid=1000"]);
    for name in names(&scratch.path().join("uid=1000")) {
        let name = name.to_string_lossy();
        assert!(name.starts_with("application_id=..%2F"), "{name}");
    }
}

#[test]
fn a_claim_of_another_user_s_application_has_files_of_its_own() {
    let scratch = tempfile::tempdir().expect("scratch");
    let mut bench = Bench::new(settings(scratch.path()));
    for user in [1000, 1001] {
        bench.take(records(&source_of(user, "app-1"), 0, 3));
    }
    assert_eq!(bench.finish().written, 6);
    for user in [1000, 1001] {
        let folder = format!("uid={user}/application_id=app-1/host=host-1");
        let files = fs::read_dir(scratch.path().join(folder)).expect("readable");
        assert_eq!(files.count(), 1, "user {user}");
    }
    let mut users: Vec<_> = written(scratch.path())
        .iter()
        .map(|row| row["uid"].as_u64())
        .collect();
    users.sort_unstable();
    let (one, other) = (Some(1000), Some(1001));
    assert_eq!(users, [one, one, one, other, other, other]);
}

#[test]
fn the_disk_bound_holds_and_the_newest_stay() {
    let scratch = tempfile::tempdir().expect("scratch");
    let source = source("app-1");
    let bound = 600_000;
    let mut bench = Bench::new(TraceSettings {
        segment_bytes: 64 << 10,
        max_bytes: bound,
        ..settings(scratch.path())
    });
    for batch in 0..200 {
        bench.take(records(&source, batch * 1000, (batch + 1) * 1000));
        let used: u64 = list_segments(scratch.path())
            .expect("readable")
            .0
            .iter()
            .map(|found| found.bytes)
            .sum();
        assert!(used <= bound, "{used} bytes after batch {batch}");
    }
    let counts = bench.finish();
    assert!(counts.segments_removed > 0, "{counts:?}");
    assert_eq!(counts.written, 200_000, "{counts:?}");
    let rows = written(scratch.path());
    let last = rows.last().expect("records are left");
    assert_eq!(
        last["time"],
        smtt_model::time::utc((time_of(199_999) / 1000) as i64)
    );
}

#[test]
fn a_removed_folder_costs_one_segment_and_comes_back() {
    let scratch = tempfile::tempdir().expect("scratch");
    let folder = scratch.path().join("trace");
    let source = source("app-1");
    let mut bench = Bench::new(settings(&folder));
    bench.take(records(&source, 0, 20_000));
    fs::remove_dir_all(&folder).expect("removed");
    bench.writer.finish_all();
    let status = bench.ledger.status();
    assert!(
        status.failing.contains("the daemon makes it again"),
        "{status:?}"
    );
    assert_eq!(status.counts.lost.get("folder_removed"), Some(&20_000));
    std::thread::sleep(Duration::from_millis(25));
    bench.writer.rotate();
    assert_eq!(bench.ledger.status().failing, "", "it is there again");
    bench.take(records(&source, 0, 500));
    assert_eq!(bench.finish().written, 500);
    assert_eq!(written(&folder).len(), 500);
}

/// A file system of its own in memory, unmounted in the end.
struct Tmpfs(std::path::PathBuf);

impl Tmpfs {
    /// `None`, with a line that says so, where this user may not mount.
    fn mount(path: &Path, kib: u32) -> Result<Option<Self>, NotSkipped> {
        use nix::mount::{MsFlags, mount};
        fs::create_dir_all(path).expect("a folder to mount on");
        match mount(
            Some("tmpfs"),
            path,
            Some("tmpfs"),
            MsFlags::empty(),
            Some(format!("size={kib}k").as_str()),
        ) {
            Ok(()) => Ok(Some(Self(path.to_owned()))),
            Err(error) => skip("root", format!("no tmpfs: {error}")).map(|()| None),
        }
    }

    fn again(&self, flags: nix::mount::MsFlags) {
        nix::mount::mount(
            None::<&str>,
            &self.0,
            None::<&str>,
            nix::mount::MsFlags::MS_REMOUNT | flags,
            None::<&str>,
        )
        .expect("mounted anew");
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_full_disk_is_a_named_loss_and_the_writer_goes_on_when_there_is_room() -> Result<(), NotSkipped>
{
    let scratch = tempfile::tempdir().expect("scratch");
    let mounted = scratch.path().join("disk");
    let Some(_disk) = Tmpfs::mount(&mounted, 1024)? else {
        return Ok(());
    };
    let folder = mounted.join("trace");
    let source = source("app-1");
    let mut bench = Bench::new(TraceSettings {
        segment_bytes: 200_000,
        ..settings(&folder)
    });
    bench.take(records(&source, 0, 20_000));
    let fill = mounted.join("fill");
    // Up to the last byte.
    let _ = fs::write(&fill, vec![1_u8; 2 << 20]);
    for batch in 0..40 {
        bench.take(records(&source, batch * 1000, (batch + 1) * 1000));
    }
    let status = bench.ledger.status();
    assert!(status.failing.contains("make room"), "{status:?}");
    assert!(status.counts.lost["disk_full"] > 0, "{status:?}");
    // Whatever is finished is whole.
    assert_eq!(written(&folder).len() as u64, status.counts.written);

    std::thread::sleep(Duration::from_millis(25));
    bench.writer.rotate();
    assert!(!bench.ledger.status().failing.is_empty(), "still full");
    fs::remove_file(&fill).expect("removed");
    std::thread::sleep(Duration::from_millis(25));
    bench.writer.rotate();
    assert_eq!(bench.ledger.status().failing, "");
    let before = bench.counts().written;
    bench.take(records(&source, 0, 100));
    assert_eq!(bench.finish().written, before + 100);
    assert_eq!(written(&folder).len() as u64, before + 100);
    Ok(())
}

#[test]
fn a_folder_that_turns_read_only_is_a_named_loss() -> Result<(), NotSkipped> {
    let scratch = tempfile::tempdir().expect("scratch");
    let mounted = scratch.path().join("disk");
    let Some(disk) = Tmpfs::mount(&mounted, 8192)? else {
        return Ok(());
    };
    let source = source("app-1");
    let mut bench = Bench::new(TraceSettings {
        segment_time: Duration::from_millis(5),
        ..settings(&mounted)
    });
    bench.take(records(&source, 0, 10));
    std::thread::sleep(Duration::from_millis(10));
    bench.writer.rotate();
    assert_eq!(bench.counts().written, 10);
    disk.again(nix::mount::MsFlags::MS_RDONLY);
    bench.take(records(&source, 0, 10));
    std::thread::sleep(Duration::from_millis(10));
    bench.writer.rotate();
    let status = bench.ledger.status();
    assert!(
        status.failing.contains("make the folder writable"),
        "{status:?}"
    );
    assert_eq!(status.counts.lost.get("folder_not_writable"), Some(&10));
    disk.again(nix::mount::MsFlags::empty());
    std::thread::sleep(Duration::from_millis(25));
    bench.writer.rotate();
    bench.take(records(&source, 0, 10));
    assert_eq!(bench.finish().written, 20);
    Ok(())
}

#[test]
fn two_daemons_do_not_share_a_folder() {
    let scratch = tempfile::tempdir().expect("scratch");
    let source = source("app-1");
    let first = Bench::new(settings(scratch.path()));
    let mut second = Bench::new(settings(scratch.path()));
    second.take(records(&source, 0, 5));
    let status = second.ledger.status();
    assert!(status.failing.contains("another smtt-daemon"), "{status:?}");
    assert_eq!(status.counts.lost.get("folder_in_use"), Some(&5));
    first.finish();
}

#[test]
fn a_queue_that_is_full_refuses_and_counts() {
    let ledger = Arc::new(Ledger::new("test"));
    let (records_in, waiting) = mpsc::channel();
    let queue = Queue {
        records: records_in,
        ledger: Arc::clone(&ledger),
    };
    let source = source("app-1");
    // Three quarters of what one user alone may have.
    let most = QUEUE * 9 / 16;
    queue.send(records(&source, 0, most - 10));
    queue.send(records(&source, 0, 30));
    queue.send(records(&source, 0, 5));
    let counts = ledger.status().counts;
    assert_eq!(counts.queued, most);
    assert_eq!(counts.lost.get("queue_full"), Some(&25));
    assert_eq!(counts.attempted, most + 25);
    let taken: Vec<Record> = waiting.try_iter().flatten().collect();
    assert_eq!(taken.len() as u64, most);
    ledger.taken(&taken);
    drop(waiting);
    ledger.lock().counts.queued = 0;
    queue.send(records(&source, 0, 2));
    assert_eq!(ledger.status().counts.lost.get("writer_gone"), Some(&2));
}

#[test]
fn an_unfinished_segment_leaves_no_file() {
    let scratch = tempfile::tempdir().expect("scratch");
    let source = source("app-1");
    let form = Form::new().expect("a valid form");
    let mut segment =
        Segment::create(&form, &source, scratch.path(), "segment-x.parquet", None).expect("made");
    segment.write(&records(&source, 0, 100)).expect("written");
    assert_eq!(
        fs::read_dir(scratch.path()).expect("readable").count(),
        1,
        "hidden"
    );
    drop(segment);
    assert_eq!(fs::read_dir(scratch.path()).expect("readable").count(), 0);
}

#[test]
fn a_record_takes_at_most_20_bytes() {
    let scratch = tempfile::tempdir().expect("scratch");
    let source = source("app-1");
    let mut bench = Bench::new(settings(scratch.path()));
    let start = Instant::now();
    for batch in 0..100 {
        bench.take(records(&source, batch * 1000, (batch + 1) * 1000));
    }
    let counts = bench.finish();
    let per_record = counts.disk_bytes as f64 / counts.written as f64;
    println!(
        "{per_record:.1} bytes per record, {:.0} records per second",
        counts.written as f64 / start.elapsed().as_secs_f64()
    );
    if per_record > 20.0 {
        for found in list_segments(scratch.path()).expect("readable").0 {
            let file = fs::File::open(&found.path).expect("opens");
            let reader =
                parquet::file::reader::SerializedFileReader::new(file).expect("a Parquet file");
            for column in reader.metadata().row_group(0).columns() {
                println!(
                    "{} {} bytes",
                    column.column_path(),
                    column.compressed_size()
                );
            }
        }
    }
    assert!(per_record <= 20.0, "{per_record:.1} bytes per record");
}

#[test]
fn the_document_lists_every_column() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/TRACE.md");
    let text = fs::read_to_string(&path).expect("docs/TRACE.md");
    let (begin, end) = ("<!-- columns -->\n", "<!-- end of columns -->");
    let from = text.find(begin).expect("where columns begin") + begin.len();
    let to = text.find(end).expect("where columns end");
    let mut table = String::from("| column | type | what it is |\n|---|---|---|\n");
    for column in COLUMNS {
        table.push_str(&format!(
            "| `{}` | {} | {} |\n",
            column.name,
            column.value.type_name(),
            column.help
        ));
    }
    if std::env::var_os("SMTT_BLESS").is_some() {
        let blessed = format!("{}{table}{}", &text[..from], &text[to..]);
        fs::write(&path, blessed).expect("it can be written");
    } else {
        assert_eq!(&text[from..to], table, "run `cargo xtask tidy`");
    }
}
