//! The only place that prints. stdout is data, stderr is talk.

use crate::error::CommandError;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// How to talk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ui {
    color_out: bool,
    color_err: bool,
    quiet: bool,
    stderr_is_terminal: bool,
    stdout_is_terminal: bool,
}

/// Colours by meaning, never by looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Strong,
    Good,
    Bad,
    Warn,
    Hint,
    Faint,
}

impl Tone {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Strong => "1",
            Self::Good => "32",
            Self::Bad => "31",
            Self::Warn => "33",
            Self::Hint => "36",
            Self::Faint => "2",
        }
    }
}

impl Ui {
    /// From what the terminal and the user's `NO_COLOR` say.
    pub(crate) fn new(no_color: bool, dumb: bool) -> Self {
        let stdout_is_terminal = io::stdout().is_terminal();
        let stderr_is_terminal = io::stderr().is_terminal();
        Self {
            color_out: stdout_is_terminal && !no_color && !dumb,
            color_err: stderr_is_terminal && !no_color && !dumb,
            quiet: false,
            stderr_is_terminal,
            stdout_is_terminal,
        }
    }

    /// Only errors are said from here on.
    pub(crate) fn silence(&mut self) {
        self.quiet = true;
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    pub(crate) fn stdout_is_terminal(&self) -> bool {
        self.stdout_is_terminal
    }

    /// A question can be asked: there is somebody to answer it.
    pub(crate) fn can_ask(&self) -> bool {
        self.stderr_is_terminal && io::stdin().is_terminal()
    }

    pub(crate) fn paint_err(&self, tone: Tone, text: &str) -> String {
        paint(self.color_err, tone, text)
    }

    pub(crate) fn paint_out(&self, tone: Tone, text: &str) -> String {
        paint(self.color_out, tone, text)
    }

    /// Data. A reader that went away (`| head`) is no error.
    pub(crate) fn out(&self, bytes: impl AsRef<[u8]>) -> Result<(), CommandError> {
        let mut stdout = io::stdout().lock();
        match stdout
            .write_all(bytes.as_ref())
            .and_then(|()| stdout.flush())
        {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(CommandError::new(format!(
                "Can't write to standard output: {error}"
            ))),
            Ok(()) => Ok(()),
        }
    }

    /// A line of data.
    pub(crate) fn line(&self, line: impl AsRef<str>) -> Result<(), CommandError> {
        self.out(format!("{}\n", line.as_ref()))
    }

    /// A document of data.
    pub(crate) fn json(&self, value: &serde_json::Value) -> Result<(), CommandError> {
        self.line(serde_json::to_string_pretty(value).unwrap_or_default())
    }

    /// Talk.
    pub(crate) fn say(&self, line: impl AsRef<str>) {
        if !self.quiet {
            self.talk(line.as_ref());
        }
    }

    /// Talk that was asked for by name, also with `--quiet`.
    pub(crate) fn always(&self, line: impl AsRef<str>) {
        self.talk(line.as_ref());
    }

    /// Something that the user should know and can do something about.
    pub(crate) fn warn(&self, line: impl AsRef<str>) {
        if !self.quiet {
            self.talk(&format!(
                "{} {}",
                self.paint_err(Tone::Warn, "warning:"),
                line.as_ref()
            ));
        }
    }

    /// What to type next.
    pub(crate) fn hint(&self, line: impl AsRef<str>) {
        if !self.quiet {
            self.talk(&format!(
                "{} {}",
                self.paint_err(Tone::Hint, "hint:"),
                line.as_ref()
            ));
        }
    }

    /// A failure, its causes, and what to do.
    pub(crate) fn error(&self, error: &CommandError) {
        self.talk(&format!(
            "{} {}",
            self.paint_err(Tone::Bad, "error:"),
            error.message
        ));
        for cause in &error.causes {
            self.talk(&format!("  caused by: {cause}"));
        }
        for hint in &error.hints {
            self.talk(&format!("{} {hint}", self.paint_err(Tone::Hint, "hint:")));
        }
    }

    /// Asks a yes-or-no question; an empty answer is a yes.
    pub(crate) fn ask(&self, question: &str) -> bool {
        let mut stderr = io::stderr().lock();
        if write!(stderr, "{question} [Y/n] ")
            .and_then(|()| stderr.flush())
            .is_err()
        {
            return false;
        }
        let mut answer = String::new();
        match io::stdin().read_line(&mut answer) {
            Ok(1..) => matches!(answer.trim().to_lowercase().as_str(), "" | "y" | "yes"),
            _ => false,
        }
    }

    fn talk(&self, line: &str) {
        // With nobody to hear it there is nothing to be done about it.
        drop(writeln!(io::stderr().lock(), "{line}"));
    }
}

fn paint(on: bool, tone: Tone, text: &str) -> String {
    if on && tone != Tone::Plain {
        format!("\x1b[{}m{text}\x1b[0m", tone.code())
    } else {
        text.to_owned()
    }
}

/// Long work, shown as it goes: a bar on a terminal, a plain line at the start of each step elsewhere, and
/// nothing at all for what is done within the blink of an eye.
#[derive(Debug)]
pub(crate) struct Progress {
    ui: Ui,
    bar: Option<ProgressBar>,
    step: String,
    since: Instant,
}

/// What takes less than this is not worth a flicker on the screen.
const BLINK: Duration = Duration::from_millis(400);

impl Progress {
    pub(crate) fn new(ui: Ui) -> Self {
        Self {
            ui,
            bar: None,
            step: String::new(),
            since: Instant::now(),
        }
    }

    /// `step` is `done` of `total` (0 for not known) bytes or items far.
    pub(crate) fn at(&mut self, step: &str, done: u64, total: u64, bytes: bool) {
        if self.ui.quiet {
            return;
        }
        if self.step != step {
            self.end();
            step.clone_into(&mut self.step);
            self.since = Instant::now();
        }
        if self.bar.is_none() && self.since.elapsed() >= BLINK {
            self.show(bytes, total);
        }
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    fn show(&mut self, bytes: bool, total: u64) {
        if !self.ui.stderr_is_terminal {
            self.ui.say(format!("{}…", self.step));
        }
        self.bar = Some(self.new_bar(bytes, total > 0));
    }

    /// A step that takes long and says nothing of how far it is: shown at once.
    pub(crate) fn begin(&mut self, step: &str) {
        self.at(step, 0, 0, false);
        if self.bar.is_none() && !self.ui.quiet {
            self.show(false, 0);
        }
    }

    /// The step is over.
    pub(crate) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.step.clear();
    }

    fn new_bar(&self, bytes: bool, known: bool) -> ProgressBar {
        let target = if self.ui.stderr_is_terminal {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(None, target);
        let template = match (bytes, known) {
            (true, true) => "{spinner} {msg}  {bytes}/{total_bytes}  {bytes_per_sec}  {eta}",
            (true, false) => "{spinner} {msg}  {bytes}  {bytes_per_sec}  {elapsed}",
            (false, true) => "{spinner} {msg}  {pos}/{len}  {elapsed}",
            (false, false) => "{spinner} {msg}  {elapsed}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(self.step.clone());
        bar.enable_steady_tick(Duration::from_millis(120));
        bar
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}
