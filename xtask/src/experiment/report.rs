//! The tables and figures of the experiment, beside the paper's, and the measured machine.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::CORES;
use super::chart::{Series, bars};
use super::emulated;
use super::paper::{MACHINES, PAPER, RDD_SHARE_AVERAGE, WALK_READ_AVERAGE, WALK_WRITE_AVERAGE};
use super::run::Outcome;
use crate::process::output;

/// File of the chart of page walks.
const WALKS_FIGURE: &str = "page-walks.svg";
const PAPER_COLOUR: &str = "#9a9a9a";
const ONE_COLOUR: &str = "#1f6fb4";
const TWO_COLOUR: &str = "#7cb9e8";

/// The measured machine.
#[derive(Clone, Debug)]
pub struct Machine {
    processor: String,
    processors: usize,
    memory_gib: f64,
    kernel: String,
    spark: String,
    java: u32,
    date: String,
}

impl Machine {
    /// Describes this machine, with today's date.
    ///
    /// # Errors
    /// When `/proc` does not describe the machine.
    pub fn this(spark: &str, java: u32) -> Result<Self> {
        let read =
            |path: &str| fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
        let processors = read("/proc/cpuinfo")?;
        let processor = processors
            .lines()
            .find_map(|line| line.strip_prefix("model name"))
            .map_or("unknown processor", |rest| {
                rest.trim_start_matches([' ', '\t', ':'])
            });
        let memory = read("/proc/meminfo")?;
        let kib: f64 = memory
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|number| number.parse().ok())
            .context("/proc/meminfo has no MemTotal")?;
        Ok(Self {
            processor: processor.to_owned(),
            processors: std::thread::available_parallelism()?.get(),
            memory_gib: kib / 1024.0 / 1024.0,
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            spark: spark.to_owned(),
            java,
            date: output(Command::new("date").args(["-u", "+%Y-%m-%d"]))?
                .trim()
                .to_owned(),
        })
    }
}

/// Results of the experiment.
#[derive(Clone, Debug)]
pub struct Results {
    /// The measured machine.
    pub machine: Machine,
    /// Size of the inputs.
    pub scale: u32,
    /// Results of the successful runs.
    pub outcomes: Vec<Outcome>,
    /// The failed runs, each with its reason.
    pub failures: Vec<String>,
    /// Duration of the experiment.
    pub seconds: f64,
}

