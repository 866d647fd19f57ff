//! File systems that a test makes full, read-only or frozen.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use xtask::process::output;

/// A file system. It is thawed and unmounted when this is dropped.
pub struct Mount {
    /// Where it is mounted.
    pub path: PathBuf,
    is_frozen: bool,
}

impl Mount {
    /// A small file system in memory.
    pub fn in_memory(path: PathBuf) -> Result<Self> {
        fs::create_dir(&path)?;
        let mut mount = Command::new("mount");
        output(
            mount
                .args(["-t", "tmpfs", "-o", "size=1m", "none"])
                .arg(&path),
        )?;
        Ok(Self {
            path,
            is_frozen: false,
        })
    }

    /// A file system on a device that can be frozen.
    pub fn on_a_device(path: PathBuf) -> Result<Self> {
        fs::create_dir(&path)?;
        let image = path.with_extension("image");
        File::create(&image)?.set_len(16 << 20)?;
        output(
            Command::new("mke2fs")
                .args(["-q", "-t", "ext4"])
                .arg(&image),
        )?;
        output(
            Command::new("mount")
                .args(["-o", "loop"])
                .args([&image, &path]),
        )?;
        Ok(Self {
            path,
            is_frozen: false,
        })
    }

    /// Lets all writes wait.
    pub fn freeze(&mut self) -> Result<()> {
        output(Command::new("fsfreeze").arg("-f").arg(&self.path))?;
        self.is_frozen = true;
        Ok(())
    }

    /// Lets them go on.
    pub fn thaw(&mut self) -> Result<()> {
        if self.is_frozen {
            output(Command::new("fsfreeze").arg("-u").arg(&self.path))?;
            self.is_frozen = false;
        }
        Ok(())
    }

    /// Refuses all writes from here on.
    pub fn read_only(&self) -> Result<()> {
        let mut mount = Command::new("mount");
        output(mount.args(["-o", "remount,ro"]).arg(&self.path))?;
        Ok(())
    }

    /// Takes [`Self::read_only`] back.
    pub fn writable(&self) -> Result<()> {
        let mut mount = Command::new("mount");
        output(mount.args(["-o", "remount,rw"]).arg(&self.path))?;
        Ok(())
    }

    fn filler(&self) -> PathBuf {
        self.path.join(".filler")
    }

    /// Takes all room.
    pub fn fill(&self) -> Result<()> {
        let mut filler = File::create(self.filler())?;
        while filler.write_all(&[0; 4096]).is_ok() {}
        Ok(())
    }

    /// Makes room again.
    pub fn free(&self) -> Result<()> {
        Ok(fs::remove_file(self.filler())?)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A frozen file system would hang whatever reads it.
        self.thaw().ok();
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}
