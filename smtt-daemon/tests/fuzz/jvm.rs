//! Changed command lines and `status` texts of JVMs, crash reports of every kind of file, and lines of the kernel's log.

use std::fs;
use std::os::unix::fs::symlink;

use nix::sys::stat::Mode;
use smtt_machine::deaths::{CrashReport, KillerLines, options_of, program_of, sample};

use super::{changed, corpus, rounds, tried};

/// Memory of one case.
const MEMORY: usize = 4 << 20;
/// Bytes of a text for a terminal that is cut at 1024 bytes, each a character that is replaced by one of three.
const PATH_MAX: usize = 3 * 1024;

fn is_printable(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

#[test]
fn changed_command_lines_name_a_report_that_is_the_users_own_file() {
    let lines = corpus("jvm");
    let statuses: Vec<Vec<u8>> = corpus("proc");
    let reports = corpus("hs_err");
    let folder = tempfile::tempdir().expect("a folder");
    let uid = nix::unistd::getuid().as_raw();
    rounds(|random| {
        let line = changed(random, &lines);
        let options = tried(&line, MEMORY, || {
            let options = options_of(&line);
            assert!(options.len() <= 16, "{options:?}");
            let fits = |option: &String| option.len() <= 600 && is_printable(option);
            assert!(options.iter().all(fits), "{options:?}");
            assert!(program_of(&line).is_none_or(|name| is_printable(&name)));
            options
        });
        let status = changed(random, &statuses);
        let text = String::from_utf8_lossy(&status).into_owned();
        let report = tried(&status, MEMORY, || {
            let _ = sample(&text);
            CrashReport::of(std::process::id(), &text)
        });
        let Some(report) = report else { return };
        tried(&line, MEMORY, || {
            let expected = report.expected(&options).expect("a path");
            assert!(
                expected.len() <= PATH_MAX && is_printable(&expected),
                "{expected}"
            );
            let _ = report.find(&options, uid, 0);
        });

        // The report itself: a user writes what it likes there, and only a file of its own counts.
        let path = folder.path().join("hs_err.log");
        let content = changed(random, &reports);
        let is_file = match random.below(5) {
            0 => {
                symlink("/etc/passwd", &path).expect("a link");
                false
            }
            1 => {
                nix::unistd::mkfifo(&path, Mode::S_IRUSR).expect("a pipe");
                false
            }
            2 => {
                fs::create_dir(&path).expect("a folder");
                false
            }
            _ => {
                fs::write(&path, &content).expect("written");
                true
            }
        };
        let option = [format!("-XX:ErrorFile={}", path.display())];
        let (own, later, others) = tried(&content, MEMORY, || {
            let find = |uid, since| report.find(&option, uid, since);
            (find(uid, 0), find(uid, i64::MAX), find(uid ^ 1, 0))
        });
        assert_eq!(own.is_some(), is_file, "{own:?}");
        assert_eq!((later, others), (None, None));
        if path.is_dir() {
            fs::remove_dir(&path).expect("removed");
        } else {
            fs::remove_file(&path).expect("removed");
        }
    });
}

#[test]
fn changed_lines_of_the_kernels_log_are_bounded_and_name_their_victim() {
    let seeds = corpus("kmsg");
    rounds(|random| {
        let mut log = KillerLines::default();
        // An OOM kill whose lines the rest must not change, only push out.
        let own = "6,1,2,-;Memory cgroup out of memory: Killed process 42 (java) total-vm:1kB";
        for step in 0..100 {
            let record = changed(random, &seeds);
            tried(&record, MEMORY, || {
                log.take(&String::from_utf8_lossy(&record));
                if step == 90 {
                    log.take(own);
                }
                for pid in [42, 43, u32::MAX] {
                    let about = log.about(pid);
                    assert!(about.len() <= 64, "{} lines", about.len());
                    let fits = |line: &String| line.len() <= 1200 && is_printable(line);
                    assert!(about.iter().all(fits), "{about:?}");
                }
            });
        }
        let own = own.split_once(';').expect("a text").1;
        assert!(log.about(42).iter().any(|line| line == own));
    });
}
