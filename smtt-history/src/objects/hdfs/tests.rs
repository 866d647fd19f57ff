//! Keys of pointers, what errors say, and limits.

use std::time::Duration;

use super::*;

#[test]
fn a_key_of_a_pointer_has_its_folder() {
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

/// A DataNode is given up while the request still has time for another one.
#[test]
fn a_silent_datanode_is_given_up_before_the_request_is() {
    let limit = SETTINGS
        .iter()
        .find(|it| it.0 == "dfs.client.socket-timeout");
    let millis: u64 = limit.and_then(|it| it.1.parse().ok()).expect("is there");
    assert!(Duration::from_millis(3 * millis) < super::super::bucket::REQUEST);
}
