//! The text of an RDD's key: its name, or what `[metrics] rdds_by` names in place of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use smtt_model::attribute::RddKey;
use smtt_model::rows::{GroupBy, common_name, queries_of, without_stage};
use smtt_model::sort::small::Gather as _;
use smtt_model::state::Executor;

use crate::metrics::labels::cut;

/// The key of RDDs without a description.
const NOT_DESCRIBED: &str = "(not described)";
/// The key of an RDD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::metrics) enum Named {
    /// The key.
    As(String),
    /// What the key depends on may still be reported; else it is this one.
    NotYet(String),
}

/// Bytes of the texts that [`QueryKeys`] holds. A query beyond them is normalised at each update.
const QUERY_BYTES: usize = 4 << 20;

/// A query's description and its key.
type Known = (String, Arc<str>);

/// Keys of the queries that executors have: a description is normalised when it is first seen.
#[derive(Debug, Default)]
pub(in crate::metrics) struct QueryKeys {
    /// By executor and SQL execution.
    known: HashMap<(u64, u64), Known>,
    /// Bytes of the texts.
    bytes: usize,
}

impl QueryKeys {
    /// The key of a query; made where it is not known.
    fn get(&self, of: (u64, u64), description: &str) -> Arc<str> {
        let known = self.known.get(&of);
        let known = known.filter(|(text, _)| text == description);
        known.map_or_else(|| made(description), |(_, key)| Arc::clone(key))
    }

    /// The same, and the key is known from now on. It is taken over from `before`, so that queries that are in no
    /// executor any more are let go.
    fn take(&mut self, before: &mut Self, of: (u64, u64), description: &str) -> Arc<str> {
        if let Some((text, key)) = self.known.get(&of) {
            return match text == description {
                true => Arc::clone(key),
                // Stages of one SQL execution with several descriptions.
                false => made(description),
            };
        }
        let known = before.known.remove(&of);
        let known = known.filter(|(text, _)| text == description);
        let known = known.unwrap_or_else(|| (description.to_owned(), made(description)));
        let key = Arc::clone(&known.1);
        let bytes = known.0.len() + known.1.len() + size_of::<(u64, u64, Known)>();
        if self.bytes + bytes <= QUERY_BYTES {
            self.bytes += bytes;
            self.known.insert(of, known);
        }
        key
    }
}

fn made(description: &str) -> Arc<str> {
    cut(&query_key(description)).into()
}

/// How the RDDs of an executor are named.
#[derive(Debug)]
pub(in crate::metrics) struct Naming<'a> {
    executor: &'a Executor,
    by: GroupBy,
    /// Key of each RDD's SQL execution, where it matters.
    queries: BTreeMap<RddKey, Arc<str>>,
    /// RDDs whose SQL execution is not known yet.
    without_stage: BTreeSet<RddKey>,
}

impl<'a> Naming<'a> {
    /// By the keys that are known.
    pub(in crate::metrics) fn of(
        executor: &'a Executor,
        key: u64,
        by: GroupBy,
        known: &QueryKeys,
    ) -> Self {
        Self::with(executor, by, |id, text| known.get((key, id), text))
    }

    /// The same, and takes over what is known of queries that are still there.
    pub(in crate::metrics) fn updated(
        executor: &'a Executor,
        key: u64,
        by: GroupBy,
        known: &mut QueryKeys,
        before: &mut QueryKeys,
    ) -> Self {
        Self::with(executor, by, |id, text| known.take(before, (key, id), text))
    }

    fn with(
        executor: &'a Executor,
        by: GroupBy,
        mut key: impl FnMut(u64, &str) -> Arc<str>,
    ) -> Self {
        let (queries, without_stage) = if by == GroupBy::Query {
            let queries = queries_of(executor).into_iter();
            let keys = queries.map(|(rdd, (id, text))| (rdd, key(id, text)));
            (keys.gather(), without_stage(executor))
        } else {
            (BTreeMap::new(), BTreeSet::new())
        };
        Self {
            executor,
            by,
            queries,
            without_stage,
        }
    }

    /// The key of an RDD. Until the RDD is described, and by query until one of its stages is, it is not known.
    pub(in crate::metrics) fn key(&self, rdd: RddKey) -> Named {
        let query = self.queries.get(&rdd);
        if let Some(query) = query.filter(|query| !query.is_empty()) {
            return Named::As(query.to_string());
        }
        let row = self.executor.rdds.get(&rdd);
        let Some(said) = row.and_then(|row| row.described.as_ref()) else {
            return Named::NotYet(NOT_DESCRIBED.to_owned());
        };
        let key = key_of(self.by, &said.name, &said.call_site, &said.node);
        if self.without_stage.contains(&rdd) {
            Named::NotYet(key)
        } else {
            Named::As(key)
        }
    }
}

