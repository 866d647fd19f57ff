//! Names, order of removal, shares of users and disk space of a folder.

use super::removal::OLDEST;
use super::*;

const NONE_OPEN: BTreeMap<User, u64> = BTreeMap::new();

/// Shrinks a folder whose users have shares of their own; returns the number of removed segments.
fn shrink(folder: &mut Folder, bytes: u64, files: u64) -> io::Result<u64> {
    let shrunk = folder.shrink(bytes, files, &NONE_OPEN, |uid| uid)?;
    assert_eq!(shrunk.finish, None);
    Ok(shrunk.removed)
}

#[test]
fn a_name_that_an_executor_made_up_stays_below_the_folder() {
    for (text, name) in [
        ("app-20260101120000-0001", "app-20260101120000-0001"),
        ("../../etc", "..%2F..%2Fetc"),
        ("a/b=c%d e\n", "a%2Fb%3Dc%25d%20e%0A"),
        ("", "__HIVE_DEFAULT_PARTITION__"),
        ("Größe", "Größe"),
        ("\0", "%00"),
    ] {
        assert_eq!(escaped(text), name, "{text:?}");
    }
    let partition = partition(Some(1000), "/../..", "..");
    assert_eq!(
        partition,
        Path::new("uid=1000/application_id=%2F..%2F..").join("host=..")
    );
    assert_eq!(partition.components().count(), LEVELS);
    assert!(super::partition(None, "a", "h").starts_with("uid=__HIVE_DEFAULT_PARTITION__"));
    for long in ["/".repeat(5000), "x".repeat(5000), "ß".repeat(5000)] {
        let name = escaped(&long);
        assert!(name.len() <= 200, "{} bytes", name.len());
        assert_ne!(name, escaped(&format!("{long}y")));
    }
}

#[test]
fn segments_in_order_of_names_are_in_order_of_time() {
    let names = [
        segment_name(999, 7, 3),
        segment_name(1_700_000_000_000, 7, 1),
        segment_name(1_700_000_000_000, 7, 2),
    ];
    assert!(names.is_sorted());
}

#[test]
fn the_oldest_go_first_and_strangers_stay() -> io::Result<()> {
    let scratch = tempfile::tempdir()?;
    let (mut folder, removed) = Folder::take(scratch.path(), None)?;
    assert_eq!(removed, 0);
    let a = folder.partition(&partition(Some(0), "a", "h"))?;
    let b = folder.partition(&partition(Some(0), "b", "h"))?;
    for (within, number) in [(&a, 1), (&b, 2), (&b, 3)] {
        let segment = within.join(segment_name(number, 1, number));
        fs::write(&segment, [0; 100])?;
        folder.finished(&segment);
    }
    fs::write(b.join("mine.parquet"), [0; 5000])?;
    assert_eq!(folder.usage().files, 3);
    assert_eq!(shrink(&mut folder, u64::MAX, 2)?, 1);
    assert!(!a.exists(), "an empty partition goes too");
    assert_eq!(folder.usage().files, 2);
    assert_eq!(shrink(&mut folder, 0, u64::MAX)?, 2);
    assert!(b.join("mine.parquet").exists());
    assert_eq!(folder.usage().files, 0);
    Ok(())
}

