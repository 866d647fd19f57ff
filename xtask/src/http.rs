//! One GET request over the loopback interface: enough for Spark's REST API and the daemon's metrics.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

const LIMIT: Duration = Duration::from_secs(90);

/// Body of `http://127.0.0.1:PORT/PATH`.
///
/// # Errors
/// When the connection is refused, the status is not 200, or the answer is cut off.
pub fn get(port: u16, path: &str) -> Result<String> {
    let (status, body) = request(port, path, "")?;
    if status != 200 {
        bail!(
            "http://127.0.0.1:{port}{path} answered {status}: {}",
            body.chars().take(200).collect::<String>()
        );
    }
    Ok(body)
}

/// Status and body; `headers` are whole lines that end in CR LF.
///
/// # Errors
/// When the connection is refused or the answer is not HTTP.
pub fn request(port: u16, path: &str, headers: &str) -> Result<(u16, String)> {
    let url = format!("http://127.0.0.1:{port}{path}");
    let stream = TcpStream::connect(("127.0.0.1", port))
        .with_context(|| format!("cannot connect to {url}"))?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let head = format!("GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n{headers}");
    exchange(stream, &head).with_context(|| format!("{url} did not answer as HTTP does"))
}

/// Body of a path on a socket of this machine.
///
/// # Errors
/// As [`get`].
pub fn get_local(socket: &Path, path: &str) -> Result<String> {
    let shown = socket.display();
    let stream =
        UnixStream::connect(socket).with_context(|| format!("cannot connect to {shown}"))?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let head = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n");
    let (status, body) =
        exchange(stream, &head).with_context(|| format!("{shown} did not answer as HTTP does"))?;
    if status != 200 {
        bail!("{path} at {shown} answered {status}: {body}");
    }
    Ok(body)
}

/// Sends the head of a request. HTTP 1.0 without keep-alive: the end of the stream ends the answer, which is never
/// chunked.
fn exchange(mut stream: impl Read + Write, head: &str) -> Result<(u16, String)> {
    write!(stream, "{head}Connection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).context("it broke off")?;
    parse(&String::from_utf8_lossy(&answer)).context("no head of an answer")
}

fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head
        .strip_prefix("HTTP/1.")?
        .split(' ')
        .nth(1)?
        .parse()
        .ok()?;
    Some((status, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn answers() {
        assert_eq!(
            parse("HTTP/1.1 200 OK\r\nA: b\r\n\r\n[]"),
            Some((200, "[]".to_owned()))
        );
        assert_eq!(
            parse("HTTP/1.0 404 Not Found\r\n\r\n"),
            Some((404, String::new()))
        );
        assert_eq!(parse("SSH-2.0-x\r\n\r\n"), None);
    }
}
