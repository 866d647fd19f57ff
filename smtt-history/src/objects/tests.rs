//! Addresses of stores.

use super::*;

fn parse(text: &str) -> Result<Location, String> {
    text.parse()
}

#[test]
fn folders_and_buckets_are_known_by_their_addresses() {
    let folder = |path: &str| Ok(Location::Folder(PathBuf::from(path)));
    assert_eq!(parse("/var/lib/smtt"), folder("/var/lib/smtt"));
    assert_eq!(parse("store"), folder("store"));
    assert_eq!(parse("file:///var/a%20b"), folder("/var/a b"));
    assert_eq!(parse("file:/var/a"), folder("/var/a"));
    let shown = |text: &str| match parse(text) {
        Ok(location @ Location::Bucket(_)) => location.to_string(),
        other => format!("{other:?}"),
    };
    assert_eq!(shown("s3://bucket/a/b/"), "s3://bucket/a/b");
    assert_eq!(shown("s3a://bucket"), "s3://bucket");
    assert_eq!(shown("S3://bucket/x"), "s3://bucket/x");
    assert_eq!(shown("gs://bucket/history"), "gs://bucket/history");
    assert_eq!(shown("az://container/history"), "az://container/history");
    assert_eq!(shown("hdfs://namenode:8020/a/"), "hdfs://namenode:8020/a");
    assert_eq!(shown("HDFS://service/a%20b"), "hdfs://service/a%20b");
    assert_eq!(
        shown("abfss://container@account.dfs.core.windows.net/a"),
        "abfss://container@account.dfs.core.windows.net/a"
    );
}

#[test]
fn other_addresses_are_refused_with_what_to_do() {
    for (text, said) in [
        ("", "empty"),
        ("hdfs:///history", "NameNode is missing"),
        ("hdfs://ann:secret@namenode/history", "environment"),
        ("viewfs://cluster/history", "hdfs://HOST:PORT/PATH"),
        ("webhdfs://namenode/history", "hdfs://HOST:PORT/PATH"),
        ("ftp://host/a", "s3://BUCKET/PREFIX"),
        ("file://host/a", "three slashes"),
        ("s3:///prefix", "bucket is missing"),
        ("s3://key:secret@bucket/a", "environment"),
        ("s3://key@bucket/a", "environment"),
        ("gs://bucket/a?x=1", "no ?"),
        ("s3://bucket/a//b", "empty part"),
    ] {
        let error = parse(text).expect_err(text);
        assert!(error.contains(said), "{text}: {error}");
        assert!(
            !error.contains("secret") && !error.contains('\n'),
            "{error}"
        );
    }
}
