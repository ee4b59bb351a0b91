use super::{Place, plan, relative};
use crate::git::config::ConfigWriter;
use base::RelPath;

fn rel(path: &str) -> RelPath {
    if path.is_empty() {
        RelPath::root()
    } else {
        RelPath::new(path).unwrap()
    }
}

#[test]
fn places_of_git_directories() {
    let shape = |dir: &str, outer, name: Option<&str>| Place {
        dir: rel(dir),
        outer,
        name: name.map(|name| name.as_bytes().to_vec()),
    };
    let plans = plan(&[
        shape("", None, None),
        shape("lib", Some(0), Some("lib")),
        shape("lib/deep", Some(1), Some("vendor/deep")),
        shape("loose", Some(0), None),
        shape("evil", Some(0), Some("../../../etc")),
        shape("clash", Some(0), Some("lib")),
        shape("inside", Some(0), Some("lib/modules/vendor")),
    ]);
    let places: Vec<String> = plans.iter().map(|plan| plan.git_dir.to_string()).collect();
    assert_eq!(
        places,
        [
            ".git",
            ".git/modules/lib",
            ".git/modules/lib/modules/vendor/deep",
            "loose/.git",
            "evil/.git",
            "clash/.git",
            "inside/.git",
        ]
    );
    assert_eq!(
        plans[2].link(),
        b"gitdir: ../../.git/modules/lib/modules/vendor/deep\n"
    );
    assert_eq!(relative(&plans[1].git_dir, &plans[1].dir), b"../../../lib");
}

#[test]
fn values_survive_git() {
    let bench = crate::pack_tests::Bench::new();
    let value = b"a \"quoted\" \\ back, # hash; semi\tand\nline ";
    let mut config = ConfigWriter::default();
    config.section("sub", Some(b"na\"me\\ x"));
    config.set("key", value);
    bench.write("config", config.finish());
    let text = bench.git("", &["config", "--file", "config", "--null", "--list"]);
    assert_eq!(
        text.as_bytes(),
        [b"sub.na\"me\\ x.key\n".as_slice(), value, b"\0"].concat()
    );
}