#[test]
fn a_flood_of_one_user_removes_its_own_segments() -> io::Result<()> {
    let scratch = tempfile::tempdir()?;
    let (mut folder, _) = Folder::take(scratch.path(), None)?;
    let mut number = 0;
    let mut write = |folder: &mut Folder, uid: Option<u32>| -> io::Result<()> {
        number += 1;
        let within = folder.partition(&partition(uid, "a", "h"))?;
        let segment = within.join(segment_name(number, 1, 1));
        fs::write(&segment, [0; 5000])?;
        folder.finished(&segment);
        Ok(())
    };
    // Ids from 100,000 on belong to user 666.
    let share_of = |uid| if uid < 100_000 { uid } else { 666 };
    for _ in 0..20 {
        write(&mut folder, Some(1000))?;
    }
    write(&mut folder, None)?;
    for uid in 0..200 {
        write(&mut folder, Some(100_000 + uid % 10))?;
        folder.shrink(u64::MAX, 45, &NONE_OPEN, share_of)?;
    }
    let count = |folder: &Folder, uid: User| folder.users[&uid].files;
    assert_eq!((count(&folder, Some(1000)), count(&folder, None)), (20, 1));
    assert_eq!(folder.usage().files, 45);
    // Also by bytes, and after another start. The flood has the newest of its segments.
    drop(folder);
    let (mut folder, _) = Folder::take(scratch.path(), None)?;
    let bytes = folder.usage().bytes;
    assert!(
        folder
            .shrink(bytes - 5000, u64::MAX, &NONE_OPEN, share_of)?
            .removed
            > 0
    );
    assert_eq!((count(&folder, Some(1000)), count(&folder, None)), (20, 1));
    let names = |uid: User| -> io::Result<Vec<String>> {
        let all = list_segments(scratch.path())?.0.into_iter();
        Ok(all
            .filter(|found| user_above(&found.path, LEVELS) == uid)
            .map(|found| found.name)
            .collect())
    };
    assert_eq!(names(Some(100_009))?.last(), Some(&segment_name(221, 1, 1)));
    // A user above its even share gives way to others.
    folder.shrink(u64::MAX, 20, &NONE_OPEN, share_of)?;
    assert!((9..=10).contains(&count(&folder, Some(1000))));
    assert_eq!(names(Some(1000))?.last(), Some(&segment_name(20, 1, 1)));
    Ok(())
}

#[test]
fn disk_space_of_folders_and_blocks_counts() -> io::Result<()> {
    let scratch = tempfile::tempdir()?;
    let (mut folder, _) = Folder::take(scratch.path(), None)?;
    for number in 0..300 {
        let within = folder.partition(&partition(
            Some(number as u32 % 7),
            &format!("app-{number}"),
            "h",
        ))?;
        let segment = within.join(segment_name(number, 1, number));
        fs::write(&segment, "x")?;
        File::open(&segment)?.sync_all()?;
        folder.finished(&segment);
    }
    let on_disk = |path: &Path| -> io::Result<u64> {
        let mut bytes = 0;
        let mut folders = vec![path.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder)?.filter_map(Result::ok) {
                if entry.file_name().to_string_lossy().starts_with('.') {
                    continue;
                }
                let metadata = entry.metadata()?;
                bytes += metadata.blocks() * 512;
                if metadata.is_dir() {
                    folders.push(entry.path());
                }
            }
        }
        Ok(bytes)
    };
    let truth = on_disk(scratch.path())?;
    let counted = folder.usage().bytes;
    assert!(counted >= truth, "{counted} counted, {truth} on the disk");
    // Another start comes to the same.
    drop(folder);
    let (mut folder, _) = Folder::take(scratch.path(), None)?;
    assert!(folder.usage().bytes >= truth && folder.usage().files == 300);
    let removed = shrink(&mut folder, truth / 2, u64::MAX)?;
    assert!(removed >= 100, "{removed} removed");
    let left = on_disk(scratch.path())?;
    assert!(left <= truth / 2, "{left} of {truth} left");
    Ok(())
}

#[test]
fn more_segments_than_are_known_by_name_are_removed_in_their_order() -> io::Result<()> {
    let scratch = tempfile::tempdir()?;
    let (mut folder, _) = Folder::take(scratch.path(), None)?;
    let within = folder.partition(&partition(Some(0), "a", "h"))?;
    let count = OLDEST as u64 + 50;
    for number in 0..count {
        fs::write(within.join(segment_name(number, 1, 1)), "x")?;
    }
    drop(folder);
    let (mut folder, _) = Folder::take(scratch.path(), None)?;
    assert_eq!(folder.usage().files, count);
    assert_eq!(shrink(&mut folder, u64::MAX, 3)?, count - 3);
    let left: Vec<String> = list_segments(scratch.path())?
        .0
        .into_iter()
        .map(|f| f.name)
        .collect();
    let newest: Vec<String> = (count - 3..count).map(|n| segment_name(n, 1, 1)).collect();
    assert_eq!(left, newest);
    Ok(())
}

