//! git's glob language: `*`, `?`, `[…]`, `\`, and `**` between slashes.

/// What a slash in the text is to `*`, `?` and `[…]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slashes {
    /// A byte as any other: the text is one component.
    Ordinary,
    /// Matched by a slash or by `**` only: the text is a path.
    Special,
}

/// How an attempt at some place of the text ended. The two last ones end attempts further on too, which keeps
/// patterns with many stars from taking exponential time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Match,
    Mismatch,
    /// No place further on can match: the text is too short, or the pattern is broken.
    Never,
    /// A single star met a slash: only a `**` before it can still help.
    NotInComponent,
}

/// True when `pattern` matches the whole of `text`.
pub(super) fn matches(pattern: &[u8], text: &[u8], slashes: Slashes) -> bool {
    attempt(pattern, 0, text, slashes) == Outcome::Match
}

/// False for a pattern that matches nothing at all: a class that is never closed or names an unknown kind of
/// characters, or a backslash at the end.
pub(crate) fn is_well_formed(pattern: &[u8]) -> bool {
    let mut at = 0;
    while let Some(byte) = pattern.get(at) {
        at = match byte {
            b'[' => match class(pattern, at + 1, 0) {
                Some((_, end)) => end,
                None => return false,
            },
            b'\\' if at + 1 == pattern.len() => return false,
            b'\\' => at + 2,
            _ => at + 1,
        };
    }
    true
}

fn attempt(pattern: &[u8], start: usize, text: &[u8], slashes: Slashes) -> Outcome {
    let mut at = start;
    let mut text = text;
    while at < pattern.len() {
        if pattern[at] == b'*' {
            return star(pattern, at, text, slashes);
        }
        let Some((&byte, rest)) = text.split_first() else {
            return Outcome::Never;
        };
        match pattern[at] {
            b'?' => {
                if slashes == Slashes::Special && byte == b'/' {
                    return Outcome::Mismatch;
                }
                at += 1;
            }
            b'[' => {
                let Some((inside, end)) = class(pattern, at + 1, byte) else {
                    return Outcome::Never;
                };
                if !inside || (slashes == Slashes::Special && byte == b'/') {
                    return Outcome::Mismatch;
                }
                at = end;
            }
            b'\\' => {
                // A backslash at the very end matches nothing.
                if pattern.get(at + 1) != Some(&byte) {
                    return Outcome::Mismatch;
                }
                at += 2;
            }
            literal => {
                if literal != byte {
                    return Outcome::Mismatch;
                }
                at += 1;
            }
        }
        text = rest;
    }
    if text.is_empty() {
        Outcome::Match
    } else {
        Outcome::Mismatch
    }
}

/// One or more stars at `at`.
fn star(pattern: &[u8], at: usize, text: &[u8], slashes: Slashes) -> Outcome {
    let stars = pattern[at..]
        .iter()
        .take_while(|byte| **byte == b'*')
        .count();
    let next = at + stars;
    let rest = &pattern[next..];
    let crosses = if slashes == Slashes::Ordinary {
        true
    } else if stars >= 2 {
        let opens = at == 0 || pattern[at - 1] == b'/';
        let closes = rest.is_empty() || rest[0] == b'/' || rest.starts_with(b"\\/");
        // `**/` also stands for no directory at all. Where even that can't match, a later start can't either.
        if opens && closes && rest.first() == Some(&b'/') {
            let outcome = attempt(pattern, next + 1, text, slashes);
            if matches!(outcome, Outcome::Match | Outcome::Never) {
                return outcome;
            }
        }
        opens && closes
    } else {
        false
    };
    if rest.is_empty() {
        return if crosses || !text.contains(&b'/') {
            Outcome::Match
        } else {
            Outcome::NotInComponent
        };
    }
    if !crosses && rest[0] == b'/' {
        // A star before a slash matches up to the next slash, whatever comes.
        return match text.iter().position(|byte| *byte == b'/') {
            None => Outcome::Never,
            Some(slash) => attempt(pattern, next + 1, &text[slash + 1..], slashes),
        };
    }
    for (from, byte) in text.iter().enumerate() {
        let outcome = attempt(pattern, next, &text[from..], slashes);
        if outcome != Outcome::Mismatch {
            if !crosses || outcome != Outcome::NotInComponent {
                return outcome;
            }
        } else if !crosses && *byte == b'/' {
            return Outcome::NotInComponent;
        }
    }
    Outcome::Never
}

/// Reads a class whose `[` stands before `start`: whether `byte` is in it, and where the pattern goes on. `None`
/// for a class that is never closed or names a kind of characters that there is not.
fn class(pattern: &[u8], start: usize, byte: u8) -> Option<(bool, usize)> {
    let mut at = start;
    let negated = matches!(pattern.get(at)?, b'!' | b'^');
    at += usize::from(negated);
    let first = at;
    let mut found = false;
    let mut previous: Option<u8> = None;
    loop {
        let current = *pattern.get(at)?;
        if current == b']' && at > first {
            return Some((found != negated, at + 1));
        }
        if current == b'-'
            && previous.is_some()
            && pattern.get(at + 1).is_some_and(|next| *next != b']')
        {
            at += 1;
            let mut upper = pattern[at];
            if upper == b'\\' {
                at += 1;
                upper = *pattern.get(at)?;
            }
            found |= previous.is_some_and(|lower| lower <= byte && byte <= upper);
            previous = None;
            at += 1;
        } else if current == b'[' && pattern.get(at + 1) == Some(&b':') {
            let name_start = at + 2;
            let close = name_start
                + pattern[name_start..]
                    .iter()
                    .position(|byte| *byte == b']')?;
            if close == name_start || pattern[close - 1] != b':' {
                // No `:]` at the end, so it was a `[` in the class and nothing more.
                found |= byte == b'[';
                previous = Some(b'[');
                at += 1;
            } else {
                found |= named_class(&pattern[name_start..close - 1], byte)?;
                previous = None;
                at = close + 1;
            }
        } else {
            let mut literal = current;
            if literal == b'\\' {
                at += 1;
                literal = *pattern.get(at)?;
            }
            found |= literal == byte;
            previous = Some(literal);
            at += 1;
        }
    }
}

fn named_class(name: &[u8], byte: u8) -> Option<bool> {
    Some(match name {
        b"alnum" => byte.is_ascii_alphanumeric(),
        b"alpha" => byte.is_ascii_alphabetic(),
        b"blank" => matches!(byte, b' ' | b'\t'),
        b"cntrl" => byte.is_ascii_control(),
        b"digit" => byte.is_ascii_digit(),
        b"graph" => byte.is_ascii_graphic(),
        b"lower" => byte.is_ascii_lowercase(),
        b"print" => matches!(byte, 0x20..=0x7e),
        b"punct" => byte.is_ascii_punctuation(),
        b"space" => matches!(byte, b' ' | b'\t'..=b'\r'),
        b"upper" => byte.is_ascii_uppercase(),
        b"xdigit" => byte.is_ascii_hexdigit(),
        _ => return None,
    })
}
