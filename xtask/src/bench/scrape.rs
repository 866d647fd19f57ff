//! What a scrape costs the daemon, as it is and compressed.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{median, report};
use crate::daemon::Daemon;
use crate::witness;

/// Scrapes of each kind, in turns.
const SCRAPES: usize = 15;
/// Longer than an answer is shared.
const BETWEEN: Duration = Duration::from_millis(1_100);
/// Limit of the daemon's CPU time for one compressed scrape, in milliseconds: 0.2 % of a CPU at one in 15 s.
const SCRAPE_MS: f64 = 30.0;
/// Bytes of a compressed answer, in per cent of the answer's.
const BYTES_PERCENT: f64 = 20.0;

/// Measures the scrapes of a daemon that has executors.
pub(super) fn scrapes(daemon: &Daemon) -> Result<()> {
    let (mut plain, mut compressed) = (Measured::default(), Measured::default());
    for _ in 0..SCRAPES {
        plain.scrape(daemon, "")?;
        compressed.scrape(daemon, "Accept-Encoding: gzip\r\n")?;
    }
    let [plain_ms, compressed_ms] = [&mut plain, &mut compressed].map(|it| median(&mut it.cpu_ms));
    report(
        "compressed scrape",
        compressed_ms,
        "ms CPU",
        SCRAPE_MS,
        &format!("{plain_ms:.2} ms without compression; medians of {SCRAPES} each, in turns"),
    );
    let [all, sent] = [&mut plain, &mut compressed].map(|it| median(&mut it.bytes));
    report(
        "bytes of a compressed scrape",
        100.0 * sent / all,
        "%",
        BYTES_PERCENT,
        &format!("{sent:.0} of {all:.0} bytes"),
    );
    Ok(())
}

/// Figures of the scrapes of one kind.
#[derive(Default)]
struct Measured {
    cpu_ms: Vec<f64>,
    bytes: Vec<f64>,
}

impl Measured {
    fn scrape(&mut self, daemon: &Daemon, headers: &str) -> Result<()> {
        thread::sleep(BETWEEN);
        let before = witness::process_cpu_ns(daemon.pid())?;
        let mut stream = TcpStream::connect(("127.0.0.1", daemon.port))?;
        write!(
            stream,
            "GET /metrics HTTP/1.1\r\nHost: daemon\r\n{headers}\r\n"
        )?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let used = witness::process_cpu_ns(daemon.pid())? - before;
        ensure!(
            answer.starts_with(b"HTTP/1.1 200 "),
            "no answer to a scrape"
        );
        let head = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        let head = head.context("an answer without a head")?;
        self.cpu_ms.push(used as f64 / 1e6);
        self.bytes.push((answer.len() - head - 4) as f64);
        Ok(())
    }
}
