//! Every kind there and back; random, mutated and truncated bytes.

use super::encode::{encode, payload};
use super::*;
use proptest::prelude::*;
use smtt_common::event::MARKER_FACTS;

use self::events::event;

fn is_truncated(result: &Result<Event, DecodeError>) -> bool {
    matches!(result, Err(DecodeError::Truncated { .. }))
}

mod events;

proptest! {
    #[test]
    fn an_encoded_event_decodes_to_itself(event in event()) {
        let (header, payload) = encode(&event);
        prop_assert_eq!(decode(&header, &payload), Ok(event));
    }

    #[test]
    fn a_longer_payload_is_read_as_far_as_it_is_known(event in event(), tail in proptest::collection::vec(any::<u8>(), 1..64)) {
        let (mut header, mut payload) = encode(&event);
        payload.extend(&tail);
        header.payload_bytes = payload.len() as u32;
        prop_assert_eq!(decode(&header, &payload), Ok(event));
    }

    #[test]
    fn a_cut_payload_is_truncated_and_nothing_else(event in event(), cut in any::<prop::sample::Index>()) {
        let (mut header, payload) = encode(&event);
        let cut = cut.index(payload.len());
        // What the header states and what is there disagree:
        prop_assert!(is_truncated(&decode(&header, &payload[..cut])));
        // They agree, but the fields do not fit:
        header.payload_bytes = cut as u32;
        let decoded = decode(&header, &payload[..cut]);
        // A marker of before a string was appended sends a payload that ends where that string would begin.
        let earlier = match &decoded {
            Ok(Event { fact: Fact::StageDescribed(stage), .. }) => stage.failure.is_empty(),
            Ok(Event { fact: Fact::RddDescribed(rdd), .. }) => rdd.node_id.is_empty(),
            Ok(Event { fact: Fact::ExecutorDescribed(said), .. }) => said.kubernetes_pod.is_empty(),
            _ => false,
        };
        prop_assert!(earlier || is_truncated(&decoded));
    }

    #[test]
    fn random_bytes_never_panic(kind in any::<u16>(), known in any::<prop::sample::Index>(), payload in proptest::collection::vec(any::<u8>(), 0..4096)) {
        let header = RecordHeader { kind, payload_bytes: payload.len() as u32, ..RecordHeader::default() };
        let _ = decode(&header, &payload);
        let kind = MARKER_FACTS[known.index(MARKER_FACTS.len())].kind.0;
        let _ = decode(&RecordHeader { kind, ..header }, &payload);
    }

    #[test]
    fn mutated_bytes_never_panic_and_text_stays_printable(event in event(), at in any::<prop::sample::Index>(), value in any::<u8>()) {
        let (header, mut payload) = encode(&event);
        let at = at.index(payload.len());
        payload[at] = value;
        if let Ok(Event { fact: Fact::RddDescribed(rdd), .. }) = decode(&header, &payload) {
            for text in [&rdd.name, &rdd.node, &rdd.node_id] {
                prop_assert!(!text.chars().any(char::is_control));
            }
        }
    }
}

fn record(kind: Kind, payload: &[u8]) -> RecordHeader {
    RecordHeader {
        kind: kind.0,
        payload_bytes: payload.len() as u32,
        ..RecordHeader::default()
    }
}

#[test]
fn every_marker_fact_has_a_decoder() {
    for schema in MARKER_FACTS {
        let words = vec![0; schema.words.len()];
        let strings = vec![""; schema.strings.len()];
        let bytes = payload(&words, &[], &strings);
        let decoded = decode(&record(schema.kind, &bytes), &bytes);
        assert!(decoded.is_ok(), "{}: {decoded:?}", schema.entry);
    }
}

