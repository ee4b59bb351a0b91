//! Running machines that are frozen, taken back and forked, against machines that boot.

use super::lab::{Lab, make_dir, time, timed_output};
use super::report::Row;
use anyhow::Result;
use std::time::Duration;

/// Eight forks in the time of one boot.
const EIGHT_LIMIT: f64 = 1.0;

/// What the machine holds, beyond its system, when it is frozen: 200 MiB that aren't zero.
const HOLD: &str = "import os, time
held = os.urandom(200 << 20)
open('/tmp/held', 'w').close()
time.sleep(600)";

pub(crate) fn measure(lab: &Lab) -> Result<Vec<Row>> {
    let empty = lab.path("empty");
    make_dir(&empty)?;
    let (mut boots, mut snapshots, mut restores) = (vec![], vec![], vec![]);
    let mut forks: [Vec<Duration>; 3] = Default::default();
    for _ in 0..lab.rounds {
        boots.push(
            lab.keep_with(&empty, &["--no-template", "-m", "1g"], &["true"])?
                .boot()?,
        );
        let kept = lab.keep_with(&empty, &["-m", "1g"], &["true"])?;
        let hold = format!(
            "setsid python3 -c \"{HOLD}\" >/dev/null 2>&1 & until test -e /tmp/held; do sleep 0.2; done"
        );
        kept.exec(&["sh", "-c", &hold])?;
        let name = kept.name();
        snapshots.push(time(&mut lab.efimera(&empty, &["snapshot", name, "here"]))?);
        let here = format!("{name}:here");
        restores.push(time(&mut lab.efimera(&empty, &["restore", &here]))?);
        for (count, took) in [("1", 0), ("4", 1), ("8", 2)] {
            let mut command = lab.efimera(&empty, &["fork", &here, "-n", count]);
            let (output, time) = timed_output(&mut command)?;
            forks[took].push(time);
            for fork in output.lines() {
                lab.ask(&empty, &["rm", "--force", fork])?;
                lab.ask(&empty, &["discard", fork])?;
            }
        }
        kept.end()?;
    }
    let [one, four, eight] = &forks;
    let none = f64::INFINITY;
    Ok(vec![
        Row::ratio(
            "snapshot of 1 GiB, 200 MiB in use / boot",
            &snapshots,
            &boots,
            none,
        ),
        Row::ratio("restore of it / boot", &restores, &boots, none),
        Row::ratio("one fork of it / boot", one, &boots, none),
        Row::ratio("4 forks of it / boot", four, &boots, none),
        Row::ratio("8 forks of it / boot", eight, &boots, EIGHT_LIMIT),
    ])
}
