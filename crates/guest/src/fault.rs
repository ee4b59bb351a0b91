use rustix::io::Errno;
use wire::message::Failure;

/// Something that could not be done, in the form in which it travels to the host: a sentence that names the
/// path, and the system's error number where the sentence doesn't say all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}{}", errno.map(|errno| format!(": {errno}")).unwrap_or_default())]
pub(crate) struct Fault {
    pub(crate) what: String,
    pub(crate) errno: Option<Errno>,
}

impl Fault {
    pub(crate) fn new(what: impl Into<String>, errno: Errno) -> Self {
        Self {
            what: what.into(),
            errno: Some(errno),
        }
    }

    /// One whose sentence says all.
    pub(crate) fn plain(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            errno: None,
        }
    }

    pub(crate) fn to_failure(&self) -> Failure {
        let mut what = self.what.clone().into_bytes();
        // Names can be long; a message has to fit into one frame.
        what.truncate(8 * 1024);
        Failure {
            what,
            errno: self.errno.map_or(0, Errno::raw_os_error),
        }
    }
}

/// Says what was being done when a call failed.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Fault>;
}

impl<T> Context<T> for Result<T, Errno> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Fault> {
        self.map_err(|errno| Fault::new(what(), errno))
    }
}

impl<T> Context<T> for Result<T, std::io::Error> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Fault> {
        self.map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Fault::new(what(), errno)
        })
    }
}
