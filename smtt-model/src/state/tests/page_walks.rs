//! Page walks: sums, ratios, the last minute and distributions, from hand-made readings.

use super::*;
use smtt_common::counter::Unattributed;
use smtt_common::page_walk::WalkCounters;

use crate::cpu::{FigureName, Quantity, Ratio, Role};
use crate::readings::{
    Calibration, Channel, ChannelFigure, ClockReadings, CostPerWalk, PageWalkReadings,
};
use crate::rows::{Number, OnCpuRow, PageWalkRow, Part};

fn channel(role: Role, fault: &str) -> Channel {
    Channel {
        role,
        event: format!("event of {role}"),
        quantity: Quantity::Cycles,
        pass: 0,
        period: 1000,
        counted: 0,
        sampled: 0,
        samples: 0,
        enabled_ns: 10,
        running_ns: 10,
        fault: fault.to_owned(),
    }
}

fn figure(name: FigureName, of: usize, less: Option<usize>, ratio: Option<Ratio>) -> ChannelFigure {
    ChannelFigure {
        name,
        quantity: Quantity::Cycles,
        of,
        less,
        cycles: Some(0),
        ratio,
    }
}

/// Events in thousands by channel, each thousand a sample.
fn walks(thousands: &[u64]) -> WalkCounters {
    let mut counters = WalkCounters::default();
    for (channel, count) in thousands.iter().enumerate() {
        counters.events[channel] = count * 1000;
        counters.samples[channel] = *count;
    }
    counters
}

/// What a core with these events gives.
fn machine(roles: &[Role], figures: Vec<ChannelFigure>) -> PageWalkReadings {
    PageWalkReadings {
        channels: roles.iter().map(|role| channel(*role, "")).collect(),
        figures,
        ..PageWalkReadings::default()
    }
}

/// A core that counts walk cycles of loads and stores apart.
fn big_core() -> PageWalkReadings {
    machine(
        &[Role::Cycles, Role::LoadWalkCycles, Role::StoreWalkCycles],
        vec![
            figure(FigureName::ReadWalkCycles, 1, None, Some(Ratio::Fraction)),
            figure(FigureName::WriteWalkCycles, 2, None, Some(Ratio::Fraction)),
        ],
    )
}

/// Two RDDs of one executor, and its collector.
fn work(mut machine: PageWalkReadings) -> Readings {
    machine.contexts = vec![
        (context(1, 1, 3, Some(7)), walks(&[100, 20, 2])),
        (context(1, 1, 3, Some(8)), walks(&[50, 0, 10])),
        (
            ContextKey::without_context(key(1), Unattributed::GC),
            walks(&[50, 5, 5]),
        ),
    ];
    Readings {
        page_walks: Some(machine),
        ..readings(vec![])
    }
}

fn rdd_row(state: &State, id: u32) -> PageWalkRow {
    let rows = state.list_rdds(&Filter::default()).rows;
    rows.into_iter()
        .find(|row| row.rdd_id == Some(id))
        .expect("the RDD is listed")
        .walks
}

fn real(row: &PageWalkRow, field: &str) -> Option<f64> {
    match row.flat.get(field)? {
        Number::Real(value) => Some(*value),
        Number::Whole(_) => None,
    }
}

fn whole(row: &PageWalkRow, field: &str) -> Option<u64> {
    match row.flat.get(field)? {
        Number::Whole(value) => Some(*value),
        Number::Real(_) => None,
    }
}

#[test]
fn a_machine_without_counters_has_no_column() {
    let mut state = state();
    state.add(
        &readings(vec![(context(1, 1, 3, Some(7)), faults(1, 0, 0))]),
        S,
    );
    assert_eq!(rdd_row(&state, 7), PageWalkRow::default());
    assert_eq!(state.page_walks_shown(), None);
}

