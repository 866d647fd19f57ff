//! The packages: which program each has, what is linked into it, and which files belong to it.

/// A package with a program of its own. Cargo's package and the program have its name.
#[derive(Debug)]
pub struct Product {
    /// Name of the package and of its program.
    pub name: &'static str,
    /// Links to the program, by which it acts as another.
    pub links: &'static [&'static str],
    /// Bytes of the program at most, without symbols.
    pub program_bytes: u64,
    /// Crates whose code the package has beside that of the program: in the marker's library and in the kernel side.
    pub beside: &'static [Beside],
    /// Files and folders of the repository, and their places.
    pub copied: &'static [(&'static str, &'static str)],
    /// Whether the marker belongs to it.
    pub has_marker: bool,
    /// Documents of the repository, beside licences, bill of materials and changes.
    pub documents: &'static [&'static str],
    /// Licences of our own code.
    pub licences: &'static [&'static str],
    /// Files that an upgrade leaves as the administrator changed them.
    pub configuration: &'static [&'static str],
    /// Debian's section.
    pub section: &'static str,
    /// Debian's packages that it needs beside the libraries of the program.
    pub depends: &'static [&'static str],
    /// Further fields of Debian's control file.
    pub fields: &'static [(&'static str, &'static str)],
    /// What it is, in Debian's form.
    pub description: &'static str,
}

/// A crate whose code a package has beside that of its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// A member of this workspace, in a library for the same processor.
    Member(&'static str),
    /// The kernel side, a workspace of its own.
    Kernel(&'static str),
}

impl Beside {
    /// The crate's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Member(name) | Self::Kernel(name) => name,
        }
    }
}

impl Product {
    /// Names by which users call the program: those of its links, or its own.
    #[must_use]
    pub fn calls(&self) -> Vec<&'static str> {
        match self.links {
            [] => vec![self.name],
            links => links.to_vec(),
        }
    }

    /// Whether a man page or a file of completions is one of the program: `smtt-ctl-rdds.1`, `_smtt-ctl`.
    #[must_use]
    pub fn has_page(&self, file: &str) -> bool {
        let stem = file.split('.').next().unwrap_or_default();
        let stem = stem.trim_start_matches('_');
        // The page of the program itself stands beside those of its links.
        stem == self.name
            || self.calls().into_iter().any(|call| {
                let rest = stem.strip_prefix(call);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            })
    }
}

/// What the scripts of packages call.
const SYSTEMD_HELPERS: &str = "init-system-helpers (>= 1.52)";

/// What a worker needs: the daemon, its client and the marker.
pub const WORKER: Product = Product {
    name: "smtt",
    links: &["smtt-daemon", "smtt-ctl"],
    // The bound of docs/PRINCIPLES.md.
    program_bytes: 12_000_000,
    beside: &[
        Beside::Member("smtt-marker-native"),
        Beside::Kernel("smtt-ebpf"),
    ],
    copied: &[
        ("config/smtt.toml", "etc/smtt/smtt.toml"),
        ("config/smtt.sysusers", "usr/lib/sysusers.d/smtt.conf"),
        ("config/smtt.service", "usr/lib/systemd/system/smtt.service"),
        (
            "config/smtt-sys-admin.conf",
            "usr/share/smtt/smtt-sys-admin.conf",
        ),
        ("packaging/prometheus", "usr/share/smtt/prometheus"),
        ("packaging/grafana", "usr/share/smtt/grafana"),
        // README.md links them.
        ("docs", "usr/share/doc/smtt/docs"),
    ],
    has_marker: true,
    documents: &["README.md"],
    licences: &["LICENSE-APACHE", "LICENSE-GPL-2.0", "LICENSE-MIT"],
    configuration: &["/etc/smtt/smtt.toml"],
    section: "admin",
    // The scripts make the user, and reload systemd where it runs.
    depends: &[SYSTEMD_HELPERS, "systemd | systemd-standalone-sysusers"],
    fields: &[("Suggests", "smtt-history")],
    description: "shows which Spark RDD makes the memory hardware work
 One small daemon per worker, on eBPF, shows for every RDD, stage and task of
 every Spark executor which page faults and page walks it caused and which
 memory it holds. Neither Spark nor the application changes.
 .
 This package has the daemon, its client smtt-ctl, and the marker for
 executors. Finished applications are the matter of the package smtt-history.",
};

/// The history server, for another machine than a worker.
pub const HISTORY: Product = Product {
    name: "smtt-history",
    links: &[],
    // With the client of HDFS it has 15.8 MB on x86-64.
    program_bytes: 16_500_000,
    beside: &[],
    copied: &[(
        "config/smtt-history.service",
        "usr/lib/systemd/system/smtt-history.service",
    )],
    has_marker: false,
    documents: &["docs/HISTORY.md"],
    licences: &["LICENSE-APACHE", "LICENSE-MIT"],
    configuration: &[],
    section: "admin",
    depends: &[SYSTEMD_HELPERS],
    // Until this version the package of workers had the program.
    fields: &[
        ("Breaks", "smtt (<< 0.1.0-2)"),
        ("Replaces", "smtt (<< 0.1.0-2)"),
    ],
    description: "keeps and shows finished Spark applications
 Reads Spark's event logs, and what SMTT's marker writes, into compact tables
 in a folder or a bucket. Serves pages and Spark's REST API from them, names
 findings with the time that their remedies save, compares runs, and exports
 CSV, SQLite and Perfetto. It needs neither root nor the package smtt.",
};

/// All packages.
pub const PRODUCTS: [&Product; 2] = [&WORKER, &HISTORY];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_belong_to_the_package_of_their_program() {
        for (file, of) in [
            ("smtt.1", "smtt"),
            ("smtt-daemon.8", "smtt"),
            ("smtt-ctl.1", "smtt"),
            ("smtt-ctl-rdds.1", "smtt"),
            ("_smtt-ctl", "smtt"),
            ("smtt-ctl.bash", "smtt"),
            ("smtt-history-serve.1", "smtt-history"),
            ("smtt-history.fish", "smtt-history"),
            ("_smtt-history", "smtt-history"),
        ] {
            let owners: Vec<_> = PRODUCTS
                .iter()
                .filter(|product| product.has_page(file))
                .map(|product| product.name)
                .collect();
            assert_eq!(owners, [of], "{file}");
        }
        assert!(!WORKER.has_page("smtt-ctl2.1"));
    }
}
