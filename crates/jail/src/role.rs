use crate::layers::files::FilesError;
use crate::layers::{capabilities, descriptors, files, limits, namespaces, system_calls};
use crate::posture::{Layer, Posture, State};
use crate::spawn::{Order, Report};
use rustix::io::{FdFlags, fcntl_getfd};
use std::convert::Infallible;
use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// The confined program was not started. The process that asked for it has been told the same.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// Not started by [`crate::spawn`].
    #[error("This role is started by efimera itself, with a descriptor as its argument")]
    Channel,
    /// The order could not be read.
    #[error("Can't read what to confine")]
    Order(#[source] io::Error),
    /// A layer that every supported kernel has could not be put on.
    #[error("Can't put on the layer `{layer:?}`")]
    Layer {
        /// Which one.
        layer: Layer,
        /// What the kernel answered.
        source: io::Error,
    },
    /// The files could not be restricted.
    #[error("Can't restrict the files")]
    Files(#[from] FilesError),
    /// A layer was demanded that this host lacks.
    #[error("The layer `{layer:?}` is demanded, but missing: {reason}")]
    Required {
        /// Which one.
        layer: Layer,
        /// Why.
        reason: String,
    },
    /// The program could not be executed.
    #[error("Can't execute `{program}`")]
    Execute {
        /// The program.
        program: String,
        /// What the kernel answered.
        source: io::Error,
    },
    /// The posture could not be reported.
    #[error("Can't report which layers are on")]
    Report(#[source] io::Error),
}

/// The role `__vmm`: puts the calling process into the confinement that the starter sends on the descriptor
/// `channel` (its number in decimal), and executes the program. Returns only if that failed.
///
/// To be called first thing in a process with a single thread: a user namespace can't be entered otherwise.
pub fn enter(channel: &OsStr) -> EnterError {
    let mut channel = match open_channel(channel) {
        Ok(channel) => channel,
        Err(error) => return error,
    };
    let Err(error) = confine(&mut channel);
    let report = Report::Failed(with_causes(&error));
    if let Err(unreported) = report.send(&mut channel) {
        return EnterError::Report(unreported);
    }
    error
}

fn confine(channel: &mut UnixStream) -> Result<Infallible, EnterError> {
    let mut bytes = Vec::new();
    channel.read_to_end(&mut bytes).map_err(EnterError::Order)?;
    let order: Order =
        serde_json::from_slice(&bytes).map_err(|error| EnterError::Order(error.into()))?;
    let confinement = &order.confinement;

    let posture = put_on(&order)?;
    if let Some((layer, reason)) = posture
        .missing()
        .find(|(layer, _)| confinement.required.contains(layer))
    {
        return Err(EnterError::Required {
            layer,
            reason: reason.to_owned(),
        });
    }
    Report::Confined(posture)
        .send(channel)
        .map_err(EnterError::Report)?;

    let source = Command::new(&confinement.program)
        .args(&confinement.arguments)
        .env_clear()
        .exec();
    Err(EnterError::Execute {
        program: confinement.program.display().to_string(),
        source,
    })
}

/// The order matters: what needs a path, a capability or a call comes before the layer that takes it away.
fn put_on(order: &Order) -> Result<Posture, EnterError> {
    let Order {
        confinement,
        descriptors,
        parent,
    } = order;
    let failed = |layer| move |source| EnterError::Layer { layer, source };
    let mut posture = Posture::default();

    descriptors::keep_only(descriptors).map_err(failed(Layer::Descriptors))?;
    posture.set(Layer::Descriptors, State::On);
    limits::set(confinement.max_file_size, confinement.max_open_files)
        .map_err(failed(Layer::Limits))?;
    namespaces::enter(&mut posture).map_err(failed(Layer::UserNamespace))?;
    capabilities::drop_all().map_err(failed(Layer::Capabilities))?;
    posture.set(Layer::Capabilities, State::On);
    // Credentials are final here.
    limits::die_with(*parent).map_err(failed(Layer::Limits))?;
    posture.set(Layer::Limits, State::On);
    rustix::thread::set_no_new_privs(true)
        .map_err(io::Error::from)
        .map_err(failed(Layer::NoNewPrivileges))?;
    posture.set(Layer::NoNewPrivileges, State::On);
    files::restrict(confinement, &mut posture)?;
    system_calls::refuse().map_err(failed(Layer::SystemCalls))?;
    posture.set(Layer::SystemCalls, State::On);
    Ok(posture)
}

#[expect(
    unsafe_code,
    reason = "an inherited descriptor is known by its number only"
)]
fn open_channel(number: &OsStr) -> Result<UnixStream, EnterError> {
    let number: RawFd = number
        .to_str()
        .and_then(|text| text.parse().ok())
        .ok_or(EnterError::Channel)?;
    if number < 3 {
        return Err(EnterError::Channel);
    }
    // SAFETY: the number isn't -1, and the borrow ends with the next statement.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_getfd(borrowed).map_err(|_| EnterError::Channel)?;
    // SAFETY: it is open, as was just seen, and our starter made it for us alone: nothing else in this process
    // has taken it over.
    let owned = unsafe { OwnedFd::from_raw_fd(number) };
    let channel = UnixStream::from(owned);
    rustix::io::fcntl_setfd(&channel, FdFlags::CLOEXEC).map_err(|_| EnterError::Channel)?;
    debug_assert_eq!(channel.as_raw_fd(), number);
    Ok(channel)
}

impl Report {
    fn send(&self, channel: &mut UnixStream) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        channel.write_all(&line)
    }
}

/// The error and its causes in one line: the starter prints it as one cause of its own.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
