//! Stores of Google and Azure: the same checks as of S3, against servers of their protocols that are not ours, and what is
//! different about each protocol.
//!
//! fake-gcs-server answers for Google, behind `google.py`, which writes uploads and listings in the form that it knows.
//! Azurite answers for Azure.

use std::fs;
use std::io::{BufWriter, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use xtask::event_log::ID;
use xtask::http::get;
use xtask::paths::Paths;
use xtask::process::{free_port, wait_for};
use xtask::setup::objects;

use crate::lab::{Bucket, LIMIT, Proxy, SECRET, lab};

/// The account of Azure's server, and its key: [`SECRET`] as base64.
const ACCOUNT: &str = "smtt";
const KEY: &str = "dGhpcy1pcy10aGUtc2VjcmV0LWtleQ==";
/// Lets the tests do what they want in that account until 2099. The signature is that of the key.
const SIGNED: &str = "sv=2021-10-04&ss=b&srt=sco&sp=rwdlac&se=2099-01-01T00%3A00%3A00Z&sig=FdXnqNvaz0o8t2Gw4YHxNcKD3NZjJ5dyb1PRerh7ja4%3D";

/// Whose protocol a bucket has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cloud {
    S3,
    Google,
    Azure,
}

impl Cloud {
    pub const fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Google => "gs",
            Self::Azure => "az",
        }
    }

    /// Path of a request for a key, which may be a query about the bucket.
    pub fn path(self, bucket: &str, key: &str) -> String {
        match self {
            Self::Azure => {
                let (key, query) = key.split_once('?').unwrap_or((key, ""));
                let key = if key.is_empty() {
                    String::new()
                } else {
                    format!("/{key}")
                };
                format!("/{ACCOUNT}/{bucket}{key}?{SIGNED}&{query}")
            }
            _ => format!("/{bucket}/{key}"),
        }
    }

    /// A path of the library's requests with names as they are: for Google it writes every other character as a number.
    pub fn plain(self, path: &str) -> String {
        match self {
            Self::Google => [("%2F", "/"), ("%2E", "."), ("%2D", "-"), ("%5F", "_")]
                .iter()
                .fold(path.to_owned(), |path, (from, to)| path.replace(from, to)),
            _ => path.to_owned(),
        }
    }

    /// Headers of the tests' own requests.
    pub const fn headers(self) -> &'static str {
        match self {
            // The client, for the server's rules.
            Self::S3 => {
                "Authorization: AWS4-HMAC-SHA256 Credential=key/20261124/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
            }
            Self::Google => "Authorization: Bearer test",
            Self::Azure => "x-ms-version: 2021-10-04\r\nx-ms-blob-type: BlockBlob",
        }
    }

    /// Part of the query of each listing, and of no other request.
    pub const fn listing(self) -> &'static str {
        match self {
            Self::Azure => "restype=container&comp=list",
            _ => "list-type=2",
        }
    }

    /// What a listing has before a key and behind it.
    pub const fn key(self) -> (&'static str, &'static str) {
        match self {
            Self::Azure => ("<Name>", "</Name>"),
            _ => ("<Key>", "</Key>"),
        }
    }

    /// Settings of a client, as the manual has them.
    pub fn environment(self, port: u16) -> Vec<(&'static str, String)> {
        let at = format!("http://127.0.0.1:{port}");
        match self {
            Self::S3 => vec![
                ("AWS_ENDPOINT_URL", at),
                ("AWS_ALLOW_HTTP", "true".to_owned()),
                ("AWS_ACCESS_KEY_ID", "key".to_owned()),
                ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ],
            Self::Google => vec![
                ("GOOGLE_BASE_URL", at),
                ("GOOGLE_BEARER_TOKEN", SECRET.to_owned()),
            ],
            Self::Azure => vec![
                ("AZURE_STORAGE_ENDPOINT", format!("{at}/{ACCOUNT}")),
                ("AZURE_ALLOW_HTTP", "true".to_owned()),
                ("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT.to_owned()),
                ("AZURE_STORAGE_ACCOUNT_KEY", KEY.to_owned()),
            ],
        }
    }
}

/// The server of a cloud.
struct Emulator {
    port: u16,
    /// It ends when this process does: then its standard input is closed.
    _server: Child,
}

