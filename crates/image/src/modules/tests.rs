use super::*;
use std::process::Command;

/// An ELF file with nothing but a `.modinfo` section: what `Info` looks at.
fn module(records: &[&str]) -> Vec<u8> {
    let info: Vec<u8> = records
        .iter()
        .flat_map(|record| record.bytes().chain([0]))
        .collect();
    let names = b"\0.shstrtab\0.modinfo.other\0.modinfo\0";
    let mut elf = vec![0; 64];
    elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
    let names_at = elf.len();
    elf.extend_from_slice(names);
    let info_at = elf.len();
    elf.extend_from_slice(&info);
    let table = elf.len();
    for (name, start, length) in [
        (0, 0, 0),
        (1, names_at, names.len()),
        (11, 0, 9),
        (26, info_at, info.len()),
    ] {
        let mut header = [0; 64];
        header[..4].copy_from_slice(&u32::to_le_bytes(name));
        header[0x18..0x20].copy_from_slice(&(start as u64).to_le_bytes());
        header[0x20..0x28].copy_from_slice(&(length as u64).to_le_bytes());
        elf.extend_from_slice(&header);
    }
    elf[0x28..0x30].copy_from_slice(&(table as u64).to_le_bytes());
    elf[0x3a] = 64;
    elf[0x3c] = 4;
    elf[0x3e] = 1;
    elf
}

struct Kernel {
    directory: tempfile::TempDir,
}

impl Kernel {
    /// A kernel with the required modules, none of which depends on anything.
    fn new() -> Self {
        let kernel = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        for name in REQUIRED {
            kernel.add(
                &format!("kernel/drivers/{name}.ko"),
                &["depends=", "vermagic=6.1.0-x SMP"],
            );
        }
        kernel
    }

    fn add(&self, path: &str, records: &[&str]) {
        self.write(path, &module(records));
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        let path = self.directory.path().join(path);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(path, bytes).unwrap();
    }

    fn remove(&self, name: &str) {
        fs_err::remove_file(
            self.directory
                .path()
                .join(format!("kernel/drivers/{name}.ko")),
        )
        .unwrap();
    }

    fn select(&self) -> Result<Selection, ModulesError> {
        select(self.directory.path(), &Environment::default())
    }

    fn order(&self) -> String {
        let names: Vec<_> = self
            .select()
            .unwrap()
            .modules
            .into_iter()
            .map(|module| module.name)
            .collect();
        names.join(" ")
    }
}

const PLAIN: &str = "virtio_pci virtio_blk virtio_console virtio_rng erofs overlay ext4";

#[test]
fn required_modules_are_taken_and_absent_optional_ones_are_named() {
    let selection = Kernel::new().select().unwrap();
    assert_eq!(selection.modules[0].release, "6.1.0-x");
    assert_eq!(selection.absent, OPTIONAL);
    assert_eq!(Kernel::new().order(), PLAIN);
}

#[test]
fn dependencies_come_first_and_once() {
    let kernel = Kernel::new();
    kernel.add(
        "kernel/drivers/virtio_pci.ko",
        &["depends=virtio_ring,virtio-dash", "softdep=post: overlay"],
    );
    kernel.add("kernel/drivers/virtio_blk.ko", &["depends=virtio_ring"]);
    kernel.add("kernel/deep/er/virtio_ring.ko", &["depends=virtio_dash"]);
    kernel.add("kernel/virtio-dash.ko", &["license=GPL"]);
    kernel.add("kernel/drivers/erofs.ko", &["depends=libcrc32c"]);
    kernel.add(
        "kernel/lib/libcrc32c.ko",
        &["softdep=pre: crc32c post: ext4", "depends="],
    );
    kernel.add("kernel/crypto/crc32c_generic.ko", &["depends="]);
    assert_eq!(
        kernel.order(),
        "virtio_dash virtio_ring virtio_pci virtio_blk virtio_console virtio_rng crc32c_generic libcrc32c erofs overlay ext4"
    );
}

