//! Event logs of the corpus name no machine: not the one whose Spark wrote them, nor its user, folders and kernel.
//!
//! What a log tells of them stands in its environment and, as paths, in plans and properties. [`rewrite`] replaces it by
//! neutral names, changes nothing else in a line, and compresses the log as Spark does. `SMTT_BLESS=1` rewrites the logs of
//! the corpus that name a machine.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{Cursor, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_history::codec::Codec;
use xtask::paths::Paths;

use crate::live::names;

/// Properties of a log's environment, and the application's user, with neutral values.
const PROPERTIES: [(&str, &str); 7] = [
    ("java.io.tmpdir", "/tmp"),
    ("java.library.path", "/usr/lib"),
    ("os.version", "6.1"),
    ("user.home", "/var/lib/user"),
    ("user.name", "user"),
    ("user.timezone", "Etc/UTC"),
    ("User", "user"),
];
/// Neutral folders of the application, of Spark, of its configuration, of the JDK, and the one in which the driver ran.
const APPLICATION: &str = "/srv/application";
const SPARK: &str = "/opt/spark";
const CONFIGURATION: &str = "/etc/spark";
const JDK: &str = "/opt/java";
const STARTED: &str = "/srv/started";
/// Bytes of a block before it is compressed, as in Spark.
const BLOCK: usize = 32 << 10;

/// The folders that a log names, with the neutral ones; a folder stands before those that contain it.
fn folders(text: &str) -> Result<Vec<(String, &'static str)>> {
    let environment = text
        .lines()
        .find(|line| event(line) == "SparkListenerEnvironmentUpdate")
        .context("the log has no environment")?;
    let environment: Value = serde_json::from_str(environment)?;
    let property = |name: &str| environment["System Properties"][name].as_str();
    let classes = environment["Classpath Entries"].as_object();
    let classes = || classes.into_iter().flat_map(|all| all.keys());
    let core = |it: &String| Some(it.split_once("/jars/spark-core_")?.0.to_owned());
    let logs = environment["Spark Properties"]["spark.eventLog.dir"].as_str();
    let logs = logs.context("no folder of logs")?;
    let application = logs.trim_start_matches("file:").trim_end_matches("/logs");
    let application = format!("/{}", application.trim_start_matches('/'));
    let mut all = vec![
        (classes().find_map(core).context("no Spark")?, SPARK),
        (property("java.home").context("no JDK")?.to_owned(), JDK),
    ];
    let configuration = classes().find_map(|it| it.strip_suffix("/conf/"));
    if let Some(folder) = configuration {
        all.push((format!("{folder}/conf"), CONFIGURATION));
    }
    let started = property("user.dir").context("no folder of the driver")?;
    if started != application {
        all.push((started.to_owned(), STARTED));
    }
    all.push((application, APPLICATION));
    all.retain(|(folder, neutral)| folder != neutral);
    all.sort_by_key(|(folder, _)| std::cmp::Reverse(folder.len()));
    for (folder, _) in &all {
        ensure!(folder.matches('/').count() > 1, "{folder} is no folder");
    }
    Ok(all)
}

/// The event of a line.
fn event(line: &str) -> &str {
    let name = line.strip_prefix("{\"Event\":\"").unwrap_or_default();
    name.split('"').next().unwrap_or_default()
}

/// The line with another value of a field. All else stays as Spark wrote it: the order of fields, and how texts and numbers
/// are written.
fn replaced(line: &str, field: &str, value: &str) -> String {
    let start = format!("\"{field}\":\"");
    let Some((before, rest)) = line.split_once(&start) else {
        return line.to_owned();
    };
    let mut is_escaped = false;
    let end = rest.find(|it| {
        let is_end = it == '"' && !is_escaped;
        is_escaped = it == '\\' && !is_escaped;
        is_end
    });
    let after = &rest[end.unwrap_or(rest.len())..];
    format!("{before}{start}{value}{after}")
}

