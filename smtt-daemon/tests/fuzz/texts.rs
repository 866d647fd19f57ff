//! Changed texts: configuration files, and files of `/etc` and `/proc`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{Cursor, Error};
use std::path::Path;

use smtt_daemon::subordinate::Follower;
use smtt_machine::foreign::refusal;
use smtt_machine::proc;
use smtt_model::subordinate::SubordinateIds;

use super::{Random, changed, corpus, rounds, tried};

/// Memory of one case.
const MEMORY: usize = 16 << 20;
/// A device that no mount of the corpus has.
const NO_DEVICE: u64 = u64::MAX >> 1;

#[test]
fn changed_configurations_are_refused_with_a_line_or_are_good() {
    let seeds = corpus("config");
    rounds(|random| {
        let bytes = changed(random, &seeds);
        let text = String::from_utf8_lossy(&bytes);
        tried(&bytes, MEMORY, || {
            if let Err(error) = smtt_config::parse(&text, Path::new("x.toml")) {
                assert!(error.to_string().contains("x.toml, line "), "{error}");
            }
        });
    });
}

#[test]
fn changed_web_configurations_are_refused_with_a_line_or_are_good() {
    let seeds = corpus("web");
    rounds(|random| {
        let bytes = changed(random, &seeds);
        let text = String::from_utf8_lossy(&bytes);
        tried(&bytes, MEMORY, || {
            match smtt_web::config::parse(&text, Path::new("/etc/x.yml")) {
                Ok(config) => {
                    // What names a file never is without one, and a header is one line.
                    if let Some(tls) = &config.tls {
                        assert!(tls.versions.0 <= tls.versions.1, "{tls:?}");
                    }
                    let lines = |value: &String| !value.contains(['\r', '\n']);
                    assert!(config.headers.values().all(lines), "{:?}", config.headers);
                }
                Err(error) => {
                    let message = error.to_string();
                    assert!(message.contains("x.yml, line "), "{message}");
                    assert_eq!(message.lines().count(), 1, "{message}");
                }
            }
        });
    });
}

#[test]
fn changed_texts_of_proc_are_read_or_refused() {
    let seeds = corpus("proc");
    rounds(|random| {
        let bytes = changed(random, &seeds);
        tried(&bytes, MEMORY, || {
            let text = String::from_utf8_lossy(&bytes);
            let _ = (proc::stat(&bytes), proc::start_ticks(&text));
            let _ = proc::innermost_id(&text);
            for line in text.lines() {
                if let Some((range, name)) = proc::mapping(line) {
                    assert!(name.starts_with('/') && !range.contains(' '));
                }
            }
        });
    });
}

/// What is decided of a file on the mount 100, which is not in our own namespace.
fn decided(theirs: &[u8], own: &[u8]) -> Option<String> {
    let text = |bytes: &[u8]| Ok(Cursor::new(bytes.to_vec()));
    let device = || Ok(NO_DEVICE);
    refusal(100, device, || text(theirs), || text(own)).expect("a text in memory")
}

/// A name as the kernel writes it: blanks and backslashes are octal.
fn escaped(random: &mut Random) -> String {
    let words = [
        " - ext4 ",
        "\\040",
        "fuse",
        " ext4",
        "\n100 1 0:1 / / rw - ext4 x rw\n",
        "-",
        "é",
        "/",
        "x",
    ];
    let name: String = (0..1 + random.below(6))
        .map(|_| *random.of(&words))
        .collect();
    let escape = |letter: char| match letter {
        ' ' => "\\040".to_owned(),
        '\n' => "\\012".to_owned(),
        '\\' => "\\134".to_owned(),
        other => other.to_string(),
    };
    name.chars().map(escape).collect()
}

