//! Metrics for Prometheus, built at each scrape from a snapshot of the state.
//!
//! What was not measured has no series. RDDs are counted under keys that live as long as their application; RDDs beyond
//! the limit of keys share `rdd="other"`.

pub mod accountant;
mod collect;
mod counted;
mod findings;
mod keys;
mod labels;
mod memory;
mod page_walks;
mod placement;
mod rdds;
mod shares;
pub mod table;
mod text;

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use counted::{Births, Hold, Settled};
use findings::Findings;
use keys::Keys;
use labels::Labels;
use table::{Kind, METRICS, Metric};

use crate::shared::Shared;

pub use crate::shared::{KeyLimits, MetricsSettings};
pub use labels::Names;

/// Content type of OpenMetrics.
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Content type of the older text format.
pub const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics.
    OpenMetrics,
    /// The older text.
    Text,
}

impl Format {
    /// The format that an `Accept` header prefers.
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        if wants_openmetrics(accept) {
            Self::OpenMetrics
        } else {
            Self::Text
        }
    }

    /// Its content type.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => OPENMETRICS,
            Self::Text => TEXT,
        }
    }
}

/// A value of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A count or a size.
    Whole(u64),
    /// Anything else.
    Real(f64),
}

/// One sample: label values in the order of the metric's labels, and the value.
pub type Sample = (Vec<String>, Value);

/// One metric with its samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Which metric.
    pub metric: &'static Metric,
    /// Its samples.
    pub samples: Vec<Sample>,
}

/// Who reads an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A program that computes rates from many answers: new counters show 0 first.
    Scraper,
    /// A person who requests the metrics once: all counters show their values.
    Person,
}

/// What the metrics keep between two answers.
#[derive(Debug)]
struct Accounts {
    keys: Keys,
    births: Births,
    /// Facts that markers have sent and the kernel side has not seen.
    not_seen: Settled,
    findings: Findings,
}

/// Makes the answer to a scrape. Remembers what it has counted, so that counters never decrease.
#[derive(Debug)]
pub struct Exporter {
    settings: MetricsSettings,
    accounts: Mutex<Accounts>,
    labels: Labels,
}

impl Exporter {
    /// An exporter.
    #[must_use]
    pub fn new(settings: MetricsSettings) -> Self {
        let window_ns = u64::try_from(settings.scrape_interval.as_nanos()).unwrap_or(u64::MAX);
        Self {
            settings,
            accounts: Mutex::new(Accounts {
                keys: Keys::new(settings.keys, settings.by, window_ns),
                births: Births::default(),
                not_seen: Settled::default(),
                findings: Findings::new(),
            }),
            labels: Labels::default(),
        }
    }

    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what the executors have counted to the keys. Called every few seconds, so that an RDD that is forgotten
    /// between two scrapes was counted under its key, and so that the first counts of a counter have a time.
    pub fn account(&self, shared: &Shared) {
        let mut accounts = self.accounts();
        let (executors, measured, now_ns) = {
            let mut state = shared.state();
            accounts.keys.update(&mut state);
            (collect::snapshot(&state), state.measured(), state.now_ns())
        };
        collect::note_first_counts(shared, &mut accounts, &executors, measured, now_ns);
    }

    /// Looks for findings; scrapes show them until the next call. Reads files, and waits for the large answer that is
    /// being made: call it on a thread of its own.
    pub fn find(&self, shared: &Shared) {
        let found = findings::find(shared);
        self.accounts().findings = found;
    }

    /// The text of one scrape.
    ///
    /// # Errors
    /// When the text cannot be written.
    pub fn scrape(
        &self,
        shared: &Shared,
        format: Format,
        names: Names,
        reader: Reader,
    ) -> Result<String, fmt::Error> {
        let interval = match reader {
            Reader::Scraper => self.settings.scrape_interval,
            Reader::Person => Duration::ZERO,
        };
        let families = {
            // Held during the snapshot, so that two simultaneous scrapes see the counters in order.
            let mut accounts = self.accounts();
            let hold = Hold {
                now_ns: 0,
                for_ns: u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX),
            };
            let families = collect::Families::new(&self.labels, names, hold);
            collect::families(shared, families, &mut accounts)
        };
        match format {
            Format::OpenMetrics => open_metrics(families),
            Format::Text => Ok(text::render(&families)),
        }
    }
}

/// Whether an `Accept` header prefers OpenMetrics. Without a preference the answer is the older text, which every
/// client reads.
fn wants_openmetrics(accept: &str) -> bool {
    let quality = |wanted: &str| {
        accept
            .split(',')
            .filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                (parts.next()? == wanted).then(|| {
                    parts
                        .find_map(|part| part.strip_prefix("q="))
                        .map_or(1.0, |q| q.parse::<f64>().unwrap_or(0.0))
                })
            })
            .fold(0.0, f64::max)
    };
    let open = quality("application/openmetrics-text");
    open > 0.0 && open >= quality("text/plain")
}

/// The families as a collector of the client library, which writes OpenMetrics.
#[derive(Debug)]
struct Snapshot(Vec<Family>);

impl prometheus_client::collector::Collector for Snapshot {
    fn encode(
        &self,
        mut encoder: prometheus_client::encoding::DescriptorEncoder<'_>,
    ) -> fmt::Result {
        use prometheus_client::encoding::EncodeMetric;
        use prometheus_client::metrics::MetricType;
        use prometheus_client::metrics::counter::ConstCounter;
        use prometheus_client::metrics::gauge::ConstGauge;

        for Family { metric, samples } in self.0.iter().filter(|family| !family.samples.is_empty())
        {
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Info => MetricType::Info,
            };
            // The format adds the suffixes of counters and infos itself.
            let name = metric
                .name
                .trim_end_matches("_total")
                .trim_end_matches("_info");
            let mut family = encoder.encode_descriptor(name, metric.help, None, kind)?;
            for (values, value) in samples {
                let labels: Vec<(&str, &str)> = metric
                    .labels
                    .iter()
                    .zip(values)
                    .map(|(name, value)| (*name, value.as_str()))
                    .collect();
                if metric.kind == Kind::Info {
                    // The labels are the information; one family may have several.
                    family.encode_info(&labels)?;
                    continue;
                }
                let sample = family.encode_family(&labels)?;
                match (metric.kind, value) {
                    (Kind::Counter, Value::Whole(value)) => {
                        ConstCounter::new(*value).encode(sample)?
                    }
                    (Kind::Counter, Value::Real(value)) => {
                        ConstCounter::new(*value).encode(sample)?
                    }
                    (_, Value::Whole(value)) => ConstGauge::new(*value).encode(sample)?,
                    (_, Value::Real(value)) => ConstGauge::new(*value).encode(sample)?,
                }
            }
        }
        Ok(())
    }
}

fn open_metrics(families: Vec<Family>) -> Result<String, fmt::Error> {
    let mut registry = prometheus_client::registry::Registry::default();
    registry.register_collector(Box::new(Snapshot(families)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

/// The document that describes every metric.
#[must_use]
pub fn document() -> String {
    table::document(METRICS)
}

#[cfg(test)]
mod dashboard;
#[cfg(test)]
mod tests;
