//! The resolver at its limits: more memory than the budget allows, and memory that is unmapped during a round.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use smtt_config::PlacementSettings;
use smtt_daemon::placement::Resolver;
use smtt_machine::pages::Method;
use smtt_model::decode::decode;
use smtt_model::rows::{Filter, PagesBy};
use smtt_tests::lab::LIMIT;
use xtask::process::wait_for;

use crate::pages::{FREED, GENEROUS, MIB, methods, resolver, scene, sum};

#[test]
fn a_large_mapping_is_sampled_within_the_budget() -> Result<()> {
    const GIB: u64 = 12;
    const PAGES_PER_SECOND: u64 = 4000;
    let Some(scene) = scene(&[&format!("large={GIB}")])? else {
        return Ok(());
    };
    let settings = PlacementSettings {
        pages_per_second: PAGES_PER_SECOND,
        milliseconds_per_second: 1000,
        interval: Duration::from_secs(2),
        frames: true,
    };
    for method in methods() {
        let start = Instant::now();
        let mut resolver = resolver(settings, method);
        resolver.round(&scene.shared, &|| false);
        let (counts, took) = (resolver.counts(), start.elapsed().as_secs_f64());
        let row = scene.row("large")?;
        println!("{method:?}: {counts:?} in {took:.3} s, {row:?}");
        // The budget allows a burst of a tenth of a second, and one slice more.
        let allowed = PAGES_PER_SECOND as f64 * (took + 0.1) + 400.0;
        ensure!(
            counts.pages as f64 <= allowed && counts.pages <= 2 * PAGES_PER_SECOND,
            "{method:?}: {} pages in {took:.3} s are more than {allowed:.0}",
            counts.pages
        );
        ensure!(
            row.estimated == Some(true) && row.examined_pages < Some(2 * PAGES_PER_SECOND),
            "{method:?}: it has more pages than the budget: {row:?}"
        );
        // The first 256 MiB are one stretch, so an even sample is wrong by two samples at most.
        let sample = (GIB << 30) / row.examined_pages.unwrap_or(1).max(1);
        let error = row.present_bytes.unwrap_or(0).abs_diff(256 * MIB);
        ensure!(
            error <= 2 * sample && sum(&row) == Some(GIB << 30),
            "{method:?}: estimated with an error of {error} bytes, a sample stands for {sample}: {row:?}"
        );
    }
    let tight = PlacementSettings {
        pages_per_second: 1_000_000,
        milliseconds_per_second: 2,
        interval: Duration::from_secs(2),
        frames: true,
    };
    let start = Instant::now();
    let mut resolver = Resolver::new(tight);
    resolver.round(&scene.shared, &|| false);
    let (counts, took) = (resolver.counts(), start.elapsed().as_secs_f64());
    let per_second = counts.cpu_ns as f64 / 1e6 / took.max(0.1);
    println!("{counts:?} in {took:.3} s: {per_second:.2} ms of CPU time per second");
    ensure!(
        counts.cpu_ns as f64 <= 2e6 * (took + 0.1) + 2e6,
        "more than 2 ms of CPU time per second, a burst and one slice: {counts:?} in {took:.3} s"
    );
    scene.workload.end()
}

/// Calls `once` when the resolver asks for the `slice`-th time whether it must stop: it asks before each slice.
pub fn in_the_middle(slice: usize, once: impl FnOnce() -> Result<()>) -> impl Fn() -> bool {
    let (asked, once) = (Cell::new(0), Cell::new(Some(once)));
    move || {
        asked.set(asked.get() + 1);
        if asked.get() == slice
            && let Some(once) = once.take()
            && let Err(error) = once()
        {
            panic!("in the middle of a pass: {error:#}");
        }
        false
    }
}

#[test]
fn of_a_process_that_ends_in_the_middle_nothing_is_said() -> Result<()> {
    for method in methods() {
        let Some(scene) = scene(&["large=1"])? else {
            return Ok(());
        };
        let (shared, workload) = (scene.shared, scene.workload);
        let mut resolver = resolver(GENEROUS, method);
        resolver.round(&shared, &in_the_middle(100, || workload.end()));
        let rows = shared
            .state()
            .list_pages(&Filter::default(), PagesBy::Block)
            .rows;
        let counts = resolver.counts();
        ensure!(
            counts.ended == 1
                && counts.pages > 0
                && rows.iter().all(|row| row.resolved_bytes.is_none()),
            "{method:?}: {counts:?}, {rows:?}"
        );
        // The block is unmapped before the next round begins.
        resolver.round(&shared, &|| false);
        ensure!(resolver.counts().ended == 2, "{:?}", resolver.counts());
    }
    Ok(())
}

#[test]
fn of_a_block_that_is_freed_in_the_middle_no_byte_is_made_up() -> Result<()> {
    for method in methods() {
        let Some(mut scene) = scene(&["large=1", FREED])? else {
            return Ok(());
        };
        let known = scene.lab.records.len();
        let mut resolver = resolver(GENEROUS, method);
        let workload = &mut scene.workload;
        // The large block has 1024 slices, all others together have less than 32.
        let freed = in_the_middle(500, || workload.go_on_to_the_end());
        resolver.round(&scene.shared, &freed);
        drop(freed);
        // The state has not learned of the removal. Pages that were queried before it count as present, later ones as
        // unmapped.
        let row = scene.row("large")?;
        println!("{method:?}: {row:?}");
        if method == Method::Scan {
            ensure!(
                sum(&row) == Some(1 << 30)
                    && row.unmapped_bytes > Some(256 * MIB)
                    && row.unmapped_bytes < Some(768 * MIB),
                "half of it was examined in time: {row:?}"
            );
        } else {
            // Untouched pages look like unmapped ones, so the resolver reports nothing.
            ensure!(row.resolved_bytes.is_none(), "its mapping went: {row:?}");
        }
        let half = scene.row("half")?;
        ensure!(
            sum(&half) == Some(scene.told("half")?.bytes) && half.unmapped_bytes == Some(0),
            "{method:?}: the others are as they were: {half:?}"
        );
        // The state learns of the removal in the middle of the next round.
        scene.lab.read()?;
        let records = scene.lab.records.split_off(known);
        let told = in_the_middle(500, || {
            for record in &records {
                scene
                    .shared
                    .state()
                    .apply(decode(&record.header, &record.payload)?);
            }
            Ok(())
        });
        // On a busy machine the resolver leaves a process alone for a while, and the round is no whole one.
        wait_for("every executor is examined", LIMIT, || {
            let before = resolver.counts();
            resolver.round(&scene.shared, &told);
            let after = resolver.counts();
            Ok((after.refused == before.refused && after.looks > before.looks).then_some(()))
        })?;
        ensure!(
            scene.row("large").is_err() && scene.row("half")?.present_bytes > Some(2 * MIB - 4096),
            "{method:?}: it is gone, the others are there"
        );
        scene.workload.end()?;
    }
    Ok(())
}