impl Results {
    /// Writes `EXPERIMENT.md` and its figures below `folder`, and returns the text.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn write(&self, folder: &Path) -> Result<String> {
        let figures = folder.join("experiment");
        fs::create_dir_all(&figures)
            .with_context(|| format!("cannot make {}", figures.display()))?;
        for (name, svg) in self.figures() {
            let path = figures.join(name);
            // A chart without any of our bars would only show the paper's.
            if name == WALKS_FIGURE && !self.has_walks() {
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(error)
                            .with_context(|| format!("cannot remove {}", path.display()));
                    }
                    _ => continue,
                }
            }
            fs::write(&path, svg).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let text = emulated::with_section(&self.text(), &emulated::kept_section(folder)?);
        let path = folder.join("EXPERIMENT.md");
        fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(text)
    }

    /// Whether any run measured page walks.
    fn has_walks(&self) -> bool {
        self.outcomes
            .iter()
            .any(|outcome| outcome.walk_read.is_some() || outcome.walk_write.is_some())
    }

    fn find(&self, workload: &str, workers: usize) -> Option<&Outcome> {
        self.outcomes
            .iter()
            .find(|outcome| outcome.workload == workload && outcome.workers == workers)
    }

    fn figures(&self) -> [(&'static str, String); 3] {
        let rows = PAPER.map(|paper| paper.workload);
        let ours = |workers: usize, value: &dyn Fn(&Outcome) -> Option<f64>| {
            rows.iter()
                .map(|row| self.find(row, workers).and_then(value))
                .collect()
        };
        let series = |name, colour, values| Series {
            name,
            colour,
            values,
        };
        let share = |outcome: &Outcome| Some(100.0 * outcome.rdd_share_of_heap());
        let memory = [
            series(
                "paper, one node",
                PAPER_COLOUR,
                PAPER.map(|paper| Some(paper.rdd_share)).to_vec(),
            ),
            series("one worker", ONE_COLOUR, ours(1, &share)),
            series("two workers", TWO_COLOUR, ours(2, &share)),
        ];
        let read = |outcome: &Outcome| outcome.faults[1].map(|count| count as f64 / 1e3);
        let write = |outcome: &Outcome| outcome.faults[2].map(|count| count as f64 / 1e3);
        let faults = [
            series("reads, one worker", "#2e8b57", ours(1, &read)),
            series("writes, one worker", "#c0562f", ours(1, &write)),
            series("reads, two workers", "#95cfae", ours(2, &read)),
            series("writes, two workers", "#e6ab94", ours(2, &write)),
        ];
        let both = |read: Option<f64>, write: Option<f64>| Some(read? + write?);
        let walk = |outcome: &Outcome| {
            both(outcome.walk_read, outcome.walk_write).map(|ratio| 100.0 * ratio)
        };
        let walks = [
            series(
                "paper, one node",
                PAPER_COLOUR,
                PAPER
                    .map(|paper| both(paper.walk_read, paper.walk_write))
                    .to_vec(),
            ),
            series("one worker", ONE_COLOUR, ours(1, &walk)),
            series("two workers", TWO_COLOUR, ours(2, &walk)),
        ];
        [
            (
                "rdd-memory.svg",
                bars(
                    "Memory held by RDDs, of the executors' memory",
                    &rows,
                    &memory,
                    "%",
                    2,
                ),
            ),
            (
                "page-faults.svg",
                bars(
                    "Page faults of the executors",
                    &rows,
                    &faults,
                    "thousand",
                    1,
                ),
            ),
            (
                WALKS_FIGURE,
                bars(
                    "Cycles in page walks (reads + writes), of the execution cycles",
                    &rows,
                    &walks,
                    "%",
                    2,
                ),
            ),
        ]
    }

    fn text(&self) -> String {
        let machine = &self.machine;
        let walks = self.has_walks();
        let mut text = format!(
            "# The paper's experiment\n\nGenerated by `cargo xtask experiment --scale {}`: eight workloads on Spark in stand-alone mode, on one worker with {CORES} cores and on two workers with one core each, executors with a heap of 1 GiB, inputs made by the tasks. All of it took {:.0} s.\n\n| | ours | the paper's |\n|---|---|---|\n| machine | {}, {} CPUs, {:.0} GiB | {MACHINES} |\n| software | Linux {}, Spark {}, OpenJDK {} | not the same versions |\n| nodes | one machine; two workers are two processes on it | one node and two nodes |\n| date | {} | |\n\n",
            self.scale,
            self.seconds,
            machine.processor,
            machine.processors,
            machine.memory_gib,
            machine.kernel,
            machine.spark,
            machine.java,
            machine.date
        );
        text.push_str(COMPARABLE);
        text.push_str(&self.memory());
        text.push_str(&self.walks(walks));
        text.push_str(&self.faults());
        text.push_str(&self.jobs());
        text
    }

    fn memory(&self) -> String {
        let mut text = "\n## Memory held by RDDs\n\n![Memory held by RDDs](experiment/rdd-memory.svg)\n\nIn per cent. `heap`: the most that RDDs held at one sampled moment (storage memory of their blocks, and execution memory allocated while they were current), of the largest heap of all executors. `storage`: without execution memory. `resident`: the same as `heap`, of the executors' peak of resident memory. Samples are taken every 0.5 s, so a shorter peak is missed.\n\n| workload | paper, one node | heap, one worker | storage | resident | heap, two workers | storage | resident |\n|---|--:|--:|--:|--:|--:|--:|--:|\n".to_owned();
        for paper in PAPER {
            let _ = write!(text, "| {} | {:.2} ", paper.workload, paper.rdd_share);
            for workers in [1, 2] {
                let outcome = self.find(paper.workload, workers);
                for share in [
                    Outcome::rdd_share_of_heap,
                    Outcome::storage_share_of_heap,
                    Outcome::rdd_share_of_resident,
                ] {
                    let _ = write!(text, "| {} ", percent(outcome.map(share)));
                }
            }
            text.push_str("|\n");
        }
        let mean = |workers: usize| {
            let shares: Vec<f64> = self
                .outcomes
                .iter()
                .filter(|outcome| outcome.workers == workers)
                .map(Outcome::rdd_share_of_heap)
                .collect();
            (shares.len() == PAPER.len()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
        };
        let _ = writeln!(
            text,
            "\nAverage: the paper says {:.2} % on one node and {:.2} % on two (the mean of the column above is 51.73 %: it averages in another way); the mean of ours is {} % on one worker and {} % on two.",
            RDD_SHARE_AVERAGE[0],
            RDD_SHARE_AVERAGE[1],
            percent(mean(1)),
            percent(mean(2))
        );
        text
    }

    fn walks(&self, measured: bool) -> String {
        let mut text = format!(
            "\n## Page walks\n\nThe paper's averages: reads {:.2} % and writes {:.2} % of the execution cycles on one node, {:.2} % and {:.2} % on two. ",
            WALK_READ_AVERAGE[0],
            WALK_WRITE_AVERAGE[0],
            WALK_READ_AVERAGE[1],
            WALK_WRITE_AVERAGE[1]
        );
        if measured {
            text.push_str("Ours: cycles of page walks in contexts of RDDs, of all cycles of the executors, in per cent.\n\n![Page walks](experiment/page-walks.svg)\n\n| workload | paper, read | paper, write | read, one worker | write | read, two workers | write |\n|---|--:|--:|--:|--:|--:|--:|\n");
        } else {
            text.push_str("**Ours are absent**: this machine gives no hardware counters (`smtt-ctl pmu` says so), and page walks cannot be counted without them. The figure and our columns appear where there is a PMU.\n\n| workload | paper, read | paper, write |\n|---|--:|--:|\n");
        }
        for paper in PAPER {
            let _ = write!(
                text,
                "| {} | {} | {} ",
                paper.workload,
                plain(paper.walk_read),
                plain(paper.walk_write)
            );
            if measured {
                for workers in [1, 2] {
                    let outcome = self.find(paper.workload, workers);
                    let _ = write!(
                        text,
                        "| {} | {} ",
                        percent(outcome.and_then(|outcome| outcome.walk_read)),
                        percent(outcome.and_then(|outcome| outcome.walk_write))
                    );
                }
            }
            text.push_str("|\n");
        }
        let estimated: Vec<String> = self
            .outcomes
            .iter()
            .filter_map(|outcome| {
                let ratio = outcome.walk_read_estimated?;
                Some(format!(
                    "{} on {} {:.2} %",
                    outcome.workload,
                    outcome.workers,
                    100.0 * ratio
                ))
            })
            .collect();
        if !estimated.is_empty() {
            let _ = writeln!(
                text,
                "\nReads, estimated from counted walks: {}.",
                estimated.join(", ")
            );
        }
        text
    }

    fn faults(&self) -> String {
        let mut text = "\n## Page faults\n\n![Page faults](experiment/page-faults.svg)\n\nOf the executors from their start to the workload's end; `of RDDs`: in contexts that name an RDD. Reads and writes are the hardware's: an RDD that is read causes write faults where its objects are new memory. The paper has no such figures.\n\n| workload | workers | faults | reads | writes | of RDDs | RDDs with the most |\n|---|--:|--:|--:|--:|--:|---|\n".to_owned();
        for outcome in &self.outcomes {
            let top: Vec<String> = outcome
                .top
                .iter()
                .map(|rdd| {
                    let name = if rdd.name.is_empty() {
                        String::new()
                    } else {
                        format!(" {}", short(&rdd.name))
                    };
                    format!(
                        "{}{name}: {} r, {} w",
                        rdd.id,
                        count(rdd.read),
                        count(rdd.write)
                    )
                })
                .collect();
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} |",
                outcome.workload,
                outcome.workers,
                count(outcome.faults[0]),
                count(outcome.faults[1]),
                count(outcome.faults[2]),
                count(outcome.faults_of_rdds),
                top.join("; ")
            );
        }
        text
    }

    fn jobs(&self) -> String {
        let mut text = "\n## The runs\n\n`checked`: RDDs in memory at the end, and their bytes, each exactly as Spark's REST API says.\n\n| workload | workers | s | samples | checked | result |\n|---|--:|--:|--:|---|---|\n".to_owned();
        for outcome in &self.outcomes {
            let _ = writeln!(
                text,
                "| {} | {} | {:.1} | {} | {} RDDs, {} bytes | {} |",
                outcome.workload,
                outcome.workers,
                outcome.seconds,
                outcome.samples,
                outcome.agreed_rdds,
                outcome.agreed_bytes,
                outcome.result
            );
        }
        for failure in &self.failures {
            let first = failure.lines().next().unwrap_or_default();
            let _ = writeln!(text, "\n**Failed**: {first}");
        }
        text
    }
}

