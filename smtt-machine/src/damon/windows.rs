//! DAMON's results by window: its tracepoint `damon:damon_aggregated`, read as a perf event of DAMON's thread.
//!
//! At the end of each window the kernel reports every region once: its target, its addresses, and how many of the
//! window's checks found an access.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::perf::Samples;

/// Pages of the buffer: a window takes some 20 KiB, and the buffer is emptied four times a second.
const BUFFER_PAGES: usize = 64;

/// One region of one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Index of the target.
    pub target: u64,
    /// First address.
    pub start: u64,
    /// Address after the last one.
    pub end: u64,
    /// Number of regions of the target.
    pub regions: u32,
    /// Checks that found an access.
    pub accesses: u32,
}

/// Offsets of the tracepoint's fields in this kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    id: u64,
    fields: [(usize, usize); 5],
}

const FIELDS: [&str; 5] = ["target_id", "start", "end", "nr_regions", "nr_accesses"];

impl Format {
    /// Reads the format from the tracing file system; `folders` are candidates for the tracepoint's folder.
    ///
    /// # Errors
    /// One line that states why the tracepoint cannot be used.
    pub fn read(folders: &[PathBuf]) -> Result<Self, String> {
        let text = folders
            .iter()
            .find_map(|folder| fs::read_to_string(folder.join("format")).ok())
            .ok_or(
                "the tracepoint damon:damon_aggregated cannot be read: mount tracefs at /sys/kernel/tracing",
            )?;
        Self::parse(&text).ok_or_else(|| {
            "this kernel's tracepoint damon:damon_aggregated has other fields".into()
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let number = |text: &str, name: &str| -> Option<usize> {
            let rest = text.split_once(name)?.1;
            rest.split(';').next()?.trim().parse().ok()
        };
        let mut found = HashMap::new();
        for line in text.lines() {
            let Some((declared, place)) = line
                .trim()
                .strip_prefix("field:")
                .and_then(|line| line.split_once(';'))
            else {
                continue;
            };
            let name = declared.rsplit(' ').next()?;
            let place = (number(place, "offset:")?, number(place, "size:")?);
            found.insert(name.to_owned(), place);
        }
        let mut fields = [(0, 0); 5];
        for (field, name) in fields.iter_mut().zip(FIELDS) {
            *field = *found.get(name).filter(|(_, size)| matches!(size, 4 | 8))?;
        }
        let id = text.lines().find_map(|line| line.strip_prefix("ID:"))?;
        Some(Self {
            id: id.trim().parse().ok()?,
            fields,
        })
    }

    fn decode(&self, bytes: &[u8]) -> Option<Access> {
        let mut words = [0; 5];
        for (word, (offset, size)) in words.iter_mut().zip(self.fields) {
            let bytes = bytes.get(offset..offset + size)?;
            *word = match size {
                8 => u64::from_ne_bytes(bytes.try_into().ok()?),
                _ => u64::from(u32::from_ne_bytes(bytes.try_into().ok()?)),
            };
        }
        let [target, start, end, regions, accesses] = words;
        Some(Access {
            target,
            start,
            end,
            regions: u32::try_from(regions).ok()?,
            accesses: u32::try_from(accesses).ok()?,
        })
    }
}

/// Candidates for the tracepoint's folder, below the root folder.
#[must_use]
pub fn folders(root: &Path) -> Vec<PathBuf> {
    ["sys/kernel/tracing", "sys/kernel/debug/tracing"]
        .iter()
        .map(|folder| root.join(folder).join("events/damon/damon_aggregated"))
        .collect()
}

/// Assembles windows from regions.
#[derive(Debug)]
struct Assembly {
    targets: u64,
    window: Vec<Access>,
}

impl Assembly {
    /// Adds a region; returns the window that it completes.
    fn add(&mut self, access: Access) -> Option<Vec<Access>> {
        // Regions arrive in order; otherwise the end of the window before was lost.
        let follows = |last: &Access| (last.target, last.start) < (access.target, access.start);
        if !self.window.last().is_none_or(follows) {
            self.window.clear();
        }
        self.window.push(access);
        let of_last = self
            .window
            .iter()
            .filter(|region| region.target + 1 == self.targets)
            .count();
        (of_last > 0 && of_last >= access.regions as usize)
            .then(|| std::mem::take(&mut self.window))
    }
}

/// The windows of one thread of DAMON.
#[derive(Debug)]
pub struct Windows {
    format: Format,
    samples: Samples,
    assembly: Assembly,
}

impl Windows {
    /// Listens to DAMON's thread, which monitors `targets` processes.
    ///
    /// # Errors
    /// One line that states why the events cannot be read.
    pub fn open(format: &Format, thread: u32, targets: usize) -> Result<Self, String> {
        let samples = Samples::of_tracepoint(format.id, thread, BUFFER_PAGES)
            .map_err(|error| format!("DAMON's tracepoint: {}", crate::perf::refusal(&error)))?;
        Ok(Self {
            format: format.clone(),
            samples,
            assembly: Assembly {
                targets: targets as u64,
                window: Vec::new(),
            },
        })
    }

    /// The last window that has ended since the last call.
    ///
    /// # Errors
    /// When regions were lost because the last call was too long ago: the rest is incomplete.
    pub fn last(&mut self) -> Result<Option<Vec<Access>>, String> {
        let (mut last, format, assembly) = (None, &self.format, &mut self.assembly);
        let lost = self.samples.drain(|bytes| {
            if let Some(window) = format.decode(bytes).and_then(|access| assembly.add(access)) {
                last = Some(window);
            }
        });
        if lost > 0 {
            return Err(format!(
                "{lost} regions of DAMON were lost: the monitoring restarts"
            ));
        }
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux 6.12 writes it.
    const FORMAT: &str = "name: damon_aggregated\nID: 512\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:unsigned long target_id;\toffset:8;\tsize:8;\tsigned:0;\n\
        \tfield:unsigned int nr_regions;\toffset:16;\tsize:4;\tsigned:0;\n\
        \tfield:unsigned long start;\toffset:24;\tsize:8;\tsigned:0;\n\
        \tfield:unsigned long end;\toffset:32;\tsize:8;\tsigned:0;\n\
        \tfield:unsigned int nr_accesses;\toffset:40;\tsize:4;\tsigned:0;\n\
        \tfield:unsigned int age;\toffset:44;\tsize:4;\tsigned:0;\n\n\
        print fmt: \"target_id=%lu nr_regions=%u %lu-%lu: %u %u\", REC->target_id\n";

    #[test]
    fn fields_are_where_the_kernel_says() {
        let format = Format::parse(FORMAT).expect("a format");
        assert_eq!(format.id, 512);
        let mut bytes = vec![0; 48];
        for (offset, value) in [(8, 1_u64), (16, 3), (24, 0x1000), (32, 0x3000), (40, 9)] {
            bytes[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
        }
        let expected = Access {
            target: 1,
            start: 0x1000,
            end: 0x3000,
            regions: 3,
            accesses: 9,
        };
        assert_eq!(format.decode(&bytes), Some(expected));
        assert_eq!(format.decode(&bytes[..40]), None);
        assert_eq!(Format::parse(&FORMAT.replace("nr_accesses", "x")), None);
        assert_eq!(Format::parse(""), None);
    }

    #[test]
    fn a_window_ends_with_the_last_region_of_the_last_target() {
        let access = |target, start, regions| Access {
            target,
            start,
            regions,
            ..Access::default()
        };
        let mut assembly = Assembly {
            targets: 2,
            window: Vec::new(),
        };
        assert_eq!(assembly.add(access(0, 1, 1)), None);
        assert_eq!(assembly.add(access(1, 5, 2)), None);
        let window = assembly.add(access(1, 6, 2));
        assert_eq!(window.map(|window| window.len()), Some(3));
        // A window that lost its end or its beginning is not mixed up with the next one.
        for cut in [[(0, 1), (1, 5)], [(1, 5), (0, 1)]] {
            for (target, start) in cut {
                let regions = if target == 0 { 1 } else { 2 };
                assert_eq!(assembly.add(access(target, start, regions)), None);
            }
        }
        assert_eq!(
            assembly.add(access(1, 5, 1)).map(|window| window.len()),
            Some(2)
        );
        assert_eq!(assembly.add(access(1, 6, 2)), None);
        assert_eq!(assembly.add(access(0, 1, 1)), None);
        assert_eq!(
            assembly.add(access(1, 5, 1)).map(|window| window.len()),
            Some(2)
        );
    }
}
