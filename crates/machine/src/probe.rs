//! Whether KVM can be used, found out by using it.
//!
//! That `/dev/kvm` exists proves nothing: it may belong to another group, and where the host is itself a
//! machine without nested virtualisation, a KVM that interprets each kernel instruction can hide behind it
//! (a stock kernel needs minutes to boot there). So a child runs some millions of instructions in a virtual
//! processor, and is killed when it isn't done in well under a second.

mod kvm;

use crate::exit::ExitWatch;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub use kvm::kvm_child;

/// What the probe found, with cause and cure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict")]
pub enum Verdict {
    /// Hardware-backed and fast.
    Fast {
        /// What the probe's loop took, in nanoseconds.
        nanoseconds: u64,
    },
    /// It works, but not at the speed of hardware.
    Slow {
        /// What the probe's loop took, in nanoseconds; nothing when it wasn't done at the limit.
        nanoseconds: Option<u64>,
    },
    /// This computer is itself a virtual machine, without nested virtualisation.
    NotNested,
    /// The processor shows no virtualisation: switched off in the firmware, or a processor without it.
    OffInFirmware,
    /// The processor can, but the kernel's module isn't loaded.
    NoModule {
        /// The module that this processor needs.
        module: String,
    },
    /// The module is loaded, but there is no `/dev/kvm`: a container that wasn't given it.
    NoDevice,
    /// `/dev/kvm` may not be opened by this user.
    NoPermission,
    /// The kernel refused something that a working KVM does.
    Broken {
        /// What it was.
        reason: String,
    },
}

/// A verdict that was kept, so that not every run has to probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptVerdict {
    /// The boot of the host that it was found in (see [`boot_id`]).
    pub boot_id: String,
    /// What was found.
    pub verdict: Verdict,
}

/// How long the child may take. Hardware needs 5 ms, most of it to start the process.
pub const PROBE_LIMIT: Duration = Duration::from_millis(700);

/// From here on it isn't hardware: hardware needs 2 ms for the loop, and three times that under load or nested.
const SLOW_FROM: Duration = Duration::from_millis(60);

/// The longest answer of the child.
const MAX_ANSWER: u64 = 4096;

/// What the child found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Took { nanoseconds: u64 },
    Failed { reason: String },
}

/// Finds out whether KVM can be used. `role` is the command that prints [`kvm_child`]'s line.
pub fn probe(role: &[OsString]) -> Verdict {
    let device = Path::new("/dev/kvm");
    // Not through `fs_err`, whose errors don't tell the number.
    match rustix::fs::open(device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => measure(role),
        Err(error) => match error {
            Errno::NOENT => {
                let processor = fs_err::read("/proc/cpuinfo").unwrap_or_default();
                let loaded = Path::new("/sys/module/kvm_intel").exists()
                    || Path::new("/sys/module/kvm_amd").exists();
                without_device(&processor, loaded)
            }
            Errno::ACCESS | Errno::PERM => Verdict::NoPermission,
            // A node without a driver behind it.
            Errno::NODEV | Errno::NXIO => {
                without_device(&fs_err::read("/proc/cpuinfo").unwrap_or_default(), false)
            }
            _ => Verdict::Broken {
                reason: format!("`{}` can't be opened: {error}", device.display()),
            },
        },
    }
}

