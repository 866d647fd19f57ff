//! The mappings of a process, from `/proc/PID/maps`. They distinguish a page that was never touched from one that is in
//! no mapping; the entries of `/proc/PID/pagemap` do not.

use std::io::{self, Read};

use smtt_machine::proc::{MAPS, Next, lines};

/// Addresses that are mapped, in order; neighbours are joined.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Mappings(Vec<(u64, u64)>);

impl Mappings {
    /// Reads the text of `/proc/PID/maps`, within the bounds that hold for other users' processes.
    ///
    /// # Errors
    /// When the process has ended, or its text is longer than the bounds.
    pub fn read(maps: impl Read) -> io::Result<Self> {
        let mut joined: Vec<(u64, u64)> = Vec::new();
        let whole = lines(maps, &MAPS, |line| {
            if let Some((start, end)) = range(line) {
                match joined.last_mut() {
                    Some(last) if last.1 == start => last.1 = end,
                    _ => joined.push((start, end)),
                }
            }
            Next::Line
        })?;
        if !whole {
            return Err(io::Error::other("the process has too many mappings"));
        }
        Ok(Self(joined))
    }

    /// Whether an address is mapped.
    #[must_use]
    pub fn contains(&self, address: u64) -> bool {
        let after = self.0.partition_point(|(start, _)| *start <= address);
        after > 0 && address < self.0[after - 1].1
    }

    /// Mapped ranges between `start` and `end`, clipped to them.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let first = self.0.partition_point(|(_, end)| *end <= start);
        self.0[first..]
            .iter()
            .take_while(move |(from, _)| *from < end)
            .map(move |(from, to)| ((*from).max(start), (*to).min(end)))
    }
}

/// The address range at the beginning of a line.
fn range(line: &[u8]) -> Option<(u64, u64)> {
    let end = line.iter().position(|byte| *byte == b' ')?;
    let (start, end) = std::str::from_utf8(&line[..end]).ok()?.split_once('-')?;
    Some((
        u64::from_str_radix(start, 16).ok()?,
        u64::from_str_radix(end, 16).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_mappings_are_one() {
        let maps = "1000-3000 r-xp 0 08:01 5 /usr/bin/java\n3000-4000 rw-p 0 0:0 0\n6000-7000 rw-p 0 0:0 0 [heap]\nnonsense\n";
        assert_eq!(
            Mappings::read(maps.as_bytes()).expect("bytes"),
            Mappings(vec![(0x1000, 0x4000), (0x6000, 0x7000)])
        );
    }

    #[test]
    fn what_is_mapped_is_cut_to_what_is_asked_for() {
        let mappings = Mappings(vec![(10, 20), (30, 40)]);
        let within = |start, end| mappings.within(start, end).collect::<Vec<_>>();
        assert_eq!(within(15, 35), [(15, 20), (30, 35)]);
        assert_eq!(within(20, 30), []);
        assert_eq!(within(0, 10), []);
        assert_eq!(within(0, u64::MAX), [(10, 20), (30, 40)]);
        assert_eq!(within(12, 13), [(12, 13)]);
        let contained: Vec<u64> = (0..50)
            .filter(|address| mappings.contains(*address))
            .collect();
        assert_eq!(contained, (10..20).chain(30..40).collect::<Vec<_>>());
    }
}
