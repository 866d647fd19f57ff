//! Places for library files of executors, shared between users. A file keeps its place while a process has it, so no file
//! in use is removed for another: some places always stay free for the next user.

use std::time::Instant;

use super::FileId;

/// The places and how users share them.
#[derive(Clone, Copy, Debug)]
pub struct FilePlaces {
    /// Most files.
    pub all: usize,
    /// Share of the places that one user may hold where no other user holds one, in thousandths.
    pub user_share_permille: u32,
}

/// A file that has a place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub id: FileId,
    /// User whose share it uses.
    pub share: u32,
    /// When its last process ended; `None` while a process has it.
    pub idle_since: Option<Instant>,
}

/// Whether there is a place for another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// There is one.
    Free,
    /// There may be one when this idle file is removed.
    After(FileId),
    /// The user has `own` of `all` files that have a place.
    Refused { own: usize, all: usize },
}

impl FilePlaces {
    /// Whether a file of this share may have a place: while the files of its share are fewer than a fixed multiple of the
    /// free places, as in the kernel side's tables. One user alone can hold the user share, several get equal parts.
    pub(super) fn admit(&self, held: impl Iterator<Item = Held>, share: u32) -> Admission {
        let held: Vec<Held> = held.collect();
        let of = |share| held.iter().filter(|file| file.share == share).count();
        let (own, all) = (of(share), held.len());
        let free = self.all.saturating_sub(all);
        let part = (self.user_share_permille as usize).min(1000);
        if own * (1000 - part) < free * part {
            return Admission::Free;
        }
        // Its own idle files first, then those of users with more.
        let idle = held.iter().filter_map(|file| {
            let since = file.idle_since?;
            let other = file.share != share;
            (!other || of(file.share) > own).then_some((other, since, file.id))
        });
        match idle.min() {
            Some((_, _, id)) => Admission::After(id),
            None => Admission::Refused { own, all },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PLACES: FilePlaces = FilePlaces {
        all: 256,
        user_share_permille: 750,
    };

    fn file(number: usize, share: u32) -> Held {
        Held {
            id: (1, number as u64),
            share,
            idle_since: None,
        }
    }

    /// Brings files of a share until one is refused.
    fn fill(held: &mut Vec<Held>, share: u32) -> usize {
        let before = held.len();
        while PLACES.admit(held.iter().copied(), share) == Admission::Free {
            held.push(file(held.len(), share));
        }
        held.len() - before
    }

    #[test]
    fn files_in_use_leave_places_for_other_users() {
        let mut held = Vec::new();
        assert_eq!(fill(&mut held, 1), 192);
        assert_eq!(fill(&mut held, 2), 48);
        assert_eq!(fill(&mut held, 3), 12);
        assert!(matches!(
            PLACES.admit(held.iter().copied(), 1),
            Admission::Refused { own: 192, all: 252 }
        ));
        // Users that begin at the same time get equal parts.
        let mut held = Vec::new();
        for number in 0..256 {
            let share = number % 2;
            if PLACES.admit(held.iter().copied(), share) == Admission::Free {
                held.push(file(number as usize, share));
            }
        }
        let own = held.iter().filter(|file| file.share == 0).count();
        assert_eq!((own, held.len()), (110, 220));
    }

    #[test]
    fn idle_files_make_room_for_users_with_fewer() {
        let mut held = Vec::new();
        fill(&mut held, 1);
        let now = Instant::now();
        held[7].idle_since = Some(now);
        held[9].idle_since = Some(now + Duration::from_secs(1));
        assert_eq!(
            PLACES.admit(held.iter().copied(), 1),
            Admission::After(held[7].id)
        );
        fill(&mut held, 2);
        assert_eq!(
            PLACES.admit(held.iter().copied(), 2),
            Admission::After(held[7].id)
        );
        held[200].idle_since = Some(now + Duration::from_secs(2));
        assert_eq!(
            PLACES.admit(held.iter().copied(), 2),
            Admission::After(held[200].id),
            "its own goes first"
        );
        // A user with more takes none of a user with fewer.
        held[7].idle_since = None;
        held[9].idle_since = None;
        assert!(matches!(
            PLACES.admit(held.iter().copied(), 1),
            Admission::Refused { .. }
        ));
    }
}
