use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A number of bytes, read and printed as people write it: `512m`, `2g`, `1.5GiB`, `64KB`, `10485760`.
/// `k`, `m`, `g`, `t` (with or without `b` or `ib`, in any case) are powers of 1024, as docker and QEMU have it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
#[serde(transparent)]
pub struct Size(pub u64);

/// The text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a size (write it as `512m`, `2g` or `1.5GiB`)")]
pub struct SizeError(String);

impl Size {
    /// That many mebibytes (2^20 bytes).
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// That many gibibytes (2^30 bytes).
    pub const fn gib(count: u64) -> Self {
        Self(count << 30)
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let error = || SizeError(crate::escape_line(text.as_bytes(), 40));
        let lower = text.trim().to_ascii_lowercase();
        let digits = lower
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(lower.len());
        let (number, unit) = lower.split_at(digits);
        let shift = match unit.trim() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(error()),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let whole: u64 = whole.parse().map_err(|_| error())?;
        // Three decimals are plenty for a person, and keep the arithmetic in integers.
        if fraction.len() > 3 || (number.contains('.') && fraction.is_empty()) {
            return Err(error());
        }
        let thousandths: u64 = format!("{fraction:0<3}").parse().map_err(|_| error())?;
        let unit_bytes: u64 = 1 << shift;
        whole
            .checked_mul(unit_bytes)
            .and_then(|bytes| bytes.checked_add(thousandths * unit_bytes / 1000))
            .map(Self)
            .ok_or_else(error)
    }
}

impl fmt::Display for Size {
    /// At most four characters of number and a unit: `17 B`, `1.4 GiB`, `230 MiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut unit = 0;
        let mut tenths = u128::from(self.0) * 10;
        while tenths >= 10_240 && unit + 1 < UNITS.len() {
            tenths /= 1024;
            unit += 1;
        }
        if unit == 0 || tenths >= 1000 || tenths.is_multiple_of(10) {
            write!(f, "{} {}", tenths / 10, UNITS[unit])
        } else {
            write!(f, "{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
        }
    }
}

impl fmt::Debug for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0)
    }
}
