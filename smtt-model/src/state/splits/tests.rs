//! Splits of tasks with random and with known lives.

use proptest::prelude::*;

use super::*;

const S: u64 = 1_000_000_000;

/// The parts of a task that was read at these times, where it had used these totals and held these states.
fn parts(readings: &[(u64, Totals, [Option<u64>; STATES])], end_ns: u64, totals: &Totals) -> Parts {
    let mut points = Points::default();
    for (at_ns, sums, states) in readings {
        points.push(Point::new(*at_ns, sums, states));
    }
    Parts::new(&points, end_ns, totals)
}

fn sums(value: u64) -> Totals {
    [Some(value); SUMS]
}

#[test]
fn a_running_task_takes_at_most_512_bytes_however_often_it_is_read() {
    assert!(size_of::<Live>() <= 512, "{} bytes", size_of::<Live>());
    assert!(size_of::<Parts>() <= 256, "{} bytes", size_of::<Parts>());
    let mut live = Live::default();
    for second in 1..=100_000 {
        let point = Point::new(second * S, &sums(second), &[Some(second); STATES]);
        live.points.push(point);
        let kept = live.points.all();
        assert!(kept.len() <= POINTS);
        // What is kept goes on to cover the whole life evenly.
        let last = u64::from(kept.last().expect("one").ms) / 1000;
        assert!(
            second < 12 || kept.len() >= POINTS / 2,
            "{second}: {kept:?}"
        );
        assert!(second - last <= second / 4 + 1, "{second}: {kept:?}");
    }
    // The lines between the kept readings of an even life are even.
    let parts = Parts::new(&live.points, 100_000 * S, &sums(100_000));
    for part in parts.sum(CPU, 100_000) {
        assert!((8_300..=8_400).contains(&part), "{parts:?}");
    }
}

#[test]
fn a_task_that_computes_first_and_holds_memory_later_shows_both() {
    let read: Vec<_> = (1..12)
        .map(|second| {
            let held = if second > 6 { 1 << 30 } else { 1 << 20 };
            (
                second * S,
                sums(second.min(6) * S),
                [Some(1 << 40), Some(held), None],
            )
        })
        .collect();
    let parts = parts(&read, 12 * S, &sums(6 * S));
    let cpu = parts.sum(CPU, 6 * S);
    assert!(
        cpu[..6].iter().all(|part| part.abs_diff(S) < S / 1000),
        "{cpu:?}"
    );
    assert_eq!(cpu[6..], [0; 6]);
    let held = parts.state(RESIDENT).expect("read");
    assert!(held[..5].iter().all(|part| *part <= 1 << 20), "{held:?}");
    assert!(
        held[8..].iter().all(|part| *part > (1 << 30) / 1024 * 1023),
        "{held:?}"
    );
    assert_eq!(parts.state(EXECUTION), None);
    assert_eq!(parts.points(), 11);
    // The first part has no reading but its begin.
    let interpolated = parts.interpolated();
    assert_eq!(interpolated, std::array::from_fn(|part| part == 0));
}

#[test]
fn a_task_without_a_reading_is_even_and_says_so() {
    let parts = Parts::even();
    assert_eq!(parts.sum(CPU, 25), [3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]);
    assert_eq!(parts.state(RESIDENT), None);
    assert_eq!((parts.points(), parts.points_of(HEAP)), (0, 0));
    assert_eq!(parts.interpolated(), [true; PARTS]);
}

#[test]
fn a_series_without_readings_beside_one_with_readings_is_even() {
    let mut partly = sums(4 * S);
    partly[HEAP] = None;
    let parts = parts(&[(S, partly, [None; STATES])], 2 * S, &sums(4 * S));
    assert_eq!(parts.sum(HEAP, 24), [2; PARTS]);
    assert_eq!(parts.sum(CPU, 24), [4, 4, 4, 4, 4, 4, 0, 0, 0, 0, 0, 0]);
    assert_eq!((parts.points_of(CPU), parts.points_of(HEAP)), (1, 0));
}

proptest! {
    #[test]
    fn the_parts_of_a_series_add_up_to_its_total(
        readings in prop::collection::vec((0..100 * S, any::<[Option<u64>; SUMS]>(), any::<[Option<u64>; STATES]>()), 0..100),
        end_ns in 0..120 * S,
        totals: [Option<u64>; SUMS],
        others: [u64; SUMS],
    ) {
        let mut readings = readings;
        readings.sort_by_key(|(at, ..)| *at);
        let parts = parts(&readings, end_ns, &totals);
        for series in 0..SUMS {
            // Of the total that the shape was made with, and of one that came later.
            for total in [totals[series].unwrap_or(0), others[series]] {
                let sum: u128 = parts.sum(series, total).iter().map(|part| u128::from(*part)).sum();
                prop_assert_eq!(sum, u128::from(total));
            }
            prop_assert!(parts.points_of(series) <= parts.points());
        }
        for series in 0..STATES {
            let known: Vec<u64> = readings.iter().filter_map(|(_, _, states)| states[series]).collect();
            if let Some(means) = parts.state(series) {
                let most = known.iter().max().copied().unwrap_or(0);
                prop_assert!(means.iter().all(|mean| *mean <= most), "{:?} of {:?}", means, known);
            }
        }
        let measured = parts.interpolated().iter().filter(|part| !**part).count() as u64;
        prop_assert!(measured <= parts.points());
    }

    #[test]
    fn shares_divide_any_total(total: u64, shares: [u16; PARTS]) {
        let parts = parts_of(total, &shares);
        let sum: u128 = parts.iter().map(|part| u128::from(*part)).sum();
        prop_assert_eq!(sum, u128::from(total));
        let all: u128 = shares.iter().map(|share| u128::from(*share)).sum();
        for (part, share) in parts.iter().zip(shares) {
            let exact = (u128::from(total) * u128::from(share)).checked_div(all);
            if let Some(exact) = exact {
                prop_assert!(u128::from(*part).abs_diff(exact) <= 1);
            }
        }
    }
}
