//! A listing of a folder in HDFS and of the folders in it.

use hdfs_native::client::{FileStatus, ListStatusIterator};
use hdfs_native::{Client, HdfsError};
use object_store::Result;
use object_store::path::Path as Key;

use super::super::connect::Page;
use super::pointers::{Numbered, number_of};
use super::{error, generic, object, path_of, split};

/// Names of a page of a listing.
pub(super) const NAMES: usize = 1_000;
/// Folders below the listed one whose files are listed, too: those of the workers' users.
const BELOW: usize = 10_000;

/// A listing, page by page.
pub(super) struct Walk {
    client: Client,
    /// The folder that was asked for, without a slash at its end.
    top: String,
    /// What the names at the top begin with.
    first: String,
    /// Whether only the names of folders are wanted.
    is_flat: bool,
    /// The folder that is being listed.
    at: Option<(String, ListStatusIterator)>,
    /// Folders below the top that are not listed yet.
    below: Vec<String>,
    pointer: Option<Numbered>,
}

impl Walk {
    pub(super) fn new(client: Client, prefix: &str, is_flat: bool) -> Self {
        let (folder, first) = split(prefix);
        let top = match folder {
            "" => String::new(),
            folder => path_of(folder),
        };
        let mut walk = Self {
            client,
            top: top.clone(),
            first: first.to_owned(),
            is_flat,
            at: None,
            below: vec![top],
            pointer: None,
        };
        walk.next_folder();
        walk
    }

    fn next_folder(&mut self) {
        self.at = self.below.pop().map(|folder| {
            let path = if folder.is_empty() { "/" } else { &folder };
            let names = self.client.list_status_iter(path, false);
            (folder, names)
        });
    }

    /// The next page.
    pub(super) async fn page(&mut self) -> Result<Page> {
        let mut page = Page::default();
        let mut seen = 0;
        while seen < NAMES
            && let Some((folder, names)) = &self.at
        {
            match names.next().await {
                None => {
                    page.objects
                        .extend(self.pointer.take().map(|it| it.object()));
                    self.next_folder();
                }
                // A folder that went meanwhile has no files, as one that never was.
                Some(Err(HdfsError::FileNotFound(_))) => {}
                Some(Err(trouble)) => return Err(error(folder, trouble)),
                Some(Ok(status)) => {
                    seen += 1;
                    self.take(&mut page, status)?;
                }
            }
        }
        page.has_more = self.at.is_some();
        Ok(page)
    }

    fn take(&mut self, page: &mut Page, status: FileStatus) -> Result<()> {
        let (folder, name) = split(&status.path);
        let is_top = folder == self.top;
        // The listing of a file is the file itself.
        if name.is_empty() || !name.starts_with(if is_top { &self.first } else { "" }) {
            return Ok(());
        }
        if self.is_flat {
            let key = status.path.trim_start_matches('/');
            page.folders.extend(status.isdir.then(|| key.to_owned()));
        } else if status.isdir {
            if is_top && self.below.len() == BELOW {
                return Err(generic(format!("it has more than {BELOW} folders")));
            }
            self.below.extend(is_top.then(|| status.path.clone()));
        } else if let Some(number) = number_of(name).filter(|_| is_top) {
            if self.pointer.as_ref().is_none_or(|it| it.number < number) {
                self.pointer = Some(Numbered { number, status });
            }
        } else if Key::parse(&status.path).is_ok() {
            page.objects.push(object(&status.path, &status));
        }
        Ok(())
    }
}
