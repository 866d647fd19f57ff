//! Selects the pages to inspect: all of them, or an evenly spread sample of the budget's size from a random start.

use smtt_model::sort::small;
use smtt_model::state::Targets;

/// Neighbouring pages of one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Index in [`Targets::ranges`].
    pub range: usize,
    /// Address of the first page.
    pub address: u64,
    /// Number of pages.
    pub pages: u64,
}

/// First page and number of pages that a range touches.
#[must_use]
pub const fn pages_of(address: u64, length: u64, page_bytes: u64) -> (u64, u64) {
    let first = address / page_bytes;
    let last = (address + (length - 1)) / page_bytes;
    (first * page_bytes, last - first + 1)
}

/// Number of pages that the ranges of all targets touch. A page counts once for each range.
#[must_use]
pub fn pages_of_all(targets: &Targets, page_bytes: u64) -> u64 {
    targets
        .ranges
        .iter()
        .map(|range| pages_of(range.address, range.length, page_bytes).1)
        .fold(0, u64::saturating_add)
}

/// A share, with what its holder now needs beyond it from `spare`, which no other share holds: at most an even part for each
/// of the `left` holders, this one among them.
pub fn with_spare(share: u64, needed: u64, left: usize, spare: &mut u64) -> u64 {
    let even = *spare / (left as u64).max(1);
    let more = needed.saturating_sub(share).min(even);
    *spare -= more;
    share + more
}

/// Divides `all` among the needs, max-min fair: a large need takes nothing from a small one.
#[must_use]
pub fn shares(needs: &[u64], all: u64) -> Vec<u64> {
    let mut order: Vec<usize> = (0..needs.len()).collect();
    small::sort_by_key(&mut order, |index| needs[*index]);
    let mut shares = vec![0; needs.len()];
    let mut left = all;
    for (met, index) in order.iter().enumerate() {
        let even = left / (needs.len() - met) as u64;
        shares[*index] = needs[*index].min(even);
        left -= shares[*index];
    }
    shares
}

/// The runs of one inspection of one executor.
#[derive(Debug)]
pub struct Runs<'targets> {
    targets: &'targets Targets,
    page_bytes: u64,
    all: u64,
    wanted: u64,
    start: u64,
    next: u64,
    range: usize,
    /// Pages of the ranges before `range`.
    before: u64,
}

impl<'targets> Runs<'targets> {
    /// At most `wanted` pages of the targets; `random` decides where the first one is.
    #[must_use]
    pub fn new(targets: &'targets Targets, page_bytes: u64, wanted: u64, random: u64) -> Self {
        let all = pages_of_all(targets, page_bytes);
        Self {
            targets,
            page_bytes,
            all,
            wanted: wanted.min(all),
            start: random.checked_rem(all).unwrap_or(0),
            next: 0,
            range: 0,
            before: 0,
        }
    }

    /// Position of the sampled page with number `index` among the pages of all ranges.
    fn position(&self, index: u64) -> Option<u64> {
        (index < self.wanted).then(|| {
            let at = u128::from(index) * u128::from(self.all) + u128::from(self.start);
            // Below `all`, because the start is.
            (at / u128::from(self.wanted)) as u64
        })
    }

