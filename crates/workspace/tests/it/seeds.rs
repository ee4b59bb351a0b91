//! Every seed of the fuzz targets goes through the same code in the ordinary run, and does what its name says.

use fs_err as fs;
use std::path::Path;

#[path = "../../../../fuzz/drivers/change_set.rs"]
mod change_set;
#[path = "../../../../fuzz/drivers/import.rs"]
mod import;
#[path = "../../../../fuzz/drivers/names.rs"]
mod names;

/// Runs all seeds of a target; those whose names start with `yes` must be taken, all others must not.
fn replay(target: &str, yes: &str, taken: impl Fn(&[u8]) -> bool) -> std::io::Result<()> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/seeds")
        .join(target);
    let mut counts = (0, 0);
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let expected = name.starts_with(yes);
        assert_eq!(taken(&fs::read(entry.path())?), expected, "{target}/{name}");
        counts = (
            counts.0 + u32::from(expected),
            counts.1 + u32::from(!expected),
        );
    }
    assert!(
        counts.0 >= 5 && counts.1 >= 5,
        "{target} has its seeds: {counts:?}"
    );
    Ok(())
}

#[test]
fn imports() -> std::io::Result<()> {
    replay("import_replies", "ok-", |bytes| {
        import::drive(bytes).is_some()
    })
}

#[test]
fn change_sets() -> std::io::Result<()> {
    replay("change_set", "ok-", |bytes| {
        change_set::drive(bytes).is_some()
    })
}

#[test]
fn names_of_exports() -> std::io::Result<()> {
    replay("export_names", "alias-", names::drive)
}
