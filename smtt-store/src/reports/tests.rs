//! Reports on a disk: their bounds, their order, damage, and what is synced.

use super::*;
use smtt_model::postmortem::Row;

const ANY: Bounds = Bounds {
    bytes: 1 << 30,
    files: 1 << 20,
};

fn report(uid: u32, unix_ms: u64, text: usize) -> Report {
    let mut row = Row {
        id: format!("{unix_ms:013}-7"),
        died_unix_ms: unix_ms,
        ..Row::default()
    };
    row.who.uid = Some(uid);
    Report {
        row,
        evidence: vec!["x".repeat(text)],
        ..Report::default()
    }
}

fn own(uid: u32) -> u32 {
    uid
}

#[test]
fn reports_survive_a_restart_and_half_written_ones_do_not() -> io::Result<()> {
    let scratch = tempfile::tempdir()?;
    let mut reports = Reports::take(scratch.path(), None, ANY)?;
    let busy = Reports::take(scratch.path(), None, ANY).expect_err("one owner");
    assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy);
    for (uid, at) in [(1, 30), (2, 10), (1, 20)] {
        reports.add(&report(uid, at, 10), &own)?;
    }
    drop(reports);
    let stray = scratch.path().join("uid=1/.report-5-5.part");
    fs::write(&stray, "{")?;
    fs::write(scratch.path().join("uid=1/report-..-etc.json"), "{}")?;
    let reports = Reports::take(scratch.path(), None, ANY)?;
    assert!(!stray.exists());
    // Each user has its newest, in the order of their times.
    for (most, wanted) in [
        (1, &[30][..]),
        (2, &[30, 10]),
        (3, &[30, 20, 10]),
        (9, &[30, 20, 10]),
    ] {
        let ids = reports.newest(most, &own).into_iter();
        let ids: Vec<String> = ids.map(|(id, _)| id).collect();
        let wanted: Vec<String> = wanted.iter().map(|at| format!("{at:013}-7")).collect();
        assert_eq!(ids, wanted);
    }
    let of_one = reports.newest(2, &|_| 0);
    assert_eq!(
        of_one,
        [("0000000000030-7".into(), 1), ("0000000000020-7".into(), 1)],
        "users of one share have its part together"
    );
    assert_eq!(reports.usage().1, 3);
    assert_eq!(
        read(scratch.path(), 2, "0000000000010-7")?,
        report(2, 10, 10)
    );
    assert!(read(scratch.path(), 2, "../uid=1/report-0000000000030-7").is_err());
    Ok(())
}

#[test]
fn a_report_of_an_earlier_version_is_read_and_a_changed_one_is_not() -> io::Result<()> {
    assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    let scratch = tempfile::tempdir()?;
    let mut reports = Reports::take(scratch.path(), None, ANY)?;
    reports.add(&report(1, 30, 10), &own)?;
    let path = scratch.path().join("uid=1/report-0000000000030-7.json");
    let whole = fs::read_to_string(&path)?;
    assert_eq!(whole.lines().count(), 2);
    let earlier = whole.lines().next().expect("a line");
    fs::write(&path, earlier)?;
    assert_eq!(
        read(scratch.path(), 1, "0000000000030-7")?,
        report(1, 30, 10)
    );
    fs::write(&path, whole.replacen("xxxx", "xxyx", 1))?;
    let error = read(scratch.path(), 1, "0000000000030-7").expect_err("it was changed");
    assert!(error.to_string().contains("checksum"), "{error}");
    Ok(())
}

#[test]
fn deaths_without_end_stay_within_the_bounds() -> io::Result<()> {
    let scratch = tempfile::tempdir()?;
    let bounds = Bounds {
        bytes: 1 << 20,
        files: 100,
    };
    let mut reports = Reports::take(scratch.path(), None, bounds)?;
    reports.add(&report(9, 1, 10), &own)?;
    for at in 2..1_000 {
        reports.add(&report(8, at, 10), &own)?;
        assert!(reports.usage().0 <= bounds.bytes && reports.usage().1 <= bounds.files);
    }
    let files = fs::read_dir(scratch.path().join("uid=8"))?.count();
    assert!(files <= 100, "{files} files");
    assert!(
        read(scratch.path(), 9, "0000000000001-7").is_ok(),
        "the oldest of the user with the most goes, not the oldest of all"
    );
    assert_eq!(reports.newest(1, &own)[0].0, "0000000000999-7");
    Ok(())
}

