//! Facts about the memory of an executor's JVM: where it is, and its peaks.

use smtt_common::event::memory::{FIGURE_AGE_SHIFT, MEMORY_EXAMINED, OVERHEAD_IS_DEFAULT};

use super::fields::Fields;
use super::{DecodeError, Fact};

/// A figure of [`smtt_common::event::memory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figure {
    /// Code of the figure.
    pub code: u8,
    /// Age of the figure when it was reported, in milliseconds.
    pub age_ms: u64,
    /// Value of the figure.
    pub value: u64,
}

/// See [`smtt_common::event::Kind::MEMORY_TOLD`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryReported {
    /// The resident parts were examined for this fact.
    pub examined: bool,
    /// The memory overhead is Spark's default.
    pub overhead_is_default: bool,
    /// Figures of `MemoryFigure`.
    pub figures: Vec<Figure>,
}

/// See [`smtt_common::event::Kind::PEAKS_TOLD`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeaksReported {
    /// Id and attempt of the stage; `None` for the executor's whole life.
    pub stage: Option<(u32, u32)>,
    /// Figures of `PeakMetric`.
    pub figures: Vec<Figure>,
}

pub(super) fn memory_reported(fields: &mut Fields<'_>) -> Fact {
    let flags = fields.word("flags");
    Fact::MemoryReported(Box::new(MemoryReported {
        examined: flags & MEMORY_EXAMINED != 0,
        overhead_is_default: flags & OVERHEAD_IS_DEFAULT != 0,
        figures: figures(fields),
    }))
}

pub(super) fn peaks_reported(fields: &mut Fields<'_>) -> Result<Fact, DecodeError> {
    let stage = fields.optional_id("stage_id")?;
    let attempt = fields.optional_id("stage_attempt")?.unwrap_or(0);
    Ok(Fact::PeaksReported(Box::new(PeaksReported {
        stage: stage.map(|id| (id, attempt)),
        figures: figures(fields),
    })))
}

fn figures(fields: &mut Fields<'_>) -> Vec<Figure> {
    let pairs = std::mem::take(&mut fields.ranges);
    let figure = |(coded, value): (u64, u64)| Figure {
        code: (coded & ((1 << FIGURE_AGE_SHIFT) - 1)) as u8,
        age_ms: coded >> FIGURE_AGE_SHIFT,
        value,
    };
    pairs.into_iter().map(figure).collect()
}

/// The pairs of figures, as the marker writes them.
#[cfg(any(test, feature = "encode"))]
pub(super) fn pairs(figures: &[Figure]) -> Vec<(u64, u64)> {
    let pair = |figure: &Figure| {
        (
            figure.age_ms << FIGURE_AGE_SHIFT | u64::from(figure.code),
            figure.value,
        )
    };
    figures.iter().map(pair).collect()
}
