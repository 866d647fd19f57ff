//! Texts of logs for a terminal.

/// A text without characters that move the cursor or change the direction of writing, cut after so many.
#[must_use]
pub fn plain(text: &str, most: usize) -> String {
    let is_hidden = |character: char| {
        character.is_control()
            || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    let mut kept: String = text
        .chars()
        .take(most)
        .map(|character| {
            if is_hidden(character) {
                char::REPLACEMENT_CHARACTER
            } else {
                character
            }
        })
        .collect();
    if text.chars().nth(most).is_some() {
        kept.push('…');
    }
    kept
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_name_moves_no_cursor() {
        assert_eq!(
            super::plain("a\u{1b}[2J\u{202e}b", 9),
            "a\u{fffd}[2J\u{fffd}b"
        );
        assert_eq!(super::plain("abc", 2), "ab…");
    }
}
