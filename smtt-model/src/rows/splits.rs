//! The life of a task attempt in parts, as a field of its row.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::state::splits::{
    CPU, EXECUTION, FAULTS, HEAP, PARTS, READ, RESIDENT, VIRTUAL, WALKS, parts_of,
};
use crate::state::{State, Task};

/// The series that add up, by the field of the task's row that has their total.
const SUMS: [(&str, usize); 5] = [
    ("cpu_ns", CPU),
    ("heap_allocated_bytes", HEAP),
    ("thread_page_faults", FAULTS),
    ("call_read_bytes", READ),
    ("page_walk_samples", WALKS),
];
/// The series of a state.
const STATES: [(&str, usize); 3] = [
    ("virtual_bytes", VIRTUAL),
    ("resident_bytes", RESIDENT),
    ("execution_memory_bytes", EXECUTION),
];
/// The series of the time between the first and the last reading.
pub const WALL: &str = "wall_ns";

/// One series in parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Series {
    /// Growth in each part, or mean of a state in each part.
    pub parts: Vec<u64>,
    /// Sum of the parts; absent for a state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// Readings that the parts rest on, with begin and end; between two of them the growth is taken to be even.
    pub measured_points: u64,
}

/// The life of a task attempt in parts of equal length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitsRow {
    /// What the parts are equal in: `time`.
    pub progress_by: String,
    /// Readings of the task, with begin and end.
    pub measured_points: u64,
    /// Whether no reading was made within a part, so that its values are interpolated.
    pub interpolated: Vec<bool>,
    /// The series by name; what was not measured is absent.
    pub series: BTreeMap<String, Series>,
}

impl State {
    /// The splits of a task; `None` where the kernel's accounts of it are not known.
    pub(super) fn splits(&self, task: &Task) -> Option<SplitsRow> {
        let (parts, totals) = self.parts_of_task(task)?;
        // A reading at the begin and one at the end, or the last one of a running task.
        let with_ends = |points: u64| points + 2;
        let wall = task.shown().duration_ns;
        let mut series = BTreeMap::from([(
            WALL.to_owned(),
            Series {
                parts: parts_of(wall, &[1; PARTS]).to_vec(),
                total: Some(wall),
                measured_points: with_ends(0),
            },
        )]);
        for (name, index) in SUMS {
            if let Some(total) = totals[index] {
                let row = Series {
                    parts: parts.sum(index, total).to_vec(),
                    total: Some(total),
                    measured_points: with_ends(parts.points_of(index)),
                };
                series.insert(name.to_owned(), row);
            }
        }
        for (name, index) in STATES {
            if let Some(means) = parts.state(index) {
                let row = Series {
                    parts: means.to_vec(),
                    total: None,
                    measured_points: parts.points(),
                };
                series.insert(name.to_owned(), row);
            }
        }
        Some(SplitsRow {
            progress_by: "time".to_owned(),
            measured_points: with_ends(parts.points()),
            interpolated: parts.interpolated().to_vec(),
            series,
        })
    }
}