#[test]
fn walk_cycles_are_fractions_of_the_rdds_own_cycles_and_of_the_executors() {
    let mut state = state();
    state.add(&work(big_core()), S);
    let row = rdd_row(&state, 7);
    assert_eq!(whole(&row, "page_walk_read_cycles"), Some(20_000));
    assert_eq!(whole(&row, "cycles"), Some(100_000));
    assert_eq!(whole(&row, "page_walk_samples"), Some(22));
    assert_eq!(real(&row, "page_walk_read_ratio"), Some(0.2));
    assert_eq!(real(&row, "page_walk_read_ratio_of_executor"), Some(0.1));
    assert_eq!(real(&row, "page_walk_write_ratio"), Some(0.02));
    let read = &row.page_walks["page_walk_read_cycles"];
    let ratio = read.ratio.expect("a ratio");
    assert!(ratio.low < 0.2 && ratio.high.expect("enough samples") > 0.2);
    assert_eq!(read.ratio_is.as_deref(), Some("fraction"));
    let other = rdd_row(&state, 8);
    assert_eq!(
        real(&other, "page_walk_read_ratio"),
        Some(0.0),
        "measured, and nothing seen"
    );
    let none = &other.page_walks["page_walk_read_cycles"];
    assert!(
        none.events.high.expect("an upper end") > 3000.0,
        "no sample is not no walk"
    );
}

#[test]
fn attributed_and_unattributed_are_all_that_was_sampled() {
    let mut state = state();
    state.add(&work(big_core()), S);
    let (with, without, other) = state.walk_totals();
    assert_eq!(with, walks(&[150, 20, 12]));
    assert_eq!(without, walks(&[50, 5, 5]));
    assert_eq!(other, WalkCounters::default());
    let row = &state.list_executors(&Filter::default()).rows[0];
    assert_eq!(row.cycles_unattributed_share, Some(0.25));
    assert_eq!(
        row.cycles_unattributed
            .as_ref()
            .and_then(|classes| classes.get("gc_thread")),
        Some(&50_000)
    );
    let stages = state.list_stages(&Filter::default()).rows;
    assert_eq!(whole(&stages[0].walks, "cycles"), Some(150_000));
    assert_eq!(stages[0].rdds.len(), 2);
    let tasks = state.list_tasks(&Filter::default()).rows;
    assert_eq!(
        whole(&tasks[0].walks, "page_walk_write_cycles"),
        Some(12_000)
    );
}

#[test]
fn writes_by_difference_never_go_below_zero() {
    let mut state = state();
    let westmere = machine(
        &[
            Role::Cycles,
            Role::LoadWalkCycles,
            Role::DsideWalkCyclesCombined,
        ],
        vec![
            figure(FigureName::ReadWalkCycles, 1, None, Some(Ratio::Fraction)),
            figure(
                FigureName::WriteWalkCycles,
                2,
                Some(1),
                Some(Ratio::Fraction),
            ),
        ],
    );
    state.add(&work(westmere), S);
    assert_eq!(
        real(&rdd_row(&state, 7), "page_walk_write_ratio"),
        Some(0.0)
    );
    assert_eq!(
        real(&rdd_row(&state, 8), "page_walk_write_ratio"),
        Some(0.2)
    );
}

#[test]
fn counts_are_counts_and_their_ratio_an_estimate_with_a_known_cost() {
    let mut state = state();
    let zen = || {
        machine(
            &[Role::Cycles, Role::LoadWalksCompleted],
            vec![figure(
                FigureName::DtlbReadMisses,
                1,
                None,
                Some(Ratio::Estimated),
            )],
        )
    };
    state.add(&work(zen()), S);
    let row = rdd_row(&state, 7);
    assert_eq!(whole(&row, "dtlb_read_misses"), Some(20_000));
    assert_eq!(
        real(&row, "page_walk_read_estimated_ratio"),
        None,
        "its cost is not known"
    );
    assert_eq!(
        row.flat.get("page_walk_read_ratio"),
        None,
        "never called measured"
    );
    state.set_calibration(Some(Calibration {
        read: Some(CostPerWalk {
            cycles: 2.0,
            low: 1.5,
            high: 2.5,
        }),
        write: None,
        method: "huge pages".into(),
        ..Calibration::default()
    }));
    assert_eq!(
        real(&rdd_row(&state, 7), "page_walk_read_estimated_ratio"),
        Some(0.4)
    );
}

#[test]
fn occupancy_has_a_name_of_its_own() {
    let mut state = state();
    let atom = machine(
        &[Role::Cycles, Role::LoadWalkPending],
        vec![figure(
            FigureName::ReadWalkOccupancy,
            1,
            None,
            Some(Ratio::Occupancy),
        )],
    );
    state.add(&work(atom), S);
    let row = rdd_row(&state, 7);
    assert_eq!(real(&row, "page_walk_read_occupancy_per_cycle"), Some(0.2));
    assert_eq!(row.flat.get("page_walk_read_ratio"), None);
}

