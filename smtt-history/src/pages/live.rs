//! Pages of an application that runs: how old what they show is, and how they bring newer ones.

use maud::{Markup, html};

use super::Asked;
use super::table::Request;
use crate::serve::routes::age_ms;

/// Seconds after which a page loads itself again, of its links; 0 for never.
const EVERY: [u64; 4] = [0, 10, 30, 60];
/// Seconds that an address may ask for.
const BOUNDS: std::ops::RangeInclusive<u64> = 5..=3600;

/// The age of what a page shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Live {
    /// Milliseconds since the log last changed.
    age_ms: u64,
    /// Seconds after which the page loads itself again; 0 for never.
    every: u64,
}

impl Live {
    /// Of an application that has not ended.
    pub(super) fn of(asked: &Asked<'_>) -> Option<Self> {
        let age_ms = age_ms(asked.app)?;
        let every = asked.parameters.one("refresh");
        let every = every.and_then(|it| it.parse::<u64>().ok());
        let every = every.filter(|it| *it > 0);
        let within = |it: u64| it.clamp(*BOUNDS.start(), *BOUNDS.end());
        Some(Self {
            age_ms,
            every: every.map_or(0, within),
        })
    }

    /// What the head of the page has: without a script the browser loads the page again. With one the script does: it knows
    /// what the reader zoomed to.
    pub(super) fn head(self) -> Markup {
        html! {
            @if self.every > 0 { noscript { meta http-equiv="refresh" content=(self.every); } }
        }
    }

    /// The line above the page.
    pub(super) fn line(self, asked: &Asked<'_>) -> Markup {
        let request = Request::new(asked.parameters).ok();
        let with = |seconds: u64| {
            let seconds = if seconds == 0 {
                String::new()
            } else {
                seconds.to_string()
            };
            let query = request.as_ref().map(|it| it.with("refresh", &seconds));
            query.unwrap_or_else(|| "?".to_owned())
        };
        html! {
            p.live id="live" role="group" aria-label="Age of this page" data-age=(self.age_ms) data-refresh=(self.every) {
                span { "Running: its log last changed " span id="live-age" { (words(self.age_ms)) } " ago" }
                a href=(with(self.every)) id="live-now" title="Refresh (r)" { "Refresh" }
                span { "every"
                    @for seconds in EVERY {
                        " " a href=(with(seconds)) data-every=(seconds) aria-current=[(seconds == self.every).then_some("true")] {
                            @if seconds == 0 { "never" } @else { (seconds) " s" }
                        }
                    }
                }
            }
        }
    }

    /// The script of the line. A page's own script goes first: it may bring less than the whole page.
    pub(super) fn script(asked: &Asked<'_>) -> Markup {
        html! { script type="module" src=(asked.place.to("files/live.js")) {} }
    }
}

fn words(ms: u64) -> String {
    match ms.saturating_add(500) / 1000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", (seconds + 30) / 60),
        seconds @ 7200..172_800 => format!("{} h", (seconds + 1800) / 3600),
        seconds => format!("{} d", (seconds + 43_200) / 86_400),
    }
}
