//! The result for people.

use std::fmt::Write as _;

use smtt_model::units;

use super::stages::Unit;
use super::{Alone, Diff, Figure, LEAST_SHARE, LEAST_TASKS, Pair, Side, Verdict};
use crate::plain::plain;

/// Characters of a name.
const NAME: usize = 60;
/// Characters of a property's value.
const VALUE: usize = 80;

/// A number in its unit.
fn shown(value: f64, unit: Unit) -> String {
    let whole = value.abs().round() as u64;
    let text = match unit {
        Unit::Ms if whole == 0 => "0 ms".to_owned(),
        Unit::Ms => units::duration(whole.saturating_mul(1_000_000)),
        Unit::Bytes => units::bytes(whole),
        Unit::Count => units::count(whole),
    };
    if value <= -0.5 {
        format!("-{text}")
    } else {
        text
    }
}

fn signed(value: f64, unit: Unit) -> String {
    let text = shown(value, unit);
    if value >= 0.5 {
        format!("+{text}")
    } else {
        text
    }
}

fn change(figure: &Figure) -> String {
    let by = figure.second - figure.first;
    let share = if figure.first > 0.0 {
        format!("{:+.0} %", by * 100.0 / figure.first)
    } else {
        "from nothing".to_owned()
    };
    let interval = figure.interval.map_or_else(String::new, |interval| {
        format!(
            ", between {} and {}",
            signed(interval.low, figure.unit),
            signed(interval.high, figure.unit)
        )
    });
    format!(
        "{} -> {}: {} ({share}{interval})",
        shown(figure.first, figure.unit),
        shown(figure.second, figure.unit),
        signed(by, figure.unit),
    )
}

fn sides(first: &Side, second: &Side) -> String {
    let mut text = format!("{} -> {} tasks", first.tasks, second.tasks);
    if first.unsuccessful + second.unsuccessful > 0 {
        let _ = write!(
            text,
            ", {} -> {} unsuccessful attempts",
            first.unsuccessful, second.unsuccessful
        );
    }
    if let (Some(before), Some(after)) = (first.wall_ms, second.wall_ms) {
        let of = |ms: i64| shown(ms as f64, Unit::Ms);
        let _ = write!(
            text,
            ", {} -> {} from submission to end",
            of(before),
            of(after)
        );
    }
    text
}

fn stage(out: &mut String, pair: &Pair) {
    let _ = writeln!(
        out,
        "\nStage {} -> {}: {}\n  {}",
        pair.first.stage,
        pair.second.stage,
        plain(&pair.name, NAME),
        sides(&pair.first, &pair.second)
    );
    for figure in &pair.figures {
        if matches!(figure.verdict, Verdict::More | Verdict::Less) {
            let _ = writeln!(out, "  {:26} {}", figure.title, change(figure));
        }
    }
}

fn alone(out: &mut String, which: &str, all: &[Alone]) {
    if all.is_empty() {
        return;
    }
    let _ = writeln!(out, "\nOnly in the {which} run");
    for one in all {
        let _ = writeln!(
            out,
            "  stage {}, {} tasks: {}",
            one.side.stage,
            one.side.tasks,
            plain(&one.name, NAME)
        );
    }
}

/// The whole text.
#[must_use]
pub fn text(diff: &Diff) -> String {
    let mut out = String::new();
    for (which, about) in [("First", &diff.first), ("Second", &diff.second)] {
        let duration = about.duration_ms.map_or_else(
            || "has not ended".to_owned(),
            |ms| shown(ms as f64, Unit::Ms),
        );
        let _ = writeln!(
            out,
            "{which:7} {} ({}): {duration}",
            plain(&about.id, NAME),
            plain(&about.name, NAME)
        );
        if about.left_out_tasks > 0 {
            let _ = writeln!(
                out,
                "        without {} tasks: there are too many",
                about.left_out_tasks
            );
        }
    }
    if !diff.properties.is_empty() {
        out.push_str("\nSpark's properties\n");
        for property in &diff.properties {
            let value = |value: &Option<String>| {
                value
                    .as_deref()
                    .map_or_else(|| "(not set)".to_owned(), |value| plain(value, VALUE))
            };
            let _ = writeln!(
                out,
                "  {}: {} -> {}",
                plain(&property.name, VALUE),
                value(&property.first),
                value(&property.second)
            );
        }
    }
    let mut quiet = 0;
    for pair in &diff.stages {
        let is_loud = pair
            .figures
            .iter()
            .any(|it| matches!(it.verdict, Verdict::More | Verdict::Less));
        if is_loud {
            stage(&mut out, pair);
        } else {
            quiet += 1;
        }
    }
    let few = diff.stages.iter().filter(|pair| {
        pair.figures
            .iter()
            .any(|figure| figure.verdict == Verdict::TooFewTasks)
    });
    let few = few.count();
    let _ = writeln!(
        out,
        "\n{quiet} of {} stages of both runs: no change beyond the spread over tasks",
        diff.stages.len()
    );
    if few > 0 {
        let _ = writeln!(
            out,
            "{few} of them have fewer than {LEAST_TASKS} tasks and cannot be judged"
        );
    }
    alone(&mut out, "first", &diff.only_first);
    alone(&mut out, "second", &diff.only_second);
    let _ = writeln!(
        out,
        "\nA change is one whose interval excludes 0 and that is {:.0} % or more. All {} intervals hold together with 99 % \
         ({:.4} % each); they come from the spread over tasks, so what slows a whole run alike (a busy machine) looks like a \
         change.",
        LEAST_SHARE * 100.0,
        diff.comparisons,
        diff.confidence * 100.0
    );
    out
}
