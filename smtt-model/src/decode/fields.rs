//! Splits a marker's payload into words, ranges and strings, in the order of the schema.

use std::cell::Cell;

use smtt_common::context::Activity;
use smtt_common::event::Schema;
use smtt_common::event::marker::LATER_STRINGS;

use super::DecodeError;
use crate::text::is_harmful;

/// All ones means "none".
const NONE: u64 = u64::MAX;
/// Maximum number of words in a schema.
const WORDS_MAX: usize = 16;

/// Reads little-endian numbers from the front of a slice.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*head)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(head)
    }
}

/// The payload of one fact, split by its schema.
pub(super) struct Fields<'a> {
    schema: &'static Schema,
    words: [u64; WORDS_MAX],
    pub(super) ranges: Vec<(u64, u64)>,
    strings: Vec<&'a [u8]>,
    /// Strings longer than the marker sends.
    cut: Cell<u32>,
}

impl<'a> Fields<'a> {
    /// Splits a payload.
    pub(super) fn split(schema: &'static Schema, payload: &'a [u8]) -> Result<Self, DecodeError> {
        let truncated = |field| DecodeError::Truncated {
            kind: schema.kind,
            field,
        };
        let mut reader = Reader::new(payload);
        let mut words = [0; WORDS_MAX];
        for (slot, field) in words.iter_mut().zip(schema.words) {
            *slot = reader.u64().ok_or(truncated(field))?;
        }
        let mut ranges = Vec::new();
        if schema.ranges {
            let count = schema
                .words
                .len()
                .checked_sub(1)
                .and_then(|last| words.get(last))
                .copied()
                .unwrap_or(0);
            // Each range takes 16 bytes of the payload: reject an absurd count before memory is reserved for it.
            if count > (reader.rest.len() / 16) as u64 {
                return Err(truncated("ranges"));
            }
            for _ in 0..count {
                let address = reader.u64().ok_or(truncated("ranges"))?;
                let length = reader.u64().ok_or(truncated("ranges"))?;
                ranges.push((address, length));
            }
        }
        let mut strings = Vec::with_capacity(schema.strings.len());
        let later = LATER_STRINGS.iter().find(|(kind, _)| *kind == schema.kind);
        let sent_always = schema.strings.len() - later.map_or(0, |(_, later)| *later);
        for (place, field) in schema.strings.iter().enumerate() {
            if place >= sent_always && reader.rest.is_empty() {
                strings.push(&[][..]);
                continue;
            }
            let length = reader.u16().ok_or(truncated(field))?;
            strings.push(reader.bytes(usize::from(length)).ok_or(truncated(field))?);
        }
        Ok(Self {
            schema,
            words,
            ranges,
            strings,
            cut: Cell::new(0),
        })
    }

    /// A word as it is.
    pub(super) fn word(&self, name: &'static str) -> u64 {
        let index = self.schema.words.iter().position(|word| *word == name);
        debug_assert!(index.is_some(), "{} has no word {name}", self.schema.entry);
        index
            .and_then(|index| self.words.get(index))
            .copied()
            .unwrap_or(NONE)
    }

    /// A word that may be "none".
    pub(super) fn optional(&self, name: &'static str) -> Option<u64> {
        Some(self.word(name)).filter(|word| *word != NONE)
    }

    /// A 32-bit id that may be "none".
    pub(super) fn optional_id(&self, name: &'static str) -> Result<Option<u32>, DecodeError> {
        self.optional(name)
            .map(|word| {
                u32::try_from(word).map_err(|_| DecodeError::Invalid {
                    kind: self.schema.kind,
                    field: name,
                })
            })
            .transpose()
    }

    /// A mandatory 32-bit id.
    pub(super) fn id(&self, name: &'static str) -> Result<u32, DecodeError> {
        self.optional_id(name)?.ok_or(DecodeError::Invalid {
            kind: self.schema.kind,
            field: name,
        })
    }

    /// A mandatory 64-bit id.
    pub(super) fn long_id(&self, name: &'static str) -> Result<u64, DecodeError> {
        self.optional(name).ok_or(DecodeError::Invalid {
            kind: self.schema.kind,
            field: name,
        })
    }

    /// Strings read so far that were longer than the schema allows.
    pub(super) fn cut(&self) -> u32 {
        self.cut.get()
    }

