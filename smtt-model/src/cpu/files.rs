//! The text files in which a machine describes itself. This crate opens no files: the caller implements [`Files`].

/// Text files below the root folder of a machine.
pub trait Files {
    /// The text of a file, by its path without the leading slash; `None` where the file is unavailable.
    fn text(&self, path: &str) -> Option<String>;
    /// The names in a folder; empty where the folder is unavailable.
    fn names(&self, folder: &str) -> Vec<String>;
}

/// A machine of tests: path and text of each file.
#[cfg(test)]
impl Files for std::collections::BTreeMap<String, String> {
    fn text(&self, path: &str) -> Option<String> {
        self.get(path).cloned()
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let inside = format!("{folder}/");
        let mut names: Vec<String> = self
            .keys()
            .filter_map(|path| path.strip_prefix(&inside)?.split('/').next())
            .map(str::to_owned)
            .collect();
        names.dedup();
        names
    }
}
