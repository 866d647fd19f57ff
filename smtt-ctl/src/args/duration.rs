//! Durations, as the command line has them.

use std::time::Duration;

/// A number and a unit, as in 10m.
pub(super) fn age(text: &str) -> Result<Duration, String> {
    smtt_config::duration_of(text)
        .ok_or_else(|| format!("{text:?} is no time: write a number and s, m, h or d, as in 10m"))
}

/// An interval in seconds.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give a number of seconds from 0.1 to 3600".to_owned()),
    }
}
