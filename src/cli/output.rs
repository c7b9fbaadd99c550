//! Output to stdout, without control sequences that a terminal would obey.

/// Tells a person something, on the first node of a job.
macro_rules! tell {
    ($job:expr, $($arg:tt)*) => {
        if $job.node().is_first() {
            say!($($arg)*);
        }
    };
}

/// Escapes the control characters in a text, so that the content of a log cannot move the cursor or set the title of a reader's
/// terminal.
pub fn plain(text: &str) -> std::borrow::Cow<'_, str> {
    let obeyed = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(obeyed) {
        return text.into();
    }
    let shown = |c: char| if obeyed(c) { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect::<String>().into()
}

/// Prints on stdout; a closed pipe (`| head`) ends the program quietly.
pub fn print_text(text: &str) -> anyhow::Result<()> {
    write_out(&plain(text))
}

fn write_out(text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        done => Ok(done?),
    }
}

/// Prints one line of JSON on stdout.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    write_out(&format!("{}\n", serde_json::to_string(value)?))
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn what_a_terminal_would_obey_is_shown_instead() {
        assert_eq!(plain("a\tb\nc é"), "a\tb\nc é");
        assert_eq!(plain("\u{1b}]0;title\u{7}\r\u{9b}2J"), "\\u{1b}]0;title\\u{7}\\r\\u{9b}2J");
    }
}
