//! Publishes tables in a bucket, so that a reader sees either the old ones or the new ones.
//!
//! A writer uploads the tables under names that no other writer has. Then it replaces the pointer by a conditional write,
//! which fails if the pointer has changed since the writer read it: of two writers one wins. At last it deletes the tables
//! and parts that the new tables replace. A writer that is killed leaves tables that no pointer names. Later writers delete
//! such tables when they are a day old.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::value::RawValue;
use smtt_store::history::columns::{META, TASK_SQL, TASKS};
use smtt_store::history::place;
use tokio::runtime::Handle;

use super::bucket::{Bucket, GENERATION, Object, POINTER, Pointed, Pointer, Trouble};
use super::mirror::{Mirror, finished, parts_up_to, table};
use crate::import::{Admission, Imported, import_unless};
use crate::live::{self, Compacted};
use crate::log::Bounds;
use crate::open::summary;
use crate::out::Times;

/// Age at which a table that no pointer names is deleted. An import takes an hour at most, so its writer is gone.
const ORPHAN: Duration = Duration::from_secs(24 * 3600);
/// Tables in the order in which they are written.
const TABLES: [&str; 3] = [TASKS.name, TASK_SQL.name, META.name];

/// The objects of an application in a bucket, and what its pointer says.
pub(super) struct ApplicationObjects {
    objects: Vec<Object>,
    pointed: Option<Pointed>,
}

impl ApplicationObjects {
    pub(super) async fn of(bucket: &Bucket, name: &str) -> Result<Self, Trouble> {
        let objects = bucket.list(name).await?;
        let pointed = bucket.pointer(name).await?;
        Ok(Self { objects, pointed })
    }

    /// Whether it has tables without a pointer: a folder of another store that was copied into the bucket.
    fn is_plain(&self) -> bool {
        let name = format!("{}.parquet", META.name);
        self.objects.iter().any(|object| object.name == name)
    }

    /// Whether a reader of the bucket finds the application: its tables or parts.
    fn is_there(&self) -> bool {
        self.pointed.is_some() || self.is_plain() || !finished(&self.objects).is_empty()
    }

    fn last_part(&self) -> u64 {
        finished(&self.objects).last().copied().unwrap_or_default()
    }

    /// Parts that the tables cover and that a killed writer did not delete. Empty where one of the tables is missing: then
    /// the parts are the only copy of the application.
    fn left_over(&self) -> Vec<&Object> {
        let pointed = self.pointed.as_ref().filter(|_| self.has_tables());
        let last = pointed.map_or(0, |(pointer, _)| pointer.last_part);
        parts_up_to(&self.objects, last).collect()
    }

    /// Whether all tables are there that the pointer names.
    fn has_tables(&self) -> bool {
        self.pointed.as_ref().is_some_and(|(pointer, _)| {
            TABLES.into_iter().all(|it| {
                let name = table(it, &pointer.generation);
                self.objects.iter().any(|object| object.name == name)
            })
        })
    }
}

/// The generation in a table's name, also in the hidden one that it has in HDFS while it is written.
fn generation_of(name: &str) -> Option<&str> {
    let name = name.strip_prefix('.').unwrap_or(name);
    let (table, rest) = name.split_once('.')?;
    let generation = rest.strip_suffix(".parquet")?;
    let is_one = TABLES.contains(&table)
        && generation.len() == GENERATION
        && generation.bytes().all(|it| it.is_ascii_hexdigit());
    is_one.then_some(generation)
}

/// Whether a file that nothing names is so old, by its time in milliseconds since 1970, that its writer is gone.
pub(super) fn is_orphan(modified_ms: i64) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let day_ago = now.map_or(0, |now| now.saturating_sub(ORPHAN).as_millis());
    u128::try_from(modified_ms).is_ok_and(|it| it < day_ago)
}

/// A random name, so that two writers do not write the same objects.
pub(super) fn new_name() -> String {
    let mut hasher = RandomState::new().build_hasher();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    hasher.write_u128(now.map_or(0, |it| it.as_nanos()));
    hasher.write_u32(std::process::id());
    format!("{:016x}", hasher.finish())
}

