//! Stores in a bucket: S3 and what speaks its protocol, Google Cloud Storage, Azure. An HDFS is one, too ([`hdfs`]).
//!
//! The objects below `<prefix>/<name>/` are one application. [`mirror`] copies those that are needed into a folder of this
//! machine, which is read as any store is. Imports and compactions write their tables into such a folder, too, and
//! [`publish`] uploads them: first the tables, under names of their own, then the small object that names them
//! ([`bucket::POINTER`]), by a conditional write. So a reader sees either the old tables or the new ones, and of two writers
//! one wins.

pub mod bucket;
pub mod client;
mod connect;
mod hdfs;
pub mod list;
pub mod logs;
pub mod mirror;
pub mod publish;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use url::Url;

/// The place of a store, as the command line names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A folder of this machine.
    Folder(PathBuf),
    /// A bucket, perhaps with a prefix, or a folder of an HDFS.
    Bucket(Url),
}

/// Schemes of buckets, and what each is for [`object_store`]; and HDFS.
const SCHEMES: [(&str, &str); 7] = [
    ("hdfs", "hdfs"),
    ("s3", "s3"),
    // Hadoop's name for the same.
    ("s3a", "s3"),
    ("gs", "gs"),
    ("az", "az"),
    ("abfs", "abfs"),
    ("abfss", "abfss"),
];

impl FromStr for Location {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return match text.strip_prefix("file:") {
                // Hadoop writes file:/path.
                Some(path) if path.starts_with('/') => Self::from_str(&format!("file://{path}")),
                _ if text.is_empty() => Err("it is empty".to_owned()),
                _ => Ok(Self::Folder(PathBuf::from(text))),
            };
        };
        let scheme = scheme.to_ascii_lowercase();
        if scheme == "file" {
            let path = Url::parse(text)
                .ok()
                .and_then(|url| url.to_file_path().ok());
            return path.map(Self::Folder).ok_or_else(|| {
                "a folder of this machine is file:///PATH, with three slashes".to_owned()
            });
        }
        if matches!(scheme.as_str(), "viewfs" | "webhdfs" | "swebhdfs") {
            return Err(format!(
                "{scheme}:// is not read: give the NameNode or name service behind it, hdfs://HOST:PORT/PATH"
            ));
        }
        let Some((_, scheme)) = SCHEMES.iter().find(|(known, _)| *known == scheme) else {
            return Err(format!(
                "{scheme}:// is unknown: give a folder, file:///PATH, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or hdfs://HOST:PORT/PATH"
            ));
        };
        let url = Url::parse(&format!("{scheme}://{rest}"))
            .map_err(|error| format!("it is no address of a bucket: {error}"))?;
        let is_azure = scheme.starts_with("a");
        if url.password().is_some() || (!is_azure && !url.username().is_empty()) {
            return Err(
                "credentials do not belong into the address: put them into the environment"
                    .to_owned(),
            );
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("an address of a bucket has no ? and no #".to_owned());
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err(match *scheme {
                "hdfs" => "the NameNode is missing: hdfs://HOST:PORT/PATH".to_owned(),
                _ => format!("the bucket is missing: {scheme}://BUCKET/PREFIX"),
            });
        }
        object_store::path::Path::from_url_path(url.path())
            .map_err(|_| "the prefix has an empty part, or one of dots".to_owned())?;
        Ok(Self::Bucket(url))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => path.display().fmt(out),
            Self::Bucket(url) => url.as_str().trim_end_matches('/').fmt(out),
        }
    }
}

#[cfg(test)]
mod tests;
