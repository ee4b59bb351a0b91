//! A filter of system calls (seccomp), put on before QEMU is executed.
//!
//! QEMU's own `-sandbox` refuses a short list after its start, and neither sockets nor calls that change a
//! file by its name are on it; Landlock doesn't cover those either (landlock(7): "chmod, chown, setxattr,
//! utime, access…" and pathname sockets). With them an owned QEMU could talk to the session bus or to a
//! container daemon, or take the rights off a user's files. QEMU needs none of them, since all that it works
//! with is an inherited descriptor.
//!
//! A refused call answers `EPERM`, so that QEMU can do without (at its start it tries
//! `io_uring`, and takes epoll then). A call by another architecture's numbers ends the process.

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, c_long, seccomp_data,
    sock_filter, sock_fprog,
};
use std::io;
use std::mem::offset_of;

/// Refuses [`REFUSED`] from here on, and signals to anyone but this process itself.
///
/// Needs no-new-privileges to be set, or a capability.
#[expect(unsafe_code, reason = "neither std nor rustix installs filters")]
pub(crate) fn refuse() -> io::Result<()> {
    let mut program = program(std::process::id());
    let length = u16::try_from(program.len()).expect("the lists are short");
    let program = sock_fprog {
        len: length,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: `program` and the instructions that it points to live until the call returns, `len` is their
    // number, and the kernel copies and checks them.
    let result = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            std::ptr::from_ref(&program),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e; // AUDIT_ARCH_X86_64 (linux/audit.h)
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7; // AUDIT_ARCH_AARCH64

/// Numbers from here on are x32 calls, which come with the same architecture (seccomp(2)).
const X32_BIT: u32 = 0x4000_0000;

/// The filter, for a process that may signal only `own_pid`.
fn program(own_pid: u32) -> Vec<sock_filter> {
    let kill = ret(libc::SECCOMP_RET_KILL_PROCESS);
    let allow = ret(libc::SECCOMP_RET_ALLOW);
    let refuse = ret(libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs());
    let mut program = vec![
        load(offset_of!(seccomp_data, arch)),
        jump_equal(ARCHITECTURE, 1, 0),
        kill,
        load(offset_of!(seccomp_data, nr)),
        jump(BPF_JGE, X32_BIT, 0, 1),
        kill,
    ];
    for &call in REFUSED {
        program.push(jump_equal(number(call), 0, 1));
        program.push(refuse);
    }
    // Calls whose first argument is a process. QEMU wakes its own threads with `tgkill`, and glibc asks for
    // limits with `prlimit64` of process 0, which is the caller. Landlock scopes signals too, from Linux 6.12 on.
    for (call, target) in [
        (libc::SYS_kill, own_pid),
        (libc::SYS_tgkill, own_pid),
        (libc::SYS_prlimit64, 0),
    ] {
        program.push(jump_equal(number(call), 0, 4));
        // The argument's low half (both architectures are little-endian): a process id is an int.
        program.push(load(offset_of!(seccomp_data, args)));
        program.push(jump_equal(target, 1, 0));
        program.push(refuse);
        program.push(allow);
    }
    program.push(allow);
    program
}

/// What a VMM that gets its resources as descriptors never needs.
const REFUSED: &[c_long] = &[
    // Sockets: every one that it needs was made for it. `connect` to a path isn't covered by Landlock.
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    // Other processes of the same user, and their descriptors.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kcmp,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    // Names, owners, modes, times and attributes of files, which Landlock lets through.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    SYS_SETXATTRAT,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    SYS_REMOVEXATTRAT,
    SYS_FILE_SETATTR,
    // What others do in the file system.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_inotify_init,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    // Files without a path that could be checked.
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    // Views of the file system, and other namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    SYS_OPEN_TREE_ATTR,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    // Memory and message queues that the user's other processes share by key or name.
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    // Keys that the user's session holds.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Parts of the kernel that are large, and attacked often.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    // The host as a whole. An ordinary user may none of it; root without capabilities neither.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
];

// Newer than libc's tables. Calls since Linux 5.1 have one number on every architecture.
const SYS_FCHMODAT2: c_long = 452;
const SYS_SETXATTRAT: c_long = 463;
const SYS_REMOVEXATTRAT: c_long = 466;
const SYS_OPEN_TREE_ATTR: c_long = 467;
const SYS_FILE_SETATTR: c_long = 469;

fn number(call: c_long) -> u32 {
    u32::try_from(call).expect("system call numbers are small and positive")
}

fn load(offset: usize) -> sock_filter {
    statement(
        BPF_LD | BPF_W | BPF_ABS,
        u32::try_from(offset).expect("the structure has 64 bytes"),
    )
}

fn ret(action: u32) -> sock_filter {
    statement(BPF_RET | BPF_K, action)
}

/// Skips `equal` instructions if the loaded word is `value`, else `other`.
fn jump_equal(value: u32, equal: u8, other: u8) -> sock_filter {
    jump(BPF_JEQ, value, equal, other)
}

fn jump(test: u32, value: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter {
        jt: yes,
        jf: no,
        ..statement(BPF_JMP | test | BPF_K, value)
    }
}

fn statement(code: u32, value: u32) -> sock_filter {
    sock_filter {
        code: u16::try_from(code).expect("codes have 16 bits"),
        jt: 0,
        jf: 0,
        k: value,
    }
}

#[cfg(test)]
mod tests;
