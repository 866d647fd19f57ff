//! `smtt-ctl memory`: where the memory of each executor is, with a bar, its control group, limits and peaks.

use std::fmt::Write as _;

use smtt_model::rows::{CgroupRow, Listing, MemoryPart, MemoryRow};
use smtt_model::sort::small::{sort_by, sort_by_key};
use smtt_model::state::part_text;
use smtt_model::units;

use super::advise::wrapped;
use super::args::Query;
use super::listing::no_match::no_match;
use super::listing::{hidden, objects, on, unfiltered};
use super::{Exit, Failure, Output, earlier, say};
use crate::client::Client;
use crate::table::cut;

/// Columns of a terminal of unknown width.
const WIDTH: usize = 80;
/// Child processes that are shown, the largest first.
const CHILDREN: usize = 10;
/// Bytes below which a part that fluctuates is not shown.
const SMALL: i64 = 1 << 16;

/// Letter of each part in the bar.
const LETTERS: &[(&str, char)] = &[
    ("heap_storage", 'S'),
    ("heap_execution", 'E'),
    ("heap_other_objects", 'o'),
    ("heap_free", '.'),
    ("off_heap_storage", 's'),
    ("off_heap_execution", 'e'),
    ("direct_buffers", 'D'),
    ("metaspace", 'M'),
    ("code_cache", 'C'),
    ("thread_stacks", 'T'),
    ("native_not_explained", '?'),
    ("heap_and_native", '?'),
    ("since_examined", '+'),
    ("mapped_files", 'F'),
    ("shared_memory", 'H'),
];

/// Text of each part of a control group.
const GROUP: &[(&str, &str)] = &[
    ("jvm", "JVM, anonymous"),
    ("python_workers", "Python workers, anonymous"),
    ("child_jvms", "child JVMs, anonymous"),
    ("other_children", "other children, anonymous"),
    ("other_processes", "other processes, anonymous"),
    (
        "counted_in_several_processes",
        "shared after a fork: counted in several",
    ),
    ("page_cache", "page cache"),
    ("shared_memory", "shared memory"),
    ("kernel", "kernel"),
    ("not_explained", "not explained"),
];

/// Requests the memory and prints it.
pub(super) async fn run(
    client: &Client,
    output: Output,
    query: &Query,
    peaks: bool,
) -> Result<Exit, Failure> {
    let limit = query.rows(output.rows);
    let question = query.filter.ordered(query.sort.clone(), limit);
    let listing: Listing<MemoryRow> =
        earlier::ask(client, "/v1/memory", &question, Some(query)).await?;
    let is_filtered = question != unfiltered(&question);
    if output.is_data() {
        objects(client, query, &listing, output)?;
    } else if listing.rows.is_empty() {
        if !is_filtered {
            output.text("no executors\n")?;
        }
    } else {
        let texts: Vec<String> = listing
            .rows
            .iter()
            .map(|row| text(row, peaks, output))
            .collect();
        let hidden = hidden(listing.rows.len(), listing.rows_total, 0);
        let left_out = earlier::left_out(&listing.summary);
        output.text(&(texts.join("\n") + &hidden + &left_out))?;
    }
    if listing.rows.is_empty() && is_filtered {
        return Err(no_match(client, "/v1/memory", "executors", &question).await);
    }
    let unread = |row: &&MemoryRow| row.resident_bytes.is_none();
    if listing.rows.iter().any(|row| unread(&row)) {
        say("the memory of some executors was not read yet");
        return Ok(Exit::Degraded);
    }
    Ok(Exit::Fine)
}

fn signed(bytes: i64) -> String {
    let text = units::bytes(bytes.unsigned_abs());
    if bytes < 0 { format!("-{text}") } else { text }
}

/// One executor.
fn text(row: &MemoryRow, peaks: bool, output: Output) -> String {
    let width = output.width.unwrap_or(WIDTH);
    let mut text = String::new();
    let app = row.who.application().label();
    let app = app.as_deref().unwrap_or("?");
    let id = row.who.executor_id.as_deref().unwrap_or("?");
    let head = format!(
        "executor {id} of {app}, process {}{}, {}",
        row.who.pid,
        on(row.who.worker.as_deref()) + &earlier::mark(row.who.earlier.as_ref()),
        row.state.name()
    );
    if output.styled {
        let _ = writeln!(text, "\u{1b}[1m{head}\u{1b}[0m");
    } else {
        let _ = writeln!(text, "{head}");
    }
    let Some(resident) = row.resident_bytes else {
        text.push_str("  its memory was not read\n");
        return text;
    };
    division(&mut text, row, resident, width, "ago");
    if peaks {
        peaks_text(&mut text, row);
    }
    text
}

