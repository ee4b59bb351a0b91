//! Columns of text, as wide as their widest cell.

/// Rows below a heading; the last column is not padded.
pub(crate) fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows
            .iter()
            .filter_map(|row| row.get(column))
            .map(String::as_str);
        cells
            .chain(heading.get(column).copied())
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        format!("{}\n", padded.join("   ").trim_end())
    };
    let mut text = line(&mut heading.iter().copied());
    for row in rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

/// How long ago, for a person: `12 s`, `5 min`, `3 h`, `9 d`.
pub(crate) fn ago(then: i64) -> String {
    let seconds = jiff::Timestamp::now()
        .as_second()
        .saturating_sub(then)
        .max(0);
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7200 => format!("{} min ago", seconds / 60),
        7200..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

/// A time as RFC 3339 in UTC, for JSON.
pub(crate) fn time(seconds: i64) -> Option<String> {
    jiff::Timestamp::from_second(seconds)
        .ok()
        .filter(|_| seconds > 0)
        .map(|time| time.to_string())
}

/// `1 file`, `2 files`.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::{count, table};

    #[test]
    fn columns_line_up() {
        let rows = [
            vec!["a".to_owned(), "long one".to_owned()],
            vec!["longer".to_owned(), "x".to_owned()],
        ];
        assert_eq!(
            table(&["NAME", "WHAT"], &rows),
            "NAME     WHAT\na        long one\nlonger   x\n"
        );
    }

    #[test]
    fn one_is_not_many() {
        assert_eq!(count(1, "file", "files"), "1 file");
        assert_eq!(count(0, "file", "files"), "0 files");
    }
}
