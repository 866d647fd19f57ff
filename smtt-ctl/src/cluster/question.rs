//! One question to all workers at the same time: the bytes of their answers within the room, those of each daemon once.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use smtt_model::protocol::Answered;
use smtt_model::sort::small::Gather as _;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::answer::read_harmless;
use super::bounds::{AnswerMemory, Larger, fitting};
use super::said::WorkerStatus;
use super::transport::{Access, Question, Take, Trouble};
use super::{Cluster, Worker};
use crate::client::ClientError;

/// Workers that are asked at the same time: below the 1,024 files that a process may open by default.
const AT_A_TIME: usize = 512;
/// Path of the list of a daemon's answers, and bytes of that list.
const ANSWERED: &str = "/v1/answered";
const ANSWERED_MAX: usize = 64 << 10;
/// Bytes of an answer of one worker alone.
const ONE_MAX: usize = 4 << 20;

/// What another name of the list has to do with a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Twin {
    /// This worker confirms that it is the daemon with the other name, whose answer counts.
    Same(String),
    /// Both have one identity, but this worker does not confirm the other's answer.
    Claims(String),
}

/// An answer with what identifies it.
struct Body {
    /// Identity that the worker claims; `None` for older daemons.
    instance: Option<String>,
    /// The id of the question.
    id: String,
    bytes: Vec<u8>,
}

