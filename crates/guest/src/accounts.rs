//! The image's `/etc/passwd` and `/etc/group`, read and changed as text: an image may have no program for it.

use crate::fault::{Context as _, Fault};
use fs_err::os::unix::fs::OpenOptionsExt as _;
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use wire::message::User;

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
const SUDO_RULE: &str = "/etc/sudoers.d/efimera";
/// What a new home starts with.
const SKELETON: &str = "/etc/skel";
/// A home that is nobody's yet, and the numbers that most users have.
const READY_HOME: &str = "/home/.efimera";
pub(crate) const READY_OWNER: (u32, u32) = (1000, 1000);
/// How deep a skeleton is looked into.
const MAX_DEPTH: usize = 16;

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
    let doing = || format!("Writing `{path}`");
    match open_in_place(path) {
        Ok((file, stat)) => write_over(&file, &stat, &new).context(doing),
        Err(_) => fs_err::write(path, new).context(doing),
    }
}

fn make_home(user: &User) -> Result<(), Fault> {
    let home = Path::new(OsStr::from_bytes(&user.home));
    let owner = (user.uid, user.gid);
    if rustix::fs::stat(home).is_ok() {
        discard_ready_home();
        crate::place::make_way(home, &mut |_| Ok(()))?;
    } else if take_ready_home(home)? {
        return if owner == READY_OWNER {
            Ok(())
        } else {
            own_tree(home, owner, 0)
        };
    } else {
        discard_ready_home();
        crate::place::make_way(home, &mut |_| Ok(()))?;
        copy_tree(Path::new(SKELETON), home, owner, 0)?;
    }
    if home == Path::new("/") {
        return Ok(());
    }
    own(home, owner)
}

/// Puts the home that was made ready where the user's is to be, unless something is there, if only a link.
fn take_ready_home(home: &Path) -> Result<bool, Fault> {
    let Some(parent) = home.parent() else {
        return Ok(false);
    };
    crate::place::make_way(parent, &mut |_| Ok(()))?;
    let taken = rustix::fs::renameat_with(CWD, READY_HOME, CWD, home, RenameFlags::NOREPLACE);
    Ok(taken.is_ok())
}

fn discard_ready_home() {
    if is_there(READY_HOME) {
        fs_err::remove_dir_all(READY_HOME).ok();
    }
}

/// Gives a directory and what is in it to the user.
fn own_tree(path: &Path, owner: (u32, u32), depth: usize) -> Result<(), Fault> {
    own(path, owner)?;
    let Ok(entries) = fs_err::read_dir(path) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && depth < MAX_DEPTH {
            own_tree(&entry.path(), owner, depth + 1)?;
        } else {
            own(&entry.path(), owner)?;
        }
    }
    Ok(())
}

/// Copies the files that a new home starts with. Depth and kinds are limited: it is a handful of dot files.
fn copy_tree(from: &Path, to: &Path, owner: (u32, u32), depth: usize) -> Result<(), Fault> {
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
        if kind.is_dir() && depth < MAX_DEPTH {
            crate::boot::make_dir(&target, 0o755)?;
            copy_tree(&source, &target, owner, depth + 1)?;
        } else if kind.is_file() {
            fs_err::copy(&source, &target).context(doing)?;
        } else if kind.is_symlink() {
            let link = fs_err::read_link(&source).context(doing)?;
            rustix::fs::symlink(&link, &target).context(doing)?;
        } else {
            continue;
        }
        own(&target, owner)?;
    }
    Ok(())
}

/// Where sudo is, the user needs no password for it. By number: a name could hold characters that sudo's
/// grammar knows.
fn allow_sudo(user: &User) -> Result<(), Fault> {
    if !is_there(SUDO_RULE) {
        if !has_sudo() {
            return Ok(());
        }
        read_sudo_rules()?;
    }
    let rule = format!("#{} ALL=(ALL:ALL) NOPASSWD: ALL\n", user.uid);
    replace(SUDO_RULE, rule.as_bytes(), 0o440)
}

fn has_sudo() -> bool {
    ["/usr/bin/sudo", "/bin/sudo", "/usr/local/bin/sudo"]
        .iter()
        .any(|path| is_there(path))
}