/// The key of an RDD that has a description and belongs to no SQL execution, or not by that.
pub(in crate::metrics) fn key_of(by: GroupBy, name: &str, call_site: &str, node: &str) -> String {
    let class = |name: &str| {
        name.ends_with("RDD")
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    // Spark names an RDD without a name after its class.
    let text = match (by, name, call_site) {
        (GroupBy::Node, ..) if !node.is_empty() => node,
        (GroupBy::CallSite, _, site) if !site.is_empty() => site,
        (_, "", "") => NOT_DESCRIBED,
        (_, "", site) => site,
        (_, name, site) if class(name) && !site.is_empty() => site,
        (_, name, _) => name,
    };
    match text {
        "none" | "other" => format!("RDD {text}"),
        text => cut(&common_name(text)),
    }
}

/// A query's description as a key: white space is one blank, and literals are `?` but in a call site, so that runs with other
/// values are one key, and no value of a user's data is in a label.
fn query_key(description: &str) -> String {
    #[cfg(test)]
    tests::MADE.with(|made| made.set(made.get() + 1));
    let words: Vec<&str> = description.split_whitespace().collect();
    let text = words.join(" ");
    // `cache at Jobs.scala:7`.
    let is_line = |place: &str| {
        let line = place.rsplit_once(':').map(|(_, line)| line);
        line.is_some_and(|line| line.parse::<u32>().is_ok())
    };
    let is_call_site = matches!(*words, [_, "at", place] if is_line(place));
    let text = match is_call_site {
        true => text,
        false => without_literals(&text),
    };
    match text.as_str() {
        "none" | "other" => format!("query {text}"),
        _ => text,
    }
}

/// SQL with `?` in place of strings and numbers. A string that was cut ends with the text.
fn without_literals(sql: &str) -> String {
    let mut text = String::with_capacity(sql.len());
    let mut letters = sql.chars().peekable();
    let mut in_word = false;
    while let Some(letter) = letters.next() {
        match letter {
            '\'' | '"' => {
                text.push('?');
                while let Some(inner) = letters.next() {
                    if inner == '\\' {
                        letters.next();
                    } else if inner == letter && letters.next_if_eq(&letter).is_none() {
                        break;
                    }
                }
                in_word = false;
            }
            '`' => {
                // A quoted name stays.
                text.push(letter);
                for inner in letters.by_ref() {
                    text.push(inner);
                    if inner == '`' {
                        break;
                    }
                }
                in_word = true;
            }
            '0'..='9' if !in_word => {
                text.push('?');
                let part = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '.';
                while letters.next_if(part).is_some() {}
            }
            letter => {
                in_word = letter.is_alphanumeric() || letter == '_';
                text.push(letter);
            }
        }
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// Descriptions that this thread has normalised.
        pub(in super::super) static MADE: Cell<u64> = const { Cell::new(0) };
    }

    #[test]
    fn keys_of_queries_are_made_once_bounded_and_let_go() {
        let (mut before, mut known) = (QueryKeys::default(), QueryKeys::default());
        let start = MADE.get();
        for _ in 0..3 {
            let key = known.take(&mut before, (1, 7), "SELECT 1");
            assert_eq!(&*key, "SELECT ?");
            assert_eq!(&*known.get((1, 7), "SELECT 1"), "SELECT ?");
        }
        assert_eq!(MADE.get() - start, 1);
        // The id says nothing about another executor, and the text counts.
        assert_eq!(&*known.get((2, 7), "SELECT a"), "SELECT a");
        assert_eq!(&*known.get((1, 7), "SELECT b"), "SELECT b");
        assert_eq!(&*known.take(&mut before, (1, 7), "SELECT c"), "SELECT c");
        assert_eq!(MADE.get() - start, 4);
        let mut next = QueryKeys::default();
        next.take(&mut known, (1, 8), "SELECT 2");
        next.take(&mut known, (1, 7), "SELECT 1");
        assert_eq!(MADE.get() - start, 5, "one was known");
        let mut last = QueryKeys::default();
        last.take(&mut next, (1, 8), "SELECT 2");
        assert_eq!(last.known.len(), 1, "what no executor has is let go");
        let long = "x".repeat(1 << 20);
        for id in 0..9 {
            last.take(&mut next, (3, id), &long);
        }
        assert!(last.bytes <= QUERY_BYTES && last.known.len() < 9);
    }

    #[test]
    fn literals_of_sql_are_no_part_of_a_key() {
        for (description, key) in [
            (
                "SELECT  name\n FROM users WHERE id = 17 AND city='Bonn'",
                "SELECT name FROM users WHERE id = ? AND city=?",
            ),
            (
                "select * from t1 where x in (1, 2.5e3, -3) limit 10",
                "select * from t1 where x in (?, ?, -?) limit ?",
            ),
            (
                "WITH a AS (SELECT 'it''s', \"b\\\"c\") SELECT `5 a`.x FROM a",
                "WITH a AS (SELECT ?, ?) SELECT `5 a`.x FROM a",
            ),
            ("SELECT 'cut at its en", "SELECT ?"),
            ("(SELECT 1)", "(SELECT ?)"),
            // A call site is no SQL: its line stays.
            ("collect at Jobs.scala:7", "collect at Jobs.scala:7"),
            ("cache at Jobs.scala:7", "cache at Jobs.scala:7"),
            ("none", "query none"),
            ("  ", ""),
        ] {
            assert_eq!(query_key(description), key);
        }
    }

    #[test]
    fn a_text_of_an_rdd_takes_the_place_of_its_name() {
        let key = |by, name| key_of(by, name, "map at Jobs.scala:9", "Exchange");
        assert_eq!(key(GroupBy::Name, "links"), "links");
        assert_eq!(
            key(GroupBy::Name, "MapPartitionsRDD"),
            "map at Jobs.scala:9"
        );
        assert_eq!(key(GroupBy::Query, "links"), "links");
        assert_eq!(key(GroupBy::Node, "links"), "Exchange");
        assert_eq!(key(GroupBy::CallSite, "links"), "map at Jobs.scala:9");
        for by in [GroupBy::Node, GroupBy::CallSite] {
            assert_eq!(key_of(by, "links", "", ""), "links");
        }
        // Each time that the same lines cache a DataFrame.
        for id in [17, 18] {
            let plan = format!("*(1) Project [shop#{id}L, (amount#3L % {id}) AS part#1{id}L]");
            let plain = "Project [shop, (amount % ?) AS part]";
            assert_eq!(key_of(GroupBy::Name, &plan, "", ""), plain);
        }
        assert_eq!(key_of(GroupBy::Node, "x", "", "other"), "RDD other");
    }
}
