//! A log of real Spark that grows and is followed gives, at each of its lengths, the tables of an import of all of it.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use smtt_history::import::{Admission, Before, Imported, follow, import};
use smtt_history::log::Bounds;
use smtt_store::history::columns::TABLES;
use smtt_store::history::place;

use crate::application::Ended;

/// Lengths at which the log is looked at.
const LOOKS: usize = 12;

fn tables(imported: &Imported) -> Vec<Option<Vec<u8>>> {
    let read = |name| fs::read(place::table(&imported.folder, name)).ok();
    TABLES.iter().map(|table| read(table.name)).collect()
}

/// Lengths at which a log is cut: after a line and within one in turn, and at last all of it.
fn lengths(log: &[u8]) -> Vec<usize> {
    let first = log.len() / 10;
    let cut = |look: usize| {
        // Within a line, wherever it is: the distance is no divisor of anything.
        let at = first + (log.len() - first) * look / LOOKS + look * 37 % 101;
        let line = log
            .get(at..)
            .and_then(|rest| rest.iter().position(|it| *it == b'\n'));
        let at = at
            + line
                .filter(|_| look.is_multiple_of(2))
                .map_or(0, |line| line + 1);
        at.min(log.len())
    };
    (0..LOOKS).map(cut).chain([log.len()]).collect()
}

/// Follows the application's log as it grows.
pub fn equals_imports(run: &Ended<'_>) -> Result<()> {
    let folder = run.lab.folder().join("followed");
    fs::create_dir(&folder)?;
    let log = fs::read(&run.log)?;
    let name = run.log.file_name().and_then(|name| name.to_str());
    let name = name.context("a log without a name")?;
    let path = folder.join(format!("{name}.inprogress"));
    let any = Admission {
        name: None,
        replaces: true,
    };
    let (mut followed, mut written, mut looks) = (None, 0, 0);
    for length in lengths(&log) {
        let mut file = File::options().create(true).append(true).open(&path)?;
        file.write_all(&log[written..length])?;
        written = length;
        let whole = import(&folder.join("whole"), &path, Bounds::default(), &any);
        // The beginning of a compressed log may have no start of the application yet.
        let Ok(whole) = whole else { continue };
        looks += 1;
        ensure!(
            followed.is_some() || looks == 1,
            "the log is not followed at {length}"
        );
        let before = Before {
            followed: followed.take(),
            most: 256 << 20,
        };
        let done = follow(
            &folder.join("store"),
            &path,
            Bounds::default(),
            &any,
            before,
        )?;
        followed = done.1;
        ensure!(
            tables(&done.0) == tables(&whole),
            "the first {length} bytes of {}: other tables than those of an import",
            Path::new(name).display()
        );
    }
    ensure!(looks >= LOOKS / 2, "{looks} looks only");
    ensure!(
        followed.is_none(),
        "an application that has ended is still followed"
    );
    Ok(())
}
