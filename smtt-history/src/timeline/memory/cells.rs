//! The answer for a window: series of cells, of a size that depends on the picture.
//!
//! A moment stands for the time until the next one. A cell of a series has the mean over the time in which at least one
//! executor was measured, so the series of a cell add up to its total. Beside them is the most that all executors held at one
//! moment of the cell, which a mean hides. A cell in which no executor was measured has no values.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::clock::Clock;
use super::parts::{By, Part, divide};
use super::sweep::{Grid, exact, sweep};
use super::{Gap, History, LIMITS, Memory};
use crate::timeline::detail::Window;
use crate::timeline::model::{Model, cut};

/// Cells of an answer at most.
pub const CELLS: i64 = 1_000;
/// Pixels of a cell.
const CELL_PIXELS: i64 = 2;
/// Series with a name at most; the others are summed.
pub const SERIES: usize = 12;
/// Gaps, clocks and executors of an answer at most.
pub const LISTED: usize = 200;

/// Bytes of one part.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Series {
    /// What it is; `other` for the sum of those without a series of their own.
    pub key: String,
    /// Its name for people. Names of RDDs are what the application says.
    pub name: String,
    /// Number of the colour, below [`SERIES`]; absent for `other`.
    pub colour: Option<usize>,
    /// Mean bytes of each cell; absent where no executor was measured.
    pub values: Vec<Option<u64>>,
}

/// A limit of the executors' memory over time.
#[derive(Debug, Serialize)]
pub struct Line {
    /// Name of the setting.
    pub name: &'static str,
    /// What it limits.
    pub title: &'static str,
    /// Sum over the executors that were measured at one moment, the largest of the cell; absent where it is not known for
    /// all of them.
    pub values: Vec<Option<u64>>,
}

/// A time without measurements between two with.
#[derive(Debug, Serialize)]
pub struct Hole<'a> {
    /// Spark's id of the executor.
    pub executor: &'a str,
    /// Milliseconds since the start.
    pub from: i64,
    /// Milliseconds since the start.
    pub to: i64,
    /// `restart` between two runs of a daemon, else `missing`.
    pub reason: &'static str,
}

/// Memory over time in one window of the time line.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer<'a> {
    /// Zero of all times, in milliseconds since 1970.
    pub start: i64,
    /// End of the application's last task or job, in milliseconds since the start.
    pub end: i64,
    /// Begin of the window, in milliseconds since the start.
    pub from: i64,
    /// End of the window, in milliseconds since the start.
    pub to: i64,
    /// Milliseconds of a cell.
    pub cell_ms: f64,
    /// By what the series divide.
    pub by: &'static str,
    /// What a value of a series is.
    pub statistic: &'static str,
    /// What [`Self::most`] is.
    pub most_statistic: &'static str,
    /// The executor that was asked for.
    pub executor: Option<&'a str>,
    /// Measured executors of the application.
    pub executors: Vec<&'a str>,
    /// Measured executors that are not listed.
    pub executors_left_out: usize,
    /// Most executors that were measured at one moment of each cell.
    pub measured: Vec<u32>,
    /// Series, those with most bytes in the whole application first; `other` last.
    pub series: Vec<Series>,
    /// Sum of the series.
    pub total: Vec<Option<u64>>,
    /// Most bytes at one moment.
    pub most: Vec<Option<u64>>,
    /// Limits that are known.
    pub limits: Vec<Line>,
    /// Collections that began since the moment before, in the cell of the later moment; absent where none are counted.
    pub collections: Vec<Option<u64>>,
    /// Gaps that lie in the window.
    pub gaps: Vec<Hole<'a>>,
    /// Gaps that are not listed.
    pub gaps_left_out: usize,
    /// How the clocks of the workers were joined.
    pub clocks: Vec<&'a Clock>,
    /// Clocks that are not listed.
    pub clocks_left_out: usize,
    /// Shortest and longest time between two moments of an executor in milliseconds.
    pub interval_ms: Option<(i64, i64)>,
    /// What a reader has to know, in sentences.
    pub notes: Vec<String>,
}

/// Parts of the window: those with a series, by their index, with their colour.
struct Chosen {
    parts: Vec<(Part, usize)>,
    index: HashMap<Part, usize>,
    others: usize,
    has_summed: bool,
}

