//! Answers of workers, with the name of their worker and without characters that harm a terminal.

use serde::de::DeserializeOwned;
use serde_json::Value;
use smtt_model::text::{harmless, is_harmful};

use super::bounds::{Larger, cost};
use super::transport::Trouble;
use super::{Merge, WORKER};
use crate::table::cut_to;

/// Characters of a message from a worker.
const MESSAGE: usize = 200;

/// The answer of a worker, by its name.
type Answered<Answer> = (String, Result<Answer, Trouble>);

/// Reads the answers of all workers, in their order. On one thread: the heaps of further threads grow page by page, and
/// what their system calls take is more than a second CPU gives.
pub(super) fn read_all<Answer: DeserializeOwned + Merge>(
    answers: Vec<Answered<Vec<u8>>>,
    limit: Option<usize>,
) -> Vec<Answered<Answer>> {
    let one = |(name, answer): Answered<Vec<u8>>| {
        let part = answer.and_then(|bytes| {
            read::<Answer>(&bytes, &name, limit)
                .map_err(|reason| Trouble::Failed(format!("answered wrongly: {reason}")))
        });
        (name, part)
    };
    answers.into_iter().map(one).collect()
}

/// Reads an answer; its rows get the name of the worker. No text of it has a control character.
fn read<Answer: DeserializeOwned + Merge>(
    bytes: &[u8],
    name: &str,
    limit: Option<usize>,
) -> Result<Answer, String> {
    let mut value: Value =
        serde_json::from_slice(bytes).map_err(|error| message(&error.to_string()))?;
    if !is_plain(bytes) {
        make_harmless(&mut value);
    }
    let rows = value.get_mut(Answer::ROWS).and_then(Value::as_array_mut);
    let count = rows.as_ref().map_or(0, |rows| rows.len());
    if let Some(limit) = limit.filter(|limit| count > *limit) {
        return Err(format!("it has {count} rows, {limit} were requested"));
    }
    for row in rows.into_iter().flatten() {
        let row = row.as_object_mut().ok_or("a row is no object")?;
        row.insert(WORKER.to_owned(), Value::String(name.to_owned()));
    }
    typed(&value)
}

/// An answer of a type from its values. By way of text: a second reader of each type, from values, would be a quarter of
/// a megabyte in the program of workers.
fn typed<Answer: DeserializeOwned>(value: &Value) -> Result<Answer, String> {
    let read = |text: Vec<u8>| serde_json::from_slice(&text);
    serde_json::to_vec(value).and_then(read).map_err(|error| {
        let error = error.to_string();
        // The line and column are those of the text made above, which is not shown.
        let (what, _) = error.rsplit_once(" at line ").unwrap_or((&error, ""));
        message(what)
    })
}

/// Reads the answer of one daemon of another machine: its values have room for so many bytes, and no text of it has a
/// harmful character.
///
/// # Errors
/// When it is larger, or none of this type.
pub fn read_harmless<Answer: DeserializeOwned>(bytes: &[u8], room: u64) -> Result<Answer, String> {
    if cost(bytes) > room {
        return Err(Larger::Structure.to_string());
    }
    let wrong = |error: serde_json::Error| message(&error.to_string());
    if is_plain(bytes) {
        return serde_json::from_slice(bytes).map_err(wrong);
    }
    let mut value: Value = serde_json::from_slice(bytes).map_err(wrong)?;
    make_harmless(&mut value);
    typed(&value)
}

/// A message of a worker or about its answer: one line without control characters, not too long.
pub fn message(text: &str) -> String {
    cut_to(&harmless(text), MESSAGE, MESSAGE)
}

/// Whether an answer is of visible ASCII characters without an escape: then all of its text is harmless.
fn is_plain(bytes: &[u8]) -> bool {
    let plain = |byte: &u8| matches!(byte, b' '..=b'~' | b'\n' | b'\r' | b'\t') && *byte != b'\\';
    bytes.iter().all(plain)
}

/// Replaces control characters in all text of an answer.
fn make_harmless(value: &mut Value) {
    let is_harmless = |text: &str| !text.contains(is_harmful);
    match value {
        Value::String(text) if !is_harmless(text) => *text = harmless(text),
        Value::Array(items) => items.iter_mut().for_each(make_harmless),
        Value::Object(fields) => {
            if !fields.keys().all(|name| is_harmless(name)) {
                let taken = std::mem::take(fields);
                let named = taken
                    .into_iter()
                    .map(|(name, value)| (harmless(&name), value));
                fields.extend(named);
            }
            fields.values_mut().for_each(make_harmless);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use smtt_model::rows::Listing;

    use super::*;

    #[test]
    fn a_message_is_short_whatever_its_width() {
        for text in ["a", "\u{301}", "\u{200b}", "a\u{301}", "日"] {
            let said = message(&text.repeat(10_000));
            assert!(said.chars().count() <= MESSAGE, "{text:?}: {said}");
        }
        assert_eq!(message("a\u{301} b"), "a\u{301} b");
    }

    #[test]
    fn an_answer_with_more_rows_than_requested_is_wrong() {
        let listing = Listing {
            rows: vec![json!({"a": 1}), json!({"a": 2})],
            ..Listing::default()
        };
        let answer = serde_json::to_vec(&listing).expect("written");
        let rows = |limit| read::<Listing<Value>>(&answer, "w", limit);
        assert_eq!(rows(None).expect("read").rows.len(), 2);
        assert_eq!(rows(Some(2)).expect("read").rows[1]["worker"], "w");
        let error = rows(Some(1)).expect_err("too many");
        assert_eq!(error, "it has 2 rows, 1 were requested");
    }

    #[test]
    fn answers_are_in_the_order_of_the_workers() {
        let listing = |at: usize| {
            let rows = vec![json!({"at": at, "text": "x".repeat(10_000)})];
            serde_json::to_vec(&Listing {
                rows,
                ..Listing::default()
            })
        };
        for count in [1, 3, 501] {
            let answers = (0..count).map(|at| {
                let failed = Trouble::Failed("no answer".to_owned());
                let answer = match at % 7 {
                    5 => Err(failed),
                    _ => Ok(listing(at).expect("written")),
                };
                (format!("w{at}"), answer)
            });
            let read = read_all::<Listing<Value>>(answers.collect(), None);
            assert_eq!(read.len(), count);
            for (at, (name, part)) in read.into_iter().enumerate() {
                assert_eq!(name, format!("w{at}"));
                match (at % 7, part) {
                    (5, part) => assert!(part.is_err()),
                    (_, part) => {
                        let part = part.expect("an answer");
                        assert_eq!(
                            (&part.rows[0]["at"], &part.rows[0][WORKER]),
                            (&json!(at), &json!(name))
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn harmful_text_is_found_however_it_is_written() {
        for text in [
            "\"a\\u001bb\"",
            "\"a\\nb\"",
            "\"a\u{7f}b\"",
            "\"a\u{9b}b\"",
            "\"a\u{202e}b\"",
            "{\"a\\tb\": 1}",
        ] {
            let rows = format!(
                "{{\"rows\": [{{\"x\": {text}}}], \"rows_total\": 1, \"summary\": SUMMARY}}"
            );
            let summary = serde_json::to_string(&smtt_model::rows::Summary::default());
            let answer = rows.replace("SUMMARY", &summary.expect("written"));
            let read = read::<Listing<Value>>(answer.as_bytes(), "w", None).expect("read");
            let shown = read.rows[0]["x"].to_string();
            assert!(shown.contains("a\u{fffd}b"), "{text}: {shown}");
        }
        assert!(is_plain(b"{\"a\": [1, \"b~\"]}\n"));
    }
}
