//! The experiment on an emulated machine whose dTLB counters work: estimated page-walk ratios of the workloads beside
//! the paper's. The results are kept as JSON; the section of `EXPERIMENT.md` is generated from it.

mod section;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::paper::PAPER;
use super::{Plan, fixture_step};
use crate::paths::{DEMO_SPARK, Paths};
use crate::process::output;
use crate::setup::setup;
use crate::step::Steps;
use crate::vm;

pub use section::{HEADING, section};

/// The machines with a dTLB counter.
pub const MACHINES: [&str; 1] = ["riscv64"];
/// Time limit of the guest, from power on.
const LIMIT: Duration = Duration::from_secs(7200);
/// RDDs of a workload in the results: those with the most walks.
const TOP: usize = 4;

/// File of the results, in the folder of the document's figures.
#[must_use]
pub fn file(machine: &str) -> String {
    format!("page-walks-{machine}.json")
}

/// Runs the plan in the guest, and writes results and section: to `docs` when all workloads were asked for, else to
/// `target/experiment-MACHINE` only.
///
/// # Errors
/// When a part cannot be set up, or, at the end, when a workload has no figures.
pub fn experiment(paths: &Paths, plan: &Plan, machine: &str) -> Result<()> {
    setup(paths, &[DEMO_SPARK])?;
    fixture_step(paths, &mut Steps::new(1))?;
    let workloads: Vec<&str> = ordered()
        .into_iter()
        .filter(|name| plan.workload.as_ref().is_none_or(|only| only == name))
        .collect();
    let scale = plan.scale.to_string();
    let names = workloads.join(",");
    let start = Instant::now();
    let mut results = Results::new(machine, plan.scale)?;
    let ran = vm::experiment(
        paths,
        machine,
        &[&scale, &names, "traced,machine,process"],
        LIMIT,
        |line| results.line(line),
    );
    let reason = match &ran {
        Ok(()) => "the run printed none".to_owned(),
        Err(error) => {
            let text = format!("{error:#}");
            text.lines().next().unwrap_or_default().to_owned()
        }
    };
    results.value["seconds"] = json!(start.elapsed().as_secs());
    results.value["ended"] = json!(ran.is_ok());
    results.value["reason_of_absence"] = json!(reason);
    let out = if plan.workload.is_none() && results.has_figures() {
        paths.root.join("docs")
    } else {
        paths.target.join(format!("experiment-{machine}"))
    };
    results.write(&out)?;
    println!("\n{}", section(&results.value));
    let shown = out.strip_prefix(&paths.root).unwrap_or(&out);
    println!("written: {}/EXPERIMENT.md", shown.display());
    ran?;
    let missing = results.missing(&workloads);
    if !missing.is_empty() {
        bail!("no figures of {}", missing.join(", "));
    }
    Ok(())
}

/// The workloads, those with figures of the paper first: a run that is cut short can still be compared. Logistic
/// regression is the last of these: it loads Spark SQL, which takes longer than another whole workload.
fn ordered() -> Vec<&'static str> {
    let mut rows = PAPER.to_vec();
    rows.sort_by_key(|row| {
        (
            row.walk_read.is_none(),
            row.workload == "LogisticRegression",
        )
    });
    rows.iter().map(|row| row.workload).collect()
}

/// The results, as they are kept.
struct Results {
    value: Value,
}

