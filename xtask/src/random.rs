//! Random moments in tests: when a program begins, and when it is killed.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

/// A number that differs in each call.
#[must_use]
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A moment within a time or a little after it: at random within one of its parts, the first of which is 0.
#[must_use]
pub fn moment(part: u32, parts: u32, whole: Duration) -> Duration {
    let step = whole.mul_f64(1.1) / parts;
    step * part + step.mul_f64((random() % 1000) as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_in_its_part() {
        assert_ne!(random(), random());
        for part in 0..10 {
            let ms = moment(part, 10, Duration::from_millis(1000)).as_millis();
            let first = u128::from(part) * 110;
            assert!((first..first + 110).contains(&ms), "{part}: {ms}");
        }
    }
}