/// The parts of `resident` bytes, the children, the control group and the limits of one executor. `after` stands after
/// an age.
pub(super) fn division(
    text: &mut String,
    row: &MemoryRow,
    resident: u64,
    width: usize,
    after: &str,
) {
    let divided = row.examined_age_ns.map_or_else(
        || "not divided: the marker has not reported the parts".to_owned(),
        |age| format!("divided {} {after}", units::duration(age)),
    );
    let resident_bytes = units::bytes(resident);
    prose(
        text,
        &format!("{resident_bytes} resident, {divided}"),
        width,
    );
    let _ = writeln!(
        text,
        "  [{}]",
        bar(&row.parts, width.saturating_sub(5).min(100))
    );
    let mut lines: Vec<[String; 4]> = Vec::new();
    for part in &row.parts {
        let fluctuates = part.name == "since_examined";
        if part.bytes == 0 || fluctuates && part.bytes.abs() < SMALL {
            continue;
        }
        let name = part_text(&part.name);
        let note = match part.name.as_str() {
            "heap_storage" | "heap_execution" => ", by Spark",
            "thread_stacks" => "",
            _ if fluctuates && part.bytes < 0 => ", given back",
            _ => "",
        };
        let threads = row.threads.filter(|_| part.name == "thread_stacks");
        let threads = threads.map_or_else(String::new, |count| format!(" of {count} threads"));
        lines.push([
            letter(part).to_string(),
            format!("{name}{threads}{note}"),
            signed(part.bytes),
            percent(part.bytes, resident),
        ]);
    }
    table(text, &lines, width);
    children(text, row, width);
    if let Some(group) = &row.cgroup {
        group_text(text, group, width);
    }
    limits(text, row, width);
}

/// A sentence, in lines of at most `width` columns.
fn prose(text: &mut String, line: &str, width: usize) {
    for line in wrapped(line, width, 2) {
        let _ = writeln!(text, "{line}");
    }
}

fn percent(bytes: i64, of: u64) -> String {
    if of == 0 {
        return String::new();
    }
    units::share(bytes as f64 / of as f64)
}

fn letter(part: &MemoryPart) -> char {
    let found = LETTERS.iter().find(|(name, _)| *name == part.name);
    found.map_or('#', |(_, letter)| *letter)
}

/// A bar of `width` letters: each part has as many as its share, the largest rests are rounded up.
fn bar(parts: &[MemoryPart], width: usize) -> String {
    let bytes = |part: &MemoryPart| part.bytes.max(0) as f64;
    let sum: f64 = parts.iter().map(bytes).sum();
    if sum <= 0.0 {
        return " ".repeat(width);
    }
    let exact = |part| bytes(part) / sum * width as f64;
    let mut lengths: Vec<usize> = parts.iter().map(|part| exact(part) as usize).collect();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    let rest = |at: &usize| exact(&parts[*at]) - exact(&parts[*at]).floor();
    sort_by(&mut order, |left, right| rest(right).total_cmp(&rest(left)));
    let missing = width.saturating_sub(lengths.iter().sum());
    for at in order.into_iter().take(missing) {
        lengths[at] += 1;
    }
    let letters = parts.iter().zip(lengths);
    letters
        .flat_map(|(part, length)| std::iter::repeat_n(letter(part), length))
        .collect()
}

