use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::pick;
use base::Name;
use clap::Args;
use std::io::Write as _;
use store::{LogPiece, LogReader};

/// Print what a sandbox's command has printed
///
/// From a result or a running sandbox. On a terminal, control characters are shown, not obeyed; into a file or
/// pipe the bytes go as they were. Of very long output the start and the end are kept.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Sandbox or result
    name: Name,
    /// Standard error only
    #[arg(long)]
    stderr: bool,
}

pub(crate) fn run(context: &Context, args: &LogsArgs) -> Result<u8> {
    let store = pick::store(context)?;
    pick::named(&store, &args.name)?;
    let mut reader = LogReader::open(&store.result_dir(&args.name).output());
    let on_terminal = context.ui.stdout_is_terminal();
    while let Some(piece) = reader.next_piece()? {
        match piece {
            LogPiece::Bytes { channel, bytes, .. } => {
                if args.stderr && channel != 2 {
                    continue;
                }
                let bytes = if on_terminal { shown(&bytes) } else { bytes };
                if channel == 2 && !args.stderr {
                    std::io::stderr()
                        .lock()
                        .write_all(&bytes)
                        .map_err(CommandError::from)?;
                } else {
                    context.ui.out(&bytes)?;
                }
            }
            LogPiece::Dropped(count) => context
                .ui
                .warn(format!("{} of output were dropped here", base::Size(count))),
        }
    }
    Ok(0)
}

/// Output as a terminal may see it: line breaks and tabs, and everything else that could act on it escaped.
fn shown(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for part in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\t')) {
        match part.split_last() {
            Some((end @ (b'\n' | b'\t'), text)) => {
                let text = text.strip_suffix(b"\r").unwrap_or(text);
                out.extend_from_slice(base::escape(text).as_bytes());
                out.push(*end);
            }
            _ => out.extend_from_slice(base::escape(part).as_bytes()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_terminal_is_not_driven_by_a_log() {
        let shown = super::shown(b"a\x1b]52;c;aGk=\x07b\r\n\tc\x9b2J\n");
        assert_eq!(
            String::from_utf8(shown).unwrap(),
            "a\\x1b]52;c;aGk=\\x07b\n\tc\\x9b2J\n"
        );
    }
}
