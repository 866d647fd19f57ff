//! Texts of logs for a terminal.

use smtt_model::text::is_harmful;

/// A text without characters that move the cursor or change the direction of writing, cut after so many.
#[must_use]
pub fn plain(text: &str, most: usize) -> String {
    let mut kept: String = text
        .chars()
        .take(most)
        .map(|character| {
            if is_harmful(character) {
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
    fn a_name_of_a_log_does_not_change_the_direction_of_writing() {
        assert_eq!(super::plain("a\u{61c}b", 9), "a\u{fffd}b");
    }

    #[test]
    fn a_name_moves_no_cursor() {
        assert_eq!(
            super::plain("a\u{1b}[2J\u{202e}b", 9),
            "a\u{fffd}[2J\u{fffd}b"
        );
        assert_eq!(super::plain("abc", 2), "ab…");
    }
}