/// Publishes the tables of a folder in place of the objects that were found. The tables cover the parts up to `last_part`.
async fn put(
    bucket: &Bucket,
    name: &str,
    folder: &Path,
    found: ApplicationObjects,
    last_part: u64,
) -> Result<(), Trouble> {
    let failed = |what: String| Trouble::Failed(format!("{}: {what}", folder.display()));
    let text = summary(folder).map_err(|error| failed(error.to_string()))?;
    let text = text.ok_or_else(|| failed("the tables have no application".to_owned()))?;
    let application = RawValue::from_string(text).map_err(|error| failed(error.to_string()))?;
    let pointer = Pointer {
        generation: new_name(),
        last_part,
        application,
    };
    let own = |it: &str| format!("{name}/{}", table(it, &pointer.generation));
    for it in TABLES {
        bucket.put(&own(it), &place::table(folder, it)).await?;
    }
    let version = found.pointed.as_ref().map(|(_, version)| version.clone());
    if let Err(trouble) = bucket.point(name, &pointer, version).await {
        // The answer may have been lost, or be that to a second try of a request that was done.
        let now = bucket.pointer(name).await?;
        if now.is_none_or(|(now, _)| now.generation != pointer.generation) {
            // A request without an answer may still be done: then the pointer names these tables, so they stay. A later
            // import removes them if it names others.
            if matches!(trouble, Trouble::Changed(_)) {
                for it in TABLES {
                    let _ = bucket.remove(&own(it)).await;
                }
            }
            return Err(trouble);
        }
    }
    let old = found
        .pointed
        .as_ref()
        .map(|(old, _)| old.generation.as_str());
    let is_replaced = |object: &&Object| {
        let is_old = is_orphan(object.modified_ms);
        let plain = TABLES
            .iter()
            .any(|it| object.name == format!("{it}.parquet"));
        plain || generation_of(&object.name).is_some_and(|it| is_old || old == Some(it))
    };
    let gone = found.objects.iter().filter(is_replaced);
    let gone = gone.chain(parts_up_to(&found.objects, last_part));
    clean(bucket, name, gone).await;
    Ok(())
}

/// Deletes objects that no reader asks for any more, and returns how many. It stops after some failures and logs the first:
/// objects that stay do no harm.
async fn clean(bucket: &Bucket, name: &str, objects: impl Iterator<Item = &Object>) -> u64 {
    let (mut gone, mut stay, mut why) = (0, 0_u64, None);
    for object in objects {
        match bucket.remove(&format!("{name}/{}", object.name)).await {
            Ok(()) => gone += 1,
            Err(trouble) => {
                stay += 1;
                why.get_or_insert(trouble);
                if stay > 3 {
                    break;
                }
            }
        }
    }
    if let Some(why) = why {
        tracing::warn!("{name}: objects that the tables replace stay: {why}");
    }
    gone
}

/// Imports a log into a bucket.
///
/// # Errors
/// As [`crate::import::import`]; also when the store cannot be written, or another process wrote the application meanwhile.
pub fn import(
    handle: &Handle,
    bucket: &Arc<Bucket>,
    log: &Path,
    bounds: Bounds,
    admission: &Admission,
) -> Result<Imported> {
    let staging = tempfile::Builder::new().prefix("smtt-import-").tempdir()?;
    let (seen, found) = std::sync::mpsc::channel();
    let is_there = {
        let (handle, bucket) = (handle.clone(), Arc::clone(bucket));
        move |name: &str| {
            let found = handle.block_on(ApplicationObjects::of(&bucket, name))?;
            let is_there = found.is_there();
            seen.send(found)
                .map_err(|_| anyhow!("the import has ended"))?;
            Ok(is_there)
        }
    };
    let mut done = import_unless(staging.path(), log, bounds, admission, is_there)?;
    let found = found.recv().context("the store was not asked")?;
    let name = done.folder.file_name().and_then(|it| it.to_str());
    let name = name.context("the application has no name")?.to_owned();
    let last_part = found.last_part();
    handle
        .block_on(put(bucket, &name, &done.folder, found, last_part))
        .with_context(|| format!("importing {}", log.display()))?;
    done.folder = PathBuf::from(bucket.shown(&name));
    Ok(done)
}

/// Replaces an application's parts in a bucket by its tables. They are copied first, into a folder of their own with the
/// bound of `mirror`.
///
/// # Errors
/// As [`live::compact`].
pub fn compact(
    handle: &Handle,
    mirror: &Mirror,
    (name, is_dead): (&str, bool),
    times: Times,
) -> Result<Compacted> {
    compact_after(handle, mirror, (name, is_dead), times, || {})
}

