use crate::{Layer, Posture, State};
use rustix::process::{getgid, getuid};
use rustix::thread::UnshareFlags;
use std::io;

/// A user namespace in which this user is itself and nobody else exists, and a network namespace without any
/// interface, not even loopback.
pub(crate) fn enter(posture: &mut Posture) -> io::Result<()> {
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    match unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) {
        Ok(()) => {
            // Without this, the kernel refuses an unprivileged gid_map (user_namespaces(7)).
            fs_err::write("/proc/self/setgroups", "deny")?;
            fs_err::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
            fs_err::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
            posture.set(Layer::UserNamespace, State::On);
            posture.set(Layer::NetworkNamespace, State::On);
        }
        Err(refusal) => {
            posture.set(
                Layer::UserNamespace,
                State::Missing(format!("the kernel refused: {refusal}")),
            );
            // Root of the host doesn't need the one for the other.
            let alone = unshare(UnshareFlags::NEWNET);
            let state = match alone {
                Ok(()) => State::On,
                Err(error) => State::Missing(format!("the kernel refused: {error}")),
            };
            posture.set(Layer::NetworkNamespace, state);
        }
    }
    Ok(())
}

#[expect(unsafe_code, reason = "unshare is unsafe in rustix")]
fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: the danger is CLONE_FILES, by which other threads would lose sight of descriptors. It isn't asked for.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}
