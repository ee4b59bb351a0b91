//! Starting a process without a copy of this one: as `vfork(2)` does it, and `posix_spawn(3)` of the C library. The
//! child has this process's memory until it executes its program, and this process stands still meanwhile.
//!
//! A fork copies the page tables, and every page that either side touches afterwards. An emulated machine from a
//! template has to translate all that code before its first command can run.

use rustix::io::Errno;
use rustix::process::Pid;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a process is to execute.
#[derive(Debug)]
pub(crate) struct Image<'a> {
    pub(crate) program: &'a CStr,
    pub(crate) argv: &'a [CString],
    /// `NAME=value`.
    pub(crate) environment: &'a [CString],
    /// Its first three descriptors, none of which is one of our own first three.
    pub(crate) descriptors: [&'a OwnedFd; 3],
}

/// The child's stack, in bytes: a few frames of ours and of system calls' wrappers.
const STACK_LENGTH: usize = 64 * 1024;

/// The stack, aligned as one has to be. Used by one child at a time, and kept, since to get memory costs more than to
/// have it.
static STACK: Mutex<Vec<u128>> = Mutex::new(Vec::new());

/// All that the child looks at, and where it leaves a word.
struct Task<'a> {
    program: *const c_char,
    argv: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    descriptors: [RawFd; 3],
    prepare: &'a mut dyn FnMut() -> Result<(), Errno>,
    /// Why nothing was executed.
    failed: Option<Errno>,
}

/// Starts a process: it has the three descriptors, does what `prepare` does, and executes the program. An error of
/// any of these is this function's.
///
/// `prepare` runs in the child with this process's memory, so it must not panic; what it changes stays changed.
/// Only for a process of one thread: others would go on meanwhile.
#[expect(unsafe_code, reason = "clone with shared memory is in no safe library")]
pub(crate) fn start(
    image: &Image<'_>,
    prepare: &mut dyn FnMut() -> Result<(), Errno>,
) -> Result<Pid, Errno> {
    let mut task = Task {
        program: image.program.as_ptr(),
        argv: pointers(image.argv),
        environment: pointers(image.environment),
        descriptors: image.descriptors.map(AsRawFd::as_raw_fd),
        prepare,
        failed: None,
    };
    let mut stack = stack();
    let top = stack.as_mut_ptr_range().end;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: `top` is the end of a stack that nobody else uses while it is locked, aligned to 16 bytes. This process has
    // one thread, which the kernel stops until the child has executed or ended: the child has stack and task to
    // itself for as long as it looks at them, and both outlive that. The child never returns from `child`.
    let pid = unsafe {
        libc::clone(
            child,
            top.cast::<c_void>(),
            flags,
            (&raw mut task).cast::<c_void>(),
        )
    };
    if pid < 0 {
        return Err(crate::process::last_error());
    }
    match (task.failed, Pid::from_raw(pid)) {
        // Its end is reaped as any orphan's is.
        (Some(errno), _) => Err(errno),
        (None, Some(pid)) => Ok(pid),
        (None, None) => Err(Errno::SRCH),
    }
}

/// Sets the stack's memory aside before anybody waits for it.
pub(crate) fn make_ready() {
    drop(stack());
}

fn stack() -> MutexGuard<'static, Vec<u128>> {
    let mut stack = STACK.lock().unwrap_or_else(PoisonError::into_inner);
    stack.resize(STACK_LENGTH / size_of::<u128>(), 0);
    stack
}

/// The strings as `execve(2)` takes them.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    let ends = std::iter::once(std::ptr::null());
    strings
        .iter()
        .map(|text| text.as_ptr())
        .chain(ends)
        .collect()
}

/// What the child does.
#[expect(unsafe_code, reason = "see `start`")]
extern "C" fn child(task: *mut c_void) -> c_int {
    // SAFETY: `start` passes its own task, and stands still.
    let task = unsafe { &mut *task.cast::<Task<'_>>() };
    let errno = match become_it(task) {
        Ok(never) => match never {},
        Err(errno) => errno,
    };
    task.failed = Some(errno);
    // SAFETY: it ends this process and runs nothing of the memory's owner.
    unsafe { libc::_exit(127) }
}

#[expect(unsafe_code, reason = "see `start`")]
fn become_it(task: &mut Task<'_>) -> Result<std::convert::Infallible, Errno> {
    for (target, source) in (0..).zip(task.descriptors) {
        // SAFETY: it takes numbers. Descriptors of the child are its own: CLONE_FILES is not asked for.
        if unsafe { libc::dup2(source, target) } < 0 {
            return Err(crate::process::last_error());
        }
    }
    (task.prepare)()?;
    // SAFETY: all three are NUL-terminated, by `CString` and `pointers`, and live in `start`.
    unsafe { libc::execve(task.program, task.argv.as_ptr(), task.environment.as_ptr()) };
    Err(crate::process::last_error())
}

#[cfg(test)]
mod tests;
