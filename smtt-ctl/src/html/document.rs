//! The document: head, sections in order, and notes on the origin of the figures.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};
use smtt_model::advise::surroundings::Surroundings;
use smtt_model::rows::ExecutorKind;
use smtt_model::sort::small::sort_by;
use smtt_model::state::{FaultFigures, history};
use smtt_model::time::date;
use smtt_model::units;

use super::markup::Markup;
use super::timeline::Timeline;
use super::{Facts, OfWorker, findings, jobs, on, rdds, sections, shortened, summary, tasks};
use crate::cluster::named;
use crate::{earlier, users};

/// Sections by their anchors.
const SECTIONS: [(&str, &str); 9] = [
    ("findings", "Findings"),
    ("memory", "Memory over time"),
    ("rdds", "RDDs"),
    ("single", "RDDs over time, one by one"),
    ("execution", "Execution memory"),
    ("jobs", "Jobs"),
    ("attempts", "Tasks and functions"),
    ("executors", "Executors"),
    ("measured", "How it was measured"),
];

/// Characters of the application's name and id.
const TITLE: usize = 300;
/// Distinct values in a line.
const DISTINCT: usize = 20;

/// Sections that are open at first.
const OPEN: usize = 3;
/// What makes tables sort and filter and charts say their values. The page reads without it.
pub const SCRIPT: &str = include_str!("page.js");

/// The page's policy: no loading, and no script but this one, by its digest. <https://www.w3.org/TR/CSP3/#grammardef-hash-source>
fn policy() -> String {
    let digest = STANDARD.encode(Sha256::digest(SCRIPT));
    format!("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'")
}

/// The whole page.
pub fn page(facts: &Facts) -> String {
    let timeline = Timeline::new(&facts.history);
    let mut markup = Markup::default();
    let title = title(facts);
    let root = [("xmlns", "http://www.w3.org/1999/xhtml"), ("lang", "en")];
    markup.element("html", &root, |html| {
        html.element("head", &[], |head| {
            head.element("meta", &[("charset", "utf-8")], |_| {});
            // Forbids loading and all scripts but the page's own, as a second defence behind escaping.
            let rules = policy();
            let policy = [
                ("http-equiv", "Content-Security-Policy"),
                ("content", rules.as_str()),
            ];
            head.element("meta", &policy, |_| {});
            let view = [
                ("name", "viewport"),
                ("content", "width=device-width, initial-scale=1"),
            ];
            head.element("meta", &view, |_| {});
            head.line("title", &[], &format!("SMTT: {title}"));
            head.style(include_str!("style.css"));
        });
        html.element("body", &[], |body| {
            head(body, facts, &title);
            missing(body, facts);
            section(body, 0, |body| findings::findings(body, facts));
            section(body, 1, |body| sections::memory(body, facts, &timeline));
            section(body, 2, |body| rdds::rdds(body, facts, &timeline));
            section(body, 3, |body| sections::single(body, facts, &timeline));
            section(body, 4, |body| sections::execution(body, facts, &timeline));
            section(body, 5, |body| jobs::jobs(body, facts));
            section(body, 6, |body| {
                tasks::tasks(body, facts);
                body.line("h3", &[], "Functions by stage");
                tasks::functions(body, facts);
            });
            section(body, 7, |body| sections::executors(body, facts));
            section(body, 8, |body| measured(body, facts, &timeline));
            body.script(SCRIPT);
        });
    });
    markup.document()
}

fn title(facts: &Facts) -> String {
    let application = &facts.application;
    let name = application
        .application_name
        .as_deref()
        .filter(|name| !name.is_empty());
    let name = name.or(application.application_id.as_deref());
    shortened(
        name.unwrap_or("executors that have not described themselves"),
        TITLE,
    )
}

fn section(body: &mut Markup, at: usize, contents: impl FnOnce(&mut Markup)) {
    let (id, heading) = SECTIONS[at];
    body.element("section", &[("id", id)], |section| {
        folded(section, "h2", at < OPEN, heading, "", contents);
    });
}

