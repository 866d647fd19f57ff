//! Text format 0.0.4, which the client library does not write.

use super::table::Kind;
use super::{Family, Value};

/// The families as text.
pub(super) fn render(families: &[Family]) -> String {
    let mut text = String::new();
    for Family { metric, samples } in families.iter().filter(|family| !family.samples.is_empty()) {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            // The older format has no infos.
            Kind::Gauge | Kind::Info => "gauge",
        };
        text.push_str(&format!(
            "# HELP {} {}\n# TYPE {} {kind}\n",
            metric.name,
            escaped(metric.help, false),
            metric.name
        ));
        for (values, value) in samples {
            text.push_str(metric.name);
            if !metric.labels.is_empty() {
                let pairs: Vec<String> = metric
                    .labels
                    .iter()
                    .zip(values)
                    .map(|(label, value)| format!("{label}=\"{}\"", escaped(value, true)))
                    .collect();
                text.push_str(&format!("{{{}}}", pairs.join(",")));
            }
            match value {
                Value::Whole(value) => text.push_str(&format!(" {value}\n")),
                Value::Real(value) => text.push_str(&format!(" {value}\n")),
            }
        }
    }
    text
}

fn escaped(text: &str, quotes: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    if quotes {
        text.replace('"', "\\\"")
    } else {
        text
    }
}