#[test]
fn changed_mountinfo_is_read_or_refused_and_names_decide_nothing() {
    let seeds = corpus("mountinfo");
    let own = b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n50 1 0:40 / /o rw - overlay overlay rw\n";
    let asked = Cell::new(0_u64);
    rounds(|random| {
        // Any bytes: an answer, in bounded time.
        let bytes = changed(random, &seeds);
        let refused = tried(&bytes, MEMORY, || decided(&bytes, own));
        let text = String::from_utf8_lossy(&bytes);
        let has_mount = text.lines().any(|line| {
            let id = line.split(' ').next().and_then(|id| id.parse::<u64>().ok());
            id == Some(100)
        });
        assert!(
            has_mount || refused.is_some(),
            "a mount that is nowhere is refused"
        );

        // Lines as the kernel writes them, with names of a user's choice: the type alone decides.
        let kinds: BTreeMap<&str, bool> = [
            ("ext4", true),
            ("tmpfs", true),
            ("fuse", false),
            ("fuse.ext4", false),
            ("nfs4", false),
            ("overlay", false),
            ("proc", false),
        ]
        .into();
        let (kind, local) = kinds
            .iter()
            .nth(random.below(kinds.len()))
            .expect("one of them");
        let names: Vec<String> = (0..5).map(|_| escaped(random)).collect();
        let [root, point, source, other, options] = names.as_slice() else {
            unreachable!("five names");
        };
        let text = format!(
            "99 1 0:7 /{other} /{point} rw shared:1 - ext4 {source} rw\n100 1 0:9 /{root} /{point} rw,{options} master:1 - {kind} {source} rw,{options}\n101 1 0:9 / / rw - ext4 x rw\n"
        );
        let refused = tried(text.as_bytes(), MEMORY, || decided(text.as_bytes(), own));
        assert_eq!(refused.is_none(), *local, "{kind}: {refused:?}\n{text}");
        asked.set(asked.get() + 1);
    });
    assert!(asked.get() > 100, "{} texts", asked.get());
    // A text that cannot be read decides nothing.
    let fails = || Err::<Cursor<Vec<u8>>, _>(Error::other("gone"));
    assert!(refusal(1, || Ok(0), fails, fails).is_err());
}

#[test]
fn changed_ranges_of_subordinate_ids_are_disjoint_and_bounded() {
    let seeds = corpus("subuid");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("subuid");
    let mut follower = Follower::new(&path);
    rounds(|random| {
        let bytes = changed(random, &seeds);
        // The file is followed: each change replaces what was known.
        std::fs::write(&path, &bytes).expect("written");
        let followed = tried(&bytes, MEMORY, || follower.changed());
        let number = |name: &str| (name == "root").then_some(0);
        let text = String::from_utf8_lossy(&bytes);
        let ids = tried(&bytes, MEMORY, || SubordinateIds::parse(&text, number).0);
        if let Some(followed) = followed {
            // Names of the users database may be known that are not known here.
            assert!(followed.blocks().len() >= ids.blocks().len(), "{text}");
        }
        let blocks = tried(&bytes, MEMORY, || ids.blocks());
        let mut next = 0_u64;
        for block in &blocks {
            let first = u64::from(block.first);
            assert!(first >= next, "{blocks:?} overlap");
            next = first + (1 << (32 - block.bits));
            assert!(next <= 1 << 32, "{block:?} ends beyond the last id");
            for uid in [first, next - 1] {
                assert_eq!(ids.share_of(uid as u32), block.owner, "{uid} in {block:?}");
            }
        }
    });
}

#[test]
fn a_full_file_of_subordinate_ids_is_read_in_time() {
    // Many small ranges, then as many that span all of them.
    let mut text: String = (0..20_000_u32)
        .map(|id| format!("7:{}:1\n", id * 2 + 1))
        .collect();
    while text.len() < 1 << 20 {
        text.push_str("8:0:4294967295\n");
    }
    let ids = tried(b"many ranges", MEMORY, || {
        SubordinateIds::parse(&text, |_| None).0
    });
    assert_eq!(ids.share_of(1), 7);
}
