//! Peaks of executors as series, and their resident memory.

use smtt_common::event::memory::PeakMetric;
use smtt_model::state::{Executor, Peaks};

use super::collect::Families;
use super::table;

/// What a snapshot keeps of an executor's memory.
pub(super) struct MemoryFigures {
    peaks: Peaks,
    resident_bytes: Option<u64>,
    /// Of its control group: all memory, and page cache.
    group_bytes: Option<(u64, u64)>,
    /// The most that its control group has had; `None` where the kernel does not keep it.
    group_peak_bytes: Option<u64>,
}

impl MemoryFigures {
    pub(super) fn of(executor: &Executor) -> Self {
        // A dead process has none.
        let kernel = executor.usage.kernel.as_ref();
        let kernel = kernel.filter(|_| executor.died_ns.is_none());
        let group = kernel.and_then(|kernel| kernel.cgroup.as_ref());
        Self {
            peaks: executor.peaks,
            resident_bytes: kernel.map(|kernel| kernel.process.resident_bytes),
            group_bytes: group.map(|group| {
                let cache = group.file_bytes.saturating_sub(group.shared_bytes);
                (group.current_bytes, cache)
            }),
            group_peak_bytes: group.and_then(|group| group.peak_bytes),
        }
    }

    /// Writes the series of an executor with these labels.
    pub(super) fn series(&self, families: &mut Families<'_>, labels: [&str; 3]) {
        let [application, user, id] = labels;
        families.maybe(
            table::EXECUTOR_RESIDENT,
            &[application, user, id],
            self.resident_bytes,
        );
        if let Some((all, cache)) = self.group_bytes {
            families.count(table::EXECUTOR_CGROUP, &labels, all);
            families.count(table::EXECUTOR_CGROUP_CACHE, &labels, cache);
        }
        families.maybe(table::EXECUTOR_CGROUP_PEAK, &labels, self.group_peak_bytes);
        // Collections are no bytes.
        let in_bytes = PeakMetric::ALL
            .iter()
            .filter(|metric| **metric < PeakMetric::MINOR_COUNT);
        for metric in in_bytes {
            if let (Some(peak), Some(name)) = (self.peaks.of(*metric), metric.name()) {
                families.count(
                    table::EXECUTOR_PEAK,
                    &[application, user, id, name],
                    peak.value,
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use smtt_model::decode::{Fact, Figure, PeaksReported};
    use smtt_model::state::{CgroupMemory, KernelMemory, ProcessMemory};

    use super::super::tests::{apply, described, scrape, shared};

    #[test]
    fn peaks_have_series_once_they_are_known() {
        let shared = shared(100);
        described(&shared, 1, "0");
        let before = scrape(&shared, "");
        assert!(
            !before.contains("smtt_executor_memory_peak_bytes{"),
            "{before}"
        );
        assert!(
            !before.contains("smtt_executor_resident_bytes{"),
            "{before}"
        );
        let figures = vec![
            Figure {
                code: 1,
                age_ms: 0,
                value: 7,
            },
            Figure {
                code: 17,
                age_ms: 0,
                value: 3,
            },
        ];
        apply(
            &shared,
            1,
            Fact::PeaksReported(Box::new(PeaksReported {
                stage: None,
                figures,
            })),
        );
        let process = ProcessMemory {
            resident_bytes: 5,
            resident_peak_bytes: 6,
            ..ProcessMemory::default()
        };
        let group = CgroupMemory {
            current_bytes: 90,
            file_bytes: 30,
            shared_bytes: 10,
            ..CgroupMemory::default()
        };
        let kernel = KernelMemory {
            process,
            cgroup: Some(group.clone()),
            ..KernelMemory::default()
        };
        shared.state().set_memory(1, kernel.clone(), 9);
        let text = scrape(&shared, "");
        assert!(text.contains("metric=\"JVMHeapMemory\"} 7"), "{text}");
        assert!(
            text.contains("metric=\"ProcessTreeJVMRSSMemory\"} 6"),
            "{text}"
        );
        assert!(!text.contains("MinorGCCount"), "{text}");
        let resident = text
            .lines()
            .find(|line| line.starts_with("smtt_executor_resident_bytes{"));
        assert!(resident.is_some_and(|line| line.ends_with(" 5")), "{text}");
        assert!(
            !text.contains("smtt_executor_cgroup_peak_bytes{"),
            "the kernel has none: {text}"
        );
        let group = CgroupMemory {
            peak_bytes: Some(95),
            ..group
        };
        let kernel = KernelMemory {
            cgroup: Some(group),
            ..kernel
        };
        shared.state().set_memory(1, kernel, 10);
        let text = scrape(&shared, "");
        for (metric, expected) in [
            ("smtt_executor_cgroup_bytes", "90"),
            ("smtt_executor_cgroup_page_cache_bytes", "20"),
            ("smtt_executor_cgroup_peak_bytes", "95"),
        ] {
            let labels = r#"{application_id="app-1",user="1000",executor_id="0"}"#;
            let line = format!("{metric}{labels} {expected}");
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
    }
}
