//! Bearer tokens of a listener: secrets in a file, one a line.

use std::path::Path;

use axum::http::{HeaderMap, header};
use sha2::{Digest as _, Sha256};

use crate::users::{UsersError, secret_text};

/// Characters of a token at least: a shorter one could be guessed.
const LEAST: usize = 16;
/// Tokens of a file at most.
const TOKENS_MAX: usize = 64;
/// Bytes of the header with the token at most.
const HEADER_MAX: usize = 1024;

/// The tokens whose bearers may read the answers of a listener. Only their digests are kept.
#[derive(Debug)]
pub struct Tokens(Vec<[u8; 32]>);

impl Tokens {
    /// Reads the file with the tokens.
    ///
    /// # Errors
    /// When it cannot be read, every local user may read or write it, or a line is invalid.
    pub fn load(path: &Path) -> Result<Self, UsersError> {
        let text = secret_text(path)?;
        Self::parse(&text).map_err(|(line, message)| UsersError::Wrong {
            path: path.to_owned(),
            line,
            message,
        })
    }

    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut digests = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let token = line.trim();
            if token.is_empty() || token.starts_with('#') {
                continue;
            }
            let wrong = |message: String| Err((index + 1, message));
            if token.len() < LEAST || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return wrong(format!(
                    "a token has at least {LEAST} printable characters and no blanks: make it with openssl rand -hex 32"
                ));
            }
            if digests.len() == TOKENS_MAX {
                return wrong(format!("more than {TOKENS_MAX} tokens"));
            }
            digests.push(Sha256::digest(token).into());
        }
        if digests.is_empty() {
            return Err((1, "there is no token".to_owned()));
        }
        Ok(Self(digests))
    }

    /// Whether these headers have one of the tokens.
    pub fn admit(&self, headers: &HeaderMap) -> bool {
        let value = headers
            .get(header::AUTHORIZATION)
            .filter(|value| value.len() <= HEADER_MAX);
        let Some((scheme, token)) = value
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
        else {
            return false;
        };
        let asked: [u8; 32] = Sha256::digest(token.trim()).into();
        // All digests are compared in full: the time says nothing about them.
        let same = |digest: &[u8; 32]| {
            let differing = digest.iter().zip(&asked);
            differing.fold(0, |all, (left, right)| all | (left ^ right)) == 0
        };
        let found = self
            .0
            .iter()
            .fold(false, |found, digest| found | same(digest));
        found && scheme.eq_ignore_ascii_case("bearer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef0123";

    fn with(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().expect("a value"))])
    }

    #[test]
    fn only_bearers_of_a_token_are_admitted() {
        let tokens = Tokens::parse(&format!("# scraper\n\nanother-token-of-20-c\n{TOKEN}\n"))
            .expect("tokens");
        for (value, admitted) in [
            (format!("Bearer {TOKEN}"), true),
            (format!("bearer {TOKEN}"), true),
            ("Bearer another-token-of-20-c".to_owned(), true),
            (format!("Bearer {TOKEN}4"), false),
            (format!("Bearer {}", &TOKEN[1..]), false),
            (format!("Basic {TOKEN}"), false),
            ("Bearer # scraper".to_owned(), false),
            ("Bearer ".to_owned(), false),
            ("Bearer".to_owned(), false),
            (format!("Bearer {}", "x".repeat(2000)), false),
        ] {
            assert_eq!(tokens.admit(&with(&value)), admitted, "{value}");
        }
        assert!(!tokens.admit(&HeaderMap::new()));
    }

    #[test]
    fn a_wrong_file_is_one_line_that_does_not_show_the_token() {
        for (text, part) in [
            ("", "there is no token"),
            ("# none\n", "there is no token"),
            ("short\n", "at least 16"),
            ("0123456789abcdef 0123\n", "no blanks"),
        ] {
            let (_, message) = Tokens::parse(text).expect_err("wrong");
            assert!(message.contains(part), "{message}");
            assert!(
                !message.contains("short") && !message.contains("0123"),
                "{message}"
            );
        }
        let (line, _) = Tokens::parse(&format!("{TOKEN}\nshort\n")).expect_err("wrong");
        assert_eq!(line, 2);
        let many: String = (0..65).map(|n| format!("{TOKEN}{n}\n")).collect();
        assert_eq!(Tokens::parse(&many).expect_err("too many").0, 65);
    }
}
