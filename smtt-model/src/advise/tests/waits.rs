//! Rules about what tasks wait for: spilling, first touches, faults that need the disk.

use super::*;

#[test]
fn spilling_is_found_by_its_share_of_the_task_time() {
    let mut view = view();
    view.stages = vec![StageRow {
        who: who(),
        stage_id: Some(3),
        task_time_ns: 100_000,
        execution_memory_peak_bytes: MIB,
        ..StageRow::default()
    }];
    let spill = |duration_ns| {
        BTreeMap::from([(
            "spill".to_owned(),
            SpanRow {
                count: 2,
                duration_ns,
            },
        )])
    };
    view.executors[0].spans = spill(4_000);
    assert!(found(&advise(&view, &around()), "spilling").is_none());
    view.executors[0].spans = spill(30_000);
    let advice = advise(&view, &around());
    let finding = found(&advice, "spilling").expect("found");
    assert_eq!(
        (finding.severity, finding.cost.share),
        (Severity::High, Some(0.3))
    );
    assert!(finding.title.contains("stage 3"), "{}", finding.title);
    assert_eq!(finding.saving, Some(Saving::new(0.0, 15e-6, 30e-6)));
    assert_eq!(
        lines(finding),
        "",
        "what was spilled is not known, so no value is"
    );
    view.executors[0].spans.insert(
        "merge".to_owned(),
        SpanRow {
            count: 1,
            duration_ns: 10_000,
        },
    );
    // Two tasks that held 1 MiB each spilled 3 MiB: two and a half times as much for each.
    view.stages[0].used.memory_spilled_bytes = Some(3 * MIB);
    view.stages[0].used_tasks = 2;
    view.stages[0].tasks = Some(100);
    let advice = advise(&view, &around());
    let finding = found(&advice, "spilling").expect("found");
    assert_eq!(finding.saving, Some(Saving::new(0.0, 20e-6, 40e-6)));
    let said = lines(finding);
    assert!(
        said.contains("spark.sql.shuffle.partitions  250")
            && said.contains("spark.executor.memory  2560m"),
        "{said}"
    );
}

#[test]
fn a_storm_of_first_touches_is_found_where_the_start_was_watched() {
    let mut view = view();
    let row = &mut view.executors[0];
    row.faults.page_faults = Some(4_000_000);
    row.page_faults_first_minute = Some(3_600_000);
    row.start_unix_ms = Some(view.now_unix_ms - 10 * 60_000 - 2_000);
    let advice = advise(&view, &around());
    let finding = found(&advice, "first_touch").expect("found");
    // 3.6 s of a minute.
    assert_eq!(
        (finding.severity, finding.cost.share),
        (Severity::Medium, Some(0.06))
    );
    // By assumed times: a fault takes 0.5 to 2.5 us.
    assert_eq!(finding.saving, Some(Saving::new(0.0, 3.6, 9.0)));
    assert!(finding.computed.contains("(assumed)"), "{finding:?}");
    let mut measured = view.clone();
    measured.faults = vec![FaultFigures {
        page_faults: Some(1_000),
        page_faults_timed: Some(100),
        page_fault_time_ns: Some(2_000_000),
        page_fault_time_error_ns: Some(100_000),
        ..FaultFigures::default()
    }];
    let advice_by_measured = advise(&measured, &around());
    let finding_by_measured = found(&advice_by_measured, "first_touch").expect("found");
    assert_eq!(finding_by_measured.cost.share, Some(0.12));
    assert!(
        finding_by_measured
            .computed
            .contains("2000 ns each (measured)"),
        "{finding_by_measured:?}"
    );
    assert!(
        lines(finding).contains("-XX:+AlwaysPreTouch -Xms1024m"),
        "{}",
        lines(finding)
    );
    // It does so already.
    let mut touched = around();
    let options = &mut touched.processes.get_mut(&7).expect("there").options;
    *options = Some(vec!["-XX:+AlwaysPreTouch".to_owned()]);
    assert!(found(&advise(&view, &touched), "first_touch").is_none());
    // Faults go on as they began.
    view.executors[0].faults.page_faults = Some(9_000_000);
    assert!(found(&advise(&view, &around()), "first_touch").is_none());
    // Heard of an hour after its start.
    view.executors[0].start_unix_ms = Some(view.now_unix_ms - 70 * 60_000);
    assert_eq!(
        went(&advise(&view, &around()), "first_touch"),
        RuleOutcome::NotChecked
    );
}

#[test]
fn major_faults_are_found_by_their_rate() {
    let mut view = view();
    view.executors[0].faults.page_faults_major = Some(0);
    assert_eq!(
        went(&advise(&view, &around()), "major_faults"),
        RuleOutcome::Nothing
    );
    view.executors[0].faults.page_faults_major = Some(60_000);
    let advice = advise(&view, &around());
    let finding = found(&advice, "major_faults").expect("found");
    assert_eq!(
        (finding.severity, finding.cost.share),
        (Severity::High, None)
    );
    view.executors[0].faults.page_faults_major = Some(3_000);
    assert!(
        found(&advise(&view, &around()), "major_faults").is_none(),
        "five per second"
    );
}