    /// A string, cut to the schema's limit and cleaned for output.
    pub(super) fn text(&self, name: &'static str) -> String {
        let index = self
            .schema
            .strings
            .iter()
            .position(|string| *string == name);
        debug_assert!(
            index.is_some(),
            "{} has no string {name}",
            self.schema.entry
        );
        let Some((bytes, limit)) = index.and_then(|index| {
            let limit = self.schema.string_limits.get(index)?;
            Some((*self.strings.get(index)?, *limit))
        }) else {
            return String::new();
        };
        if bytes.len() > limit {
            self.cut.set(self.cut.get().saturating_add(1));
        }
        clean(bytes, limit)
    }
}

/// Makes text safe for a terminal, in at most `limit` bytes: an executor must not be able to send control sequences to
/// the user's terminal. White space of any kind becomes a blank (Spark SQL names RDDs by whole plans); other
/// [harmful characters](is_harmful) become the replacement character.
pub(super) fn clean(bytes: &[u8], limit: usize) -> String {
    let bytes = &bytes[..bytes.len().min(limit)];
    let text = String::from_utf8_lossy(bytes);
    let mut cleaned = String::with_capacity(bytes.len());
    for character in text.trim().chars() {
        let safe = match character {
            '\n' | '\r' | '\t' => ' ',
            character if is_harmful(character) => char::REPLACEMENT_CHARACTER,
            character => character,
        };
        // A replacement may be longer than what it replaces.
        if cleaned.len() + safe.len_utf8() > limit {
            break;
        }
        cleaned.push(safe);
    }
    cleaned.shrink_to_fit();
    cleaned
}

/// The activity of a code; none where the thread was idle.
pub(super) fn activity(code: u8) -> Option<Activity> {
    Some(Activity(code)).filter(|activity| *activity != Activity::IDLE)
}

#[cfg(test)]
mod tests {
    use super::super::encode::encode;
    use super::super::{DecodeError, Event, Fact, RddDescribed, StageDescribed, decode};

    fn event(fact: Fact) -> Event {
        Event {
            time_ns: 1,
            executor: 1,
            pid: 1,
            tid: 1,
            uid: 0,
            fact,
        }
    }

    #[test]
    fn text_of_a_fact_stays_in_its_line_and_direction() {
        let text = "a\u{61c}b\u{200d}c\u{2028}d\u{1b}e\tf";
        let cleaned = super::clean(text.as_bytes(), 100);
        assert_eq!(cleaned, "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}e f");
    }

    #[test]
    fn a_stage_of_an_earlier_marker_has_no_query() {
        let stage = StageDescribed {
            stage_id: 3,
            tasks: 8,
            name: "collect".into(),
            ..StageDescribed::default()
        };
        let (mut header, mut payload) = encode(&event(Fact::StageDescribed(stage.clone())));
        // Three empty strings: a length of two bytes each.
        payload.truncate(payload.len() - 6);
        header.payload_bytes = payload.len() as u32;
        let decoded = decode(&header, &payload).expect("an earlier form");
        assert_eq!(decoded.fact, Fact::StageDescribed(stage));
        payload.truncate(payload.len() - 1);
        header.payload_bytes = payload.len() as u32;
        let cut = decode(&header, &payload);
        assert!(matches!(cut, Err(DecodeError::Truncated { .. })));
    }

    #[test]
    fn an_rdd_of_an_earlier_marker_has_no_node() {
        let rdd = RddDescribed {
            rdd_id: 3,
            name: "links".into(),
            parents: vec![1, 2],
            ..RddDescribed::default()
        };
        let (mut header, mut payload) = encode(&event(Fact::RddDescribed(Box::new(rdd.clone()))));
        // Two empty strings.
        payload.truncate(payload.len() - 4);
        header.payload_bytes = payload.len() as u32;
        let decoded = decode(&header, &payload).expect("an earlier form");
        assert_eq!(decoded.fact, Fact::RddDescribed(Box::new(rdd)));
        payload.truncate(payload.len() - 1);
        header.payload_bytes = payload.len() as u32;
        let cut = decode(&header, &payload);
        assert!(matches!(cut, Err(DecodeError::Truncated { .. })));
    }
}
