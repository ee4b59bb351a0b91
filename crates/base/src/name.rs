use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The name of a sandbox and of its result: lower-case ASCII letters, digits and single inner hyphens,
/// starting with a letter, at most [`Name::MAX`] bytes. Fit for a file name, a host name and an argument.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// The text is not a sandbox name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a sandbox name (want lower-case letters, digits and hyphens, a letter first, at most {max} characters)",
    max = Name::MAX
)]
pub struct NameError(String);

impl Name {
    /// The longest name in bytes: a host name label (RFC 1035, 2.3.4) is 63, and we keep room for a suffix.
    pub const MAX: usize = 48;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A word pair such as `brisk-heron`, chosen by `seed`. Another seed most likely gives another name.
    pub fn from_seed(seed: u64) -> Self {
        let count = |words: &[&str]| words.len() as u64;
        let pick = |words: &[&'static str], at: u64| {
            words[usize::try_from(at % count(words)).unwrap_or_default()]
        };
        let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        Self(format!(
            "{}-{}",
            pick(QUALITIES, mixed),
            pick(ANIMALS, mixed / count(QUALITIES))
        ))
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let well_formed = !text.is_empty()
            && text.len() <= Self::MAX
            && text.starts_with(|first: char| first.is_ascii_lowercase())
            && !text.ends_with('-')
            && !text.contains("--")
            && text
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if well_formed {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameError(crate::escape_line(text.as_bytes(), 80)))
        }
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

const QUALITIES: &[&str] = &[
    "able", "agile", "airy", "alert", "amber", "ample", "apt", "azure", "bold", "brave", "breezy",
    "bright", "brisk", "calm", "candid", "civil", "clear", "clever", "cosy", "crisp", "curious",
    "dapper", "daring", "deft", "eager", "early", "earnest", "easy", "fair", "fleet", "fond",
    "frank", "free", "fresh", "gentle", "glad", "golden", "grand", "happy", "hardy", "hasty",
    "honest", "humble", "jolly", "keen", "kind", "light", "limber", "lively", "loyal", "lucid",
    "lucky", "merry", "mild", "modest", "neat", "nimble", "noble", "patient", "plain", "polite",
    "prompt", "proud", "quick", "quiet", "rapid", "ready", "rosy", "sharp", "silent", "simple",
    "sleek", "smart", "snowy", "sober", "solid", "spry", "steady", "still", "sunny", "sure",
    "swift", "tender", "tidy", "trusty", "upright", "vivid", "warm", "wary", "wise", "witty",
    "young", "zesty",
];

const ANIMALS: &[&str] = &[
    "adder", "badger", "bat", "bear", "beaver", "bee", "beetle", "bittern", "bream", "buck",
    "bunting", "carp", "cicada", "coot", "crane", "cricket", "crow", "curlew", "deer", "dipper",
    "dove", "duck", "eagle", "eel", "egret", "elk", "falcon", "ferret", "finch", "fox", "frog",
    "gannet", "gecko", "goose", "grebe", "grouse", "gull", "hare", "hawk", "hedgehog", "heron",
    "hoopoe", "ibis", "jackdaw", "jay", "kestrel", "kite", "lark", "lemming", "linnet", "lizard",
    "lynx", "magpie", "marten", "martin", "mayfly", "merlin", "mole", "moth", "mouse", "newt",
    "nightjar", "oriole", "osprey", "otter", "owl", "perch", "pike", "pipit", "plover", "puffin",
    "quail", "rail", "raven", "robin", "rook", "salmon", "shrew", "shrike", "siskin", "skylark",
    "snipe", "sparrow", "squirrel", "starling", "stoat", "stork", "swallow", "swan", "swift",
    "tern", "thrush", "toad", "trout", "vole", "wagtail", "warbler", "weasel", "wren",
];
