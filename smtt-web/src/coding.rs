//! Which content codings a client accepts, as its `Accept-Encoding` says.
//! <https://www.rfc-editor.org/rfc/rfc9110#section-12.5.3>

use axum::http::{HeaderMap, header};

/// The codings that a client names, with their weights.
#[derive(Debug)]
pub struct Accepted<'head>(Vec<(&'head str, f32)>);

impl<'head> Accepted<'head> {
    /// Those of a request's head.
    #[must_use]
    pub fn of(headers: &'head HeaderMap) -> Self {
        let lines = headers.get_all(header::ACCEPT_ENCODING).iter();
        let items = lines
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(','));
        let listed = items.map(|item| {
            let (name, parameter) = item.split_once(';').unwrap_or((item, "q=1"));
            (name.trim(), weight(parameter.trim()).unwrap_or(0.0))
        });
        Self(listed.collect())
    }

    /// Weight of a coding: 0 where the client does not accept it.
    #[must_use]
    pub fn weight(&self, name: &str) -> f32 {
        self.named(name)
            .or_else(|| self.named("*"))
            .unwrap_or_default()
    }

    /// Whether the client accepts a coding, and does not prefer the answer as it is.
    #[must_use]
    pub fn prefers(&self, name: &str) -> bool {
        let weight = self.weight(name);
        weight > 0.0 && self.named("identity").is_none_or(|plain| plain <= weight)
    }

    fn named(&self, name: &str) -> Option<f32> {
        let mut listed = self.0.iter();
        listed
            .find(|(listed, _)| listed.eq_ignore_ascii_case(name))
            .map(|(_, weight)| *weight)
    }
}

/// The weight that a parameter gives: 0 to 1 with at most three digits after the point.
fn weight(parameter: &str) -> Option<f32> {
    let (name, value) = parameter.split_once('=')?;
    let is_number = value.len() <= "0.000".len()
        && value
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let is_weight = name.eq_ignore_ascii_case("q") && is_number;
    let weight: f32 = is_weight.then(|| value.parse().ok())??;
    (weight <= 1.0).then_some(weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[&str]) -> HeaderMap {
        let lines = lines.iter().map(|line| line.parse().expect("a value"));
        lines.map(|line| (header::ACCEPT_ENCODING, line)).collect()
    }

    #[test]
    fn weights_are_those_of_the_header() {
        for (lines, gzip, prefers) in [
            (&[][..], 0.0, false),
            (&[""], 0.0, false),
            (&["gzip"], 1.0, true),
            (&["GZip"], 1.0, true),
            (&["gzip;q=0.5"], 0.5, true),
            (&["gzip ; Q=0.001"], 0.001, true),
            (&["gzip;q=1.000, identity;q=1"], 1.0, true),
            (&["identity, gzip;q=0.9"], 0.9, false),
            (&["identity;q=0.5, *;q=0.4"], 0.4, false),
            (&["identity;q=0, *;q=0.4"], 0.4, true),
            (&["gzip;q=0, *"], 0.0, false),
            (&["gzip;q=0.000"], 0.0, false),
            (&["*;q=0"], 0.0, false),
            (&["br, deflate"], 0.0, false),
            (&["x-gzip"], 0.0, false),
            (&["br", "gzip;q=0.3"], 0.3, true),
            // Weights that are none.
            (&["gzip;q=nan"], 0.0, false),
            (&["gzip;q=inf"], 0.0, false),
            (&["gzip;q=-1"], 0.0, false),
            (&["gzip;q=1.1"], 0.0, false),
            (&["gzip;q=1e0"], 0.0, false),
            (&["gzip;q=0.0001"], 0.0, false),
            (&["gzip;q="], 0.0, false),
            (&["gzip;q"], 0.0, false),
            (&["gzip;level=9"], 0.0, false),
            (&["gzip;q=0.5;q=1"], 0.0, false),
        ] {
            let headers = headers(lines);
            let accepted = Accepted::of(&headers);
            assert_eq!(accepted.weight("gzip"), gzip, "{lines:?}");
            assert_eq!(accepted.prefers("gzip"), prefers, "{lines:?}");
        }
    }
}