#[test]
fn built_in_modules_are_skipped() {
    let kernel = Kernel::new();
    kernel.remove("ext4");
    kernel.write(
        "modules.builtin",
        b"kernel/fs/ext4/ext4.ko\nkernel/drivers/virtio/virtio-ring.ko\n",
    );
    kernel.add("kernel/drivers/virtio_pci.ko", &["depends=virtio_ring"]);
    assert_eq!(kernel.order(), PLAIN.trim_end_matches(" ext4"));
}

#[test]
fn a_missing_module_is_named_with_the_one_that_needs_it() {
    let kernel = Kernel::new();
    kernel.remove("erofs");
    assert_eq!(
        kernel.select().unwrap_err().to_string(),
        "The kernel has no module `erofs`"
    );
    kernel.add("kernel/drivers/erofs.ko", &["depends=libcrc32c"]);
    assert_eq!(
        kernel.select().unwrap_err().to_string(),
        "The kernel has no module `libcrc32c`, which `erofs` needs"
    );
}

#[test]
fn an_optional_module_without_its_dependency_is_absent_with_all_that_came_for_it() {
    let kernel = Kernel::new();
    kernel.add("kernel/virtio_net.ko", &["depends=failover,gone"]);
    kernel.add("kernel/failover.ko", &["depends="]);
    kernel.add("kernel/fuse.ko", &["depends=failover"]);
    assert_eq!(kernel.order(), format!("{PLAIN} failover fuse"));
    assert_eq!(
        kernel.select().unwrap().absent,
        ["virtio_net", "virtio_balloon", "squashfs"]
    );
}

#[test]
fn modules_that_depend_on_each_other_end() {
    let kernel = Kernel::new();
    kernel.add("kernel/drivers/erofs.ko", &["depends=overlay"]);
    kernel.add("kernel/drivers/overlay.ko", &["depends=erofs"]);
    assert_eq!(kernel.select().unwrap().modules.len(), REQUIRED.len());
}

#[test]
fn compressed_modules_are_unpacked() {
    let kernel = Kernel::new();
    for (name, program, suffix) in [
        ("erofs", "xz", "xz"),
        ("overlay", "zstd", "zst"),
        ("ext4", "gzip", "gz"),
    ] {
        let path = kernel
            .directory
            .path()
            .join(format!("kernel/drivers/{name}.ko"));
        let packed = Command::new(program)
            .arg("-c")
            .arg(&path)
            .output()
            .expect("the program is there");
        assert!(packed.status.success());
        kernel.remove(name);
        kernel.write(
            &format!("kernel/drivers/{name}.ko.{suffix}"),
            &packed.stdout,
        );
    }
    assert_eq!(kernel.select().unwrap(), Kernel::new().select().unwrap());
}

#[test]
fn damaged_modules_are_named() {
    let kernel = Kernel::new();
    kernel.write("kernel/drivers/erofs.ko", b"not ELF");
    assert!(
        kernel
            .select()
            .unwrap_err()
            .to_string()
            .ends_with("erofs.ko` is not a kernel module")
    );
    kernel.remove("erofs");
    kernel.write("kernel/drivers/erofs.ko.xz", b"not xz");
    assert!(matches!(kernel.select(), Err(ModulesError::Unpack { .. })));
}

#[test]
fn no_cut_or_changed_byte_of_a_module_makes_the_reader_panic() {
    let whole = module(&["depends=a,b", "softdep=pre: c", "vermagic=1 SMP"]);
    let info = Info::parse(&whole).unwrap();
    assert_eq!(
        (info.depends, info.wishes, info.release),
        (vec!["a".into(), "b".into()], vec!["c".into()], "1".into())
    );
    for length in 0..whole.len() {
        let parsed = Info::parse(&whole[..length]);
        assert!(length >= 64 || parsed.is_none(), "half a header");
    }
    for at in 0..whole.len() {
        for byte in [0, 1, 0x7f, 0xff] {
            let mut changed = whole.clone();
            changed[at] = byte;
            // Any answer will do, as long as there is one.
            drop(Info::parse(&changed));
        }
    }
}
