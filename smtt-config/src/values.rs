//! Values of the file's text within their bounds.

use std::path::PathBuf;
use std::time::Duration;

use smtt_model::rows::GroupBy;

use super::file;

/// The key and what is wrong with it.
pub(super) type Problem = (&'static str, String);

/// A number within bounds.
pub(super) fn within(key: &'static str, value: u64, low: u64, high: u64) -> Result<u64, Problem> {
    if (low..=high).contains(&value) {
        Ok(value)
    } else {
        Err((key, format!("{value} is not from {low} to {high}")))
    }
}

pub(super) fn count(key: &'static str, value: u64, high: u64) -> Result<u32, Problem> {
    within(key, value, 1, high.min(u64::from(u32::MAX))).map(|value| value as u32)
}

pub(super) fn duration(
    key: &'static str,
    text: &str,
    low: Duration,
    high: Duration,
) -> Result<Duration, Problem> {
    let value = file::duration(text).ok_or_else(|| {
        (
            key,
            format!("{text:?} is no duration: write a number and ms, s, m, h or d, as in \"10m\""),
        )
    })?;
    if (low..=high).contains(&value) {
        Ok(value)
    } else {
        Err((key, format!("{text:?} is not from {low:?} to {high:?}")))
    }
}

pub(super) fn absolute(key: &'static str, path: &str) -> Result<PathBuf, Problem> {
    if path.starts_with('/') {
        Ok(PathBuf::from(path))
    } else {
        Err((key, format!("{path:?} is not an absolute path")))
    }
}

/// What RDDs of one key of the metrics have in common: words of `smtt-ctl rdds --by`. Ids of RDDs are no keys, because each
/// run of a query has others.
pub(super) fn rdds_by(key: &'static str, text: &str) -> Result<GroupBy, Problem> {
    match text {
        "name" => Ok(GroupBy::Name),
        "query" => Ok(GroupBy::Query),
        "node" => Ok(GroupBy::Node),
        "callsite" => Ok(GroupBy::CallSite),
        other => {
            let all = "\"name\", \"query\", \"node\", \"callsite\"";
            Err((key, format!("{other:?} is none of {all}")))
        }
    }
}

/// An absolute path, or none where it is empty.
pub(super) fn file_or_none(key: &'static str, path: &str) -> Result<Option<PathBuf>, Problem> {
    match path {
        "" => Ok(None),
        path => absolute(key, path).map(Some),
    }
}

/// A digest in hexadecimal digits, as `sha256sum` prints it.
pub(super) fn sha256(text: &str) -> Result<[u8; 32], Problem> {
    let mut digest = [0; 32];
    let digits = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = text
            .get(2 * at..2 * at + 2)
            .filter(|_| digits)
            .and_then(|pair| u8::from_str_radix(pair, 16).ok())
            .ok_or_else(|| {
                let help = "write the 64 digits that sha256sum prints";
                ("marker.digests", format!("{text:?} is no digest: {help}"))
            })?;
    }
    Ok(digest)
}

/// A size in bytes within bounds.
pub(super) fn bytes(key: &'static str, text: &str, low: u64, high: u64) -> Result<u64, Problem> {
    let value = file::size(text).ok_or_else(|| {
        let help = "write a number and KiB, MiB or GiB, as in \"64MiB\"";
        (key, format!("{text:?} is no size: {help}"))
    })?;
    if (low..=high).contains(&value) {
        Ok(value)
    } else {
        Err((key, format!("{text:?} is not from {low} to {high} bytes")))
    }
}

/// Form of the log's lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl std::str::FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(format!("{other:?} is neither text nor json")),
        }
    }
}
