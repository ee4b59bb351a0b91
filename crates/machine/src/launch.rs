use crate::accel::Accel;
use crate::command_line::{Numbers, RamFile, command_line};
use crate::exit::ExitWatch;
use crate::ram::is_sealed;
use crate::spec::{Begin, MAX_DISKS, Ram, Spec};
use jail::{Confinement, Posture, SpawnError};
use rustix::pipe::{PipeFlags, pipe_with};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ExitStatus, Stdio};

/// A machine that was started. None of its streams blocks; each reads as ended once QEMU has.
#[derive(Debug)]
pub struct Machine {
    /// QEMU.
    pub process: Process,
    /// Which layers of the jail are on.
    pub posture: Posture,
    /// QEMU's monitor, for [`crate::Qmp`].
    pub qmp: UnixStream,
    /// The guest's serial console. It has to be read, or the guest's kernel waits for it.
    pub console: UnixStream,
    /// The host's end of the port [`crate::CONTROL_PORT`].
    pub control: UnixStream,
    /// QEMU's own complaints.
    pub stderr: OwnedFd,
}

/// The QEMU process. Dropping it ends and reaps it, so no path of the code leaves one behind.
#[derive(Debug)]
pub struct Process {
    child: Child,
    exit: ExitWatch,
    ended: Option<ExitStatus>,
}

/// The machine was not started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The specification has more disks than fit.
    #[error("A machine can have {MAX_DISKS} disks, not {0}")]
    Disks(usize),
    /// The memory's file has another size than the memory.
    #[error("The memory's file has {found} bytes, and the machine has {wanted}")]
    RamSize {
        /// What the file has.
        found: u64,
        /// What it should have.
        wanted: u64,
    },
    /// The memory's file is to be kept from changes, and isn't.
    #[error("The memory's file can be written: it isn't sealed")]
    Unsealed,
    /// The host is out of something.
    #[error("Can't make the machine's streams")]
    Streams(#[from] io::Error),
    /// QEMU could not be confined or executed.
    #[error("Can't start QEMU")]
    Start(#[from] SpawnError),
}

/// QEMU itself opens about 30, each disk takes three.
const MAX_OPEN_FILES: u64 = 256;

/// Starts the machine. `role` is the command that calls [`jail::enter`] with the argument added to it.
///
/// Has to be called from a thread that lives as long as the machine shall (see [`jail::spawn`]). The descriptors in
/// `spec` are closed here when it returns.
pub fn launch(spec: &Spec, role: &[OsString]) -> Result<Machine, LaunchError> {
    if spec.disks.len() > MAX_DISKS {
        return Err(LaunchError::Disks(spec.disks.len()));
    }
    let (qmp, qmp_theirs) = UnixStream::pair()?;
    let (console, console_theirs) = UnixStream::pair()?;
    let (control, control_theirs) = UnixStream::pair()?;
    let (stderr, stderr_theirs) = pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from)?;
    for stream in [&qmp, &console, &control] {
        stream.set_nonblocking(true)?;
    }
    rustix::io::ioctl_fionbio(&stderr, true).map_err(io::Error::from)?;

    let mut descriptors: Vec<BorrowedFd<'_>> = vec![
        qmp_theirs.as_fd(),
        console_theirs.as_fd(),
        control_theirs.as_fd(),
    ];
    descriptors.extend(spec.disks.iter().map(|disk| disk.file.as_fd()));
    let mut numbers = Numbers {
        disks: spec
            .disks
            .iter()
            .map(|disk| disk.file.as_raw_fd())
            .collect(),
        qmp: qmp_theirs.as_raw_fd(),
        console: console_theirs.as_raw_fd(),
        control: control_theirs.as_raw_fd(),
        ..Numbers::default()
    };
    if let Begin::Boot {
        kernel, initramfs, ..
    } = &spec.begin
    {
        descriptors.extend([kernel.as_fd(), initramfs.as_fd()]);
        numbers.kernel = kernel.as_raw_fd();
        numbers.initramfs = initramfs.as_raw_fd();
    }
    if let Some(cable) = &spec.network {
        descriptors.push(cable.as_fd());
        numbers.network = cable.as_raw_fd();
    }
    if let Some((file, shared)) = ram_file(spec)? {
        descriptors.push(file.as_fd());
        numbers.ram = Some(RamFile {
            number: file.as_raw_fd(),
            shared,
        });
    }
    let confinement = Confinement {
        program: spec.qemu.path.clone(),
        arguments: command_line(spec, &spec.shape()?, &numbers),
        executable_files: spec.qemu.files.executable.clone(),
        readable_files: spec.qemu.files.readable.clone(),
        devices: match spec.accel {
            Accel::Kvm => vec!["/dev/kvm".into()],
            Accel::Tcg => Vec::new(),
        },
        max_file_size: spec.max_file_size,
        max_open_files: MAX_OPEN_FILES,
        required: spec.required_layers.clone(),
    };
    let confined = jail::spawn(role, confinement, &descriptors, Stdio::from(stderr_theirs))?;
    let process = Process::new(confined.child)?;
    Ok(Machine {
        process,
        posture: confined.posture,
        qmp,
        console,
        control,
        stderr,
    })
}

/// The file that is the memory, if one is, and whether the guest's writes go there.
fn ram_file(spec: &Spec) -> Result<Option<(&OwnedFd, bool)>, LaunchError> {
    let (file, shared) = match &spec.ram {
        Ram::Own => return Ok(None),
        Ram::Shared(file) => (file, true),
        Ram::Private(file) => (file, false),
    };
    // QEMU would make a file longer that is too short, and leave the rest of a longer one unused.
    let found = rustix::fs::fstat(file).map_err(io::Error::from)?.st_size;
    let wanted = Spec::ram_size(spec.memory).bytes();
    if u64::try_from(found) != Ok(wanted) {
        return Err(LaunchError::RamSize {
            found: found.unsigned_abs(),
            wanted,
        });
    }
    if !shared && !is_sealed(file)? {
        return Err(LaunchError::Unsealed);
    }
    Ok(Some((file, shared)))
}

impl Process {
    fn new(mut child: Child) -> io::Result<Self> {
        match ExitWatch::new(&child) {
            Ok(exit) => Ok(Self {
                child,
                exit,
                ended: None,
            }),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    /// Ends it at once (SIGKILL) and waits for that, which takes as long as the kernel needs to free its memory.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.ended {
            return Ok(status);
        }
        self.child.kill()?;
        let status = self.child.wait()?;
        self.ended = Some(status);
        Ok(status)
    }
}

impl AsFd for Process {
    /// A descriptor that polls as readable once it has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.exit.as_fd()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing to be done about a failure, and none is possible for a child that was not waited for.
        drop(self.kill());
    }
}