impl Emulator {
    fn start(cloud: Cloud) -> Result<Self> {
        let paths = Paths::find()?;
        let (port, folder) = (free_port()?, lab()?.folder.path());
        let mut command = match cloud {
            Cloud::Azure => {
                objects::azure(&paths)?;
                let mut command = Command::new("sh");
                // It ends with its standard input, as the others do.
                command.args(["-c", "\"$@\" & cat >/dev/null; kill $!", "sh", "node"]);
                command.arg(objects::azurite(&paths));
                command.args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()]);
                command.args(["--inMemoryPersistence", "--silent", "--disableTelemetry"]);
                command.env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{KEY}"));
                command.current_dir(folder);
                command
            }
            _ => {
                objects::google(&paths)?;
                let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/objects/google.py");
                let mut command = Command::new(objects::google_python(&paths));
                command.arg(script).arg(port.to_string());
                command
            }
        };
        let log = fs::File::create(folder.join(format!("{}.log", cloud.scheme())))?;
        command
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log);
        let server = command
            .spawn()
            .with_context(|| format!("cannot start {cloud:?}"))?;
        wait_for("the server of a cloud answers", LIMIT, || {
            Ok(TcpStream::connect(("127.0.0.1", port)).ok())
        })?;
        Ok(Self {
            port,
            _server: server,
        })
    }
}

/// A new bucket of a cloud.
pub fn bucket(cloud: Cloud, name: &str) -> Result<Bucket> {
    static GOOGLE: OnceLock<Result<Emulator, String>> = OnceLock::new();
    static AZURE: OnceLock<Result<Emulator, String>> = OnceLock::new();
    let of = match cloud {
        Cloud::S3 => return lab()?.bucket(name),
        Cloud::Google => &GOOGLE,
        Cloud::Azure => &AZURE,
    };
    let emulator = of.get_or_init(|| Emulator::start(cloud).map_err(|error| format!("{error:#}")));
    let emulator = emulator
        .as_ref()
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    let bucket = Bucket {
        name: name.to_owned(),
        port: emulator.port,
        server: emulator.port,
        cloud,
    };
    match cloud {
        Cloud::Azure => bucket.send("PUT", "?restype=container", b"")?,
        _ => Bucket {
            name: "storage".to_owned(),
            ..bucket.clone()
        }
        .send(
            "POST",
            "v1/b",
            format!("{{\"name\": \"{name}\"}}").as_bytes(),
        )?,
    };
    Ok(bucket)
}

/// A log whose stages have so many long texts that no codec makes them much shorter.
fn long_texts(folder: &Path) -> Result<PathBuf> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let log = folder.join(ID);
    let mut file = BufWriter::new(fs::File::create(&log)?);
    let start = json!({"Event": "SparkListenerApplicationStart", "App Name": "long", "App ID": ID,
        "Timestamp": 1_790_000_000_000_u64, "User": "u"});
    writeln!(file, "{start}")?;
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for stage in 0..220 {
        let text: String = (0..60_000)
            .map(|_| {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                char::from(LETTERS[(seed >> 58) as usize])
            })
            .collect();
        let info = json!({"Stage ID": stage, "Stage Attempt ID": 0, "Stage Name": "long", "Number of Tasks": 0,
            "RDD Info": [], "Parent IDs": [], "Details": text, "Submission Time": 1_790_000_000_001_u64, "Accumulables": []});
        for event in ["Submitted", "Completed"] {
            let event = format!("SparkListenerStage{event}");
            writeln!(
                file,
                "{}",
                json!({"Event": event, "Stage Info": info, "Properties": {}})
            )?;
        }
    }
    file.flush()?;
    Ok(log)
}

/// A table of more than 8 MiB is uploaded and read in pieces, and is the table that it was.
fn pieces(bucket: &Bucket) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let log = long_texts(folder.path())?;
    let local = crate::lab::imported(folder.path(), &log)?;
    let (proxy, through) = Proxy::start(bucket)?;
    through.import(&log)?;
    let seen = proxy.seen();
    let (piece, last) = match bucket.cloud {
        Cloud::Azure => ("comp=block&", "comp=blocklist"),
        _ => ("partNumber=", "uploadId="),
    };
    let count = |all: &[String], method: &str, part: &str| {
        let is_one = |it: &&String| it.starts_with(method) && it.contains(part);
        all.iter().filter(is_one).count()
    };
    let method = if bucket.cloud == Cloud::Azure {
        "PUT"
    } else {
        "POST"
    };
    ensure!(count(&seen, "PUT", piece) == 2, "{seen:#?}");
    ensure!(count(&seen, method, last) == 1, "{seen:#?}");
    let remote = through.serve(&[])?;
    let local = crate::lab::serve_folder(&local)?;
    let path = format!("/api/v1/applications/{ID}/stages");
    let (theirs, ours) = (get(local.port, &path)?, get(remote.port, &path)?);
    ensure!(
        theirs == ours && ours.len() > 220 * 60_000,
        "{} bytes",
        ours.len()
    );
    let read = count(&proxy.seen(), "GET", "/meta.");
    ensure!(read == 2, "{read} reads");
    Ok(())
}

