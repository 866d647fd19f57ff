//! Answers of several workers as one: rows together in the requested order, totals added up.

use serde::Serialize;
use smtt_model::advise::{Advice, ApplicationAdvice};
use smtt_model::postmortem::Deaths;
use smtt_model::protocol::{Histories, ListQuery, Report, Status, order};
use smtt_model::rows::{Listing, Summary};
use smtt_model::sort::small::sort_by_key;
use smtt_model::sort::{Sort, SortError, pick, sort};

use crate::client::ClientError;

/// An answer that several workers can give together.
pub trait Merge: Sized + Send {
    /// Field of the answer whose objects get the name of their worker.
    const ROWS: &'static str;

    /// The answer of all workers.
    ///
    /// # Errors
    /// When the rows cannot be sorted as requested.
    fn merge(parts: Vec<Self>, path: &str, question: &ListQuery) -> Result<Self, ClientError>;

    /// Totals of the answer, where it has such.
    fn summary(&self) -> Option<&Summary> {
        None
    }

    /// What the worker does not measure although the answer has a place for it.
    fn lack(&self) -> Option<String> {
        None
    }
}

/// Adds two figures, each of which may be absent.
fn add(sum: &mut Option<u64>, figure: Option<u64>) {
    if let Some(figure) = figure {
        *sum = Some(sum.unwrap_or(0).saturating_add(figure));
    }
}

/// Totals over workers.
pub fn sum(parts: impl Iterator<Item = Summary>) -> Summary {
    let mut all = Summary::default();
    let mut before_tracing = Some(0_u64);
    for part in parts {
        if part.executors > 0 {
            before_tracing = before_tracing
                .zip(part.page_faults_before_tracing)
                .map(|(sum, more)| sum.saturating_add(more));
        }
        for (sum, figure) in [
            (&mut all.executors, part.executors),
            (&mut all.drivers, part.drivers),
            (&mut all.executors_over_cap, part.executors_over_cap),
            (&mut all.executors_evicted, part.executors_evicted),
            (&mut all.earlier_left_out, part.earlier_left_out),
        ] {
            *sum = sum.saturating_add(figure);
        }
        all.earlier_runs.extend(part.earlier_runs);
        add(&mut all.page_faults, part.page_faults);
        add(&mut all.page_faults_attributed, part.page_faults_attributed);
        add(
            &mut all.page_faults_unattributed,
            part.page_faults_unattributed,
        );
        all.measured.page_faults |= part.measured.page_faults;
        all.measured.access |= part.measured.access;
        all.measured.major |= part.measured.major;
    }
    all.unattributed_share = match (all.page_faults, all.page_faults_unattributed) {
        (Some(faults), Some(without)) if faults > 0 => Some(without as f64 / faults as f64),
        _ => None,
    };
    // A worker without this figure would make it look complete.
    all.page_faults_before_tracing = before_tracing.filter(|_| all.executors > 0);
    all
}

fn refused(error: SortError) -> ClientError {
    ClientError::Refused(error.to_string())
}

impl<Row: Serialize + Send> Merge for Listing<Row> {
    const ROWS: &'static str = "rows";

    fn merge(parts: Vec<Self>, path: &str, question: &ListQuery) -> Result<Self, ClientError> {
        let mut by: Vec<Sort> = Vec::new();
        if let Some(asked) = &question.sort {
            let mut asked: Sort = asked.parse().map_err(refused)?;
            if asked.descending.is_none() {
                asked.descending = majority(&parts, &asked.column);
            }
            by.push(asked);
        }
        let mut rows = Vec::new();
        let mut summaries = Vec::new();
        let mut rows_total = 0_u64;
        for part in parts {
            // A daemon of an older version does not count the rows.
            rows_total = rows_total.saturating_add(part.rows_total.max(part.rows.len() as u64));
            rows.extend(part.rows);
            summaries.push(part.summary);
        }
        for after in order(path) {
            let after: Sort = after.parse().map_err(refused)?;
            if has(&rows, &after) {
                by.push(after);
            }
        }
        // Equal rows stay in the order of the workers.
        if !by.is_empty() {
            rows = sort(rows, &by).map_err(refused)?;
        }
        rows.truncate(question.limit.unwrap_or(usize::MAX));
        Ok(Self {
            rows,
            rows_total,
            summary: sum(summaries.into_iter()),
        })
    }

    fn summary(&self) -> Option<&Summary> {
        Some(&self.summary)
    }

    fn lack(&self) -> Option<String> {
        let Summary {
            measured,
            page_faults,
            executors,
            ..
        } = &self.summary;
        let lacks = !measured.page_faults && page_faults.is_none() && *executors > 0;
        lacks.then(|| "page faults".to_owned())
    }
}

