//! The marker's contract in Java: `Contract.java` and `FactForm.java`, made from `smtt-common`.
//!
//! `smtt-common` is the only source of a shared value. Each word and string of a fact has a constant that names the
//! fact and the place, so Java writes it to the right place in any order of calls.

use std::fmt::Write as _;
use std::fs;
use std::mem::offset_of;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use smtt_common::context::{
    Access, Activity, HEADER_SIZE, HOT_ACCESS_SHIFT, HOT_ACTIVITY_SHIFT, HOT_FIELD_MASK,
    HOT_RDD_SHIFT, HOT_REGION_SHIFT, Header, HeapAddresses, Region, SLOT_COUNT, SLOT_FREE,
    SLOT_IN_USE, SLOT_SIZE, Slot,
};
use smtt_common::event::marker::{
    BLOCK_ARRAY, BLOCK_ON_HEAP, BLOCK_SAMPLED, BLOCK_SERIALIZED, BLOCK_WITHOUT_TASK,
    CONSUMER_ESTIMATED, EXHAUSTED_UNCAUGHT, NO_ADDRESS, PAGE_ACTIVITY_SHIFT, PAGE_ON_HEAP,
    RANGES_PER_BLOCK, RANGES_PER_FACT, REPORTED_AGAIN, outcome, storage_level,
};
use smtt_common::event::memory::{
    FIGURE_AGE_SHIFT, MEMORY_EXAMINED, MemoryFigure, OVERHEAD_IS_DEFAULT, PEAK_METRICS, PeakMetric,
};
use smtt_common::event::used::{BEGUN_LATE, Helper};
use smtt_common::event::{Kind, MARKER_FACTS, PAYLOAD_MAX, Schema};

/// Folder of the marker's classes.
const CLASSES: &str = "smtt-marker/java/io/smtt/marker";
/// Added to the place of a string in its constant, which distinguishes it from a word.
const STRING: u16 = 0x80;

/// The generated files and their expected contents.
#[must_use]
pub fn files(root: &Path) -> [(PathBuf, String); 2] {
    let folder = root.join(CLASSES);
    [
        (folder.join("Contract.java"), contract()),
        (folder.join("FactForm.java"), fact_form()),
    ]
}

/// Refuses generated files that differ from `smtt-common`.
///
/// # Errors
/// When a file differs; names the first one.
pub fn check(root: &Path) -> Result<()> {
    for (path, wanted) in files(root) {
        let written =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(
            written == wanted,
            "{} is not what smtt-common says: run `cargo xtask tidy`",
            path.display()
        );
    }
    Ok(())
}

/// Writes the constants of one Java class.
struct Constants(String);

impl Constants {
    fn group(&mut self, about: &str) {
        let _ = writeln!(self.0, "\n    // {about}");
    }

    fn int(&mut self, name: &str, value: impl TryInto<i32, Error: std::fmt::Debug>) {
        let value = value.try_into().expect("fits into a Java int");
        let _ = writeln!(self.0, "    static final int {name} = {value};");
    }

    fn text(&mut self, name: &str, value: &str) {
        let _ = writeln!(self.0, "    static final String {name} = \"{value}\";");
    }

    /// Texts by their index.
    fn texts(&mut self, name: &str, values: &[&str]) {
        let _ = writeln!(self.0, "    static final String[] {name} = {{");
        for value in values {
            let _ = writeln!(self.0, "        \"{value}\",");
        }
        let _ = writeln!(self.0, "    }};");
    }

    fn long(&mut self, name: &str, value: u64) {
        let _ = writeln!(self.0, "    static final long {name} = {value:#x}L;");
    }
}

/// Constants of Rust under their own names.
macro_rules! named {
    ($java:ident.$kind:ident: $($name:ident),+ $(,)?) => {
        $($java.$kind(stringify!($name), $name);)+
    };
}

/// Constants of a module, with a prefix to their names.
macro_rules! of_module {
    ($java:ident.$kind:ident: $before:literal, $module:ident: $($name:ident),+ $(,)?) => {
        $($java.$kind(concat!($before, "_", stringify!($name)), $module::$name);)+
    };
}

/// Offsets of every field of a struct; a field that is missing here does not compile.
macro_rules! offsets {
    ($java:ident, $before:literal, $type:ident: $($field:ident),+ $(; $($left_out:ident),+)?) => {
        let $type { $($field: _,)+ $($($left_out: _),+)? } = $type::default();
        $($java.int(&upper(&[$before, stringify!($field)]), offset_of!($type, $field));)+
    };
}