/// Chooses the parts with most bytes in the window. Order and colour are those of the whole application, so that they stay
/// while the window moves.
fn choose(histories: &[&History], grid: &Grid, by: By) -> Chosen {
    // Bytes and milliseconds: everywhere and in the window.
    let mut sums: BTreeMap<Part, (f64, f64)> = BTreeMap::new();
    for moment in histories.iter().flat_map(|history| &history.moments) {
        let everywhere = (moment.until - moment.at) as f64;
        let within = (moment.until.min(grid.to) - moment.at.max(grid.from)).max(0) as f64;
        divide(moment, by, &mut |part, bytes| {
            let sum = sums.entry(part).or_default();
            sum.0 += bytes as f64 * everywhere;
            sum.1 += bytes as f64 * within;
        });
    }
    let has_summed = sums
        .remove(&Part::Summed)
        .is_some_and(|(_, within)| within > 0.0);
    let mut ranked: Vec<(Part, (f64, f64))> = sums.into_iter().collect();
    ranked.sort_by(|left, right| right.1.0.total_cmp(&left.1.0));
    let mut here: Vec<(usize, Part, f64)> = ranked
        .iter()
        .enumerate()
        .map(|(rank, (part, (_, within)))| (rank, *part, *within))
        .filter(|(_, _, within)| *within > 0.0)
        .collect();
    here.sort_by(|left, right| right.2.total_cmp(&left.2));
    let others = here.len().saturating_sub(SERIES);
    here.truncate(SERIES);
    here.sort_by_key(|(rank, _, _)| *rank);
    let mut taken = [false; SERIES];
    let mut parts = Vec::new();
    for (rank, part, _) in here {
        let free = (0..SERIES)
            .map(|at| (rank + at) % SERIES)
            .find(|colour| !taken[*colour]);
        let colour = free.unwrap_or(0);
        taken[colour] = true;
        parts.push((part, colour));
    }
    let index = parts
        .iter()
        .enumerate()
        .map(|(at, (part, _))| (*part, at))
        .collect();
    Chosen {
        parts,
        index,
        others,
        has_summed,
    }
}

/// Bytes and milliseconds of each chosen part in each cell; the last row has the others.
fn integrals(histories: &[&History], grid: &Grid, by: By, chosen: &Chosen) -> Vec<Vec<f64>> {
    let other = chosen.parts.len();
    let mut sums = vec![vec![0.0; grid.cells]; other + 1];
    let mut own = vec![0.0; other + 1];
    for moment in histories.iter().flat_map(|history| grid.moments(history)) {
        own.fill(0.0);
        divide(moment, by, &mut |part, bytes| {
            own[chosen.index.get(&part).copied().unwrap_or(other)] += bytes as f64;
        });
        grid.overlap(moment.at, moment.until, |cell, ms| {
            for (sums, bytes) in sums.iter_mut().zip(&own) {
                sums[cell] += bytes * ms;
            }
        });
    }
    sums
}

/// Collections by cell: where the count of an executor grew between two of its moments.
fn collections(histories: &[&History], grid: &Grid) -> Vec<Option<u64>> {
    let mut cells: Vec<Option<u64>> = vec![None; grid.cells];
    for history in histories {
        for pair in history.moments.windows(2) {
            let Some((before, now)) = pair[0].collections.zip(pair[1].collections) else {
                continue;
            };
            grid.overlap(pair[0].at, pair[1].at, |cell, _| {
                cells[cell].get_or_insert(0);
            });
            if (grid.from..grid.to).contains(&pair[1].at) {
                let cell = cells[grid.cell(pair[1].at)].get_or_insert(0);
                *cell += now.saturating_sub(before).min(1 << 32);
            }
        }
    }
    cells
}

fn lines(limits: &[Vec<super::sweep::Sum>], measured: &[u32]) -> Vec<Line> {
    let line = |((name, title), sums): (&(&'static str, &'static str), &Vec<super::sweep::Sum>)| {
        let value = |(sum, count): (&super::sweep::Sum, &u32)| {
            (*count > 0 && !sum.is_partial && sum.most > 0).then_some(sum.most)
        };
        let values: Vec<Option<u64>> = sums.iter().zip(measured).map(value).collect();
        values.iter().any(Option::is_some).then_some(Line {
            name,
            title,
            values,
        })
    };
    LIMITS.iter().zip(limits).filter_map(line).collect()
}

