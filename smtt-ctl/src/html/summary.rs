//! The first sentence of the page: what was lost, and where, in seconds of task time.

use std::collections::BTreeMap;

use smtt_model::rows::{ExecutorKind, StageRow};
use smtt_model::sort::small;
use smtt_model::state::FaultFigures;
use smtt_model::units;

use super::document::fault_figures;
use super::markup::Markup;
use super::rdds::rdd_names;
use super::{Facts, shortened};

/// Share of the task time below which a loss is in no sentence.
const WORTH: f64 = 0.001;
/// Characters of a name in the sentence.
const NAME: usize = 60;

/// A figure of a stage; `None` where it was not measured.
type Figure = fn(&StageRow) -> Option<u64>;

/// Time that tasks lost to one thing.
struct Loss {
    ns: u64,
    error_ns: Option<u64>,
    what: &'static str,
    /// The stage or RDD with most of it.
    place: Option<(String, u64)>,
    /// Whether it is of the stages on the page alone; otherwise of whole executors.
    is_of_stages: bool,
}

/// Seconds with a precision that fits them.
fn seconds(ns: u64) -> String {
    let value = ns as f64 / 1e9;
    match ns {
        100_000_000_000.. => format!("{} s", units::count(value.round() as u64)),
        100_000_000.. => format!("{value:.1} s"),
        _ => format!("{value:.3} s"),
    }
}

/// Writes the sentences.
pub fn first_sentence(header: &mut Markup, facts: &Facts) {
    let task_ns = time_of(&facts.stages);
    let (losses, unknown) = losses(facts);
    header.element("p", &[("class", "lead"), ("id", "lead")], |line| {
        said(line, facts, task_ns, &losses);
    });
    if !unknown.is_empty() {
        let text = format!("Not measured, so in no sum: {}.", unknown.join(", "));
        header.line("p", &[("class", "soft")], &text);
    }
}

fn time_of(stages: &[StageRow]) -> u64 {
    let times = stages.iter().map(|row| row.task_time_ns);
    times.fold(0, u64::saturating_add)
}

fn said(line: &mut Markup, facts: &Facts, task_ns: u64, losses: &[Loss]) {
    let whole = match facts.has_all_stages {
        true => format!("{} of task time", seconds(task_ns)),
        false => format!(
            "{} of task time of the {} stages on this page",
            seconds(task_ns),
            facts.stages.len()
        ),
    };
    // The task time is that of ended tasks, and running ones lose time, too.
    let are_running = facts.stages.iter().any(|row| row.tasks_running > 0);
    let has_share = |loss: &Loss| !are_running && (facts.has_all_stages || loss.is_of_stages);
    if task_ns == 0 {
        line.text("No task has ended yet, so no loss is known in seconds of task time.");
    } else {
        let share = |ns: u64| ns as f64 / task_ns as f64;
        let worth: Vec<&Loss> = losses
            .iter()
            .filter(|loss| share(loss.ns) >= WORTH)
            .collect();
        if worth.is_empty() {
            line.text(&format!(
                "Of {whole}, nothing above {} was lost to what is measured here.",
                units::share(WORTH)
            ));
        } else {
            line.text(&match are_running {
                false => format!("Of {whole}, "),
                true => format!("Beside {whole} that has ended, and in running tasks: "),
            });
        }
        for (at, loss) in worth.iter().enumerate() {
            let error = loss
                .error_ns
                .map_or_else(String::new, |error| format!(" \u{b1} {}", seconds(error)));
            line.line("strong", &[], &format!("{}{error}", seconds(loss.ns)));
            if has_share(loss) {
                line.text(&format!(" ({})", units::share(share(loss.ns))));
            }
            line.text(&format!(" went to {}", loss.what));
            if let Some((place, ns)) = &loss.place {
                line.text(", most in ");
                line.claimed(place);
                line.text(&format!(" ({})", seconds(*ns)));
            }
            line.text(if at + 1 == worth.len() { "." } else { "; " });
        }
    }
    spilled(line, facts);
    let savings = facts.advice.findings.iter().enumerate();
    let savings = savings.filter_map(|(at, finding)| Some((at, finding, finding.saving?)));
    let most = savings.max_by(|(.., left), (.., right)| left.expected.total_cmp(&right.expected));
    if let Some((at, finding, saving)) = most.filter(|(.., saving)| saving.expected > 0.0) {
        line.text(" The remedy that saves most: ");
        line.element("a", &[("href", &format!("#finding-{}", at + 1))], |link| {
            link.claimed(&shortened(&finding.title, 200));
        });
        line.text(&format!(", {}.", saving.words()));
    }
}

