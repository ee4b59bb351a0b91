//! The child: one virtual processor in 64-bit mode with paging, privilege level 0, as a kernel runs.

use super::Answer;
use kvm_bindings::{kvm_regs, kvm_segment, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd};
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::io;
use std::time::Instant;

/// Measures KVM in this process. What it returns is to be printed on standard output, for [`super::probe`] to read.
///
/// May hang where KVM is a poor one: the caller of the process kills it.
#[must_use = "the parent reads it from standard output"]
pub fn kvm_child() -> String {
    let answer = match run() {
        Ok(nanoseconds) => Answer::Took { nanoseconds },
        Err(error) => Answer::Failed {
            reason: error.to_string(),
        },
    };
    serde_json::to_string(&answer).expect("an enum of text and numbers is JSON")
}

/// Guest memory, all of it mapped at the same virtual addresses by one 2 MiB page.
const MEMORY: usize = 0x1_0000;
const PAGE_MAP: usize = 0x1000;
const PAGE_POINTERS: usize = 0x2000;
const PAGE_DIRECTORY: usize = 0x3000;
const CODE: usize = 0x4000;

/// Half a million rounds of nine instructions: 2 ms on hardware, long enough to be measured and to tell an
/// interpreter (a microsecond for each instruction, seen on a paravirtual host) from it at once.
const PROGRAM: &[u8] = &[
    0xb9, 0x20, 0xa1, 0x07, 0x00, // mov ecx, 500000
    0x48, 0xc7, 0xc3, 0x00, 0x80, 0x00, 0x00, // mov rbx, 0x8000
    // round:
    0x48, 0x01, 0x0b, // add [rbx], rcx
    0x48, 0x8b, 0x43, 0x08, // mov rax, [rbx+8]
    0x48, 0x31, 0xc8, // xor rax, rcx
    0x48, 0x89, 0x43, 0x08, // mov [rbx+8], rax
    0xf7, 0xc1, 0xff, 0x0f, 0x00, 0x00, // test ecx, 0xfff
    0x75, 0x06, // jnz over
    0x0f, 0x20, 0xd8, // mov rax, cr3
    0x0f, 0x22, 0xd8, // mov cr3, rax: what a kernel does at each switch of processes
    // over:
    0xff, 0xc9, // dec ecx
    0x75, 0xe0, // jnz round
    0xf4, // hlt
];

/// How long the program took, in nanoseconds.
fn run() -> io::Result<u64> {
    let kvm = Kvm::new()?;
    let machine = kvm.create_vm()?;
    let memory = memory()?;
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: MEMORY as u64,
        userspace_addr: memory as u64,
    };
    #[expect(unsafe_code, reason = "the kernel is told where the guest's memory is")]
    // SAFETY: the region lies in a mapping of exactly MEMORY bytes that is never unmapped: this process ends
    // after the measurement.
    unsafe { machine.set_user_memory_region(region) }?;
    let mut processor = machine.create_vcpu(0)?;
    set_up(&processor)?;

    let start = Instant::now();
    match processor.run()? {
        VcpuExit::Hlt => {}
        other => {
            return Err(io::Error::other(format!(
                "the processor stopped with {other:?}"
            )));
        }
    }
    let took = start.elapsed();
    // A processor that did nothing would be the fastest.
    if processor.get_regs()?.rcx != 0 {
        return Err(io::Error::other("the processor did not count to the end"));
    }
    Ok(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX))
}

/// Page tables and program.
#[expect(unsafe_code, reason = "the guest's memory is a raw mapping")]
fn memory() -> io::Result<*mut c_void> {
    const PRESENT_AND_WRITABLE: usize = 0b11;
    const LARGE: usize = 1 << 7;
    // SAFETY: no address is asked for, so no mapping of this process is replaced.
    let mapping = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            MEMORY,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }?;
    // SAFETY: the mapping has MEMORY bytes, is readable and writable and zeroed by the kernel, bytes have no
    // alignment, and no other reference to it exists; this one ends with the function, before the guest runs.
    let bytes = unsafe { std::slice::from_raw_parts_mut(mapping.cast::<u8>(), MEMORY) };
    for (at, entry) in [
        (PAGE_MAP, PAGE_POINTERS | PRESENT_AND_WRITABLE),
        (PAGE_POINTERS, PAGE_DIRECTORY | PRESENT_AND_WRITABLE),
        (PAGE_DIRECTORY, LARGE | PRESENT_AND_WRITABLE),
    ] {
        bytes[at..at + 8].copy_from_slice(&entry.to_le_bytes());
    }
    bytes[CODE..CODE + PROGRAM.len()].copy_from_slice(PROGRAM);
    Ok(mapping)
}

/// 64-bit mode (Intel's Software Developer's Manual, volume 3, 11.8.5; control register bits in 2.5).
fn set_up(processor: &VcpuFd) -> io::Result<()> {
    const CR0_PROTECTED_PAGED: u64 = 1 << 31 | 1;
    const CR4_PHYSICAL_ADDRESS_EXTENSION: u64 = 1 << 5;
    const EFER_LONG_ENABLED_ACTIVE: u64 = 1 << 8 | 1 << 10;
    let code = kvm_segment {
        limit: u32::MAX,
        selector: 0x08,
        type_: 0b1011, // code: execute, read, accessed
        present: 1,
        s: 1,
        l: 1,
        g: 1,
        ..kvm_segment::default()
    };
    let data = kvm_segment {
        selector: 0x10,
        type_: 0b0011,
        l: 0,
        db: 1,
        ..code
    };
    let mut special = processor.get_sregs()?;
    (special.cs, special.ds, special.es, special.ss) = (code, data, data, data);
    (special.fs, special.gs) = (data, data);
    special.cr0 = CR0_PROTECTED_PAGED;
    special.cr3 = PAGE_MAP as u64;
    special.cr4 = CR4_PHYSICAL_ADDRESS_EXTENSION;
    special.efer = EFER_LONG_ENABLED_ACTIVE;
    processor.set_sregs(&special)?;
    // Bit 1 of the flags is always set; interrupts are off.
    processor.set_regs(&kvm_regs {
        rip: CODE as u64,
        rflags: 0b10,
        ..kvm_regs::default()
    })?;
    Ok(())
}
