//! The part of a task's time that its lanes show: `from` and `to` of the address, in nanoseconds from the task's begin. The
//! page has all spans, so that its script draws other windows without a question; those outside the window are not drawn.

use maud::{Markup, html};
use smtt_model::units;

use super::share;
use crate::pages::Asked;
use crate::pages::table::Request;
use crate::serve::Refusal;
use crate::serve::routes::Parameters;

/// Shortest window: a tenth of the shortest span. `lanes.js` has the same.
const SHORTEST: u64 = 100_000;
/// Smallest width of a rectangle, in hundredths of the width of a lane. `lanes.js` has the same.
const NARROWEST: f64 = 0.1;

/// A window of a task's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// Nanoseconds from the task's begin.
    pub from: u64,
    /// Nanoseconds from the task's begin.
    pub to: u64,
    /// Length of all that is known of the task.
    pub total: u64,
}

impl Window {
    /// The window that an address names, else the whole task.
    pub(super) fn new(parameters: &Parameters, total: u64) -> Result<Self, Refusal> {
        let nanoseconds = |name: &str, default: u64| -> Result<u64, Refusal> {
            if parameters.one(name).is_none_or(str::is_empty) {
                return Ok(default);
            }
            Ok(u64::try_from(parameters.number(name, 0)?).unwrap_or(0))
        };
        let (from, to) = (nanoseconds("from", 0)?, nanoseconds("to", total)?);
        Ok(Self::within(from, to, total))
    }

    fn within(from: u64, to: u64, total: u64) -> Self {
        let total = total.max(1);
        let to = to.min(total).max(SHORTEST.min(total));
        let from = from.min(to.saturating_sub(SHORTEST));
        Self { from, to, total }
    }

    /// Whether it has all of the task's time.
    pub(super) const fn is_all(&self) -> bool {
        self.from == 0 && self.to == self.total
    }

    /// Whether a span lies in it, at least in part.
    pub(super) const fn has(&self, begin: u64, length: u64) -> bool {
        begin < self.to && begin.saturating_add(length) >= self.from
    }

    /// Where a time within the window is, in hundredths of the width.
    pub(super) fn place(&self, ns: u64) -> f64 {
        share(
            ns.clamp(self.from, self.to) - self.from,
            self.to - self.from,
        )
    }

    /// Begin and width of a span's rectangle, in hundredths of the width.
    pub(super) fn rectangle(&self, begin: u64, length: u64) -> (f64, f64) {
        let left = self.place(begin);
        let right = self.place(begin.saturating_add(length));
        (left, (right - left).max(NARROWEST))
    }

    /// A window of another length around the same middle.
    fn zoomed(&self, part: f64) -> Self {
        let length = self.to - self.from;
        let wanted = ((length as f64 * part) as u64).clamp(SHORTEST.min(self.total), self.total);
        let middle = self.from + length / 2;
        let from = middle.saturating_sub(wanted / 2).min(self.total - wanted);
        Self::within(from, from + wanted, self.total)
    }

    /// A window of the same length, a quarter later or earlier.
    fn moved(&self, is_later: bool) -> Self {
        let length = self.to - self.from;
        let from = if is_later {
            (self.from + length / 4).min(self.total - length)
        } else {
            self.from.saturating_sub(length / 4)
        };
        Self::within(from, from + length, self.total)
    }
}

/// Addresses of other windows, and what is shown. They work without a script; `lanes.js` moves the lanes instead.
pub(super) fn controls(asked: &Asked<'_>, window: &Window, shown: usize, all: usize) -> Markup {
    let others = asked.parameters.0.iter();
    let others = others.filter(|(key, _)| key != "from" && key != "to");
    let request = Request::new(&Parameters(others.cloned().collect())).ok();
    let to = |it: &Window| {
        let (from, to) = (it.from.to_string(), it.to.to_string());
        let query = match (&request, it.is_all()) {
            (Some(request), true) => request.with("from", ""),
            (Some(request), false) => format!("{}&to={to}", request.with("from", &from)),
            (None, true) => "?".to_owned(),
            (None, false) => format!("?from={from}&to={to}"),
        };
        format!("{query}#lanes")
    };
    let whole = Window::within(0, window.total, window.total);
    let choices = [
        ("out", "zoom out", "Zoom out (-)", window.zoomed(2.0)),
        ("in", "zoom in", "Zoom in (+)", window.zoomed(0.5)),
        ("left", "earlier", "Earlier (←)", window.moved(false)),
        ("right", "later", "Later (→)", window.moved(true)),
        ("all", "all", "The whole task (Home)", whole),
    ];
    html! {
        p.buttons.lanes-window id="lanes-window" {
            @for (name, text, title, of) in &choices { a href=(to(of)) data-do=(name) title=(title) { (text) } }
        }
        p.soft.lanes-said id="lanes-said" role="status" {
            "From " (units::duration(window.from)) " to " (units::duration(window.to)) ", "
            (units::count(shown as u64)) " of " (units::count(all as u64)) " spans and requests"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_window_lies_in_the_task_and_is_never_empty() {
        let asked = |from: &str, to: &str, total: u64| {
            let all = [("from", from), ("to", to)];
            let all = all.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let window = Window::new(&Parameters(all.to_vec()), total);
            window.map(|it| (it.from, it.to)).ok()
        };
        assert_eq!(asked("", "", 9 * MS), Some((0, 9 * MS)));
        assert_eq!(asked("2000000", "3000000", 9 * MS), Some((2 * MS, 3 * MS)));
        assert_eq!(
            asked("5000000", "4000000", 9 * MS),
            Some((39 * MS / 10, 4 * MS))
        );
        assert_eq!(asked("-7", "99000000", 9 * MS), Some((0, 9 * MS)));
        assert_eq!(
            asked("99000000", "99000000", 9 * MS),
            Some((89 * MS / 10, 9 * MS))
        );
        assert_eq!(asked("5", "5", 3), Some((0, 3)));
        assert_eq!(asked("0", "0", 0), Some((0, 1)));
        assert_eq!(asked("x", "", 9), None);
        let (from, to) = asked("0", "9", u64::MAX).expect("is a window");
        assert!(from < to);
    }

    #[test]
    fn zooms_and_moves_stay_in_the_task_and_end() {
        let all = Window::within(0, 1000 * MS, 1000 * MS);
        assert_eq!(all.zoomed(2.0), all);
        assert_eq!((all.moved(true), all.moved(false)), (all, all));
        let half = all.zoomed(0.5);
        assert_eq!((half.from, half.to), (250 * MS, 750 * MS));
        let later = half.moved(true);
        assert_eq!((later.from, later.to), (375 * MS, 875 * MS));
        assert_eq!(later.zoomed(2.0), all);
        let mut least = half;
        for _ in 0..40 {
            least = least.zoomed(0.5);
        }
        assert_eq!(least.to - least.from, SHORTEST);
        let mut last = half;
        for _ in 0..40 {
            last = last.moved(true);
        }
        assert_eq!((last.from, last.to), (500 * MS, 1000 * MS));
        // Times as executors claim them.
        let huge = Window::within(0, u64::MAX, u64::MAX);
        for it in [huge.zoomed(0.5), huge.zoomed(2.0), huge.moved(true)] {
            assert!(it.from < it.to, "{it:?}");
        }
    }
}