#[test]
fn control_characters_do_not_reach_a_terminal() {
    let bytes = payload(
        &[1, 1, 0],
        &[],
        &[
            "a\u{1b}[2Jb\nc\u{202e}d",
            "",
            "",
            "3,x,4",
            "Scan\u{1b}]0;x\u{7}\nusers",
            "1\u{9b}",
        ],
    );
    let Ok(Event {
        fact: Fact::RddDescribed(rdd),
        ..
    }) = decode(&record(Kind::RDD_DESCRIBED, &bytes), &bytes)
    else {
        panic!("not an RDD");
    };
    assert_eq!(rdd.name, "a\u{fffd}[2Jb c\u{fffd}d");
    assert_eq!(rdd.parents, [3, 4]);
    assert_eq!(rdd.node, "Scan\u{fffd}]0;x\u{fffd} users");
    assert_eq!(rdd.node_id, "1\u{fffd}");
}

#[test]
fn an_absurd_range_count_is_truncated() {
    let bytes = payload(&[1, 1, 1, 0, 1, 1, 0, u64::MAX], &[(1, 2)], &["rdd_1_1"]);
    assert_eq!(
        decode(&record(Kind::BLOCK_STORED, &bytes), &bytes),
        Err(DecodeError::Truncated {
            kind: Kind::BLOCK_STORED,
            field: "ranges"
        })
    );
}

#[test]
fn an_impossible_id_is_invalid() {
    let bytes = payload(&[1 << 40, 1, 0], &[], &["", "", "", ""]);
    let error = decode(&record(Kind::RDD_DESCRIBED, &bytes), &bytes);
    assert_eq!(
        error,
        Err(DecodeError::Invalid {
            kind: Kind::RDD_DESCRIBED,
            field: "rdd_id"
        })
    );
    assert_eq!(
        error.expect_err("checked above").to_string(),
        "rdd_described record has an impossible rdd_id"
    );
}

#[test]
fn an_unknown_kind_has_its_own_cause() {
    let error = decode(
        &RecordHeader {
            kind: 999,
            ..RecordHeader::default()
        },
        &[],
    );
    assert_eq!(error, Err(DecodeError::UnknownKind(999)));
}

#[test]
fn strings_longer_than_a_marker_sends_are_cut_and_counted() {
    for schema in MARKER_FACTS {
        let words = vec![1; schema.words.len()];
        let ranges = if schema.ranges { &[(4096, 1)][..] } else { &[] };
        // Of three bytes each, so that the limit is within a character.
        let long = "\u{20ac}".repeat(700);
        let strings = vec![long.as_str(); schema.strings.len()];
        let bytes = payload(&words, ranges, &strings);
        let header = RecordHeader {
            kind: schema.kind.0,
            payload_bytes: bytes.len() as u32,
            ..RecordHeader::default()
        };
        let (event, cut) = decode_cut(&header, &bytes).expect("decoded");
        assert_eq!(cut as usize, schema.strings.len(), "{}", schema.entry);
        let longest = format!("{event:?}").len();
        let allowed: usize = schema.string_limits.iter().sum();
        assert!(longest < allowed + 1500, "{}: {longest}", schema.entry);
        let mut counts = crate::ledger::DecodeCounts::default();
        let _ = counts.decode(&header, &bytes);
        assert_eq!(counts.strings_cut as usize, schema.strings.len());
    }
}

#[test]
fn no_character_hides_or_turns_text() {
    use super::fields::clean;
    for hostile in [
        '\u{061c}', '\u{200b}', '\u{200d}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}',
        '\u{202a}', '\u{202e}', '\u{2066}', '\u{2069}', '\u{feff}', '\u{1b}', '\u{9b}', '\u{7f}',
    ] {
        let cleaned = clean(format!("a{hostile}b").as_bytes(), 100);
        assert_eq!(cleaned, "a\u{fffd}b", "{:x}", u32::from(hostile));
    }
    assert_eq!(clean("\u{20ac}\u{20ac}".as_bytes(), 4), "\u{20ac}");
    // Each wrong byte becomes three: the limit holds for the result.
    assert!(clean(&[0xff; 300], 300).len() <= 300);
}
