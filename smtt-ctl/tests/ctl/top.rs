//! `smtt-ctl top` in a terminal, against served states: what its screen shows after each key.

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::Daemon;
use super::workers::{Workers, dead, secret};

const ROWS: usize = 40;
const COLUMNS: usize = 200;
/// Time until a screen shows what it should, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A screen as the escape sequences of the program make it: those that move the cursor and that clear, no others.
struct Screen {
    cells: Vec<Vec<char>>,
    at: (usize, usize),
    /// The sequence that has begun.
    sequence: Option<String>,
}

impl Screen {
    fn new() -> Self {
        Self {
            cells: vec![vec![' '; COLUMNS]; ROWS],
            at: (0, 0),
            sequence: None,
        }
    }

    fn take(&mut self, letter: char) {
        if let Some(sequence) = &mut self.sequence {
            sequence.push(letter);
            if sequence.len() > 1 && letter.is_ascii_alphabetic()
                || sequence.len() == 1 && letter != '['
            {
                let sequence = self.sequence.take().expect("a sequence");
                self.obey(&sequence);
            }
            return;
        }
        match letter {
            '\u{1b}' => self.sequence = Some(String::new()),
            '\r' => self.at.1 = 0,
            '\n' => self.at.0 += 1,
            letter if letter.is_control() => {}
            letter => {
                let (row, column) = self.at;
                if let Some(cell) = self.cells.get_mut(row).and_then(|row| row.get_mut(column)) {
                    *cell = letter;
                }
                self.at.1 += 1;
            }
        }
    }

    fn obey(&mut self, sequence: &str) {
        let Some(parameters) = sequence.strip_prefix('[') else {
            return;
        };
        if let Some(place) = parameters.strip_suffix('H') {
            let mut numbers = place.split(';').map(|number| number.parse().unwrap_or(1));
            let mut next = || numbers.next().unwrap_or(1_usize).saturating_sub(1);
            self.at = (next(), next());
        } else if parameters.ends_with('J') {
            self.cells = vec![vec![' '; COLUMNS]; ROWS];
        }
    }

    fn text(&self) -> String {
        let line = |row: &Vec<char>| row.iter().collect::<String>().trim_end().to_owned();
        let lines: Vec<String> = self.cells.iter().map(line).collect();
        lines.join("\n")
    }
}

/// The program in a terminal of `script`.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    written: Receiver<Vec<u8>>,
    screen: Screen,
}

impl Terminal {
    /// Starts `smtt-ctl` with these words; none has a blank.
    fn start(words: &[&str]) -> Self {
        let program = env!("CARGO_BIN_EXE_smtt-ctl");
        let command = format!(
            "stty rows {ROWS} cols {COLUMNS}; exec {program} {}",
            words.join(" ")
        );
        let mut child = Command::new("script")
            .args(["-q", "-e", "-f", "-c", &command, "/dev/null"])
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script of util-linux runs");
        let keys = child.stdin.take().expect("piped");
        let mut output = child.stdout.take().expect("piped");
        let (sender, written) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            keys,
            written,
            screen: Screen::new(),
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("a key");
        self.keys.flush().expect("a key");
    }

    /// Waits until the screen has all of these words.
    fn shows(&mut self, words: &[&str]) {
        let start = Instant::now();
        let mut rest = Vec::new();
        loop {
            let text = self.screen.text();
            if words.iter().all(|word| text.contains(word)) {
                return;
            }
            let left = LIMIT.saturating_sub(start.elapsed());
            let Ok(more) = self.written.recv_timeout(left) else {
                panic!("the screen does not show all of {words:?}:\n{text}");
            };
            rest.extend(more);
            // A letter of several bytes may come in two parts.
            let whole = match std::str::from_utf8(&rest) {
                Ok(text) => text.len(),
                Err(error) => error.valid_up_to(),
            };
            for letter in String::from_utf8_lossy(&rest[..whole]).chars() {
                self.screen.take(letter);
            }
            rest.drain(..whole);
        }
    }

    /// Waits for the program's end; its exit code.
    fn end(mut self) -> Option<i32> {
        let start = Instant::now();
        while start.elapsed() < LIMIT {
            if let Some(status) = self.child.try_wait().expect("waited") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the program goes on:\n{}", self.screen.text());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Its end closes the terminal, which ends the program.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn top_shows_each_view_of_a_daemon() {
    let daemon = Daemon::with_job();
    let socket = daemon.socket.display().to_string();
    let mut top = Terminal::start(&["--socket", &socket, "top", "--interval", "0.2"]);
    top.shows(&[
        "smtt-daemon 0.1.0: ",
        "1* RDDs",
        "RDDs: 2",
        "ranks of a job",
        "1,500",
    ]);
    for (key, words) in [
        ("2", ["2* stages", "stages: 1", "map"]),
        ("3", ["3* tasks", "tasks: 2", "succeeded"]),
        ("4", ["4* executors", "executors: 1", "4711"]),
        ("5", ["5* blocks", "blocks: 1", "rdd_7_0"]),
        ("1", ["1* RDDs", "RDDs: 2", "ranks of a job"]),
        ("b", ["queries with RDDs: ", "QUERY", "1,500"]),
        ("b", ["plan nodes of RDDs: ", "NODE", "1,500"]),
        ("b", ["call sites of RDDs: ", "CALL SITE", "1,500"]),
        ("b", ["names of RDDs: ", "NAME", "ranks of a job"]),
        ("b", ["  RDDS  EXECS", "RDD ", "1,500"]),
        ("b", ["EXEC  RDD  NAME", "RDDs: 2", "ranks of a job"]),
        // Into the RDD: its blocks.
        ("\r", ["5* blocks", "RDD 7 > blocks: 1", "rdd_7_0"]),
    ] {
        top.press(key);
        top.shows(&words);
    }
    top.press("q");
    assert_eq!(top.end(), Some(0));
}

#[test]
fn top_of_a_cluster_says_who_is_missing() {
    let workers = Workers::start();
    let mut addresses = workers.addresses();
    addresses[2] = dead();
    let list: String = addresses
        .iter()
        .map(|address| format!("{address}\n"))
        .collect();
    let hosts = secret(workers.folder.path(), "hosts", &list);
    let (hosts, tokens) = (
        hosts.display().to_string(),
        workers.folder.path().join("tokens").display().to_string(),
    );
    let words = [
        "--cluster",
        &hosts,
        "--token-file",
        &tokens,
        "--deadline",
        "60",
        "top",
    ];
    let mut top = Terminal::start(&words);
    top.shows(&[
        "cluster: 2 of 3 workers answered",
        "incomplete: 1 of 3 workers did not answer and are in no sum",
        "executors: 2",
        "ranks of a job",
        &addresses[0].to_string(),
        &addresses[1].to_string(),
    ]);
    for (key, word) in [
        ("2", "map"),
        ("3", "succeeded"),
        ("4", "4711"),
        ("5", "rdd_7_0"),
        ("1", "ranks of a job"),
    ] {
        top.press(key);
        top.shows(&[&format!("{key}* "), word, "2 of 3 workers answered"]);
    }
    top.press("b");
    top.shows(&[
        "2 of 3 workers answered",
        "queries with RDDs: ",
        "QUERY",
        "3,000",
    ]);
    top.press("q");
    // As every answer without some workers.
    assert_eq!(top.end(), Some(3));
}
