//! Subordinate ids (subuid(5), subgid(5)): what an ordinary user needs to unpack a system whose files have several
//! owners.

/// Ids that one range needs: a Debian system has owners up to 65534.
pub(crate) const COUNT: u64 = 65_536;

/// True when the text of `/etc/subuid` or `/etc/subgid` gives the user a range that is large enough.
pub(crate) fn has_range(text: &str, user: &str, uid: u32) -> bool {
    ranges(text)
        .any(|(owner, _, count)| count >= COUNT && (owner == user || owner == uid.to_string()))
}

/// The first id behind every range in the texts: where a new range may start.
pub(crate) fn free_start(texts: &[&str]) -> u64 {
    // 100000 is where useradd starts (login.defs(5), SUB_UID_MIN).
    let ends = texts
        .iter()
        .flat_map(|text| ranges(text))
        .map(|(_, start, count)| start.saturating_add(count));
    ends.fold(100_000, u64::max)
}

fn ranges(text: &str) -> impl Iterator<Item = (&str, u64, u64)> {
    text.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        Some((
            fields.next()?,
            fields.next()?.parse().ok()?,
            fields.next()?.parse().ok()?,
        ))
    })
}

#[cfg(test)]
mod tests;
