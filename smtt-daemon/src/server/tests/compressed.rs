//! Scrapes whose answers are compressed, on both listeners.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use flate2::read::GzDecoder;

use super::limits::{both, connect, large};
use crate::metrics::Names;

/// Head and body of an answer to `/metrics`.
fn scrape(mut stream: impl Read + Write, headers: &str) -> (String, Vec<u8>) {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: smtt\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).expect("asked");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    let body = answer.split_off(end.expect("a head") + 4);
    let head = String::from_utf8(answer).expect("a head of text");
    (head.to_ascii_lowercase(), body)
}

fn unpacked(bytes: &[u8]) -> String {
    let mut text = String::new();
    let read = GzDecoder::new(bytes).read_to_string(&mut text);
    read.expect("whole gzip");
    text
}

#[test]
fn a_compressed_answer_is_the_answer_that_others_of_its_second_get() {
    let shared = large(1000);
    both(&shared, Names::Hidden, |served| {
        for of in ["port", "socket"] {
            let ask = |headers: &str| match of {
                "port" => scrape(connect(served.port), headers),
                _ => {
                    let stream = UnixStream::connect(&served.socket);
                    scrape(stream.expect("connected"), headers)
                }
            };
            // The time that an answer took is in it, so another answer is never the same. A busy machine may need more
            // than a second for both questions.
            let same = (0..20).any(|_| {
                let (head, bytes) = ask("Accept-Encoding: gzip\r\n");
                assert!(head.contains("\ncontent-encoding: gzip\r"), "{head}");
                assert!(head.contains("\nvary: accept, accept-encoding\r"), "{head}");
                let length = format!("\ncontent-length: {}\r", bytes.len());
                assert!(head.contains(&length), "{head}");
                let text = unpacked(&bytes);
                assert!(bytes.len() * 5 < text.len(), "{} bytes", bytes.len());
                assert!(text.ends_with("# EOF\n") || text.starts_with("# HELP"));
                let (head, plain) = ask("");
                assert!(!head.contains("\ncontent-encoding:"), "{head}");
                assert!(head.contains("\nvary: accept, accept-encoding\r"), "{head}");
                text.as_bytes() == plain
            });
            assert!(same, "no two answers of the {of} were the same");
        }
    });
}

#[test]
fn only_who_prefers_gzip_gets_it() {
    both(&large(3), Names::Hidden, |served| {
        for (accepts, is_gzip) in [
            ("gzip", true),
            ("gzip, deflate, br, zstd", true),
            ("deflate, gzip;q=0.2", true),
            ("*", true),
            ("gzip;q=0", false),
            ("gzip;q=0.0, *", false),
            ("identity, gzip;q=0.5", false),
            ("gzip;q=2", false),
            ("zstd", false),
        ] {
            let headers = format!("Accept-Encoding: {accepts}\r\n");
            let (head, body) = scrape(connect(served.port), &headers);
            let coded = head.contains("\ncontent-encoding: gzip\r");
            assert_eq!(coded, is_gzip, "{accepts}: {head}");
            let text = match coded {
                true => unpacked(&body),
                false => String::from_utf8(body).expect("a text"),
            };
            assert!(text.contains("smtt_build_info"), "{accepts}");
        }
    });
}

#[test]
fn scrapers_of_both_kinds_share_one_answer() {
    both(&large(1000), Names::Hidden, |served| {
        let port = served.port;
        let scrapers: Vec<_> = (0..20)
            .map(|number| {
                std::thread::spawn(move || match number % 2 {
                    0 => unpacked(&scrape(connect(port), "Accept-Encoding: gzip\r\n").1),
                    _ => String::from_utf8(scrape(connect(port), "").1).expect("a text"),
                })
            })
            .collect();
        let joined = scrapers.into_iter().map(|scraper| scraper.join());
        let answers: BTreeSet<String> = joined.map(|text| text.expect("scraped")).collect();
        // As without compression: a slow machine may need more than a second for all.
        assert!(answers.len() <= 3, "{} different answers", answers.len());
    });
}
