/// Writes one line to the console, which the host keeps in a small ring and shows when a boot fails. There is
/// nobody to tell when that doesn't work.
pub(crate) fn say(line: impl std::fmt::Display) {
    let text = format!("efimera-guest: {line}\n");
    _ = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
}