/// What is missing is one line, with the name of the setting: credentials, the bucket, the server.
fn missing(bucket: &Bucket) -> Result<()> {
    let nothing = tempfile::tempdir()?;
    let line = |change: &[(&str, Option<&str>)], store: &str| -> Result<String> {
        let mut command = bucket.program();
        command.args(["advise", "--store", store, ID]);
        command.env("SMTT_LOG", "error").env("HOME", nothing.path());
        for (name, value) in change {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let done = command.output()?;
        let said = String::from_utf8(done.stderr)?;
        println!("{said}");
        ensure!(done.status.code() == Some(2), "{:?}: {said}", done.status);
        ensure!(said.lines().count() == 1, "{said}");
        ensure!(!said.contains(SECRET) && !said.contains(KEY), "{said}");
        Ok(said)
    };
    let (absent, endpoint, away, code) = match bucket.cloud {
        Cloud::Azure => {
            let said = line(&[("AZURE_STORAGE_ACCOUNT_NAME", None)], &bucket.store())?;
            ensure!(said.contains("set AZURE_STORAGE_ACCOUNT_NAME"), "{said}");
            let service = "http://127.0.0.1:9/metadata/identity/oauth2/token";
            let absent = vec![
                ("AZURE_STORAGE_ACCOUNT_KEY", None),
                ("AZURE_MSI_ENDPOINT", Some(service)),
            ];
            let away = "http://127.0.0.1:9/smtt";
            (absent, "AZURE_STORAGE_ENDPOINT", away, "ContainerNotFound")
        }
        _ => {
            let service = Some("127.0.0.1:9");
            let hosts = ["GCE_METADATA_HOST", "GCE_METADATA_IP"].map(|name| (name, service));
            let absent = [vec![("GOOGLE_BEARER_TOKEN", None)], hosts.to_vec()].concat();
            (
                absent,
                "GOOGLE_BASE_URL",
                "http://127.0.0.1:9",
                "NoSuchBucket",
            )
        }
    };
    let said = line(&absent, &bucket.store())?;
    ensure!(
        said.contains("no credentials: the environment has none"),
        "{said}"
    );
    let other = Bucket {
        name: "not-there".to_owned(),
        ..bucket.clone()
    };
    let said = line(&[], &other.store())?;
    ensure!(said.contains(code), "{said}");
    let said = line(&[(endpoint, Some(away))], &bucket.store())?;
    ensure!(
        said.contains("cannot be reached") && said.contains(endpoint),
        "{said}"
    );
    Ok(())
}

#[test]
fn large_tables_are_uploaded_to_s3_in_pieces() -> Result<()> {
    pieces(&bucket(Cloud::S3, "pieces")?)
}

/// Checks of other files as tests of this cloud.
macro_rules! checks {
    ($cloud:expr, $skip:expr; $($test:ident: $bucket:literal => $check:expr;)*) => {$(
        #[test]
        fn $test() -> anyhow::Result<()> {
            if $skip {
                return Ok(smtt_skip::skip("npm", "there is no Node.js with npm")?);
            }
            $check(crate::clouds::bucket($cloud, $bucket)?)
        }
    )*};
}

macro_rules! all_checks {
    ($cloud:expr, $skip:expr) => {
        use crate::{answers, clouds, faults, logs, writers};

        checks! { $cloud, $skip;
            answers_equal_those_of_a_local_store: "answers" => |it| answers::equal_answers(&it);
            a_copied_folder_is_a_store: "copied" => |it| answers::copied_folder(&it);
            parts_become_tables: "parts" => |it| answers::parts_become_tables(&it);
            an_application_is_imported_when_it_is_opened_first: "first" => |it| answers::first_open(&it);
            a_killed_import_leaves_whole_tables_or_none: "steps" => |it| writers::import_at_each_request(&it);
            a_killed_compaction_loses_nothing: "compact-steps" => |it| writers::compaction_at_each_request(&it);
            of_two_importers_one_wins: "race" => |it| writers::two_importers(&it);
            of_two_compactions_one_replaces_the_parts: "compactors" => |it| writers::two_compactions(&it);
            tables_stay_where_the_pointer_has_no_answer: "unanswered" => |it| writers::unanswered_pointer(&it);
            a_log_is_imported_as_one_in_a_folder: "event-logs" => |it| logs::forms_of_logs(&it);
            a_busy_store_is_asked_again: "busy" => faults::busy;
            a_store_that_fails_for_one_delays_no_other: "fails" => faults::fails_for_one;
            slow_half_or_too_long_answers_are_not_taken: "half" => faults::slow_half_or_too_long;
            large_tables_are_uploaded_in_pieces: "pieces" => |it| clouds::pieces(&it);
            what_is_missing_is_one_line: "missing" => |it| clouds::missing(&it);
        }
    };
}

mod google {
    all_checks! { crate::clouds::Cloud::Google, false }
}

mod azure {
    all_checks! { crate::clouds::Cloud::Azure, !xtask::features::has_npm() }
}