const COMPARABLE: &str = "What can be compared with the paper: what is measured and how it is defined. What cannot: the height of the shares and, unless the inputs fill the cache, the order of the workloads, because both follow from the size of the input against the heap (raise `--scale` until the cache is full), from Spark's version and from generated inputs in place of SparkBench's; two workers, because they share one memory and one set of processors; times.\n";

fn percent(share: Option<f64>) -> String {
    plain(share.map(|share| 100.0 * share))
}

fn plain(number: Option<f64>) -> String {
    number.map_or_else(|| "absent".to_owned(), |number| format!("{number:.2}"))
}

fn count(number: Option<u64>) -> String {
    number.map_or_else(|| "absent".to_owned(), |number| number.to_string())
}

/// A name shortened to the width of a table cell.
pub fn short(name: &str) -> String {
    let name: String = name
        .chars()
        .take_while(|character| *character != '\n')
        .map(|character| if character == '|' { '/' } else { character })
        .collect();
    if name.chars().count() > 40 {
        format!("{}...", name.chars().take(37).collect::<String>())
    } else {
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_cells() {
        assert_eq!(short("a|b\nc"), "a/b");
        assert_eq!(short(&"x".repeat(50)).len(), 40);
    }

    #[test]
    fn what_is_not_there_is_absent() {
        assert_eq!(percent(None), "absent");
        assert_eq!(percent(Some(0.4074)), "40.74");
        assert_eq!(count(None), "absent");
    }
}