#[test]
fn an_event_that_failed_is_not_published() {
    let mut state = state();
    let mut broken = big_core();
    broken.channels[2] = channel(Role::StoreWalkCycles, "it counts nothing on this machine");
    state.add(&work(broken), S);
    let row = rdd_row(&state, 7);
    assert_eq!(real(&row, "page_walk_read_ratio"), Some(0.2));
    assert!(
        row.flat.keys().all(|field| !field.contains("write")),
        "{row:?}"
    );
    let mut no_cycles = big_core();
    no_cycles.channels[0] = channel(Role::Cycles, "it has had no counter");
    state.add(&work(no_cycles), 2 * S);
    let row = rdd_row(&state, 7);
    assert_eq!(row.flat.get("cycles"), None);
    assert!(
        row.flat.keys().all(|field| !field.contains("ratio")),
        "{row:?}"
    );
    assert_eq!(whole(&row, "page_walk_read_cycles"), Some(40_000));
}

#[test]
fn the_last_minute_forgets_what_is_older() {
    let mut state = state();
    state.add(&work(big_core()), S);
    state.add(
        &Readings {
            page_walks: Some(PageWalkReadings {
                contexts: vec![(context(1, 1, 3, Some(7)), walks(&[100, 60]))],
                ..big_core()
            }),
            ..readings(vec![])
        },
        100 * S,
    );
    let row = rdd_row(&state, 7);
    assert_eq!(real(&row, "page_walk_read_ratio"), Some(0.4));
    let recent = real(&row, "page_walk_read_ratio_last_minute").expect("it did something");
    assert!((recent - 0.6).abs() < 1e-9, "{recent}");
    let idle = rdd_row(&state, 8);
    assert_eq!(real(&idle, "page_walk_write_ratio"), Some(0.2));
    assert_eq!(idle.flat.get("page_walk_write_ratio_last_minute"), None);
}

#[test]
fn the_distribution_is_over_tasks_that_ended_and_were_sampled_enough() {
    let mut state = state();
    let mut contexts = Vec::new();
    for task in 1..=10 {
        tell(&mut state, 1, S, started(task, 3));
        contexts.push((context(1, task, 3, Some(7)), walks(&[100, task])));
    }
    tell(&mut state, 1, S, started(11, 3));
    contexts.push((context(1, 11, 3, Some(7)), walks(&[29, 29])));
    let one = Readings {
        page_walks: Some(PageWalkReadings {
            contexts,
            ..big_core()
        }),
        ..readings(vec![])
    };
    state.add(&one, 2 * S);
    for task in 1..=11 {
        tell(&mut state, 1, 3 * S, ended(task, 3, TaskOutcome::Succeeded));
    }
    let nothing = Readings {
        page_walks: Some(big_core()),
        ..readings(vec![])
    };
    state.add(&nothing, 4 * S);
    let tasks = |state: &State| rdd_row(state, 7).page_walks["page_walk_read_cycles"].tasks;
    assert_eq!(tasks(&state), None, "late samples may still come");
    state.add(&nothing, 6 * S);
    assert_eq!(tasks(&state), Some(10), "one has too few samples");
    let row = rdd_row(&state, 7);
    let read = &row.page_walks["page_walk_read_cycles"];
    let near = |seen: Option<f64>, want: f64| (seen.expect("points") - want).abs() < 0.02 * want;
    assert!(
        near(read.ratio_p50, 0.05) && near(read.ratio_p99, 0.10),
        "{read:?}"
    );
    let stage = &state.list_stages(&Filter::default()).rows[0];
    assert_eq!(
        stage.walks.page_walks["page_walk_read_cycles"].tasks,
        Some(10)
    );
}

