//! Downloads the files of a plan, and moves them into the copy.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use futures_util::StreamExt as _;
use smtt_store::history::columns::META;
use smtt_store::history::place;

use super::super::bucket::Trouble;
use super::plan::{Plan, Source, part};
use super::{COPIES, Mirror};
use crate::live::FILE_BYTES;
use crate::open::exists;

impl Mirror {
    /// Downloads the files that the plan has and the known one has not, and makes the folder equal to the plan.
    pub(super) async fn copy_files(
        &self,
        folder: &str,
        target: &Path,
        plan: &Plan,
        known: Option<&Plan>,
    ) -> Result<(), Trouble> {
        let local =
            |error: std::io::Error| Trouble::Failed(format!("{}: {error}", target.display()));
        let is_same =
            |name: &String, source: &Source| known.and_then(|it| it.get(name)) == Some(source);
        // New parts of an application that runs come to those that are there.
        let only_more = known.is_some_and(|known| {
            known
                .iter()
                .all(|(name, source)| plan.get(name) == Some(source))
        }) && target.is_dir()
            && !exists(target);
        let staging = tempfile::Builder::new()
            .prefix(".copy-")
            .tempdir_in(self.root.path())
            .map_err(local)?;
        let mut wanted: Vec<(String, Source)> = Vec::new();
        for (name, source) in plan {
            if only_more && is_same(name, source) {
                continue;
            }
            let to = staging.path().join(name);
            if let Some(above) = to.parent() {
                fs::create_dir_all(above).map_err(local)?;
            }
            let is_there = is_same(name, source) && fs::hard_link(target.join(name), &to).is_ok();
            if !is_there {
                wanted.push((name.clone(), source.clone()));
            }
        }
        let fetches = wanted.clone().into_iter().map(|(name, source)| {
            let to = staging.path().join(name);
            self.fetch(folder, source, to)
        });
        let mut fetches = futures_util::stream::iter(fetches).buffer_unordered(COPIES.1);
        while let Some(fetched) = fetches.next().await {
            fetched?;
        }
        drop(fetches);
        if !only_more {
            let (from, to) = (staging.path().to_owned(), target.to_owned());
            let published = tokio::task::spawn_blocking(move || place::publish(&from, &to, true));
            let published = published
                .await
                .map_err(|error| Trouble::Failed(error.to_string()))?;
            return published.map(drop).map_err(local);
        }
        // A part without its `meta` does not exist.
        wanted.sort_by_key(|(name, _)| {
            part(name).map(|(table, number)| (number, table == META.name))
        });
        for (name, _) in wanted {
            let to = target.join(&name);
            if let Some(above) = to.parent() {
                fs::create_dir_all(above).map_err(local)?;
            }
            fs::rename(staging.path().join(name), to).map_err(local)?;
        }
        Ok(())
    }

    async fn fetch(&self, folder: &str, source: Source, to: PathBuf) -> Result<(), Trouble> {
        if source.is_too_large {
            let file = File::create_new(&to).and_then(|file| file.set_len(FILE_BYTES + 1));
            return file.map_err(|error| Trouble::Failed(format!("{}: {error}", to.display())));
        }
        let name = format!("{folder}/{}", source.object.name);
        self.bucket.fetch(&name, &source.object, &to).await
    }
}