#[test]
fn a_folder_has_one_owner_and_leftovers_of_a_crash_go() -> io::Result<()> {
    let scratch = tempfile::tempdir()?;
    let path = scratch.path().join("new/trace");
    let (mut folder, _) = Folder::take(&path, None)?;
    let busy = Folder::take(&path, None).expect_err("it is taken");
    assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy);
    let inside = folder.partition(&partition(Some(0), "a", "h"))?;
    let name = segment_name(1, 1, 1);
    fs::write(inside.join(format!(".{name}{IN_PROGRESS}")), "half")?;
    fs::write(inside.join(&name), "whole")?;
    drop(folder);
    let (_, removed) = Folder::take(&path, None)?;
    assert_eq!(removed, 1);
    let (finished, unfinished) = list_segments(&path)?;
    assert_eq!((finished.len(), unfinished.len()), (1, 0));
    Ok(())
}

#[test]
fn open_segments_count_for_their_own_user() -> io::Result<()> {
    let scratch = tempfile::tempdir()?;
    let (mut folder, _) = Folder::take(scratch.path(), None)?;
    let mut write = |uid: u32, segments: u64| -> io::Result<()> {
        let within = folder.partition(&partition(Some(uid), "a", "h"))?;
        for number in 1..=segments {
            let segment = within.join(segment_name(number, 1, 1));
            fs::write(&segment, [0; 100_000])?;
            folder.finished(&segment);
        }
        Ok(())
    };
    write(1000, 3)?;
    write(1001, 3)?;
    write(666, 2)?;
    let bytes = folder.usage().bytes;
    let files = |folder: &Folder, uid: u32| folder.users.get(&Some(uid)).map_or(0, |own| own.files);
    // User 666 has more open than the others have at all: its finished segments go first.
    let open = BTreeMap::from([(Some(666), 500_000)]);
    let shrunk = folder.shrink(bytes + 300_000, u64::MAX, &open, |uid| uid)?;
    assert_eq!((shrunk.removed, shrunk.finish), (2, None));
    // It still has the most, so one of its open segments has to be finished.
    let shrunk = folder.shrink(bytes - 100_000, u64::MAX, &open, |uid| uid)?;
    assert_eq!((shrunk.removed, shrunk.finish), (0, Some(Some(666))));
    assert_eq!([666, 1000, 1001].map(|uid| files(&folder, uid)), [0, 3, 3]);
    // Open segments are no files.
    let shrunk = folder.shrink(u64::MAX, 5, &open, |uid| uid)?;
    assert_eq!((shrunk.removed, shrunk.finish), (1, None));
    Ok(())
}

#[test]
fn names_of_segments_take_bounded_memory_however_many_users_there_are() -> io::Result<()> {
    let scratch = tempfile::tempdir()?;
    let (mut folder, _) = Folder::take(scratch.path(), None)?;
    let long = "x".repeat(180);
    let (users, each) = (20, 800);
    for uid in 0..users {
        let within = folder.partition(&partition(Some(uid), &long, &long))?;
        for number in 0..each {
            fs::write(within.join(segment_name(number, uid, number)), "")?;
        }
    }
    drop(folder);
    let (mut folder, _) = Folder::take(scratch.path(), None)?;
    assert_eq!(folder.oldest.bytes(), 0, "nothing has to go yet");
    let mut files = u64::from(users) * each;
    for _ in 0..5 {
        files -= 60;
        assert_eq!(shrink(&mut folder, u64::MAX, files)?, 60);
        assert!(
            folder.oldest.bytes() <= 4 << 20,
            "{}",
            folder.oldest.bytes()
        );
    }
    // All users had the same and lost the same, their oldest ones.
    for (user, usage) in &folder.users {
        assert_eq!(usage.files, each - 15, "{user:?}");
    }
    let oldest = list_segments(scratch.path())?
        .0
        .into_iter()
        .map(|found| found.name)
        .next();
    assert_eq!(oldest, Some(segment_name(15, 0, 15)));
    Ok(())
}
