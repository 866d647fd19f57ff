//! Plans the regions that DAMON monitors, and turns its answer into figures of blocks. Pure.
//!
//! The ranges of every executor's blocks are cut into regions of about the same size: [`REGIONS`] for all executors
//! together, shared max-min fair. DAMON checks one random page of each region at every check, so that the cost does
//! not grow with memory. Where there are more ranges than regions, the ranges take turns.

use std::collections::HashMap;

use smtt_machine::damon::windows::Access;
use smtt_model::sort::small;
use smtt_model::state::{Accessed, RangesId, Targets};

use crate::placement::shares;

/// Most regions at a time.
pub const REGIONS: usize = 256;

/// A range of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    mark: RangesId,
    address: u64,
    length: u64,
}

/// The regions of one executor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// The executor.
    pub executor: u64,
    /// First address and address after the last one of each region, whole pages, in order, none over another.
    pub regions: Vec<(u64, u64)>,
    parts: Vec<Part>,
}

/// The regions of all executors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// By executor.
    pub targets: Vec<Target>,
    /// Whether some ranges did not fit.
    pub partial: bool,
}

impl Plan {
    /// A plan for the blocks of these executors. `turn` selects the ranges where not all fit.
    #[must_use]
    pub fn new(executors: &[(u64, Targets)], page_bytes: u64, turn: usize) -> Self {
        let mut partial = false;
        let all: Vec<Vec<Part>> = executors.iter().map(|(_, of)| parts(of)).collect();
        let needs: Vec<u64> = all.iter().map(|parts| parts.len() as u64).collect();
        let mut targets: Vec<Target> = Vec::new();
        let shares = shares(&needs, REGIONS as u64);
        for (((executor, _), parts), share) in executors.iter().zip(all).zip(shares) {
            let share = share as usize;
            partial |= share < parts.len();
            // Every range has its turn.
            let first = turn
                .wrapping_mul(share)
                .checked_rem(parts.len())
                .unwrap_or(0);
            let first = if share < parts.len() { first } else { 0 };
            if share > 0 {
                targets.push(Target {
                    executor: *executor,
                    regions: Vec::new(),
                    parts: parts
                        .iter()
                        .cycle()
                        .skip(first)
                        .take(share)
                        .copied()
                        .collect(),
                });
            }
        }
        let spans: Vec<Vec<(u64, u64)>> = targets
            .iter()
            .map(|target| spans(&target.parts, page_bytes))
            .collect();
        let piece = piece_bytes(&spans, page_bytes);
        for (target, spans) in targets.iter_mut().zip(spans) {
            for (start, end) in spans {
                let mut at = start;
                while at < end {
                    let next = at.saturating_add(piece).min(end);
                    target.regions.push((at, next));
                    at = next;
                }
            }
        }
        Self { targets, partial }
    }

    /// Number of regions.
    #[must_use]
    pub fn regions(&self) -> usize {
        self.targets.iter().map(|target| target.regions.len()).sum()
    }

    /// The figures of an executor's blocks from one window, in which each region was checked `checks` times.
    #[must_use]
    pub fn accessed(
        &self,
        target: usize,
        window: &[Access],
        checks: u32,
    ) -> Vec<(RangesId, Accessed)> {
        let Some(found) = self.targets.get(target) else {
            return Vec::new();
        };
        let mut regions: Vec<&Access> = window
            .iter()
            .filter(|access| access.target == target as u64 && access.start < access.end)
            .collect();
        small::sort_by_key(&mut regions, |access| access.start);
        let mut sums: HashMap<RangesId, Accessed> = HashMap::new();
        for part in &found.parts {
            let sum = sums.entry(part.mark).or_default();
            let (start, end) = (part.address, part.address + part.length);
            let first = regions.partition_point(|access| access.end <= start);
            for access in regions[first..]
                .iter()
                .take_while(|access| access.start < end)
            {
                let bytes = end.min(access.end) - start.max(access.start);
                sum.checked_bytes += bytes;
                let share = f64::from(access.accesses.min(checks)) / f64::from(checks.max(1));
                sum.accessed += share * bytes as f64;
                if access.accesses > 0 {
                    sum.hot_bytes += bytes;
                }
            }
        }
        sums.into_iter()
            .filter(|(_, sum)| sum.checked_bytes > 0)
            .collect()
    }
}

/// The ranges of one executor that can be monitored.
fn parts(targets: &Targets) -> Vec<Part> {
    let parts = targets.ranges.iter().map(|range| Part {
        mark: targets.owners[range.owner],
        address: range.address,
        length: range.length,
    });
    // No process has an address beyond this limit, and a hostile claim must not make the sums overflow.
    let mut parts: Vec<Part> = parts
        .filter(|part| part.address.saturating_add(part.length) < 1 << 62)
        .collect();
    // The same blocks give the same plan.
    small::sort_by_key(&mut parts, |part| (part.address, part.mark.serial));
    parts
}

/// Whole pages that the ranges touch, in order, joined where they meet or overlap.
fn spans(parts: &[Part], page_bytes: u64) -> Vec<(u64, u64)> {
    let mut spans: Vec<(u64, u64)> = parts
        .iter()
        .map(|part| {
            let end = part.address + part.length;
            let start = part.address / page_bytes * page_bytes;
            (start, end.next_multiple_of(page_bytes))
        })
        .collect();
    small::sort_by(&mut spans, Ord::cmp);
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start, end) in spans {
        match joined.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    joined
}