/// Lines with a letter, a text that takes what is left, and two numbers on the right.
fn table(text: &mut String, lines: &[[String; 4]], width: usize) {
    let longest = lines
        .iter()
        .map(|line| line[1].chars().count())
        .max()
        .unwrap_or(0);
    let name = longest.min(width.saturating_sub(28));
    for [letter, what, bytes, share] in lines {
        for (at, what) in wrapped(what, name, 0).iter().enumerate() {
            let line = match at {
                0 => format!("  {letter} {what:<name$}  {bytes:>11}  {share:>7}"),
                _ => format!("    {what}"),
            };
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
}

fn children(text: &mut String, row: &MemoryRow, width: usize) {
    if row.children.is_empty() && row.children_unread == 0 {
        return;
    }
    let sizes = row.children.iter().map(|child| child.resident_bytes);
    let all = sizes.fold(0, u64::saturating_add);
    let count = row
        .children_unread
        .saturating_add(row.children.len() as u64);
    let all = units::bytes(all);
    let line =
        format!("{count} child processes, {all} resident; pages shared after a fork count in each");
    prose(text, &line, width);
    let mut largest: Vec<_> = row.children.iter().collect();
    sort_by_key(&mut largest, |child| {
        std::cmp::Reverse(child.resident_bytes)
    });
    let line = |child: &&smtt_model::rows::ChildRow| {
        [
            " ".to_owned(),
            format!("{} {}", child.name, child.pid),
            units::bytes(child.resident_bytes),
            String::new(),
        ]
    };
    let lines: Vec<_> = largest.iter().take(CHILDREN).map(line).collect();
    table(text, &lines, width);
    if row.children.len() > CHILDREN {
        let _ = writeln!(
            text,
            "    and {} smaller ones",
            row.children.len() - CHILDREN
        );
    }
}

fn group_text(text: &mut String, group: &CgroupRow, width: usize) {
    let limit = group.limit_bytes.map_or_else(
        || ", no limit".to_owned(),
        |limit| format!(" of {}", units::bytes(limit)),
    );
    let peak = group.peak_bytes.map_or_else(String::new, |peak| {
        format!(", at most {}", units::bytes(peak))
    });
    let line = format!(
        "control group {}: {}{limit}{peak}",
        group.path,
        units::bytes(group.current_bytes)
    );
    prose(text, &line, width);
    let name = |part: &MemoryPart| {
        let found = GROUP.iter().find(|(name, _)| *name == part.name);
        found.map_or_else(|| part.name.clone(), |(_, text)| (*text).to_owned())
    };
    let shown = group.parts.iter().filter(|part| part.bytes != 0);
    let line = |part: &MemoryPart| {
        [
            " ".to_owned(),
            name(part),
            signed(part.bytes),
            percent(part.bytes, group.current_bytes),
        ]
    };
    table(text, &shown.map(line).collect::<Vec<_>>(), width);
}

fn limits(text: &mut String, row: &MemoryRow, width: usize) {
    if row.limits.is_empty() {
        return;
    }
    // As wide as before where there is room: three numbers take 38 columns with their margin.
    let name = width.saturating_sub(38).min(32);
    let _ = writeln!(
        text,
        "  {:<name$} {:>11} {:>11} {:>11}",
        "LIMIT", "", "USED", "FREE"
    );
    for limit in &row.limits {
        let note = if limit.is_default { " *" } else { "" };
        let _ = writeln!(
            text,
            "  {:<name$} {:>11} {:>11} {:>11}",
            cut(&format!("{}{note}", limit.name), name),
            units::bytes(limit.limit_bytes),
            limit
                .used_bytes
                .map_or_else(|| "-".to_owned(), units::bytes),
            limit.free_bytes.map_or_else(|| "-".to_owned(), signed),
        );
    }
    if row.limits.iter().any(|limit| limit.is_default) {
        text.push_str("  * Spark's default; not enforced by every cluster manager\n");
    }
}

/// The value of a metric of Spark's `ExecutorMetricType`.
pub(super) fn peak_value(name: &str, value: u64) -> String {
    if name.ends_with("Count") {
        units::count(value)
    } else if name.ends_with("Time") {
        units::duration(value.saturating_mul(1_000_000))
    } else {
        units::bytes(value)
    }
}

fn peaks_text(text: &mut String, row: &MemoryRow) {
    let _ = writeln!(text, "  {:<28} {:>11}  AGO", "PEAK", "");
    for (name, peak) in &row.peaks {
        let value = peak_value(name, peak.value);
        let _ = writeln!(
            text,
            "  {name:<28} {value:>11}  {}",
            units::duration(peak.age_ns)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, bytes: i64) -> MemoryPart {
        MemoryPart {
            name: name.to_owned(),
            bytes,
            estimated: false,
        }
    }

    #[test]
    fn every_part_has_a_letter() {
        let names = smtt_model::state::PARTS.iter().map(|(name, _)| *name);
        let letters = LETTERS.iter().map(|(name, _)| *name);
        assert!(names.eq(letters));
    }

    #[test]
    fn the_bar_has_a_letter_for_each_share() {
        let parts = [
            part("heap_storage", 50),
            part("since_examined", -7),
            part("direct_buffers", 25),
            part("metaspace", 24),
            part("unheard_of", 1),
        ];
        assert_eq!(bar(&parts, 8), "SSSSDDMM");
        assert_eq!(bar(&parts, 100).len(), 100);
        assert!(bar(&parts, 100).ends_with('#'));
        assert_eq!(bar(&[], 3), "   ");
    }

    #[test]
    fn every_part_is_listed_and_no_line_is_too_long() {
        let row = MemoryRow {
            resident_bytes: Some(3 << 30),
            parts: vec![
                part("heap_free", 3 << 30),
                part("since_examined", -(1 << 20)),
            ],
            cgroup: Some(CgroupRow {
                path: "x".repeat(200),
                parts: vec![part("page_cache", 5)],
                ..CgroupRow::default()
            }),
            ..MemoryRow::default()
        };
        for width in [40, 80, 120] {
            let output = Output {
                width: Some(width),
                ..Output::default()
            };
            let text = text(&row, true, output);
            assert!(text.contains("-1.0 MiB"), "{text}");
            assert!(
                text.lines()
                    .all(|line| line.chars().count() <= width.max(80)),
                "{text}"
            );
        }
    }
}
