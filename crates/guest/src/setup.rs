//! Tells the machine who it is. Before this it has no identity and no random state of its own.

use crate::accounts::{self, is_there, read_or_empty, replace};
use crate::balloon;
use crate::fault::{Context as _, Fault};
use crate::network::{self, Canary};
use crate::place::{Layers, Place, make_way};
use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use wire::message::{Setup, User, Wake};

/// What a machine knows after its set-up.
#[derive(Debug)]
pub(crate) struct Identified {
    pub(crate) user: User,
    pub(crate) workspace: PathBuf,
    pub(crate) layers: Layers,
}

/// Does all that [`Setup`] asks for. A test's host keeps its name, clock and random pool.
pub(crate) fn set_up(place: &Place, setup: Setup) -> Result<Identified, Fault> {
    let workspace = PathBuf::from(OsStr::from_bytes(&setup.workspace));
    let plain = workspace
        .components()
        .skip(1)
        .all(|component| matches!(component, std::path::Component::Normal(_)));
    if !workspace.is_absolute() || workspace.parent().is_none() || !plain {
        return Err(Fault::new(
            format!("`{}` can't be a workspace's path", workspace.display()),
            Errno::INVAL,
        ));
    }
    let mut canary = None;
    if place.is_real() {
        canary = released(setup.network)?;
        stir(&setup.seed)?;
        set_clock(setup.clock_ns)?;
        rustix::system::sethostname(&setup.hostname)
            .context(|| "Setting the host's name".to_owned())?;
    }
    name_host(&setup.hostname)?;
    write_machine_id(place)?;
    set_timezone(&setup.timezone)?;
    accounts::create(&setup.user)?;

    let home = Path::new(OsStr::from_bytes(&setup.user.home)).to_path_buf();
    make_way(&workspace, &mut |made| {
        // What lies in the user's home is the user's, the rest of the way is root's.
        if made.starts_with(&home) && home != Path::new("/") {
            accounts::own(made, (setup.user.uid, setup.user.gid))
        } else {
            Ok(())
        }
    })?;
    let owner = (Uid::from_raw(setup.user.uid), Gid::from_raw(setup.user.gid));
    let layers = place.mount_workspace(&workspace, owner)?;
    canary.map_or(Ok(()), Canary::wait)?;
    Ok(Identified {
        user: setup.user,
        workspace,
        layers,
    })
}

/// Makes sure that there is a card where one is said to be, and nowhere else, and lets a canary into it.
fn released(network: bool) -> Result<Option<Canary>, Fault> {
    match (network, network::has_card()) {
        (false, false) => Ok(None),
        (true, true) => Canary::release().map(Some),
        (true, false) => Err(Fault::plain("The machine's network card was not found")),
        (false, true) => Err(Fault::plain(
            "The machine has a network card, and is to have none",
        )),
    }
}

/// Time has passed since the machine was saved, and it may be another one now. A test's host keeps its clock, name and
/// random pool.
pub(crate) fn wake(place: &Place, wake: &Wake) -> Result<(), Fault> {
    if place.is_real() {
        stir(&wake.seed)?;
        set_clock(wake.clock_ns)?;
        balloon::give_back(wake.give_back);
    }
    let Some(name) = &wake.hostname else {
        return Ok(());
    };
    if place.is_real() {
        rustix::system::sethostname(name).context(|| "Setting the host's name".to_owned())?;
    }
    name_host(name)?;
    forget_machine_id(place)?;
    write_machine_id(place)
}

