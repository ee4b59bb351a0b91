//! The image's `/etc/passwd` and `/etc/group`, read and changed as text: an image may have no program for it.

use crate::fault::{Context as _, Fault};
use fs_err::os::unix::fs::OpenOptionsExt as _;
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use wire::message::User;

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";

/// Who a process runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    /// Empty for a uid without an entry.
    pub(crate) name: Vec<u8>,
    pub(crate) home: Vec<u8>,
    pub(crate) shell: Vec<u8>,
}

/// One line of `/etc/passwd`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    name: Vec<u8>,
    uid: u32,
    gid: u32,
    home: Vec<u8>,
    shell: Vec<u8>,
}

/// The text of both files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Accounts {
    passwd: Vec<u8>,
    group: Vec<u8>,
}

impl Accounts {
    /// Reads both files; one that isn't there is empty.
    pub(crate) fn load() -> Result<Self, Fault> {
        Ok(Self {
            passwd: read_or_empty(PASSWD)?,
            group: read_or_empty(GROUP)?,
        })
    }

    /// Looks up `name`, `uid`, `name:group` or `uid:gid` as docker's `--user` does: a number need not have an
    /// entry, a name must; with a group named, there are no others.
    pub(crate) fn look_up(&self, wanted: &[u8]) -> Result<Identity, Fault> {
        let mut parts = wanted.splitn(2, |byte| *byte == b':');
        let user = parts.next().unwrap_or_default();
        let group = parts.next();
        let entry = self
            .entries()
            .find(|entry| entry.name == user)
            .or_else(|| number(user).and_then(|uid| self.entries().find(|entry| entry.uid == uid)));
        let mut identity = match (entry, number(user)) {
            (Some(entry), _) => Identity {
                groups: self.groups_of(&entry.name),
                uid: entry.uid,
                gid: entry.gid,
                name: entry.name,
                home: entry.home,
                shell: entry.shell,
            },
            (None, Some(uid)) => Identity {
                uid,
                gid: 0,
                groups: Vec::new(),
                name: Vec::new(),
                home: b"/".to_vec(),
                shell: Vec::new(),
            },
            (None, None) => {
                let shown = base::escape_line(user, 80);
                return Err(Fault::plain(format!(
                    "There is no user `{shown}` in the image"
                )));
            }
        };
        if let Some(group) = group {
            let gid = self
                .groups()
                .find(|(name, ..)| *name == group)
                .map(|(_, gid, _)| gid)
                .or_else(|| number(group));
            let Some(gid) = gid else {
                let shown = base::escape_line(group, 80);
                return Err(Fault::plain(format!(
                    "There is no group `{shown}` in the image"
                )));
            };
            identity.gid = gid;
            identity.groups.clear();
        }
        if identity.home.is_empty() {
            identity.home = b"/".to_vec();
        }
        if identity.shell.is_empty() {
            identity.shell = b"/bin/sh".to_vec();
        }
        Ok(identity)
    }

    /// Adds `user`, whatever the image has. A name that it has already gets the new numbers and home; a uid that
    /// it has under another name stays, behind ours, so that the number is shown by our name.
    fn add(&mut self, user: &User, shell: &str) {
        let mut line = user.name.clone();
        line.extend_from_slice(format!(":x:{}:{}::", user.uid, user.gid).as_bytes());
        line.extend_from_slice(&user.home);
        line.extend_from_slice(format!(":{shell}\n").as_bytes());
        let mut passwd = Vec::new();
        let mut line = Some(line);
        for old in lines(&self.passwd) {
            let fields: Vec<_> = old.split(|byte| *byte == b':').collect();
            let same_name = fields.first() == Some(&user.name.as_slice());
            let same_uid = fields.get(2).and_then(|field| number(field)) == Some(user.uid);
            if (same_name || same_uid)
                && let Some(line) = line.take()
            {
                passwd.extend_from_slice(&line);
            }
            if !same_name {
                passwd.extend_from_slice(old);
                passwd.push(b'\n');
            }
        }
        passwd.extend_from_slice(&line.unwrap_or_default());
        self.passwd = passwd;

        if self.groups().all(|(_, gid, _)| gid != user.gid) {
            let taken = self.groups().any(|(name, ..)| name == user.name);
            let name = if taken {
                format!("group{}", user.gid).into_bytes()
            } else {
                user.name.clone()
            };
            if !self.group.is_empty() && !self.group.ends_with(b"\n") {
                self.group.push(b'\n');
            }
            self.group.extend_from_slice(&name);
            self.group
                .extend_from_slice(format!(":x:{}:\n", user.gid).as_bytes());
        }
    }

