//! Which answers this daemon has given. A client that knows the daemon by two names counts it once; a worker that only
//! claims to be this daemon is not confirmed.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::{Mutex, PoisonError};

use smtt_model::protocol;

/// Answers whose digests are kept: clients ask for them at once.
const KEPT: usize = 256;

/// The identity of this run of the daemon, and digests of its last answers.
#[derive(Debug)]
pub struct Answered {
    instance: String,
    digests: Mutex<VecDeque<[u8; 32]>>,
}

impl Default for Answered {
    fn default() -> Self {
        let random = || RandomState::new().build_hasher().finish();
        Self {
            instance: format!("{:016x}{:016x}", random(), random()),
            digests: Mutex::default(),
        }
    }
}

impl Answered {
    /// The identity: hexadecimal digits, drawn at the start of the daemon.
    #[must_use]
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// The identity and the digests, the oldest first.
    #[must_use]
    pub fn list(&self) -> protocol::Answered {
        let digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        let hex = |digest: &[u8; 32]| digest.iter().map(|byte| format!("{byte:02x}")).collect();
        protocol::Answered {
            instance: self.instance.clone(),
            digests: digests.iter().map(hex).collect(),
        }
    }

    /// Keeps the digest of an answer; the oldest one goes where there are too many.
    pub fn keep(&self, digest: [u8; 32]) {
        let mut digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        if digests.len() >= KEPT {
            digests.pop_front();
        }
        digests.push_back(digest);
    }
}
