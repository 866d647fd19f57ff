//! Findings about RDDs that have something in common.

use super::*;

/// Twenty unread RDDs of a query's runs, and two of no query.
fn unread() -> View {
    let row = |id: u32, mib: u64, query: Option<u64>| RddRow {
        block_reads: Some(0),
        storage_memory_bytes: mib * MIB,
        storage_memory_peak_bytes: mib * MIB,
        sql_execution_id: query,
        sql_description: query.map(|_| "SELECT count(*) FROM users".to_owned()),
        who: ExecutorId {
            executor_id: Some((id % 3).to_string()),
            ..who()
        },
        ..rdd(id, "MapPartitionsRDD")
    };
    let of_query = (0..20).map(|id| row(id, 2 + u64::from(id), Some(u64::from(id / 2))));
    let others = (30..32).map(|id| row(id, 40, None));
    View {
        rdds: of_query.chain(others).collect(),
        pages: Vec::new(),
        ..view()
    }
}

fn unread_findings(by: Option<GroupBy>) -> (Vec<Finding>, u64) {
    let view = View { by, ..unread() };
    let advice = advise(&view, &around());
    let check = advice.checks.iter().find(|check| check.id == "never_read");
    let left_out = check.expect("the rule").left_out;
    let of_rule = |it: &Finding| it.id == "never_read";
    (
        advice.findings.into_iter().filter(of_rule).collect(),
        left_out,
    )
}

#[test]
fn twenty_rdds_of_a_query_are_one_finding() {
    let (each, left_out) = unread_findings(None);
    assert_eq!((each.len(), left_out), (FINDINGS_PER_RULE, 17));
    assert!(each.iter().all(|it| it.subject.group.is_none()));

    let (grouped, left_out) = unread_findings(Some(GroupBy::Query));
    // RDDs of no query have nothing in common.
    assert_eq!((grouped.len(), left_out), (3, 0));
    let first = &grouped[0];
    assert_eq!(first.subject.rdds, Some(20));
    assert_eq!(first.subject.rdd_id, Some(19));
    assert_eq!(
        first.subject.group.as_deref(),
        Some("SELECT count(*) FROM users")
    );
    assert_eq!(first.subject.executor_ids, ["0", "1", "2"]);
    assert_eq!(
        first.title,
        "RDD 19 (MapPartitionsRDD) is cached (21.0 MiB) and was never read; the same of 19 more RDDs of the query SELECT \
         count(*) FROM users"
    );
    assert_eq!(first.numbers[0], count("RDDs with this finding", 20));
    // Shares of one whole add up: 2 to 21 MiB of 310.
    let share = first.cost.share.expect("a share");
    assert!((share - 230.0 / 310.0).abs() < 1e-9, "{share}");
    assert_eq!(first.severity, Severity::High);
    let alone = (grouped[1].subject.rdds, grouped[1].title.contains("more"));
    assert_eq!(alone, (None, false));
}

#[test]
fn shares_of_what_is_an_rdds_own_do_not_add_up() {
    let mut view = view();
    view.rdds = (0..4)
        .map(|id| RddRow {
            blocks_stored: 20,
            blocks_stored_again: 10 + u64::from(id),
            blocks_evicted: 12,
            blocks_stored_again_ns: Some(2_000_000_000),
            call_site: Some("cache at Users.scala:7".to_owned()),
            ..rdd(id, "users")
        })
        .collect();
    view.by = Some(GroupBy::CallSite);
    let advice = advise(&view, &around());
    let of_rule = advice.findings.iter();
    let found: Vec<&Finding> = of_rule
        .filter(|it| it.id == "evicted_and_stored_again")
        .collect();
    let [one] = found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(one.cost.share, Some(13.0 / 20.0));
    assert!(one.cost.of.ends_with("of the RDD where it costs most"));
    // Seconds do.
    assert_eq!(one.saving.map(|it| it.high), Some(8.0));
    assert!(
        one.title
            .ends_with("3 more RDDs made at cache at Users.scala:7")
    );
}