#[test]
fn what_has_no_row_is_kept_in_the_overflow_rows() {
    let mut state = State::new(Limits {
        rdds_per_executor: 2,
        tasks_per_executor: 2,
        ..Limits::default()
    });
    for rdd in 0..20 {
        let mut one = big_core();
        one.contexts = vec![(context(1, u64::from(rdd), 3, Some(rdd)), walks(&[10, 1, 1]))];
        state.add(
            &Readings {
                page_walks: Some(one),
                ..readings(vec![])
            },
            u64::from(rdd + 1) * S,
        );
    }
    let sum = |rows: Vec<PageWalkRow>| -> u64 {
        rows.iter().filter_map(|row| whole(row, "cycles")).sum()
    };
    let rdds = state.list_rdds(&Filter::default()).rows;
    assert_eq!(
        sum(rdds.into_iter().map(|row| row.walks).collect()),
        200_000
    );
    let tasks = state.list_tasks(&Filter::default()).rows;
    assert_eq!(
        sum(tasks.into_iter().map(|row| row.walks).collect()),
        200_000
    );
}

#[test]
fn parts_without_a_sample_have_no_figures_and_their_row_has() {
    let mut state = state();
    let mut work = work(big_core());
    work.contexts
        .push((context(1, 1, 3, Some(9)), faults(1, 0, 0)));
    state.add(&work, S);
    let stage = state.list_stages(&Filter::default()).rows.remove(0);
    let parts: Vec<_> = stage
        .rdds
        .iter()
        .map(|part| (part.rdd_id, whole(&part.walks, "cycles")))
        .collect();
    let wanted = [
        (Some(7), Some(100_000)),
        (Some(8), Some(50_000)),
        (Some(9), None),
    ];
    assert_eq!(parts, wanted);
    assert_eq!(stage.rdds[2].walks, PageWalkRow::default());
    assert_eq!(whole(&rdd_row(&state, 9), "cycles"), Some(0));
    let rdds = state.list_rdds(&Filter::default()).rows;
    let of = |id| {
        rdds.iter()
            .find(|row| row.rdd_id == Some(id))
            .expect("listed")
    };
    assert_eq!(whole(&of(7).contexts[0].walks, "cycles"), Some(100_000));
    assert_eq!(of(9).contexts[0].walks, PageWalkRow::default());
}

#[test]
fn parts_of_a_listing_have_each_row_once() {
    let mut state = state();
    for stage in 0..300 {
        let contexts = (0..9).map(|rdd| {
            (
                context(1, u64::from(stage), stage, Some(rdd)),
                faults(1, 0, 0),
            )
        });
        state.add(&readings(contexts.collect()), S);
    }
    let key = key(1);
    assert_eq!(state.rows_of_stages(key), 300 * 10);
    let parts: Vec<_> = Part::all(state.rows_of_stages(key), 7).collect();
    assert_eq!(parts.len(), 3);
    let filters = parts.into_iter().map(|part| Filter {
        part: Some(part),
        ..Filter::default()
    });
    let (mut stages, mut tasks, mut rdds) = (Vec::new(), Vec::new(), Vec::new());
    for filter in filters {
        let rows = state.list_stages(&filter).rows;
        assert!(
            (50..200).contains(&rows.len()),
            "{} stages in a part",
            rows.len()
        );
        stages.extend(rows.into_iter().map(|row| row.stage_id));
        tasks.extend(
            state
                .list_tasks(&filter)
                .rows
                .into_iter()
                .map(|row| row.task_attempt_id),
        );
        rdds.extend(
            state
                .list_rdds(&filter)
                .rows
                .into_iter()
                .map(|row| row.rdd_id),
        );
    }
    stages.sort_unstable();
    tasks.sort_unstable();
    rdds.sort_unstable();
    assert_eq!(stages, (0..300).map(Some).collect::<Vec<_>>());
    assert_eq!(tasks, (0..300).map(Some).collect::<Vec<_>>());
    assert_eq!(rdds, (0..9).map(Some).collect::<Vec<_>>());
}

#[test]
fn rows_in_short_have_what_the_rules_use() {
    let mut state = state();
    state.add(&work(big_core()), S);
    let short = state.stages_in_short(&Filter::default());
    let whole = state.list_stages(&Filter::default()).rows;
    let sum: u64 = whole.iter().map(|row| row.task_time_ns).sum();
    assert_eq!((short.len(), short[0].task_time_ns), (1, sum));
    assert_eq!(short[0].stage_id, whole[0].stage_id);
    // Neither holds memory nor has blocks.
    assert_eq!(state.rdds_in_short(&Filter::default(), false), []);
}

