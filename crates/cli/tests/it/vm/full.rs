//! A computer whose disk is full: what fits is saved, and what doesn't is told, with an exit code that says so.

use crate::env;
use std::fs;

/// Runs `script` in a repository, in a mount namespace of its own: what it mounts takes no privileges and stays its
/// own. `$EFIMERA` is the program.
fn script(script: &str) -> testkit::Ran {
    let env = env();
    let root = env.repository("shop");
    // The first run makes what later ones share, which is not to be in the small place.
    env.efimera(&root, &["run", "-q", "--", "true"]).ok();
    env.efimera(&root, &["purge", "--yes"]).ok();
    let path = env.work().join("script.sh");
    fs::write(&path, script).unwrap();
    let efimera = env.efimera_command::<&str>(&root, &[]);
    let output = env
        .command("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh"])
        .arg(&path)
        .env("EFIMERA", efimera.get_program())
        .current_dir(&root)
        .output()
        .unwrap();
    env.ran(&output)
}

/// Runs a command with so much room for results, and shows the exit code, the results and what the newest changes.
fn with_room(size: &str, command: &str) -> testkit::Ran {
    script(&format!(
        "mount -t tmpfs -o size={size},mode=0700 tmpfs \"$EFIMERA_HOME/results\" || exit 99\n\
         \"$EFIMERA\" run --name full -- sh -c '{command}'\n\
         echo \"code $?\"\n\
         \"$EFIMERA\" results --json | grep -e '\"state\"'\n\
         \"$EFIMERA\" diff full --name-only\n"
    ))
}

#[test]
fn what_fits_is_saved_and_the_rest_is_told() {
    let ran = with_room(
        "3m",
        "head -c 8000000 /dev/urandom > big; echo small > small; echo a > src/brush.py",
    );
    assert!(ran.stdout.contains("code 125"), "{ran:?}");
    assert!(ran.stdout.contains("\"checkpoint\""), "{ran:?}");
    assert!(ran.stdout.ends_with("small\nsrc/brush.py\n"), "{ran:?}");
    assert!(
        ran.stderr.contains("was not saved in full") && ran.stderr.contains("disk is full"),
        "{ran:?}"
    );
}

#[test]
fn the_commands_own_failure_comes_first() {
    let ran = with_room("3m", "head -c 8000000 /dev/urandom > big; exit 7");
    assert!(ran.stdout.contains("code 7"), "{ran:?}");
    assert!(ran.stderr.contains("was not saved in full"), "{ran:?}");
    assert!(ran.stderr.contains("no change was saved"), "{ran:?}");
}

#[test]
fn a_snapshot_without_room_leaves_the_machine_and_nothing_else() {
    let ran = script(
        "\"$EFIMERA\" run -q -d --keep --name box -- sleep 600 || exit 99
        snapshots=$EFIMERA_HOME/sandboxes/box/snapshots
        mkdir -p \"$snapshots\" && mount -t tmpfs -o size=9m,mode=0700 tmpfs \"$snapshots\" || exit 98
        \"$EFIMERA\" snapshot box; echo \"code $?\"
        ls -A \"$snapshots\"
        \"$EFIMERA\" exec box echo goes on
        umount \"$snapshots\"
        \"$EFIMERA\" snapshot box again
        \"$EFIMERA\" rm --force box",
    );
    assert_eq!(
        ran.stdout, "box\ncode 1\ngoes on\nbox:again\nbox\n",
        "{ran:?}"
    );
    assert!(ran.stderr.contains("No space left"), "{ran:?}");
}
