//! `admix watch`: shows a run on one screen.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::supervisor::interrupt::Interrupt;
use crate::watch::{Watched, render};

use super::exit::{Exit, UsageError};
use super::output::print_text;

const EVERY: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
#[command(
    after_help = "The screen fits 80 x 24 and is drawn anew every second until the run ends; Ctrl-C leaves, and the run goes on. Where \
                  stdout is no terminal, it is printed once. The run is not disturbed.\n\n\
                  Example: admix watch runs/quickstart-20261120-030000"
)]
pub struct Watch {
    /// Run directory
    #[arg(value_name = "RUN_DIR")]
    run: PathBuf,
    /// Print the screen once
    #[arg(long)]
    once: bool,
}

impl Watch {
    pub fn run(self) -> anyhow::Result<Exit> {
        let look = || Watched::look(&self.run).map_err(|e| UsageError(format!("{e:#}")));
        let first = look()?;
        if self.once || first.is_over() || !std::io::stdout().is_terminal() {
            print_text(&(render(&first, 80, 24).join("\n") + "\n"))?;
            return Ok(Exit::Done);
        }
        let interrupt = Interrupt::listen(f64::from(u32::MAX))?;
        interrupt.supervise();
        let screen = Screen::enter()?;
        loop {
            let watched = look()?;
            screen.draw(&watched)?;
            if watched.is_over() {
                drop(screen);
                // The last screen stays on the terminal.
                print_text(&(render(&watched, 80, 24).join("\n") + "\n"))?;
                return Ok(Exit::Done);
            }
            let mut waited = Duration::ZERO;
            while waited < EVERY {
                if interrupt.count() > 0 {
                    return Ok(Exit::Done);
                }
                std::thread::sleep(POLL);
                waited += POLL;
            }
        }
    }
}

/// The terminal's alternate screen, left again when this is dropped.
struct Screen;

impl Screen {
    fn enter() -> anyhow::Result<Self> {
        print!("\x1b[?1049h\x1b[?25l");
        std::io::stdout().flush()?;
        Ok(Self)
    }

    fn draw(&self, watched: &Watched) -> anyhow::Result<()> {
        let (width, height) = size();
        let lines = render(watched, width, height.saturating_sub(1));
        let mut out = std::io::stdout().lock();
        write!(out, "\x1b[H")?;
        for line in lines {
            write!(out, "{line}\x1b[K\r\n")?;
        }
        write!(out, "\x1b[J")?;
        Ok(out.flush()?)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut out = std::io::stdout().lock();
        // Errors are ignored: the terminal may be gone.
        let _ = write!(out, "\x1b[?25h\x1b[?1049l").and_then(|()| out.flush());
    }
}

/// Returns the columns and lines of the terminal.
fn size() -> (usize, usize) {
    let (rows, columns) = console::Term::stdout().size();
    ((columns as usize).max(40), (rows as usize).max(12))
}