/// A text of a log without the machine.
fn neutral(text: &str, folders: &[(String, &str)]) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let mut line = Cow::from(line);
        for (folder, neutral) in folders {
            if line.contains(folder) {
                line = line.replace(folder, neutral).into();
            }
        }
        let is_about = ["EnvironmentUpdate", "ApplicationStart"]
            .iter()
            .any(|it| event(&line) == format!("SparkListener{it}"));
        for (field, value) in PROPERTIES.iter().filter(|_| is_about) {
            line = replaced(&line, field, value).into();
        }
        out.push_str(&line);
    }
    out
}

/// Files of a log, which is a file or a folder of files.
fn files(log: &Path) -> Vec<PathBuf> {
    if log.is_file() {
        return vec![log.to_owned()];
    }
    let all = names(log).into_iter().filter(|it| !it.starts_with('.'));
    all.map(|name| log.join(name)).collect()
}

fn name_of(file: &Path) -> &str {
    file.file_name().and_then(|it| it.to_str()).unwrap_or("")
}

/// The texts of a log's files.
fn texts(log: &Path) -> Result<Vec<(PathBuf, String)>> {
    let read = |file: PathBuf| -> Result<(PathBuf, String)> {
        let mut text = String::new();
        let bytes = fs::read(&file)?;
        let codec = Codec::of_file(name_of(&file), &File::open(&file)?);
        if !bytes.is_empty() {
            codec
                .read(Cursor::new(bytes), 0)
                .read_to_string(&mut text)?;
        }
        Ok((file, text))
    };
    files(log).into_iter().map(read).collect()
}

/// Writes a log without the machine to another place, or the same.
pub fn rewrite(from: &Path, to: &Path) -> Result<()> {
    let texts = texts(from)?;
    let all: String = texts.iter().map(|(_, text)| text.as_str()).collect();
    let folders = folders(&all)?;
    let is_long = name_of(from).starts_with("app-");
    for (file, text) in &texts {
        let text = neutral(text, &folders);
        let named = named(&text)?;
        ensure!(named.is_empty(), "{} names {named:?}", file.display());
        let to = to.join(file.strip_prefix(from)?);
        // Of a file the rest of its path is empty, which would end the name with a slash.
        let to = to.components().collect::<PathBuf>();
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(to, packed(name_of(file), &text, is_long)?)?;
    }
    Ok(())
}

/// A text as Spark's codecs write it. A long one is one frame of zstd, and small: Spark ends a frame each time that it
/// flushes the log.
fn packed(name: &str, text: &str, is_long: bool) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    if text.is_empty() {
        return Ok(out);
    }
    match Codec::of(name) {
        Codec::Plain => out.extend(text.as_bytes()),
        Codec::Zstd if is_long => out = zstd::encode_all(text.as_bytes(), 19)?,
        Codec::Zstd => {
            for part in flushed(text) {
                out.extend(zstd::encode_all(part.as_bytes(), 1)?);
            }
        }
        // Spark's lz4 does not flush.
        Codec::Lz4 => {
            for block in text.as_bytes().chunks(BLOCK) {
                lz4_block(block, &mut out);
            }
            lz4_block(&[], &mut out);
        }
        Codec::Snappy => {
            out.extend(b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01");
            let parts = flushed(text).into_iter();
            for block in parts.flat_map(|it| it.as_bytes().chunks(BLOCK)) {
                let packed = snap::raw::Encoder::new().compress_vec(block)?;
                out.extend(u32::try_from(packed.len())?.to_be_bytes());
                out.extend(packed);
            }
        }
    }
    Ok(out)
}

/// The parts of a text after each of which Spark flushes the log. Some events wait for the next one.
fn flushed(text: &str) -> Vec<&str> {
    let waits = |line: &str| {
        let name = event(line).trim_start_matches("SparkListener");
        let others = [
            "EnvironmentUpdate",
            "StageExecutorMetrics",
            "StageSubmitted",
        ];
        name.starts_with("Task") || others.contains(&name)
    };
    let (mut all, mut begin, mut end) = (Vec::new(), 0, 0);
    for line in text.split_inclusive('\n') {
        end += line.len();
        if !waits(line) || end == text.len() {
            all.push(&text[begin..end]);
            begin = end;
        }
    }
    all
}

