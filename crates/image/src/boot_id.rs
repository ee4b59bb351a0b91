/// What tells one boot of the host from another; empty where the kernel doesn't say, which then never matches.
pub(crate) fn boot_id() -> String {
    let text = fs_err::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}
