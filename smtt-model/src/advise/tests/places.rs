//! Rules about placement: small pages, other nodes, memory that was never written.

use super::*;

fn with_walks(mut view: View, low: f64, of_executor: f64) -> View {
    let spread = |value: f64| Spread {
        value,
        low,
        high: None,
    };
    view.rdds[0].walks = PageWalkRow {
        page_walks: BTreeMap::from([(
            "page_walk_read_cycles".to_owned(),
            FigureRow {
                samples: 900,
                ratio_is: Some("fraction".to_owned()),
                ratio: Some(spread(low + 0.01)),
                ratio_of_executor: Some(spread(of_executor)),
                ..FigureRow::default()
            },
        )]),
        ..PageWalkRow::default()
    };
    view
}

#[test]
fn small_pages_count_by_what_their_walks_cost() {
    let advice = advise(&with_walks(view(), 0.2, 0.1), &around());
    let finding = found(&advice, "small_pages").expect("found");
    assert_eq!(
        (finding.severity, finding.cost.share),
        (Severity::Medium, Some(0.1))
    );
    assert!(lines(finding).contains("-XX:+UseTransparentHugePages"));
    // Whatever an executor claims to hold.
    let mut absurd = with_walks(view(), 0.2, 0.1);
    absurd.rdds[0].storage_memory_bytes = u64::MAX;
    absurd.rdds[0].execution_memory_bytes = u64::MAX;
    absurd.rdds[0].storage_memory_off_heap_bytes = u64::MAX;
    absurd.rdds[0].execution_memory_off_heap_bytes = u64::MAX;
    assert!(found(&advise(&absurd, &around()), "small_pages").is_some());
    // The lower end of the interval decides.
    assert!(
        found(
            &advise(&with_walks(view(), 0.04, 0.1), &around()),
            "small_pages"
        )
        .is_none()
    );
    // Large pages.
    let mut large = with_walks(view(), 0.2, 0.1);
    large.pages[0].page_sizes = Some(vec![PageSizeRow {
        page_bytes: 2 << 20,
        bytes: 128 * MIB,
    }]);
    assert!(found(&advise(&large, &around()), "small_pages").is_none());
    // Unknown page sizes are neither small nor large.
    large.pages[0].page_sizes = None;
    assert_eq!(
        went(&advise(&large, &around()), "small_pages"),
        RuleOutcome::NotChecked
    );
}

#[test]
fn without_counters_page_faults_stand_in_and_the_finding_says_so() {
    let mut view = view();
    view.no_walks = "no hardware counters".to_owned();
    assert!(
        found(&advise(&view, &around()), "small_pages").is_none(),
        "no faults, no claim"
    );
    view.rdds[0].faults = FaultFigures {
        page_faults: Some(100_000),
        ..FaultFigures::default()
    };
    let advice = advise(&view, &around());
    let finding = found(&advice, "small_pages").expect("found");
    assert_eq!(finding.severity, Severity::Low);
    assert!(finding.cost.estimated);
    // 100,000 faults at a microsecond of 10 s of CPU time.
    assert_eq!(finding.cost.share, Some(0.01));
    assert!(
        finding.not_measured[0].contains("no hardware counters"),
        "{finding:?}"
    );
    // Without the process's times there is no share, not one of nothing.
    let mut blind = around();
    blind.processes.clear();
    let advice = advise(&view, &blind);
    assert_eq!(
        found(&advice, "small_pages").expect("found").cost.share,
        None
    );
}

#[test]
fn the_huge_page_setting_follows_where_the_bytes_are_and_what_is_set() {
    let said = |view: &View, around: &Surroundings| {
        lines(found(&advise(view, around), "small_pages").expect("found"))
    };
    let mut view = with_walks(view(), 0.2, 0.1);
    let on_heap = said(&view, &around());
    assert!(!on_heap.contains("glibc"), "{on_heap}");
    view.rdds[0].storage_memory_off_heap_bytes = 128 * MIB;
    let off_heap = said(&view, &around());
    assert!(
        off_heap.contains("glibc.malloc.hugetlb=1")
            && !off_heap.contains("UseTransparentHugePages"),
        "{off_heap}"
    );
    view.rdds[0].storage_memory_off_heap_bytes = 0;
    let never = Surroundings {
        transparent_huge_pages: Some("never".to_owned()),
        ..around()
    };
    assert!(said(&view, &never).starts_with("echo madvise >"));
    let always = Surroundings {
        transparent_huge_pages: Some("always".to_owned()),
        ..around()
    };
    let reserved = said(&view, &always);
    assert!(
        reserved.contains("vm.nr_hugepages=512"),
        "1 GiB of heap: {reserved}"
    );
}

