//! Times what packing a directory costs: `pack DIR STATE [ROUNDS]`.
#![allow(clippy::print_stdout, reason = "a tool for whoever measures")]

use base::Size;
use std::path::PathBuf;
use std::time::Instant;
use workspace::{
    CollectOptions, DEFAULT_MAX_FILE_SIZE, DEFAULT_MAX_FILES, DEFAULT_MAX_TOTAL_SIZE, History,
    PackOptions,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [directory, state, rest @ ..] = arguments.as_slice() else {
        return Err("usage: pack DIR STATE [ROUNDS]".into());
    };
    let rounds: u32 = match rest.first().and_then(|rounds| rounds.to_str()) {
        Some(rounds) => rounds.parse()?,
        None => 1,
    };
    let options = CollectOptions {
        directory: directory.clone(),
        only: None,
        include: Vec::new(),
        exclude: Vec::new(),
        skip_unreadable: false,
        history: History::Auto,
        allow_unusual: true,
        git_program: None,
        home: None,
        max_file_size: DEFAULT_MAX_FILE_SIZE,
        max_total_size: DEFAULT_MAX_TOTAL_SIZE,
        max_files: DEFAULT_MAX_FILES,
        scratch: state.join("scratch"),
    };
    let owner = (
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    let place = PackOptions {
        baselines: state.join("baselines"),
        cache: state.join("cache"),
        owner,
    };
    for round in 0..rounds {
        let start = Instant::now();
        let collected = workspace::collect(&options)?;
        let collect_time = start.elapsed();
        let baseline = workspace::pack(&collected, &place, &mut |_| {})?;
        println!(
            "{} {:8.0} ms (collecting {:.0} ms), {} paths, image {}",
            if round == 0 {
                "first pack"
            } else {
                "again     "
            },
            start.elapsed().as_secs_f64() * 1000.0,
            collect_time.as_secs_f64() * 1000.0,
            baseline.entries.len(),
            Size(baseline.image_size),
        );
    }
    Ok(())
}