impl Body {
    /// The digest by which the daemon that gave this answer knows it.
    fn digest(&self, path_and_query: &str) -> String {
        let mut hash = Sha256::new();
        for part in [self.id.as_bytes(), b"\n", path_and_query.as_bytes(), b"\n"] {
            hash.update(part);
        }
        hash.update(&self.bytes);
        let digest: [u8; 32] = hash.finalize().into();
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn lock(room: &Mutex<AnswerMemory>) -> MutexGuard<'_, AnswerMemory> {
    room.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An id that no worker can know before it is asked.
fn id() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

/// Asks one worker within the deadline. What it answers goes to `take`.
async fn ask(
    access: &Access,
    worker: &Worker,
    question: Question<'_>,
    deadline: Duration,
    take: &mut Take<'_>,
) -> Result<Option<String>, Trouble> {
    access.prepare(worker).await?;
    match tokio::time::timeout(deadline, access.get(worker, question, take)).await {
        Ok(answer) => answer,
        Err(_) => Err(Trouble::Failed(format!("no answer within {deadline:?}"))),
    }
}

impl Cluster {
    /// The bodies of the answers, in the order of the workers: of all, or of those with a name in `some`, which have a
    /// deadline of their own. Of a daemon with several names the first one's is there.
    pub(super) async fn bytes(
        &self,
        path_and_query: &str,
        some: Option<(&BTreeSet<String>, Duration)>,
    ) -> Vec<(String, Result<Vec<u8>, Trouble>)> {
        // Every body is here before the first one is parsed: parsing would use up the time of the others.
        let mut answers = self.bodies(path_and_query, some).await;
        let twins = self.twins(path_and_query, &answers).await;
        for at in twins {
            if let Some(answer) = answers.get_mut(at) {
                *answer = None;
            }
        }
        let held = answers.iter().flatten().flatten();
        let fits = fitting(held.map(|body| body.bytes.as_slice()), self.workers.len());
        let mut fits = fits.into_iter();
        let answers = self.workers.iter().zip(answers);
        let answers = answers.filter_map(|(worker, answer)| Some((worker.name.clone(), answer?)));
        answers
            .map(|(name, answer)| {
                let fitted = answer.and_then(|body| match fits.next() {
                    Some(true) => Ok(body.bytes),
                    _ => Err(Larger::Structure.into()),
                });
                (name, fitted)
            })
            .collect()
    }

    /// The answer of one worker of the list to a question that is about it alone.
    ///
    /// # Errors
    /// When it does not answer, or wrongly.
    pub(crate) async fn one<Answer: DeserializeOwned>(
        &self,
        name: &str,
        path_and_query: &str,
    ) -> Result<Answer, ClientError> {
        let worker = self.workers.iter().find(|worker| worker.name == name);
        let worker = worker.ok_or(ClientError::NoWorker(self.workers.len()))?;
        let mut bytes = Vec::new();
        let mut take = |more: &[u8]| {
            bytes.extend_from_slice(more);
            match bytes.len() {
                0..=ONE_MAX => Ok(()),
                _ => Err(Larger::ThanAny),
            }
        };
        let question = Question {
            path_and_query,
            id: None,
        };
        let answer = ask(&self.access, worker, question, self.deadline, &mut take).await;
        let read = answer
            .map_err(|trouble| trouble.to_string())
            .and_then(|_| read_harmless(&bytes, 4 * ONE_MAX as u64));
        read.map_err(|reason| ClientError::Refused(format!("worker {name}: {reason}")))
    }

    /// The answers, in the order of the workers; nothing of those that are not asked.
    async fn bodies(
        &self,
        path_and_query: &str,
        some: Option<(&BTreeSet<String>, Duration)>,
    ) -> Vec<Option<Result<Body, Trouble>>> {
        let places = Arc::new(Semaphore::new(AT_A_TIME));
        let room = Arc::new(Mutex::new(AnswerMemory::new(self.workers.len())));
        let path: Arc<str> = path_and_query.into();
        let mut asked = JoinSet::new();
        let mut answers: Vec<Option<Result<Body, Trouble>>> = Vec::new();
        for (index, worker) in self.workers.iter().enumerate() {
            let known = self
                .said()
                .get(&worker.name)
                .and_then(WorkerStatus::trouble);
            let is_asked = some.is_none_or(|(names, _)| names.contains(&worker.name));
            let is_known = known.is_some();
            answers.push(known.filter(|_| is_asked).map(Err));
            if is_known || !is_asked {
                continue;
            }
            let (worker, access) = (worker.clone(), Arc::clone(&self.access));
            let (places, path, room) = (Arc::clone(&places), Arc::clone(&path), Arc::clone(&room));
            let deadline = some.map_or(self.deadline, |(_, deadline)| deadline);
            asked.spawn(async move {
                let _place = places.acquire_owned().await;
                let id = id();
                let question = Question {
                    path_and_query: &path,
                    id: Some(&id),
                };
                let mut take = |more: &[u8]| lock(&room).add(index, more);
                let answer = ask(&access, &worker, question, deadline, &mut take).await;
                if answer.is_err() {
                    lock(&room).forget(index);
                }
                (index, id, answer)
            });
        }
        for (index, id, answer) in asked.join_all().await {
            let body = answer.and_then(|instance| {
                let bytes = lock(&room).take(index)?;
                Ok(Body {
                    instance,
                    id,
                    bytes,
                })
            });
            if let Some(place) = answers.get_mut(index) {
                *place = Some(body);
            }
        }
        answers
    }

    /// The workers whose own daemon reports that it gave the answer which came from an earlier worker of the list.
    async fn twins(
        &self,
        path_and_query: &str,
        answers: &[Option<Result<Body, Trouble>>],
    ) -> BTreeSet<usize> {
        let mut claims: BTreeMap<&str, Vec<(usize, &Body)>> = BTreeMap::new();
        for (index, answer) in answers.iter().enumerate() {
            if let Some(Ok(body)) = answer
                && let Some(instance) = &body.instance
            {
                claims.entry(instance).or_default().push((index, body));
            }
        }
        claims.retain(|_, group| group.len() > 1);
        let others = claims.values().flat_map(|group| group.iter().skip(1));
        let given = self.answered(others.map(|(index, _)| *index)).await;
        let mut twins = BTreeSet::new();
        let mut said: BTreeMap<String, Twin> = BTreeMap::new();
        for group in claims.values() {
            let mut counted: Vec<(usize, String)> = Vec::new();
            for (index, body) in group {
                let confirmed = given.get(index);
                let confirmed = confirmed.and_then(|given| {
                    let is_given = |(_, digest): &&(usize, String)| given.contains(digest);
                    counted.iter().find(is_given)
                });
                let name = |index: &usize| {
                    let worker = self.workers.get(*index);
                    worker.map(|worker| worker.name.clone()).unwrap_or_default()
                };
                match (confirmed, counted.first()) {
                    (Some((same, _)), _) => {
                        self.counted().insert((name(same), name(index)));
                        said.insert(name(index), Twin::Same(name(same)));
                        twins.insert(*index);
                        continue;
                    }
                    (None, Some((first, _))) => {
                        said.insert(name(index), Twin::Claims(name(first)));
                    }
                    (None, None) => {}
                }
                counted.push((*index, body.digest(path_and_query)));
            }
        }
        self.claimed().extend(said);
        twins
    }

    /// Digests of the answers that workers report they gave.
    async fn answered(
        &self,
        workers: impl Iterator<Item = usize>,
    ) -> BTreeMap<usize, BTreeSet<String>> {
        let places = Arc::new(Semaphore::new(AT_A_TIME));
        let mut asked = JoinSet::new();
        for index in workers {
            let Some(worker) = self.workers.get(index).cloned() else {
                continue;
            };
            let (access, places) = (Arc::clone(&self.access), Arc::clone(&places));
            let deadline = self.deadline;
            asked.spawn(async move {
                let _place = places.acquire_owned().await;
                let question = Question {
                    path_and_query: ANSWERED,
                    id: None,
                };
                let mut list = Vec::new();
                let mut take = |more: &[u8]| {
                    list.extend_from_slice(more);
                    match list.len() {
                        0..=ANSWERED_MAX => Ok(()),
                        _ => Err(Larger::ThanAny),
                    }
                };
                let answer = ask(&access, &worker, question, deadline, &mut take).await;
                let list = answer.ok().and_then(|_| {
                    let list: Answered = serde_json::from_slice(&list).ok()?;
                    Some(list.digests.into_iter().gather())
                });
                (index, list.unwrap_or_default())
            });
        }
        asked.join_all().await.into_iter().gather()
    }
}