/// A part of the page that folds under its heading, with a note beside it.
pub fn folded(
    body: &mut Markup,
    level: &str,
    is_open: bool,
    heading: &str,
    note: &str,
    contents: impl FnOnce(&mut Markup),
) {
    let open = [("open", "open")];
    let attributes: &[_] = if is_open { &open } else { &[] };
    body.element("details", attributes, |details| {
        details.element("summary", &[], |summary| {
            summary.element(level, &[], |line| {
                line.claimed(heading);
            });
            if !note.is_empty() {
                summary.line("small", &[], note);
            }
        });
        contents(details);
    });
}

fn fact(list: &mut Markup, name: &str, value: &str) {
    if value.is_empty() {
        return;
    }
    list.element("div", &[], |pair| {
        pair.line("dt", &[], name);
        pair.element("dd", &[], |dd| {
            dd.claimed(value);
        });
    });
}

/// Distinct values.
fn distinct<'a>(values: impl Iterator<Item = Option<&'a str>>) -> String {
    let mut list: Vec<&str> = values.flatten().filter(|value| !value.is_empty()).collect();
    sort_by(&mut list, Ord::cmp);
    list.dedup();
    let more = list.len().saturating_sub(DISTINCT);
    list.truncate(DISTINCT);
    let mut text = shortened(&list.join(", "), 1000);
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

fn head(body: &mut Markup, facts: &Facts, title: &str) {
    let all = &facts.application.executors;
    // A driver whose tasks run elsewhere is in no sum.
    let executors: Vec<_> = all
        .iter()
        .filter(|row| row.kind == ExecutorKind::Executor)
        .collect();
    body.element("header", &[], |header| {
        header.element("h1", &[], |h1| {
            h1.claimed(title);
        });
        summary::first_sentence(header, facts);
        header.element("p", &[("class", "soft")], |line| {
            line.text("Application ");
            let id = facts.application.application().label();
            line.claimed(&shortened(id.as_deref().unwrap_or("unknown"), TITLE));
            line.text(&users::of(facts.application.uid));
            line.text(&match &facts.asked {
                None => ", as one worker sees it.".to_owned(),
                Some(asked) => format!(
                    ", as {} of {} workers see it.",
                    facts.workers.len(),
                    asked.all
                ),
            });
        });
        header.element("dl", &[("class", "facts")], |list| {
            let alive = executors
                .iter()
                .filter(|row| row.state == smtt_model::rows::ExecutorState::Alive)
                .count();
            let (of, hosts) = match facts.asked {
                None => (
                    "Executors on this worker",
                    all.iter()
                        .map(|row| row.host.as_deref())
                        .collect::<Vec<_>>(),
                ),
                Some(_) => (
                    "Executors on these workers",
                    all.iter().map(|row| row.who.worker.as_deref()).collect(),
                ),
            };
            fact(list, of, &format!("{} ({alive} alive)", executors.len()));
            fact(list, "Host", &distinct(hosts.into_iter()));
            fact(
                list,
                "Spark",
                &distinct(all.iter().map(|row| row.spark_version.as_deref())),
            );
            fact(
                list,
                "Java",
                &distinct(all.iter().map(|row| row.java_version.as_deref())),
            );
            let workers = facts.workers.iter();
            let kernels = workers.map(|worker| worker.surroundings.kernel.as_deref());
            fact(list, "Linux", &distinct(kernels));
            let longest = all.iter().map(|row| row.watched_ns).max();
            fact(
                list,
                "Watched for",
                &longest.map(units::duration).unwrap_or_default(),
            );
            let since = earlier::since(&facts.application.summary);
            fact(list, "Measured since", &since.unwrap_or_default());
            fact(list, "Made at", &date(facts.history.now_unix_ms));
            let workers = facts.workers.iter();
            let versions = workers.map(|worker| Some(worker.status.version.as_str()));
            fact(list, "SMTT", &distinct(versions));
            let storage = executors
                .iter()
                .map(|row| row.storage_memory_bytes)
                .fold(0, u64::saturating_add);
            fact(list, "Storage memory now", &units::bytes(storage));
            let summary = &facts.application.summary;
            let faults = summary
                .page_faults
                .map_or_else(|| "not measured".to_owned(), units::count);
            fact(list, "Page faults", &faults);
            fact(list, "Time in page faults", &fault_time(facts));
            let share = summary
                .unattributed_share
                .map(units::share)
                .unwrap_or_default();
            fact(list, "Page faults without a context", &share);
            let before = match summary.page_faults_before_tracing {
                Some(before) => units::count(before),
                None if summary.page_faults.is_some() => "not known of every executor".to_owned(),
                None => String::new(),
            };
            fact(
                list,
                "Page faults before tracing, in no other figure",
                &before,
            );
            let walks = if rdds::walk_columns(facts).is_empty() {
                "not measured"
            } else {
                "measured"
            };
            fact(list, "Page walks", walks);
        });
        header.element("nav", &[], |nav| {
            for (id, heading) in SECTIONS {
                nav.line("a", &[("href", &format!("#{id}"))], heading);
            }
        });
    });
    for (reason, workers) in facts.said(|worker| worker.status.degraded.clone()) {
        body.element("p", &[("class", "finding medium")], |line| {
            line.text("The figures are worse than they could be: ")
                .text(&shortened(&reason, 1000))
                .text(&on(&workers));
        });
    }
}

/// The workers that are in no figure, above all figures.
fn missing(body: &mut Markup, facts: &Facts) {
    let Some(asked) = &facts.asked else {
        return;
    };
    for (reason, workers) in &asked.missing {
        body.element("p", &[("class", "finding high missing")], |line| {
            line.text("Missing in all figures: ");
            line.claimed(&named(workers));
            line.text(&format!(": {reason}"));
        });
    }
    for (part, workers) in [
        ("memory over time", &asked.without_history),
        ("functions", &asked.without_functions),
    ] {
        if !workers.is_empty() {
            body.element("p", &[("class", "finding medium")], |line| {
                line.text(&format!("Missing in {part}: "));
                line.claimed(&named(workers));
                line.text(".");
            });
        }
    }
}

/// Time of the page faults of all executors with its interval, beside the time of all tasks; empty where it was not
/// measured.
/// Page faults of the application's executors, with their time.
pub(super) fn fault_figures(facts: &Facts) -> FaultFigures {
    let executors = facts.application.executors.iter();
    let executors = executors.filter(|row| row.kind == ExecutorKind::Executor);
    let mut sum = FaultFigures::default();
    executors.for_each(|row| sum.add(&row.faults));
    sum
}

fn fault_time(facts: &Facts) -> String {
    let sum = fault_figures(facts);
    let (Some(time), Some(error)) = (sum.page_fault_time_ns, sum.page_fault_time_error_ns) else {
        return String::new();
    };
    let (time, error) = (units::duration(time), units::duration(error));
    if !facts.has_all_stages {
        return format!("{time} \u{b1} {error}");
    }
    let times = facts.stages.iter().map(|row| row.task_time_ns);
    let tasks = units::duration(times.fold(0, u64::saturating_add));
    format!("{time} \u{b1} {error} of {tasks} of task time")
}

fn measured(body: &mut Markup, facts: &Facts, timeline: &Timeline<'_>) {
    let mut lines = vec![
        "What was not measured is absent, never zero: a missing column, or a dash.".to_owned(),
        "Times of losses are task time: seconds of the threads that ran tasks, added up. Each is measured by itself, and parts may overlap: a page fault may wait for a disk.".to_owned(),
        "Storage memory is Spark's own figure (memoryUsed of its REST API); where objects are stored it is Spark's estimate. Execution memory is what tasks hold.".to_owned(),
        match facts.asked {
            None => "This is one worker. Executors of the same application on other workers have a daemon of their own.".to_owned(),
            Some(_) => "These are sums over workers. Each has NUMA nodes of its own: bytes of node 0 are those of every worker's node 0. Points over time are placed by their age on each worker's clock.".to_owned(),
        },
    ];
    let hooks = |worker: &OfWorker| {
        let probes = worker.status.probes.iter();
        let ok = probes.filter(|probe| {
            probe.name == "fault" && probe.verdict == smtt_model::verdict::VerdictState::Ok
        });
        let hooks = ok.map(|probe| probe.hook.as_str()).collect::<Vec<_>>();
        vec![hooks.join(", ")]
    };
    for (hook, workers) in facts.said(hooks) {
        let on = on(&workers);
        lines.push(match hook.is_empty() {
            true => format!(
                "Page faults were not counted{on}: no hook of the kernel's could be used."
            ),
            false => format!(
                "Page faults were counted at {hook}{on}, for what their thread was doing at that moment."
            ),
        });
    }
    let walks = facts.said(|worker| match &worker.status.page_walks {
        Some(walks) => {
            let sampled = format!("Page walks were sampled on {}.", walks.uarch);
            std::iter::once(sampled)
                .chain(walks.notes.clone())
                .collect()
        }
        None => Vec::new(),
    });
    match walks.is_empty() || rdds::walk_columns(facts).is_empty() {
        true => lines.push(format!(
            "Page walks were not measured: {}.",
            no_walks(facts)
        )),
        false => lines.extend(
            walks
                .into_iter()
                .map(|(said, workers)| said + &on(&workers)),
        ),
    }
    let by = facts.pages.iter().find_map(|row| row.page_sizes_by?.name());
    lines.push(match by {
        Some(by) => format!("Page placement was read from the processes' page tables within a budget; page sizes come from {by}."),
        None if facts.pages.iter().any(|row| row.resolved_bytes.is_some()) => {
            "Page placement was examined; this kernel does not report page sizes.".to_owned()
        }
        None => "Page placement was not examined, or the executors hold no memory any more.".to_owned(),
    });
    if facts.pages.iter().any(|row| row.estimated == Some(true)) {
        lines.push(
            "For some RDDs only a sample of the pages was examined; their figures are estimates."
                .to_owned(),
        );
    }
    let machines = facts.said(|worker| vec![machine(&worker.surroundings)]);
    for (machine, workers) in machines {
        lines.push(format!("The machine{}: {machine}.", on(&workers)));
    }
    if timeline.is_drawable() {
        let interval = facts
            .history
            .rows
            .iter()
            .map(|row| row.interval_ns)
            .max()
            .unwrap_or(0);
        lines.push(format!(
            "Over time: a point every {}, at most {} for each executor; when there are more, every second one stays, the one at which more was held. A value is drawn until the next point. Peaks in tables are exact for each executor, so they may be higher than those in charts. All times are UTC.",
            units::duration(interval),
            history::POINTS_MAX
        ));
    }
    let lost: u64 = facts
        .application
        .executors
        .iter()
        .map(|row| row.facts_dropped)
        .fold(0, u64::saturating_add);
    lines.push(match lost {
        0 => "No fact of these executors was dropped.".to_owned(),
        lost => format!(
            "{} facts of these executors were dropped; the figures lack them.",
            units::count(lost)
        ),
    });
    body.element("ul", &[], |list| {
        for line in lines {
            list.line("li", &[], &shortened(&line, 2000));
        }
    });
}

/// Settings of a machine in words.
fn machine(around: &Surroundings) -> String {
    let mut settings = Vec::new();
    settings.extend(
        around
            .transparent_huge_pages
            .as_ref()
            .map(|mode| format!("transparent huge pages: {mode}")),
    );
    settings.extend(
        around
            .nodes
            .as_ref()
            .map(|nodes| format!("NUMA nodes with memory: {}", nodes.len())),
    );
    settings.extend(
        around
            .memory_bytes
            .map(|bytes| format!("memory: {}", units::bytes(bytes))),
    );
    settings.extend(around.swap_bytes.map(|bytes| match bytes {
        0 => "no swap".to_owned(),
        bytes => format!("swap: {}", units::bytes(bytes)),
    }));
    settings.extend(
        around
            .swappiness
            .map(|value| format!("vm.swappiness: {value}")),
    );
    settings.join(", ")
}

/// Why page walks are not measured.
pub fn no_walks(facts: &Facts) -> String {
    let workers = facts.workers.iter();
    let probes = workers.flat_map(|worker| &worker.status.probes);
    let reasons: Vec<&str> = probes
        .filter(|probe| {
            probe.name == smtt_model::verdict::PAGE_WALKS
                && probe.verdict != smtt_model::verdict::VerdictState::Ok
        })
        .map(|probe| probe.reason.trim_end_matches('.'))
        .collect();
    reasons.first().map_or_else(
        || "this CPU has no event for them".to_owned(),
        |reason| (*reason).to_owned(),
    )
}
