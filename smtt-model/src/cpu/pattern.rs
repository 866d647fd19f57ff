//! Just as much of regular expressions as CPU patterns in event lists use: `[012]`, `[0-9A-F]`, `[[:xdigit:]]`,
//! `(a|b)` and `+`. A pattern is matched against the whole text.

/// Whether `text` as a whole fits `pattern`. A pattern that is not well formed fits nothing.
pub fn matches(pattern: &str, text: &str) -> bool {
    ends(pattern.as_bytes(), text.as_bytes()).contains(&text.len())
}

/// Every length of a beginning of `text` that fits `pattern`.
fn ends(pattern: &[u8], text: &[u8]) -> Vec<usize> {
    let Some((piece, rest)) = split_piece(pattern) else {
        return if pattern.is_empty() {
            vec![0]
        } else {
            Vec::new()
        };
    };
    let (repeat, rest) = match rest {
        [b'+', rest @ ..] => (true, rest),
        _ => (false, rest),
    };
    let mut reached = piece_ends(piece, text);
    if repeat {
        let mut next = 0;
        while next < reached.len() {
            let from = reached[next];
            for more in piece_ends(piece, &text[from..]) {
                if more > 0 && !reached.contains(&(from + more)) {
                    reached.push(from + more);
                }
            }
            next += 1;
        }
    }
    reached
        .into_iter()
        .flat_map(|from| {
            ends(rest, &text[from..])
                .into_iter()
                .map(move |end| from + end)
        })
        .collect()
}

/// The first piece (a class, a group or one byte) and what follows it.
fn split_piece(pattern: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = match pattern.first()? {
        b'[' if pattern.starts_with(b"[[:xdigit:]]") => b"[[:xdigit:]]".len(),
        b'[' => pattern.iter().position(|&byte| byte == b']')? + 1,
        b'(' => {
            let mut depth = 0;
            pattern.iter().position(|&byte| {
                depth += i32::from(byte == b'(') - i32::from(byte == b')');
                depth == 0
            })? + 1
        }
        _ => 1,
    };
    Some(pattern.split_at(length))
}

fn piece_ends(piece: &[u8], text: &[u8]) -> Vec<usize> {
    match piece {
        [b'(', inside @ .., b')'] => alternatives(inside)
            .into_iter()
            .flat_map(|one| ends(one, text))
            .collect(),
        b"[[:xdigit:]]" => text
            .first()
            .filter(|byte| byte.is_ascii_hexdigit())
            .map(|_| 1)
            .into_iter()
            .collect(),
        [b'[', class @ .., b']'] => text
            .first()
            .filter(|&&byte| in_class(class, byte))
            .map(|_| 1)
            .into_iter()
            .collect(),
        _ => text
            .starts_with(piece)
            .then_some(piece.len())
            .into_iter()
            .collect(),
    }
}

fn alternatives(inside: &[u8]) -> Vec<&[u8]> {
    let mut depth = 0;
    inside
        .split(|&byte| {
            depth += i32::from(byte == b'(') - i32::from(byte == b')');
            byte == b'|' && depth == 0
        })
        .collect()
}

fn in_class(class: &[u8], byte: u8) -> bool {
    match class {
        [low, b'-', high, rest @ ..] => (*low..=*high).contains(&byte) || in_class(rest, byte),
        [one, rest @ ..] => *one == byte || in_class(rest, byte),
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn classes_groups_and_repeats_fit_whole_texts_only() {
        let zen_3 = "AuthenticAMD-25-([245][[:xdigit:]]|[[:xdigit:]])";
        for (pattern, text, fits) in [
            ("GenuineIntel-6-8F", "GenuineIntel-6-8F", true),
            ("GenuineIntel-6-8F", "GenuineIntel-6-8FA", false),
            ("GenuineIntel-6-55-[01234]", "GenuineIntel-6-55-4", true),
            ("GenuineIntel-6-55-[01234]", "GenuineIntel-6-55-5", false),
            ("GenuineIntel-6-55-[01234]", "GenuineIntel-6-55", false),
            (
                "AuthenticAMD-23-([12][0-9A-F]|[0-9A-F])",
                "AuthenticAMD-23-1A",
                true,
            ),
            (
                "AuthenticAMD-23-([12][0-9A-F]|[0-9A-F])",
                "AuthenticAMD-23-31",
                false,
            ),
            (zen_3, "AuthenticAMD-25-5", true),
            (zen_3, "AuthenticAMD-25-50", true),
            (zen_3, "AuthenticAMD-25-61", false),
            ("AuthenticAMD-25-[[:xdigit:]]+", "AuthenticAMD-25-61", true),
            ("AuthenticAMD-25-[[:xdigit:]]+", "AuthenticAMD-25-", false),
            ("(a|b(c|d))+e", "abcbde", true),
            ("(a|b", "a", false),
            ("[ab", "a", false),
        ] {
            assert_eq!(matches(pattern, text), fits, "{text} against {pattern}");
        }
    }
}