#[test]
fn a_hundred_thousand_deaths_are_bounded_and_listed_at_once() -> io::Result<()> {
    // In memory where possible: this is about the number, not about the disk.
    let memory = Path::new("/dev/shm");
    let scratch = match tempfile::tempdir_in(memory) {
        Ok(scratch) => scratch,
        Err(_) => tempfile::tempdir()?,
    };
    const DEATHS: u64 = 100_000;
    let bounds = Bounds {
        bytes: 16 << 20,
        files: 2000,
    };
    let text = serde_json::to_vec(&report(1, 1, 10))?;
    // As a daemon with other bounds left them: 50 users.
    for at in 0..DEATHS {
        let folder = folder_of(scratch.path(), (at % 50) as u32);
        if at < 50 {
            make(&folder, None)?;
        }
        fs::write(folder.join(format!("{PREFIX}{at:013}-7{SUFFIX}")), &text)?;
    }
    let start = std::time::Instant::now();
    let mut reports = Reports::take(scratch.path(), None, bounds)?;
    let took = start.elapsed();
    assert_eq!(reports.removed(), DEATHS - bounds.files);
    assert!(took.as_secs() < 60, "a start takes {took:?}");
    for at in DEATHS..DEATHS + 3000 {
        reports.add(&report((at % 50) as u32, at, 10), &own)?;
        let (bytes, files) = reports.usage();
        assert!(bytes <= bounds.bytes && files <= bounds.files);
    }
    let start = std::time::Instant::now();
    let newest = reports.newest(1024, &own);
    let took = start.elapsed();
    assert!(took.as_millis() < 500, "a list takes {took:?}");
    let wanted = (DEATHS..DEATHS + 3000).rev().take(1024);
    let wanted: Vec<String> = wanted.map(|at| format!("{at:013}-7")).collect();
    let listed: Vec<String> = newest.into_iter().map(|(id, _)| id).collect();
    assert_eq!(listed, wanted);
    let mut files = 0;
    for folder in fs::read_dir(scratch.path())?.filter_map(Result::ok) {
        if folder.file_type()?.is_dir() {
            files += fs::read_dir(folder.path())?.count() as u64;
        }
    }
    assert_eq!(
        files, bounds.files,
        "what is on the disk is what is counted"
    );
    Ok(())
}

#[test]
fn users_of_one_share_have_its_part_together() -> io::Result<()> {
    let scratch = tempfile::tempdir()?;
    let bounds = Bounds { files: 4, ..ANY };
    let mut reports = Reports::take(scratch.path(), None, bounds)?;
    let share = |uid: u32| if uid >= 100 { 100 } else { uid };
    for (uid, at) in [(1, 1), (1, 2), (100, 3), (101, 4), (102, 5)] {
        reports.add(&report(uid, at, 10), &share)?;
    }
    let left: Vec<u32> = reports
        .newest(9, &own)
        .iter()
        .map(|(_, uid)| *uid)
        .collect();
    assert_eq!(
        left,
        [102, 101, 1, 1],
        "the oldest of all users of the share"
    );
    Ok(())
}

#[test]
fn reports_in_advance_are_those_of_the_last_write() {
    let folder = tempfile::tempdir().expect("a folder");
    let reports = Reports::take(folder.path(), None, ANY).expect("taken");
    assert_eq!(reports.in_advance().expect("none"), InAdvance::default());
    let all = |pid: u32| InAdvance {
        boot_id: "this".to_owned(),
        reports: vec![report(pid, 5, 100)],
        waiting: Vec::new(),
    };
    for pid in [1, 2] {
        reports.keep_in_advance(&all(pid)).expect("written");
    }
    assert_eq!(reports.in_advance().expect("read"), all(2));
    // They are no reports, and hold no room of these.
    assert_eq!(reports.usage(), (0, 0));
    let path = folder.path().join(LIVING);
    let mut text = fs::read(&path).expect("read");
    text[40] ^= 1;
    fs::write(&path, text).expect("written");
    let damaged = reports.in_advance().expect_err("damaged").to_string();
    assert!(damaged.contains("checksum"), "{damaged}");
}

thread_local! {
    static SYNCED: std::cell::RefCell<Vec<PathBuf>> = const { std::cell::RefCell::new(Vec::new()) };
}

pub(super) fn see_sync(folder: &Path) {
    SYNCED.with_borrow_mut(|all| all.push(folder.to_owned()));
}

#[test]
fn names_of_reports_are_on_the_disk_before_they_count_as_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, user) = (folder.path().to_owned(), folder.path().join("uid=1"));
    let mut reports = Reports::take(&root, None, ANY).expect("taken");
    reports.add(&report(1, 5, 10), &own).expect("written");
    let synced = || SYNCED.take();
    assert_eq!(
        synced(),
        [root.clone(), user.clone()],
        "a new folder, and its file"
    );
    reports.add(&report(1, 6, 10), &own).expect("written");
    assert_eq!(synced(), [user]);
    reports
        .keep_in_advance(&InAdvance::default())
        .expect("written");
    assert_eq!(synced(), [root]);
}

#[test]
fn reports_within_their_bound_are_read_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let reports = Reports::take(folder.path(), None, ANY).expect("taken");
    let one = report(1, 5, 100_000);
    let most = usize::try_from(IN_ADVANCE_BYTES / length(&one).expect("a length")).expect("few");
    let all = InAdvance {
        boot_id: "x".repeat(36),
        reports: vec![one.clone(); most],
        waiting: vec![one; most],
    };
    reports.keep_in_advance(&all).expect("written");
    assert_eq!(reports.in_advance().expect("read"), all);
}
