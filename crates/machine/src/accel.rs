use crate::probe::Verdict;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How the machine's processors come about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accel {
    /// The processor's own virtualisation.
    Kvm,
    /// QEMU's emulator. Slower, and QEMU promises no isolation there: the jail is what holds.
    Tcg,
}

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccelRequest {
    /// Hardware where the probe says yes, else emulation.
    #[default]
    Auto,
    /// Hardware or nothing.
    Kvm,
    /// Emulation.
    Tcg,
}

/// Hardware was demanded, and this computer can't do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Hardware virtualisation is demanded, but {0}")]
pub struct AccelError(String);

impl Accel {
    /// Settles what was asked for against what the computer can do.
    pub fn choose(request: AccelRequest, verdict: &Verdict) -> Result<Self, AccelError> {
        match (request, verdict.is_usable()) {
            (AccelRequest::Tcg, _) | (AccelRequest::Auto, false) => Ok(Self::Tcg),
            (_, true) => Ok(Self::Kvm),
            (AccelRequest::Kvm, false) => Err(AccelError(verdict.cause())),
        }
    }

    /// QEMU's name for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for AccelRequest {
    type Err = String;

    /// `auto`, `kvm` or `tcg`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "kvm" => Ok(Self::Kvm),
            "tcg" => Ok(Self::Tcg),
            other => Err(format!(
                "`{}` is not `auto`, `kvm` or `tcg`",
                base::escape_line(other.as_bytes(), 40)
            )),
        }
    }
}
