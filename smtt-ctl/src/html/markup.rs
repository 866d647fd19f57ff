//! Markup that is well-formed by construction: elements are always closed, and text from an executor is always escaped.
//! The document is HTML and XML at once, so that a test can parse it.

use std::fmt::Write as _;

use smtt_model::text::is_harmful;

/// Elements without contents.
const VOID: [&str; 3] = ["meta", "br", "col"];

/// A page, or a part of one.
#[derive(Debug, Default)]
pub struct Markup(String);

/// Attributes of an element.
pub type Attributes<'a> = &'a [(&'a str, &'a str)];

impl Markup {
    /// Text.
    pub fn text(&mut self, text: &str) -> &mut Self {
        escape(&mut self.0, text);
        self
    }

    /// Untrusted text: isolated, so that its writing direction does not affect the text around it.
    #[inline(never)]
    pub fn claimed(&mut self, text: &str) -> &mut Self {
        self.element("bdi", &[], |inside| {
            inside.text(text);
        })
    }

    /// An element with contents.
    pub fn element(
        &mut self,
        name: &str,
        attributes: Attributes<'_>,
        contents: impl FnOnce(&mut Self),
    ) -> &mut Self {
        if self.open(name, attributes) {
            contents(self);
            self.close(name);
        }
        self
    }

    /// The begin of an element; false where it has no contents and no end. Compiled once for all contents.
    #[inline(never)]
    fn open(&mut self, name: &str, attributes: Attributes<'_>) -> bool {
        self.0.push('<');
        self.0.push_str(name);
        for (attribute, value) in attributes {
            // Writing to a string cannot fail.
            let _ = write!(self.0, " {attribute}=\"");
            escape(&mut self.0, value);
            self.0.push('"');
        }
        let is_void = VOID.contains(&name);
        self.0.push_str(if is_void { "/>" } else { ">" });
        !is_void
    }

    #[inline(never)]
    fn close(&mut self, name: &str) {
        let _ = write!(self.0, "</{name}>");
    }

    /// An element with text alone.
    #[inline(never)]
    pub fn line(&mut self, name: &str, attributes: Attributes<'_>, text: &str) -> &mut Self {
        self.element(name, attributes, |inside| {
            inside.text(text);
        })
    }

    /// The built-in style sheet. It must not contain `<` or `&`, which would need escaping.
    pub fn style(&mut self, sheet: &str) -> &mut Self {
        debug_assert!(
            !sheet.contains(['<', '&']),
            "a style sheet that is no XML text"
        );
        self.0.push_str("<style>");
        self.0.push_str(sheet);
        self.0.push_str("</style>");
        self
    }

    /// The built-in script. It must not contain `<` or `&`, which would need escaping.
    pub fn script(&mut self, script: &str) -> &mut Self {
        debug_assert!(
            !script.contains(['<', '&']) && !script.contains("]]>"),
            "a script that is no XML text"
        );
        self.0.push_str("<script>");
        self.0.push_str(script);
        self.0.push_str("</script>");
        self
    }

    /// The page as a document.
    #[must_use]
    pub fn document(self) -> String {
        format!("<!DOCTYPE html>\n{}\n", self.0)
    }
}

/// Appends text as contents or as an attribute's value. Replaces characters that XML forbids, and harmful ones except
/// for tabs and ends of lines.
fn escape(out: &mut String, text: &str) {
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' => out.push(letter),
            '\u{fffe}' | '\u{ffff}' => out.push(char::REPLACEMENT_CHARACTER),
            letter if is_harmful(letter) => out.push(char::REPLACEMENT_CHARACTER),
            letter => out.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_claimed_becomes_markup() {
        let mut markup = Markup::default();
        markup.element(
            "p",
            &[("title", "\"><script>alert(1)</script>")],
            |inside| {
                inside.claimed("</bdi><img src=x onerror='alert(1)'>&\u{0}\u{61c}\u{202e}\u{ffff}");
            },
        );
        let text = markup.document();
        assert_eq!(
            text.matches('<').count(),
            5,
            "the doctype, p and bdi: {text}"
        );
        assert!(
            !text.contains("<script") && !text.contains("<img"),
            "{text}"
        );
        assert!(
            !text.contains(['\u{0}', '\u{61c}', '\u{202e}', '\u{ffff}']),
            "{text:?}"
        );
    }
}
