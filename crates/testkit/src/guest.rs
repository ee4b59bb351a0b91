//! The real guest program as an ordinary process: no machine, no kernel of its own, but a root, a process-id
//! namespace and a socket in place of its port.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Builds the root in the namespaces that `unshare` made, then becomes the guest program. All of it lies in one
/// file system in memory, which goes with the last process.
///
/// `$1` is an empty directory, `$2` the program, `$3` a directory to be the workspace's lower layer or nothing,
/// `$4` commands for more, to be executed in the directory that holds `root`, `hidden` and `scratch`.
const PREPARE: &str = r#"
set -eu
mount -t tmpfs -o mode=755,size=512m tmpfs "$1"
cd "$1"
mkdir -p hidden/workspace scratch root
cp "$2" guest
if [ -n "$3" ]; then cp -a "$3/." hidden/workspace/; chown -hR 1000:1000 hidden/workspace; fi
cd root
mkdir -p usr etc/skel proc dev/pts dev/shm run tmp var root
chmod 1777 tmp dev/shm
chmod 700 root
mount --rbind /usr usr
for name in bin sbin lib lib32 lib64; do
    if [ -L "/$name" ]; then cp -P "/$name" "$name"
    elif [ -d "/$name" ]; then mkdir "$name"; mount --rbind "/$name" "$name"; fi
done
mount -t proc proc proc
mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for name in null zero full random urandom tty; do : > "dev/$name"; mount --bind "/dev/$name" "dev/$name"; done
echo 'set -o vi' > etc/skel/.profile
printf '%s\n' 'root:x:0:0:root:/root:/bin/sh' 'daemon:x:1:1::/usr/sbin:/usr/sbin/nologin' > etc/passwd
printf '%s\n' 'root:x:0:' 'daemon:x:1:' 'tty:x:5:' 'audio:x:29:eva' 'users:x:100:eva' > etc/group
printf '%s\n' 'root:*:19000:0:99999:7:::' > etc/shadow
cd ..
eval "$4"
exec ./guest --test-port --root "$1"
"#;

/// A running guest program. It and all of its processes end with this value.
#[derive(Debug)]
pub struct Guest {
    child: Child,
    dir: TempDir,
}

impl Guest {
    /// Starts the guest program at `program`, and gives the host's end of its port.
    ///
    /// `workspace` is copied to be what the host packed, owned by user 1000. `prepare` are commands of `sh` that
    /// change the root before the start: they run beside `root`.
    pub fn start(program: &str, workspace: Option<&Path>, prepare: &str) -> (Self, UnixStream) {
        let dir = tempfile::Builder::new()
            .prefix("efi-guest-")
            .tempdir()
            .unwrap();
        let (host, guest) = UnixStream::pair().unwrap();
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            // With the subordinate ids of this account, so that the guest can become its users.
            command.args(["--user", "--map-root-user", "--map-auto"]);
        }
        command
            .args(["--mount", "--pid", "--uts", "--fork", "--kill-child", "--"])
            .args(["sh", "-c", PREPARE, "sh"])
            .arg(dir.path())
            .arg(program)
            .arg(workspace.unwrap_or(Path::new("")))
            .arg(prepare)
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .stdin(Stdio::from(OwnedFd::from(guest)));
        let child = command.spawn().unwrap();
        (Self { child, dir }, host)
    }

    /// Waits for the guest program to end by itself, which is what a power-off is here. True when it gave no
    /// error.
    pub fn wait(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    /// Bytes that the guest program itself holds in memory now.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.guest_id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .unwrap();
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kib * 1024
    }

    /// Processor time that the guest program itself has used, in clock ticks.
    pub fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.guest_id())).unwrap();
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .collect();
        // utime and stime are the 14th and 15th field; two are before the closing bracket.
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// The guest program's process id on this host: `unshare` is its parent.
    fn guest_id(&self) -> u32 {
        let id = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        children.trim().parse().unwrap()
    }

    /// The directory on this host that the guest's root is mounted on, in another namespace.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // `unshare` takes the namespace's first process with it, and that all others.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
