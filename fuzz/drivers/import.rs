//! Drives an import by bytes, as a guest would by frames: `0`, a length (u16, little endian) and an encoded reply;
//! `1`, a length and nothing, for so many bytes of a file; anything else closes the stream.

use base::{Digest, RelPath, Size};
use std::collections::BTreeMap;
use std::io;
use wire::message::{Reply, Request, decode};
use workspace::{
    Artifacts, BlobSink, ChangeSet, Entry, Import, Kind, KnownState, Limits, NoRules,
    check_exported,
};

const TOTAL: u64 = 100_000;

#[derive(Default)]
struct Sink {
    kept: BTreeMap<Digest, u64>,
    open: Option<u64>,
}

impl BlobSink for &mut Sink {
    fn begin(&mut self) -> io::Result<()> {
        self.open = Some(0);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let open = self.open.as_mut().expect("a content was begun");
        *open += bytes.len() as u64;
        Ok(())
    }

    fn finish(&mut self, digest: &Digest) -> io::Result<()> {
        let size = self.open.take().expect("a content was begun");
        self.kept.insert(*digest, size);
        Ok(())
    }

    fn discard(&mut self) {
        self.open = None;
    }

    fn holds(&self, digest: &Digest, size: u64) -> bool {
        self.kept.get(digest) == Some(&size)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn baseline() -> Vec<Entry> {
    let entry = |path: &str, kind, content: &[u8]| Entry {
        path: RelPath::new(path).expect("a path"),
        kind,
        mode: if kind == Kind::Symlink { 0o777 } else { 0o755 },
        size: content.len() as u64,
        mtime: (0, 0),
        digest: (kind != Kind::Dir).then(|| Digest::of(content)),
        offset: 0,
        target: if kind == Kind::Symlink {
            content.to_vec()
        } else {
            Vec::new()
        },
    };
    vec![
        entry("HEAD", Kind::File, b"x"),
        entry("a", Kind::File, b"one"),
        entry("d", Kind::Dir, b""),
        entry("d/e", Kind::Dir, b""),
        entry("d/e/f", Kind::File, b""),
        entry("l", Kind::Symlink, b"a"),
    ]
}

/// Returns what came of it, if the import came to its end.
pub(crate) fn drive(mut bytes: &[u8]) -> Option<ChangeSet> {
    let mut sink = Sink::default();
    let limits = Limits {
        entries: 2000,
        path_bytes: 200_000,
        file: Size(TOTAL / 2),
        total: Size(TOTAL),
        ..Limits::default()
    };
    let mut import = Import::new(
        baseline(),
        KnownState::default(),
        limits,
        NoRules,
        Artifacts::default(),
        &mut sink,
    );
    loop {
        let request = import.next_request();
        if let Some(request) = request.expect("entries in memory can be read") {
            check_request(&request);
        }
        if import.is_done() {
            break;
        }
        let (step, rest) = bytes.split_first()?;
        bytes = rest;
        let outcome = match step {
            0 | 1 => {
                let (length, rest) = bytes.split_first_chunk::<2>()?;
                let length = usize::from(u16::from_le_bytes(*length));
                if *step == 1 {
                    bytes = rest;
                    import.data(&vec![0; length])
                } else {
                    let (message, rest) = rest.split_at(length.min(rest.len()));
                    bytes = rest;
                    match decode::<Reply>(message) {
                        Ok(reply) => import.message(reply),
                        Err(_) => return None,
                    }
                }
            }
            _ => import.closed(),
        };
        if outcome.is_err() {
            assert!(matches!(import.next_request(), Ok(None)) && !import.is_done());
            return None;
        }
    }
    let (set, _, counts) = import.finish().expect("what came out holds its rules");
    assert!(counts.entries <= 2000);
    let files = set
        .changes()
        .iter()
        .filter_map(|change| change.new.as_ref());
    let total: u64 = files
        .filter(|node| node.kind == Kind::File)
        .map(|node| node.size)
        .sum();
    assert!(total <= TOTAL);
    for digest in set.contents() {
        assert!(sink.kept.contains_key(&digest));
    }
    Some(set)
}

fn check_request(request: &Request) {
    let paths: Vec<&[u8]> = match request {
        Request::List { dirs, .. } => dirs.iter().map(|dir| dir.path.as_slice()).collect(),
        Request::Read { paths, .. } => paths.iter().map(Vec::as_slice).collect(),
        other => panic!("an import asks for no {other:?}"),
    };
    for path in paths.into_iter().filter(|path| !path.is_empty()) {
        let path = RelPath::new(path).expect("only paths below the workspace are asked for");
        check_exported(&path).expect("nothing in a git directory is asked for");
    }
}