fn hole(gap: &Gap) -> Hole<'_> {
    Hole {
        executor: &gap.executor,
        from: gap.from,
        to: gap.to,
        reason: if gap.is_restart { "restart" } else { "missing" },
    }
}

fn other(chosen: &Chosen) -> String {
    match (chosen.others, chosen.has_summed) {
        (0, _) => "other: summed by the daemons".to_owned(),
        (count, true) => format!("other: {count}, and what the daemons summed"),
        (count, false) => format!("other: {count}"),
    }
}

/// The grid of a window.
#[must_use]
pub(super) fn grid(window: &Window, most: i64) -> Grid {
    let cells = (window.width / CELL_PIXELS)
        .clamp(1, most)
        .min(window.to - window.from);
    Grid {
        from: window.from,
        to: window.to,
        cells: usize::try_from(cells).unwrap_or(1).max(1),
    }
}

/// The answer for a window that lies [within](Window::within) the model, for one executor or for all, of at most `most`
/// cells.
#[must_use]
pub fn answer<'a>(
    memory: &'a Memory,
    model: &Model,
    window: &Window,
    (by, executor, most): (By, Option<&'a str>, i64),
) -> Answer<'a> {
    let grid = grid(window, most);
    let histories: Vec<&History> = memory
        .histories
        .iter()
        .filter(|history| executor.is_none_or(|id| id == history.executor))
        .collect();
    let chosen = choose(&histories, &grid, by);
    let swept = sweep(&histories, &grid, by);
    let sums = integrals(&histories, &grid, by, &chosen);
    let mean = |sums: &Vec<f64>| -> Vec<Option<u64>> {
        let cells = sums.iter().zip(&swept.covered);
        cells
            .map(|(sum, ms)| (*ms > 0.0).then(|| exact((sum / ms).round() as u128)))
            .collect()
    };
    let mut series: Vec<Series> = chosen
        .parts
        .iter()
        .zip(&sums)
        .map(|((part, colour), sums)| Series {
            key: part.key(),
            name: cut(&part.title(by, memory)),
            colour: Some(*colour),
            values: mean(sums),
        })
        .collect();
    if chosen.others > 0 || chosen.has_summed {
        series.push(Series {
            key: "other".to_owned(),
            name: other(&chosen),
            colour: None,
            values: mean(&sums[chosen.parts.len()]),
        });
    }
    let is_measured = |cell: usize| swept.covered[cell] > 0.0;
    let total = |cell: usize| {
        let parts = series.iter().filter_map(|series| series.values[cell]);
        is_measured(cell).then(|| parts.sum::<u64>())
    };
    let of_cells = 0..grid.cells;
    let total: Vec<Option<u64>> = of_cells.clone().map(total).collect();
    let most = of_cells
        .map(|cell| is_measured(cell).then_some(swept.most[cell]))
        .collect();
    let gaps: Vec<&Gap> = memory
        .gaps
        .iter()
        .filter(|gap| executor.is_none_or(|id| id == gap.executor))
        .filter(|gap| gap.to >= grid.from && gap.from <= grid.to)
        .collect();
    let intervals = || histories.iter().map(|history| history.interval_ms);
    let executors = memory.measured();
    Answer {
        start: model.start,
        end: model.end,
        from: grid.from,
        to: grid.to,
        cell_ms: grid.cell_ms(),
        by: by.name(),
        statistic: "mean over the measured time of the cell",
        most_statistic: "most at one moment of the cell",
        executor,
        executors_left_out: executors.len().saturating_sub(LISTED),
        executors: executors.into_iter().take(LISTED).collect(),
        limits: lines(&swept.limits, &swept.measured),
        measured: swept.measured,
        series,
        total,
        most,
        collections: collections(&histories, &grid),
        gaps_left_out: gaps.len().saturating_sub(LISTED),
        gaps: gaps.into_iter().take(LISTED).map(hole).collect(),
        clocks: memory.clocks.iter().take(LISTED).collect(),
        clocks_left_out: memory.clocks.len().saturating_sub(LISTED),
        interval_ms: intervals().min().zip(intervals().max()),
        notes: memory.notes(),
    }
}
