//! What a directory holds, as a list that two sides can be compared by.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// One line for each path: mode, kind, digest or target, and the name, sorted. With `git` the git directory too.
pub(crate) fn list(root: &Path, git: bool) -> Vec<String> {
    let mut lines = Vec::new();
    walk(root, root, git, &mut lines);
    lines.sort();
    lines
}

fn walk(root: &Path, dir: &Path, git: bool, lines: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if !git && path.file_name().is_some_and(|name| name == ".git") {
            continue;
        }
        let metadata = fs::symlink_metadata(&path).unwrap();
        let name = base::escape(path.strip_prefix(root).unwrap().as_os_str().as_bytes());
        let mode = metadata.permissions().mode() & 0o777;
        if metadata.is_symlink() {
            let target = fs::read_link(&path).unwrap();
            lines.push(format!(
                "link {} {name}",
                base::escape(target.as_os_str().as_bytes())
            ));
        } else if metadata.is_dir() {
            lines.push(format!("dir {mode:o} {name}"));
            walk(root, &path, git, lines);
        } else {
            let digest = base::Digest::of(&fs::read(&path).unwrap());
            lines.push(format!("file {mode:o} {} {name}", digest.hex()));
        }
    }
}

/// The same list, made by Python in the machine, so that nothing of efimera's own is in it.
pub(crate) const LIST_SCRIPT: &str = r"
import hashlib, os, stat, sys
lines = []
def name(raw):
    return raw.decode('utf-8', 'backslashreplace')
for dir, dirs, files in os.walk(b'.'):
    if b'.git' in dirs: dirs.remove(b'.git')
    for entry in dirs + files:
        path = os.path.join(dir, entry)
        st = os.lstat(path)
        shown = name(path[2:])
        if entry == b'.git': continue
        if stat.S_ISLNK(st.st_mode): lines.append('link %s %s' % (name(os.readlink(path)), shown))
        elif stat.S_ISDIR(st.st_mode): lines.append('dir %o %s' % (st.st_mode & 0o777, shown))
        else: lines.append('file %o %s %s' % (st.st_mode & 0o777, hashlib.sha256(open(path, 'rb').read()).hexdigest(), shown))
print('\n'.join(sorted(lines)))
";