    /// The next run, of at most `most` pages.
    pub fn next(&mut self, most: u64) -> Option<Run> {
        let position = self.position(self.next)?;
        let (first, pages) = loop {
            let range = self.targets.ranges.get(self.range)?;
            let (first, pages) = pages_of(range.address, range.length, self.page_bytes);
            if position - self.before < pages {
                break (first, pages);
            }
            self.before += pages;
            self.range += 1;
        };
        let inside = position - self.before;
        let mut length = 1;
        while length < most
            && inside + length < pages
            && self.position(self.next + length) == Some(position + length)
        {
            length += 1;
        }
        self.next += length;
        Some(Run {
            range: self.range,
            address: first + inside * self.page_bytes,
            pages: length,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smtt_model::state::Target;

    fn targets(ranges: &[(u64, u64)]) -> Targets {
        Targets {
            ranges: ranges
                .iter()
                .map(|(address, length)| Target {
                    owner: 0,
                    address: *address,
                    length: *length,
                })
                .collect(),
            ..Targets::default()
        }
    }

    fn all(targets: &Targets, wanted: u64, random: u64, most: u64) -> Vec<Run> {
        let mut runs = Runs::new(targets, 4096, wanted, random);
        std::iter::from_fn(|| runs.next(most)).collect()
    }

    #[test]
    fn a_range_has_a_part_in_the_pages_at_its_ends() {
        assert_eq!(pages_of(4096, 4096, 4096), (4096, 1));
        assert_eq!(pages_of(4095, 2, 4096), (0, 2));
        assert_eq!(pages_of(8191, 1, 4096), (4096, 1));
        assert_eq!(pages_of(u64::MAX - 1, 1, 4096).1, 1);
    }

    #[test]
    fn within_the_budget_every_page_is_looked_at_once() {
        let targets = targets(&[(4096, 8 * 4096), (1 << 20, 1), ((1 << 21) + 5, 3 * 4096)]);
        for random in [0, 7, u64::MAX] {
            let runs = all(&targets, 1000, random, 3);
            let pages: u64 = runs.iter().map(|run| run.pages).sum();
            assert_eq!(pages, 8 + 1 + 4);
            assert_eq!(
                runs.iter()
                    .map(|run| (run.range, run.pages))
                    .collect::<Vec<_>>(),
                [(0, 3), (0, 3), (0, 2), (1, 1), (2, 3), (2, 1)]
            );
        }
    }

    #[test]
    fn beyond_it_they_are_evenly_spread() {
        let targets = targets(&[(0x1000, 1000 << 12), (1 << 40, 3000 << 12)]);
        for random in [0, 1, 399, 12345, u64::MAX] {
            let runs = all(&targets, 40, random, 512);
            assert_eq!(runs.len(), 40);
            assert_eq!(runs.iter().filter(|run| run.range == 0).count(), 10);
            for pair in runs
                .windows(2)
                .filter(|pair| pair[0].range == pair[1].range)
            {
                assert_eq!(pair[1].address - pair[0].address, 100 << 12);
            }
        }
        let first = |random| all(&targets, 40, random, 512)[0].address;
        assert_ne!(first(0), first(3999), "the start is random");
    }

    #[test]
    fn absurd_ranges_are_only_many_pages() {
        let targets = targets(&[(1, u64::MAX - 1), (4096, u64::MAX - 4096), (0x1000, 0x1000)]);
        let runs = all(&targets, 100, u64::MAX, 512);
        assert_eq!(runs.len(), 100);
        assert!(all(&Targets::default(), 100, 5, 512).is_empty());
        assert!(all(&targets, 0, 5, 512).is_empty());
    }

    #[test]
    fn who_claims_a_lot_takes_nothing_from_the_others() {
        assert_eq!(shares(&[u64::MAX, 10, 50], 100), [45, 10, 45]);
        assert_eq!(shares(&[5, 6], 100), [5, 6]);
        assert_eq!(shares(&[], 100), [] as [u64; 0]);
        assert_eq!(shares(&[7, 7, 7], 2), [0, 1, 1]);
    }

    #[test]
    fn what_no_share_holds_goes_to_needs_that_grew() {
        let mut spare = 10;
        assert_eq!(with_spare(5, 8, 3, &mut spare), 8);
        assert_eq!(with_spare(5, 3, 2, &mut spare), 5);
        assert_eq!(with_spare(5, u64::MAX, 1, &mut spare), 12);
        assert_eq!((with_spare(5, 6, 1, &mut spare), spare), (5, 0));
        // Two needs grow alike, and there is spare for one.
        let mut spare = 10;
        assert_eq!(with_spare(5, 15, 2, &mut spare), 10);
        assert_eq!((with_spare(5, 15, 1, &mut spare), spare), (10, 0));
    }
}