/// Whether the largest value of a column without a direction comes first: as the first values of most workers have it,
/// so that one of them cannot turn the order of all rows.
fn majority<Row: Serialize>(parts: &[Listing<Row>], column: &str) -> Option<bool> {
    let vote = |part: &Listing<Row>| {
        part.rows.iter().find_map(|row| {
            let fields = serde_json::to_value(row).ok()?;
            let value = fields.get(column).filter(|value| !value.is_null())?;
            Some(value.is_number() || value.is_array())
        })
    };
    let votes: Vec<bool> = parts.iter().filter_map(vote).collect();
    let numbers = votes.iter().filter(|is_number| **is_number).count();
    (!votes.is_empty()).then_some(numbers * 2 >= votes.len())
}

/// Whether some row has the field.
fn has<Row: Serialize>(rows: &[Row], by: &Sort) -> bool {
    let name = by.column.as_str();
    rows.iter().any(|row| pick(row, &[name]) != [None])
}

/// The refusal to merge answers of which each worker has its own.
fn of_each<Answer>(path: &str) -> Result<Answer, ClientError> {
    Err(ClientError::Refused(format!(
        "{path} has an answer for each worker"
    )))
}

impl Merge for Status {
    /// A status has no rows.
    const ROWS: &'static str = "";

    fn merge(_: Vec<Self>, path: &str, _: &ListQuery) -> Result<Self, ClientError> {
        of_each(path)
    }
}

impl Merge for Report {
    const ROWS: &'static str = "applications";

    fn merge(_: Vec<Self>, path: &str, _: &ListQuery) -> Result<Self, ClientError> {
        of_each(path)
    }
}

impl Merge for Histories {
    const ROWS: &'static str = "rows";

    fn merge(_: Vec<Self>, path: &str, _: &ListQuery) -> Result<Self, ClientError> {
        of_each(path)
    }
}

impl Merge for Advice {
    const ROWS: &'static str = "applications";

    /// The surroundings are of one worker each, by process id: they are left out.
    fn merge(parts: Vec<Self>, _: &str, _: &ListQuery) -> Result<Self, ClientError> {
        let mut applications: Vec<_> = parts
            .into_iter()
            .flat_map(|part| part.applications)
            .collect();
        sort_by_key(&mut applications, ApplicationAdvice::application);
        Ok(Self {
            applications,
            ..Self::default()
        })
    }
}

impl Merge for Deaths {
    const ROWS: &'static str = "rows";

    fn merge(parts: Vec<Self>, _: &str, _: &ListQuery) -> Result<Self, ClientError> {
        let mut all = Self::default();
        for part in parts {
            all.rows.extend(part.rows);
            for (sum, figure) in [
                (&mut all.left_out, part.left_out),
                (&mut all.waiting, part.waiting),
                (&mut all.lost, part.lost),
            ] {
                *sum = sum.saturating_add(figure);
            }
            if !part.failing.is_empty() && all.failing.is_empty() {
                all.failing = part.failing;
            }
        }
        sort_by_key(&mut all.rows, |row| std::cmp::Reverse(row.died_unix_ms));
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_worker_without_faults_before_tracing_leaves_no_sum() {
        let part = |executors, before| Summary {
            executors,
            page_faults: Some(10),
            page_faults_before_tracing: before,
            ..Summary::default()
        };
        let before = |parts: &[Summary]| sum(parts.iter().cloned()).page_faults_before_tracing;
        let whole = [part(1, Some(300)), part(2, Some(50)), part(0, None)];
        assert_eq!(before(&whole), Some(350));
        assert_eq!(before(&[part(1, Some(300)), part(1, None)]), None);
        assert_eq!(before(&[part(0, None)]), None);
    }

    #[test]
    fn one_worker_cannot_turn_the_order_of_all_rows() {
        let part = |values: [Value; 2]| Listing {
            rows: values.map(|value| json!({"stage_id": value})).into(),
            ..Listing::default()
        };
        let parts = vec![
            part([json!("1.0"), json!("3.0")]),
            part([json!("2.0"), json!("4.0")]),
            part([json!(7), json!([1])]),
        ];
        let question = ListQuery {
            sort: Some("stage_id".to_owned()),
            ..ListQuery::default()
        };
        let merged = Listing::<Value>::merge(parts, "/nowhere", &question).expect("merged");
        let shown: Vec<&Value> = merged.rows.iter().map(|row| &row["stage_id"]).collect();
        assert_eq!(
            shown,
            [
                &json!(7),
                &json!("1.0"),
                &json!("2.0"),
                &json!("3.0"),
                &json!("4.0"),
                &json!([1])
            ]
        );
    }
}
