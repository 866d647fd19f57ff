//! Rows of dead executors whose deaths are not judged yet.

use super::*;
use crate::state::{ChildEnd, Noted};

/// Executors, each in a table with room for 64.
fn with_executors(count: u32) -> State {
    let mut state = state_with(Limits {
        executors: 64,
        ..Limits::default()
    });
    for n in 1..=count {
        tell(&mut state, n, S, described("app-1", &n.to_string()));
    }
    state
}

fn end(state: &mut State, n: u32, time_ns: u64) {
    let gone = Fact::ProcessGone {
        exec: false,
        is_executor: true,
        end: None,
    };
    tell(state, n, time_ns, gone);
}

#[test]
fn a_death_among_many_executors_is_named_before_its_row_goes() {
    let mut state = with_executors(50);
    end(&mut state, 7, 10 * S);
    // More living ones than the rows that stay free of dead ones allow.
    assert!(state.expire(10 * S + S / 2).is_empty());
    let due = state.deaths_due(10 * S);
    assert_eq!(due, [(key(7), None)]);
    assert!(state.expire(11 * S).is_empty(), "not judged yet");
    assert!(state.case(key(7), None).is_some());
    assert_eq!(state.expire(11 * S), [key(7)]);
    assert_eq!(state.take_deaths_lost(), 0);
    // Without a watcher it does not stay for ever.
    end(&mut state, 8, 20 * S);
    assert_eq!(state.expire(26 * S), [key(8)]);
    assert_eq!(state.take_deaths_lost(), 1);
    assert_eq!(state.take_deaths_lost(), 0, "once");
}

#[test]
fn every_death_of_a_full_table_is_named_or_counted_as_lost() {
    let mut state = with_executors(64);
    for n in 1..=64 {
        end(&mut state, n, 10 * S);
    }
    // Ten begin at once, and need the rows.
    for n in 101..=110 {
        tell(&mut state, n, 10 * S, described("app-2", &n.to_string()));
    }
    state.expire(10 * S);
    let due = state.deaths_due(11 * S);
    // Seven more begin, and take the rows of dead ones that are judged.
    let (first, rest) = due.split_at(20);
    let judged = |state: &mut State, due: &[(u64, Option<Noted<ChildEnd>>)]| {
        let all = due
            .iter()
            .filter(|(key, _)| state.case(*key, None).is_some());
        all.count() as u64
    };
    let mut named = judged(&mut state, first);
    for n in 111..=117 {
        tell(&mut state, n, 11 * S, described("app-2", &n.to_string()));
    }
    state.expire(11 * S);
    named += judged(&mut state, rest);
    let lost = state.take_deaths_lost();
    assert_eq!((named, lost), (54, 10));
}