#[test]
fn remote_reads_matter_where_executors_are_free_to_be_remote() {
    let mut view = view();
    view.pages[0].read_local_bytes = Some(100 * MIB);
    view.pages[0].read_remote_bytes = Some(300 * MIB);
    let advice = advise(&view, &around());
    let finding = found(&advice, "remote_memory").expect("found");
    assert_eq!(
        (finding.severity, finding.cost.share),
        (Severity::Medium, Some(0.75))
    );
    let said = lines(finding);
    assert!(
        said.contains("numactl --cpunodebind=N --membind=N"),
        "{said}"
    );
    // While the addresses of its pages are stale.
    let resolved = view.pages[0].resolved_bytes.take();
    assert!(resolved > Some(0) && found(&advise(&view, &around()), "remote_memory").is_some());
    view.pages[0].read_remote_bytes = Some(0);
    assert_eq!(
        went(&advise(&view, &around()), "remote_memory"),
        RuleOutcome::NotChecked
    );
    view.pages[0].read_remote_bytes = Some(300 * MIB);
    view.pages[0].resolved_bytes = resolved;
    // Bound to one node.
    let mut bound = around();
    let process = bound.processes.get_mut(&7).expect("there");
    (process.memory_nodes, process.cpu_nodes) = (Some(vec![0]), Some(vec![0]));
    assert!(found(&advise(&view, &bound), "remote_memory").is_none());
    // One node.
    bound.nodes = Some(vec![0]);
    assert_eq!(
        went(&advise(&view, &bound), "remote_memory"),
        RuleOutcome::Nothing
    );
    // Where reads were not placed, where the bytes are is all that is known, and worth less.
    view.pages[0].read_local_bytes = None;
    view.pages[0].read_remote_bytes = None;
    assert!(
        found(&advise(&view, &around()), "remote_memory").is_none(),
        "all on one node"
    );
    let node = |node| NodeRow {
        node,
        bytes: 64 * MIB,
    };
    view.pages[0].nodes = Some(vec![node(0), node(1)]);
    let advice = advise(&view, &around());
    let finding = found(&advice, "remote_memory").expect("found");
    assert_eq!(
        (finding.severity, finding.cost.share),
        (Severity::Low, Some(0.5))
    );
    assert!(finding.not_measured[0].contains("no read of its blocks has a known node"));
    // Two executors, each on a node of its own, are as it should be.
    let on = |at| PagesRow {
        nodes: Some(vec![NodeRow {
            node: at,
            bytes: 128 * MIB,
        }]),
        ..in_memory(7)
    };
    view.pages = vec![on(0), on(1)];
    assert!(found(&advise(&view, &around()), "remote_memory").is_none());
}

#[test]
fn who_is_bound_by_numactl_is_judged_by_where_its_bytes_are() {
    let free = |finding: &Finding| {
        let number = finding
            .numbers
            .iter()
            .find(|number| number.what.starts_with("executors here"));
        number.map(|number| number.value)
    };
    let mut view = view();
    view.pages[0].read_local_bytes = Some(100 * MIB);
    view.pages[0].read_remote_bytes = Some(300 * MIB);
    let advice = advise(&view, &around());
    assert_eq!(
        free(found(&advice, "remote_memory").expect("found")),
        Some(Number::Whole(1))
    );
    // The nodes that it may take memory from do not show what its own policy allows.
    let mut bound = around();
    bound.processes.get_mut(&7).expect("there").cpu_nodes = Some(vec![0]);
    let advice = advise(&view, &bound);
    let finding = found(&advice, "remote_memory").expect("its memory is on another node");
    assert_eq!(free(finding), Some(Number::Whole(0)));
    view.pages[0].read_remote_bytes = Some(0);
    let advice = advise(&view, &bound);
    assert!(found(&advice, "remote_memory").is_none());
}

#[test]
fn objects_on_several_nodes_are_found_by_their_sample() {
    let mut view = view();
    view.pages[0] = of_objects(0.0, &[(0, 0.5), (1, 0.5)]);
    let advice = advise(&view, &around());
    let finding = found(&advice, "remote_memory").expect("found");
    assert_eq!(
        (finding.severity, finding.cost.share, finding.cost.estimated),
        (Severity::Low, Some(0.5), true)
    );
    view.pages[0] = of_objects(0.0, &[(0, 0.9), (1, 0.1)]);
    let advice = advise(&view, &around());
    assert!(found(&advice, "remote_memory").is_none());
    assert_eq!(went(&advice, "remote_memory"), RuleOutcome::Nothing);
    // Most of it is on one node, but not on that of the CPUs.
    let mut elsewhere = around();
    elsewhere.processes.get_mut(&7).expect("there").cpu_nodes = Some(vec![1]);
    let advice = advise(&view, &elsewhere);
    let finding = found(&advice, "remote_memory").expect("found");
    assert!(
        finding
            .cost
            .share
            .is_some_and(|share| (share - 0.9).abs() < 0.01),
        "{finding:?}"
    );
}

#[test]
fn memory_that_was_never_written_is_found() {
    let mut view = view();
    view.pages[0].zero_page_bytes = Some(40 * MIB);
    view.pages[0].untouched_bytes = Some(30 * MIB);
    let advice = advise(&view, &around());
    assert_eq!(
        found(&advice, "without_memory").expect("found").severity,
        Severity::Low
    );
    view.pages[0].untouched_bytes = Some(MIB);
    assert!(found(&advise(&view, &around()), "without_memory").is_none());
    view.pages[0].untouched_bytes = Some(70 * MIB);
    view.pages[0].zero_page_bytes = None;
    let advice = advise(&view, &around());
    let finding = found(&advice, "without_memory").expect("found");
    assert!(
        finding
            .not_measured
            .iter()
            .any(|line| line.contains("never written"))
    );
}
