//! Lines of the log: text, or JSON for collectors; with priorities where the journal reads them.

use std::fmt::{self, Write as _};
use std::os::unix::fs::MetadataExt;

use serde_json::{Map, Value};
use smtt_model::time::utc;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// How lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lines {
    /// One JSON object per line.
    pub json: bool,
    /// Whether the journal reads them: it takes a priority in front of each line and adds the time.
    pub journal: bool,
    /// Whether levels are coloured.
    pub coloured: bool,
}

/// Whether standard error is the stream that the journal of systemd has opened: `JOURNAL_STREAM` names its device and
/// inode, and stays set where the stream was redirected.
#[must_use]
pub fn is_journal() -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let open = std::fs::metadata("/proc/self/fd/2");
    open.is_ok_and(|file| named == format!("{}:{}", file.dev(), file.ino()))
}

/// Priority of syslog.
const fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        if self.json {
            text.push_str(&object(event, smtt_machine::clock::now_unix_ns()));
        } else {
            let inner = Writer::new(&mut text);
            let format = Format::default().with_target(false);
            match self.journal {
                // The journal shows times and levels itself.
                true => format
                    .without_time()
                    .with_level(false)
                    .with_ansi(false)
                    .format_event(context, inner, event)?,
                false => format
                    .with_ansi(self.coloured)
                    .format_event(context, inner, event)?,
            }
        }
        for line in text.lines() {
            if self.journal {
                write!(writer, "<{}>", priority(*event.metadata().level()))?;
            }
            writeln!(writer, "{line}")?;
        }
        Ok(())
    }
}

/// A line as a JSON object: `time`, `level`, `message`, `target`, then the fields of the event.
fn object(event: &Event<'_>, now_ns: u64) -> String {
    let mut fields = Fields(Map::new());
    let now_us = i64::try_from(now_ns / 1000).unwrap_or(i64::MAX);
    fields.put("time", utc(now_us).into());
    let level = event.metadata().level().as_str().to_ascii_lowercase();
    fields.put("level", level.into());
    fields.put("message", Value::Null);
    fields.put("target", event.metadata().target().into());
    event.record(&mut fields);
    Value::Object(fields.0).to_string()
}

struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, name: &str, value: Value) {
        // Fields that the log crate's records carry repeat the target, file and line.
        if !name.starts_with("log.") {
            self.0.insert(name.to_owned(), value);
        }
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field.name(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        self.put(field.name(), text.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::fmt::MakeWriter;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("a lock").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Kept {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    fn written(lines: Lines, log: impl FnOnce()) -> String {
        let kept = Kept::default();
        let subscriber = tracing_subscriber::fmt()
            .event_format(lines)
            .with_max_level(Level::TRACE)
            .with_writer(kept.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, log);
        let bytes = kept.0.lock().expect("a lock").clone();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn each_line_is_an_object() {
        let lines = Lines {
            json: true,
            journal: false,
            coloured: false,
        };
        let text = written(lines, || {
            tracing::warn!(executor_id = "0", lost = 3_u64, app = %"a\"b", "two\nlines {}", 7);
            tracing::info!("second");
        });
        let objects: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!(objects.len(), 2, "{text}");
        assert_eq!(objects[0]["message"], "two\nlines 7");
        assert_eq!(objects[0]["level"], "warn");
        assert_eq!(objects[0]["executor_id"], "0");
        assert_eq!(objects[0]["lost"], 3);
        assert_eq!(objects[0]["app"], "a\"b");
        assert!(
            objects[0]["time"]
                .as_str()
                .is_some_and(|time| time.ends_with('Z')),
            "{text}"
        );
        assert_eq!(objects[1]["level"], "info");
    }

    #[test]
    fn the_journal_gets_a_priority_in_front_of_each_line() {
        let lines = Lines {
            json: false,
            journal: true,
            coloured: true,
        };
        let text = written(lines, || {
            tracing::error!("broken");
            tracing::warn!("two\nlines");
            tracing::info!(pid = 7, "found");
            tracing::debug!("detail");
        });
        assert_eq!(
            text,
            "<3>broken\n<4>two\n<4>lines\n<6>found pid=7\n<7>detail\n"
        );
    }

    #[test]
    fn without_a_journal_there_are_times_and_levels_but_no_priorities() {
        let lines = Lines {
            json: false,
            journal: false,
            coloured: false,
        };
        let text = written(lines, || tracing::warn!("careful"));
        assert!(
            text.ends_with("  WARN careful\n") && text.starts_with("20"),
            "{text:?}"
        );
    }
}