/// Makes the tables, does `then`, and replaces the parts.
pub(super) fn compact_after(
    handle: &Handle,
    mirror: &Mirror,
    (name, is_dead): (&str, bool),
    times: Times,
    then: impl FnOnce(),
) -> Result<Compacted> {
    let (bucket, most) = (mirror.bucket(), mirror.most());
    if !place::is_safe(name) {
        bail!("{name:?} is no application's folder");
    }
    let shown = bucket.shown(name);
    let found = handle.block_on(ApplicationObjects::of(bucket, name))?;
    let left_over = found.left_over();
    if !left_over.is_empty() {
        // A compaction before this one was killed after its tables were there.
        let parts = handle.block_on(clean(bucket, name, left_over.iter().copied()));
        let bytes = left_over.iter().map(|object| object.size).sum();
        return Ok(Compacted {
            folder: PathBuf::from(shown),
            sizes: crate::out::Sizes::default(),
            parts: (parts, bytes),
            lost: 0,
        });
    }
    if found.pointed.is_some() && !found.has_tables() {
        bail!(
            "{shown}: {} names tables that do not exist, so its parts stay: remove that object, and compact again",
            bucket.pointer_name()
        );
    }
    if found.pointed.is_some() || found.is_plain() || finished(&found.objects).is_empty() {
        bail!("{shown} has no parts of a history");
    }
    let mirror = Mirror::keeping(Arc::clone(bucket), most)?;
    handle.block_on(mirror.update(name))?;
    let mut done = live::compact_with(mirror.folder(), name, is_dead, times)?;
    then();
    let now = handle.block_on(ApplicationObjects::of(bucket, name))?;
    let last_part = found.last_part();
    let is_same = now.pointed.is_none()
        && parts_up_to(&now.objects, u64::MAX).eq(parts_up_to(&found.objects, u64::MAX));
    if !is_same {
        bail!(
            "{shown} has changed since it was read, so it was not replaced: another process made its tables, or its driver still writes"
        );
    }
    handle.block_on(put(bucket, name, &done.folder, found, last_part))?;
    done.folder = PathBuf::from(shown);
    Ok(done)
}

/// Whether [`compact`] has work: the driver wrote its last part, or a killed writer left parts that the tables cover.
pub(super) async fn is_over(bucket: &Bucket, name: &str) -> Result<bool, Trouble> {
    let objects = bucket.list(name).await?;
    if objects.iter().any(|object| object.name == POINTER) {
        let found = ApplicationObjects {
            pointed: bucket.pointer(name).await?,
            objects,
        };
        return Ok(!found.left_over().is_empty());
    }
    let found = ApplicationObjects {
        objects,
        pointed: None,
    };
    let last = found.last_part();
    if found.is_plain() || last == 0 {
        return Ok(false);
    }
    let failed = |error: std::io::Error| Trouble::Failed(error.to_string());
    let folder = tempfile::tempdir().map_err(failed)?;
    super::list::fetch_meta(bucket, name, &found.objects, last, folder.path()).await?;
    Ok(live::has_last_part(folder.path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(names: &[&str]) -> ApplicationObjects {
        let object = |name: &&str| Object {
            name: (*name).to_owned(),
            size: 1,
            tag: None,
            modified_ms: 0,
        };
        let pointer = Pointer {
            generation: "0123456789abcdef".to_owned(),
            last_part: 1,
            application: RawValue::NULL.to_owned(),
        };
        let version = object_store::UpdateVersion {
            e_tag: None,
            version: None,
        };
        ApplicationObjects {
            objects: names.iter().map(object).collect(),
            pointed: Some((pointer, version)),
        }
    }

    #[test]
    fn tables_that_are_being_written_have_a_generation() {
        let generation = Some("0123456789abcdef");
        assert_eq!(generation_of("tasks.0123456789abcdef.parquet"), generation);
        assert_eq!(generation_of(".tasks.0123456789abcdef.parquet"), generation);
        for name in [
            "..tasks.0123456789abcdef.parquet",
            ".tasks.0123456789abcdef.parquet.tmp",
            ".tasks-000001.parquet",
            ".tables.json.0123456789abcdef",
        ] {
            assert_eq!(generation_of(name), None, "{name}");
        }
    }

    #[test]
    fn parts_are_left_over_only_where_all_tables_are_there() {
        let mut names = vec![
            POINTER,
            "meta-000001.parquet",
            "meta-000002.parquet",
            "meta.0123456789abcdef.parquet",
            "tasks.0123456789abcdef.parquet",
            "task_sql.fedcba9876543210.parquet",
        ];
        assert!(found(&names).left_over().is_empty(), "a table is missing");
        names.push("task_sql.0123456789abcdef.parquet");
        let found = found(&names);
        let left: Vec<&str> = found
            .left_over()
            .iter()
            .map(|it| it.name.as_str())
            .collect();
        assert_eq!(left, ["meta-000001.parquet"]);
    }
}