/// Codes of a coded type, by their names.
macro_rules! codes {
    ($java:ident, $before:literal, $type:ident) => {
        for code in $type::ALL {
            $java.int(&upper(&[$before, code.name().unwrap_or_default()]), code.0);
        }
    };
}

/// The name of a Java constant.
fn upper(parts: &[&str]) -> String {
    parts.join("_").replace(' ', "_").to_uppercase()
}

fn contract() -> String {
    let mut java = Constants(format!(
        "{HEAD}
/**
 * What the marker shares with the kernel side and the daemon. Only constants, which the compiler copies to where they are
 * used, but for the names of activities.
 */
final class Contract {{
    private Contract() {{}}
"
    ));
    java.group("Slot file: sizes, and the state of a slot.");
    named!(java.int: HEADER_SIZE, SLOT_SIZE, SLOT_COUNT, SLOT_FREE, SLOT_IN_USE);
    java.group("Slot file: offsets in the header.");
    offsets!(java, "header", Header: magic, version, slot_size, slot_count, pid, resync_request, resync_done, slots_refused,
        facts_without_slot, address, heap_addresses, collections_begun, collections_ended, addresses_epoch,
        collection_ended_ns, addresses_told_ns);
    java.group("Slot file: offsets in a slot.");
    offsets!(java, "slot", Slot: hot, task_attempt_id, stage_id, stage_attempt, partition, attempt_number, tid, generation,
        job_id, state, facts_emitted; heap, reserved);
    java.group("Hot word: places of its fields.");
    named!(java.int: HOT_ACTIVITY_SHIFT, HOT_ACCESS_SHIFT, HOT_REGION_SHIFT, HOT_RDD_SHIFT);
    named!(java.long: HOT_FIELD_MASK);
    java.group("Hot word: activities.");
    codes!(java, "activity", Activity);
    let names: Vec<_> = (0..).map_while(|code| Activity(code).name()).collect();
    assert_eq!(names.len(), Activity::ALL.len(), "a code has no name");
    java.texts("ACTIVITY_NAMES", &names);
    java.group("Hot word: accesses and regions.");
    codes!(java, "access", Access);
    codes!(java, "region", Region);
    java.group("What is known of addresses on the heap.");
    codes!(java, "heap_addresses", HeapAddresses);
    java.group("Facts: flags, codes and bounds.");
    named!(java.long: REPORTED_AGAIN, BLOCK_ON_HEAP, BLOCK_SERIALIZED, BLOCK_WITHOUT_TASK, BLOCK_SAMPLED, BLOCK_ARRAY,
        PAGE_ON_HEAP, CONSUMER_ESTIMATED, NO_ADDRESS, BEGUN_LATE, EXHAUSTED_UNCAUGHT);
    named!(java.int: PAGE_ACTIVITY_SHIFT, PAYLOAD_MAX, RANGES_PER_FACT, RANGES_PER_BLOCK);
    of_module!(java.long: "OUTCOME", outcome: SUCCESS, FAILED, KILLED);
    of_module!(java.long: "STORAGE_LEVEL", storage_level: DISK, MEMORY, OFF_HEAP, DESERIALIZED);
    of_module!(java.int: "STORAGE_LEVEL", storage_level: REPLICATION_SHIFT);
    java.group("Threads that help a task.");
    codes!(java, "helper", Helper);
    java.group("Figures of memory: form, flags and codes.");
    named!(java.int: FIGURE_AGE_SHIFT, PEAK_METRICS);
    named!(java.long: MEMORY_EXAMINED, OVERHEAD_IS_DEFAULT);
    codes!(java, "memory", MemoryFigure);
    java.group("Peaks: codes, and Spark's names in the order of the codes, from 1 on.");
    codes!(java, "peak", PeakMetric);
    java.text(
        "PEAK_NAMES",
        &PeakMetric::ALL
            .iter()
            .filter_map(|metric| metric.name())
            .collect::<Vec<_>>()
            .join(" "),
    );
    java.group("Facts: bit that tells the constant of a string from that of a word.");
    java.int("STRING", STRING);
    for fact in MARKER_FACTS {
        java.group(&format!("Words and strings of {}.", fact.entry));
        let words = fact.words.iter().zip(0..);
        let strings = fact.strings.iter().zip(STRING..);
        for (name, place) in words.chain(strings) {
            let constant = fact.kind.0 << 8 | place;
            let _ = writeln!(
                java.0,
                "    static final int {} = {constant:#06x};",
                upper(&[kind(fact.kind), name])
            );
        }
    }
    java.0.push_str("}\n");
    java.0
}

fn fact_form() -> String {
    let mut java = format!(
        "{HEAD}
/** The form of every fact: words in order, then (where marked) address ranges, then strings, each with its limit in bytes. */
enum FactForm {{
"
    );
    let row = |fact: &Schema| {
        let mut limits = String::new();
        for limit in fact.string_limits {
            let _ = write!(limits, ", {limit}");
        }
        format!(
            "    {}({}, \"{}\", \"{}\", {}, \"{}\"{limits})",
            upper(&[kind(fact.kind)]),
            fact.kind.0,
            fact.entry,
            fact.words.join(" "),
            fact.ranges,
            fact.strings.join(" ")
        )
    };
    java.push_str(&MARKER_FACTS.iter().map(row).collect::<Vec<_>>().join(",\n"));
    java.push_str(BODY);
    for fact in MARKER_FACTS {
        let _ = writeln!(
            java,
            "            case {}: Native.{}(address, length); break;",
            fact.kind.0, fact.entry
        );
    }
    java.push_str(
        "            default: throw new IllegalStateException(entry);\n        }\n    }\n}\n",
    );
    java
}

/// The name of a fact's kind.
fn kind(kind: Kind) -> &'static str {
    kind.name().unwrap_or_default()
}

const HEAD: &str = "package io.smtt.marker;

// Generated from smtt-common by `cargo xtask tidy`; a test compares.
";

/// The part that is the same in every form.
const BODY: &str = ";

    final int kind;
    final String entry;
    final String[] words;
    final boolean ranges;
    final String[] strings;
    /** Bytes of each string, at most. */
    final int[] limits;

    FactForm(int kind, String entry, String words, boolean ranges, String strings, int... limits) {
        this.kind = kind;
        this.entry = entry;
        this.words = words.split(\" \");
        this.ranges = ranges;
        this.strings = strings.isEmpty() ? new String[0] : strings.split(\" \");
        this.limits = limits;
    }

    /** Place of the word that a constant of {@link Contract} names; refuses a constant of another fact. */
    int placeOfWord(int word) {
        return place(word, kind << 8, words.length);
    }

    /** Place of the string that a constant names. */
    int placeOfString(int string) {
        return place(string, kind << 8 | Contract.STRING, strings.length);
    }

    private int place(int constant, int first, int count) {
        int place = constant - first;
        if (place < 0 || place >= count) {
            throw new IllegalArgumentException(\"0x\" + Integer.toHexString(constant) + \" belongs to another fact than \" + entry);
        }
        return place;
    }

    /** The constant of the word at a place. */
    int word(int place) {
        return kind << 8 | place;
    }

    /** The constant of the string at a place. */
    int string(int place) {
        return kind << 8 | Contract.STRING | place;
    }

    /** Calls the entry point, where a probe may sit. */
    void call(long address, int length) {
        switch (kind) {
";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::paths::Paths;

    #[test]
    fn the_java_contract_is_what_smtt_common_says() {
        let root = Paths::find().expect("finds the checkout").root;
        if std::env::var_os("SMTT_BLESS").is_some() {
            for (path, text) in files(&root) {
                fs::write(&path, text).expect("it can be written");
            }
        }
        check(&root).expect("is up to date");
    }

    #[test]
    fn names_are_unique_and_values_are_those_of_the_layout() {
        let text = contract();
        let lines: Vec<&str> = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("static final "))
            .collect();
        let names: BTreeSet<&str> = lines
            .iter()
            .filter_map(|line| line.split(' ').nth(1))
            .collect();
        assert_eq!(names.len(), lines.len(), "a name stands twice");
        for expected in [
            "int SLOT_FACTS_EMITTED = 48;",
            "int HEADER_ADDRESSES_TOLD_NS = 104;",
            "int ACTIVITY_HASH_GROW = 16;",
            "long HOT_FIELD_MASK = 0xffffffL;",
            "long BLOCK_ARRAY = 0x20L;",
            "int BLOCK_STORED_RDD_ID = 0x0800;",
            "int BLOCK_STORED_RANGE_COUNT = 0x0807;",
            "int BLOCK_STORED_BLOCK_ID = 0x0880;",
            "int HEAP_ADDRESSES_FOLLOWED_SLOWLY = 2;",
        ] {
            assert!(lines.contains(&expected), "{expected} is missing:\n{text}");
        }
    }
}