/// Has sudo look into its directory of rules.
fn read_sudo_rules() -> Result<(), Fault> {
    crate::boot::make_dir("/etc/sudoers.d", 0o750)?;
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
pub(crate) fn own(path: &Path, owner: (u32, u32)) -> Result<(), Fault> {
    rustix::fs::chownat(
        CWD,
        path,
        Some(Uid::from_raw(owner.0)),
        Some(Gid::from_raw(owner.1)),
        AtFlags::SYMLINK_NOFOLLOW,
    )
    .context(|| format!("Giving `{}` to the user", path.display()))
}

/// Writes a file of root's anew: in place where it is a plain file, and otherwise by rename, so that a link is replaced
/// and not followed. Nothing else runs yet that could see half of it.
pub(crate) fn replace(path: &str, bytes: &[u8], mode: u32) -> Result<(), Fault> {
    let doing = || format!("Writing `{path}`");
    if let Ok((file, stat)) = open_in_place(path) {
        write_over(&file, &stat, bytes).context(doing)?;
        if stat.st_mode & 0o7777 != mode {
            rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).context(doing)?;
        }
        return Ok(());
    }
    if let Some(parent) = Path::new(path).parent() {
        crate::boot::make_dir(parent, 0o755)?;
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

/// Writes a file anew that was opened for it. Cutting a file costs an emulated machine milliseconds, for code of the
/// kernel that it runs once, so only one that is too long is cut.
fn write_over(file: &OwnedFd, stat: &rustix::fs::Stat, bytes: &[u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes.len() {
        done += rustix::io::pwrite(file, &bytes[done..], done as u64)?;
    }
    if u64::try_from(stat.st_size).is_ok_and(|old| old > bytes.len() as u64) {
        rustix::fs::ftruncate(file, bytes.len() as u64)?;
    }
    Ok(())
}

/// Opens a plain file that has one name.
fn open_in_place(path: &str) -> Result<(OwnedFd, rustix::fs::Stat), Errno> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile
        || stat.st_nlink != 1
    {
        return Err(Errno::MLINK);
    }
    Ok((file, stat))
}

/// Makes ready what a machine's set-up will write, all of it without a word about anybody: files are there, and in the
/// overlay's upper layer, so that their bytes alone are missing. In a template that is done once for all machines that
/// start from it, and the kernel's code for it need not be translated in each of them. What can't be made ready now is
/// made when its turn comes.
pub(crate) fn make_ready() {
    for (path, mode) in [
        ("/etc/hosts", 0o644),
        ("/etc/hostname", 0o644),
        ("/etc/machine-id", 0o444),
        (PASSWD, 0o644),
        (GROUP, 0o644),
    ] {
        ready(path, true, mode);
    }
    // Where they aren't, none are made.
    ready("/etc/shadow", false, 0);
    ready("/etc/timezone", false, 0);
    if has_sudo() && read_sudo_rules().is_ok() {
        ready(SUDO_RULE, true, 0o440);
    }
    if !is_there(READY_HOME) {
        // An unfinished one would be taken for a whole one.
        let made = crate::boot::make_dir("/home", 0o755)
            .and_then(|()| crate::boot::make_dir(READY_HOME, 0o755))
            .and_then(|()| copy_tree(Path::new(SKELETON), Path::new(READY_HOME), READY_OWNER, 0))
            .and_then(|()| own(Path::new(READY_HOME), READY_OWNER));
        if made.is_err() {
            fs_err::remove_dir_all(READY_HOME).ok();
        }
    }
}

/// Opening a file for writing copies it up. A link stays one.
fn ready(path: &str, make: bool, mode: u32) {
    let mut flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    if make {
        flags |= OFlags::CREATE;
    }
    drop(rustix::fs::open(path, flags, Mode::from_raw_mode(mode)));
}

pub(crate) fn read_or_empty(path: &str) -> Result<Vec<u8>, Fault> {
    let doing = || format!("Reading `{path}`");
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(Vec::new()),
        opened => opened.context(doing)?,
    };
    // Nothing but reads: to ask for the size and the place first costs an emulated machine milliseconds.
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match rustix::io::read(&file, &mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Fault::new(doing(), errno)),
        }
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
