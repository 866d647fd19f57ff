//! Where a page is: addresses relative to it.

/// Sections of an application: path and title.
pub const SECTIONS: [(&str, &str); 10] = [
    ("", "Overview"),
    ("timeline", "Time line"),
    ("findings", "Findings"),
    ("jobs", "Jobs"),
    ("stages", "Stages"),
    ("tasks", "Tasks"),
    ("executors", "Executors"),
    ("rdds", "RDDs"),
    ("sql", "SQL"),
    ("environment", "Environment"),
];

/// Attempt and section of what follows an application's id.
pub fn split(rest: &str) -> (Option<&str>, &str) {
    let (first, others) = rest.split_once('/').unwrap_or((rest, ""));
    if SECTIONS.iter().any(|(path, _)| *path == first) {
        (None, rest)
    } else {
        (Some(first), others)
    }
}

/// A page's place.
#[derive(Clone, Debug)]
pub struct Place {
    up: String,
    id: String,
    attempt: Option<String>,
}

impl Place {
    /// A page that is about no application.
    pub fn new(path: &str) -> Self {
        Self::of(path, "", None)
    }

    /// A page of an application.
    pub fn of(path: &str, id: &str, attempt: Option<&str>) -> Self {
        let levels = path.matches('/').count().saturating_sub(1);
        let up = if levels == 0 {
            "./".to_owned()
        } else {
            "../".repeat(levels)
        };
        Self {
            up,
            id: id.to_owned(),
            attempt: attempt.map(str::to_owned),
        }
    }

    /// The application's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The attempt, where the path has one.
    pub fn attempt(&self) -> Option<&str> {
        self.attempt.as_deref()
    }

    /// The address of a path of the server.
    pub fn to(&self, path: &str) -> String {
        format!("{}{path}", self.up)
    }

    /// The address of a part of the application.
    pub fn part(&self, part: &str) -> String {
        let mut address = format!("{}applications/{}", self.up, quoted(&self.id));
        for segment in [self.attempt.as_deref().unwrap_or_default(), part] {
            if !segment.is_empty() {
                address.push('/');
                address.push_str(segment);
            }
        }
        address
    }
}

/// Text as a value in an address.
pub fn quoted(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
