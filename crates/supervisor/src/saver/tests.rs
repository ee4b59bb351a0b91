use super::{Outcome, Saver};
use crate::given::Given;
use std::time::Duration;
use wire::message::{Failure, FileKind, ListEntry, Reply, Request, Stat, decode, encode};
use wire::{Event, Mux, Side, StreamId};

/// A saver and both ends of its wire, without anything between.
struct Bed {
    _dir: tempfile::TempDir,
    saver: Saver,
    host: Mux,
    guest: Mux,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut bed = Self {
            saver: Saver::new(
                Given::nothing(dir.path().join("blobs")),
                dir.path().to_owned(),
            ),
            _dir: dir,
            host: Mux::new(Side::Opener),
            guest: Mux::new(Side::Answerer),
        };
        bed.exchange();
        while bed.host.next_event().is_some() || bed.guest.next_event().is_some() {}
        bed
    }

    fn exchange(&mut self) {
        let (host, guest) = (
            self.host.outgoing().to_vec(),
            self.guest.outgoing().to_vec(),
        );
        self.guest.receive(&host).unwrap();
        self.host.receive(&guest).unwrap();
        self.host.wrote(host.len());
        self.guest.wrote(guest.len());
    }

    /// The request that the guest gets, if there is one.
    fn asked(&mut self) -> Option<(StreamId, Request)> {
        self.exchange();
        while let Some(event) = self.guest.next_event() {
            if let Event::Opened { id, payload } = event {
                return Some((id, decode(&payload).unwrap()));
            }
        }
        None
    }

    /// Answers a listing with nothing, at `now`.
    fn answer(&mut self, now: Duration, id: StreamId) -> Vec<Outcome> {
        self.answer_with(now, id, Vec::new())
    }

    fn answer_with(
        &mut self,
        now: Duration,
        id: StreamId,
        entries: Vec<ListEntry>,
    ) -> Vec<Outcome> {
        let reply = Reply::Entries {
            index: 0,
            entries,
            last: true,
        };
        self.guest.send_message(id, &encode(&reply)).unwrap();
        self.guest.close(id).unwrap();
        self.heard(now)
    }

    /// Hands the saver what the guest has said.
    fn heard(&mut self, now: Duration) -> Vec<Outcome> {
        self.exchange();
        let mut outcomes = Vec::new();
        while let Some(event) = self.host.next_event() {
            outcomes.extend(self.saver.event(now, &mut self.host, event));
        }
        outcomes
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn git_directory() -> ListEntry {
    ListEntry {
        name: b".git".to_vec(),
        stat: Stat {
            kind: FileKind::Dir,
            nlink: 3,
            ..file("", 4096).stat
        },
        target: Vec::new(),
    }
}

fn file(name: &str, size: u64) -> ListEntry {
    ListEntry {
        name: name.as_bytes().to_vec(),
        stat: Stat {
            kind: FileKind::File,
            mode: 0o755,
            size,
            ino: 2,
            nlink: 1,
            mtime_ns: 0,
            ctime_ns: 0,
        },
        target: Vec::new(),
    }
}

/// The paths of a request to read.
fn read(request: Request) -> Vec<String> {
    match request {
        Request::Read { paths, .. } => paths
            .into_iter()
            .map(|path| String::from_utf8(path).unwrap())
            .collect(),
        other => panic!("{other:?}"),
    }
}

fn finished(outcomes: &[Outcome]) -> Option<bool> {
    outcomes.iter().find_map(|outcome| match outcome {
        Outcome::Finished(complete) => Some(*complete),
        _ => None,
    })
}

#[test]
fn the_pause_follows_the_cost() {
    // How long a pass takes, and how long the pause after it is.
    for (took, pause) in [
        (10, 2_000),
        (100, 2_000),
        (500, 10_000),
        (3_000, 60_000),
        (40_000, 300_000),
    ] {
        let mut bed = Bed::new();
        assert_eq!(bed.saver.deadline(), None);
        bed.saver.set_active(ms(0), true);
        bed.saver.schedule(ms(0));
        assert_eq!(bed.saver.deadline(), Some(ms(2_000)));
        assert!(bed.saver.tick(ms(1_999), &mut bed.host).is_empty());
        assert!(bed.asked().is_none());
        bed.saver.tick(ms(2_000), &mut bed.host);
        let (id, _) = bed.asked().expect("a pass begins");
        let outcomes = bed.answer(ms(2_000 + took), id);
        assert_eq!(finished(&outcomes), Some(true));
        assert_eq!(
            bed.saver.deadline(),
            Some(ms(2_000 + took + pause)),
            "{took}"
        );
    }
}

#[test]
fn a_machine_at_rest_is_looked_at_rarely_or_not_at_all() {
    let mut bed = Bed::new();
    bed.saver.schedule(ms(0));
    bed.saver.tick(ms(2_000), &mut bed.host);
    let (id, _) = bed.asked().unwrap();
    bed.answer(ms(2_010), id);
    assert_eq!(bed.saver.deadline(), Some(ms(62_010)));
    // A session that begins is looked at soon, and so is what it left when it ends.
    bed.saver.set_active(ms(10_000), true);
    assert_eq!(bed.saver.deadline(), Some(ms(12_000)));
    bed.saver.set_active(ms(11_000), true);
    assert_eq!(bed.saver.deadline(), Some(ms(12_000)));
    bed.saver.set_active(ms(11_500), false);
    assert_eq!(bed.saver.deadline(), Some(ms(12_000)));
    bed.saver.rest();
    bed.saver.set_active(ms(12_000), true);
    assert_eq!(bed.saver.deadline(), None);
}

#[test]
fn the_final_pass_starts_anew() {
    let mut bed = Bed::new();
    bed.saver.begin(ms(0), &mut bed.host, false);
    let (old, _) = bed.asked().unwrap();
    bed.saver.begin(ms(10), &mut bed.host, false);
    bed.exchange();
    let mut reset = false;
    let mut new = None;
    while let Some(event) = bed.guest.next_event() {
        match event {
            Event::Reset { id } => reset |= id == old,
            Event::Opened { id, .. } => new = Some(id),
            other => panic!("{other:?}"),
        }
    }
    assert!(reset);
    assert!(bed.saver.owns(new.unwrap()) && !bed.saver.owns(old));
    assert_eq!(finished(&bed.answer(ms(20), new.unwrap())), Some(true));
}

#[test]
fn what_a_pass_read_before_it_was_thrown_away_is_not_read_again() {
    let mut bed = Bed::new();
    let listing = || {
        let mut later = file("b", 1);
        // So much later that `a` is beyond doubt.
        later.stat.ctime_ns = 1_000_000_000;
        vec![file("a", 1), later]
    };
    bed.saver.begin(ms(0), &mut bed.host, false);
    let (id, _) = bed.asked().unwrap();
    bed.answer_with(ms(1), id, listing());
    let (id, request) = bed.asked().unwrap();
    assert_eq!(read(request), ["a", "b"]);
    let stat = file("a", 1).stat;
    let send = |guest: &mut Mux, reply| guest.send_message(id, &encode(&reply)).unwrap();
    send(&mut bed.guest, Reply::File(stat.clone()));
    assert_eq!(bed.guest.send_data(id, 1, b"x"), Ok(1));
    send(&mut bed.guest, Reply::FileEnd(stat));
    assert!(bed.heard(ms(2)).is_empty());
    bed.saver.begin(ms(3), &mut bed.host, true);
    let (id, _) = bed.asked().unwrap();
    bed.answer_with(ms(4), id, listing());
    let (_, request) = bed.asked().unwrap();
    assert_eq!(read(request), ["b"]);
    // Neither is it when the guest says nothing more.
    bed.saver.tick(ms(70_000), &mut bed.host);
    bed.saver.begin(ms(70_001), &mut bed.host, true);
    let (id, _) = bed.asked().unwrap();
    bed.answer_with(ms(70_002), id, listing());
    let (_, request) = bed.asked().unwrap();
    assert_eq!(read(request), ["b"]);
}

#[test]
fn a_checkpoint_leaves_what_is_large_to_the_end() {
    let mut bed = Bed::new();
    let listing = || {
        let half = 130 << 20;
        vec![file("a", half), file("b", half), file("c", 5)]
    };
    bed.saver.schedule(ms(0));
    bed.saver.tick(ms(2_000), &mut bed.host);
    let (id, _) = bed.asked().unwrap();
    bed.answer_with(ms(2_001), id, listing());
    let (id, request) = bed.asked().unwrap();
    assert_eq!(read(request), ["c"]);
    // They went away meanwhile.
    let gone = || {
        Reply::Failed(Failure {
            errno: 2,
            what: Vec::new(),
        })
    };
    let fail = |bed: &mut Bed, id, count| {
        for _ in 0..count {
            bed.guest.send_message(id, &encode(&gone())).unwrap();
        }
        bed.guest.close(id).unwrap();
        bed.heard(ms(2_002))
    };
    fail(&mut bed, id, 1);
    let (id, request) = bed.asked().unwrap();
    assert_eq!(read(request), ["a"]);
    let outcomes = fail(&mut bed, id, 1);
    assert_eq!(finished(&outcomes), Some(true));
    assert!(
        matches!(&outcomes[0], Outcome::Notice(why) if why.ends_with("left for the next: 1")),
        "{outcomes:?}"
    );
    // The end, and whoever asks, gets it all.
    bed.saver.begin(ms(3_000), &mut bed.host, true);
    let (id, _) = bed.asked().unwrap();
    bed.answer_with(ms(3_001), id, listing());
    let (id, _) = bed.asked().unwrap();
    fail(&mut bed, id, 1);
    let (_, request) = bed.asked().unwrap();
    assert_eq!(read(request), ["a", "b"]);
}

#[test]
fn a_guest_without_a_word_is_not_waited_for() {
    let mut bed = Bed::new();
    bed.saver.begin(ms(0), &mut bed.host, false);
    let (id, _) = bed.asked().unwrap();
    assert!(bed.saver.tick(ms(59_999), &mut bed.host).is_empty());
    let outcomes = bed.saver.tick(ms(60_000), &mut bed.host);
    assert_eq!(finished(&outcomes), Some(false));
    assert!(matches!(&outcomes[0], Outcome::Notice(why) if why.contains("did not answer")));
    // The late answer is nobody's.
    assert!(!bed.saver.owns(id));
}

#[test]
fn commits_are_a_bonus() {
    let mut bed = Bed::new();
    // Without a trace of git there is nothing to ask it for.
    bed.saver.begin(ms(0), &mut bed.host, true);
    let (id, _) = bed.asked().unwrap();
    assert_eq!(finished(&bed.answer(ms(10), id)), Some(true));
    bed.saver.begin(ms(0), &mut bed.host, true);
    let (id, _) = bed.asked().unwrap();
    let outcomes = bed.answer_with(ms(10), id, vec![git_directory()]);
    assert!(
        matches!(outcomes[..], [Outcome::Changes(..)]),
        "{outcomes:?}"
    );
    let (_, request) = bed.asked().unwrap();
    assert!(matches!(request, Request::Exec(exec) if exec.argv[0] == b"git"));
    // A git that hangs costs its time and nothing else.
    let outcomes = bed.saver.tick(ms(60_000), &mut bed.host);
    assert_eq!(finished(&outcomes), Some(true));
}
