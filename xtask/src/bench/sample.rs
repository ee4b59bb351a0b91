//! Made-up repositories, the same in every run: text like source code, some C, and a history.

use super::lab::{Lab, make_dir};
use crate::shell;
use anyhow::{Context as _, Result};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// What a repository is made of.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// Files of text.
    files: u32,
    /// Bytes of each.
    bytes: usize,
    /// Commits after the first, each of which edits ten files.
    commits: u32,
}

/// Files in one directory.
const PER_DIRECTORY: u32 = 100;
/// Files of C in each repository.
const C_FILES: u32 = 6;

/// 5,000 files and 100 MB with its history, the size of a repository that people work in.
pub(crate) fn large(lab: &Lab) -> Result<PathBuf> {
    make(
        lab,
        "large",
        Shape {
            files: 5_000,
            bytes: 16_000,
            commits: 50,
        },
    )
}

/// 1,000 small files.
pub(crate) fn few(lab: &Lab) -> Result<PathBuf> {
    make(lab, "few", SMALL_FILES)
}

/// A hundred times as many of the same kind.
pub(crate) fn many(lab: &Lab) -> Result<PathBuf> {
    make(
        lab,
        "many",
        Shape {
            files: 100_000,
            ..SMALL_FILES
        },
    )
}

const SMALL_FILES: Shape = Shape {
    files: 1_000,
    bytes: 400,
    commits: 0,
};

/// The path of the numbered file, below the repository.
pub(crate) fn path_of(number: u32) -> String {
    format!("src/part{:04}/file{number:06}.txt", number / PER_DIRECTORY)
}

/// Makes it, unless an earlier part has.
fn make(lab: &Lab, name: &str, shape: Shape) -> Result<PathBuf> {
    let root = lab.path(name);
    if root.exists() {
        return Ok(root);
    }
    lab.say(&format!("making a repository of {} files", shape.files));
    make_dir(&root)?;
    git(lab, &root, &["init", "--quiet", "--initial-branch", "main"])?;
    // Straight into a pack, as a clone has it.
    let mut import = lab
        .command("git")
        .args(["fast-import", "--quiet"])
        .current_dir(&root)
        .stdin(Stdio::piped())
        .spawn()?;
    let stdin = import.stdin.take().context("git takes no input")?;
    let mut out = BufWriter::new(stdin);
    history(&mut out, shape)?;
    drop(out);
    let status = import.wait()?;
    anyhow::ensure!(status.success(), "git fast-import ended with {status}");
    git(lab, &root, &["reset", "--quiet", "--hard", "main"])?;
    Ok(root)
}

fn git(lab: &Lab, root: &Path, words: &[&str]) -> Result<()> {
    shell::output(lab.command("git").args(words).current_dir(root)).map(drop)
}

/// A stream for git fast-import.
fn history(out: &mut impl Write, shape: Shape) -> Result<()> {
    let mut words = Words::new();
    commit(out, 0)?;
    file(out, ".gitignore", b"*.o\n/c/program\n")?;
    for number in 0..shape.files {
        file(out, &path_of(number), words.text(shape.bytes).as_bytes())?;
    }
    file(out, "c/Makefile", makefile().as_bytes())?;
    for number in 0..C_FILES {
        file(out, &format!("c/unit{number}.c"), unit(number).as_bytes())?;
    }
    for number in 1..=shape.commits {
        commit(out, number)?;
        for edit in 0..10 {
            let path = path_of((number * 97 + edit * 13) % shape.files);
            file(out, &path, words.text(shape.bytes).as_bytes())?;
        }
    }
    writeln!(out, "done")?;
    Ok(())
}

fn commit(out: &mut impl Write, number: u32) -> Result<()> {
    let message = format!("Change {number}\n");
    writeln!(out, "commit refs/heads/main")?;
    let time = 1_700_000_000 + u64::from(number) * 3600;
    writeln!(out, "committer Bench <bench@localhost> {time} +0000")?;
    writeln!(out, "data {}\n{message}", message.len())?;
    Ok(())
}

fn file(out: &mut impl Write, path: &str, bytes: &[u8]) -> Result<()> {
    writeln!(out, "M 100644 inline {path}\ndata {}", bytes.len())?;
    out.write_all(bytes)?;
    writeln!(out)?;
    Ok(())
}

fn makefile() -> String {
    let objects: Vec<String> = (0..C_FILES)
        .map(|number| format!("unit{number}.o"))
        .collect();
    format!(
        "CFLAGS = -O1 -Wall\nOBJECTS = {}\n\nprogram: $(OBJECTS)\n\t$(CC) -o $@ $(OBJECTS)\n\nclean:\n\trm -f program $(OBJECTS)\n",
        objects.join(" ")
    )
}

/// Some functions that a compiler has to think about; the first unit has `main`.
fn unit(number: u32) -> String {
    let mut text = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\n".to_owned();
    for function in 0..10 {
        text.push_str(&format!(
            "int f{number}_{function}(const char *text, int n) {{\n    int sum = {function};\n    \
             for (int i = 0; i < n; i++) {{\n        sum += text[i % strlen(text)] * i;\n        \
             if (sum % {} == 0)\n            sum ^= abs(sum) >> 3;\n    }}\n    return sum;\n}}\n\n",
            function + 3
        ));
    }
    if number == 0 {
        text.push_str(
            "int main(void) {\n    printf(\"%d\\n\", f0_0(\"bench\", 1000));\n    return 0;\n}\n",
        );
    }
    text
}

/// Text that compresses about as well as source code does. A linear congruential generator (Knuth's MMIX), so that
/// every run measures the same bytes.
struct Words(u64);

impl Words {
    fn new() -> Self {
        Self(2026)
    }

    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn text(&mut self, bytes: usize) -> String {
        const SYLLABLES: [&str; 16] = [
            "ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu", "na", "pe", "ri", "so",
            "tu", "ze",
        ];
        let mut text = String::with_capacity(bytes + 40);
        let mut column = 0;
        while text.len() < bytes {
            let bits = self.next();
            for syllable in 0..2 + bits % 3 {
                let [low, ..] = (bits >> (4 * syllable + 4)).to_le_bytes();
                text.push_str(SYLLABLES[usize::from(low % 16)]);
            }
            column += 1;
            text.push(if column % 10 == 0 { '\n' } else { ' ' });
        }
        text.push('\n');
        text
    }
}