/// Gives the kernel the host's random bytes, and has it make new keys from them at once.
#[expect(unsafe_code, reason = "rustix has no wrappers for the pool's ioctls")]
fn stir(seed: &[u8]) -> Result<(), Fault> {
    use rustix::ioctl::{NoArg, Opcode, Setter, ioctl, opcode};

    const CHUNK: usize = 64;
    /// `struct rand_pool_info` of `linux/random.h`, with room for one chunk.
    #[repr(C)]
    struct PoolInfo {
        entropy_bits: i32,
        bytes: i32,
        buffer: [u8; CHUNK],
    }
    /// `_IOW('R', 0x03, int[2])`
    const RNDADDENTROPY: Opcode = opcode::write::<[i32; 2]>(b'R', 3);
    /// `_IO('R', 0x07)`
    const RNDRESEEDCRNG: Opcode = opcode::none(b'R', 7);

    let doing = || "Seeding the random pool".to_owned();
    let pool = rustix::fs::open(
        "/dev/urandom",
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .context(doing)?;
    for chunk in seed.chunks(CHUNK) {
        let mut info = PoolInfo {
            entropy_bits: 0,
            bytes: 0,
            buffer: [0; CHUNK],
        };
        info.buffer[..chunk.len()].copy_from_slice(chunk);
        info.bytes = i32::try_from(chunk.len()).unwrap_or_default();
        info.entropy_bits = info.bytes * 8;
        // SAFETY: RNDADDENTROPY takes a `rand_pool_info`, whose layout PoolInfo has.
        let add = unsafe { Setter::<RNDADDENTROPY, PoolInfo>::new(info) };
        // SAFETY: it reads `bytes` bytes of the buffer, which holds CHUNK, and writes nothing.
        unsafe { ioctl(&pool, add) }.context(doing)?;
    }
    // SAFETY: RNDRESEEDCRNG takes no argument.
    let reseed = unsafe { NoArg::<RNDRESEEDCRNG>::new() };
    // SAFETY: it touches no memory of ours.
    unsafe { ioctl(&pool, reseed) }.context(doing)
}

/// Sets the kernel's clock, to nanoseconds since 1970.
pub(crate) fn set_clock(nanoseconds: u64) -> Result<(), Fault> {
    let time = Timespec {
        tv_sec: i64::try_from(nanoseconds / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(nanoseconds % 1_000_000_000).unwrap_or(0),
    };
    rustix::time::clock_settime(ClockId::Realtime, time).context(|| "Setting the clock".to_owned())
}

/// `/etc/hostname` and `/etc/hosts`: sudo and many programs look their own host up.
fn name_host(name: &[u8]) -> Result<(), Fault> {
    replace("/etc/hostname", &[name, b"\n"].concat(), 0o644)?;
    let mut hosts: Vec<u8> = Vec::new();
    for line in read_or_empty("/etc/hosts")?.split(|byte| *byte == b'\n') {
        if !line.starts_with(b"127.0.1.1") && !line.is_empty() {
            hosts.extend_from_slice(line);
            hosts.push(b'\n');
        }
    }
    if hosts.is_empty() {
        hosts.extend_from_slice(
            b"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
        );
    }
    hosts.extend_from_slice(&[b"127.0.1.1\t", name, b"\n"].concat());
    replace("/etc/hosts", &hosts, 0o644)
}

/// Where a machine's id is on its scratch disk.
pub(crate) const KEPT_ID: &str = "machine-id";

/// A clone is another machine than the one that it is of.
fn forget_machine_id(place: &Place) -> Result<(), Fault> {
    match rustix::fs::unlinkat(place.scratch(), KEPT_ID, rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(Fault::new("Removing the machine's old id", errno)),
    }
}

/// A fresh machine id; a kept machine that starts again has its old one on the scratch disk.
fn write_machine_id(place: &Place) -> Result<(), Fault> {
    let doing = || "Writing `/etc/machine-id`".to_owned();
    let kept = rustix::fs::openat(
        place.scratch(),
        KEPT_ID,
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CREATE | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::from_raw_mode(0o600),
    )
    .context(doing)?;
    let mut line = [0; 33];
    let length = rustix::io::read(&kept, &mut line).context(doing)?;
    if length != line.len() {
        let mut bytes = [0; 16];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .context(doing)?;
        // A version 4 UUID, as machine-id(5) has it.
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        let number = u128::from_be_bytes(bytes);
        line.copy_from_slice(format!("{number:032x}\n").as_bytes());
        rustix::io::pwrite(&kept, &line, 0).context(doing)?;
    }
    replace("/etc/machine-id", &line, 0o444)
}

/// Links `/etc/localtime` to the zone, where the image knows it; otherwise the machine stays on UTC.
fn set_timezone(zone: &[u8]) -> Result<(), Fault> {
    let zone = if zone.is_empty() { b"Etc/UTC" } else { zone };
    let Ok(zone) = base::RelPath::new(zone) else {
        return Err(Fault::new(
            "The time zone's name is not a path",
            Errno::INVAL,
        ));
    };
    let file = Path::new("/usr/share/zoneinfo").join(zone.as_path());
    if !is_there(&file.to_string_lossy()) {
        return Ok(());
    }
    if fs_err::read_link("/etc/localtime").is_ok_and(|link| link == file) {
        return Ok(());
    }
    let doing = || "Setting the time zone".to_owned();
    _ = rustix::fs::unlink("/etc/localtime");
    rustix::fs::symlink(&file, "/etc/localtime").context(doing)?;
    replace("/etc/timezone", &[zone.as_bytes(), b"\n"].concat(), 0o644)
}