/// A block of lz4-java: token (method and level), packed and plain length, check sum, data. One of no bytes ends a stream.
fn lz4_block(block: &[u8], out: &mut Vec<u8>) {
    const SEED: u32 = 0x9747_b28c;
    let compressed = lz4_flex::block::compress(block);
    let is_smaller = compressed.len() < block.len();
    let (method, packed) = if is_smaller {
        (0x20, &compressed[..])
    } else {
        (0x10, block)
    };
    let sum = match block.len() {
        0 => 0,
        _ => xxh32(block, SEED) & 0x0fff_ffff,
    };
    out.extend(b"LZ4Block");
    // The level of blocks of 32 KiB.
    out.push(method | 5);
    for number in [packed.len() as u32, block.len() as u32, sum] {
        out.extend(number.to_le_bytes());
    }
    out.extend(packed);
}

/// The check sum of lz4-java's blocks: xxHash of 32 bits.
fn xxh32(bytes: &[u8], seed: u32) -> u32 {
    const PRIMES: [u32; 5] = [
        0x9e37_79b1,
        0x85eb_ca77,
        0xc2b2_ae3d,
        0x27d4_eb2f,
        0x1656_67b1,
    ];
    let [one, two, three, four, five] = PRIMES;
    let word = |at: &[u8]| u32::from_le_bytes([at[0], at[1], at[2], at[3]]);
    let round = |lane: u32, word: u32| {
        let lane = lane.wrapping_add(word.wrapping_mul(two));
        lane.rotate_left(13).wrapping_mul(one)
    };
    let mut lanes = [
        seed.wrapping_add(one).wrapping_add(two),
        seed.wrapping_add(two),
        seed,
        seed.wrapping_sub(one),
    ];
    let stripes = bytes.chunks_exact(16);
    let rest = stripes.remainder();
    for stripe in stripes {
        for (lane, at) in lanes.iter_mut().zip(stripe.chunks_exact(4)) {
            *lane = round(*lane, word(at));
        }
    }
    let turned = lanes.iter().zip([1, 7, 12, 18]);
    let mut sum = match bytes.len() {
        0..16 => seed.wrapping_add(five),
        _ => turned.fold(0, |sum: u32, (lane, by)| {
            sum.wrapping_add(lane.rotate_left(by))
        }),
    };
    sum = sum.wrapping_add(bytes.len() as u32);
    let words = rest.chunks_exact(4);
    let last = words.remainder();
    for at in words {
        sum = sum.wrapping_add(word(at).wrapping_mul(three));
        sum = sum.rotate_left(17).wrapping_mul(four);
    }
    for byte in last {
        sum = sum.wrapping_add(u32::from(*byte).wrapping_mul(five));
        sum = sum.rotate_left(11).wrapping_mul(one);
    }
    sum = (sum ^ (sum >> 15)).wrapping_mul(two);
    sum = (sum ^ (sum >> 13)).wrapping_mul(three);
    sum ^ (sum >> 16)
}

/// What a text names of a machine: folders of users and of tests, kernels of this kind of machine, and this machine itself.
fn named(text: &str) -> Result<Vec<String>> {
    let paths = Paths::find()?;
    let of_kernel = |name: &str| -> Result<String> {
        let file = format!("/proc/sys/kernel/{name}");
        Ok(fs::read_to_string(file)?.trim().to_owned())
    };
    let mut all = ["-fc-", "/root", "/work", "/home/", "/tmp/smtt-"]
        .map(str::to_owned)
        .to_vec();
    for path in [&paths.cache, &paths.root, &paths.target] {
        all.push(path.display().to_string());
    }
    all.push(of_kernel("osrelease")?);
    // A host's name may be a part of a word: it is a whole text, or the host of an address.
    let host = of_kernel("hostname")?;
    if host != "localhost" {
        all.extend([
            format!("\"{host}\""),
            format!("\"{host}:"),
            format!("//{host}:"),
            format!("//{host}/"),
            format!("@{host}:"),
        ]);
    }
    all.retain(|it| text.contains(it));
    Ok(all)
}

