//! Columns of text, as wide as their widest cell, and the words for numbers.

use workspace::Stat;

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

/// `2 files changed, 1 added, 3 directories`: how every verb counts a change set.
pub(crate) fn changes(stat: &Stat) -> String {
    let mut parts = Vec::new();
    for (number, what) in [
        (stat.changed, "changed"),
        (stat.added, "added"),
        (stat.deleted, "deleted"),
    ] {
        match (number, parts.is_empty()) {
            (0, _) => {}
            (_, true) => parts.push(format!("{} {what}", count(number, "file", "files"))),
            (_, false) => parts.push(format!("{number} {what}")),
        }
    }
    if stat.dirs > 0 {
        parts.push(count(stat.dirs, "directory", "directories"));
    }
    if parts.is_empty() {
        parts.push("nothing changed".to_owned());
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::{changes, count, table};
    use workspace::Stat;

    #[test]
    fn the_first_number_has_the_noun() {
        let stat = |changed, added, dirs| Stat {
            changed,
            added,
            dirs,
            ..Stat::default()
        };
        assert_eq!(changes(&stat(2, 1, 0)), "2 files changed, 1 added");
        assert_eq!(changes(&stat(0, 1, 1)), "1 file added, 1 directory");
        assert_eq!(changes(&stat(0, 0, 2)), "2 directories");
        assert_eq!(changes(&stat(0, 0, 0)), "nothing changed");
    }

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
