//! Whose share a user's processes use. A user to whom `/etc/subuid` gives a range of ids can run processes with each of
//! them; they all use the share of that user.

use std::collections::BTreeMap;

use smtt_common::settings::SHARE_OWNER_ROWS;

/// Most blocks of aligned ids, over all ranges: the kernel side has a row for each. A range of 65,536 ids takes one
/// where it begins at a multiple of its size, and up to 30 elsewhere.
const BLOCKS_MAX: usize = SHARE_OWNER_ROWS as usize;
/// How many ranges all lines together may overlap: each is visited for each line that spans it.
const OVERLAPS_MAX: usize = 1 << 20;
/// Owners that are themselves subordinate ids are followed so far.
const HOPS: usize = 8;

/// Ids that share their leading bits, and their owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// The first id.
    pub first: u32,
    /// Leading bits that all ids of the block have in common.
    pub bits: u32,
    /// The user whose share they use.
    pub owner: u32,
}

/// Lines that were left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Number of lines.
    pub lines: usize,
    /// Number of the first one and what is wrong with it.
    pub first: Option<(usize, &'static str)>,
}

/// The ranges of subordinate ids, disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubordinateIds {
    /// First id -> last id and owner.
    ranges: BTreeMap<u32, (u32, u32)>,
}

impl SubordinateIds {
    /// Reads the text of `/etc/subuid`; `number` gives the id of a user's name. Where ranges overlap the first one
    /// counts.
    pub fn parse(text: &str, mut number: impl FnMut(&str) -> Option<u32>) -> (Self, LeftOut) {
        let (mut ids, mut left_out, mut blocks) = (Self::default(), LeftOut::default(), 0);
        let mut overlaps = OVERLAPS_MAX;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let added = range(line, &mut number).and_then(|(first, last, owner)| {
                let free = ids.free(first, last, &mut overlaps);
                let free = free.ok_or("the ranges overlap too often")?;
                let more: usize = free.iter().map(|(first, last)| count(*first, *last)).sum();
                if blocks + more > BLOCKS_MAX {
                    return Err("there are too many ranges");
                }
                blocks += more;
                let free = free.into_iter();
                ids.ranges
                    .extend(free.map(|(first, last)| (first, (last, owner))));
                Ok(())
            });
            if let Err(why) = added {
                left_out.lines += 1;
                left_out.first.get_or_insert((index + 1, why));
            }
        }
        ids.follow_owners();
        (ids, left_out)
    }

    /// The user whose share processes of this user use.
    #[must_use]
    pub fn share_of(&self, uid: u32) -> u32 {
        self.owner(uid).unwrap_or(uid)
    }

    fn owner(&self, uid: u32) -> Option<u32> {
        let (_, (last, owner)) = self.ranges.range(..=uid).next_back()?;
        (uid <= *last).then_some(*owner)
    }

    /// The parts of a range that no range has yet; `None` where it overlaps more ranges than are left to visit.
    fn free(&self, first: u32, last: u32, overlaps: &mut usize) -> Option<Vec<(u32, u32)>> {
        let mut free = Vec::new();
        let mut next = Some(first);
        let before = self.ranges.range(..first).next_back();
        for (from, (to, _)) in before.into_iter().chain(self.ranges.range(first..=last)) {
            *overlaps = overlaps.checked_sub(1)?;
            let Some(begin) = next.filter(|begin| begin <= to) else {
                continue;
            };
            if *from > begin {
                free.push((begin, from - 1));
            }
            next = to.checked_add(1);
        }
        if let Some(begin) = next.filter(|begin| *begin <= last) {
            free.push((begin, last));
        }
        Some(free)
    }

    /// An owner that is a subordinate id of another user stands for that user.
    fn follow_owners(&mut self) {
        let mut owners: Vec<u32> = self.ranges.values().map(|(_, owner)| *owner).collect();
        for owner in &mut owners {
            for _ in 0..HOPS {
                *owner = self.share_of(*owner);
            }
        }
        for ((_, owner), last) in self.ranges.values_mut().zip(owners) {
            *owner = last;
        }
    }

    /// All ranges as aligned blocks, disjoint.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        let each = self.ranges.iter();
        each.flat_map(|(first, (last, owner))| {
            blocks(*first, *last).map(|(first, bits)| Block {
                first,
                bits,
                owner: *owner,
            })
        })
        .collect()
    }
}

/// First id, last id and owner of a line.
fn range(
    line: &str,
    number: impl FnOnce(&str) -> Option<u32>,
) -> Result<(u32, u32, u32), &'static str> {
    let mut parts = line.split(':');
    let (Some(owner), Some(first), Some(count), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err("it is not OWNER:FIRST:COUNT");
    };
    let (Ok(first), Ok(count)) = (first.parse::<u32>(), count.parse::<u32>()) else {
        return Err("first id or count is no number");
    };
    let last = count
        .checked_sub(1)
        .and_then(|more| first.checked_add(more));
    let last = last.ok_or("the range is empty or ends beyond the last id")?;
    let owner = owner.parse().ok().or_else(|| number(owner));
    let owner = owner.ok_or("the users database does not know the owner")?;
    Ok((first, last, owner))
}

/// The largest aligned blocks that make up a range: first id and number of leading bits.
fn blocks(first: u32, last: u32) -> impl Iterator<Item = (u32, u32)> {
    let mut next = Some(first).filter(|first| *first <= last);
    std::iter::from_fn(move || {
        let begin = next?;
        // A range of all ids has one more than fits.
        let ids = u64::from(last - begin) + 1;
        let free_bits = begin.trailing_zeros().min(ids.ilog2());
        let end = u64::from(begin) + (1 << free_bits);
        next = u32::try_from(end).ok().filter(|end| *end <= last);
        Some((begin, 32 - free_bits))
    })
}

