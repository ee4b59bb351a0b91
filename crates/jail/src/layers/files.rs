use crate::{Confinement, Layer, Posture, State};
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, LandlockStatus,
    PathBeneath, PathFd, PathFdError, RestrictionStatus, Ruleset, RulesetAttr as _, RulesetCreated,
    RulesetCreatedAttr as _, RulesetError, Scope,
};
use std::path::{Path, PathBuf};

/// A file that was listed could not be opened, or the kernel refused the rules.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The listed file isn't there or can't be opened.
    #[error("Can't allow `{path}`")]
    Open {
        /// The file.
        path: PathBuf,
        /// What the kernel answered.
        source: PathFdError,
    },
    /// The kernel has Landlock but refused the rules.
    #[error("Can't apply Landlock's rules")]
    Rules(#[from] RulesetError),
}

/// Landlock: the listed files and nothing else, no TCP, no signals and abstract sockets outside.
///
/// Access through `/proc/self/fd` stays possible, because QEMU opens its kernel there; it leads only to what this
/// process has open anyway. The rest of `/proc` (other processes' command lines, say) is closed.
pub(crate) fn restrict(confinement: &Confinement, posture: &mut Posture) -> Result<(), FilesError> {
    // The newest level whose rights this code has been tried with; older kernels leave out what they don't know.
    const NEWEST: ABI = ABI::V6;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    for path in &confinement.executable_files {
        rules = allow(rules, path, AccessFs::ReadFile | AccessFs::Execute)?;
    }
    for path in &confinement.readable_files {
        rules = allow(rules, path, AccessFs::ReadFile.into())?;
    }
    for path in &confinement.devices {
        rules = allow(
            rules,
            path,
            AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev,
        )?;
    }
    rules = allow(
        rules,
        Path::new("/proc/self/fd"),
        AccessFs::ReadFile | AccessFs::ReadDir,
    )?;
    record(&rules.restrict_self()?, posture);
    Ok(())
}

fn allow(
    rules: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, FilesError> {
    let descriptor = PathFd::new(path).map_err(|source| FilesError::Open {
        path: path.to_path_buf(),
        source,
    })?;
    Ok(rules.add_rule(PathBeneath::new(descriptor, access))?)
}

/// What the kernel took, by the level that it has: Landlock's own report doesn't part the rights.
fn record(status: &RestrictionStatus, posture: &mut Posture) {
    let (level, absence) = match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => (effective_abi, String::new()),
        LandlockStatus::NotEnabled => (
            ABI::Unsupported,
            "Landlock is not among the enabled security modules".to_owned(),
        ),
        LandlockStatus::NotImplemented => {
            (ABI::Unsupported, "the kernel has no Landlock".to_owned())
        }
    };
    let wants = [
        (Layer::Files, ABI::V1, "5.13"),
        (Layer::TcpPorts, ABI::V4, "6.7"),
        (Layer::Devices, ABI::V5, "6.10"),
        (Layer::Scopes, ABI::V6, "6.12"),
    ];
    for (layer, least, kernel) in wants {
        let state = if level >= least {
            State::On
        } else if level == ABI::Unsupported {
            State::Missing(absence.clone())
        } else {
            State::Missing(format!(
                "needs Linux {kernel} (Landlock {least}, this kernel has {level})"
            ))
        };
        posture.set(layer, state);
    }
}
