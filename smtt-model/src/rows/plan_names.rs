//! Names that Spark makes of plans, for cached DataFrames without a name of their own.

use std::borrow::Cow;

/// What names of the same work have in common. In the plan of a cached DataFrame the ids of columns (`shop#17L`) are new
/// each time the same lines cache it, and the values of its conditions may be others. So ids and the numbers of compiled
/// stages (`*(3) `) are left out, a number is `?`, and space is one blank. Any other name stays as it is.
#[must_use]
pub fn common_name(name: &str) -> Cow<'_, str> {
    if is_plan(name) {
        Cow::Owned(without_numbers(name))
    } else {
        Cow::Borrowed(name)
    }
}

/// Whether a name is a plan: a node in a compiled stage, a node above another one, or a node with columns.
fn is_plan(name: &str) -> bool {
    if compiled_stage(name) > 0 || name.contains(" +- ") || name.contains("\n+- ") {
        return true;
    }
    let is_column = |(at, _): (usize, &str)| {
        let of = name[..at].chars().next_back();
        let named = of.is_some_and(|of| of.is_alphanumeric() || matches!(of, '_' | ')' | '`'));
        let (id, after) = name[at..].split_at(column_id(&name[at..]));
        named && !id.is_empty() && !after.starts_with(|next: char| next.is_alphanumeric())
    };
    name.contains('[') && name.match_indices('#').any(is_column)
}

/// Bytes of the digits at the begin.
fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

/// Bytes of `*(3) ` at the begin, or 0.
fn compiled_stage(text: &str) -> usize {
    let Some(inner) = text.strip_prefix("*(") else {
        return 0;
    };
    let number = digits(inner);
    let is_one = number > 0 && inner[number..].starts_with(") ");
    if is_one { 2 + number + 2 } else { 0 }
}

/// Bytes of `#17` or `#17L` at the begin, or 0.
fn column_id(text: &str) -> usize {
    let Some(inner) = text.strip_prefix('#') else {
        return 0;
    };
    match digits(inner) {
        0 => 0,
        number => 1 + number + usize::from(inner[number..].starts_with('L')),
    }
}

fn without_numbers(plan: &str) -> String {
    let mut text = String::with_capacity(plan.len());
    let mut rest = plan;
    while let Some(letter) = rest.chars().next() {
        let in_word = text.ends_with(|last: char| last.is_alphanumeric() || last == '_');
        let left_out = match letter {
            '*' => compiled_stage(rest),
            '#' => column_id(rest),
            '0'..='9' if !in_word => {
                text.push('?');
                let part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'.';
                rest.bytes().take_while(part).count()
            }
            _ => 0,
        };
        if left_out > 0 {
            rest = &rest[left_out..];
            continue;
        }
        rest = &rest[letter.len_utf8()..];
        if !letter.is_whitespace() {
            text.push(letter);
        } else if !text.is_empty() && !text.ends_with(' ') {
            text.push(' ');
        }
    }
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_of_the_same_lines_have_one_name() {
        for (first, second, name) in [
            (
                "*(1) Project [shop#1L, (amount#2L % 10) AS part#6635L]\n+- Scan In-memory table sales [amount#2L, shop#1L]",
                "*(2) Project [shop#1L, (amount#2L % 7) AS part#89L] +- Scan In-memory table sales [amount#2L, shop#1L]",
                "Project [shop, (amount % ?) AS part] +- Scan In-memory table sales [amount, shop]",
            ),
            (
                "*(1) Range (0, 1000, step=1, splits=2)",
                "*(1) Range (0, 2000, step=1, splits=4)",
                "Range (?, ?, step=?, splits=?)",
            ),
            (
                "LocalTableScan [sum(amount)#12, t1.x#3]",
                "LocalTableScan [sum(amount)#99, t1.x#400]",
                "LocalTableScan [sum(amount), t1.x]",
            ),
            (
                "Filter (day#5 > 2026-11-27)\n   +- FileScan parquet [day#5,größe#6]  ",
                "Filter (day#15 > 2026-11-28)\n   +- FileScan parquet [day#15,größe#16]",
                "Filter (day > ?-?-?) +- FileScan parquet [day,größe]",
            ),
        ] {
            assert_eq!(common_name(first), name);
            assert_eq!(common_name(second), name);
        }
    }

    #[test]
    fn other_names_stay() {
        for name in [
            "",
            "links",
            "batch #17",
            "batch#17",
            "contributions 5",
            "In-memory table sales",
            "hdfs://data/2026-11-27/part[0-9]*",
            "a[1] # 5",
            "x#y[0]",
            "map at Jobs.scala:7",
            "*(x) y",
            "#1",
            "a +-b",
        ] {
            assert_eq!(common_name(name), name);
        }
    }
}
