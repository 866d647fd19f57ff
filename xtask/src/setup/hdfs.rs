//! A Hadoop for tests of stores in HDFS. The package of an old Spark brings the servers of Hadoop 2.7, a NameNode and a
//! DataNode; later ones have Hadoop's client alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::python::{self, REMEDY};
use crate::paths::{Jdk, Paths};
use crate::process::output;
use crate::step::{Stamp, Step, Steps, fingerprint};

/// The package as pip takes it.
const PACKAGE: &str = "pyspark==2.4.8";
/// Its archive, and the check sum.
const ARCHIVE: (&str, &str) = (
    "pyspark-2.4.8.tar.gz",
    "3a19b71b8dc8dd91ebc943604a05e1ab01bce052456d42937035632d852d78dc",
);
/// What the package's program needs beside Python.
const TOOLS: [&str; 2] = ["setuptools==65.5.1", "wheel==0.45.1"];
/// Where the archive has the jars.
const JARS: &str = "pyspark-2.4.8/deps/jars";
/// Begins of the names of jars that are kept: Hadoop's servers, and what they load.
const KEPT: &[&str] = &[
    "apache-log4j-extras-",
    "commons-cli-",
    "commons-codec-",
    "commons-collections-",
    "commons-configuration-",
    "commons-io-",
    "commons-lang-",
    "commons-logging-",
    "guava-",
    "hadoop-annotations-",
    "hadoop-auth-",
    "hadoop-common-",
    "hadoop-hdfs-",
    "htrace-core-",
    "jackson-core-asl-",
    "jackson-mapper-asl-",
    "javax.servlet-api-",
    "javax.ws.rs-api-",
    "jcl-over-slf4j-",
    "jetty-",
    "log4j-",
    "netty-all-",
    "protobuf-java-",
    "slf4j-",
    "xercesImpl-",
];
const LIMIT: Duration = Duration::from_secs(1800);

/// Folder with the jars and the class that starts the servers.
#[must_use]
pub fn folder(paths: &Paths) -> PathBuf {
    paths.cache.join("hdfs")
}

/// Step: the jars and the class.
///
/// # Errors
/// When pip does not reach its index, or the compiler finds an error.
pub fn servers(paths: &Paths) -> Result<()> {
    let folder = folder(paths);
    let source = paths.root.join("tests/fixture/hdfs");
    let stamp = Stamp::new(
        paths.cache.join("stamp/hdfs"),
        format!("{PACKAGE}\n{KEPT:?}\n{}", fingerprint(&[&source])?),
    );
    Steps::new(1).step(
        "HDFS for the tests (Hadoop 2.7, of an old package of PySpark: 220 MB are fetched, 25 MB kept)",
        paths.logs().join("hdfs.log"),
        REMEDY,
        || stamp.valid() && folder.join("jars").is_dir(),
        |step| {
            stamp.remove()?;
            let jars = folder.join("jars");
            if !jars.is_dir() {
                fetch(&folder, &jars, step)?;
            }
            compile(&folder, &jars, &source, step)?;
            stamp.write()
        },
    )
}

/// Fetches the archive and keeps the jars that are needed.
fn fetch(folder: &Path, jars: &Path, step: &mut Step) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let (archive, unpacked) = (folder.join("archive"), folder.join("unpacked"));
    fs::create_dir_all(&unpacked)?;
    // pip runs the package's own program for its description, which no longer works with what pip fetches for it.
    let tools = folder.join("tools");
    python::make(step, &tools)?;
    let python = tools.join("bin/python");
    python::install(step, &python, TOOLS)?;
    let mut pip = Command::new(python);
    pip.args([
        "-m",
        "pip",
        "download",
        "--no-input",
        "--disable-pip-version-check",
    ])
    .args(["--no-cache-dir", "--progress-bar=off", "--no-deps"])
    .args(["--no-build-isolation", "--no-binary", ":all:", "--dest"])
    .arg(&archive)
    .arg(PACKAGE);
    step.run(&mut pip, LIMIT)?;
    let archive = archive.join(ARCHIVE.0);
    let sum = output(Command::new("sha256sum").arg(&archive))?;
    ensure!(
        sum.split_whitespace().next() == Some(ARCHIVE.1),
        "{} is another archive: {sum}",
        archive.display()
    );
    let mut tar = Command::new("tar");
    tar.arg("-xzf")
        .arg(&archive)
        .arg("-C")
        .arg(&unpacked)
        .arg(JARS);
    step.run(&mut tar, LIMIT)?;
    let all = unpacked.join(JARS);
    for entry in fs::read_dir(&all).with_context(|| format!("cannot list {}", all.display()))? {
        let entry = entry?;
        let name = entry.file_name().into_string().unwrap_or_default();
        if !KEPT.iter().any(|kept| name.starts_with(kept)) {
            fs::remove_file(entry.path())?;
        }
    }
    fs::rename(&all, jars)?;
    for gone in ["archive", "unpacked", "tools"] {
        fs::remove_dir_all(folder.join(gone))?;
    }
    Ok(())
}

/// Compiles the class that starts the servers.
fn compile(folder: &Path, jars: &Path, source: &Path, step: &mut Step) -> Result<()> {
    let classes = folder.join("classes");
    // Pages of the servers, of which there are none.
    for page in ["hdfs", "datanode", "static"] {
        fs::create_dir_all(classes.join("webapps").join(page))?;
    }
    let mut javac = Command::new(Jdk::main()?.tool("javac"));
    javac
        .args([
            "--release",
            "8",
            "-encoding",
            "UTF-8",
            "-nowarn",
            "-proc:none",
            "-cp",
        ])
        .arg(format!("{}/*", jars.display()))
        .arg("-d")
        .arg(&classes)
        .arg(source.join("SmallHdfs.java"));
    step.run(&mut javac, LIMIT)
}
