use crate::check::{self, CheckError};
use crate::progress::Progress;
use crate::store::{CHECKED, StoreError};
use base::Digest;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// A guest kernel in the store, with the modules that its initramfs needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    record: KernelRecord,
    directory: PathBuf,
}

/// What a kernel is and where it came from; `kernel.json` beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelRecord {
    /// Version of this record's form: [`KernelRecord::FORM`].
    pub form: u32,
    /// Its name in the store: release and the beginning of its digest.
    pub id: String,
    /// The release as `uname -r` has it; empty where the file doesn't tell.
    pub release: String,
    /// Where it came from, for people: a package and its version, or a file.
    pub origin: String,
    /// Digest of the kernel's file.
    pub vmlinuz: Digest,
    /// Its modules in the order of loading.
    pub modules: Vec<ModuleRecord>,
    /// Modules that would be of use but are neither there nor built in.
    pub absent: Vec<String>,
    /// When it was stored, in seconds since 1970.
    pub created: u64,
}

/// One module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleRecord {
    /// Its file in `modules/`, such as `00-virtio_ring.ko`.
    pub file: String,
    /// Digest of that file.
    pub digest: Digest,
}

/// A kernel can't be used or stored.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// No kernel is called that.
    #[error("There is no kernel `{0}`")]
    Unknown(String),
    /// A file of it can't be read.
    #[error("Can't read the kernel `{id}`")]
    Read {
        /// The kernel.
        id: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file of it is not what was stored.
    #[error(
        "`{file}` of the kernel `{id}` was cut off or altered since it was stored; `efimera setup` fetches it anew"
    )]
    Altered {
        /// The kernel.
        id: String,
        /// The file.
        file: String,
    },
    /// The store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl KernelRecord {
    /// The form that this version writes and reads.
    pub const FORM: u32 = 1;
    pub(crate) const FILE: &str = "kernel.json";
    pub(crate) const VMLINUZ: &str = "vmlinuz";
    pub(crate) const MODULES: &str = "modules";

    /// A digest of kernel and modules together: what a template of a booted machine depends on.
    pub fn digest(&self) -> Digest {
        let mut hasher = base::Hasher::new();
        hasher.update(self.vmlinuz.as_bytes());
        for module in &self.modules {
            hasher.update(module.file.as_bytes());
            hasher.update(&[0]);
            hasher.update(module.digest.as_bytes());
        }
        hasher.finish()
    }
}

impl Kernel {
    pub(crate) fn new(record: KernelRecord, directory: PathBuf) -> Self {
        Self { record, directory }
    }

    /// What it is.
    pub fn record(&self) -> &KernelRecord {
        &self.record
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Opens the kernel's file for reading after making sure that it is what was stored.
    ///
    /// Fails when it can't be read or was altered.
    pub fn open(&self, progress: &mut dyn Progress) -> Result<fs_err::File, KernelError> {
        let id = self.record.id.clone();
        let path = self.directory.join(KernelRecord::VMLINUZ);
        let checked = self.directory.join(CHECKED);
        let opened = check::open(
            &path,
            self.record.vmlinuz,
            &checked,
            "Checking the kernel",
            progress,
        );
        opened.map_err(|error| match error {
            CheckError::Read(source) => KernelError::Read { id, source },
            CheckError::Altered => KernelError::Altered {
                id,
                file: KernelRecord::VMLINUZ.into(),
            },
        })
    }

    /// Names and bytes of the modules in the order of loading, as [`guest_bin::initramfs`] wants them.
    ///
    /// Fails when one can't be read or was altered.
    pub fn modules(&self) -> Result<Vec<(String, Vec<u8>)>, KernelError> {
        let mut modules = Vec::new();
        for module in &self.record.modules {
            let path = self
                .directory
                .join(KernelRecord::MODULES)
                .join(&module.file);
            let bytes = fs_err::read(path).map_err(|source| KernelError::Read {
                id: self.record.id.clone(),
                source,
            })?;
            if Digest::of(&bytes) != module.digest {
                return Err(KernelError::Altered {
                    id: self.record.id.clone(),
                    file: module.file.clone(),
                });
            }
            modules.push((module.file.clone(), bytes));
        }
        Ok(modules)
    }

    /// The initramfs for this kernel: the guest and the modules. It is a few MiB, made in milliseconds.
    ///
    /// Fails when a module can't be read or was altered.
    pub fn initramfs(&self) -> Result<Vec<u8>, KernelError> {
        let modules = self.modules()?;
        Ok(guest_bin::initramfs(
            modules
                .iter()
                .map(|(name, bytes)| (name.as_str(), bytes.as_slice())),
        ))
    }
}