fn count(first: u32, last: u32) -> usize {
    blocks(first, last).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(name: &str) -> Option<u32> {
        match name {
            "alice" => Some(1000),
            "bob" => Some(1001),
            _ => None,
        }
    }

    fn parsed(text: &str) -> SubordinateIds {
        let (ids, left_out) = SubordinateIds::parse(text, number);
        assert_eq!(left_out, LeftOut::default(), "{text}");
        ids
    }

    #[test]
    fn an_id_of_a_range_has_the_share_of_its_owner() {
        let ids = parsed("# ranges\nalice:100000:65536\n\n1001:165536:10\n");
        for (uid, share) in [
            (0, 0),
            (1000, 1000),
            (99_999, 99_999),
            (100_000, 1000),
            (165_535, 1000),
            (165_536, 1001),
            (165_545, 1001),
            (165_546, 165_546),
            (u32::MAX, u32::MAX),
        ] {
            assert_eq!(ids.share_of(uid), share, "{uid}");
        }
    }

    #[test]
    fn of_overlapping_ranges_the_first_counts() {
        let ids = parsed("alice:200:100\nbob:100:400\nalice:150:500\nbob:140:560");
        for (uid, share) in [
            (99, 99),
            (100, 1001),
            (199, 1001),
            (200, 1000),
            (299, 1000),
            (300, 1001),
            (499, 1001),
            (500, 1000),
            (649, 1000),
            (650, 1001),
            (699, 1001),
            (700, 700),
        ] {
            assert_eq!(ids.share_of(uid), share, "{uid}");
        }
    }

    #[test]
    fn an_owner_in_a_range_of_another_user_stands_for_that_user() {
        let ids = parsed("alice:100000:65536\n100005:300000:10\n300001:400000:1");
        assert_eq!(ids.share_of(300_003), 1000);
        assert_eq!(ids.share_of(400_000), 1000);
        // Two users that own each other have an owner all the same.
        let ids = parsed("1:2:1\n2:1:1");
        assert!([1, 2].contains(&ids.share_of(1)));
    }

    #[test]
    fn a_line_that_is_no_range_is_left_out_and_the_others_count() {
        let text =
            "alice:1:2:3\nalice:x:1\nalice:1:0\nalice:4294967295:2\nnone:1:1\nalice\nbob:7:1";
        let (ids, left_out) = SubordinateIds::parse(text, number);
        assert_eq!(left_out.lines, 6);
        assert_eq!(left_out.first, Some((1, "it is not OWNER:FIRST:COUNT")));
        assert_eq!(ids.blocks().len(), 1);
        assert_eq!(ids.share_of(7), 1001);
    }

    #[test]
    fn blocks_are_exactly_the_ids_of_the_ranges() {
        let ids = parsed("alice:100000:65536\nbob:4294967290:6\n5:7:1\n6:1000:777");
        let blocks = ids.blocks();
        let inside = |block: &Block, uid: u32| {
            (u64::from(uid) >> (32 - block.bits)) == (u64::from(block.first) >> (32 - block.bits))
        };
        let edges = [0, 6, 7, 8, 999, 1000, 1776, 1777, 99_999, 100_000, 131_071];
        let more = [165_535, 165_536, u32::MAX - 6, u32::MAX - 5, u32::MAX];
        for uid in edges.into_iter().chain(more) {
            let found: Vec<_> = blocks.iter().filter(|block| inside(block, uid)).collect();
            assert!(found.len() <= 1, "{uid}: {found:?}");
            let share = found.first().map_or(uid, |block| block.owner);
            assert_eq!(share, ids.share_of(uid), "{uid}");
        }
        let sum: u64 = blocks.iter().map(|block| 1 << (32 - block.bits)).sum();
        assert_eq!(sum, 65_536 + 6 + 1 + 777);
        let all = parsed("7:0:4294967295\n7:4294967295:1");
        assert_eq!(all.share_of(u32::MAX), 7);
    }

    #[test]
    fn lines_that_span_many_ranges_are_left_out_in_the_end() {
        let small: String = (0..4000_u32)
            .map(|id| format!("7:{}:1\n", id * 2))
            .collect();
        let wide = "alice:0:4294967295\n".repeat(1000);
        let (ids, left_out) = SubordinateIds::parse(&(small + &wide), number);
        assert_eq!((ids.share_of(0), ids.share_of(1)), (7, 1000));
        assert_eq!(
            left_out.first.map(|(_, why)| why),
            Some("the ranges overlap too often")
        );
        assert!(left_out.lines > 800, "{}", left_out.lines);
    }

    #[test]
    fn the_number_of_blocks_is_bounded() {
        // Each line takes 30 blocks.
        let text: String = (0..2000_u32)
            .map(|line| format!("{line}:{}:{}\n", line * 131_072 + 1, 65_534))
            .collect();
        let (ids, left_out) = SubordinateIds::parse(&text, number);
        let blocks = ids.blocks().len();
        assert!((BLOCKS_MAX - 30..=BLOCKS_MAX).contains(&blocks), "{blocks}");
        assert_eq!(left_out.lines, 2000 - blocks / 30);
        assert_eq!(
            left_out.first.map(|(_, why)| why),
            Some("there are too many ranges")
        );
    }
}