/// Identifies this boot of the host: a random text that the kernel makes at its start.
pub fn boot_id() -> io::Result<String> {
    Ok(fs_err::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

impl Verdict {
    /// Whether machines should use KVM.
    pub fn is_usable(&self) -> bool {
        matches!(self, Self::Fast { .. })
    }

    /// The cause, as the second half of a sentence.
    pub fn cause(&self) -> String {
        match self {
            Self::Fast { nanoseconds } => {
                format!(
                    "hardware virtualisation works (the probe took {})",
                    milliseconds(*nanoseconds)
                )
            }
            Self::Slow {
                nanoseconds: Some(nanoseconds),
            } => format!(
                "`/dev/kvm` is there but isn't backed by hardware: the probe took {}, hardware needs about 2 ms",
                milliseconds(*nanoseconds)
            ),
            Self::Slow { nanoseconds: None } => format!(
                "`/dev/kvm` is there but isn't backed by hardware: the probe wasn't done after {} ms, hardware needs \
                 about 2 ms",
                PROBE_LIMIT.as_millis()
            ),
            Self::NotNested => {
                "this computer is itself a virtual machine, and nested virtualisation is off"
                    .to_owned()
            }
            Self::OffInFirmware => {
                "the processor shows no virtualisation (neither `vmx` nor `svm` in /proc/cpuinfo)"
                    .to_owned()
            }
            Self::NoModule { module } => format!("the kernel's module `{module}` isn't loaded"),
            Self::NoDevice => "there is no `/dev/kvm` in this container".to_owned(),
            Self::NoPermission => "this user may not open `/dev/kvm`".to_owned(),
            Self::Broken { reason } => format!("KVM doesn't work: {reason}"),
        }
    }

    /// What to do about it; nothing where all is well or nothing can be done from here.
    pub fn cure(&self) -> Option<String> {
        match self {
            Self::Fast { .. } | Self::Slow { .. } | Self::Broken { .. } => None,
            Self::NotNested => Some("switch nested virtualisation on at the host of this machine".to_owned()),
            Self::OffInFirmware => Some(
                "switch it on in the firmware's set-up (named VT-x, AMD-V or SVM there), then start again".to_owned(),
            ),
            Self::NoModule { module } => Some(format!(
                "sudo modprobe {module} (where that says `Operation not supported`, it is off in the firmware's set-up)"
            )),
            Self::NoDevice => Some("start the container with `--device /dev/kvm`".to_owned()),
            Self::NoPermission => Some("sudo usermod -aG kvm $USER, then log out and in again".to_owned()),
        }
    }

    /// One sentence for a person: the cause, and the cure where there is one.
    pub fn describe(&self) -> String {
        let cause = self.cause();
        let mut letters = cause.chars();
        let mut sentence: String = letters
            .next()
            .map(|first| first.to_uppercase().collect())
            .unwrap_or_default();
        sentence.push_str(letters.as_str());
        if let Some(cure) = self.cure() {
            sentence.push_str("; to cure it: ");
            sentence.push_str(&cure);
        }
        sentence
    }
}

impl KeptVerdict {
    /// Whether it still holds in the boot `boot_id`. What a person can cure without a new boot is probed again;
    /// that takes no time, as only the two measured verdicts do.
    pub fn holds(&self, boot_id: &str) -> bool {
        self.boot_id == boot_id
            && matches!(self.verdict, Verdict::Fast { .. } | Verdict::Slow { .. })
    }
}

fn milliseconds(nanoseconds: u64) -> String {
    format!(
        "{}.{} ms",
        nanoseconds / 1_000_000,
        nanoseconds / 100_000 % 10
    )
}

/// Why there is no device, from what the kernel says of the processor.
fn without_device(cpuinfo: &[u8], module_loaded: bool) -> Verdict {
    let has = |flag: &[u8]| {
        cpuinfo
            .split(|&byte| byte == b'\n')
            .filter(|line| line.starts_with(b"flags"))
            .any(|line| line.split(|&byte| byte == b' ').any(|word| word == flag))
    };
    let module = match (has(b"vmx"), has(b"svm")) {
        (true, _) => "kvm_intel",
        (_, true) => "kvm_amd",
        _ if has(b"hypervisor") => return Verdict::NotNested,
        _ => return Verdict::OffInFirmware,
    };
    if module_loaded {
        Verdict::NoDevice
    } else {
        Verdict::NoModule {
            module: module.to_owned(),
        }
    }
}

fn measure(role: &[OsString]) -> Verdict {
    match ask(role) {
        Ok(Some(Answer::Took { nanoseconds }))
            if u128::from(nanoseconds) < SLOW_FROM.as_nanos() =>
        {
            Verdict::Fast { nanoseconds }
        }
        Ok(Some(Answer::Took { nanoseconds })) => Verdict::Slow {
            nanoseconds: Some(nanoseconds),
        },
        Ok(Some(Answer::Failed { reason })) => Verdict::Broken { reason },
        Ok(None) => Verdict::Slow { nanoseconds: None },
        Err(error) => Verdict::Broken {
            reason: format!("the probe could not be run: {error}"),
        },
    }
}

/// Runs the child to its end or to the limit; nothing if it wasn't done.
fn ask(role: &[OsString]) -> io::Result<Option<Answer>> {
    let (program, arguments) = role
        .split_first()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no command is given"))?;
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let outcome = answer(&mut child);
    // Done or not: it is not needed any more, and an ended child takes no harm.
    child.kill()?;
    child.wait()?;
    outcome
}

fn answer(child: &mut Child) -> io::Result<Option<Answer>> {
    let ended = ExitWatch::new(child)?;
    let limit = rustix::event::Timespec::try_from(PROBE_LIMIT).map_err(io::Error::other)?;
    let mut polled = [PollFd::new(&ended, PollFlags::IN)];
    // A signal in between ends the wait early, which is taken for slow: it is probed again at the next boot only,
    // so wait on.
    if rustix::io::retry_on_intr(|| poll(&mut polled, Some(&limit)))? == 0 {
        return Ok(None);
    }
    let mut line = Vec::new();
    if let Some(output) = child.stdout.take() {
        output.take(MAX_ANSWER).read_to_end(&mut line)?;
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

#[cfg(test)]
mod tests;