#[test]
fn logs_of_the_corpus_name_no_machine() -> Result<()> {
    let corpus = Paths::find()?.root.join("tests/corpus");
    // What older versions' applications write replaces the logs anyway.
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let is_blessing = is_set("SMTT_BLESS") && !is_set("SMTT_OLDER_SPARKS");
    let (mut errors, mut logs) = (Vec::new(), 0);
    let versions = names(&corpus.join("event_logs")).into_iter();
    let versions = versions.map(|version| format!("event_logs/{version}"));
    for version in versions.chain(["losses".to_owned()]) {
        for name in names(&corpus.join(&version)) {
            let log = corpus.join(&version).join(&name);
            let texts_of = |log: &Path| -> Result<String> {
                Ok(texts(log)?.into_iter().map(|(_, text)| text).collect())
            };
            let mut text = texts_of(&log)?;
            if is_blessing && neutral(&text, &folders(&text)?) != text {
                rewrite(&log, &log)?;
                text = texts_of(&log)?;
            }
            let found = named(&text)?;
            // What `rewrite` would replace.
            let is_neutral = neutral(&text, &folders(&text)?) == text;
            if !found.is_empty() || !is_neutral {
                errors.push(format!("{version}/{name} names a machine: {found:?}"));
            }
            let host = |line: &str| {
                Some(
                    line.split_once("\"Host\":\"")?
                        .1
                        .split('"')
                        .next()?
                        .to_owned(),
                )
            };
            let other = text.lines().filter_map(host);
            let other = other.filter(|it| it != "127.0.0.1" && it != "localhost");
            errors.extend(
                other
                    .take(3)
                    .map(|it| format!("{version}/{name} names the host {it}")),
            );
            logs += 1;
        }
    }
    ensure!(errors.is_empty(), "{}", errors.join("\n"));
    ensure!(logs >= 11, "only {logs} logs");
    Ok(())
}

#[test]
fn a_rewritten_log_has_neutral_names_and_all_else() -> Result<()> {
    let log = |home: &str, spark: &str, java: &str, user: &str, kernel: &str| {
        let tasks =
            "{\"Event\":\"SparkListenerTaskEnd\",\"Time\":1.50E3,\"User\":\"x\"}\n".repeat(2_000);
        format!(
            "{{\"Event\":\"SparkListenerApplicationStart\",\"User\":\"{user}\",\"Name\":\"a \\\"b\"}}\n\
             {{\"Event\":\"SparkListenerEnvironmentUpdate\",\"JVM Information\":{{\"Java Home\":\"{java}\"}},\
             \"Spark Properties\":{{\"spark.eventLog.dir\":\"file://{home}/logs\"}},\
             \"System Properties\":{{\"java.home\":\"{java}\",\"user.dir\":\"{home}\",\"user.name\":\"{user}\",\
             \"os.version\":\"{kernel}\",\"java.library.path\":\"/usr/lib\"}},\
             \"Classpath Entries\":{{\"{spark}/jars/spark-core_2.12-3.4.4.jar\":\"System Classpath\"}}}}\n{tasks}\
             {{\"Event\":\"SparkListenerJobEnd\",\"path\":\"{home}/files/a\"}}\n"
        )
    };
    let folder = tempfile::tempdir()?;
    let of_machine = log(
        "/scratch/a",
        "/scratch/cache/spark",
        "/usr/lib/jvm/17",
        "ann \\\"b\\\"",
        "6.8.0-31",
    );
    let expected = log(APPLICATION, SPARK, JDK, "user", "6.1");
    for name in [
        "app-1.zstd",
        "local-1.zstd",
        "local-1.lz4",
        "local-1.snappy",
        "local-1",
    ] {
        let (from, to) = (
            folder.path().join(name),
            folder.path().join("to").join(name),
        );
        fs::write(&from, packed(name, &of_machine, false)?)?;
        rewrite(&from, &to)?;
        let seen: String = texts(&to)?.into_iter().map(|(_, text)| text).collect();
        ensure!(seen == expected, "{name}: {}", &seen[..1_000]);
        let codec = Codec::of_file("", &File::open(&to)?);
        ensure!(codec == Codec::of(name), "{name}: {codec:?}");
    }
    // Its values are those of other implementations.
    ensure!(xxh32(b"", 0) == 0x02cc_5d05);
    ensure!(xxh32(b"abc", 0) == 0x32d1_53ff);
    ensure!(xxh32(b"Nobody inspects the spammish repetition", 0) == 0xe229_3b2f);
    Ok(())
}
