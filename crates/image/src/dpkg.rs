use crate::manifest::Package;

/// The installed packages of a `var/lib/dpkg/status`, by name.
pub(crate) fn installed(status: &[u8]) -> Vec<Package> {
    let text = String::from_utf8_lossy(status);
    let mut packages: Vec<_> = text.split("\n\n").filter_map(package).collect();
    packages.sort_by(|one, other| one.name.cmp(&other.name));
    packages
}

fn package(paragraph: &str) -> Option<Package> {
    let field = |name: &str| {
        paragraph.lines().find_map(|line| {
            Some(
                line.strip_prefix(name)?
                    .strip_prefix(':')?
                    .trim()
                    .to_owned(),
            )
        })
    };
    field("Status").filter(|status| status.ends_with(" installed"))?;
    Some(Package {
        name: field("Package")?,
        version: field("Version")?,
    })
}

#[cfg(test)]
mod tests;
