//! A CPU's description as text.

use std::fmt;

use super::role::word;
use super::{Measured, MeasuredCore, Purpose, RoleEvent};

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "CPU {}", self.cpu)?;
        self.cores.iter().try_for_each(|core| write!(f, "\n{core}"))
    }
}

impl fmt::Display for MeasuredCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let absent = if self.pmu_present == Some(false) {
            " (not on this machine)"
        } else {
            ""
        };
        writeln!(f, "{}, PMU {}{absent}", self.uarch, self.pmu)?;
        writeln!(f, "  capability  {}", self.ratio_capability)?;
        if let Some(walkers) = self.page_walkers {
            writeln!(f, "  walkers     {walkers}")?;
        }
        writeln!(f, "  events")?;
        for (role, event) in &self.roles {
            writeln!(
                f,
                "    {role:26}  {:24}  {}{}",
                encoding(event),
                event.name,
                counters(event)
            )?;
            for part in &event.components {
                writeln!(f, "      + {:#x}  {}", part.encoding.perf_config, part.name)?;
            }
        }
        writeln!(f, "  figures")?;
        for figure in &self.plan.figures {
            writeln!(f, "    {figure}")?;
        }
        for (number, pass) in (1..).zip(&self.plan.passes) {
            writeln!(f, "  pass {number}")?;
            for group in &pass.groups {
                let what = match group.purpose {
                    Purpose::Figures => "one group",
                    Purpose::Addresses => "addresses",
                };
                let roles: Vec<String> = group.roles.iter().map(word).collect();
                writeln!(f, "    {what}: {}", roles.join(", "))?;
            }
        }
        if !self.plan.caveats.is_empty() {
            writeln!(f, "  to know")?;
        }
        self.plan
            .caveats
            .iter()
            .try_for_each(|caveat| writeln!(f, "    - {}", caveat.text))
    }
}

fn encoding(event: &RoleEvent) -> String {
    let Some(encoding) = &event.encoding else {
        return "sum of".to_owned();
    };
    let perf_type = encoding
        .perf_type
        .map_or_else(|| encoding.pmu.clone(), |number| number.to_string());
    let mut text = format!("{perf_type}:{:#x}", encoding.perf_config);
    for (name, value) in [("config1", encoding.config1), ("config2", encoding.config2)] {
        if value != 0 {
            text += &format!(",{name}={value:#x}");
        }
    }
    text
}

fn counters(event: &RoleEvent) -> String {
    match (event.counters.first(), event.counters.last()) {
        (Some(first), Some(last)) if first == last => format!(" (counter {first})"),
        (Some(first), Some(last)) => format!(" (counters {first}-{last})"),
        _ => String::new(),
    }
}
