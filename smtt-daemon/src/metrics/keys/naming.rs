//! The text of an RDD's key: its name, or what `[metrics] rdds_by` names in place of it.

use std::collections::{BTreeMap, BTreeSet};

use smtt_model::attribute::RddKey;
use smtt_model::rows::{GroupBy, queries_of, without_stage};
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

/// How the RDDs of an executor are named.
#[derive(Debug)]
pub(in crate::metrics) struct Naming<'a> {
    executor: &'a Executor,
    by: GroupBy,
    /// SQL execution of each RDD, where it matters.
    queries: BTreeMap<RddKey, (u64, &'a str)>,
    /// RDDs whose SQL execution is not known yet.
    without_stage: BTreeSet<RddKey>,
}

impl<'a> Naming<'a> {
    pub(in crate::metrics) fn of(executor: &'a Executor, by: GroupBy) -> Self {
        let (queries, without_stage) = if by == GroupBy::Query {
            (queries_of(executor), without_stage(executor))
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
        let query = self.queries.get(&rdd).map(|(_, text)| *text);
        if let Some(query) = query.map(query_key).filter(|query| !query.is_empty()) {
            return Named::As(cut(&query));
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
        text => cut(text),
    }
}

/// A query's description as a key: white space is one blank, and literals are `?` but in a call site, so that runs with other
/// values are one key, and no value of a user's data is in a label.
fn query_key(description: &str) -> String {
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
mod tests {
    use super::*;

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
        assert_eq!(key_of(GroupBy::Node, "x", "", "other"), "RDD other");
    }
}