impl Results {
    fn new(machine: &str, scale: u32) -> Result<Self> {
        let date = output(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
        Ok(Self {
            value: json!({
                "machine": machine, "scale": scale, "date": date.trim(), "spark": DEMO_SPARK, "runs": [], "calibrations": [],
            }),
        })
    }

    /// Takes one line of the guest's output.
    fn line(&mut self, line: &str) {
        let Some(text) = line.strip_prefix("figure ") else {
            println!("  {line}");
            return;
        };
        match serde_json::from_str::<Value>(text) {
            Ok(mut figure) => {
                println!("  {}", shown(&figure));
                if figure["kind"] == "guest" {
                    if let Some(costs) = self.value["calibrations"].as_array_mut() {
                        costs.push(figure["page_walks"]["calibration"].clone());
                    }
                    self.value["guest"] = figure;
                } else {
                    shorten(&mut figure);
                    if let Some(runs) = self.value["runs"].as_array_mut() {
                        runs.push(figure);
                    }
                }
            }
            Err(error) => println!("  a figure is no JSON ({error}): {text}"),
        }
    }

    fn has_figures(&self) -> bool {
        let mut runs = self.value["runs"].as_array().into_iter().flatten();
        runs.any(|run| run["kind"] == "traced" && run["succeeded"] == true)
    }

    /// The workloads without a successful traced run.
    fn missing<'a>(&self, workloads: &[&'a str]) -> Vec<&'a str> {
        let has = |name: &&str| {
            let mut runs = self.value["runs"].as_array().into_iter().flatten();
            runs.any(|run| {
                run["kind"] == "traced" && run["workload"] == **name && run["succeeded"] == true
            })
        };
        workloads
            .iter()
            .copied()
            .filter(|name| !has(name))
            .collect()
    }

    /// Writes the results, and the section into the document in that folder.
    fn write(&self, folder: &Path) -> Result<()> {
        let figures = folder.join("experiment");
        fs::create_dir_all(&figures)
            .with_context(|| format!("cannot make {}", figures.display()))?;
        let machine = self.value["machine"].as_str().unwrap_or_default();
        let path = figures.join(file(machine));
        let text = serde_json::to_string_pretty(&self.value)?;
        fs::write(&path, text + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
        let path = folder.join("EXPERIMENT.md");
        let text = fs::read_to_string(&path).unwrap_or_default();
        fs::write(&path, with_section(&text, &section(&self.value)))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The document with that section in place of an older one. It is the last section.
#[must_use]
pub fn with_section(document: &str, section: &str) -> String {
    if section.is_empty() {
        return document.to_owned();
    }
    let kept = document
        .split_once(&format!("\n{HEADING}\n"))
        .map_or(document, |(before, _)| before)
        .trim_end();
    if kept.is_empty() {
        return section.to_owned();
    }
    format!("{kept}\n\n{section}")
}

/// The section of earlier results that lie in the document's folder; empty without results.
///
/// # Errors
/// When the results cannot be read.
pub fn kept_section(folder: &Path) -> Result<String> {
    let mut text = String::new();
    for machine in MACHINES {
        let path = folder.join("experiment").join(file(machine));
        if path.is_file() {
            let read = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let value = serde_json::from_str(&read)
                .with_context(|| format!("{} is no JSON", path.display()))?;
            text.push_str(&section(&value));
        }
    }
    Ok(text)
}

/// One line for the terminal.
fn shown(figure: &Value) -> String {
    match figure["kind"].as_str() {
        Some("guest") => format!(
            "Linux {}; cost of a walk: {}",
            figure["kernel"].as_str().unwrap_or_default(),
            figure["page_walks"]["calibration"]
        ),
        Some(kind) => format!(
            "{kind} {} {:.0} s, CPU time {} ms: cycles {}, read misses {}, write misses {}; {}",
            figure["workload"].as_str().unwrap_or_default(),
            figure["seconds"].as_f64().unwrap_or_default(),
            figure["cpu_ms"],
            figure["cycles"],
            figure["read"],
            figure["write"],
            figure["result"]
        ),
        None => figure.to_string(),
    }
}

/// Replaces the list of RDDs by those with the most walks, and the sum of all.
fn shorten(figure: &mut Value) {
    let Some(mut rdds) = figure["rdds"].as_array().cloned() else {
        return;
    };
    let sum = |key: &str| rdds.iter().filter_map(|rdd| rdd[key].as_u64()).sum::<u64>();
    figure["of_rdds"] = json!({
        "rdds": rdds.len(), "cycles": sum("cycles"), "read": sum("read"), "write": sum("write"),
        "read_samples": sum("read_samples"), "write_samples": sum("write_samples"),
    });
    rdds.sort_by_key(|rdd| {
        let walks = |key: &str| rdd[key].as_u64().unwrap_or_default();
        std::cmp::Reverse(walks("read") + walks("write"))
    });
    rdds.truncate(TOP);
    figure["rdds"] = json!(rdds);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_is_replaced_and_stays_the_last() {
        let section = format!("{HEADING}\n\nnew\n");
        let old = format!("# Title\n\ntext\n\n{HEADING}\n\nold\n");
        let new = format!("# Title\n\ntext\n\n{HEADING}\n\nnew\n");
        assert_eq!(with_section(&old, &section), new);
        assert_eq!(with_section("# Title\n\ntext\n", &section), new);
        assert_eq!(with_section("", &section), section);
    }

    #[test]
    fn the_documents_section_is_that_of_the_kept_results() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let section = kept_section(&folder).expect("the results can be read");
        let path = folder.join("EXPERIMENT.md");
        let document = fs::read_to_string(&path).expect("it is there");
        let generated = with_section(&document, &section);
        if std::env::var_os("SMTT_BLESS").is_some() {
            fs::write(&path, &generated).expect("it can be written");
            return;
        }
        assert_eq!(generated, document, "run `cargo xtask tidy`");
    }

    #[test]
    fn workloads_that_the_paper_has_figures_of_come_first() {
        let names = ordered();
        assert_eq!(names.len(), 8);
        assert_eq!(
            (names[3], names[4]),
            ("TriangleCount", "LogisticRegression")
        );
    }

    #[test]
    fn the_rdds_are_summed_before_the_list_is_cut() {
        let mut figure = json!({"rdds": (1..=6).map(|id| json!({"id": id, "read": id, "write": 1})).collect::<Vec<_>>()});
        shorten(&mut figure);
        assert_eq!(figure["of_rdds"]["read"], 21);
        assert_eq!(figure["of_rdds"]["rdds"], 6);
        assert_eq!(figure["rdds"].as_array().map(Vec::len), Some(TOP));
        assert_eq!(figure["rdds"][0]["id"], 6);
    }
}
