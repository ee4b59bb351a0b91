use rustix::io::{FdFlags, fcntl_setfd};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};

/// Lets exactly `kept` and the standard three survive the next execute. Every other descriptor, also one that
/// an ancestor forgot, is closed by it.
#[expect(unsafe_code, reason = "neither std nor rustix has close_range")]
pub(crate) fn keep_only(kept: &[RawFd]) -> io::Result<()> {
    let first_after_standard: libc::c_uint = 3;
    // By number rather than glibc's function, which needs glibc 2.34.
    // SAFETY: the call takes three integers and no pointer. With CLOSE_RANGE_CLOEXEC it closes nothing now, so
    // no descriptor that some value in this process owns goes away under it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first_after_standard,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    for &number in kept {
        if number < 3 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("descriptor {number} is reserved"),
            ));
        }
        // SAFETY: the number isn't -1, and the borrow ends with the next statement. A number that is not open
        // is answered by EBADF.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        fcntl_setfd(descriptor, FdFlags::empty())?;
    }
    Ok(())
}
