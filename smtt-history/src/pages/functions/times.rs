//! Where a task's time went, as bars and tables: activities from spans, an estimate of their shares from samples, and what
//! the task's thread did.

use maud::{Markup, html};
use smtt_model::rows::{ActivityRow, FunctionsRow, OnCpuRow, SampledActivityRow};

use super::{LANES, colour, number, share};
use crate::pages::shown::{Cell, cut};

/// What the activities do not cover.
const REST: &str = "outside the spans (user code, framework)";
/// Activities of docs/ATTRIBUTION.md that have no spans, as docs/TASKS.md has them.
pub(super) const WITHOUT_SPANS: [&str; 7] = [
    "compute",
    "cache_read",
    "cache_write",
    "shuffle_write",
    "insert",
    "result_serialize",
    "python_exchange",
];

/// A part of a bar: what it is, its colour, and its time.
pub(super) type Part<'a> = (&'a str, &'a str, Option<u64>);

/// Times that add up to a duration, as a bar, as a pie and as a table, with what is said of them below the bar.
pub(super) fn bar(
    id: &str,
    title: &str,
    total: u64,
    parts: &[Part<'_>],
    between: &Markup,
) -> Markup {
    let mut begin = 0_u64;
    let begins: Vec<u64> = parts
        .iter()
        .map(|(_, _, ns)| {
            begin = begin.saturating_add(ns.unwrap_or(0));
            begin - ns.unwrap_or(0)
        })
        .collect();
    html! {
        svg.bar viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label=(title) {
            @for ((_, class, ns), begin) in parts.iter().zip(&begins) {
                rect class=(class) x=(share(*begin, total)) y="0" height="4" width=(share(ns.unwrap_or(0), total)) {}
            }
        }
        (between)
        div.beside {
        (pie(title, total, parts))
        div.wide tabindex="0" role="region" aria-label=(title) { table.data id=(id) {
            thead { tr { th.words { "What" } th { "Time" } th { "Share" } } }
            tbody {
                @for (what, class, ns) in parts {
                    @if let Some(ns) = ns {
                        tr {
                            th.words scope="row" { (key(class)) bdi { (cut(what)) } }
                            td { (Cell::Nanoseconds(number(*ns)).shown()) }
                            td { (format!("{:.1} %", share(*ns, total))) }
                        }
                    }
                }
                tr { th.words scope="row" { "together" } td { (Cell::Nanoseconds(number(begin)).shown()) } td {} }
            }
        } }
        }
    }
}

/// Times that add up to a duration, as a pie of a hundred points beside their table, which has the numbers.
fn pie(title: &str, total: u64, parts: &[Part<'_>]) -> Markup {
    // A point on the circle at a share of it, from the top on with the clock.
    let point = |share: f64| {
        let (x, y) = (share / 100.0 * std::f64::consts::TAU).sin_cos();
        format!("{:.3} {:.3}", 50.0 + 50.0 * x, 50.0 - 50.0 * y)
    };
    let mut begin = 0_u64;
    let slices = parts.iter().map(|(what, class, ns)| {
        let ns = ns.unwrap_or(0).min(total.saturating_sub(begin));
        let (from, of) = (share(begin, total), share(ns, total));
        begin += ns;
        let is_large = i32::from(of > 50.0);
        let path = match of {
            0.0 => String::new(),
            // An arc from a point to itself is none.
            99.9995.. => "M50 0A50 50 0 1 1 50 100A50 50 0 1 1 50 0Z".to_owned(),
            _ => format!(
                "M50 50L{}A50 50 0 {is_large} 1 {}Z",
                point(from),
                point(from + of)
            ),
        };
        (path, *class, format!("{} {of:.1} %", cut(what)))
    });
    html! {
        svg.pie viewBox="0 0 100 100" role="img" aria-label=(format!("{title}, as a pie; the table has the numbers")) {
            @for (path, class, said) in slices { @if !path.is_empty() { path class=(class) d=(path) { title { (said) } } } }
        }
    }
}

/// The key of a colour.
fn key(class: &str) -> Markup {
    html! { svg.key viewBox="0 0 1 1" aria-hidden="true" { rect class=(class) width="1" height="1" {} } }
}

/// The times of the activities, and beneath their bar that of the samples.
pub(super) fn activities(functions: &FunctionsRow) -> Markup {
    let row = |it: &'_ ActivityRow| (it.activity.clone(), colour(&it.activity), it.own_ns);
    let mut all: Vec<_> = functions.activities.iter().take(LANES).map(row).collect();
    all.extend(functions.rest_ns.map(|ns| (REST.to_owned(), "p0", ns)));
    let parts: Vec<_> = all
        .iter()
        .map(|(name, class, ns)| (name.as_str(), *class, Some(*ns)))
        .collect();
    let helpers = functions.helpers.iter().take(LANES);
    let title = "Times by activity on the task's thread";
    let estimate = html! {
        @if let Some(on_cpu) = &functions.on_cpu { (estimate(on_cpu)) }
        p.soft id="without-spans" {
            "These activities have no spans of their own: " (WITHOUT_SPANS[..6].join(", ")) " and " (WITHOUT_SPANS[6])
            ". Their time is outside the spans in the first bar"
            @if functions.on_cpu.is_some() { "; the samples have it." } @else { "; no samples of this task show it." }
        }
    };
    html! {
        p.soft.lane { (title) ", from spans" }
        (bar("activities", title, functions.duration_ns, &parts, &estimate))
        @for it in helpers {
            p.soft { "Helper threads: " bdi { (cut(&it.activity)) } " " (Cell::Nanoseconds(number(it.own_ns)).shown())
                " in " (Cell::Count(number(it.spans)).shown()) " spans." }
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share.clamp(0.0, 1.0) * 100.0)
}

fn interval(it: &SampledActivityRow) -> String {
    format!("{} to {}", percent(it.share_low), percent(it.share_high))
}

/// The shares of activities in what was sampled on CPUs, as a bar.
fn estimate(on_cpu: &OnCpuRow) -> Markup {
    let mut end = 0.0_f64;
    let parts = on_cpu.activities.iter().take(LANES).map(|it| {
        let begin = end;
        end = (begin + it.share.clamp(0.0, 1.0)).min(1.0);
        (it, begin * 100.0, (end - begin) * 100.0)
    });
    let said = |it: &SampledActivityRow| {
        let (name, share) = (cut(&it.activity), percent(it.share));
        format!("{name} {share} (95 % interval {})", interval(it))
    };
    html! {
        p.soft.lane {
            "Time on CPUs of all its threads, an estimate from " (Cell::Count(number(on_cpu.samples)).shown()) " samples"
            @if let Some(first) = on_cpu.activities.first() { ": " bdi { (said(first)) } }
        }
        svg.bar id="on-cpu-bar" viewBox="0 0 100 4" preserveAspectRatio="none" role="img"
            aria-label="Estimated shares of the time on CPUs by activity; the table On CPUs has them" {
            @for (it, begin, width) in parts {
                rect class=(colour(&it.activity)) x=(begin) y="0" height="4" width=(width) { title { (said(it)) } }
            }
        }
    }
}

/// The shares of activities in what was sampled on CPUs, as a table.
pub(super) fn sampled(on_cpu: &OnCpuRow) -> Markup {
    let all = on_cpu.activities.iter().take(LANES);
    html! {
        h2 { "On CPUs, by activity" }
        p.soft { (Cell::Count(number(on_cpu.samples)).shown()) " samples of " bdi { (cut(&on_cpu.event)) }
            ", of all threads that worked for the task, however short a call was." }
        div.wide tabindex="0" role="region" aria-label="On CPUs, by activity" { table.data id="on-cpu" {
            thead { tr { th.words { "Activity" } th { "Samples" } th { "Share" } th { "95 % interval" } } }
            tbody {
                @for it in all {
                    tr {
                        th.words scope="row" { (key(colour(&it.activity))) bdi { (cut(&it.activity)) } }
                        td { (Cell::Count(number(it.samples)).shown()) }
                        td { (percent(it.share)) }
                        td { (interval(it)) }
                    }
                }
            }
        } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_begin_where_those_before_end_and_a_whole_is_a_circle() {
        let of = |total: u64, parts: &[Part<'_>]| {
            let text = pie("t", total, parts).into_string();
            let paths = text.split(" d=\"").skip(1);
            let paths = paths.filter_map(|it| Some(it.split('"').next()?.to_owned()));
            paths.collect::<Vec<_>>()
        };
        let parts = [
            ("a", "p0", Some(25)),
            ("b", "p1", None),
            ("c", "p2", Some(75)),
        ];
        assert_eq!(
            of(100, &parts),
            [
                "M50 50L50.000 0.000A50 50 0 0 1 100.000 50.000Z",
                "M50 50L100.000 50.000A50 50 0 1 1 50.000 0.000Z"
            ]
        );
        assert_eq!(
            of(7, &[("a", "p0", Some(7))]),
            ["M50 0A50 50 0 1 1 50 100A50 50 0 1 1 50 0Z"]
        );
        // Sums that a damaged row claims are cut.
        let huge = [("a", "p0", Some(60)), ("b", "p1", Some(u64::MAX))];
        assert_eq!(of(100, &huge).len(), 2);
        assert!(of(0, &huge).is_empty());
    }
}
