//! Label values as they leave the daemon: bounded, and without the words of applications where any user may read them.

use std::hash::{BuildHasher, RandomState};

/// Whether metrics show names of applications and RDDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// As the executors report them.
    Shown,
    /// Application ids are replaced by opaque ids, names are empty.
    Hidden,
}

/// Longest label value in bytes, after escaping.
const VALUE_BYTES: usize = 128;
/// The mark of a value that was cut.
const CUT: &str = "…";
/// Bytes that a cut value keeps where a hash follows.
const KEPT_BYTES: usize = VALUE_BYTES - CUT.len() - 16;

/// Writes label values. Its key is random, so that ids cannot be found by trying; they are the same while the daemon
/// runs.
#[derive(Debug, Default)]
pub(super) struct Labels(RandomState);

impl Labels {
    /// The value of a label for the readers of the metrics, in a series of `user`. Opaque ids are made for each user:
    /// otherwise a user could claim the ids of others and compare.
    pub(super) fn value(&self, label: &str, value: &str, user: &str, names: Names) -> String {
        match (label, names) {
            (
                // YARN's name of a container has the application's id.
                "application_name"
                | "queue"
                | "kubernetes_namespace"
                | "kubernetes_pod"
                | "container_id",
                Names::Hidden,
            ) => String::new(),
            ("rdd", Names::Hidden) if !matches!(value, "" | "none" | "other") => {
                self.opaque(user, value)
            }
            ("application_id", Names::Hidden) if !value.is_empty() => self.opaque(user, value),
            ("executor_id", Names::Hidden) if !is_numbered(value) => self.opaque(user, value),
            ("application_name", Names::Shown) => cut(value),
            _ => self.distinct(value),
        }
    }

    fn opaque(&self, user: &str, value: &str) -> String {
        format!("hidden-{:016x}", self.0.hash_one((user, value)))
    }

    /// As [`cut`]; two values with the same beginning stay two.
    fn distinct(&self, value: &str) -> String {
        if escaped_bytes(value) <= VALUE_BYTES {
            return value.to_owned();
        }
        let hash = self.0.hash_one(value);
        format!("{}{CUT}{hash:016x}", beginning(value, KEPT_BYTES))
    }
}

/// The value within [`VALUE_BYTES`], with a mark where it was longer.
pub(super) fn cut(value: &str) -> String {
    if escaped_bytes(value) <= VALUE_BYTES {
        return value.to_owned();
    }
    format!("{}{CUT}", beginning(value, VALUE_BYTES - CUT.len()))
}

/// Whether an executor's id says no more than a number: `7`, `driver`, `pid 12`, `7 (pid 12)`.
fn is_numbered(id: &str) -> bool {
    let number = |text: &str| {
        !text.is_empty() && text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let pid = |text: &str| text.strip_prefix("pid ").is_some_and(number);
    let (id, second) = match id.split_once(" (") {
        Some((id, rest)) => (id, rest.strip_suffix(')').is_some_and(pid)),
        None => (id, true),
    };
    second && (number(id) || id == "driver" || pid(id))
}

/// Bytes of one character in both text formats.
const fn escaped_len(letter: char) -> usize {
    match letter {
        '\\' | '\n' | '"' => 2,
        letter => letter.len_utf8(),
    }
}

fn escaped_bytes(text: &str) -> usize {
    text.chars().map(escaped_len).sum()
}

/// The longest beginning with at most so many bytes after escaping.
fn beginning(text: &str, bytes: usize) -> &str {
    let mut used = 0;
    let end = text.char_indices().find(|(_, letter)| {
        used += escaped_len(*letter);
        used > bytes
    });
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_cut_with_a_mark_and_stay_distinct() {
        let labels = Labels::default();
        for letter in ["x", "ß", "😀", "\"", "\\", "\n"] {
            let long = letter.repeat(2000);
            let name = labels.value("application_name", &long, "7", Names::Shown);
            assert!(name.ends_with(CUT), "{name}");
            assert!(escaped_bytes(&name) <= VALUE_BYTES, "{name}");
            assert_eq!(cut(&name), name, "cutting twice is cutting once");
            let one = labels.value("executor_id", &long, "7", Names::Shown);
            let two = labels.value("executor_id", &(long.clone() + "y"), "7", Names::Shown);
            assert!(escaped_bytes(&one) <= VALUE_BYTES, "{one}");
            assert!(one.contains(CUT) && one != two, "{one}");
            assert_eq!(one, labels.value("executor_id", &long, "7", Names::Shown));
        }
        let whole = "x".repeat(VALUE_BYTES);
        assert_eq!(labels.value("rdd", &whole, "7", Names::Shown), whole);
    }

    #[test]
    fn hidden_names_stay_one_to_one_and_say_nothing() {
        let labels = Labels::default();
        let hidden = |label, value| labels.value(label, value, "7", Names::Hidden);
        let id = hidden("application_id", "app-20260101120000-0001");
        assert!(id.starts_with("hidden-") && !id.contains("2026"), "{id}");
        assert_eq!(id, hidden("application_id", "app-20260101120000-0001"));
        assert_ne!(id, hidden("application_id", "app-20260101120000-0002"));
        let other_user = labels.value(
            "application_id",
            "app-20260101120000-0001",
            "8",
            Names::Hidden,
        );
        assert_ne!(id, other_user, "a claim of another user tells nothing");
        assert_eq!(hidden("application_id", ""), "");
        for label in ["application_name", "queue", "kubernetes_pod"] {
            assert_eq!(hidden(label, "payroll"), "");
        }
        let rdd = hidden("rdd", "SELECT salary");
        assert!(rdd.starts_with("hidden-"), "{rdd}");
        for known in ["none", "other", ""] {
            assert_eq!(hidden("rdd", known), known);
        }
        for id in ["0", "17", "driver", "pid 12", "0 (pid 12)"] {
            assert_eq!(hidden("executor_id", id), id);
        }
        for id in ["alice", "0 (pid x)", "0 (secret)", "", "1 2", "pid "] {
            assert_ne!(hidden("executor_id", id), id, "{id:?}");
        }
        // The same text in another daemon is another id.
        assert_ne!(
            id,
            Labels::default().value(
                "application_id",
                "app-20260101120000-0001",
                "7",
                Names::Hidden
            )
        );
    }
}