/// Bytes per region, such that there are at most [`REGIONS`] regions.
fn piece_bytes(spans: &[Vec<(u64, u64)>], page_bytes: u64) -> u64 {
    let lengths = || spans.iter().flatten().map(|(start, end)| end - start);
    let all: u128 = lengths().map(u128::from).sum();
    let count = lengths().count();
    // The last region of a span is usually shorter.
    let whole = (REGIONS.saturating_sub(count)).max(1) as u128;
    let piece = u64::try_from(all.div_ceil(whole)).unwrap_or(1 << 62);
    piece.clamp(1, 1 << 62).next_multiple_of(page_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use smtt_model::state::Target as Range;

    const PAGE: u64 = 4096;

    fn targets(ranges: &[(usize, u64, u64)]) -> Targets {
        let owners = ranges
            .iter()
            .map(|(owner, ..)| owner + 1)
            .max()
            .unwrap_or(0);
        Targets {
            owners: (0..owners)
                .map(|owner| RangesId {
                    serial: owner as u64,
                    addresses: 7,
                })
                .collect(),
            on_heap: vec![false; owners],
            ranges: ranges
                .iter()
                .map(|(owner, address, length)| Range {
                    owner: *owner,
                    address: *address,
                    length: *length,
                })
                .collect(),
            collection: None,
        }
    }

    fn right(plan: &Plan) {
        assert!(plan.regions() <= REGIONS, "{}", plan.regions());
        for target in &plan.targets {
            let mut before = 0;
            for (start, end) in &target.regions {
                assert!(before <= *start && start < end, "{target:?}");
                assert_eq!((start % PAGE, end % PAGE), (0, 0));
                before = *end;
            }
        }
    }

    fn of(accessed: &[(RangesId, Accessed)], serial: u64) -> Accessed {
        let found = accessed.iter().find(|(mark, _)| mark.serial == serial);
        found.expect("the block").1
    }

    #[test]
    fn a_block_is_cut_into_pieces_and_its_share_is_that_of_its_pieces() {
        let plan = Plan::new(&[(5, targets(&[(0, 1 << 20, 1 << 20)]))], PAGE, 0);
        right(&plan);
        assert_eq!((plan.regions(), plan.partial), (128, false));
        // The first half is accessed at every check, the other half never.
        let half = (1 << 20) + (1 << 19);
        let window: Vec<Access> = plan.targets[0]
            .regions
            .iter()
            .map(|(start, end)| Access {
                target: 0,
                start: *start,
                end: *end,
                regions: 128,
                accesses: if *start < half { 50 } else { 0 },
            })
            .collect();
        let accessed = of(&plan.accessed(0, &window, 50), 0);
        assert_eq!(
            (accessed.checked_bytes, accessed.hot_bytes),
            (1 << 20, 1 << 19)
        );
        assert_eq!(accessed.hotness(), Some(0.5));
        assert!(plan.accessed(1, &window, 50).is_empty());
    }

    #[test]
    fn blocks_that_share_a_page_each_have_their_own_bytes() {
        let ranges = [(0, PAGE, PAGE + 100), (1, 2 * PAGE + 100, 200)];
        let plan = Plan::new(&[(5, targets(&ranges))], PAGE, 0);
        right(&plan);
        let access = |start, end, accesses| Access {
            target: 0,
            start,
            end,
            regions: 2,
            accesses,
        };
        // Out of order, and more accesses than checks.
        let window = [access(2 * PAGE, 3 * PAGE, 99), access(PAGE, 2 * PAGE, 0)];
        let accessed = plan.accessed(0, &window, 50);
        let (first, second) = (of(&accessed, 0), of(&accessed, 1));
        assert_eq!((first.checked_bytes, first.hot_bytes), (PAGE + 100, 100));
        assert_eq!((second.checked_bytes, second.hot_bytes), (200, 200));
        assert_eq!(second.hotness(), Some(1.0));
    }

    #[test]
    fn too_many_ranges_have_their_turns() {
        let ranges: Vec<_> = (0..1000)
            .map(|at| (at, (at as u64 + 1) << 20, PAGE))
            .collect();
        let executors = [(5, targets(&ranges[..700])), (6, targets(&ranges[..300]))];
        let mut seen = std::collections::HashSet::new();
        for turn in 0..6 {
            let plan = Plan::new(&executors, PAGE, turn);
            right(&plan);
            assert!(plan.partial);
            seen.extend(
                plan.targets.iter().flat_map(|target| {
                    target.parts.iter().map(|part| (target.executor, part.mark))
                }),
            );
        }
        assert_eq!(seen.len(), 1000);
    }

    #[test]
    fn absurd_ranges_are_bounded() {
        let ranges = [
            (0, 1, (1 << 61) - 1),
            (1, 1 << 61, 1 << 60),
            (2, u64::MAX - 10, 5),
        ];
        let plan = Plan::new(&[(5, targets(&ranges))], PAGE, 3);
        right(&plan);
        assert_eq!(plan.targets[0].parts.len(), 2);
        assert_eq!(Plan::new(&[], PAGE, 7), Plan::default());
    }
}
