//! A size in 16 bits, with eleven significant bits: less than a thousandth too small.

/// See the module. Absent is the largest value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Small(u16);

const ABSENT: u16 = u16::MAX;
/// Values below are exact.
const EXACT: u64 = 1024;

impl Small {
    pub(super) fn new(value: Option<u64>) -> Self {
        let Some(value) = value else {
            return Self(ABSENT);
        };
        // 1024 to 2047 after the shift, so that codes are in the order of the values.
        let shift = (value.checked_ilog2().unwrap_or(0)).saturating_sub(10);
        Self((u64::from(shift) * EXACT + (value >> shift)) as u16)
    }

    pub(super) fn value(self) -> Option<u64> {
        let code = u64::from(self.0);
        match self.0 {
            ABSENT => None,
            _ if code < 2 * EXACT => Some(code),
            _ => Some((EXACT + code % EXACT) << (code / EXACT - 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_size_is_kept_to_a_thousandth(value: u64, shift in 0_u32..64) {
            let value = value >> shift;
            let kept = Small::new(Some(value)).value().expect("present");
            prop_assert!(kept <= value && value - kept <= value / 1024);
            let more = Small::new(Some(value.saturating_add(1))).value().expect("present");
            prop_assert!(kept <= more);
        }
    }

    #[test]
    fn absent_is_no_size() {
        assert_eq!(Small::new(None).value(), None);
        assert_eq!(Small::new(Some(0)).value(), Some(0));
        assert!(Small::new(Some(u64::MAX)).value().is_some());
    }
}
