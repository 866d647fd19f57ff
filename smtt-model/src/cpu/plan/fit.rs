//! Which events the counters of a core can hold at the same time. The kernel checks this too, but late: it refuses a
//! group that does not fit or, worse, two groups silently take turns.

use super::super::table::Counters;
use super::{Given, Group, Pass, Purpose};
use crate::cpu::role::Role;

/// Assumed number of general counters where the vendor states none: every core of those families has at least four.
const UNSTATED: u16 = 0b1111;

/// A pass that is being filled.
#[derive(Clone, Default)]
pub(super) struct Open {
    pub figures: Vec<Role>,
    addresses: Vec<Vec<Role>>,
    /// Takes nothing more.
    closed: bool,
}

impl Open {
    /// Nothing else may run beside it.
    pub fn close(mut self) -> Self {
        self.closed = true;
        self
    }

    pub fn with_figures(&self, roles: &[Role]) -> Self {
        let mut more = self.clone();
        for role in roles {
            if !more.figures.contains(role) {
                more.figures.push(*role);
            }
        }
        more
    }

    pub fn with_addresses(&self, group: &[Role]) -> Self {
        let mut more = self.clone();
        more.addresses.push(group.to_vec());
        more
    }

    pub fn finish(self) -> Pass {
        let figures = Group {
            purpose: Purpose::Figures,
            roles: self.figures,
        };
        let addresses = self.addresses.into_iter().map(|roles| Group {
            purpose: Purpose::Addresses,
            roles,
        });
        let groups = Some(figures)
            .filter(|group| !group.roles.is_empty())
            .into_iter()
            .chain(addresses)
            .collect();
        Pass { groups }
    }

    /// Whether all events of the pass have a counter at the same time. Cycles count as an ordinary event: the kernel's
    /// watchdog often holds their fixed counter.
    pub fn fits(&self, given: &Given) -> bool {
        // A shared event of an address group counts once.
        let roles = self
            .figures
            .iter()
            .chain(self.addresses.iter().filter_map(|group| group.first()));
        let mut core = Vec::new();
        let mut others = Vec::new();
        for event in roles.filter_map(|role| given.roles.get(role)) {
            for opening in event.openings() {
                if opening.pmu != given.pmu {
                    // Sampling units beside the counters follow one event at a time.
                    if others.contains(&&opening.pmu) {
                        return false;
                    }
                    others.push(&opening.pmu);
                } else {
                    let stated = Counters::of_numbers(&event.counters).0;
                    core.push(if stated == 0 {
                        all_counters(given)
                    } else {
                        stated
                    });
                }
            }
        }
        assignable(&core)
    }
}

/// All general counters of the core that its events mention.
fn all_counters(given: &Given) -> u16 {
    let stated = given.roles.values().fold(0, |all, event| {
        all | Counters::of_numbers(&event.counters).0
    });
    if stated == 0 { UNSTATED } else { stated }
}

/// Whether every event can have a counter of its own out of its mask.
fn assignable(events: &[u16]) -> bool {
    fn assign(
        event: usize,
        events: &[u16],
        holders: &mut [Option<usize>; 16],
        tried: &mut u16,
    ) -> bool {
        for counter in 0..16 {
            let bit = 1 << counter;
            if events[event] & bit == 0 || *tried & bit != 0 {
                continue;
            }
            *tried |= bit;
            let free = holders[counter].is_none_or(|holder| assign(holder, events, holders, tried));
            if free {
                holders[counter] = Some(event);
                return true;
            }
        }
        false
    }
    let mut holders = [None; 16];
    (0..events.len()).all(|event| assign(event, events, &mut holders, &mut 0))
}

/// Puts a group into the first pass that has room, or into a new pass.
pub(super) fn place(passes: &mut Vec<Open>, given: &Given, add: impl Fn(&Open) -> Open) {
    for pass in passes.iter_mut().filter(|pass| !pass.closed) {
        let more = add(pass);
        if more.fits(given) {
            *pass = more;
            return;
        }
    }
    passes.push(add(&Open::default()));
}

/// Roles of address events, those with the same encoding together.
pub(super) fn by_encoding(given: &Given, roles: &[Role]) -> Vec<Vec<Role>> {
    let encoding = |role: &Role| {
        given
            .roles
            .get(role)
            .and_then(|event| event.encoding.as_ref())
    };
    let mut groups: Vec<Vec<Role>> = Vec::new();
    for &role in roles {
        match groups
            .iter_mut()
            .find(|group| encoding(&group[0]) == encoding(&role))
        {
            Some(group) => group.push(role),
            None => groups.push(vec![role]),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::assignable;

    #[test]
    fn events_are_moved_to_make_room_and_refused_when_there_is_none() {
        assert!(
            assignable(&[0b1111, 0b1111, 0b1111, 0b0001]),
            "the first gives way to the choosy one"
        );
        assert!(!assignable(&[0b1000, 0b1000]), "two events for one counter");
        assert!(assignable(&[0b11, 0b01]));
        assert!(!assignable(&[0b11, 0b11, 0b11]));
        assert!(!assignable(&[0]));
    }
}
