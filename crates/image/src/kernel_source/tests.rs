use super::*;

#[test]
fn only_parts_of_a_kernel_are_followed() {
    let depends = "linux-image-6.8.0-31-generic (= 6.8), linux-modules-6.8.0-31-generic | other, kmod (>= 23~), linux-base";
    assert_eq!(
        kernel_dependencies(depends),
        [
            "linux-image-6.8.0-31-generic",
            "linux-modules-6.8.0-31-generic"
        ]
    );
    assert!(kernel_dependencies("").is_empty());
}

#[test]
fn progress_lines_are_read() {
    assert_eq!(
        percent(b"dlstatus:2:89.9955:Retrieving file 2 of 2"),
        Some(89)
    );
    assert_eq!(percent(b"dlstatus:9:100.0000:x"), Some(100));
    assert_eq!(percent(b"dlstatus:9:1000:x"), None);
    assert_eq!(percent(b"Get:2 http://x dlstatus:1:2"), None);
    assert_eq!(percent(b"dlstatus:\xff"), None);
}

/// The beginning of a bzImage of that release.
fn bz_image(version: &str) -> Vec<u8> {
    let mut kernel = vec![0; 0x400];
    kernel[0x202..0x206].copy_from_slice(b"HdrS");
    kernel[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
    kernel[0x300..][..version.len()].copy_from_slice(version.as_bytes());
    kernel
}

#[test]
fn a_kernel_tells_its_release() {
    assert_eq!(
        release(&bz_image("6.1.0-57-cloud-amd64 (builder@x) #1 SMP")),
        Some("6.1.0-57-cloud-amd64".into())
    );
    assert_eq!(release(b"\x7fELF\x02\x01..."), Some(String::new()));
    assert_eq!(release(b"MZ"), None);
    assert_eq!(release(&bz_image("x")[..0x208]), None);
}

#[test]
fn a_release_becomes_a_safe_name() {
    assert_eq!(safe_name("6.1.0-57-cloud-amd64"), "6.1.0-57-cloud-amd64");
    assert_eq!(safe_name("../6/1"), "_6_1");
}

struct Bench {
    directory: tempfile::TempDir,
    store: Store,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("data")).unwrap();
        Self { directory, store }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.directory.path().join(name);
        fs_err::write(&path, bytes).unwrap();
        path
    }

    /// Nothing half done lies in the store.
    fn leftovers(&self) -> usize {
        fs_err::read_dir(self.store.kernels_directory())
            .unwrap()
            .count()
    }
}

#[test]
fn a_kernel_without_modules_is_stored_and_checked_when_opened() {
    let bench = Bench::new();
    let vmlinuz = bench.write("vmlinuz", &bz_image("6.1-own x"));
    let kernel = install_files(&bench.store, &vmlinuz, None, &Environment::default()).unwrap();
    assert!(kernel.record().id.starts_with("6.1-own-"));
    let found = bench.store.kernel(&kernel.record().id).unwrap();
    assert_eq!(found, kernel);
    let mut bytes = Vec::new();
    found
        .open(&mut crate::progress::Silent)
        .unwrap()
        .read_to_end(&mut bytes)
        .unwrap();
    assert_eq!(bytes, bz_image("6.1-own x"));
    fs_err::write(kernel.directory().join("vmlinuz"), b"other").unwrap();
    let error = found.open(&mut crate::progress::Silent).unwrap_err();
    assert!(
        error.to_string().contains("was cut off or altered"),
        "{error}"
    );
    bench.store.remove_kernel(&kernel).unwrap();
    assert_eq!(bench.leftovers(), 0);
}

#[test]
fn what_is_no_kernel_is_refused_and_leaves_nothing() {
    let bench = Bench::new();
    let path = bench.write("text", b"hello");
    let error = install_files(&bench.store, &path, None, &Environment::default()).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("(neither a bzImage nor an ELF file)"),
        "{error}"
    );
    let vmlinuz = bench.write("vmlinuz", &bz_image("6.1 x"));
    let empty = bench.directory.path().join("empty");
    fs_err::create_dir(&empty).unwrap();
    let error = install_files(
        &bench.store,
        &vmlinuz,
        Some(&empty),
        &Environment::default(),
    )
    .unwrap_err();
    assert_eq!(error.to_string(), "The kernel has no module `virtio_pci`");
    assert_eq!(bench.leftovers(), 0);
}

#[test]
fn a_package_gives_its_kernel_and_modules_and_nothing_else() {
    let mut builder = tar::Builder::new(Vec::new());
    let mut add = |name: &str, contents: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(contents.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append(&header, contents).unwrap();
    };
    add("./boot/vmlinuz-6.1", b"kernel");
    add("./boot/config-6.1", b"config");
    add("./usr/lib/modules/6.1/kernel/fs/erofs.ko", b"module");
    add("./lib/modules/../../../../escaped/x", b"evil");
    add("/lib/modules/6.1/absolute", b"evil");
    add("./usr/share/doc/x", b"doc");
    let stream = builder.into_inner().unwrap();
    let target = tempfile::tempdir().unwrap();
    let found = unpack(stream.as_slice(), target.path()).unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!(
        fs_err::read(target.path().join("boot/vmlinuz-6.1")).unwrap(),
        b"kernel"
    );
    assert_eq!(
        fs_err::read(target.path().join("lib/modules/6.1/kernel/fs/erofs.ko")).unwrap(),
        b"module"
    );
    assert_eq!(fs_err::read_dir(target.path()).unwrap().count(), 2);
    assert_eq!(
        fs_err::read_dir(target.path().join("boot"))
            .unwrap()
            .count(),
        1
    );
}
