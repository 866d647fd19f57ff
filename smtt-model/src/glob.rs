//! Patterns of names: `*` stands for any characters, `?` for one.

/// Bytes of a pattern at most: comparisons run while the state is locked. A longer text is a name.
const LONGEST: usize = 256;

/// Whether a name is the wanted one, or matches it as a pattern. Names that contain `*` (Spark's plan nodes do) match
/// themselves.
#[must_use]
pub fn matches(wanted: &str, name: &str) -> bool {
    wanted == name || (is_pattern(wanted) && glob(wanted, name))
}

/// Whether the text has characters that stand for others.
fn is_pattern(wanted: &str) -> bool {
    wanted.len() <= LONGEST && wanted.contains(['*', '?'])
}

/// Goes back to the last `*` only, so the time is bounded by the product of both lengths.
fn glob(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut seen) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while seen < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, seen));
                at += 1;
            }
            Some(wanted) if *wanted == '?' || *wanted == name[seen] => {
                at += 1;
                seen += 1;
            }
            _ => {
                let Some((of, taken)) = star else {
                    return false;
                };
                star = Some((of, taken + 1));
                at = of + 1;
                seen = taken + 1;
            }
        }
    }
    pattern[at..].iter().all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_no_pattern() {
        let name = "a".repeat(LONGEST);
        assert!(matches(&format!("{}*", &name[1..]), &name));
        assert!(!matches(&format!("{name}*"), &name));
    }

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("users*", "users", true),
            ("users*", "users by day", true),
            ("users*", "all users", false),
            ("*users", "all users", true),
            ("*s?rs*", "all users", true),
            ("*x?rs*", "all users", false),
            ("*u?ers*", "all users", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b-d", false),
            ("?", "é", true),
            ("?", "", false),
            ("*", "", true),
            ("", "", true),
            ("", "x", false),
            ("**", "x", true),
            ("*(1) Project [a]", "*(1) Project [a]", true),
            ("rdd_7_?", "rdd_7_1", true),
            ("rdd_7_?", "rdd_7_10", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_hostile_pattern_takes_no_long_time() {
        // With more than one way back this would take longer than any test may.
        let pattern = format!("{}b", "a*".repeat(500));
        assert!(!matches(&pattern, &"a".repeat(4000)));
    }
}
