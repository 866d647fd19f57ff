//! A folder of logs belongs to others: what is no regular file is not read, and the name of a file is no application.

use std::os::unix::fs::symlink;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;

#[test]
fn pipes_links_and_devices_are_no_logs() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let at = |name: &str| folder.path().join(name);
    mkfifo(&at("pipe"), Mode::S_IRWXU).expect("makes a pipe");
    fs::write(at("file"), "{}").expect("writes");
    symlink(at("file"), at("link")).expect("links");
    symlink("/dev/zero", at("device")).expect("links");
    for name in ["pipe", "link", "device"] {
        assert!(Log::at(&at(name)).is_err(), "{name}");
        assert_eq!(Log::find(folder.path(), name), None, "{name}");
        let folder = at(&format!("eventlog_v2_{name}"));
        fs::create_dir(&folder).expect("makes a folder");
        fs::rename(at(name), folder.join(format!("events_1_{name}"))).expect("moves");
        assert!(Log::at(&folder).is_err(), "part {name}");
    }
    symlink(at("eventlog_v2_pipe"), at("eventlog_v2_app-1")).expect("links");
    assert_eq!(Log::find(folder.path(), "app-1"), None);
    assert!(Log::at(Path::new("/dev/null")).is_err());
    assert_eq!(Log::at(&at("file")).expect("is a log").bytes, 2);
}

#[test]
fn names_of_files_are_no_applications() {
    let folder = tempfile::tempdir().expect("makes a folder");
    for name in ["app-1.zstd", "app-2.inprogress", "eventlog_v2_app-3"] {
        fs::write(folder.path().join(name), "").expect("writes");
        assert_eq!(Log::find(folder.path(), name), None, "{name}");
    }
    for name in ["app-1", "app-2", "app-3"] {
        assert!(Log::find(folder.path(), name).is_some(), "{name}");
    }
}

#[test]
fn logs_are_found_by_the_names_that_spark_gives_them() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let find = |name: &str| Log::find(folder.path(), name);
    let at = |name: &str| Some(folder.path().join(name));
    fs::write(folder.path().join("spark_app_7_1.zstd"), "").expect("writes");
    assert_eq!(find("Spark.App_7_1"), at("spark_app_7_1.zstd"));
    // The name as it is comes first.
    fs::write(folder.path().join("Spark.App_7_1"), "").expect("writes");
    assert_eq!(find("Spark.App_7_1"), at("Spark.App_7_1"));
    assert_eq!(find("spark.app_7_2"), None);
}

#[test]
fn a_log_changed_when_its_last_part_did() {
    let folder = tempfile::tempdir().expect("makes a folder");
    for (name, seconds) in [("events_2_a.compact", 3000), ("events_10_a", 2000)] {
        let path = folder.path().join(name);
        fs::write(&path, "{}").expect("writes");
        let file = fs::File::options().write(true).open(&path).expect("opens");
        let time = UNIX_EPOCH + Duration::from_secs(seconds);
        file.set_modified(time).expect("sets the time");
    }
    let log = Log::at(folder.path()).expect("is a log");
    assert_eq!((log.modified_ms, log.bytes), (2_000_000, 4));
}
