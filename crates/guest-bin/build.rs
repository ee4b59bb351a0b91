//! Builds the guest program for the library to embed: static, small, and untouched by whatever flags, wrappers
//! and directories the outer build was given.

#![allow(
    clippy::disallowed_methods,
    reason = "a build script is told everything by its environment"
)]
#![allow(clippy::print_stdout, reason = "a build script answers on its output")]

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() -> Result<(), String> {
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("../..");
    let root = root
        .canonicalize()
        .map_err(|error| format!("can't find the workspace: {error}"))?;
    let output = PathBuf::from(variable("OUT_DIR")?).join("guest");
    let target = format!("{}-unknown-linux-gnu", variable("CARGO_CFG_TARGET_ARCH")?);

    for path in [
        "Cargo.toml",
        "Cargo.lock",
        "crates/guest",
        "crates/wire",
        "crates/base",
    ] {
        println!("cargo::rerun-if-changed={}", root.join(path).display());
    }
    println!("cargo::rerun-if-changed=build.rs");

    let mut cargo = Command::new(variable("CARGO")?);
    cargo
        .current_dir(&root)
        .args([
            "build",
            "--quiet",
            "--locked",
            "--package",
            "guest",
            "--bin",
            "efimera-guest",
            "--release",
        ])
        .args(["--target", &target])
        .arg("--target-dir")
        .arg(&output);
    for name in env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
        if is_of_the_outer_build(&name) {
            cargo.env_remove(name);
        }
    }
    // This variable has precedence over every other source of flags. The parts are separated by 0x1f.
    let mut flags = vec!["-Ctarget-feature=+crt-static".to_owned()];
    // No path of the building machine is of any use in the guest.
    flags.push(format!("--remap-path-prefix={}=/efimera", root.display()));
    if let Some(home) = env::var_os("CARGO_HOME") {
        flags.push(format!(
            "--remap-path-prefix={}=/cargo",
            PathBuf::from(home).display()
        ));
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    // The initramfs is unpacked at every boot: small is fast.
    cargo.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s");
    cargo.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
    cargo.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    cargo.env("CARGO_PROFILE_RELEASE_DEBUG", "false");

    let status = cargo
        .status()
        .map_err(|error| format!("can't start cargo: {error}"))?;
    if !status.success() {
        return Err(format!(
            "can't build the guest for {target} ({status}); if its standard library is missing: \
             rustup target add {target}"
        ));
    }
    println!(
        "cargo::rustc-env=EFIMERA_GUEST={}",
        output.join(target).join("release/efimera-guest").display()
    );
    Ok(())
}

/// True for variables that would carry a setting of the outer build over to the guest's.
fn is_of_the_outer_build(name: &str) -> bool {
    const NAMES: [&str; 8] = [
        "RUSTFLAGS",
        "RUSTDOCFLAGS",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "CARGO_TARGET_DIR",
        "CARGO_INCREMENTAL",
        "CLIPPY_ARGS",
        "LLVM_PROFILE_FILE",
    ];
    const PREFIXES: [&str; 6] = [
        "CARGO_BUILD_",
        "CARGO_TARGET_",
        "CARGO_PROFILE_",
        "CARGO_CFG_",
        "CARGO_FEATURE_",
        "CARGO_PKG_",
    ];
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|error| format!("`{name}`: {error}"))
}
