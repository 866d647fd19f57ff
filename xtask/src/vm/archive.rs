//! The guest's first file system, in the format that every kernel unpacks at start (cpio, "newc").

use std::collections::BTreeSet;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// An archive under construction.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    folders: BTreeSet<String>,
}

impl Archive {
    /// Adds a folder and its parents.
    pub fn folder(&mut self, path: &str) {
        let path = path.trim_matches('/');
        if path.is_empty() || !self.folders.insert(path.to_owned()) {
            return;
        }
        if let Some((above, _)) = path.rsplit_once('/') {
            self.folder(above);
        }
        self.entry(path, DIRECTORY, (0, 0), &[]);
    }

    /// Adds an executable file.
    pub fn file(&mut self, path: &str, content: &[u8]) {
        self.above(path);
        self.entry(path.trim_start_matches('/'), PROGRAM, (0, 0), content);
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.above(path);
        self.entry(
            path.trim_start_matches('/'),
            LINK,
            (0, 0),
            target.as_bytes(),
        );
    }

    /// Adds a character device.
    pub fn device(&mut self, path: &str, major: u32, minor: u32) {
        self.above(path);
        self.entry(
            path.trim_start_matches('/'),
            CHARACTER_DEVICE,
            (major, minor),
            &[],
        );
    }

    /// The archive's bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn above(&mut self, path: &str) {
        if let Some((above, _)) = path.rsplit_once('/') {
            self.folder(above);
        }
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.entries += 1;
        self.bytes.extend(b"070701");
        let fields = [
            self.entries,
            mode,
            0, // user
            0, // group
            1, // links
            0, // time
            content.len() as u32,
            0,
            0,
            device.0,
            device.1,
            path.len() as u32 + 1,
            0, // check sum, not used in this form
        ];
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(path.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::Archive;

    #[test]
    fn folders_come_once_and_before_what_is_in_them() {
        let mut archive = Archive::default();
        archive.file("/a/b/one", b"12345");
        archive.link("/a/b/two", "one");
        archive.device("/dev/console", 5, 1);
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        let names = [
            "\0",
            "a/b\0",
            "a/b/one\0",
            "a/b/two\0",
            "dev\0",
            "dev/console\0",
            "TRAILER!!!\0",
        ];
        let places: Vec<_> = names.iter().map(|name| text.find(name)).collect();
        assert!(places.iter().all(Option::is_some), "{places:?}");
        assert!(places.is_sorted(), "{places:?}");
        assert_eq!(text.matches("070701").count(), 7);
        // The name of 8 bytes ends at 118, padded to 120; the 5 bytes of content are padded to 8.
        let one = text.find("a/b/one").expect("there") - 110;
        assert_eq!(&bytes[one + 120..one + 134], b"12345\0\0\x00070701");
    }
}
