/// Writes a `newc` cpio archive into memory. Everything belongs to root and is dated 1970.
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

/// What the header of an entry says.
struct Header<'a> {
    name: &'a str,
    mode: u32,
    links: u32,
    size: u32,
    device: (u32, u32),
}

const S_IFCHR: u32 = 0o020_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;

impl Archive {
    pub(crate) fn new() -> Self {
        Self {
            bytes: Vec::new(),
            entries: 0,
        }
    }

    pub(crate) fn directory(&mut self, name: &str) {
        self.header(&Header {
            name,
            mode: S_IFDIR | 0o755,
            links: 2,
            size: 0,
            device: (0, 0),
        });
    }

    pub(crate) fn char_device(&mut self, name: &str, major: u32, minor: u32) {
        self.header(&Header {
            name,
            mode: S_IFCHR | 0o600,
            links: 1,
            size: 0,
            device: (major, minor),
        });
    }

    pub(crate) fn file(&mut self, name: &str, permissions: u32, contents: &[u8]) {
        let size = u32::try_from(contents.len()).expect("modules and guest are a few MiB");
        self.header(&Header {
            name,
            mode: S_IFREG | permissions,
            links: 1,
            size,
            device: (0, 0),
        });
        self.bytes.extend_from_slice(contents);
        self.align();
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.header(&Header {
            name: "TRAILER!!!",
            mode: 0,
            links: 1,
            size: 0,
            device: (0, 0),
        });
        self.bytes
    }

    fn header(&mut self, header: &Header<'_>) {
        self.entries += 1;
        let name_size = u32::try_from(header.name.len() + 1).expect("names are short");
        self.bytes.extend_from_slice(b"070701");
        let fields = [
            self.entries, // inode number; distinct ones keep entries from being taken for hard links
            header.mode,
            0, // user
            0, // group
            header.links,
            0, // time
            header.size,
            0, // device that the file is on
            0,
            header.device.0,
            header.device.1,
            name_size,
            0, // checksum, unused in this variant
        ];
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(header.name.as_bytes());
        self.bytes.push(0);
        self.align();
    }

    /// Headers and contents start at multiples of four bytes.
    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
