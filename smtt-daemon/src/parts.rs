//! Listings part by part: the state is locked for a part of one executor's rows at a time, and only these are in memory.

use std::hash::{BuildHasher as _, RandomState};

use smtt_model::rows::{Filter, Part};
use smtt_model::state::State;

use crate::shared::Shared;

/// Number of rows of an executor, with what is in them.
pub type Size = fn(&State, u64) -> usize;

/// Size of a listing with few rows for each executor.
pub const SMALL: Size = |_, _| 0;

/// Each executor, in parts of its rows.
pub fn each<E>(
    shared: &Shared,
    filter: &Filter,
    size: Size,
    mut part: impl FnMut(&Filter) -> Result<(), E>,
) -> Result<(), E> {
    let secret = RandomState::new().hash_one(0);
    let wanted = |key: &u64| filter.key.is_none_or(|wanted| wanted == *key);
    for key in shared.executor_keys().into_iter().filter(wanted) {
        let mut filter = Filter {
            key: Some(key),
            ..filter.clone()
        };
        let rows = size(&shared.state(), key);
        for one in Part::all(rows, secret) {
            filter.part = Some(one);
            part(&filter)?;
        }
    }
    Ok(())
}

/// Rows of each part, one part after the other.
pub fn each_rows<R>(
    shared: &Shared,
    filter: &Filter,
    size: Size,
    list: impl Fn(&State, &Filter) -> Vec<R>,
    mut add: impl FnMut(Vec<R>),
) {
    let Ok(()) = each(shared, filter, size, |filter| {
        // A statement of its own, because a guard lives until the end of its statement.
        let rows = list(&shared.state(), filter);
        add(rows);
        Ok::<(), std::convert::Infallible>(())
    });
}