    fn entries(&self) -> impl Iterator<Item = Entry> {
        lines(&self.passwd).filter_map(|line| {
            let fields: Vec<_> = line.split(|byte| *byte == b':').collect();
            Some(Entry {
                name: fields.first()?.to_vec(),
                uid: number(fields.get(2)?)?,
                gid: number(fields.get(3)?)?,
                home: fields.get(5).unwrap_or(&b"".as_slice()).to_vec(),
                shell: fields.get(6).unwrap_or(&b"".as_slice()).to_vec(),
            })
        })
    }

    /// Name, number and members of each group.
    fn groups(&self) -> impl Iterator<Item = (&[u8], u32, &[u8])> {
        lines(&self.group).filter_map(|line| {
            let fields: Vec<_> = line.split(|byte| *byte == b':').collect();
            let members = fields.get(3).copied().unwrap_or_default();
            Some((*fields.first()?, number(fields.get(2)?)?, members))
        })
    }

    fn groups_of(&self, name: &[u8]) -> Vec<u32> {
        self.groups()
            .filter(|(_, _, members)| {
                members
                    .split(|byte| *byte == b',')
                    .any(|member| member == name)
            })
            .map(|(_, gid, _)| gid)
            .collect()
    }
}

/// Makes `user` known to the image: entries, home directory, and the right to become root without a password.
pub(crate) fn create(user: &User) -> Result<(), Fault> {
    if user.name.is_empty() || [&user.name, &user.home].iter().any(|text| unfit(text)) {
        let shown = base::escape_line(&user.name, 80);
        return Err(Fault::new(
            format!("`{shown}` can't be a user's name, or its home can't be a path"),
            Errno::INVAL,
        ));
    }
    let shell = ["/bin/bash", "/usr/bin/bash"]
        .into_iter()
        .find(|path| is_there(path))
        .unwrap_or("/bin/sh");
    let mut accounts = Accounts::load()?;
    accounts.add(user, shell);
    crate::boot::make_dir("/etc", 0o755)?;
    replace(PASSWD, &accounts.passwd, 0o644)?;
    replace(GROUP, &accounts.group, 0o644)?;
    add_shadow("/etc/shadow", user, b":*:19000:0:99999:7:::\n")?;
    make_home(user)?;
    allow_sudo(user)
}

/// A password database has an entry for every user, or programs that ask it (sudo, su) refuse. `*` is no
/// password's hash: there is none to log in with.
fn add_shadow(path: &str, user: &User, rest: &[u8]) -> Result<(), Fault> {
    if !is_there(path) {
        return Ok(());
    }
    let old = read_or_empty(path)?;
    let mut new: Vec<u8> = Vec::new();
    for line in lines(&old) {
        if line.split(|byte| *byte == b':').next() != Some(&user.name) {
            new.extend_from_slice(line);
            new.push(b'\n');
        }
    }
    new.extend_from_slice(&user.name);
    new.extend_from_slice(rest);
    // Written in place: its owner and group differ between distributions.
    fs_err::write(path, new).context(|| format!("Writing `{path}`"))
}

fn make_home(user: &User) -> Result<(), Fault> {
    let home = Path::new(OsStr::from_bytes(&user.home));
    let fresh = rustix::fs::stat(home).is_err();
    crate::place::make_way(home, &mut |_| Ok(()))?;
    if fresh {
        copy_tree(Path::new("/etc/skel"), home, user, 0)?;
    }
    if home != Path::new("/") {
        own(home, user)?;
    }
    Ok(())
}

