//! Parts as a driver writes them, with the events of a log.

use std::fs;
use std::path::Path;

use anyhow::Result;
use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::columns::META;
use smtt_store::history::parts;
use smtt_store::history::write::Writer;

/// Writes the events of a log as so many parts. Tasks are events here, too.
pub fn write(folder: &Path, log: &Path, count: usize, has_last: bool) -> Result<()> {
    fs::create_dir_all(folder)?;
    let text = fs::read_to_string(log)?;
    let lines: Vec<&str> = text.lines().collect();
    let each = lines.len().div_ceil(count);
    let mut number = 0;
    for (at, events) in lines.chunks(each).enumerate() {
        let last = has_last && at + 1 == count;
        let said =
            format!(r#"{{"tasks":0,"taskSql":0,"lostTasks":0,"lostEvents":0,"last":{last}}}"#);
        let mut batch = Batch::new(&META);
        batch.push(&[Cell::Text(parts::PART), Cell::Text("1"), Cell::Text(&said)]);
        for event in events {
            number += 1;
            let id = number.to_string();
            batch.push(&[Cell::Text(parts::EVENT), Cell::Text(&id), Cell::Text(event)]);
        }
        let path = parts::path(folder, META.name, at as u64 + 1);
        let name = path
            .file_name()
            .and_then(|it| it.to_str())
            .unwrap_or_default();
        let mut writer = Writer::create(&META, folder, "test", &[])?.named(name);
        writer.write(&batch)?;
        writer.finish()?;
    }
    Ok(())
}
