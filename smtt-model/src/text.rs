//! Text that others wrote, on terminals and pages: executors, event logs and workers must not be able to control where
//! it appears.

/// Whether a character controls a terminal, separates lines, changes the direction of text, or is invisible. On a
/// terminal and in the report's page the replacement character takes its place; the history's pages isolate each text.
#[must_use]
pub fn is_harmful(letter: char) -> bool {
    let is_hidden = matches!(
        letter,
        '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
            | '\u{feff}'
    );
    letter.is_control() || is_hidden
}

/// Text with the replacement character in place of each harmful one.
#[must_use]
pub fn harmless(text: &str) -> String {
    text.replace(is_harmful, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_in_its_line_and_direction() {
        for letter in [
            '\u{1b}', '\n', '\u{7f}', '\u{9b}', '\u{61c}', '\u{200b}', '\u{200d}', '\u{200f}',
            '\u{2028}', '\u{2029}', '\u{202a}', '\u{202e}', '\u{2066}', '\u{2069}', '\u{feff}',
        ] {
            assert_eq!(harmless(&format!("a{letter}b")), "a\u{fffd}b");
        }
        assert_eq!(harmless("a\u{2027}\u{e9} b"), "a\u{2027}\u{e9} b");
    }
}