/// Copies the files that a new home starts with. Depth and kinds are limited: it is a handful of dot files.
fn copy_tree(from: &Path, to: &Path, user: &User, depth: usize) -> Result<(), Fault> {
    let Ok(entries) = fs_err::read_dir(from) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        let target: PathBuf = to.join(entry.file_name());
        let source = entry.path();
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        let doing = || format!("Copying `{}` to the user's home", source.display());
        if kind.is_dir() && depth < 16 {
            crate::boot::make_dir(&target, 0o755)?;
            copy_tree(&source, &target, user, depth + 1)?;
        } else if kind.is_file() {
            fs_err::copy(&source, &target).context(doing)?;
        } else if kind.is_symlink() {
            let link = fs_err::read_link(&source).context(doing)?;
            rustix::fs::symlink(&link, &target).context(doing)?;
        } else {
            continue;
        }
        own(&target, user)?;
    }
    Ok(())
}

/// Where sudo is, the user needs no password for it. By number: a name could hold characters that sudo's
/// grammar knows.
fn allow_sudo(user: &User) -> Result<(), Fault> {
    let sudo = ["/usr/bin/sudo", "/bin/sudo", "/usr/local/bin/sudo"];
    if !sudo.iter().any(|path| is_there(path)) {
        return Ok(());
    }
    crate::boot::make_dir("/etc/sudoers.d", 0o750)?;
    let rule = format!("#{} ALL=(ALL:ALL) NOPASSWD: ALL\n", user.uid);
    replace("/etc/sudoers.d/efimera", rule.as_bytes(), 0o440)?;
    let main = read_or_empty("/etc/sudoers")?;
    if !lines(&main).any(|line| {
        line.strip_prefix(b"@includedir")
            .or_else(|| line.strip_prefix(b"#includedir"))
            .is_some_and(|rest| rest.trim_ascii() == b"/etc/sudoers.d")
    }) {
        let mut main = main;
        if !main.is_empty() && !main.ends_with(b"\n") {
            main.push(b'\n');
        }
        main.extend_from_slice(b"@includedir /etc/sudoers.d\n");
        replace("/etc/sudoers", &main, 0o440)?;
    }
    Ok(())
}

/// Gives a path to the user, the link itself where it is one.
pub(crate) fn own(path: &Path, user: &User) -> Result<(), Fault> {
    rustix::fs::chownat(
        CWD,
        path,
        Some(Uid::from_raw(user.uid)),
        Some(Gid::from_raw(user.gid)),
        AtFlags::SYMLINK_NOFOLLOW,
    )
    .context(|| format!("Giving `{}` to the user", path.display()))
}

/// Writes a file of root's anew: in place where it is a plain file, and otherwise by rename, so that a link is replaced
/// and not followed. Nothing else runs yet that could see half of it.
pub(crate) fn replace(path: &str, bytes: &[u8], mode: u32) -> Result<(), Fault> {
    let doing = || format!("Writing `{path}`");
    if let Ok(mut file) = open_in_place(path) {
        file.write_all(bytes).context(doing)?;
        return rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).context(doing);
    }
    let next = format!("{path}.efimera-new");
    _ = rustix::fs::unlink(&next);
    let mut file = fs_err::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&next)
        .context(doing)?;
    file.write_all(bytes).context(doing)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).context(doing)?;
    rustix::fs::rename(&next, path).context(doing)
}

/// Opens a plain file that has one name, and empties it.
fn open_in_place(path: &str) -> Result<std::fs::File, Errno> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile
        || stat.st_nlink != 1
    {
        return Err(Errno::MLINK);
    }
    rustix::fs::ftruncate(&file, 0)?;
    Ok(file.into())
}

/// Has the overlay copy the files up that a machine's set-up will write: in a template that is done once for all
/// machines that start from it.
pub(crate) fn copy_up() {
    for path in [
        "/etc/hosts",
        "/etc/hostname",
        "/etc/machine-id",
        "/etc/timezone",
        "/etc/shadow",
        PASSWD,
        GROUP,
    ] {
        // One that isn't there, or is a link, is made when its turn comes.
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        drop(rustix::fs::open(path, flags, Mode::empty()));
    }
}

pub(crate) fn read_or_empty(path: &str) -> Result<Vec<u8>, Fault> {
    match fs_err::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other.context(|| format!("Reading `{path}`")),
    }
}

pub(crate) fn is_there(path: &str) -> bool {
    rustix::fs::stat(path).is_ok()
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
}

fn number(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Holds a character that would break a line of `/etc/passwd`.
fn unfit(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b':' | b'\n' | 0))
}

#[cfg(test)]
mod tests;
