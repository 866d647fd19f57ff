//! The table of running tasks, read on any thread and without the probes.

use std::io;
use std::os::fd::AsFd as _;

use anyhow::Context as _;
use smtt_common::event::used::TaskBegin;

use super::{Probes, memory, tables};

impl Probes {
    /// Reads the rows of the table of running tasks, by thread id.
    ///
    /// # Errors
    /// When the table cannot be used.
    pub fn running_tasks(
        &self,
    ) -> anyhow::Result<impl Fn() -> io::Result<Vec<(u32, TaskBegin)>> + Send + 'static> {
        let map = self.ebpf.map("TASKS").context("no table TASKS")?;
        let map = memory::map_fd(map).context("TASKS is no hash table")?;
        let map = map.try_clone_to_owned()?;
        Ok(move || tables::rows::<u32, TaskBegin>(map.as_fd()))
    }
}