#[test]
fn cycles_of_a_task_are_divided_by_activity() {
    let mut state = state();
    tell(&mut state, 1, S, started(1, 3));
    tell(&mut state, 1, S, started(2, 3));
    let doing = |activity: u8, rdd| ContextKey {
        activity,
        ..context(1, 1, 3, Some(rdd))
    };
    let contexts = vec![
        (doing(Activity::SORT.0, 7), walks(&[40, 9])),
        // The same activity of another RDD.
        (doing(Activity::SORT.0, 8), walks(&[20])),
        (doing(Activity::COMPUTE.0, 7), walks(&[30])),
        // Two codes that this version does not know.
        (doing(200, 7), walks(&[6])),
        (doing(201, 7), walks(&[4])),
        // Walks alone are no time.
        (doing(Activity::SPILL.0, 7), walks(&[0, 5])),
    ];
    let reading = Readings {
        page_walks: Some(PageWalkReadings {
            contexts,
            ..big_core()
        }),
        ..readings(vec![])
    };
    state.add(&reading, 2 * S);
    let row = on_cpu(&state, 1).expect("was sampled");
    assert_eq!((row.event.as_str(), row.samples), ("event of cycles", 100));
    let shares: Vec<(&str, u64, f64)> = row
        .activities
        .iter()
        .map(|it| (it.activity.as_str(), it.samples, it.share))
        .collect();
    assert_eq!(
        shares,
        [("sort", 60, 0.6), ("compute", 30, 0.3), ("other", 10, 0.1)]
    );
    // From a table of Wilson's intervals.
    let sort = &row.activities[0];
    assert!(
        (sort.share_low - 0.5020).abs() < 1e-4 && (sort.share_high - 0.6906).abs() < 1e-4,
        "{sort:?}"
    );
    assert_eq!(on_cpu(&state, 2), None, "nothing of it was sampled");
}

/// What a task's row says of its time on CPUs.
fn on_cpu(state: &State, task: u64) -> Option<OnCpuRow> {
    let one = Filter {
        task: Some(task),
        ..Filter::default()
    };
    let row = state.list_tasks(&one).rows.remove(0);
    row.functions.expect("is known").on_cpu
}

#[test]
fn a_clock_gives_shares_of_activities_and_nothing_else() {
    let mut state = state();
    tell(&mut state, 1, S, started(1, 3));
    let doing = |activity: u8| ContextKey {
        activity,
        ..context(1, 1, 3, Some(7))
    };
    let idle = ContextKey::without_context(key(1), Unattributed::GC);
    let clock = ClockReadings {
        event: "cpu-clock".to_owned(),
        contexts: vec![
            (doing(Activity::SORT.0), 3),
            (doing(Activity::COMPUTE.0), 1),
            (idle, 14),
        ],
    };
    let alone = Readings {
        clock: Some(clock.clone()),
        ..readings(vec![])
    };
    state.add(&alone, 2 * S);
    let row = on_cpu(&state, 1).expect("was sampled");
    assert_eq!((row.event.as_str(), row.samples), ("cpu-clock", 4));
    let shares = row.activities.iter().map(|it| it.share);
    assert_eq!(shares.collect::<Vec<f64>>(), [0.75, 0.25]);
    // Nothing looks like a counter of the processor.
    let all = Filter::default();
    let rows = state.list_rdds(&all).rows;
    assert!(rows.iter().all(|row| row.walks == PageWalkRow::default()));
    assert_eq!(state.list_tasks(&all).rows[0].walks, PageWalkRow::default());
    let executor = state.list_executors(&all).rows.remove(0);
    assert_eq!(executor.walks, PageWalkRow::default());
    assert_eq!(executor.cycles_unattributed_share, None);
    assert_eq!(
        (state.page_walks_shown(), state.walk_totals().0),
        (None, WalkCounters::default())
    );
    // Beside page walks whose cycles count late, only the clock divides the time.
    let both = Readings {
        clock: Some(clock),
        ..work(big_core())
    };
    state.add(&both, 3 * S);
    let row = on_cpu(&state, 1).expect("was sampled");
    assert_eq!((row.event.as_str(), row.samples), ("cpu-clock", 8));
}
