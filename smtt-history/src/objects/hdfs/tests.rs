//! Names of pointers, and what errors say.

use super::*;

#[test]
fn pointers_are_known_by_their_names() {
    assert_eq!(number_of("tables-000001.json"), Some(1));
    assert_eq!(number_of("tables-1234567.json"), Some(1_234_567));
    for name in [
        "tables.json",
        "tables-000000.json",
        "tables-00001.json",
        "tables-0000001.json",
        "tables-+00001.json",
        ".tables-000001.json",
        "tables-000001.json.tmp",
    ] {
        assert_eq!(number_of(name), None, "{name}");
    }
    let key = |text: &str| Key::parse(text).expect("is a key");
    assert_eq!(pointed(&key("a/b/tables.json")), Some("a/b"));
    assert_eq!(pointed(&key("a/tables.json/b")), None);
}

#[test]
fn errors_are_one_line_without_a_stack() {
    let of = |class: &str, text: &str| {
        let made = HdfsError::RPCError(class.to_owned(), text.to_owned());
        super::super::connect::line(&error("/a", made))
    };
    let said = of(
        "org.apache.hadoop.security.AccessControlException",
        "Permission denied: user=ann\u{1b}[31m, access=READ\n\tat org.apache.hadoop.Class",
    );
    assert_eq!(
        said,
        "HDFS refuses access: Permission denied: user=ann[31m, access=READ"
    );
    let said = of("java.lang.IllegalStateException", "never\nat");
    assert_eq!(said, "the NameNode says IllegalStateException: never");
    let absent = error(
        "/a",
        HdfsError::RPCError("java.io.FileNotFoundException".to_owned(), String::new()),
    );
    assert!(matches!(absent, Error::NotFound { .. }));
}
