//! Why a record has no event.

use smtt_common::event::Kind;

/// Why a record could not be decoded. Each variant is a cause in the loss ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A kind that this version does not know.
    #[error("record of unknown kind {0}")]
    UnknownKind(u16),
    /// The payload ends too early.
    #[error("{} record ends before its {field}", .kind.name().unwrap_or("unknown"))]
    Truncated {
        /// Kind of the record.
        kind: Kind,
        /// First field that is missing or incomplete.
        field: &'static str,
    },
    /// A number that cannot be what its field states.
    #[error("{} record has an impossible {field}", .kind.name().unwrap_or("unknown"))]
    Invalid {
        /// Kind of the record.
        kind: Kind,
        /// The field.
        field: &'static str,
    },
}

impl DecodeError {
    /// Name of the cause in the loss ledger.
    #[must_use]
    pub const fn cause(&self) -> &'static str {
        match self {
            Self::UnknownKind(_) => "unknown_kind",
            Self::Truncated { .. } => "truncated",
            Self::Invalid { .. } => "invalid",
        }
    }
}
