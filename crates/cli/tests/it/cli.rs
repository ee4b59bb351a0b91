//! What needs no machine.

use crate::bare;
use std::fs;

#[test]
fn a_missing_set_up_installs_nothing_unasked() {
    let env = bare();
    let root = env.repository("shop");
    let ran = env.efimera(&root, &["run", "--", "true"]);
    assert_eq!(ran.code, 125, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("nothing was installed"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("efimera setup --yes"), "{}", ran.stderr);
    assert!(ran.stdout.is_empty());
}

#[test]
fn doctor_names_each_fault_and_the_next_command() {
    let env = bare();
    let ran = env.efimera(&env.work(), &["doctor", "--json"]);
    assert_eq!(ran.code, 1);
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["ok"], false);
    for finding in report["findings"].as_array().unwrap() {
        let fault = finding["ok"] == false && finding["bearable"] == false;
        assert!(!fault || finding["next"].is_string(), "{finding}");
    }
    let what = |name: &str| {
        report["findings"]
            .as_array()
            .unwrap()
            .iter()
            .find(|f| f["what"] == name)
            .unwrap()
            .clone()
    };
    assert_eq!(what("base image")["next"], "efimera setup");
    assert_eq!(what("kernel")["next"], "efimera setup");
}

#[test]
fn mounts_are_answered() {
    let env = bare();
    let ran = env.efimera(&env.work(), &["run", "-v", "/etc:/etc", "true"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("There are no mounts"), "{}", ran.stderr);
    assert!(ran.stderr.contains("efimera cp"), "{}", ran.stderr);
}

#[test]
fn unknown_words_are_a_usage_error() {
    let env = bare();
    assert_eq!(env.efimera(&env.work(), &["frobnicate"]).code, 2);
    assert_eq!(env.efimera(&env.work(), &["run", "--nosuch"]).code, 2);
    assert_eq!(env.efimera(&env.work(), &["exec", "UPPER", "true"]).code, 2);
    assert_eq!(
        env.efimera(&env.work(), &["run", "--timeout", "soon", "true"])
            .code,
        2
    );
    assert_eq!(
        env.efimera(&env.work(), &["run", "--memory", "plenty", "true"])
            .code,
        2
    );
}

#[test]
fn an_unknown_key_of_the_configuration_is_an_error() {
    let env = bare();
    let dir = env.home().join(".config/efimera");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("config.toml"), "[machine]\nacel = \"kvm\"\n").unwrap();
    let ran = env.efimera(&env.work(), &["ls"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("acel"), "{}", ran.stderr);
}

#[test]
fn nothing_to_list_is_no_error() {
    let env = bare();
    for words in [
        vec!["ls"],
        vec!["ls", "-a", "--json"],
        vec!["results"],
        vec!["results", "-a", "--json"],
        vec!["image", "ls"],
    ] {
        let ran = env.efimera(&env.work(), &words);
        assert_eq!(ran.code, 0, "{words:?}: {}", ran.stderr);
    }
    let ran = env.efimera(&env.work(), &["diff"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("efimera results -a"), "{}", ran.stderr);
}

#[test]
fn names_that_are_not_there_are_said_so() {
    let env = bare();
    for words in [
        ["diff", "no-such"],
        ["apply", "no-such"],
        ["discard", "no-such"],
        ["logs", "no-such"],
        ["stop", "no-such"],
        ["rm", "no-such"],
        ["inspect", "no-such"],
        ["start", "no-such"],
        ["wait", "no-such"],
    ] {
        let ran = env.efimera(&env.work(), &words);
        assert!(ran.code == 1 || ran.code == 125, "{words:?}: {}", ran.code);
        assert!(ran.stderr.contains("no-such"), "{words:?}: {}", ran.stderr);
    }
}

#[test]
fn completions_and_man_pages_name_every_verb() {
    let env = bare();
    let script = env.efimera(&env.work(), &["completion", "bash"]).ok();
    let man = env.work().join("man");
    env.efimera(&env.work(), &["man", man.to_str().unwrap()])
        .ok();
    for verb in [
        "run",
        "shell",
        "exec",
        "wait",
        "cp",
        "ls",
        "inspect",
        "logs",
        "stop",
        "start",
        "rm",
        "purge",
        "diff",
        "apply",
        "discard",
        "results",
        "completion",
        "setup",
        "doctor",
        "version",
        "image",
    ] {
        assert!(
            script.contains(&format!("efimera__subcmd__{verb}"))
                || script.contains(&format!("efimera__{verb}")),
            "{verb} in completions"
        );
        assert!(
            man.join(format!("efimera-{verb}.1")).exists(),
            "{verb} in man pages"
        );
    }
}

#[test]
fn unusual_directories_are_refused() {
    let env = env_with_fake_data();
    let ran = env.efimera(&env.home(), &["run", "--", "true"]);
    assert_eq!(ran.code, 125, "{}", ran.stderr);
    assert!(ran.stderr.contains("--allow-unusual"), "{}", ran.stderr);
}

/// With real data: the refusal comes after the set-up was found to be there.
fn env_with_fake_data() -> testkit::Env {
    crate::env()
}

#[test]
fn what_no_machine_can_have_is_refused_before_anything_starts() {
    let env = crate::env();
    let root = env.repository("shop");
    // Linux takes no single word of more than 128 KiB.
    let long = "a".repeat(100_000);
    for (words, code, says) in [
        (&["run", "--", "echo", &long, &long][..], 2, "longer than"),
        (&["run", "--disk", "1k", "true"], 2, "disk"),
        (&["run", "-m", "1m", "true"], 2, "memory"),
        (&["run", "-m", "4000000g", "true"], 2, "memory"),
        (&["run", "--env-file", "none", "true"], 125, "`none`"),
        (&["run", "--include", "[", "true"], 125, "`[`"),
        (&["run", "--exclude", "a\\", "true"], 125, "`a"),
        (&["run", "--artifact", "[", "true"], 125, "`[`"),
        (&["run", "--only", "none", "true"], 2, "`none`"),
    ] {
        let ran = env.efimera(&root, words);
        assert_eq!(ran.code, code, "{}", ran.stderr);
        assert!(ran.stderr.contains(says), "{}", ran.stderr);
        assert!(!ran.stderr.contains("mulat"), "{}", ran.stderr);
    }
    let made = std::fs::read_dir(env.data().join("sandboxes"));
    assert_eq!(made.map_or(0, Iterator::count), 0, "nothing was made");
}
