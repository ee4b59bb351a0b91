use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The longest path in bytes, as Linux has it (`PATH_MAX`, less the closing NUL).
pub const MAX_PATH: usize = 4095;
/// The longest component in bytes (`NAME_MAX`).
pub const MAX_COMPONENT: usize = 255;
/// The deepest path in components. Real trees stay far below; a tree made to exhaust a walker doesn't.
pub const MAX_DEPTH: usize = 256;

/// A path below some root: bytes, one or more components parted by single slashes. No component is empty,
/// `.` or `..`, and none holds a NUL, so joining it to a root can't lead out of that root (links aside, which
/// is the business of whoever opens it). The root itself is [`RelPath::root`], without any component.
///
/// In JSON it is a string where it is UTF-8 and an array of byte values where it is not, so that nothing is lost.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RelPath(Vec<u8>);

/// The bytes are not a path below a root.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{path}` is not a path below the workspace: {reason}")]
pub struct PathError {
    path: String,
    reason: &'static str,
}

impl RelPath {
    /// The root: no component at all.
    pub fn root() -> Self {
        Self::default()
    }

    /// Checks every rule that the type promises.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, PathError> {
        let bytes = bytes.into();
        match fault(&bytes) {
            None => Ok(Self(bytes)),
            Some(reason) => Err(PathError {
                path: crate::escape_line(&bytes, 120),
                reason,
            }),
        }
    }

    /// This path with one more component.
    pub fn join(&self, component: &[u8]) -> Result<Self, PathError> {
        if component.contains(&b'/') {
            return Err(PathError {
                path: crate::escape_line(component, 120),
                reason: "a component holds a slash",
            });
        }
        if self.is_root() {
            return Self::new(component);
        }
        Self::new([&self.0, b"/".as_slice(), component].concat())
    }

    /// True for the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The raw bytes, without a leading or trailing slash.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The path for a system call that is relative to the root's descriptor; `.` for the root itself.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(if self.is_root() {
            b"."
        } else {
            &self.0
        }))
    }

    /// The components from the root down.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0
            .split(|byte| *byte == b'/')
            .filter(|component| !component.is_empty())
    }

    /// The last component; `None` for the root.
    pub fn file_name(&self) -> Option<&[u8]> {
        self.components().next_back()
    }

    /// The path without its last component; `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        let end = self.0.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        Some(Self(self.0[..end].to_vec()))
    }

    /// True when `self` is `ancestor` or lies below it.
    pub fn is_within(&self, ancestor: &Self) -> bool {
        ancestor.is_root()
            || self
                .0
                .strip_prefix(ancestor.0.as_slice())
                .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    }

    /// The part of `self` below `ancestor`; `None` when it does not lie within.
    pub fn below(&self, ancestor: &Self) -> Option<Self> {
        if ancestor.is_root() {
            return Some(self.clone());
        }
        match self.0.strip_prefix(ancestor.0.as_slice())? {
            [] => Some(Self::root()),
            [b'/', rest @ ..] => Some(Self(rest.to_vec())),
            _ => None,
        }
    }
}

/// The rule that `bytes` break, if any.
fn fault(bytes: &[u8]) -> Option<&'static str> {
    if bytes.is_empty() {
        return Some("it is empty");
    }
    if bytes.len() > MAX_PATH {
        return Some("it is longer than 4095 bytes");
    }
    if bytes.contains(&0) {
        return Some("it holds a NUL byte");
    }
    let mut depth = 0;
    for component in bytes.split(|byte| *byte == b'/') {
        depth += 1;
        match component {
            b"" => return Some("it has an empty component"),
            b"." | b".." => return Some("it has a `.` or `..` component"),
            long if long.len() > MAX_COMPONENT => {
                return Some("a component is longer than 255 bytes");
            }
            _ => {}
        }
    }
    (depth > MAX_DEPTH).then_some("it is more than 256 components deep")
}

impl fmt::Display for RelPath {
    /// Printable on any terminal: control, invisible and invalid bytes are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() {
            f.write_str(".")
        } else {
            f.write_str(&crate::escape(&self.0))
        }
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl TryFrom<&Path> for RelPath {
    type Error = PathError;

    fn try_from(path: &Path) -> Result<Self, PathError> {
        Self::new(path.as_os_str().as_bytes())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form {
    Text(String),
    Bytes(Vec<u8>),
}

impl Serialize for RelPath {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => Form::Bytes(self.0.clone()).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for RelPath {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = match Form::deserialize(deserializer)? {
            Form::Text(text) => text.into_bytes(),
            Form::Bytes(bytes) => bytes,
        };
        if bytes.is_empty() {
            Ok(Self::root())
        } else {
            Self::new(bytes).map_err(serde::de::Error::custom)
        }
    }
}
