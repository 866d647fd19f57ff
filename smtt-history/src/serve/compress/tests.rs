//! What is compressed for whom, and that its bytes are those of the answer.

use std::io::Read as _;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::routing::get;
use tower::ServiceExt as _;

use super::*;

/// A text with repetitions, longer than several pieces.
fn text() -> String {
    (0..40_000).map(|n| format!("stage {n},")).collect()
}

fn router(turns: &Compressors) -> Router {
    let turns = turns.clone();
    Router::new()
        .route("/long", get(async || text()))
        .route("/short", get(async || "short"))
        .fallback(async || StatusCode::NOT_FOUND)
        .layer(from_fn(move |request, next| {
            compress(turns.clone(), request, next)
        }))
}

async fn ask(router: Router, path: &str, accepts: &str) -> (HeaderMap, Body) {
    let request = Request::builder()
        .uri(path)
        .header(header::ACCEPT_ENCODING, accepts);
    let request = request.body(Body::empty()).expect("a request");
    let answer = router.oneshot(request).await.expect("answers");
    let (head, body) = answer.into_parts();
    (head.headers, body)
}

async fn bytes(body: Body) -> Bytes {
    let bytes = axum::body::to_bytes(body, usize::MAX).await;
    bytes.expect("a whole body")
}

#[test]
fn a_client_gets_the_coding_that_it_prefers() {
    for (accepts, coding) in [
        ("", None),
        ("identity", None),
        ("br, deflate", None),
        ("gzip", Some(Coding::Gzip)),
        ("GZIP;q=0.5", Some(Coding::Gzip)),
        ("gzip, deflate, br, zstd", Some(Coding::Zstd)),
        ("zstd;q=0.3, gzip; q=0.8", Some(Coding::Gzip)),
        ("gzip;q=0", None),
        ("gzip;q=0, *", Some(Coding::Zstd)),
        ("*;q=0", None),
        ("gzip;q=x", None),
        ("gzip;level=9", None),
    ] {
        let value = accepts.parse().expect("a value");
        let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, value)]);
        assert_eq!(Coding::accepted(&headers), coding, "{accepts:?}");
    }
    let mut lines = HeaderMap::new();
    for line in ["gzip;q=0.1", "zstd"] {
        lines.append(header::ACCEPT_ENCODING, HeaderValue::from_static(line));
    }
    assert_eq!(Coding::accepted(&lines), Some(Coding::Zstd));
    assert_eq!(Coding::accepted(&HeaderMap::new()), None);
}

#[tokio::test]
async fn a_compressed_answer_is_the_answer() {
    let router = router(&Compressors::default());
    let (plain, body) = ask(router.clone(), "/long", "identity").await;
    assert_eq!(bytes(body).await, text());
    assert!(plain.get(header::CONTENT_ENCODING).is_none());
    assert_eq!(plain[header::VARY], "accept-encoding");
    for coding in Coding::ALL {
        let (headers, body) = ask(router.clone(), "/long", coding.name()).await;
        assert_eq!(headers[header::CONTENT_ENCODING], coding.name());
        assert_eq!(headers[header::VARY], "accept-encoding");
        assert!(headers.get(header::CONTENT_LENGTH).is_none());
        let sent = bytes(body).await;
        assert!(sent.len() * 3 < text().len(), "{} bytes", sent.len());
        let mut found = String::new();
        match coding {
            Coding::Gzip => flate2::read::GzDecoder::new(&sent[..]).read_to_string(&mut found),
            Coding::Zstd => zstd::stream::read::Decoder::new(&sent[..])
                .expect("a decoder")
                .read_to_string(&mut found),
        }
        .expect("is whole");
        assert!(found == text(), "{coding:?}");
    }
    for path in ["/short", "/nowhere"] {
        let (headers, _) = ask(router.clone(), path, "gzip").await;
        assert!(headers.get(header::CONTENT_ENCODING).is_none(), "{path}");
    }
}

#[tokio::test]
async fn an_answer_without_a_turn_is_sent_as_it_is_and_a_turn_ends_with_its_body() {
    let turns = Compressors::default();
    let router = router(&turns);
    let mut held = Vec::new();
    for _ in 0..AT_A_TIME {
        let (headers, body) = ask(router.clone(), "/long", "zstd").await;
        assert!(headers.contains_key(header::CONTENT_ENCODING));
        held.push(body);
    }
    let (headers, body) = ask(router.clone(), "/long", "zstd").await;
    assert!(headers.get(header::CONTENT_ENCODING).is_none());
    assert_eq!(bytes(body).await, text());
    drop(held.pop());
    assert_eq!(turns.0.available_permits(), 1);
    let (headers, body) = ask(router, "/long", "gzip").await;
    assert!(headers.contains_key(header::CONTENT_ENCODING));
    drop(bytes(body).await);
    assert_eq!(turns.0.available_permits(), 1);
}