/// Bytes that tasks spilled, beside the time.
fn spilled(line: &mut Markup, facts: &Facts) {
    let of = |row: &StageRow| row.used.memory_spilled_bytes;
    let bytes = facts.stages.iter().filter_map(of);
    let bytes = bytes.fold(0, u64::saturating_add);
    if bytes > 0 {
        line.text(&format!(" {} were spilled", units::bytes(bytes)));
        if let Some((place, most)) = largest(facts, of) {
            line.text(", most in ");
            line.claimed(&place);
            line.text(&format!(" ({})", units::bytes(most)));
        }
        line.text(".");
    }
}

/// The losses, the largest first, and what is not measured.
fn losses(facts: &Facts) -> (Vec<Loss>, Vec<&'static str>) {
    let mut losses = Vec::new();
    let mut unknown = Vec::new();
    let mut add = |what, ns: Option<u64>, error_ns, place, is_of_stages| match ns {
        Some(ns) => losses.push(Loss {
            ns,
            error_ns,
            what,
            place,
            is_of_stages,
        }),
        None => unknown.push(what),
    };
    let of_stages: [(&'static str, Figure); 3] = [
        ("garbage collection", |row| {
            row.used.collection_ns.or(row.used.spark_collection_ns)
        }),
        ("waits for a CPU", |row| row.used.cpu_wait_ns),
        ("waits for a disk", |row| row.used.disk_wait_ns),
    ];
    for (what, of) in of_stages {
        let sum = facts.stages.iter().filter_map(of);
        add(
            what,
            sum.reduce(u64::saturating_add),
            None,
            largest(facts, of),
            true,
        );
    }
    // A sum over stages leaves out the few long faults of stages with too few measured ones.
    let faults = if facts.has_all_stages {
        fault_figures(facts)
    } else {
        let mut sum = FaultFigures::default();
        facts.stages.iter().for_each(|row| sum.add(&row.faults));
        sum
    };
    add(
        "page faults",
        faults.page_fault_time_ns,
        faults.page_fault_time_error_ns,
        faulting(facts),
        true,
    );
    let executors = facts.application.executors.iter();
    let executors = executors.filter(|row| row.kind == ExecutorKind::Executor);
    for (name, what) in [
        ("spill", "spilling to disk"),
        ("shuffle_fetch", "waits for shuffle data"),
    ] {
        let spans = executors.clone().filter_map(|row| row.spans.get(name));
        // An executor has no such row until it has such a span: then nothing was lost.
        let sum = spans.map(|span| span.duration_ns);
        add(
            what,
            Some(sum.fold(0, u64::saturating_add)),
            None,
            None,
            false,
        );
    }
    small::sort_by_key(&mut losses, |loss| std::cmp::Reverse(loss.ns));
    (losses, unknown)
}

/// The stage with most of a figure.
fn largest(facts: &Facts, of: impl Fn(&StageRow) -> Option<u64>) -> Option<(String, u64)> {
    let mut sums: BTreeMap<u32, (u64, Option<&str>)> = BTreeMap::new();
    for row in &facts.stages {
        if let (Some(id), Some(figure)) = (row.stage_id, of(row)) {
            let (sum, name) = sums.entry(id).or_default();
            *sum = sum.saturating_add(figure);
            *name = name.or(row.name.as_deref());
        }
    }
    let most = sums.into_iter().max_by_key(|(_, (sum, _))| *sum);
    let (id, (ns, name)) = most.filter(|(_, (sum, _))| *sum > 0)?;
    let name = name.filter(|name| !name.is_empty());
    let name = name.map_or_else(String::new, |name| format!(": {}", shortened(name, NAME)));
    Some((format!("stage {id}{name}"), ns))
}

/// The RDDs of a group with most of the time in page faults.
fn faulting(facts: &Facts) -> Option<(String, u64)> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for row in &facts.rdds {
        if let Some(ns) = row.faults.page_fault_time_ns {
            let sum = sums.entry(rdd_names(facts, row)).or_default();
            *sum = sum.saturating_add(ns);
        }
    }
    let most = sums.into_iter().max_by_key(|(_, ns)| *ns)?;
    let (name, ns) = Some(most).filter(|(_, ns)| *ns > 0)?;
    Some((shortened(&name, NAME), ns))
}
