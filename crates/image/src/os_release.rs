use std::path::Path;

/// What `/etc/os-release` says (os-release(5)).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OsRelease {
    /// `ID`, such as `debian`.
    pub id: String,
    /// `ID_LIKE`: what it is derived from, closest first.
    pub like: Vec<String>,
    /// The release whose packages it uses, such as `bookworm`: that of what it derives from (`UBUNTU_CODENAME`,
    /// `DEBIAN_CODENAME`) or its own (`VERSION_CODENAME`). Empty where there is none.
    pub codename: String,
    /// `PRETTY_NAME`, for people.
    pub name: String,
}

/// Distributions that are set up alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// Debian and what derives from it, except Ubuntu.
    Debian,
    /// Ubuntu and what derives from it.
    Ubuntu,
    /// Fedora, and what derives from it or from RHEL.
    Fedora,
    /// Arch and what derives from it.
    Arch,
    /// Anything else.
    Unknown,
}

impl OsRelease {
    /// Reads the file below `root` (`/etc/os-release`, or `/usr/lib/os-release`). A host without any is of unknown
    /// family.
    pub fn read(root: &Path) -> Self {
        ["etc/os-release", "usr/lib/os-release"]
            .iter()
            .find_map(|path| fs_err::read_to_string(root.join(path)).ok())
            .map(|text| Self::parse(&text))
            .unwrap_or_default()
    }

    /// Reads the text of such a file; lines that can't be understood are ignored.
    pub fn parse(text: &str) -> Self {
        let mut release = Self::default();
        let mut derived_from = None;
        for line in text.lines() {
            let Some((key, value)) = line.trim().split_once('=') else {
                continue;
            };
            let value = unquoted(value);
            match key {
                "ID" => release.id = value,
                "ID_LIKE" => {
                    release.like = value.split_ascii_whitespace().map(str::to_owned).collect();
                }
                "VERSION_CODENAME" => release.codename = value,
                "UBUNTU_CODENAME" | "DEBIAN_CODENAME" if !value.is_empty() => {
                    derived_from = Some(value);
                }
                "PRETTY_NAME" => release.name = value,
                _ => {}
            }
        }
        if let Some(codename) = derived_from {
            release.codename = codename;
        }
        if release.name.is_empty() {
            release.name.clone_from(&release.id);
        }
        release
    }

    /// The family, by `ID` first and then by `ID_LIKE`.
    pub fn family(&self) -> Family {
        let names = std::iter::once(&self.id).chain(&self.like);
        names
            .map(|name| family_named(name))
            .find(|family| *family != Family::Unknown)
            .unwrap_or(Family::Unknown)
    }
}

fn family_named(name: &str) -> Family {
    match name {
        "debian" => Family::Debian,
        "ubuntu" => Family::Ubuntu,
        "fedora" | "rhel" | "centos" => Family::Fedora,
        "arch" => Family::Arch,
        _ => Family::Unknown,
    }
}

/// A value as a shell would read it: in double or single quotes, or bare.
fn unquoted(value: &str) -> String {
    for quote in ['"', '\''] {
        if let Some(inner) = value
            .strip_prefix(quote)
            .and_then(|rest| rest.strip_suffix(quote))
        {
            if quote == '\'' {
                return inner.to_owned();
            }
            let mut text = String::with_capacity(inner.len());
            let mut characters = inner.chars();
            while let Some(character) = characters.next() {
                text.push(if character == '\\' {
                    characters.next().unwrap_or('\\')
                } else {
                    character
                });
            }
            return text;
        }
    }
    value.to_owned()
}

#[cfg(test)]
mod tests;
